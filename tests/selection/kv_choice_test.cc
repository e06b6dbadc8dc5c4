#include "selection/kv_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace narrows {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(KeepTop, KeepsTheWindowAndTheLargest) {
  const std::vector<float> score = {3, 9, 1, 9, 5, 0, 0, 0};
  EXPECT_THAT(keep_top(score, 3, 5), ElementsAre(1, 3, 5, 6, 7));
  EXPECT_THAT(keep_top(score, 3, 4), ElementsAre(1, 5, 6, 7));  // of equals the earlier
  EXPECT_THAT(keep_top(score, 3, 3), ElementsAre(5, 6, 7));
  EXPECT_THAT(keep_top(score, 3, 100), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(keep_top(score, 100, 2), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(keep_top({}, 3, 3), IsEmpty());
}

TEST(KeepEnds, KeepsSinksAndTheLatest) {
  EXPECT_THAT(keep_ends(10, 2, 5), ElementsAre(0, 1, 7, 8, 9));
  EXPECT_THAT(keep_ends(3, 4, 5), ElementsAre(0, 1, 2));
  EXPECT_THAT(keep_ends(10, 4, 2), ElementsAre(0, 1));
}

TEST(PoolMax, TakesNeighbours) {
  const std::vector<float> score = {1, 0, 0, 5, 0, 0, 2};
  EXPECT_THAT(pool_max(score, 3), ElementsAre(1, 1, 5, 5, 5, 2, 2));
}

TEST(AllocateJointly, FollowsWorthPerByte) {
  // Of 8 entries of 10 bytes: two of each head first, then the best steps of two.
  const std::vector<HeadClaim> heads = {{{1, 2, 3, 4, 5, 6}, 10}, {{100, 90, 80, 70, 1, 1}, 10}, {{0, 0, 0, 0}, 10}};
  EXPECT_THAT(allocate_jointly(heads, 100, 2, 2), ElementsAre(4, 4, 2));
  EXPECT_THAT(allocate_jointly(heads, 60, 2, 2), ElementsAre(2, 2, 2));
  EXPECT_THAT(allocate_jointly(heads, 1000, 2, 2), ElementsAre(6, 6, 4));
  // What costs more per entry must be worth more.
  const std::vector<HeadClaim> dear = {{{8, 8, 8, 8}, 40}, {{3, 3, 3, 3}, 10}};
  EXPECT_THAT(allocate_jointly(dear, 40, 0, 2), ElementsAre(0, 4));
}

TEST(AllocateWithin, DropsTheLeastAsLongAsTheErrorAllows) {
  const std::vector<HeadClaim> heads = {{{1, 2, 3, 4, 5, 6}, 10}, {{100, 90, 80, 70, 1, 1}, 10}, {{0, 0, 0, 0}, 10}};
  EXPECT_THAT(allocate_within(heads, 0, 2, 2), ElementsAre(6, 6, 2));
  EXPECT_THAT(allocate_within(heads, 4, 2, 2), ElementsAre(6, 4, 2));   // 1 + 1, then 1 + 2 is too much
  EXPECT_THAT(allocate_within(heads, 5, 2, 2), ElementsAre(4, 4, 2));
  EXPECT_THAT(allocate_within(heads, 1e9, 2, 2), ElementsAre(2, 2, 2));
}

TEST(ProbeRule, ThinsOutWithAgeAndNeverTakesBack) {
  const ProbeRule rule{8};
  for (std::int64_t next = 1; next <= 600; ++next) {
    const std::vector<std::int64_t> kept = rule.positions(next, next);
    EXPECT_LE(std::ssize(kept), rule.most(next)) << next;
    std::int64_t latest = 0;
    for (const std::int64_t p : kept) {
      EXPECT_TRUE(next == p + 1 || rule.keeps(p, next - 1)) << p << ", " << next;
      latest += next - p <= 8;
    }
    EXPECT_EQ(latest, std::min<std::int64_t>(next, 8));
  }
  EXPECT_THAT(rule.positions(40, 40), ElementsAre(0, 8, 12, 16, 20, 24, 26, 28, 30, 32, 33, 34, 35, 36, 37, 38, 39));
  EXPECT_THAT(rule.positions(20, 40), ElementsAre(0, 8, 12, 16));
  EXPECT_THAT(ProbeRule{}.positions(40, 40), IsEmpty());
  EXPECT_EQ(ProbeRule{}.most(40), 0);
  EXPECT_FALSE(rule.keeps(0, INT64_MAX));
}

TEST(MostSimilar, NeedsACosineAbove) {
  const std::vector<float> kept = {1, 0, 0, 2, 3, 3}, dropped = {5, 0.1f, 0.1f, 4, -1, 0, 0, 0};
  EXPECT_THAT(most_similar(dropped, kept, 2, 0.8f), ElementsAre(0, 1, -1, -1));
  EXPECT_THAT(most_similar({}, kept, 2, 0.8f), IsEmpty());
  EXPECT_THAT(most_similar(dropped, {}, 2, 0.8f), ElementsAre(-1, -1, -1, -1));
}

TEST(KvSchedule, KeepsWithinTheBudgetAtEveryLength) {
  for (const double budget : {0.75, 0.5, 0.25, 0.125, 0.03}) {
    const KvSchedule schedule{budget, 1000, 1004, 70, {64}, 80};
    std::int64_t at = schedule.next(0, 0), held = 0;
    ASSERT_LT(at, 100000) << budget;
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(at % 64, 0);
      const std::int64_t room = schedule.room(at);
      ASSERT_GE(room, 80 * 1004);
      held = room / 1004 / 16 * 16 * 1004;
      const std::int64_t following = schedule.next(at, held);
      for (std::int64_t length = at + 1; length <= following; ++length) {
        const std::int64_t entries = held / 1004 + (length - at + 15) / 16 * 16;
        ASSERT_LE(static_cast<double>(entries * 1004 + schedule.probes.most(following) * 70), budget * static_cast<double>(length * 1000))
            << "budget " << budget << ", length " << length << ", compressed at " << at;
      }
      at = following;
    }
  }
}

TEST(KvSchedule, WaitsForRoom) {
  // At a quarter, 80 entries and a block of 64 fit from 576 positions on.
  const KvSchedule schedule{0.25, 1000, 1000, 0, {}, 80};
  EXPECT_EQ(schedule.next(0, 0), 576);
}

}  // namespace
}  // namespace narrows
