#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <vector>

namespace narrows {
namespace {

TEST(ShareOf, CoversEveryItemOnce) {
  for (const std::int64_t items : {0, 1, 2, 7, 16, 17, 100, 1023})
    for (const int parts : {1, 2, 3, 4, 7, 16, 64})
      for (const std::int64_t grain : {1, 2, 16, 100}) {
        std::int64_t next = 0;
        for (int part = 0; part < parts; ++part) {
          const Range range = share_of(items, part, parts, grain);
          EXPECT_EQ(range.begin, next);
          EXPECT_GE(range.end, range.begin);
          EXPECT_TRUE(range.end == items || range.end % grain == 0);
          // Even to one grain.
          const std::int64_t grains = (items + grain - 1) / grain;
          EXPECT_LE(range.end - range.begin, (grains + parts - 1) / parts * grain);
          next = range.end;
        }
        EXPECT_EQ(next, items);
      }
}

class Pool : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  // More threads than cores take turns, slowly.
  int runs() const { return size() <= ThreadPool::default_threads() ? 10000 : 300; }
};
INSTANTIATE_TEST_SUITE_P(Sizes, Pool, testing::Values(1, 2, 3, 4, 8, 17));

TEST_P(Pool, SharesEveryItemOnce) {
  ThreadPool pool(size());
  for (const std::int64_t items : {0, 1, 3, 16, 17, 1000})
    for (const std::int64_t grain : {1, 4, 16, 2000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(items));
      pool.share(items, grain, [&](int thread, Range range) {
        EXPECT_TRUE(thread >= 0 && thread < size());
        EXPECT_TRUE(range.begin % grain == 0 && range.begin < range.end);
        EXPECT_TRUE(range.end % grain == 0 || range.end == items);
        for (std::int64_t i = range.begin; i < range.end; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      for (const auto& count : seen) EXPECT_EQ(count, 1);
    }
}

TEST_P(Pool, RunsEveryThreadOnce) {
  ThreadPool pool(size());
  ASSERT_EQ(pool.size(), size());
  std::vector<int> counts(static_cast<std::size_t>(size()));  // not atomic: each has its own
  std::vector<std::thread::id> ids(counts.size());
  for (int run = 0; run < runs(); ++run)
    pool.run([&](int thread) {
      ++counts[static_cast<std::size_t>(thread)];
      ids[static_cast<std::size_t>(thread)] = std::this_thread::get_id();
    });
  for (const int count : counts) EXPECT_EQ(count, runs());
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  for (std::size_t i = 0; i < ids.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(ids[i], ids[j]);
}

TEST_P(Pool, BarrierOrdersWrites) {
  ThreadPool pool(size());
  const std::size_t n = static_cast<std::size_t>(size());
  std::vector<int> values(n);
  std::vector<long> wrong(n);
  const int rounds = runs() / 10;
  pool.run([&](int thread) {
    const std::size_t me = static_cast<std::size_t>(thread);
    for (int round = 0; round < rounds; ++round) {
      values[me] = round;
      pool.barrier();
      for (const int value : values) wrong[me] += value != round;
      pool.barrier();
    }
  });
  EXPECT_EQ(std::accumulate(wrong.begin(), wrong.end(), 0L), 0);
}

TEST_P(Pool, WakesAfterIdling) {
  ThreadPool pool(size());
  std::atomic<int> count{0};
  for (int run = 0; run < 5; ++run) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    pool.run([&](int) { ++count; });
  }
  EXPECT_EQ(count, 5 * size());
}

TEST_P(Pool, StartsAndEnds) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(size());
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(size());
    std::atomic<int> count{0};
    pool.run([&](int) { ++count; });
    EXPECT_EQ(count, size());
  }
}

TEST(ThreadPool, CountsTheCores) {
  EXPECT_GE(ThreadPool::default_threads(), 1);
  EXPECT_EQ(ThreadPool(0).size(), ThreadPool::default_threads());
  EXPECT_EQ(ThreadPool(-1).size(), ThreadPool::default_threads());
}

}  // namespace
}  // namespace narrows
