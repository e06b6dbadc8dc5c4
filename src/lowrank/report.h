// What the ways to compress a model have in common: counting, and the last lines of a report.
#pragma once
#include <chrono>
#include <span>
#include <string>

#include "lowrank/compress.h"
#include "model/loaded_model.h"

namespace narrows {

// Of a layer's linear maps, biases included.
std::int64_t parameters(const LayerWeights& weights);

// That a token's keys and values take in the cache, of all layers.
std::int64_t cache_numbers(const ModelSpec& spec);
std::int64_t cache_numbers(const LayerSpec& layer);  // of one

// A layer that keeps its sizes and whose losses are not known: NaN.
CompressedLayer unmeasured(const LayerSpec& layer);

// Throw Error: a type that cannot be encoded; a share that is not of 0 to below 1.
void check_type(DType type);
void check_share(double share);

// Of the whole loss, what is lost with so many dimensions kept; 0 where there is nothing to lose.
double share_lost(std::span<const double> loss_by_rank, std::int64_t rank);

// Throws Error for what the ways to compress do not know, or a file of theirs could not say: mixtures of experts, queries, keys
// and values that are cut off, layers that scale their scores differently.
void check_can_shrink(const LoadedModel& model);

// Time since the start, the process' peak memory, the size of the file written.
void finish(CompressionReport& report, std::chrono::steady_clock::time_point start, const std::string& out);

}  // namespace narrows
