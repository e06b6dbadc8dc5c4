// A site that shows its input to a watcher before it computes.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "model/wrapped_site.h"

namespace narrows {

using Watcher = std::function<void(const float* x, std::int64_t rows)>;

class ObservedSite final : public WrappedSite {
 public:
  // With `computes` false the outputs are left as they are: for whoever wants the head's input alone.
  ObservedSite(std::unique_ptr<LinearSite> site, Watcher watcher, bool computes)
      : WrappedSite(std::move(site)), watcher_(std::move(watcher)), computes_(computes) {}
  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) override {
    watcher_(x, rows);
    if (computes_) inner().apply(pool, scratch, x, rows, y);
  }

 private:
  Watcher watcher_;
  bool computes_;
};

// A site that gives zeros, where what follows the site that is watched does not matter.
class SilentSite final : public WrappedSite {
 public:
  using WrappedSite::WrappedSite;
  void apply(ThreadPool&, SiteScratch&, const float*, std::int64_t rows, float* y) override {
    std::fill_n(y, rows * out(), 0.0f);
  }
};

// A site that shows its outputs.
class ObservedOutputs final : public WrappedSite {
 public:
  ObservedOutputs(std::unique_ptr<LinearSite> site, Watcher watcher)
      : WrappedSite(std::move(site)), watcher_(std::move(watcher)) {}
  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) override {
    inner().apply(pool, scratch, x, rows, y);
    watcher_(y, rows);
  }

 private:
  Watcher watcher_;
};

}  // namespace narrows
