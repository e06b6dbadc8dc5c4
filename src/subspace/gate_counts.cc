#include "subspace/gate_counts.h"

#include <algorithm>
#include <cmath>

namespace narrows {

double GateCounts::bin_top(int bin) { return std::exp2((bin + 1.0) / kBinsPerOctave - kOctaves); }

void GateCounts::add(float ratio, bool fast) {
  ++tokens_;
  fast_ += fast;
  int bin = kBins - 1;  // not finite, too
  if (ratio < 4) bin = ratio > 0 ? static_cast<int>((std::log2(ratio) + kOctaves) * kBinsPerOctave) : 0;
  ++bins_[static_cast<std::size_t>(std::clamp(bin, 0, kBins - 1))];
}

double GateCounts::quantile(double q) const {
  if (tokens_ == 0) return 0;
  double seen = 0;
  for (int i = 0; i < kBins; ++i) {
    seen += static_cast<double>(bins_[static_cast<std::size_t>(i)]);
    if (seen >= q * static_cast<double>(tokens_)) return bin_top(i);
  }
  return bin_top(kBins - 1);
}

double GateCounts::share_below(double ratio) const {
  if (tokens_ == 0) return 0;
  std::int64_t seen = 0;
  for (int i = 0; i < kBins && bin_top(i) <= ratio * (1 + 1e-9); ++i) seen += bins_[static_cast<std::size_t>(i)];
  return static_cast<double>(seen) / static_cast<double>(tokens_);
}

}  // namespace narrows
