// Progress of long work, on a terminal only.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace narrows {

// Draws a bar on stderr when stderr is a terminal and the work has lasted over two seconds; otherwise silent.
class Progress {
 public:
  Progress(std::string label, std::int64_t total);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();
  // `note` is shown after the bar, e.g. a running figure.
  void update(std::int64_t done, const std::string& note = {});

 private:
  std::string label_;
  std::int64_t total_;
  bool terminal_, drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace narrows
