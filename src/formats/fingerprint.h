// What tells one model from another: a hash of its tensors.
#pragma once
#include <string>

#include "formats/gguf.h"

namespace narrows {

// 32 hexadecimal digits (XXH3, 128 bits) over every tensor's name, type, shape and values; of a tensor beyond 1 MB,
// sixteen pieces of 64 KB spread evenly, so that a model of any size costs milliseconds. Metadata does not count: a
// changed chat template leaves the weights what they are.
std::string fingerprint(const GgufFile& file);

// The same of bytes, all of them.
std::string fingerprint(std::string_view bytes);

}  // namespace narrows
