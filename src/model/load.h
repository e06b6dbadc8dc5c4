// Loading a model's description and weights from GGUF.
#pragma once
#include <functional>

#include "base/threads.h"
#include "formats/gguf.h"
#include "model/spec.h"
#include "model/weights.h"

namespace narrows {

// Reads the metadata. Throws Error for an unknown architecture, and for values that are missing or make no sense.
ModelSpec load_spec(const GgufFile& file);

// Finds every tensor that the spec asks for and checks its shape; throws Error naming the first that is missing or
// wrong. Matrices stay in the mapped file, which must outlive the weights; with `repack` those of block types are also
// laid out for the kernels, by all threads of the pool, and the file's pages are given back.
Weights load_weights(const GgufFile& file, ModelSpec& spec, bool repack, ThreadPool& pool);

}  // namespace narrows
