// What A3's smaller key/value cache is compared with, on whole models: Palu and CLOVER.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lowrank/compress.h"

namespace narrows {

inline constexpr int kPaluHeads = 4;  // KV heads a group, at most

// KV heads of each group: as few groups as kPaluHeads allows, as equal as can be.
std::vector<int> palu_groups(int kv_heads);

// Palu (Chang et al., arXiv 2407.21118): the cache holds a latent vector of each group of KV heads, from
// which keys and values are made anew at each step; the report counts those latent vectors as the cache, the
// thin maps as parameters.
//
// From the paper: group-head low-rank decomposition, the truncated SVD of the stacked W_k of a group of four
// heads, and that of its stacked W_v, both weighed by the input's second moment as in SVD-LLM. Keys are
// decomposed before rotation (and before QK-norm), which are applied to what is made anew, so rotary
// positions need nothing else. A bias is added afterwards and costs no rank. Decided here: with grouped
// queries a group is one of KV heads, which are what the cache holds, all of them if there are fewer than
// four; every group has the same share, where the paper's search shifts ranks between layers by Fisher
// information, and none are rounded to 32, which would be half of a small model's heads; the statistics are
// those of the model whose layers before are replaced already, as in this project's svd-llm, where the
// paper's program takes the dense model's; no quantization of the latent vectors.
//
// share: of the cache to remove; a group of n rows keeps the rank ⌊(1 - share) n⌋, 1 at least. For the
// comparison of quality only: the file holds the products in full and is no smaller. Maps other than those of
// the attention are copied as they are stored. Of `options` the type, window, max_tokens, threads and
// progress count. Throws Error as compress() does.
CompressionReport compress_palu(const std::string& in, std::string_view text, double share,
                                const CompressOptions& options, const std::string& out);

// CLOVER's pruning (Meng et al., arXiv 2411.17426), from the weights alone: the SVD of each head's W_qᵀ W_k
// and W_o W_v, whose smallest singular values go, with what belongs to them in both maps. No text, no
// training afterwards.
//
// This is A3's reduction of queries, keys, values and outputs (attention_reduction.h) for white inputs, R =
// I, for which the functional loss is that of the merged matrices. Decided here: rotated dimensions cannot be
// merged, since the rotation stands between the maps, so whole pairs are kept by the norms of their rows, and
// only dimensions that are not rotated get the SVD; grouped queries share one key and one value map, so the
// heads of a group are stacked for one SVD; dimensions under QK-norm are kept or dropped as they are; a bias
// counts as a column for a constant 1. The same share goes from both pairs of maps in every layer.
//
// share: of a head's query, key and value dimensions to remove, rounded as uniform_ranks does. The file is
// smaller; the feed-forward maps are copied as they are stored. Of `options` the type, threads and progress
// count. Throws Error as compress() does.
CompressionReport compress_clover(const std::string& in, double share, const CompressOptions& options,
                                  const std::string& out);

}  // namespace narrows
