// What the ways to compress a model have in common: counting, and the last lines of a report.
#pragma once
#include <chrono>
#include <string>

#include "lowrank/compress.h"
#include "model/loaded_model.h"

namespace narrows {

// Of a layer's linear maps, biases included.
std::int64_t parameters(const LayerWeights& weights);

// Throws Error if layers scale their scores differently, which a file could not say.
float common_score_scale(const LoadedModel& model);

// Time since the start, the process' peak memory, the size of the file written.
void finish(CompressionReport& report, std::chrono::steady_clock::time_point start, const std::string& out);

}  // namespace narrows
