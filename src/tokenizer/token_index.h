// Spelling to token id: a compact open-addressing table over spellings that are stored elsewhere.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "narrows/model.h"

namespace narrows {


class TokenIndex {
 public:
  // Indexes the spellings, which must outlive the index and stay where they are (a moved-from vector's
  // elements do). Returns the first pair of ids with the same spelling, {kNoToken, kNoToken} if all differ.
  std::pair<TokenId, TokenId> build(std::span<const std::string> spellings);

  TokenId find(std::string_view spelling) const;  // kNoToken if absent

 private:
  struct Slot {
    std::uint32_t tag = 0;  // more bits of the hash: spares nearly all comparisons with another spelling
    TokenId id = kNoToken;
  };
  std::span<const std::string> spellings_;
  std::vector<Slot> slots_;
};

}  // namespace narrows
