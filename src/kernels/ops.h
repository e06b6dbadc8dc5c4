// Small operations on rows of floats: norms, rotary positions, activations, sums. Reductions keep 16 partial sums,
// over i mod 16 in ascending order, then a fixed tree.
#pragma once
#include <cstdint>

namespace narrows {

// y = x / rms(x) · weight, rms(x) = √(mean(x²) + eps). weight may be nullptr (ones). y may be x.
void rms_norm(const float* x, const float* weight, float eps, float* y, std::int64_t n);

// y = (x - mean(x)) / √(var(x) + eps) · weight + bias; weight and bias may be nullptr.
void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* y, std::int64_t n);

// Rotates the first 2 · pairs elements of x by angles given as cosines and sines [pairs].
void rotate_adjacent(float* x, const float* cosines, const float* sines, std::int64_t pairs);  // (x[2i], x[2i + 1])
void rotate_half(float* x, const float* cosines, const float* sines, std::int64_t pairs);      // (x[i], x[i + pairs])

enum class Activation { Silu, GeluTanh, GeluErf, Relu };

// y = activation(gate) · up, or activation(gate) where up is nullptr. y may be gate or up.
void activate(Activation activation, const float* gate, const float* up, float* y, std::int64_t n);

void add(const float* x, float* y, std::int64_t n);            // y += x
void scale(float factor, float* y, std::int64_t n);            // y *= factor
void soft_cap(float cap, float* y, std::int64_t n);            // y = cap · tanh(y / cap)

}  // namespace narrows
