#include "eval/gsi_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/output_file.h"
#include "eval/perplexity.h"
#include "eval/reference_scores.h"
#include "formats/fingerprint.h"
#include "generate/log_softmax.h"
#include "subspace/apply_gsi.h"

namespace narrows {
namespace {

constexpr std::size_t kPromptTokens = 64;
constexpr std::int64_t kCalibrationCost =
    3;  // a token's calibration against its evaluation, for progress alone
constexpr float kNoGate = std::numeric_limits<float>::infinity();

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

// Gates in the model as long as this lives.
class Gates {
 public:
  Gates(Model& model, const GsiOptions& options) : model_(model) {
    try {
      apply_gsi(model, options);
      for (const NamedGate& gate : gated_sites(model_)) gate.site->measure_ratios();
    } catch (...) {
      make_dense(loaded(model));
      throw;
    }
  }
  Gates(const Gates&) = delete;
  Gates& operator=(const Gates&) = delete;
  ~Gates() { make_dense(loaded(model_)); }
  void set_epsilon(float epsilon) {
    for (const NamedGate& gate : gated_sites(model_)) gate.site->set_epsilon(epsilon);
  }

 private:
  Model& model_;
};

// Passes over tokens, of the whole report.
class Work {
 public:
  Work(const GsiReportOptions& options, std::int64_t total) : options_(options), total_(total) {}
  void add(std::int64_t tokens, const std::string& what) {
    done_ += tokens;
    if (options_.progress) options_.progress(done_, total_, what);
  }

 private:
  const GsiReportOptions& options_;
  std::int64_t done_ = 0, total_;
};

// The likeliest token each time, at most `count`; ends after the first that differs from those expected.
std::vector<TokenId> continue_greedily(const std::shared_ptr<Model>& model, std::span<const TokenId> prompt,
                                       std::int64_t count, std::span<const TokenId> expected = {}) {
  std::vector<TokenId> tokens;
  if (count == 0) return tokens;
  Session session(model, {.context = std::ssize(prompt) + count});
  auto logits = session.step(prompt);
  while (true) {
    tokens.push_back(static_cast<TokenId>(top1(logits)));
    if (std::ssize(tokens) == count) return tokens;
    if (!expected.empty() && tokens.back() != expected[tokens.size() - 1]) return tokens;
    logits = session.step(tokens.back());
  }
}

GsiSiteReport report_site(const NamedSite& named) {
  const LinearSite& site = **named.site;
  GsiSiteReport report{named.name, named.kind, named.layer, site.in(), site.out(), 0, {}, {}};
  const auto d = static_cast<double>(site.in()), d_out = static_cast<double>(site.out());
  double biases = 0;
  for (const Linear& map : site.maps()) biases += map.bias ? static_cast<double>(map.weight.rows) : 0;
  Reads& reads = report.reads;
  reads.dense_products = reads.products = d * d_out;
  reads.dense_elements = reads.elements = d * d_out + biases;
  reads.dense_bytes = reads.bytes = static_cast<double>(site.bytes_read());
  const auto* gate = dynamic_cast<const GatedSite*>(&site);
  if (!gate) return report;
  report.k = gate->k();
  report.counts = gate->counts();
  const auto k = static_cast<double>(gate->k());
  const double fast = report.fast_fraction();
  reads.products = fast * k * d_out + (1 - fast) * d * d_out;
  // With epsilon 0 the projection is not computed.
  reads.elements = (gate->epsilon() > 0 ? k * d : 0) + reads.products + biases;
  reads.dense_bytes = static_cast<double>(gate->dense_bytes());
  return report;
}

// What the gates have counted since epsilon was set.
GsiSettingReport report_setting(LoadedModel& model, std::int64_t k, float epsilon) {
  GsiSettingReport report;
  report.k = k;
  report.epsilon = epsilon;
  double fast = 0, plain = 0;
  for (const NamedSite& named : model.weights().sites()) {
    const GsiSiteReport& site = report.sites.emplace_back(report_site(named));
    report.reads.add(site.reads);
    fast += site.fast_fraction() * site.reads.dense_bytes;
    plain += site.fast_fraction();
  }
  report.fast_fraction = fast / report.reads.dense_bytes;
  report.plain_fast_fraction = plain / static_cast<double>(report.sites.size());
  const WeightMatrix& embedding = model.weights().embedding;
  Reads row;  // no product
  row.dense_bytes = row.bytes = static_cast<double>(row_bytes(embedding.dtype, embedding.cols));
  row.dense_elements = row.elements = static_cast<double>(embedding.cols);
  report.reads.add(row);
  return report;
}

class Reporter {
 public:
  Reporter(const std::shared_ptr<Model>& model, std::string_view text, const GsiReportOptions& options)
      : model_(model), target_(loaded(*model)), text_(text), options_(options) {
    if (!gated_sites(*model_).empty()) fail("{}: expected a dense model, found gated sites", model_->path());
    if (options_.gsi_path.empty() == options_.calibration.empty())
      fail("held-out bases: expected either a file of bases or a calibration text");
    check_texts();
    choose_settings();
  }

  GsiReport report() {
    const auto paper =
        window_tokens(*model_, text_, {.context = options_.context, .max_tokens = options_.context});
    const auto held_out =
        window_tokens(*model_, text_, {.context = options_.context, .max_tokens = options_.max_tokens});
    if (std::ssize(paper.front()) < options_.context)
      fail("the held-out text has {} tokens: expected at least a window of {}", std::ssize(paper.front()),
           options_.context);
    const std::size_t prompt = std::min(paper.front().size(), kPromptTokens);
    prompt_ = std::span(paper.front()).first(prompt);

    const std::int64_t seen = calibration_tokens();
    std::int64_t evaluated = options_.context;
    for (const auto& window : held_out) evaluated += std::ssize(window);
    const auto passes = static_cast<std::int64_t>(k_.size() * options_.epsilon.size()) + 2;
    work_.emplace(options_, passes * evaluated + kCalibrationCost * (options_.context + (file_ ? 0 : seen)));

    GsiReport report;
    report.model = file_name(model_->path());
    report.method = options_.method == BasisMethod::Svd ? "svd" : "cascade";
    report.context = options_.context;
    report.greedy = options_.greedy;
    report.site_setting = site_setting_;
    report.protocols[0] = protocol("paper", paper, text_, options_.context);
    report.protocols[0].meaning = fmt::format(
        "bases made from the very {} tokens that are evaluated: how well a subspace fits what it has seen",
        options_.context);
    report.protocols[1] = protocol("held-out", held_out, options_.calibration, seen);
    report.protocols[1].meaning = fmt::format(
        "bases{} made from {} tokens of another text, evaluated on {}: what to expect of unseen text",
        file_ ? " of " + file_name(options_.gsi_path) : "", seen, report.protocols[1].evaluated_tokens);
    return report;
  }

 private:
  // A basis that has seen the evaluated text must not be called held out.
  void check_texts() {
    constexpr std::size_t kTelling = 256;  // bytes
    if (!text_.empty() && options_.calibration.find(text_.substr(0, kTelling)) != std::string_view::npos)
      fail("the calibration text holds the beginning of the held-out text: expected another text");
    if (options_.gsi_path.empty()) return;
    file_ = GsiFile::open(options_.gsi_path);
    file_->check_model(target_);
    if (file_->settings().text == fingerprint(text_))
      fail("{}: made from the held-out text itself: expected bases of another text", options_.gsi_path);
  }

  void choose_settings() {
    if (options_.context < 2) fail("context: expected 2 or more, found {}", options_.context);
    for (const NamedSite& site : target_.weights().sites()) widest_ = std::max(widest_, (*site.site)->in());
    std::int64_t widest = widest_;  // of the sites that get a basis in both protocols
    most_ = widest;
    if (file_) {
      widest = most_ = 0;
      for (const GsiSite& site : file_->sites()) {
        widest = std::max(widest, site.basis.cols);
        most_ = std::max(most_, site.basis.rows);
      }
    }
    k_ = options_.k;
    if (k_.empty()) {
      for (const std::int64_t k : kReportK)
        if (k <= options_.context && std::min(k, widest) <= most_) k_.push_back(k);
      if (k_.empty())
        fail("k: expected some for windows of {} tokens and bases of {} directions", options_.context, most_);
    }
    for (const std::int64_t k : k_) {
      if (k < 1) fail("k: expected at least 1, found {}", k);
      if (std::min(k, widest_) > options_.context)
        fail("k: expected at most the {} tokens of a window, found {}", options_.context, k);
      if (std::min(k, widest) > most_)
        fail("{}: k: expected at most the {} directions of the file, found {}", options_.gsi_path, most_, k);
      check_block(k, options_.type, widest);
      if (file_) check_block(k, file_->sites().front().basis.dtype, widest);
    }
    if (options_.epsilon.empty()) fail("epsilon: expected some");
    for (const float epsilon : options_.epsilon)
      if (!(epsilon >= 0 && epsilon < kNoGate)) fail("epsilon: expected a number from 0, found {}", epsilon);
    largest_ = *std::max_element(k_.begin(), k_.end());
    static_k_ = std::min({std::int64_t{128}, std::max<std::int64_t>(target_.spec().d / 4, 1), largest_});
    if (options_.type == DType::Q8_0 || (file_ && file_->sites().front().basis.dtype == DType::Q8_0))
      static_k_ = std::max<std::int64_t>(static_k_ / 32, 1) * 32;

    const auto at = [](const auto& values, auto wanted, bool middle, const char* what) {
      if (middle) return values.size() / 2;
      const auto found = std::find(values.begin(), values.end(), wanted);
      if (found == values.end())
        fail("{} of the sites: expected one of those evaluated, found {}", what, wanted);
      return static_cast<std::size_t>(found - values.begin());
    };
    site_setting_ = at(k_, options_.site_k, options_.site_k == 0, "k") * options_.epsilon.size() +
                    at(options_.epsilon, options_.site_epsilon, options_.site_epsilon < 0, "epsilon");
  }

  static void check_block(std::int64_t k, DType type, std::int64_t widest) {
    const int block = dtype_info(type).block_size;
    if (k < widest && k % block != 0)
      fail("k: expected a multiple of {} for bases in {}, found {}", block, dtype_info(type).name, k);
  }

  // Of the held-out bases.
  std::int64_t calibration_tokens() const {
    if (file_) return file_->settings().tokens;
    const bool bos = model_->adds_bos() && model_->bos() != kNoToken;
    const auto tokens =
        std::ssize(model_->tokenize(options_.calibration, {.add_special = false, .parse_special = false}));
    const std::int64_t inside = options_.context - bos,
                       whole = tokens + bos * ((tokens + inside - 1) / inside);
    return options_.calibration_tokens > 0 ? std::min(whole, options_.calibration_tokens) : whole;
  }

  // Bases of so many tokens of `calibration`, or of the file if that is empty.
  GsiProtocolReport protocol(const std::string& name, const ReferenceScores::Windows& windows,
                             std::string_view calibration, std::int64_t calibration_tokens) {
    GsiProtocolReport report;
    report.name = name;
    std::optional<TemporaryFile> made;
    std::string path = options_.gsi_path;
    std::int64_t most = most_;
    if (!calibration.empty()) {
      path = made.emplace().path();
      calibrate_into(path, calibration, calibration_tokens, name + ", calibration");
      most = std::min(widest_, largest_);
    }
    report.calibration_tokens = calibration_tokens;
    const auto progress = [&](const std::string& what) {
      return [this, label = name + ", " + what](std::int64_t tokens) { work_->add(tokens, label); };
    };
    const ReferenceScores dense(model_, windows, progress("dense"));
    const std::vector<TokenId> greedy = continue_greedily(model_, prompt_, options_.greedy);
    report.evaluated_tokens = dense.computed();
    report.scored_tokens = dense.scored();
    report.dense_perplexity = dense.perplexity();
    const auto settings = [&](std::int64_t k, const std::vector<float>& epsilons) {
      Gates gates(*model_, {path, epsilons.front(), std::min(k, most)});
      for (const float epsilon : epsilons) {
        gates.set_epsilon(epsilon);
        const Comparison comparison = dense.compare(model_, progress(fmt::format("k {} eps {}", k, epsilon)));
        GsiSettingReport& setting = report.settings.emplace_back(report_setting(target_, k, epsilon));
        setting.perplexity = comparison.perplexity;
        setting.perplexity_ratio = comparison.perplexity_ratio;
        setting.top1_agreement = comparison.top1_agreement;
        setting.kl_at_least = comparison.kl_at_least;
        const auto tokens = continue_greedily(model_, prompt_, options_.greedy, greedy);
        setting.greedy_equal =
            std::mismatch(tokens.begin(), tokens.end(), greedy.begin()).first - tokens.begin();
      }
    };
    for (const std::int64_t k : k_) settings(k, options_.epsilon);
    settings(static_k_, {kNoGate});
    return report;
  }

  void calibrate_into(const std::string& path, std::string_view text, std::int64_t tokens,
                      const std::string& what) {
    CalibrateOptions calibration;
    calibration.method = options_.method;
    calibration.k.fill(largest_);
    calibration.type = options_.type;
    calibration.window = options_.context;
    calibration.max_tokens = tokens;
    calibration.compare = false;
    std::int64_t reported = 0;
    calibration.progress = [&](std::int64_t done, std::int64_t total) {
      const std::int64_t now = kCalibrationCost * tokens * done / total;
      work_->add(now - reported, what);
      reported = now;
    };
    calibrate(*model_, text, calibration, path);
  }

  std::shared_ptr<Model> model_;
  LoadedModel& target_;
  std::string_view text_;
  const GsiReportOptions& options_;
  std::optional<GsiFile> file_;
  std::vector<std::int64_t> k_;
  std::int64_t widest_ = 0;  // site
  std::int64_t most_ = 0, largest_ = 0,
               static_k_ = 0;  // directions: of the held-out bases, asked for, static
  std::size_t site_setting_ = 0;
  std::span<const TokenId> prompt_;
  std::optional<Work> work_;
};

}  // namespace

void Reads::add(const Reads& other) {
  dense_bytes += other.dense_bytes;
  bytes += other.bytes;
  dense_elements += other.dense_elements;
  elements += other.elements;
  dense_products += other.dense_products;
  products += other.products;
}

bool GsiSettingReport::is_static() const { return epsilon == kNoGate; }

GsiReport gsi_report(const std::shared_ptr<Model>& model, std::string_view text,
                     const GsiReportOptions& options) {
  return Reporter(model, text, options).report();
}

}  // namespace narrows
