#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace narrows {

using std::chrono::duration;
using std::chrono::steady_clock;

Progress::Progress(std::string label, std::int64_t total)
    : label_(std::move(label)),
      total_(std::max<std::int64_t>(total, 1)),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(steady_clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
}

void Progress::update(std::int64_t done, const std::string& note) {
  if (!terminal_) return;
  const auto now = steady_clock::now();
  const double elapsed = duration<double>(now - start_).count();
  if (elapsed < 2.0 || duration<double>(now - last_).count() < 0.1) return;
  last_ = now;
  drawn_ = true;
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
  const int width = 30, filled = static_cast<int>(share * width);
  const double left = share > 0 ? elapsed * (1 - share) / share : 0;
  fmt::print(stderr, "\r\033[K{} [{:=<{}}{: <{}}] {:3.0f}% {:.0f}s left {}", label_, "", filled, "",
             width - filled, share * 100, left, note);
  std::fflush(stderr);
}

}  // namespace narrows
