// A GGUF file with its weights in another storage type.
#pragma once
#include <optional>
#include <string>

#include "formats/gguf.h"

namespace narrows {

// llama.cpp's number of a file that is mostly of this type (general.file_type). Throws Error if it cannot be encoded.
std::uint32_t gguf_file_type(DType type);

// A writer with the file's alignment and metadata, as one file of mostly this type. Not empty: of this architecture, whose
// keys are named like those of the file's own. Throws Error if the type cannot be encoded.
GgufWriter rewriter(const GgufFile& in, DType type, const std::string& architecture = {});

struct RequantizeOptions {
  int threads = 0;                   // below 1: all cores
  std::optional<DType> output_type;  // of output.weight, or of token_embd.weight if it serves as the output
  std::optional<DType> token_embedding_type;  // of token_embd.weight; goes before output_type
  bool keep_types = false;  // weight matrices stay as they are; `type` only names what most of them have
  bool pure = false;  // the output too is of `type`; otherwise it has at least the 6 bits of Q6_K, since
                      // errors there reach every logit
};

// Writes `in` to `out` with every weight matrix as `type`, one tensor in memory at a time:
// - weights of two and more dimensions become `type`. Rows that are not a whole number of its blocks get a
// type of
//   blocks of 32 instead (Q5_0 for Q4_K, Q8_0 for Q6_K), or F16 if they are not a multiple of 32 either;
// - one-dimensional tensors (norms, biases) become F32;
// - small matrices that decide much (routers of experts, position embeddings, …) and tensors of integers
// stay. Every metadata key is copied, except that general.file_type and general.quantization_version follow
// the new types and the keys of a split are left out. Throws if `type` cannot be encoded, if `out` is a file
// of `in`, and if a weight is not finite or too large for its type.
void requantize(const GgufFile& in, DType type, const std::string& out,
                const RequantizeOptions& options = {});

}  // namespace narrows
