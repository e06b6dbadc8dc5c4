#include "generate/text_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace narrows {
namespace {

// The stop string that is complete first, reading byte by byte; of those complete at the same byte the
// longest. npos if there is none.
std::size_t find_stop(std::string_view text, std::span<const std::string> stop) {
  std::size_t begin = std::string_view::npos, end = std::string_view::npos;
  for (const std::string& s : stop) {
    const std::size_t at = text.find(s);
    if (at == std::string_view::npos) continue;
    if (at + s.size() < end || (at + s.size() == end && at < begin)) {
      begin = at;
      end = at + s.size();
    }
  }
  return begin;
}

// Length of the longest suffix of `text` that a stop string begins with.
std::size_t begun_stop(std::string_view text, std::span<const std::string> stop) {
  std::size_t longest = 0;
  for (const std::string& s : stop) {
    for (std::size_t n = std::min(s.size() - 1, text.size()); n > longest; --n)
      if (text.ends_with(std::string_view(s).substr(0, n))) longest = n;
  }
  return longest;
}

}  // namespace

std::size_t incomplete_utf8(std::string_view text) {
  const auto byte = [&](std::size_t back) { return static_cast<unsigned char>(text[text.size() - back]); };
  const std::size_t reach = std::min<std::size_t>(3, text.size());
  for (std::size_t back = 1; back <= reach; ++back) {
    const unsigned char lead = byte(back);
    if (lead >= 0x80 && lead < 0xC0) continue;  // a continuation: the lead byte is further back
    const std::size_t length = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
    if (length <= back) return 0;
    if (back == 1) return 1;
    // The byte after some leads has a narrower range: overlong forms, surrogates, beyond U+10FFFF.
    const unsigned char next = byte(back - 1);
    const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    return next >= low && next <= high ? back : 0;
  }
  return 0;
}

TextStream::TextStream(std::vector<std::string> stop, std::function<bool(std::string_view)> deliver)
    : stop_(std::move(stop)), deliver_(std::move(deliver)) {
  for (const std::string& s : stop_)
    if (s.empty()) fail("stop string: expected text, found an empty string");
}

TextStream::State TextStream::deliver(std::size_t bytes) {
  if (bytes == 0) return state_;
  const std::string_view ready = std::string_view(pending_).substr(0, bytes);
  text_ += ready;
  if (deliver_ && !deliver_(ready)) state_ = State::Refused;
  pending_.erase(0, bytes);
  return state_;
}

TextStream::State TextStream::push(std::string_view piece) {
  if (state_ != State::Open) return state_;
  pending_ += piece;
  if (const std::size_t at = find_stop(pending_, stop_); at != std::string::npos) {
    deliver(at);
    return state_ = State::StopString;
  }
  const std::size_t decided = pending_.size() - begun_stop(pending_, stop_);
  return deliver(decided - incomplete_utf8(std::string_view(pending_).substr(0, decided)));
}

TextStream::State TextStream::finish() { return state_ == State::Open ? deliver(pending_.size()) : state_; }

}  // namespace narrows
