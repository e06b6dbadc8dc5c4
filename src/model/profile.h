// Where the time of forward passes goes, operation by operation.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace narrows {

enum class Operation {
  Embedding,
  Norm,
  Qkv,
  Rotary,
  Attention,
  Output,
  Router,
  GateUp,
  Activation,
  Down,
  Residual,
  Head
};
inline constexpr std::array<std::string_view, 12> kOperationNames = {
    "embedding", "norm",       "q, k, v", "rotary",   "attention", "attention output",
    "router",    "gate, up",  "activation", "down",    "residual", "head"};

struct Profile {
  struct Entry {
    std::int64_t calls = 0;
    double seconds = 0;
    double bytes = 0;  // weights and cache that had to be read, each once a call
  };
  std::array<Entry, kOperationNames.size()> entries;
};

// Adds the time from its making to its end to `profile`, where there is one.
class Timed {
 public:
  Timed(Profile* profile, Operation operation, std::size_t bytes = 0)
      : profile_(profile), operation_(operation), bytes_(bytes) {
    if (profile_) start_ = Clock::now();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    if (!profile_) return;
    Profile::Entry& entry = profile_->entries[static_cast<std::size_t>(operation_)];
    ++entry.calls;
    entry.seconds += std::chrono::duration<double>(Clock::now() - start_).count();
    entry.bytes += static_cast<double>(bytes_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Profile* profile_;
  Operation operation_;
  std::size_t bytes_;
  Clock::time_point start_;
};

}  // namespace narrows
