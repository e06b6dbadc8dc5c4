// Encoding of Q4_K and Q6_K by weighted least squares.
//
// Both types hold 256 values in groups, with small integer codes per value, a small integer scale (and, in
// Q4_K, a minimum) per group, and one f16 that scales the scales. Three steps:
//   1. each group alone: over a range of trial scales, round to codes, solve for the best real scale (and
//   minimum)
//      given the codes, keep the best;
//   2. round the group scales to integers in units of the largest;
//   3. with what the file can hold: for each group the best integers near those and the best codes, then the
//   best f16
//      given all integers; twice.
// Step 1's weights favour large values, which matter most to a product: w = rms + |x| for Q4_K, x² for Q6_K.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "formats/dtype.h"
#include "formats/k_scales.h"
#include "formats/quantize_blocks.h"

namespace narrows {
namespace {

constexpr int kLanes = 8;  // sums are kept in as many parts, which the compiler can put side by side

// The nearest integer, ties to even, for |v| < 2^22: the addition drops the fraction.
float nearest(float v) { return (v + 0x1.8p23f) - 0x1.8p23f; }

using Lanes = std::array<float, kLanes>;
double total(const Lanes& lanes) {
  double sum = 0;
  for (const float v : lanes) sum += v;
  return sum;
}

// Sums over a group for codes l: what the least-squares solutions need.
struct Moments {
  double l = 0, ll = 0, lx = 0;  // of w l, w l², w l x
};

// Codes of x in units of scale 1/inverse above `base`, clamped to [low, high].
template <int kSize>
Moments round_codes(const float* x, const float* w, float base, float inverse, float low, float high,
                    float* codes) {
  Lanes l{}, ll{}, lx{};
  for (int i = 0; i < kSize; i += kLanes)
    for (int j = 0; j < kLanes; ++j) {
      // Clamped before rounding: the bounds are integers.
      const float c = nearest(std::min(std::max((x[i + j] - base) * inverse, low), high)), wc = w[i + j] * c;
      codes[i + j] = c;
      l[j] += wc;
      ll[j] += wc * c;
      lx[j] += wc * x[i + j];
    }
  return {total(l), total(ll), total(lx)};
}

// Error of scale * code - min with the best codes in [low, high], and those codes.
template <int kSize>
double best_codes(const float* x, const float* w, float scale, float min, float low, float high,
                  float* codes) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  Lanes sum{};
  for (int i = 0; i < kSize; i += kLanes)
    for (int j = 0; j < kLanes; ++j) {
      const float c = nearest(std::min(std::max((x[i + j] + min) * inverse, low), high));
      const float e = scale * c - min - x[i + j];
      codes[i + j] = c;
      sum[j] += w[i + j] * e * e;
    }
  return total(sum);
}

// ---- Q4_K: x ≈ d scale l - dmin min, l in 0..15, scale and min in 0..63, for groups of 32.

constexpr int kQ4Group = 32, kQ4Groups = 8;

struct Affine {
  double scale = 0, min = 0;  // x ≈ scale l - min, both at least 0
};

// The best scale and minimum for given codes.
Affine solve(const Moments& m, double sw, double swx) {
  const double determinant = sw * m.ll - m.l * m.l;
  if (determinant > 0) {
    const Affine a{(sw * m.lx - swx * m.l) / determinant, (m.l * m.lx - m.ll * swx) / determinant};
    if (a.scale >= 0 && a.min >= 0) return a;
  }
  return {m.ll > 0 ? std::max(m.lx / m.ll, 0.0) : 0, 0};
}

Affine fit_affine(const float* x, const float* w) {
  const auto [low_at, high_at] = std::minmax_element(x, x + kQ4Group);
  const float low = std::min(*low_at, 0.0f), high = *high_at;
  if (!(high > low)) return {0, -low};
  double sw = 0, swx = 0, swxx = 0;
  for (int i = 0; i < kQ4Group; ++i) {
    sw += w[i];
    swx += w[i] * x[i];
    swxx += w[i] * x[i] * x[i];
  }
  Affine best{(high - low) / 15, -low};
  double least = INFINITY;
  for (int step = 0; step <= 20; ++step) {
    const float inverse = (14.0f + 0.1f * static_cast<float>(step)) / (high - low);
    if (!std::isfinite(inverse)) break;
    float codes[kQ4Group];
    const Moments m = round_codes<kQ4Group>(x, w, low, inverse, 0, 15, codes);
    const Affine a = solve(m, sw, swx);
    const double error = swxx + a.scale * a.scale * m.ll + a.min * a.min * sw -
                         2 * (a.scale * m.lx - a.min * swx + a.scale * a.min * m.l);
    if (error < least) {
      least = error;
      best = a;
    }
  }
  return best;
}

// One f16 scale and its stored form; a product of least squares rounded to what the file keeps.
float to_f16(double v, std::string_view type) {
  std::uint16_t h;
  store_f16(reinterpret_cast<std::uint8_t*>(&h), static_cast<float>(v), type);
  return f16_to_f32(h);
}

// The integer that stands for v in units of `unit`, in [low, high].
int in_units(double v, double unit, int low, int high) {
  return unit == 0 ? 0 : static_cast<int>(std::lround(std::clamp<double>(v / unit, low, high)));
}

// Beyond this the sums would overflow; no scale of either type reaches so far.
void check_range(const float* x, std::string_view type) {
  for (int i = 0; i < 256; ++i)
    if (std::fabs(x[i]) > 0x1p30f) fail("value {}: beyond the range of {}", x[i], type);
}

struct Q4Block {
  float d = 0, dmin = 0;
  KScales s{};
  float codes[256] = {};
  double error = 0;
};

// Chooses the integers of every group for the d and dmin that `b` has.
void choose_integers(const float* x, const float* w, const Affine* fits, Q4Block& b) {
  b.error = 0;
  for (int g = 0; g < kQ4Groups; ++g) {
    const int at = g * kQ4Group;
    const int scale_near = in_units(fits[g].scale, b.d, 0, 63),
              min_near = in_units(fits[g].min, b.dmin, 0, 63);
    double least = INFINITY;
    for (int scale = std::max(scale_near - 1, 0); scale <= std::min(scale_near + 1, 63); ++scale)
      for (int min = std::max(min_near - 1, 0); min <= std::min(min_near + 1, 63); ++min) {
        float codes[kQ4Group];
        const double error = best_codes<kQ4Group>(x + at, w + at, b.d * static_cast<float>(scale),
                                                  b.dmin * static_cast<float>(min), 0, 15, codes);
        if (error >= least) continue;
        least = error;
        b.s.scale[g] = static_cast<std::uint8_t>(scale);
        b.s.min[g] = static_cast<std::uint8_t>(min);
        std::copy_n(codes, kQ4Group, b.codes + at);
      }
    b.error += least;
  }
}

// The best d and dmin for the integers that `b` has; leaves them alone where there is no unique positive
// answer.
void choose_units(const float* x, const float* w, Q4Block& b) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;  // x ≈ d a - dmin b
  for (int g = 0; g < kQ4Groups; ++g)
    for (int i = g * kQ4Group; i < (g + 1) * kQ4Group; ++i) {
      const double a = b.s.scale[g] * b.codes[i], m = b.s.min[g];
      aa += w[i] * a * a;
      ab += w[i] * a * m;
      bb += w[i] * m * m;
      ax += w[i] * a * x[i];
      bx += w[i] * m * x[i];
    }
  const double determinant = aa * bb - ab * ab;
  const double d = determinant > 0 ? (bb * ax - ab * bx) / determinant : aa > 0 ? ax / aa : 0;
  const double dmin = determinant > 0 ? (ab * ax - aa * bx) / determinant : 0;
  if (d <= 0 || dmin < 0) return;
  b.d = to_f16(d, "Q4_K");
  b.dmin = to_f16(dmin, "Q4_K");
}

// ---- Q6_K: x ≈ d scale l, l in -32..31, scale in -128..127, for groups of 16.

constexpr int kQ6Group = 16, kQ6Groups = 16;

double fit_scale(const float* x, const float* w) {
  const float extreme =
      *std::max_element(x, x + kQ6Group, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  double best = 0, most = 0;
  for (int step = -9; step <= 9; ++step) {
    const float inverse = -(32.0f + 0.1f * static_cast<float>(step)) / extreme;
    if (!std::isfinite(inverse)) break;
    float codes[kQ6Group];
    const Moments m = round_codes<kQ6Group>(x, w, 0, inverse, -32, 31, codes);
    // With the best scale lx / ll the error is the sum of w x² less lx² / ll.
    if (m.ll > 0 && m.lx * m.lx > most * m.ll) {
      most = m.lx * m.lx / m.ll;
      best = m.lx / m.ll;
    }
  }
  return best;
}

struct Q6Block {
  float d = 0;
  int scales[kQ6Groups] = {};
  float codes[256] = {};
  double error = 0;
};

void choose_integers(const float* x, const float* w, const double* fits, Q6Block& b) {
  b.error = 0;
  for (int g = 0; g < kQ6Groups; ++g) {
    const int at = g * kQ6Group, near = in_units(fits[g], b.d, -128, 127);
    double least = INFINITY;
    for (int scale = std::max(near - 1, -128); scale <= std::min(near + 1, 127); ++scale) {
      float codes[kQ6Group];
      const double error =
          best_codes<kQ6Group>(x + at, w + at, b.d * static_cast<float>(scale), 0, -32, 31, codes);
      if (error >= least) continue;
      least = error;
      b.scales[g] = scale;
      std::copy_n(codes, kQ6Group, b.codes + at);
    }
    b.error += least;
  }
}

void choose_units(const float* x, const float* w, Q6Block& b) {
  double aa = 0, ax = 0;
  for (int i = 0; i < 256; ++i) {
    const double a = b.scales[i / kQ6Group] * b.codes[i];
    aa += w[i] * a * a;
    ax += w[i] * a * x[i];
  }
  if (aa > 0) b.d = to_f16(ax / aa, "Q6_K");
}

// Step 3: integers, then units, twice; the better of the two blocks.
template <typename Block, typename Fit>
Block search(const float* x, const float* w, const Fit* fits, Block block) {
  choose_integers(x, w, fits, block);
  Block refined = block;
  choose_units(x, w, refined);
  choose_integers(x, w, fits, refined);
  return refined.error < block.error ? refined : block;
}

}  // namespace

void quantize_q4_k(const float* x, std::uint8_t* out) {
  check_range(x, "Q4_K");
  float w[256];
  Affine fits[kQ4Groups];
  double most_scale = 0, most_min = 0;
  for (int g = 0; g < kQ4Groups; ++g) {
    const float* group = x + g * kQ4Group;
    double square = 0;
    for (int i = 0; i < kQ4Group; ++i) square += static_cast<double>(group[i]) * group[i];
    const auto rms = static_cast<float>(std::sqrt(square / kQ4Group));
    for (int i = 0; i < kQ4Group; ++i) w[g * kQ4Group + i] = rms + std::fabs(group[i]);
    fits[g] = fit_affine(group, w + g * kQ4Group);
    most_scale = std::max(most_scale, fits[g].scale);
    most_min = std::max(most_min, fits[g].min);
  }
  Q4Block start;
  start.d = to_f16(most_scale / 63, "Q4_K");
  start.dmin = to_f16(most_min / 63, "Q4_K");
  const Q4Block b = search(x, w, fits, start);

  store_f16(out, b.d, "Q4_K");
  store_f16(out + 2, b.dmin, "Q4_K");
  pack_k_scales(b.s, out + 4);
  for (int i = 0; i < 128; ++i) {
    const float* low = b.codes + i / 32 * 64 + i % 32;
    out[16 + i] = static_cast<std::uint8_t>(static_cast<int>(low[0]) | static_cast<int>(low[32]) << 4);
  }
}

void quantize_q6_k(const float* x, std::uint8_t* out) {
  check_range(x, "Q6_K");
  float w[256];
  for (int i = 0; i < 256; ++i) w[i] = x[i] * x[i];
  double fits[kQ6Groups], most = 0;
  for (int g = 0; g < kQ6Groups; ++g) {
    fits[g] = fit_scale(x + g * kQ6Group, w + g * kQ6Group);
    if (std::fabs(fits[g]) > std::fabs(most)) most = fits[g];
  }
  Q6Block start;
  start.d = to_f16(most / -128, "Q6_K");
  const Q6Block b = search(x, w, fits, start);

  std::fill_n(out, 192, std::uint8_t{0});
  for (int e = 0; e < 256; ++e) {
    const int code = static_cast<int>(b.codes[e]) + 32, half = e / 128, quarter = e % 128 / 32;
    out[half * 64 + quarter % 2 * 32 + e % 32] |= static_cast<std::uint8_t>((code & 15) << (quarter / 2 * 4));
    out[128 + half * 32 + e % 32] |= static_cast<std::uint8_t>((code >> 4) << (quarter * 2));
  }
  for (int g = 0; g < kQ6Groups; ++g) out[192 + g] = static_cast<std::uint8_t>(b.scales[g]);
  store_f16(out + 208, b.d, "Q6_K");
}

}  // namespace narrows
