#include "model/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "model/for_rows.h"

namespace narrows {
namespace {

void apply(const FeedForward& pass, Operation operation, LinearSite& site, const float* from, std::int64_t rows, float* to) {
  const Timed timed(pass.work.profile, operation, pass.work.profile ? site.bytes_read() : 0);
  site.apply(pass.pool, pass.work.sites, from, rows, to);
}

struct Choice {
  int expert;
  float share;
};

// The experts of one token, ascending.
void choose(const ModelSpec& spec, float* logits, int experts, Choice* chosen) {
  const int used = spec.experts_used;
  const float largest = *std::max_element(logits, logits + experts);
  float sum = 0;
  for (int e = 0; e < experts; ++e) sum += logits[e] = std::exp(logits[e] - largest);
  std::vector<int> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + used, order.end(),
                    [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  std::sort(order.begin(), order.begin() + used);
  float kept = 0;
  for (int i = 0; i < used; ++i) kept += logits[order[static_cast<std::size_t>(i)]];
  for (int i = 0; i < used; ++i) {
    const int e = order[static_cast<std::size_t>(i)];
    chosen[i] = {e, logits[e] / (spec.expert_weights_norm ? kept : sum)};
  }
}

}  // namespace

void apply_feed_forward(const FeedForward& pass, LinearSite& up, LinearSite& down, const float* h, std::int64_t rows,
                        float* out) {
  const std::int64_t n = down.in(), width = up.out();
  float* inner = room(pass.work.inner, rows * (width + n));
  float* activated = inner + rows * width;
  apply(pass, Operation::GateUp, up, h, rows, inner);
  {
    const Timed timed(pass.work.profile, Operation::Activation);
    for_rows(pass.pool, rows, [&](std::int64_t r) {
      const float* gate = inner + r * width;
      activate(pass.spec.activation, gate, pass.spec.gated ? gate + n : nullptr, activated + r * n, n);
    });
  }
  apply(pass, Operation::Down, down, activated, rows, out);
}

void apply_mixture(const FeedForward& pass, const LayerWeights& w, const float* h, std::int64_t rows, float* out) {
  const std::int64_t d = w.router->in(), used = pass.spec.experts_used;
  const int experts = static_cast<int>(w.experts.size());
  float* logits = room(pass.work.shares, rows * experts);
  apply(pass, Operation::Router, *w.router, h, rows, logits);
  std::vector<Choice> chosen(static_cast<std::size_t>(rows * used));
  for_rows(pass.pool, rows, [&](std::int64_t r) { choose(pass.spec, logits + r * experts, experts, &chosen[static_cast<std::size_t>(r * used)]); });

  // Tokens sorted by expert; place[token's choice] is where its row went.
  std::vector<std::int64_t> first(static_cast<std::size_t>(experts) + 1), place(chosen.size());
  for (const Choice& c : chosen) ++first[static_cast<std::size_t>(c.expert) + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<std::int64_t> next(first.begin(), first.end() - 1);
  for (std::size_t i = 0; i < chosen.size(); ++i) place[i] = next[static_cast<std::size_t>(chosen[i].expert)]++;
  float* gathered = room(pass.work.gathered, rows * used * d);
  float* given = room(pass.work.given, rows * used * d);
  for_rows(pass.pool, rows, [&](std::int64_t r) {
    for (std::int64_t i = r * used; i < (r + 1) * used; ++i)
      std::copy_n(h + r * d, d, gathered + place[static_cast<std::size_t>(i)] * d);
  });
  for (std::size_t e = 0; e < w.experts.size(); ++e) {
    const std::int64_t count = first[e + 1] - first[e];
    if (count > 0)
      apply_feed_forward(pass, *w.experts[e].up, *w.experts[e].down, gathered + first[e] * d, count, given + first[e] * d);
  }
  const Timed timed(pass.work.profile, Operation::Residual);
  for_rows(pass.pool, rows, [&](std::int64_t r) {
    float* to = out + r * d;
    std::fill_n(to, d, 0.0f);
    for (std::int64_t i = r * used; i < (r + 1) * used; ++i) {
      const float* from = given + place[static_cast<std::size_t>(i)] * d;
      const float share = chosen[static_cast<std::size_t>(i)].share;
      for (std::int64_t c = 0; c < d; ++c) to[c] += share * from[c];
    }
  });
}

}  // namespace narrows
