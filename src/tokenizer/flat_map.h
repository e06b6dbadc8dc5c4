// A hash map from 64-bit keys to small values, for tables that are built once and then only read: open
// addressing, linear probing, half full at most.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace narrows {

template <typename Value>
class FlatMap {
 public:
  // Room for `count` entries; the map never grows.
  explicit FlatMap(std::size_t count = 0)
      : slots_(std::bit_ceil(2 * count + 2)), shift_(64 - std::countr_zero(slots_.size())) {}

  // Returns false, and changes nothing, if the key is there already. `key` must not be kEmpty.
  bool insert(std::uint64_t key, Value value) {
    std::size_t i = home(key);
    for (; slots_[i].key != kEmpty; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return false;
    }
    slots_[i] = {key, value};
    return true;
  }

  const Value* find(std::uint64_t key) const {
    for (std::size_t i = home(key); slots_[i].key != kEmpty; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return &slots_[i].value;
    }
    return nullptr;
  }

  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    Value value{};
  };
  std::size_t home(std::uint64_t key) const {
    key = (key ^ (key >> 32)) * 0x9E3779B97F4A7C15u;  // Fibonacci hashing: the high bits are the mixed ones
    return static_cast<std::size_t>(key >> shift_);
  }

  std::vector<Slot> slots_;
  int shift_;
};

}  // namespace narrows
