// A site around another one: it watches what that computes, or computes in its place.
#pragma once
#include <memory>
#include <utility>

#include "model/linear_site.h"

namespace narrows {

class WrappedSite : public LinearSite {
 public:
  explicit WrappedSite(std::unique_ptr<LinearSite> inner) : inner_(std::move(inner)) {}
  void apply(ThreadPool& pool, SiteScratch& scratch, const float* x, std::int64_t rows, float* y) override {
    inner_->apply(pool, scratch, x, rows, y);
  }
  std::int64_t in() const override { return inner_->in(); }
  std::int64_t out() const override { return inner_->out(); }
  std::size_t bytes_read() const override { return inner_->bytes_read(); }
  const std::vector<Linear>& maps() const override { return inner_->maps(); }

  LinearSite& inner() const { return *inner_; }
  // The inner site; this one must not be used any more.
  std::unique_ptr<LinearSite> release() { return std::move(inner_); }

 private:
  std::unique_ptr<LinearSite> inner_;
};

// The site without what is around it.
inline void unwrap(std::unique_ptr<LinearSite>& site) {
  while (auto* wrapped = dynamic_cast<WrappedSite*>(site.get())) site = wrapped->release();
}

// Puts a Site, made of the site and further arguments, around a site for as long as this lives.
template <class Site>
class Wrapping {
 public:
  template <class... Arguments>
  explicit Wrapping(std::unique_ptr<LinearSite>& site, Arguments&&... arguments) : site_(&site) {
    auto wrapped = std::make_unique<Site>(std::move(site), std::forward<Arguments>(arguments)...);
    wrapped_ = wrapped.get();
    site = std::move(wrapped);
  }
  Wrapping(Wrapping&& other) noexcept : site_(std::exchange(other.site_, nullptr)), wrapped_(other.wrapped_) {}
  Wrapping(const Wrapping&) = delete;
  ~Wrapping() {
    if (site_) *site_ = wrapped_->release();
  }
  Site* operator->() const { return wrapped_; }

 private:
  std::unique_ptr<LinearSite>* site_;
  Site* wrapped_;
};

}  // namespace narrows
