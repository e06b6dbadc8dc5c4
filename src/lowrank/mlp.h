// Fewer intermediate neurons of a feed-forward block, gated or plain. A3, section MLP; METHODS, section 3.
//
// The down projection reads h, the neurons' activations; the functional loss is E ‖W_d h - W'_d h_kept‖².
// What makes h (gate and up projections, their biases) loses the rows of the neurons that go: take_rows
// (covariance.h).
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace narrows {

enum class NeuronChoice {
  Down,  // largest ‖column of W_d‖ · √R_hh[j][j]: the neuron's own share of the loss
  Up,    // largest ‖row of W_u‖ · √R_hh[j][j]: the paper's summary
  // Backward elimination: the neuron whose loss is least once the others' columns are refitted, one after
  // another (optimal brain surgeon, Hassibi and Stork 1993). For shrink with a refit: refitted, it loses a
  // fifth to a half of what Down loses where neurons repeat each other, 3 to 9 % less where they do not
  // (synthetic blocks, 10 to 40 % dropped); without a refit it loses more than Down, up to ten times. Takes
  // d_inter² (d_inter + d_out) products: 3 s at 1536 × 576 on one core, some twenty minutes at 11008 × 4096.
  Elimination,
};

// As --neurons spells them, in the order of the enumeration.
inline constexpr const char* kNeuronChoices[] = {"down", "up", "elimination"};

struct MlpReduced {
  std::vector<std::int64_t> kept;  // neurons, ascending
  std::vector<double> down;        // [d_out][kept]
  double loss = 0;
  double ridge = 0;  // ρ of the refit, in units of R_hh
};

class MlpReduction {
 public:
  // down [d_out][d_inter], r_hh [d_inter][d_inter] = E h hᵀ, both triangles; both must outlive this. up
  // [d_inter][d_in], for NeuronChoice::Up only. Throws Error if a size does not match or a number is NaN or
  // infinite. Memory: 8 d_inter² bytes, with Elimination 8 d_inter (2 d_inter + d_out).
  MlpReduction(std::span<const double> down, std::int64_t d_out, std::int64_t d_inter,
               std::span<const double> r_hh, NeuronChoice choice = NeuronChoice::Down,
               std::span<const double> up = {});

  // [d_inter + 1] by neurons kept, without refit: cancelling errors may make it rise here and there. With
  // Elimination with refit (of R_hh plus its ridge: kEliminationRidge · tr R_hh), never rising.
  const std::vector<double>& loss_by_rank() const { return loss_; }

  // `ridge`: refit W'_d by least squares, held to the old columns by ρ ‖W'_d - W_d,kept‖², ρ = ridge · tr
  // R_hh,kept (1e-4 is a mild one); grown where the statistics are singular (ridge.h). At no ridge does the
  // refit lose more than none. `correction` [d_out][d_inter] = E c hᵀ makes the refit give W_d h + c, not W_d h; the
  // loss then counts from E ‖c‖², which is left out. Throws Error unless rank is in 1 … d_inter and ridge at least 0.
  MlpReduced shrink(std::int64_t rank, std::optional<double> ridge = {}, std::span<const double> correction = {}) const;

  static constexpr double kEliminationRidge = 1e-6;

 private:
  void order_by(std::span<const double> energies);
  void eliminate();

  const std::span<const double> down_, r_;
  const std::int64_t d_out_, d_;
  std::vector<std::int64_t> order_;  // neurons, the first to keep first
  std::vector<double> loss_;
};

}  // namespace narrows
