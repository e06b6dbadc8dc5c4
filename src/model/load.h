// Loading a model's description and weights from GGUF.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "formats/gguf.h"
#include "model/spec.h"
#include "model/weights.h"

namespace narrows {

// A3 keeps some rotary pairs of each KV head: how many in each layer [layers]; and which of the pairs of
// rope.dimension_count, ascending, layer by layer and head by head.
inline constexpr std::string_view kPairCountKey = "narrows.rope.pair_count", kPairsKey = "narrows.rope.pairs";

// Reads the metadata. Throws Error for an unknown architecture, and for values that are missing or make no sense.
ModelSpec load_spec(const GgufFile& file);

// Finds every tensor that the spec asks for and checks its shape; throws Error naming the first that is missing or
// wrong. Matrices stay in the mapped file, which must outlive the weights; with `repack` those of block types are also
// laid out for the kernels, by all threads of the pool, and the file's pages are given back.
Weights load_weights(const GgufFile& file, ModelSpec& spec, bool repack, ThreadPool& pool);

// All matrices of a layer's sites, as they are now.
std::vector<WeightMatrix> layer_matrices(const LayerWeights& layer);
// Gives back the memory of matrices as far as they lie in the mapped file: they are read again when they are used.
void release_pages(const GgufFile& file, std::span<const WeightMatrix> matrices);

}  // namespace narrows
