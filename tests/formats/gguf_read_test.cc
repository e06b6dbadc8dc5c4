#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/gguf_bytes.h"
#include "formats/temp_dir.h"

namespace narrows {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFloats(128, '\x3e');  // 32 floats

GgufBytes one_tensor() { return GgufBytes().tensor("w", {32}, 0, 0).data(kFloats); }

class GgufRead : public ::testing::Test {
 protected:
  GgufFile open(const GgufBytes& bytes) { return GgufFile::open(dir_.write("model.gguf", bytes.str())); }

  // The message on opening `bytes`, without the path that it must begin with.
  std::string error_of(const std::string& bytes) { return error_at(dir_.write("bad.gguf", bytes)); }
  std::string error_of(const GgufBytes& bytes) { return error_of(bytes.str()); }
  static std::string error_at(const std::string& path) {
    try {
      GgufFile::open(path);
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(path + ": ")) << message;
      EXPECT_THAT(message, Not(HasSubstr("\n")));
      return message.substr(std::min(message.size(), path.size() + 2));
    }
    return "no error";
  }

  TempDir dir_;
};

TEST_F(GgufRead, EveryKindOfValue) {
  using B = GgufBytes;
  for (const std::uint32_t version : {2u, 3u}) {
    GgufBytes bytes = one_tensor();
    bytes.version = version;
    bytes.entry("u8", 0, B::raw<std::uint8_t>(200)).entry("i8", 1, B::raw<std::int8_t>(-3));
    bytes.entry("u16", 2, B::raw<std::uint16_t>(60000)).entry("i16", 3, B::raw<std::int16_t>(-300));
    bytes.entry("u32", 4, B::raw(4000000000u)).entry("i32", 5, B::raw(-70000));
    bytes.entry("f32", 6, B::raw(0.5f))
        .entry("bool", 7, B::raw<std::uint8_t>(1))
        .string("string", "héllo\0x");
    bytes.entry("u64", 10, B::raw(~std::uint64_t{0})).entry("i64", 11, B::raw(std::int64_t{-5}));
    bytes.entry("f64", 12, B::raw(1e300));
    bytes.array("strings", 8, 2, B::text("a") + B::text(""));
    bytes.array("i16s", 3, 2, B::raw<std::int16_t>(-1) + B::raw<std::int16_t>(7));
    bytes.array("f32s", 6, 1, B::raw(2.5f))
        .array("bools", 7, 2, std::string("\1\0", 2))
        .array("none", 4, 0, "");
    const GgufFile f = open(bytes);

    EXPECT_EQ(f.version(), version);
    EXPECT_EQ(f.get_int("u8"), 200);
    EXPECT_EQ(f.get_int("i8"), -3);
    EXPECT_EQ(f.get_int("u16"), 60000);
    EXPECT_EQ(f.get_int("i16"), -300);
    EXPECT_EQ(f.get_int("u32"), 4000000000);
    EXPECT_EQ(f.get_int("i32"), -70000);
    EXPECT_EQ(f.get_int("i64"), -5);
    EXPECT_EQ(f.get_float("f32"), 0.5);
    EXPECT_EQ(f.get_float("f64"), 1e300);
    EXPECT_EQ(f.get_float("i8"), -3.0);
    EXPECT_EQ(f.get_float("u64"), 0x1p64);
    EXPECT_EQ(f.find_bool("bool"), true);
    EXPECT_EQ(f.get_string("string"), "héllo");
    EXPECT_EQ(f.find_string("string"), "héllo");
    EXPECT_THAT(f.get_array("strings").strings, ElementsAre("a", ""));
    EXPECT_THAT(f.get_array("i16s").integers, ElementsAre(-1, 7));
    EXPECT_THAT(f.get_array("f32s").floats, ElementsAre(2.5));
    EXPECT_THAT(f.get_array("bools").integers, ElementsAre(1, 0));
    EXPECT_EQ(f.get_array("none").size(), 0u);
    EXPECT_EQ(f.metadata().at("i16").type, GgufType::I16);

    EXPECT_FALSE(f.has("absent"));
    EXPECT_EQ(f.find("absent"), nullptr);
    EXPECT_EQ(f.find_int("absent"), std::nullopt);
    EXPECT_EQ(f.find_float("absent"), std::nullopt);
    EXPECT_EQ(f.find_bool("absent"), std::nullopt);
    EXPECT_EQ(f.find_string("absent"), std::nullopt);
    EXPECT_EQ(f.find_array("absent"), nullptr);
    const auto message = [&](auto&& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        return std::string(error.what()).substr(f.path().size() + 2);
      }
      return "no error";
    };
    EXPECT_EQ(message([&] { f.get_int("absent"); }), "key absent is missing");
    EXPECT_EQ(message([&] { f.get_float("absent"); }), "key absent is missing");
    EXPECT_EQ(message([&] { f.get_string("absent"); }), "key absent is missing");
    EXPECT_EQ(message([&] { f.get_array("absent"); }), "key absent is missing");
    EXPECT_EQ(message([&] { f.tensor("absent"); }), "tensor absent is missing");
    EXPECT_EQ(message([&] { f.find_int("f32"); }), "key f32: expected an integer, found f32");
    EXPECT_EQ(message([&] { f.find_int("u64"); }),
              "key u64: expected an integer below 2^63, found 18446744073709551615");
    EXPECT_EQ(message([&] { f.find_float("string"); }), "key string: expected a number, found string");
    EXPECT_EQ(message([&] { f.find_bool("u8"); }), "key u8: expected a bool, found u8");
    EXPECT_EQ(message([&] { f.find_string("u8"); }), "key u8: expected a string, found u8");
    EXPECT_EQ(message([&] { f.get_string("u8"); }), "key u8: expected a string, found u8");
    EXPECT_EQ(message([&] { f.find_array("bool"); }), "key bool: expected an array, found bool");
  }
}

TEST_F(GgufRead, Tensors) {
  GgufBytes bytes;
  bytes.alignment = 64;
  bytes.u32("general.alignment", 64).tensor("a", {32, 2}, 8, 128).tensor("b", {3, 1, 2, 1}, 0, 0);
  std::string data(196, '\0');
  data[0] = '\0', data[2] = '\x80', data[3] = '\x3f';
  bytes.data(data);
  const GgufFile f = open(bytes);
  ASSERT_EQ(f.tensors().size(), 2u);
  const GgufTensor &a = f.tensor("a"), &b = f.tensor("b");
  EXPECT_EQ(&a, &f.tensors()[0]);
  EXPECT_EQ(a.dtype, DType::Q8_0);
  EXPECT_EQ(a.bytes, 68u);
  EXPECT_EQ(a.dims, 2);
  EXPECT_THAT(a.shape, ElementsAre(32, 2, 1, 1));
  EXPECT_EQ(a.data - b.data, 128);
  EXPECT_EQ(b.dims, 4);
  EXPECT_EQ(b.elements(), 6);
  EXPECT_EQ(b.bytes, 24u);
  float first;
  std::memcpy(&first, b.data, 4);
  EXPECT_EQ(first, 1.0f);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data) % 64, 0u);
  EXPECT_EQ(f.file_bytes(), bytes.str().size());
  EXPECT_EQ(f.find_tensor("c"), nullptr);
}

TEST_F(GgufRead, AFileWithoutTensorsMayEndUnpadded) {
  GgufBytes bytes = GgufBytes().string("k", "v");
  bytes.cut_padding = true;
  EXPECT_EQ(open(bytes).get_string("k"), "v");
  EXPECT_TRUE(open(GgufBytes()).tensors().empty());
}

TEST_F(GgufRead, StaysValidWhenMoved) {
  GgufFile a = open(one_tensor());
  const GgufFile b = std::move(a);
  EXPECT_EQ(static_cast<char>(b.tensor("w").data[5]), '\x3e');
}

TEST_F(GgufRead, RefusesOtherFiles) {
  EXPECT_EQ(error_of("PK\3\4 some archive"),
            "not a GGUF file: expected it to begin with GGUF, found the bytes 50 4b 03 04");
  EXPECT_EQ(error_of(""), "the file is empty");
  EXPECT_EQ(error_of("GG"),
            "the file is truncated: expected 4 bytes of the GGUF header at offset 0, found 2");
  EXPECT_THAT(error_at(dir_.file("none.gguf")), HasSubstr("cannot open"));

  GgufBytes swapped = one_tensor();
  swapped.magic = 0x47475546;
  EXPECT_THAT(error_of(swapped), HasSubstr("big-endian"));
  GgufBytes big = one_tensor();
  big.version = 0x03000000;
  EXPECT_THAT(error_of(big), HasSubstr("big-endian"));
  GgufBytes old = one_tensor();
  old.version = 1;
  EXPECT_THAT(error_of(old), HasSubstr("version 1 is obsolete"));
  old.version = 4;
  EXPECT_EQ(error_of(old), "expected GGUF version 2 or 3, found 4");
  old.version = 0;
  EXPECT_EQ(error_of(old), "expected GGUF version 2 or 3, found 0");
}

TEST_F(GgufRead, RefusesEveryTruncation) {
  const std::string whole =
      one_tensor().u32("a", 1).string("b", "text").array("c", 8, 1, GgufBytes::text("d")).str();
  for (std::size_t n = 1; n < whole.size(); ++n) EXPECT_NE(error_of(whole.substr(0, n)), "no error") << n;
  EXPECT_EQ(error_of(whole), "no error");
}

TEST_F(GgufRead, RefusesCountsBeyondTheFile) {
  for (const std::uint64_t n : {std::uint64_t{9}, std::uint64_t{1} << 40, ~std::uint64_t{1}}) {
    GgufBytes tensors = one_tensor(), entries = one_tensor();
    tensors.extra_tensors = entries.extra_entries = n;
    EXPECT_NE(error_of(tensors), "no error");
    EXPECT_NE(error_of(entries), "no error");
    for (const std::uint32_t type : {0u, 4u, 6u, 7u, 8u, 12u})
      EXPECT_THAT(error_of(GgufBytes().array("big", type, std::max(n, n + 256), "")), HasSubstr("key big"));
  }
  EXPECT_THAT(error_of(GgufBytes().entry("s", 8, GgufBytes::raw(~std::uint64_t{0}))),
              HasSubstr("the file is truncated: expected 18446744073709551615 bytes of key s"));
}

TEST_F(GgufRead, RefusesBadMetadata) {
  EXPECT_EQ(error_of(GgufBytes().u32("a", 1).u32("a", 2)), "key a: found twice");
  EXPECT_EQ(error_of(GgufBytes().u32("", 1)), "metadata entry 0: expected a key, found an empty one");
  EXPECT_THAT(error_of(GgufBytes().u32(std::string(70000, 'k'), 1)),
              HasSubstr("expected at most 65535 bytes"));
  EXPECT_EQ(error_of(GgufBytes().entry("t", 13, "xxxx")),
            "key t: expected a value type of 0 to 12, found 13");
  EXPECT_EQ(error_of(GgufBytes().entry("b", 7, "\2")), "key b: expected a bool of 0 or 1, found 2");
  EXPECT_EQ(error_of(GgufBytes().array("b", 7, 1, "\3")), "key b: expected a bool of 0 or 1, found 3");
  EXPECT_EQ(error_of(GgufBytes().array("a", 9, 1, "")), "key a: arrays of arrays are not supported");
  EXPECT_EQ(error_of(GgufBytes().array("a", 99, 1, "")),
            "key a: expected an element type of 0 to 12, found 99");
  EXPECT_EQ(error_of(GgufBytes().array("a", 10, 1, std::string(8, '\xff'))),
            "key a: element 0: expected at most 2^63 - 1, found 18446744073709551615");
  EXPECT_EQ(error_of(GgufBytes().u32("a\nb\x1b[", 1).u32("a\nb\x1b[", 1)), "key a\\x0ab\\x1b[: found twice");
  for (const std::uint32_t a : {0u, 1u, 4u, 24u, 33u})
    EXPECT_THAT(error_of(GgufBytes().u32("general.alignment", a)),
                HasSubstr("expected a power of two of at least 8"));
  EXPECT_EQ(error_of(GgufBytes().string("general.alignment", "x")),
            "key general.alignment: expected a u32, found string");
}

TEST_F(GgufRead, RefusesBadTensors) {
  const auto tensor = [&](std::vector<std::int64_t> shape, std::uint32_t type, std::uint64_t offset) {
    return error_of(GgufBytes().tensor("w", shape, type, offset).data(kFloats));
  };
  constexpr std::int64_t kBig = std::int64_t{1} << 32;
  EXPECT_EQ(tensor({32}, 0, 0), "no error");
  EXPECT_EQ(tensor({}, 0, 0), "tensor w: expected 1 to 4 dimensions, found 0");
  EXPECT_EQ(tensor({1, 1, 1, 1, 1}, 0, 0), "tensor w: expected 1 to 4 dimensions, found 5");
  EXPECT_EQ(tensor({4, 0}, 0, 0), "tensor w: dimension 1: expected a size of at least 1, found 0");
  EXPECT_EQ(tensor({-4}, 0, 0), "tensor w: dimension 0: expected a size of at least 1, found -4");
  EXPECT_EQ(tensor({kBig, kBig}, 0, 0), "tensor w: expected fewer than 2^63 elements");
  EXPECT_EQ(tensor({std::int64_t{1} << 62}, 0, 0), "tensor w: expected fewer than 2^64 bytes");
  EXPECT_EQ(tensor({kBig}, 0, 0),
            "tensor w: its 17179869184 bytes at offset 0 lie outside the file, which has 128 bytes of tensor "
            "data; the "
            "file may be truncated");
  EXPECT_EQ(tensor({32}, 4, 0), "tensor w: type 4 (unknown to narrows) is not supported");
  EXPECT_EQ(tensor({32}, 16, 0), "tensor w: type 16 (IQ2_XXS) is not supported");
  EXPECT_EQ(tensor({48}, 2, 0),
            "tensor w: expected rows of a multiple of 32 elements for type Q4_0, found 48");
  EXPECT_EQ(tensor({8}, 0, 4), "tensor w: expected an offset that is a multiple of 32, found 4");
  EXPECT_THAT(tensor({32}, 0, 32), HasSubstr("lie outside the file"));
  EXPECT_THAT(tensor({8}, 0, ~std::uint64_t{31}), HasSubstr("lie outside the file"));
  EXPECT_EQ(tensor({8}, 0, 96), "no error");

  EXPECT_EQ(error_of(GgufBytes().tensor("", {8}, 0, 0).data(kFloats)),
            "tensor 0: expected a name, found an empty one");
  EXPECT_EQ(error_of(GgufBytes().tensor(std::string(65, 'n'), {8}, 0, 0).data(kFloats)),
            "the description of tensor 0: expected at most 64 bytes, found a length of 65");
  EXPECT_EQ(error_of(GgufBytes().tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).data(kFloats)),
            "tensor a: found twice");
  EXPECT_EQ(error_of(GgufBytes().tensor("b", {8}, 0, 32).tensor("a", {9}, 0, 0).data(kFloats)),
            "tensor b: its data overlaps that of tensor a");
  EXPECT_EQ(error_of(GgufBytes().tensor("b", {8}, 0, 0).tensor("a", {8}, 0, 0).data(kFloats)),
            "tensor a: its data overlaps that of tensor b");
}

class GgufSplit : public GgufRead {
 protected:
  static GgufBytes part(std::uint16_t number, std::uint16_t count, std::uint32_t total) {
    GgufBytes bytes;
    bytes.u16("split.no", number)
        .u16("split.count", count)
        .entry("split.tensors.count", 5, GgufBytes::raw(total));
    if (number == 0) bytes.string("name", "whole");
    return bytes.tensor(fmt::format("t{}", number), {32}, 0, 0)
        .data(std::string(128, static_cast<char>('a' + number)));
  }
};

TEST_F(GgufSplit, PartsAreOne) {
  const std::string first = dir_.write("m-00001-of-00003.gguf", part(0, 3, 3).str());
  dir_.write("m-00002-of-00003.gguf", part(1, 3, 3).str());
  dir_.write("m-00003-of-00003.gguf", part(2, 3, 3).str());
  const GgufFile f = GgufFile::open(first);
  ASSERT_EQ(f.tensors().size(), 3u);
  EXPECT_EQ(f.parts().size(), 3u);
  EXPECT_EQ(f.get_string("name"), "whole");
  EXPECT_EQ(static_cast<char>(*f.tensor("t0").data), 'a');
  EXPECT_EQ(static_cast<char>(*f.tensor("t2").data), 'c');
  EXPECT_EQ(f.file_bytes(), part(0, 3, 3).str().size() + 2 * part(1, 3, 3).str().size());
  EXPECT_EQ(error_at(dir_.file("m-00002-of-00003.gguf")),
            "this is file 2 of a split into 3: expected the first, whose name ends in -00001-of-00003.gguf");
}

TEST_F(GgufSplit, ASplitIntoOneIsAFile) {
  EXPECT_EQ(GgufFile::open(dir_.write("any.gguf", part(0, 1, 1).str())).tensors().size(), 1u);
}

TEST_F(GgufSplit, RefusesWhatDoesNotBelong) {
  const std::string first = dir_.write("m-00001-of-00002.gguf", part(0, 2, 2).str());
  EXPECT_THAT(error_at(first), HasSubstr("file 2 of 2 of the split cannot be read: " +
                                         dir_.file("m-00002-of-00002.gguf") + ": cannot open"));
  EXPECT_EQ(error_at(dir_.write("renamed.gguf", part(0, 2, 2).str())),
            "the first of a split into 2 files: expected a name that ends in -00001-of-00002.gguf");

  const std::string second = dir_.file("m-00002-of-00002.gguf");
  const auto with_second = [&](const GgufBytes& bytes) -> std::string {
    dir_.write("m-00002-of-00002.gguf", bytes.str());
    try {
      GgufFile::open(first);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(with_second(part(1, 2, 2)), "no error");
  EXPECT_EQ(with_second(part(1, 3, 2)), second + ": expected file 2 of a split into 2, found file 2 of 3");
  EXPECT_EQ(with_second(part(0, 2, 2)), second + ": expected file 2 of a split into 2, found file 1 of 2");
  EXPECT_EQ(with_second(one_tensor()),
            second + ": expected file 2 of a split into 2, found a file that is no part of one");
  EXPECT_EQ(with_second(part(1, 2, 2).tensor("x", {1}, 0, 128).data(std::string(132, 'x'))),
            first + ": key split.tensors.count: expected 3, as its files hold, found 2");
  EXPECT_EQ(
      with_second(GgufBytes().u16("split.no", 1).u16("split.count", 2).tensor("t0", {1}, 0, 0).data("1234")),
      first + ": tensor t0: found twice");
  EXPECT_EQ(error_at(dir_.write("m-00001-of-00002.gguf", GgufBytes().string("split.count", "2").str())),
            "key split.count: expected an integer, found string");
}

TEST_F(GgufRead, OpensRealModels) {
  const std::string path = NARROWS_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent: tools/fetch_models.py brings it";
  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_int("llama.block_count"), 30);
  EXPECT_EQ(file.get_array("tokenizer.ggml.tokens").strings.size(), 49152u);
  const GgufTensor& t = file.tensor("token_embd.weight");
  EXPECT_EQ(t.dtype, DType::Q8_0);
  EXPECT_THAT(t.shape, ElementsAre(576, 49152, 1, 1));
}

}  // namespace
}  // namespace narrows
