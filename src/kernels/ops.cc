#include "kernels/ops.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops.cc"
#include "kernels/targets.h"
// After targets.h.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot4-inl.h"
// After dot4-inl.h, which may widen the target.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace narrows::HWY_NAMESPACE {

constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(DF()));
constexpr std::int64_t kParts = 16 / kLanes;

// Applies f to vectors of x, zeros after its end, in steps of 16.
template <class F>
HWY_INLINE float SumOf(const float* x, std::int64_t n, const F& f) {
  const DF df;
  VF sums[kParts];
  for (auto& sum : sums) sum = hn::Zero(df);
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (std::int64_t p = 0; p < kParts; ++p) sums[p] = f(hn::LoadU(df, x + i + p * kLanes), sums[p]);
  for (std::int64_t p = 0; i < n && p < kParts; ++p, i += kLanes) {
    alignas(64) float last[16] = {};
    for (std::int64_t j = i; j < HWY_MIN(n, i + kLanes); ++j) last[j - i] = x[j];
    sums[p] = f(hn::Load(df, last), sums[p]);
  }
  return Reduce16(sums);
}

float SumOfSquares(const float* x, std::int64_t n) {
  return SumOf(x, n, [](VF v, VF sum) HWY_ATTR { return hn::MulAdd(v, v, sum); });
}

float Sum(const float* x, std::int64_t n) {
  return SumOf(x, n, [](VF v, VF sum) HWY_ATTR { return hn::Add(v, sum); });
}

// y[i] = f(x[i], z[i]); z may be nullptr.
template <class F>
HWY_INLINE void Map(const float* x, const float* z, float* y, std::int64_t n, const F& f) {
  const DF df;
  const VF zero = hn::Zero(df);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(f(hn::LoadU(df, x + i), z ? hn::LoadU(df, z + i) : zero), df, y + i);
  if (i < n) {
    alignas(64) float last_x[16] = {}, last_z[16] = {};
    for (std::int64_t j = i; j < n; ++j) {
      last_x[j - i] = x[j];
      if (z) last_z[j - i] = z[j];
    }
    hn::Store(f(hn::Load(df, last_x), hn::Load(df, last_z)), df, last_x);
    for (std::int64_t j = i; j < n; ++j) y[j] = last_x[j - i];
  }
}

void Normalize(const float* x, const float* weight, float shift, float factor, float* y, std::int64_t n) {
  const DF df;
  const VF by = hn::Set(df, factor), less = hn::Set(df, shift);
  if (weight)
    Map(x, weight, y, n, [&](VF v, VF w) HWY_ATTR { return hn::Mul(hn::Mul(hn::Sub(v, less), by), w); });
  else
    Map(x, nullptr, y, n, [&](VF v, VF) HWY_ATTR { return hn::Mul(hn::Sub(v, less), by); });
}

void Activate(Activation activation, const float* gate, const float* up, float* y, std::int64_t n) {
  const DF df;
  const auto times = [&](VF v, VF u) HWY_ATTR { return up ? hn::Mul(v, u) : v; };
  // v / (1 + exp(-z)), without the cancellation of 0.5 (1 + tanh). Highway's Exp is garbage above 104, infinite before.
  const auto times_sigmoid = [&](VF v, VF z) HWY_ATTR {
    const VF e = hn::Exp(df, hn::Min(hn::Neg(z), hn::Set(df, 104.0f)));
    return hn::Div(v, hn::Add(hn::Set(df, 1.0f), e));
  };
  switch (activation) {
    case Activation::Silu:
      Map(gate, up, y, n, [&](VF v, VF u) HWY_ATTR { return times(times_sigmoid(v, v), u); });
      return;
    case Activation::GeluTanh:  // 0.5 (1 + tanh z) is the sigmoid of 2 z
      Map(gate, up, y, n, [&](VF v, VF u) HWY_ATTR {
        const VF factor = hn::MulAdd(hn::Mul(hn::Set(df, 0.044715f), v), v, hn::Set(df, 1.0f));
        return times(times_sigmoid(v, hn::Mul(hn::Mul(hn::Set(df, 1.5957691216057308f), v), factor)), u);
      });
      return;
    case Activation::GeluErf:
      for (std::int64_t i = 0; i < n; ++i) {
        const float g = 0.5f * gate[i] * std::erfc(-0.70710678f * gate[i]);
        y[i] = up ? g * up[i] : g;
      }
      return;
    case Activation::Relu:
      Map(gate, up, y, n, [&](VF v, VF u) HWY_ATTR { return times(hn::Max(v, hn::Zero(df)), u); });
      return;
  }
}

void Add(const float* x, float* y, std::int64_t n) {
  Map(x, y, y, n, [](VF a, VF b) HWY_ATTR { return hn::Add(b, a); });
}

void Scale(float factor, float* y, std::int64_t n) {
  const VF by = hn::Set(DF(), factor);
  Map(y, nullptr, y, n, [&](VF v, VF) HWY_ATTR { return hn::Mul(v, by); });
}

void SoftCap(float cap, float* y, std::int64_t n) {
  const DF df;
  const VF by = hn::Set(df, cap), ten = hn::Set(df, 10.0f);
  Map(y, nullptr, y, n, [&](VF v, VF) HWY_ATTR {
    return hn::Mul(by, hn::Tanh(df, hn::Min(hn::Max(hn::Div(v, by), hn::Neg(ten)), ten)));
  });
}

void RotateHalf(float* x, const float* cosines, const float* sines, std::int64_t pairs) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = x[i], b = x[i + pairs];
    x[i] = a * cosines[i] - b * sines[i];
    x[i + pairs] = a * sines[i] + b * cosines[i];
  }
}

}  // namespace narrows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrows {

HWY_EXPORT(SumOfSquares);
HWY_EXPORT(Sum);
HWY_EXPORT(Normalize);
HWY_EXPORT(Activate);
HWY_EXPORT(Add);
HWY_EXPORT(Scale);
HWY_EXPORT(SoftCap);
HWY_EXPORT(RotateHalf);

void rms_norm(const float* x, const float* weight, float eps, float* y, std::int64_t n) {
  const float mean = HWY_DYNAMIC_DISPATCH(SumOfSquares)(x, n) / static_cast<float>(n);
  HWY_DYNAMIC_DISPATCH(Normalize)(x, weight, 0.0f, 1.0f / std::sqrt(mean + eps), y, n);
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* y, std::int64_t n) {
  const float mean = HWY_DYNAMIC_DISPATCH(Sum)(x, n) / static_cast<float>(n);
  HWY_DYNAMIC_DISPATCH(Normalize)(x, nullptr, mean, 1.0f, y, n);  // centred first: no cancellation in the variance
  const float variance = HWY_DYNAMIC_DISPATCH(SumOfSquares)(y, n) / static_cast<float>(n);
  HWY_DYNAMIC_DISPATCH(Normalize)(y, weight, 0.0f, 1.0f / std::sqrt(variance + eps), y, n);
  if (bias) HWY_DYNAMIC_DISPATCH(Add)(bias, y, n);
}

void rotate_adjacent(float* x, const float* cosines, const float* sines, std::int64_t pairs) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cosines[i] - b * sines[i];
    x[2 * i + 1] = a * sines[i] + b * cosines[i];
  }
}

void rotate_half(float* x, const float* cosines, const float* sines, std::int64_t pairs) {
  HWY_DYNAMIC_DISPATCH(RotateHalf)(x, cosines, sines, pairs);
}

void activate(Activation activation, const float* gate, const float* up, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(Activate)(activation, gate, up, y, n);
}

void add(const float* x, float* y, std::int64_t n) { HWY_DYNAMIC_DISPATCH(Add)(x, y, n); }
void scale(float factor, float* y, std::int64_t n) { HWY_DYNAMIC_DISPATCH(Scale)(factor, y, n); }
void soft_cap(float cap, float* y, std::int64_t n) { HWY_DYNAMIC_DISPATCH(SoftCap)(cap, y, n); }

}  // namespace narrows
#endif
