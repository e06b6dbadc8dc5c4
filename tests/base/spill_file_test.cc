// Bytes kept on disk for a while.
#include "base/spill_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "formats/temp_dir.h"
#include "narrows/error.h"

namespace narrows {
namespace {

std::vector<std::byte> some_bytes(std::size_t n, int first) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return bytes;
}

TEST(SpillFile, GivesBackWhatItWasGiven) {
  const TempDir dir;
  SpillFile file(dir.file("out"));
  EXPECT_TRUE(dir.empty()) << "nothing is left where others can see it";
  const auto a = some_bytes(100, 3), b = some_bytes(70000, 9);
  const std::int64_t at_a = file.add(a), nothing = file.add({}), at_b = file.add(b);
  EXPECT_EQ(at_a, 0);
  EXPECT_EQ(nothing, 100);
  EXPECT_EQ(at_b, 100);
  std::vector<std::byte> found(70000);
  file.read(at_b, found);
  EXPECT_EQ(found, b);
  found.resize(100);
  file.read(at_a, found);
  EXPECT_EQ(found, a);
  EXPECT_THAT([&] { file.read(at_b + 69950, found); }, testing::ThrowsMessage<Error>(testing::HasSubstr("too short")));
}

TEST(SpillFile, FoldersThatAreNotThere) {
  const TempDir dir;
  EXPECT_THAT([&] { SpillFile file(dir.file("none/out")); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("none/out: cannot make a temporary file beside it: No such file")));
}

}  // namespace
}  // namespace narrows
