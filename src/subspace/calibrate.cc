#include "subspace/calibrate.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/measure.h"
#include "formats/fingerprint.h"
#include "generate/layer_walk.h"
#include "kernels/projection.h"
#include "model/load.h"
#include "subspace/apply_gsi.h"
#include "subspace/basis.h"
#include "subspace/cascade.h"
#include "subspace/linear_algebra.h"
#include "subspace/observed_site.h"

namespace narrows {
namespace {

constexpr double kCascadeTolerance = 0.1;
constexpr std::int64_t kImageRows = 512;  // rows of W in floats at once

// What gathers one site's statistics, and the time that takes.
class Collector {
 public:
  Collector(const NamedSite& site, const CalibrateOptions& options, const Basis* previous)
      : d_((*site.site)->in()),
        k_(std::min(options.k[static_cast<std::size_t>(site.kind)], d_)),
        tolerance_(options.tolerance) {
    result_.name = site.name;
    result_.kind = site.kind;
    result_.layer = site.layer;
    result_.d = d_;
    if (options.method == BasisMethod::Cascade)
      cascade_.emplace(d_, k_, tolerance_ > 0 ? tolerance_ : kCascadeTolerance, previous);
    if (!cascade_ || options.compare) moment_.emplace(d_);
  }

  bool has_seen_enough() const { return tokens_ >= k_; }

  void add(const float* x, std::int64_t rows) {
    tokens_ += rows;
    try {
      if (cascade_) timed(result_.seconds, [&] { cascade_->add(x, rows, d_); });
      if (moment_) timed(moment_seconds_, [&] { moment_->add(x, rows, d_); });
    } catch (const Error& error) {
      fail("{}: {}", result_.name, error.what());
    }
  }

  Basis finish(SiteCalibration& result) {
    try {
      std::optional<Basis> svd, basis;
      if (moment_) {
        timed(moment_seconds_, [&] { svd = svd_basis(*moment_, k_, cascade_ ? 0 : tolerance_); });
        const double flops = second_moment_flops(moment_->tokens(), d_);
        if (cascade_) {
          result_.svd_seconds = moment_seconds_;
          result_.svd_flops = full_svd_flops(moment_->tokens(), d_);
          result_.svd_energy_kept = kept(*svd);
        } else {
          result_.seconds = moment_seconds_;
          result_.flops = flops;
        }
      }
      if (cascade_) {
        timed(result_.seconds, [&] { basis = cascade_->finish(); });
        result_.flops = cascade_->flops();
        result_.appended = cascade_->appended();
        result_.dropped = cascade_->dropped();
        result_.inherited = cascade_->inherited();
        // The energies of late directions miss the tokens before them: with the moment at hand, all are known.
        if (moment_) measure_energies(*basis);
      } else {
        basis = std::move(svd);
      }
      result_.k = basis->k;
      result_.energy_kept = kept(*basis);
      result = result_;
      return std::move(*basis);
    } catch (const Error& error) {
      fail("{}: {}", result_.name, error.what());
    }
  }

 private:
  template <typename Work>
  static void timed(double& seconds, Work&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds += seconds_since(start);
  }
  static double kept(const Basis& basis) {
    double sum = 0;
    for (const double energy : basis.energies) sum += energy;
    return basis.total_energy > 0 ? std::min(sum / basis.total_energy, 1.0) : 1;
  }
  void measure_energies(Basis& basis) const {
    std::vector<double> vectors(basis.vectors.begin(), basis.vectors.end()), image(vectors.size());
    rows_times_symmetric(vectors.data(), basis.k, moment_->matrix(), d_, image.data());
    for (std::int64_t j = 0; j < basis.k; ++j) {
      double energy = 0;
      for (std::int64_t i = 0; i < d_; ++i) energy += vectors[static_cast<std::size_t>(j * d_ + i)] * image[static_cast<std::size_t>(j * d_ + i)];
      basis.energies[static_cast<std::size_t>(j)] = energy;
    }
  }

  std::int64_t d_, k_, tokens_ = 0;
  double tolerance_, moment_seconds_ = 0;
  std::optional<SecondMoment> moment_;
  std::optional<CascadeBasis> cascade_;
  SiteCalibration result_;
};

AlignedVector<std::byte> stored(DType type, const float* values, std::int64_t rows, std::int64_t cols) {
  AlignedVector<std::byte> bytes(static_cast<std::size_t>(rows) * row_bytes(type, cols));
  quantize(type, values, bytes.data(), rows * cols);
  return bytes;
}

// V and M = W V as they are stored, M of the V that is stored. Quantized types need whole blocks: directions of zeros
// fill up the last one.
NewGsiSite make_site(const LinearSite& site, const Basis& basis, const std::string& name, DType type) {
  const std::int64_t d = basis.d, block = dtype_info(type).block_size, k = (basis.k + block - 1) / block * block;
  if (d % block != 0)
    fail("{}: {} elements wide: expected a multiple of {} for bases in {}", name, d, block, dtype_info(type).name);
  AlignedVector<float> v(static_cast<std::size_t>(k * d));
  std::copy(basis.vectors.begin(), basis.vectors.end(), v.begin());
  NewGsiSite made{name, k, d, type, stored(type, v.data(), k, d), {}, {}, {}, basis.total_energy};
  made.energies.assign(basis.energies.begin(), basis.energies.end());
  made.energies.resize(static_cast<std::size_t>(k));
  dequantize(type, made.basis.data(), v.data(), k * d);

  AlignedVector<float> w(static_cast<std::size_t>(kImageRows * d)), m(static_cast<std::size_t>(kImageRows * k));
  for (const Linear& map : site.maps()) {
    const WeightMatrix& weight = map.weight;
    AlignedVector<std::byte>& image = made.images.emplace_back(static_cast<std::size_t>(weight.rows) * row_bytes(type, k));
    made.image_rows.push_back(weight.rows);
    for (std::int64_t r = 0; r < weight.rows; r += kImageRows) {
      const std::int64_t rows = std::min(kImageRows, weight.rows - r);
      dequantize(weight.dtype, weight.data + static_cast<std::size_t>(r) * row_bytes(weight.dtype, d), w.data(), rows * d);
      gemm(Transpose::No, Transpose::Yes, rows, k, d, 1.0f, w.data(), d, v.data(), d, 0.0f, m.data(), k);
      quantize(type, m.data(), image.data() + static_cast<std::size_t>(r) * row_bytes(type, k), rows * k);
    }
  }
  return made;
}

std::vector<NamedSite> chosen_sites(LoadedModel& model, const CalibrateOptions& options) {
  std::vector<NamedSite> all = model.weights().sites();
  for (const std::string& wanted : options.sites)
    if (std::none_of(all.begin(), all.end(), [&](const NamedSite& s) {
          return s.name == wanted || kSiteKindNames[static_cast<std::size_t>(s.kind)] == wanted;
        }))
      fail("sites: expected a kind (qkv, o, up, down, head) or a site such as blk.0.qkv, found {}", wanted);
  std::erase_if(all, [&](const NamedSite& s) {
    const auto names_it = [&](const std::string& wanted) {
      return s.name == wanted || kSiteKindNames[static_cast<std::size_t>(s.kind)] == wanted;
    };
    return options.k[static_cast<std::size_t>(s.kind)] == 0 ||
           (!options.sites.empty() && std::none_of(options.sites.begin(), options.sites.end(), names_it));
  });
  if (all.empty()) fail("sites: none left to calibrate");
  return all;
}

void check_options(const CalibrateOptions& options) {
  if (!can_project(options.type))
    fail("type: expected F32, F16, BF16 or Q8_0, found {}", dtype_info(options.type).name);
  if (!(options.tolerance >= 0 && options.tolerance < 1))
    fail("tolerance: expected 0 to 1, found {}", options.tolerance);
  if (!(options.epsilon >= 0)) fail("epsilon: expected 0 or more, found {}", options.epsilon);
  for (const std::int64_t k : options.k)
    if (k < 0) fail("k: expected at least 1, or 0 to leave a kind of site out, found {}", k);
}

}  // namespace

CalibrationReport calibrate(Model& model, std::string_view text, const CalibrateOptions& options, const std::string& path) {
  const auto start = std::chrono::steady_clock::now();
  check_options(options);
  LoadedModel& target = loaded(model);
  if (!gated_sites(model).empty()) fail("{}: calibrate: expected a dense model, found gated sites", model.path());
  const std::vector<NamedSite> sites = chosen_sites(target, options);
  LayerWalk walk(target, text, options.window, options.max_tokens);
  for (const NamedSite& s : sites)
    if (const std::int64_t k = std::min(options.k[static_cast<std::size_t>(s.kind)], (*s.site)->in()); walk.tokens() < k)
      fail("the text has {} tokens: expected at least k, {} for {}", walk.tokens(), k, s.name);
  set_linear_algebra_threads(model.threads());

  CalibrationReport report;
  report.tokens = walk.tokens();
  std::vector<NewGsiSite> made;
  std::map<SiteKind, Basis> previous;
  const int layers = target.spec().layers;
  std::int64_t done = 0;
  const auto count = [&] {
    if (options.progress) options.progress(++done, (layers + 1) * walk.windows());
  };
  for (int layer = 0; layer <= layers; ++layer) {
    const int wanted = layer < layers ? layer : -1;
    std::vector<std::pair<const NamedSite*, std::unique_ptr<Collector>>> collectors;
    {
      std::vector<Wrapping<ObservedSite>> observations;
      for (const NamedSite& s : sites) {
        if (s.layer != wanted) continue;
        const auto before = previous.find(s.kind);
        auto collector = std::make_unique<Collector>(s, options, before == previous.end() ? nullptr : &before->second);
        Collector* to = collector.get();
        collectors.emplace_back(&s, std::move(collector));
        observations.emplace_back(*s.site, [to](const float* x, std::int64_t rows) { to->add(x, rows); }, wanted >= 0);
      }
      if (wanted >= 0)
        walk.pass_layer(layer, count);
      else if (!collectors.empty())
        walk.pass_head(count);
    }
    for (auto& [site, collector] : collectors) {
      if (!collector->has_seen_enough()) {
        report.skipped.push_back(site->name);
        continue;
      }
      SiteCalibration& result = report.sites.emplace_back();
      Basis basis = collector->finish(result);
      collector.reset();
      const auto image_start = std::chrono::steady_clock::now();
      made.push_back(make_site(**site->site, basis, site->name, options.type));
      report.image_seconds += seconds_since(image_start);
      result.bytes = made.back().basis.size();
      for (const auto& image : made.back().images) result.bytes += image.size();
      report.file_bytes += result.bytes;
      report.basis_seconds += result.seconds;
      const auto before = previous.find(site->kind);
      if (before != previous.end() && before->second.d == basis.d)
        result.similarity = subspace_similarity(before->second, basis);
      previous.insert_or_assign(site->kind, std::move(basis));
    }
    if (wanted >= 0) release_pages(target.file(), layer_matrices(target.weights().layer[static_cast<std::size_t>(layer)]));
  }
  if (made.empty()) fail("no site has seen as many tokens as its basis has directions: expected more text");
  for (const GgufTensor& t : target.file().tensors()) report.model_bytes += t.bytes;

  GsiSettings settings;
  settings.model = fingerprint(target.file());
  settings.model_name = std::filesystem::path(model.path()).filename().string();
  settings.text = fingerprint(text);
  settings.tokens = walk.tokens();
  settings.window = options.window;
  settings.method = options.method == BasisMethod::Svd ? "svd" : "cascade";
  settings.tolerance = options.method == BasisMethod::Cascade && options.tolerance == 0 ? kCascadeTolerance : options.tolerance;
  settings.epsilon = options.epsilon;
  write_gsi(path, settings, made);
  report.seconds = seconds_since(start);
  report.peak_bytes = peak_memory();
  return report;
}

}  // namespace narrows
