#include "generate/layer_walk.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "model/kv_cache.h"

namespace narrows {
namespace {

constexpr std::int64_t kHeadRows = 16;  // whose logits are held at once

}  // namespace

LayerWalk::LayerWalk(LoadedModel& model, std::string_view text, std::int64_t window, std::int64_t max_tokens,
                     WindowChoice which)
    : model_(model), window_(window) {
  const bool bos = model.adds_bos() && model.bos() != kNoToken;
  if (window < (bos ? 2 : 1)) fail("window: expected at least {} tokens, found {}", bos ? 2 : 1, window);
  const ModelSpec& spec = model.spec();
  if (spec.positions == Positions::Learned && window > spec.trained_context)
    fail("{}: windows of {} tokens: expected at most the {} positions that the model has learned", model.path(), window,
         spec.trained_context);
  const std::vector<TokenId> ids = model.tokenize(text, {.add_special = false, .parse_special = false});
  if (ids.empty()) fail("the text has no tokens");
  const std::int64_t most = max_tokens > 0 ? max_tokens : INT64_MAX;
  // Of the text's whole windows every so many; those that are taken fill max_tokens as far as whole ones can.
  const std::int64_t whole = std::ssize(ids) / (window - bos), wanted = std::max<std::int64_t>(most / window, 1);
  const bool spread = which == WindowChoice::Spread && whole > wanted;
  for (std::size_t at = 0; at < ids.size() && tokens_ + bos < most;) {
    if (spread) {
      if (std::ssize(windows_) == wanted) break;
      at = static_cast<std::size_t>(std::ssize(windows_) * whole / wanted * (window - bos));
    }
    std::vector<TokenId>& w = windows_.emplace_back();
    if (bos) w.push_back(model.bos());
    const std::int64_t room = std::min(window, most - tokens_) - bos;
    const std::size_t size = std::min(static_cast<std::size_t>(room), ids.size() - at);
    w.insert(w.end(), ids.begin() + static_cast<std::ptrdiff_t>(at), ids.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
    tokens_ += static_cast<std::int64_t>(w.size());
  }
  x_.resize(static_cast<std::size_t>(tokens_ * model.spec().d));
  spec_changed();
}

void LayerWalk::run(int begin, int end, std::size_t window, std::span<const std::int64_t> wanted, float* logits) {
  cache_->truncate(0);
  Batch batch;
  batch.add(cache_.get(), windows_[window], 0);
  forward(model_.spec(), model_.weights(), *attention_, model_.pool(), workspace_, batch, {wanted, logits}, {begin, end});
}

std::span<const float> LayerWalk::stream(std::int64_t window) const {
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < window; ++i) first += window_tokens(i);
  const std::int64_t d = model_.spec().d;
  return std::span(x_).subspan(static_cast<std::size_t>(first * d), static_cast<std::size_t>(window_tokens(window) * d));
}

void LayerWalk::pass_embedding() {
  float* at = x_.data();
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    const std::size_t size = windows_[i].size() * static_cast<std::size_t>(model_.spec().d);
    run(0, 0, i, {}, nullptr);
    std::copy_n(workspace_.x.data(), size, at);
    at += size;
  }
}

void LayerWalk::pass_layer(int layer, const std::function<void()>& after_window) {
  each_window(layer, true, after_window);
}

void LayerWalk::show_layer(int layer, const std::function<void()>& after_window) {
  each_window(layer, false, after_window);
}

void LayerWalk::spec_changed() {
  attention_ = std::make_unique<DenseAttention>(model_.spec(), KvFormat::F16);
  cache_ = attention_->new_sequence();
  cache_->long_context = model_.spec().is_long(window_);
}

void LayerWalk::each_window(int layer, bool moves_on, const std::function<void()>& after_window) {
  float* at = x_.data();
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    const std::size_t size = windows_[i].size() * static_cast<std::size_t>(model_.spec().d);
    if (workspace_.x.size() < size) workspace_.x.resize(size);
    if (layer > 0) std::copy_n(at, size, workspace_.x.data());
    current_ = static_cast<std::int64_t>(i);
    run(layer, layer + 1, i, {}, nullptr);
    if (moves_on) std::copy_n(workspace_.x.data(), size, at);
    at += size;
    if (after_window) after_window();
  }
}

void LayerWalk::finish(int layer, std::int64_t window, std::span<const std::int64_t> wanted, float* logits) {
  const std::span<const float> from = stream(window);
  if (workspace_.x.size() < from.size()) workspace_.x.resize(from.size());
  if (layer > 0) std::copy(from.begin(), from.end(), workspace_.x.data());
  run(layer, model_.spec().layers, static_cast<std::size_t>(window), wanted, logits);
}

void LayerWalk::pass_head(const std::function<void()>& after_window) {
  const int layers = model_.spec().layers;
  AlignedVector<float> logits(static_cast<std::size_t>(kHeadRows * model_.spec().vocab));
  const float* at = x_.data();
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    const std::size_t size = windows_[i].size() * static_cast<std::size_t>(model_.spec().d);
    std::copy_n(at, size, workspace_.x.data());
    at += size;
    const std::int64_t rows = static_cast<std::int64_t>(windows_[i].size());
    for (std::int64_t first = 0; first < rows; first += kHeadRows) {
      std::vector<std::int64_t> wanted(static_cast<std::size_t>(std::min(kHeadRows, rows - first)));
      std::iota(wanted.begin(), wanted.end(), first);
      run(layers, layers, i, wanted, logits.data());
    }
    if (after_window) after_window();
  }
}

}  // namespace narrows
