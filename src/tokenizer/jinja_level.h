// Counts how deep evaluation is nested.
#pragma once
#include "base/error.h"
#include "tokenizer/jinja_value.h"

namespace narrows::jinja {

class Level {
 public:
  explicit Level(int& depth) : depth_(depth) {
    if (depth_ >= kMaxDepth) fail("expected at most {} nested evaluations", kMaxDepth);
    ++depth_;
  }
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& depth_;
};

}  // namespace narrows::jinja
