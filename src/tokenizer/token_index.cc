#include "tokenizer/token_index.h"

#include <bit>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace narrows {

std::pair<TokenId, TokenId> TokenIndex::build(std::span<const std::string> spellings) {
  spellings_ = spellings;
  slots_.assign(std::bit_ceil(2 * spellings.size() + 1), Slot{});
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t id = 0; id < spellings.size(); ++id) {
    const std::uint64_t hash = XXH3_64bits(spellings[id].data(), spellings[id].size());
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    std::size_t i = hash & mask;
    for (; slots_[i].id != kNoToken; i = (i + 1) & mask) {
      if (slots_[i].tag == tag && spellings[static_cast<std::size_t>(slots_[i].id)] == spellings[id]) {
        return {slots_[i].id, static_cast<TokenId>(id)};
      }
    }
    slots_[i] = {tag, static_cast<TokenId>(id)};
  }
  return {kNoToken, kNoToken};
}

TokenId TokenIndex::find(std::string_view spelling) const {
  if (slots_.empty()) return kNoToken;
  const std::size_t mask = slots_.size() - 1;
  const std::uint64_t hash = XXH3_64bits(spelling.data(), spelling.size());
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t i = hash & mask; slots_[i].id != kNoToken; i = (i + 1) & mask) {
    if (slots_[i].tag == tag && spellings_[static_cast<std::size_t>(slots_[i].id)] == spelling) {
      return slots_[i].id;
    }
  }
  return kNoToken;
}

}  // namespace narrows
