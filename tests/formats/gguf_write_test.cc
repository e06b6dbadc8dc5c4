#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <limits>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/temp_dir.h"

namespace narrows {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Shape = std::vector<std::int64_t>;

std::vector<std::byte> pattern(std::size_t n, int seed) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(seed + i * 7);
  return bytes;
}

TEST(GgufWrite, RoundTrips) {
  for (const std::uint32_t alignment : {8u, 32u, 128u}) {
    const TempDir dir;
    GgufWriter writer(alignment);
    const std::vector<std::pair<std::string, GgufEntry>> entries = {
        {"u8", {GgufType::U8, std::uint64_t{255}}},
        {"i8", {GgufType::I8, std::int64_t{-128}}},
        {"u16", {GgufType::U16, std::uint64_t{65535}}},
        {"i16", {GgufType::I16, std::int64_t{-32768}}},
        {"u32", {GgufType::U32, std::uint64_t{4294967295}}},
        {"i32", {GgufType::I32, std::int64_t{-2147483648}}},
        {"u64", {GgufType::U64, std::numeric_limits<std::uint64_t>::max()}},
        {"i64", {GgufType::I64, std::numeric_limits<std::int64_t>::min()}},
        {"f32", {GgufType::F32, 0.25}},
        {"f64", {GgufType::F64, 1e300}},
        {"inf", {GgufType::F32, std::numeric_limits<double>::infinity()}},
        {"bool", {GgufType::Bool, true}},
        {"string", {GgufType::String, std::string("a\0b", 3)}},
        {"strings", {GgufType::Array, GgufArray{GgufType::String, {"x", "", "zz"}, {}, {}}}},
        {"bytes", {GgufType::Array, GgufArray{GgufType::U8, {}, {0, 255}, {}}}},
        {"bools", {GgufType::Array, GgufArray{GgufType::Bool, {}, {1, 0}, {}}}},
        {"floats", {GgufType::Array, GgufArray{GgufType::F32, {}, {}, {0.5, -2}}}},
        {"empty", {GgufType::Array, GgufArray{GgufType::I32, {}, {}, {}}}},
    };
    for (const auto& [key, entry] : entries) writer.set(key, entry);
    writer.set_u32("twice", 1);
    writer.set_u32("twice", 2);
    writer.set_f32("f", 1.5f);
    writer.set_string("s", "text");
    writer.add_tensor("a", DType::F32, Shape{5});
    writer.add_tensor("b", DType::Q4_K, Shape{256, 2, 1, 3});
    writer.add_tensor("c", DType::I8, Shape{3, 1});
    const std::vector<std::vector<std::byte>> data = {pattern(20, 1), pattern(864, 2), pattern(3, 3)};
    writer.write(dir.file("m.gguf"), [&](std::size_t i, auto&& sink) {
      const std::span<const std::byte> all = data[i];
      sink(all.first(3));  // in pieces
      sink(all.subspan(3));
    });

    const GgufFile f = GgufFile::open(dir.file("m.gguf"));
    EXPECT_EQ(f.version(), 3u);
    EXPECT_EQ(f.file_bytes() % alignment, 0u);
    EXPECT_EQ(f.find_int("general.alignment").value_or(32), alignment);
    for (const auto& [key, entry] : entries) {
      const GgufEntry* read = f.find(key);
      ASSERT_NE(read, nullptr) << key;
      EXPECT_EQ(read->type, entry.type) << key;
      if (const auto* array = std::get_if<GgufArray>(&entry.value)) {
        EXPECT_EQ(f.get_array(key).element, array->element);
        EXPECT_EQ(f.get_array(key).strings, array->strings);
        EXPECT_EQ(f.get_array(key).integers, array->integers);
        EXPECT_EQ(f.get_array(key).floats, array->floats);
      } else if (const auto* text = std::get_if<std::string>(&entry.value)) {
        EXPECT_EQ(f.get_string(key), *text);
      } else if (const auto* real = std::get_if<double>(&entry.value)) {
        EXPECT_EQ(f.get_float(key), *real);
      } else if (const auto* u = std::get_if<std::uint64_t>(&entry.value)) {
        EXPECT_EQ(std::get<std::uint64_t>(read->value), *u);
      } else if (const auto* i = std::get_if<std::int64_t>(&entry.value)) {
        EXPECT_EQ(std::get<std::int64_t>(read->value), *i);
      } else {
        EXPECT_EQ(f.find_bool(key), true);
      }
    }
    EXPECT_EQ(f.get_int("twice"), 2);
    EXPECT_EQ(f.get_float("f"), 1.5);
    EXPECT_EQ(f.get_string("s"), "text");
    ASSERT_EQ(f.tensors().size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const GgufTensor& t = f.tensors()[i];
      EXPECT_EQ(std::vector(t.data, t.data + t.bytes), data[i]);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.data) % alignment, 0u);
    }
    EXPECT_EQ(f.tensor("b").dims, 4);
    EXPECT_THAT(f.tensor("b").shape, ElementsAre(256, 2, 1, 3));
    EXPECT_EQ(f.tensor("c").dims, 2);
  }
}

TEST(GgufWrite, RefusesBadMetadata) {
  GgufWriter w;
  const auto set = [&](GgufEntry entry) { return [&w, entry] { w.set("k", entry); }; };
  EXPECT_THAT(set({GgufType::U8, std::uint64_t{256}}), ThrowsMessage<Error>("key k: 256 does not fit in u8"));
  EXPECT_THAT(set({GgufType::U32, std::int64_t{-1}}), ThrowsMessage<Error>("key k: -1 does not fit in u32"));
  EXPECT_THAT(set({GgufType::F32, 1e300}), ThrowsMessage<Error>("key k: 1e+300 does not fit in f32"));
  EXPECT_THAT(set({GgufType::String, true}),
              ThrowsMessage<Error>("key k: expected a value of type string, found one of type bool"));
  EXPECT_THAT(set({GgufType::F32, std::uint64_t{1}}),
              ThrowsMessage<Error>("key k: an integer cannot be of type f32"));
  EXPECT_THAT(set({GgufType::U8, 1.0}), ThrowsMessage<Error>("key k: a real number cannot be of type u8"));
  EXPECT_THAT(set({GgufType::Array, GgufArray{GgufType::U8, {"x"}, {}, {}}}),
              ThrowsMessage<Error>("key k: expected an array of u8 only"));
  EXPECT_THAT(set({GgufType::Array, GgufArray{GgufType::I8, {}, {128}, {}}}),
              ThrowsMessage<Error>("key k: 128 does not fit in i8"));
  EXPECT_THAT([&] { w.set_u32("", 1); },
              ThrowsMessage<Error>(HasSubstr("expected 1 to 65535 bytes, found 0")));
  EXPECT_THAT([&] { w.set_u32("general.alignment", 64); },
              ThrowsMessage<Error>("key general.alignment: expected 32 as u32, the alignment of the writer"));
  EXPECT_THAT([] { GgufWriter bad(48); },
              ThrowsMessage<Error>("alignment 48: expected a power of two of at least 8"));
}

TEST(GgufWrite, RefusesBadTensors) {
  GgufWriter w;
  w.add_tensor("t", DType::F32, Shape{4});
  const auto add = [&](std::string name, DType type, Shape shape) {
    return [&w, name, type, shape] { w.add_tensor(name, type, shape); };
  };
  EXPECT_THAT(add("t", DType::F32, {4}), ThrowsMessage<Error>("tensor t: added twice"));
  EXPECT_THAT(add("", DType::F32, {4}),
              ThrowsMessage<Error>(HasSubstr("expected a name of 1 to 64 bytes, found 0")));
  EXPECT_THAT(add("u", DType::F32, {}),
              ThrowsMessage<Error>("tensor u: expected 1 to 4 dimensions, found 0"));
  EXPECT_THAT(add("u", DType::F32, {1, 1, 1, 1, 1}), ThrowsMessage<Error>(HasSubstr("found 5")));
  EXPECT_THAT(add("u", DType::F32, {4, 0}),
              ThrowsMessage<Error>("tensor u: dimension 1: expected a size of at least 1, found 0"));
  EXPECT_THAT(
      add("u", DType::Q8_0, {40}),
      ThrowsMessage<Error>("tensor u: expected rows of a multiple of 32 elements for type Q8_0, found 40"));
}

TEST(GgufWrite, NothingIsLeftOfAFailure) {
  const TempDir dir;
  const std::string path = dir.file("m.gguf");
  GgufWriter w;
  w.add_tensor("t", DType::F32, Shape{4});
  const auto deliver = [&](std::size_t n) {
    return [&w, &path, n] { w.write(path, [&](std::size_t, auto&& sink) { sink(pattern(n, 0)); }); };
  };
  EXPECT_THAT(deliver(12), ThrowsMessage<Error>(path + ": tensor t: expected 16 bytes of data, found 12"));
  EXPECT_THAT(deliver(17), ThrowsMessage<Error>(path + ": tensor t: expected 16 bytes of data, found more"));
  EXPECT_THAT([&] { w.write(path, [](std::size_t, auto&&) { throw Error("producer"); }); },
              ThrowsMessage<Error>("producer"));
  EXPECT_TRUE(dir.empty());
  deliver(16)();
  EXPECT_EQ(GgufFile::open(path).tensors().size(), 1u);
  EXPECT_THAT([&] { w.write(dir.file("none/m.gguf"), [](std::size_t, auto&&) {}); },
              ThrowsMessage<Error>(HasSubstr("cannot create")));
}

// A limit on the size of files stands for a full disk.
TEST(GgufWrite, AFullDiskIsAnError) {
  const TempDir dir;
  const std::string path = dir.file("m.gguf");
  GgufWriter w;
  w.add_tensor("t", DType::I8, Shape{1 << 20});
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 16, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    w.write(path, [&](std::size_t, auto&& sink) { sink(pattern(1 << 20, 0)); });
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, old_handler);
  EXPECT_EQ(message, path + ": cannot write: File too large");
  EXPECT_TRUE(dir.empty());
}

}  // namespace
}  // namespace narrows
