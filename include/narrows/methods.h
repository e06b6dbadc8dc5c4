// Cheaper inference on a loaded model. Every method is off until asked for; each changes what the model computes, within
// what its options allow.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "narrows/model.h"
#include "narrows/session.h"

namespace narrows {

// Gated subspace inference with the bases of a file that `narrows calibrate` wrote. A token whose distance from a site's
// subspace, ‖r‖/‖x‖, is below epsilon reads k cached columns instead of the site's weights.
struct GsiOptions {
  std::string path;
  std::optional<float> epsilon;  // for all sites; absent: the file's. 0: the dense bits; infinity: no gate
  std::int64_t k = 0;            // directions used, at most those of the file; 0: all of them
};

// Not while a step runs, and once a model. Throws Error if the file cannot be read, is of another version or was made
// for another model, or if k does not suit it.
void apply_gsi(Model& model, const GsiOptions& options);

// A plan that `narrows tune` wrote: each site dense, graded or gated. Not while a step runs, and once a model. Throws
// Error if the file is no plan, of another version or made for another model.
void apply_plan(Model& model, const std::string& path);

// The cache that the plan asks for, if it does: for SessionOptions::compression. Throws Error as apply_plan does.
std::optional<KvCompression> plan_compression(const std::string& path);

}  // namespace narrows
