#include "base/slab_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>

namespace narrows {
namespace {

TEST(SlabPool, BlocksDoNotOverlap) {
  SlabPool pool;
  struct Block {
    std::byte* data;
    std::size_t size;
    int fill;
  };
  std::vector<Block> blocks;
  const std::size_t sizes[] = {1, 64, 100, 98304, (std::size_t{4} << 20) + 1};
  for (int i = 0; i < 200; ++i) {
    const std::size_t size = sizes[i % 40 == 0 ? 4 : i % 4];
    blocks.push_back({pool.take(size), size, i});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back().data) % kCacheLine, 0u);
    std::memset(blocks.back().data, i, size);
  }
  for (const Block& block : blocks)
    for (const std::size_t at : {std::size_t{0}, block.size / 2, block.size - 1})
      EXPECT_EQ(static_cast<std::uint8_t>(block.data[at]), static_cast<std::uint8_t>(block.fill));
  for (const Block& block : blocks) pool.give(block.data, block.size);
}

TEST(SlabPool, UsesBlocksAgain) {
  SlabPool pool;
  std::byte* kept = pool.take(1000);
  std::set<std::byte*> seen;
  for (int i = 0; i < 10000; ++i) {
    std::byte* block = pool.take(100000);
    seen.insert(block);
    pool.give(block, 100000);
  }
  EXPECT_EQ(seen.size(), 1u);
  pool.give(kept, 1000);
  std::byte* block = pool.take(1000);  // after its slabs have gone
  std::memset(block, 1, 1000);
  pool.give(block, 1000);
}

}  // namespace
}  // namespace narrows
