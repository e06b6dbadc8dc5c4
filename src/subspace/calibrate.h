// Calibration: bases of every site's activations on a text, and the images of the site's maps.
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dtype.h"
#include "model/loaded_model.h"
#include "subspace/gsi_file.h"

namespace narrows {

enum class BasisMethod { Svd, Cascade };

struct CalibrateOptions {
  BasisMethod method = BasisMethod::Svd;
  std::array<std::int64_t, kSiteKindNames.size()> k = {256, 256, 256, 256, 256};  // at most; by kind of site
  double tolerance = 0;             // svd: directions beyond it are left out; cascade: what a token may leave (0: 0.1)
  std::vector<std::string> sites;   // kinds ("qkv") or names ("blk.3.down"); empty: all
  DType type = DType::F16;          // of bases and images: F32, F16, BF16 or Q8_0
  float epsilon = kDefaultEpsilon;  // written into the file
  std::int64_t window = 512;        // tokens
  std::int64_t max_tokens = 8192;   // 0: the whole text
  bool compare = true;              // cascade: compute what svd would give and take, too
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
};

struct SiteCalibration {
  std::string name;
  SiteKind kind;
  int layer;
  std::int64_t d = 0, k = 0;
  double energy_kept = 0;             // share of Σ ‖x‖² inside the basis
  double seconds = 0, flops = 0;      // of finding the basis
  std::optional<double> svd_seconds, svd_flops, svd_energy_kept;  // what the cascade is compared with
  std::optional<double> similarity;   // mean cosine of principal angles to the basis a layer before
  std::int64_t appended = 0, dropped = 0;  // cascade
  bool inherited = false;
  std::size_t bytes = 0;              // of basis and images
};

struct CalibrationReport {
  std::int64_t tokens = 0;
  std::vector<SiteCalibration> sites;
  std::vector<std::string> skipped;  // sites of experts that saw fewer than k tokens: they stay dense
  double seconds = 0, basis_seconds = 0, image_seconds = 0;  // all; bases; images
  std::size_t file_bytes = 0, model_bytes = 0;               // images and bases; the model's weights
  std::size_t peak_bytes = 0;                                // of the process
};

// One pass over the text, layer by layer; memory beside the model: the residual stream (tokens · d floats), one layer's
// statistics (8 d² bytes a site for svd) and the result. Writes `path`, whole or not at all. Sites of
// experts to which the router sends fewer than k tokens are left out. Throws Error: too little
// text for k, activations that are not finite, an unknown site, a type that does not fit.
CalibrationReport calibrate(Model& model, std::string_view text, const CalibrateOptions& options, const std::string& path);

}  // namespace narrows
