// A3, analytical low rank, of a whole model: fewer query, key and value dimensions and fewer neurons in each
// layer. METHODS, section 3.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dtype.h"
#include "lowrank/mlp.h"

namespace narrows {

enum class RankAllocation {
  Uniform,  // the same share of each inner dimension in every layer
  Mixed,    // what serves the model best with as many parameters (mixed_ranks.h)
};

struct CompressedLayer {
  int d_qk = 0, d_vo = 0, d_inter = 0;
  // The share of the mean square of scores, of the heads' outputs and of the block's outputs that is lost on
  // the calibration text, before refits. Of the baselines, what has not been measured is NaN.
  double qk_loss = 0, ov_loss = 0, mlp_loss = 0;
  double stream_error =
      0;  // mean over tokens of ‖difference from the dense model's stream‖² / ‖that stream‖²
};

struct CompressOptions {
  // The share to remove of each inner dimension, 0 ≤ share < 1; 0 keeps all of them (and still stores them
  // anew).
  double qk = 0.2, ov = 0.2, mlp = 0.2;
  RankAllocation allocation = RankAllocation::Mixed;
  std::vector<CompressedLayer> ranks = {};  // not empty: these, of every layer, instead of what the shares and the allocation say
  // What llama.cpp can run (portable.h): all heads lose the share `heads` of their dimensions, the neurons the rest of what qk, ov
  // and mlp say together.
  bool portable = false;
  double heads = 0;
  DType type = DType::F16;  // of the layers' matrices: one that can be encoded
  NeuronChoice neurons = NeuronChoice::Down;
  std::optional<double> refit =
      1e-3;  // ridge of the down projection's refit (MlpReduction::shrink); none: no refit
  // Refits aim at the dense model's residual stream, and so make up for what the layers before have lost;
  // otherwise at the layer's own outputs. Without effect on blocks whose output is normed (Gemma).
  bool correct = true;
  double output_ridge = 1e-2;      // of the output projection's refit
  std::int64_t window = 512;       // tokens
  std::int64_t max_tokens = 8192;  // 0: the whole text
  int threads = 0;                 // below 1: all cores. Results do not depend on it
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
  // Finished layers are kept in a file `out`.partial until `out` is written: a run that was interrupted goes on from
  // them, and the result is the one of a run that was not. What the result depends on is
  // listed in run_settings (checkpoint.h).
  bool resume = false;
  std::function<void(int finished, int layers)> kept = {};  // each time that so many are in the file, found or written
};

struct CompressionReport {
  std::int64_t tokens = 0;
  std::vector<CompressedLayer> layers;
  std::int64_t parameters_before = 0, parameters = 0;  // of the layers' linear maps, biases included
  double cache = 1;  // of the numbers that a token takes in the key/value cache, the share that is left
  std::int64_t raised = 0;  // eigenvalues of statistics that were raised: the text determines too little
  bool few_tokens = false;  // fewer than neurons: the refit rests on its ridge
  double seconds = 0;
  std::size_t peak_bytes = 0, file_bytes = 0;  // of the process; written
};

// Whole rotary pairs, an even number of value dimensions, neurons in steps of 16 or of a block of the type
// (of whole steps the most that remove at least the share; one at least).
int neuron_step(int d_inter, DType type);
CompressedLayer uniform_ranks(int d_qk, int d_vo, int d_inter, const CompressOptions& options);

// One pass over the text, layer by layer, each on what the layers before it make of the text as they are
// stored now: first the attention's statistics, with the layer's own attention; then the neurons', with the
// new attention. Memory beside the model: the text's residual stream three times, one layer's statistics and
// maps (doubles), and the new layers as stored. Writes `out`, whole or not at all. Throws Error naming the
// file, tensor or option: a model that is no model, a text without tokens, weights or activations that are
// not finite, a share out of range, a type that cannot be encoded, an `out`.partial of another run.
CompressionReport compress(const std::string& in, std::string_view text, const CompressOptions& options,
                           const std::string& out);

}  // namespace narrows
