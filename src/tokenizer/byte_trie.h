// Strings in a tree of bytes: which of them does a text begin with?
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/flat_map.h"

namespace narrows {

class ByteTrie {
 public:
  static constexpr std::int32_t kNone = -1;

  // The value of a string is its index. Empty strings are left out; of equal ones the last counts.
  explicit ByteTrie(std::span<const std::string> strings = {}) : values_(1, kNone) {
    std::size_t bytes = 0;
    for (const std::string& s : strings) bytes += s.size();
    next_ = FlatMap<std::uint32_t>(bytes);
    for (std::size_t i = 0; i < strings.size(); ++i) add(strings[i], static_cast<std::int32_t>(i));
  }

  bool empty() const { return values_.size() == 1; }

  // Calls visit(length, value) for each string that `text` begins with, the shortest first.
  template <typename Visit>
  void prefixes(std::string_view text, const Visit& visit) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::uint32_t* child = next_.find(edge(node, text[i]));
      if (child == nullptr) return;
      node = *child;
      if (values_[node] != kNone) visit(i + 1, values_[node]);
    }
  }

 private:
  static std::uint64_t edge(std::uint32_t node, char byte) {
    return std::uint64_t{node} << 8 | static_cast<unsigned char>(byte);
  }

  void add(std::string_view string, std::int32_t value) {
    if (string.empty()) return;
    std::uint32_t node = 0;
    for (const char c : string) {
      const std::uint64_t key = edge(node, c);
      if (const std::uint32_t* child = next_.find(key)) {
        node = *child;
        continue;
      }
      node = static_cast<std::uint32_t>(values_.size());
      next_.insert(key, node);
      values_.push_back(kNone);
    }
    values_[node] = value;
  }

  FlatMap<std::uint32_t> next_;
  std::vector<std::int32_t> values_;  // of each node
};

}  // namespace narrows
