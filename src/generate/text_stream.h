// Text that arrives token by token, delivered in whole characters and cut before a stop string.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace narrows {

// Bytes in, text out. Held back until decided: the beginning of a UTF-8 character, and the beginning of a
// stop string. Bytes that are no UTF-8 are delivered as they are. What is delivered depends on the bytes
// alone, not on how they were cut into pieces.
class TextStream {
 public:
  // `deliver` returns false to stop. Throws Error if a stop string is empty.
  TextStream(std::vector<std::string> stop, std::function<bool(std::string_view)> deliver);

  enum class State { Open, StopString, Refused };
  // Once the state is no longer Open further pieces are ignored.
  State push(std::string_view piece);
  // The end of the text: delivers what was held back.
  State finish();

  const std::string& text() const { return text_; }  // delivered so far

 private:
  State deliver(std::size_t bytes);
  std::vector<std::string> stop_;
  std::function<bool(std::string_view)> deliver_;
  std::string pending_, text_;
  State state_ = State::Open;
};

// Length of the longest suffix of `text` that begins a UTF-8 character without completing it: 0 to 3.
std::size_t incomplete_utf8(std::string_view text);

}  // namespace narrows
