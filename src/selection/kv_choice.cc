#include "selection/kv_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/aligned.h"
#include "kernels/attention.h"
#include "kernels/outer.h"

namespace narrows {
namespace {

constexpr std::int64_t kBoundary = 64;
constexpr std::int64_t kFarthest = std::int64_t{1} << 24;  // positions looked at for a place to compress

// The first n entries in falling order of score.
void sort_top(std::span<const float> score, std::vector<Entry>& order, std::int64_t n) {
  order.resize(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](Entry a, Entry b) {
    const float x = score[static_cast<std::size_t>(a)], y = score[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
}

}  // namespace

std::vector<Entry> keep_top(std::span<const float> score, std::int64_t window, std::int64_t keep) {
  const std::int64_t entries = std::ssize(score);
  window = std::min(window, entries);
  const std::int64_t chosen = std::clamp<std::int64_t>(keep - window, 0, entries - window);
  std::vector<Entry> kept;
  sort_top(score.first(static_cast<std::size_t>(entries - window)), kept, chosen);
  kept.resize(static_cast<std::size_t>(chosen));
  std::sort(kept.begin(), kept.end());
  for (std::int64_t e = entries - window; e < entries; ++e) kept.push_back(static_cast<Entry>(e));
  return kept;
}

std::vector<Entry> keep_ends(std::int64_t entries, std::int64_t sinks, std::int64_t keep) {
  keep = std::min(keep, entries);
  sinks = std::min(sinks, keep);
  std::vector<Entry> kept(static_cast<std::size_t>(keep));
  for (std::int64_t i = 0; i < keep; ++i)
    kept[static_cast<std::size_t>(i)] = static_cast<Entry>(i < sinks ? i : entries - keep + i);
  return kept;
}

std::vector<float> pool_max(std::span<const float> score, std::int64_t width) {
  const std::int64_t n = std::ssize(score), half = width / 2;
  std::vector<float> pooled(score.size());
  for (std::int64_t i = 0; i < n; ++i) {
    const auto from = score.begin() + std::max<std::int64_t>(i - half, 0);
    pooled[static_cast<std::size_t>(i)] = *std::max_element(from, score.begin() + std::min(i + half + 1, n));
  }
  return pooled;
}

namespace {

struct Step {
  double score, worth;  // of its entries together; per byte
  std::int32_t head;
  std::int64_t entries, number;
};

// What heads may take beyond `least` candidates each, in falling order of worth. A head's steps are in order, as its
// scores fall.
std::vector<Step> steps_of(std::span<const HeadClaim> heads, std::int64_t least, std::int64_t step) {
  std::vector<Step> steps;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    std::vector<float> sorted = heads[h].score;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const std::int64_t n = std::ssize(sorted);
    for (std::int64_t at = std::min(least, n), number = 0; at < n; at += step, ++number) {
      const std::int64_t size = std::min(step, n - at);
      double score = 0;
      for (std::int64_t i = at; i < at + size; ++i) score += static_cast<double>(sorted[static_cast<std::size_t>(i)]);
      steps.push_back({score, score / static_cast<double>(size * heads[h].entry_bytes), static_cast<std::int32_t>(h), size, number});
    }
  }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return a.worth != b.worth ? a.worth > b.worth : a.head != b.head ? a.head < b.head : a.number < b.number;
  });
  return steps;
}

}  // namespace

std::vector<std::int64_t> allocate_jointly(std::span<const HeadClaim> heads, std::int64_t bytes, std::int64_t least,
                                           std::int64_t step) {
  std::vector<std::int64_t> counts;
  for (const HeadClaim& head : heads) {
    counts.push_back(std::min<std::int64_t>(least, std::ssize(head.score)));
    bytes -= counts.back() * head.entry_bytes;
  }
  std::vector<char> full(heads.size());
  for (const Step& s : steps_of(heads, least, step)) {
    const std::size_t h = static_cast<std::size_t>(s.head);
    const std::int64_t cost = s.entries * heads[h].entry_bytes;
    if (cost > bytes) full[h] = 1;
    if (full[h]) continue;  // a head takes its steps in order
    bytes -= cost;
    counts[h] += s.entries;
  }
  return counts;
}

std::vector<std::int64_t> allocate_within(std::span<const HeadClaim> heads, double error, std::int64_t least,
                                          std::int64_t step) {
  std::vector<std::int64_t> counts;
  for (const HeadClaim& head : heads) counts.push_back(std::ssize(head.score));
  const std::vector<Step> steps = steps_of(heads, least, step);
  double dropped = 0;
  for (auto s = steps.rbegin(); s != steps.rend(); ++s) {
    dropped += s->score;
    if (dropped > error) break;
    counts[static_cast<std::size_t>(s->head)] -= s->entries;
  }
  return counts;
}

std::vector<Entry> most_similar(std::span<const float> dropped, std::span<const float> kept, std::int64_t d,
                                float threshold) {
  const std::int64_t n = std::ssize(dropped) / d, m = std::ssize(kept) / d, columns = (m + 15) / 16 * 16;
  std::vector<Entry> nearest(static_cast<std::size_t>(n), -1);
  if (n == 0 || m == 0) return nearest;
  const auto inverse_norm = [d](const float* x) {
    double sum = 0;
    for (std::int64_t i = 0; i < d; ++i) sum += static_cast<double>(x[i]) * x[i];
    return sum > 0 ? static_cast<float>(1 / std::sqrt(sum)) : 0.0f;
  };
  AlignedVector<float> unit(static_cast<std::size_t>(d * columns));  // kept keys, [d][columns]
  for (std::int64_t j = 0; j < m; ++j) {
    const float* key = kept.data() + j * d;
    const float inverse = inverse_norm(key);
    for (std::int64_t i = 0; i < d; ++i) unit[static_cast<std::size_t>(i * columns + j)] = key[i] * inverse;
  }
  constexpr std::int64_t kRows = 48;
  AlignedVector<float> products(static_cast<std::size_t>(kRows * columns));
  for (std::int64_t first = 0; first < n; first += kRows) {
    const std::int64_t rows = std::min(kRows, n - first);
    outer_products({dropped.data() + first * d, 1, d}, unit.data(), columns, d, rows, columns, products.data(), columns);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = products.data() + r * columns;
      const auto at = std::max_element(row, row + m) - row;
      if (row[at] * inverse_norm(dropped.data() + (first + r) * d) > threshold)
        nearest[static_cast<std::size_t>(first + r)] = static_cast<Entry>(at);
    }
  }
  return nearest;
}

bool ProbeRule::keeps(std::int64_t position, std::int64_t next) const {
  if (dense == 0 || next == INT64_MAX) return false;
  const auto age = static_cast<std::uint64_t>((next - position + dense - 1) / dense);
  return (static_cast<std::uint64_t>(position) & (std::bit_ceil(age) - 1)) == 0;
}

std::vector<std::int64_t> ProbeRule::positions(std::int64_t length, std::int64_t next) const {
  std::vector<std::int64_t> kept;
  for (std::int64_t p = 0; p < length; ++p)
    if (keeps(p, next)) kept.push_back(p);
  return kept;
}

std::int64_t ProbeRule::most(std::int64_t next) const {
  if (dense == 0) return 0;
  const int doublings = std::bit_width(static_cast<std::uint64_t>((next - 1) / dense));
  return std::min(next, dense + (dense / 2 + 1) * doublings);
}

// A block takes about an eighth of the budget at most, and grows with the text, so that compressions stay a small part of the
// work.
std::int64_t KvSchedule::block(std::int64_t position) const {
  const double share = std::min(1.0 / 32, budget / 8);
  return std::max<std::int64_t>(1, std::llround(static_cast<double>(position) * share / kBoundary)) * kBoundary;
}

std::int64_t KvSchedule::next_block(std::int64_t position) const {
  const std::int64_t least = ((least_entries + kBoundary - 1) / kBoundary + 1) * kBoundary;
  return std::max(position + block(position), least);
}

std::int64_t KvSchedule::room(std::int64_t position) const {
  const std::int64_t b = block(position), all_probes = probes.most(position + b) * probe_bytes;
  const auto at = [&](std::int64_t length, std::int64_t new_entries) {
    return static_cast<std::int64_t>(budget * static_cast<double>(length * dense_bytes)) - all_probes - new_entries * entry_bytes;
  };
  // Room for entries comes sixteen at a time: it is tightest where the first and the last sixteen begin.
  return std::min(at(position + 1, kKeyGroup), at(position + b - kKeyGroup + 1, b));
}

std::int64_t KvSchedule::next(std::int64_t position, std::int64_t held) const {
  while (position < kFarthest) {
    const std::int64_t b = block(position);
    position += b;
    held += b * entry_bytes;
    const std::int64_t left = room(position);
    if (left >= least_entries * entry_bytes && left < held) return position;
  }
  return INT64_MAX;
}

}  // namespace narrows
