// Safetensors: what is read, and every way in which a file or an index can be wrong.
#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/safetensors_file.h"
#include "formats/temp_dir.h"
#include "narrows/error.h"

namespace narrows {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class Safetensors : public testing::Test {
 protected:
  void write(const std::string& header, const std::string& data = std::string(8, 'x')) {
    write_bytes(dir_.file("model.safetensors"), safetensors_bytes(header, data));
  }
  void refused(const std::string& message) {
    EXPECT_THAT([&] { SafeTensors::open(dir_.file("")); }, ThrowsMessage<Error>(HasSubstr(message)));
  }
  TempDir dir_;
};

TEST_F(Safetensors, ReadsTensorsWhereTheyLie) {
  write(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},
            "a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}})", "abcdefgh");
  const SafeTensors all = SafeTensors::open(dir_.file(""));
  ASSERT_EQ(all.tensors().size(), 2u);
  const SafeTensor* a = all.find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->type, "BF16");
  EXPECT_EQ(a->shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(a->shape_text(), "[1, 2]");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(a->data), a->bytes), "abcd");
  EXPECT_EQ(all.find("c"), nullptr);
  EXPECT_EQ(dtype_of_safetensor("F16"), DType::F16);
  EXPECT_EQ(dtype_of_safetensor("I64"), std::nullopt);
}

TEST_F(Safetensors, WrongHeaders) {
  refused("expected model.safetensors or model.safetensors.index.json");
  write_bytes(dir_.file("model.safetensors"), "abc");
  refused("expected a safetensors file, found 3 bytes");
  write_bytes(dir_.file("model.safetensors"), std::string(8, '\xff') + "{}");
  refused("header of at most 2 bytes");
  write("{");
  refused("expected JSON, found an error at byte");
  write("[]");
  refused("expected an object");
  write(std::string(100, '[') + std::string(100, ']'));
  refused("nested up to 64 deep");
  write(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})");
  refused("key a: found twice");
  write(R"({"a":1})");
  refused("tensor a: expected dtype, shape and data_offsets");
  write(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})");
  refused("dtype F33 is not known");
  write(R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})");
  refused("dtype: expected a string");
  write(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})");
  refused("shape: expected sizes of at least 1");
  write(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})");
  refused("shape: expected sizes of at least 1 that a file can hold");
  write(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})");
  refused("expected a whole number, found -1");
  write(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})");
  refused("data_offsets: expected two numbers");
  write(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})");
  refused("lie outside the file");
  write(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})");
  refused("lie outside the file");
  write(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})");
  refused("expected 8 bytes for a shape of [2] and F32, found 4");
  write(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})");
  refused("tensors a and b overlap");
}

TEST_F(Safetensors, WrongIndexes) {
  const auto index = [&](const std::string& map) {
    write_bytes(dir_.file("model.safetensors.index.json"), R"({"weight_map":)" + map + "}");
  };
  const std::string one = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  write_bytes(dir_.file("one.safetensors"), safetensors_bytes(one, "abcd"));
  write_bytes(dir_.file("two.safetensors"), safetensors_bytes(one, "abcd"));
  index(R"({"a":"one.safetensors"})");
  EXPECT_EQ(SafeTensors::open(dir_.file("")).tensors().size(), 1u);
  index(R"({"a":"../one.safetensors"})");
  refused("expected the name of a file in this folder, found \"../one.safetensors\"");
  index(R"({"a":"/etc/passwd"})");
  refused("expected the name of a file in this folder");
  index(R"({"a":".."})");
  refused("expected the name of a file in this folder");
  index(R"({"a":7})");
  refused("expected the name of a file in this folder, found 7");
  index(R"({"a":"three.safetensors"})");
  refused("the file three.safetensors is missing");
  index(R"({"b":"one.safetensors"})");
  refused("expected tensor b in one.safetensors, where it is missing");
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  refused("tensor a: found in");
  index("3");
  refused("expected an object with a weight_map");
}

}  // namespace
}  // namespace narrows
