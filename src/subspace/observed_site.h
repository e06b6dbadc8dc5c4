// A site that shows its input to a watcher before it computes.
#pragma once
#include <functional>
#include <memory>

#include "model/linear_site.h"

namespace narrows {

using Watcher = std::function<void(const float* x, std::int64_t rows)>;

class ObservedSite final : public LinearSite {
 public:
  // With `computes` false the outputs are left as they are: for whoever wants the head's input alone.
  ObservedSite(std::unique_ptr<LinearSite> site, Watcher watcher, bool computes = true)
      : site_(std::move(site)), watcher_(std::move(watcher)), computes_(computes) {}
  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) override {
    watcher_(x, rows);
    if (computes_) site_->apply(pool, scratch, x, rows, y);
  }
  std::int64_t in() const override { return site_->in(); }
  std::int64_t out() const override { return site_->out(); }
  std::size_t bytes_read() const override { return site_->bytes_read(); }
  const std::vector<Linear>& maps() const override { return site_->maps(); }
  std::unique_ptr<LinearSite> release() { return std::move(site_); }

 private:
  std::unique_ptr<LinearSite> site_;
  Watcher watcher_;
  bool computes_;
};

// Watches a site for as long as it lives.
class Observation {
 public:
  Observation(std::unique_ptr<LinearSite>& site, Watcher watcher, bool computes = true) : site_(&site) {
    auto observed = std::make_unique<ObservedSite>(std::move(site), std::move(watcher), computes);
    observed_ = observed.get();
    site = std::move(observed);
  }
  Observation(Observation&& other) noexcept : site_(std::exchange(other.site_, nullptr)), observed_(other.observed_) {}
  Observation(const Observation&) = delete;
  ~Observation() {
    if (site_) *site_ = observed_->release();
  }

 private:
  std::unique_ptr<LinearSite>* site_;
  ObservedSite* observed_;
};

}  // namespace narrows
