// What A3 is compared with, on whole models: each linear map of the layers as the product of two thin ones.
#pragma once
#include <string>
#include <string_view>

#include "lowrank/compress.h"

namespace narrows {

enum class LinearMethod { Svd, Asvd, SvdLlm };  // linear.h

// Each map gets the largest rank r with r · (rows + columns) ≤ (1 - share) · rows · columns, which is what
// the report counts as its parameters. For the comparison of quality only: the file holds the products A B as
// full matrices, and is no smaller. Layer by layer on what the layers before it, replaced already, make of
// the text. Of `options` the type, window, max_tokens, threads and progress count. Throws Error as compress()
// does.
CompressionReport compress_linear(const std::string& in, std::string_view text, LinearMethod method,
                                  double share, const CompressOptions& options, const std::string& out);

}  // namespace narrows
