// What a gate has seen: how many tokens took the fast path, and how far they were from the subspace.
#pragma once
#include <array>
#include <cstdint>

namespace narrows {

// Ratios ρ = ‖r‖/‖x‖ are counted in bins of a tenth of an octave from 2^-14 to 2^2.
class GateCounts {
 public:
  void add(float ratio, bool fast);
  void clear() { *this = {}; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t fast() const { return fast_; }
  double fast_fraction() const { return tokens_ > 0 ? static_cast<double>(fast_) / static_cast<double>(tokens_) : 0; }
  // The ratio that a fraction q of the tokens does not exceed, to within a bin (7 %); 0 without tokens.
  double quantile(double q) const;
  // The share of tokens with a ratio below `ratio`, to within a bin.
  double share_below(double ratio) const;

  static constexpr int kBins = 160, kBinsPerOctave = 10, kOctaves = 14;
  static double bin_top(int bin);  // upper edge
  const std::array<std::int64_t, kBins>& bins() const { return bins_; }

 private:
  std::int64_t tokens_ = 0, fast_ = 0;
  std::array<std::int64_t, kBins> bins_{};
};

}  // namespace narrows
