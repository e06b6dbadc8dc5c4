// The file that `calibrate` writes: for each site a basis V, and M = W V of each of its maps.
//
// A GGUF file of general.type "gsi". Metadata: narrows.gsi.version, .model (fingerprint of the model's tensors),
// .model_name, .text (fingerprint of the calibration text), .tokens, .window, .method ("svd", "cascade"), .tolerance,
// .epsilon (what the gate uses unless told otherwise), .sites (names), .energies (total calibration energy a site).
// Tensors of site S: S.basis [k][d], falling energy; S.image.0 … [rows][k], in the order of the maps; S.energy f32 [k].
#pragma once
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "kernels/matmul.h"
#include "model/loaded_model.h"

namespace narrows {

inline constexpr std::int64_t kGsiVersion = 1;
inline constexpr float kDefaultEpsilon = 0.1f;

struct GsiSettings {
  std::string model, model_name;  // fingerprint and file name
  std::string text;               // fingerprint
  std::int64_t tokens = 0, window = 0;
  std::string method;
  double tolerance = 0;
  float epsilon = kDefaultEpsilon;
};

// One site of a file; views into it.
struct GsiSite {
  std::string name;
  WeightMatrix basis;                // [k][d]
  std::vector<WeightMatrix> images;  // [rows][k]
  std::vector<float> energies;       // [k]
  double total_energy = 0;
  std::size_t bytes() const;
};

class GsiFile {
 public:
  // Throws Error: not such a file, of another version, a tensor missing or of the wrong shape or type.
  static GsiFile open(const std::string& path);
  const std::string& path() const { return file_.path(); }
  const GsiSettings& settings() const { return settings_; }
  const std::vector<GsiSite>& sites() const { return sites_; }
  const GsiSite* find(std::string_view name) const;
  // Throws Error if the file was made for another model.
  void check_model(const LoadedModel& model) const;

 private:
  explicit GsiFile(GgufFile file) : file_(std::move(file)) {}
  GgufFile file_;
  GsiSettings settings_;
  std::vector<GsiSite> sites_;
};

// A site to be written; owns its bytes.
struct NewGsiSite {
  std::string name;
  std::int64_t k = 0, d = 0;
  DType dtype = DType::F16;             // of basis and images
  AlignedVector<std::byte> basis;       // [k][d]
  std::vector<AlignedVector<std::byte>> images;
  std::vector<std::int64_t> image_rows;
  std::vector<float> energies;
  double total_energy = 0;
};

void write_gsi(const std::string& path, const GsiSettings& settings, const std::vector<NewGsiSite>& sites);

}  // namespace narrows
