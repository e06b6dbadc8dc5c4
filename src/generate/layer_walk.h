// A model's activations on a text, layer by layer: every window passes one layer, then the next, so that only one
// layer's sites are watched at a time and the memory beside the model is the residual stream of the text.
#pragma once
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "model/loaded_model.h"

namespace narrows {

// Which windows of a text that is longer than asked for.
enum class WindowChoice {
  First,
  Spread,  // whole ones at even distances through all of the text: neighbours say the same things
};

class LayerWalk {
 public:
  // Windows of `window` tokens (BOS first in each if the model adds one), at most max_tokens in all (0: no bound); an
  // incomplete last window counts too. Throws Error if the text has no tokens, or a window
  // more than the positions that the model has learned.
  LayerWalk(LoadedModel& model, std::string_view text, std::int64_t window, std::int64_t max_tokens,
            WindowChoice which = WindowChoice::First);

  std::int64_t tokens() const { return tokens_; }
  std::int64_t windows() const { return static_cast<std::int64_t>(windows_.size()); }
  std::int64_t window_tokens(std::int64_t window) const { return std::ssize(windows_[static_cast<std::size_t>(window)]); }

  // [window_tokens][d], the residual stream of a window where the walk stands: what the next layer will read. Before
  // the first layer it is there after pass_embedding().
  std::span<const float> stream(std::int64_t window) const;
  void pass_embedding();
  // Takes every window through the layer; each layer once, in order. after_window() follows each.
  void pass_layer(int layer, const std::function<void()>& after_window = {});
  // The same without moving the walk on: for whoever watches a layer before it is changed. All layers before it must
  // have been passed.
  void show_layer(int layer, const std::function<void()>& after_window = {});
  // Takes a window from the layer on, where the walk stands, through the rest of the model, as it is now: logits [wanted]
  // [vocab] of these tokens, ascending. The walk does not move on.
  void finish(int layer, std::int64_t window, std::span<const std::int64_t> wanted, float* logits);
  // While a window passes a layer and after_window() runs: which it is; then, its stream after the layer.
  std::int64_t current_window() const { return current_; }
  const float* current_stream() const { return workspace_.x.data(); }
  // To be called when the sizes in the model's spec have changed.
  void spec_changed();
  // Shows the head its input: all tokens, in order. Logits are computed where the head computes.
  void pass_head(const std::function<void()>& after_window = {});

 private:
  void each_window(int layer, bool moves_on, const std::function<void()>& after_window);
  void run(int begin, int end, std::size_t window, std::span<const std::int64_t> wanted, float* logits);

  LoadedModel& model_;
  std::int64_t window_;
  std::vector<std::vector<TokenId>> windows_;
  std::int64_t tokens_ = 0, current_ = 0;
  AlignedVector<float> x_;  // [tokens][d], the residual stream
  std::unique_ptr<AttentionPolicy> attention_;
  std::unique_ptr<SequenceCache> cache_;
  Workspace workspace_;
};

}  // namespace narrows
