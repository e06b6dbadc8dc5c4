// What gated subspace inference gives on a model, measured under two protocols:
//   paper      bases made from the very tokens that are evaluated, the text's first window
//   held-out   bases made from another text
// The first shows how well a subspace can fit what it has seen, the second what to expect of unseen text.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/loaded_model.h"
#include "subspace/calibrate.h"
#include "subspace/gate_counts.h"

namespace narrows {

inline constexpr std::array<std::int64_t, 4> kReportK = {64, 128, 256, 512};
inline constexpr std::array<float, 4> kReportEpsilon = {0.02f, 0.05f, 0.1f, 0.2f};

struct GsiReportOptions {
  std::string_view calibration;      // the text of the held-out bases, or:
  std::string gsi_path;              // their file
  std::vector<std::int64_t> k = {};  // directions; empty: those of kReportK that a window and the file have
  std::vector<float> epsilon = {kReportEpsilon.begin(), kReportEpsilon.end()};
  std::int64_t context = 512;              // tokens a window
  std::int64_t max_tokens = 4096;          // evaluated in held-out, BOS included; 0: the whole text
  std::int64_t calibration_tokens = 8192;  // at most; 0: the whole text
  BasisMethod method = BasisMethod::Svd;
  DType type = DType::F16;   // of bases and images made here
  std::int64_t greedy = 50;  // tokens continued greedily from the text's first 64; 0: none
  std::int64_t site_k = 0;   // the setting whose sites are reported, one of k; 0: the middle one
  float site_epsilon = -1;   // below 0: the middle one
  std::function<void(std::int64_t done, std::int64_t total, const std::string& what)> progress = {};
};

// What reads weights: a site, or sites added up. Numbers are those of one token, the mean over the tokens
// evaluated.
struct Reads {
  double dense_bytes = 0, bytes = 0;        // W; V, M and W as the gates had it
  double dense_elements = 0, elements = 0;  // the same in elements: effective parameters
  double dense_products = 0, products = 0;  // d · d_out; h · k · d_out + (1 - h) · d · d_out
  double paper_speedup() const { return dense_products / products; }
  double honest_speedup() const { return dense_bytes / bytes; }
  double bytes_fraction() const { return bytes / dense_bytes; }
  void add(const Reads& other);
};

struct GsiSiteReport {
  std::string name;
  SiteKind kind;
  int layer;  // -1: the head
  std::int64_t d = 0, d_out = 0;
  std::int64_t k = 0;  // 0: not gated
  Reads reads;
  GateCounts counts;
  double fast_fraction() const { return counts.fast_fraction(); }
};

struct GsiSettingReport {
  std::int64_t k = 0;              // asked for; a site uses its width at most
  float epsilon = 0;               // infinity: static
  bool is_static() const;          // no gate: every token on the fast path
  Reads reads;                     // of all sites and the embedding's row
  double fast_fraction = 0;        // mean over sites by their dense bytes
  double plain_fast_fraction = 0;  // every site alike
  double perplexity = 0, perplexity_ratio = 0, top1_agreement = 0;
  double kl_at_least = 0;         // see eval/reference_scores.h
  std::int64_t greedy_equal = 0;  // greedy tokens before the first that differs from the dense model's
  std::vector<GsiSiteReport> sites;
};

struct GsiProtocolReport {
  std::string name, meaning;
  std::int64_t calibration_tokens = 0, evaluated_tokens = 0, scored_tokens = 0;
  double dense_perplexity = 0;
  std::vector<GsiSettingReport> settings;  // by k, then epsilon; the static one last
};

struct GsiReport {
  std::string model, method;
  std::int64_t context = 0, greedy = 0;
  std::array<GsiProtocolReport, 2> protocols;  // paper, held-out; the same settings in both
  std::size_t site_setting = 0;                // whose sites are reported
};

inline constexpr std::array<double, 5> kReportQuantiles = {0.05, 0.25, 0.5, 0.75, 0.95};

// The model comes dense and is dense again afterwards, whatever happens. Throws Error: texts too short, a
// calibration text that holds the evaluated one, bases made from it, options that do not fit the model or the
// file.
GsiReport gsi_report(const std::shared_ptr<Model>& model, std::string_view text,
                     const GsiReportOptions& options);

std::string gsi_report_json(const GsiReport& report);  // indented, ends in a line break
std::string gsi_report_html(const GsiReport& report);  // one page that needs nothing else

}  // namespace narrows
