#include "formats/requantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "base/error.h"
#include "formats/temp_dir.h"

namespace narrows {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Source {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
};

const std::vector<Source> kModel = {
    {"token_embd.weight", DType::F32, {256, 40}},
    {"blk.0.attn_q.weight", DType::F16, {256, 3}},
    {"blk.0.attn_q.bias", DType::F16, {3}},
    {"blk.0.attn_norm.weight", DType::BF16, {256}},
    {"blk.0.ffn_up.weight", DType::Q8_0, {96, 5}},   // a multiple of 32, not of 256
    {"blk.0.ffn_down.weight", DType::F32, {20, 5}},  // of neither
    {"blk.0.ffn_gate_exps.weight", DType::F32, {256, 2, 3}},
    {"blk.0.ffn_gate_inp.weight", DType::F32, {256, 2}},  // a router
    {"table", DType::I32, {7}},
};

class Requantize : public ::testing::Test {
 protected:
  std::string make(const std::vector<Source>& model, const std::string& name = "in.gguf") {
    GgufWriter w(64);
    w.set_string("general.architecture", "llama");
    w.set_u32("general.file_type", 1);
    w.set("general.scale", {GgufType::F64, 0.5});
    w.set("tokens", {GgufType::Array, GgufArray{GgufType::String, {"a", "b"}, {}, {}}});
    w.set("split.count", {GgufType::U16, std::uint64_t{1}});
    for (const Source& s : model) w.add_tensor(s.name, s.dtype, s.shape);
    const std::string path = dir_.file(name);
    w.write(path, [&](std::size_t i, auto&& sink) {
      std::int64_t n = 1;
      for (const auto d : model[i].shape) n *= d;
      std::mt19937 bits(static_cast<unsigned>(i));
      std::normal_distribution<float> normal;
      std::vector<float> x(static_cast<std::size_t>(n));
      for (float& v : x) v = normal(bits);
      std::vector<std::byte> bytes(row_bytes(model[i].dtype, n));
      if (can_quantize(model[i].dtype))
        quantize(model[i].dtype, x.data(), bytes.data(), n);
      else
        std::memset(bytes.data(), 7, bytes.size());
      sink(bytes);
    });
    return path;
  }
  GgufFile convert(const std::string& in, DType type, const RequantizeOptions& options = {}) {
    requantize(GgufFile::open(in), type, dir_.file("out.gguf"), options);
    return GgufFile::open(dir_.file("out.gguf"));
  }

  TempDir dir_;
};

std::vector<float> values(const GgufTensor& t) {
  std::vector<float> x(static_cast<std::size_t>(t.elements()));
  dequantize(t.dtype, t.data, x.data(), t.elements());
  return x;
}

TEST_F(Requantize, TypesOfTensors) {
  const GgufFile out = convert(make(kModel), DType::Q4_K);
  EXPECT_EQ(out.tensor("token_embd.weight").dtype, DType::Q6_K);  // serves as the output
  EXPECT_EQ(out.tensor("blk.0.attn_q.weight").dtype, DType::Q4_K);
  EXPECT_EQ(out.tensor("blk.0.attn_q.bias").dtype, DType::F32);
  EXPECT_EQ(out.tensor("blk.0.attn_norm.weight").dtype, DType::F32);
  EXPECT_EQ(out.tensor("blk.0.ffn_up.weight").dtype, DType::Q5_0);
  EXPECT_EQ(out.tensor("blk.0.ffn_down.weight").dtype, DType::F16);
  EXPECT_EQ(out.tensor("blk.0.ffn_gate_exps.weight").dtype, DType::Q4_K);
  EXPECT_EQ(out.tensor("blk.0.ffn_gate_inp.weight").dtype, DType::F32);
  EXPECT_EQ(out.tensor("table").dtype, DType::I32);
}

TEST_F(Requantize, MetadataIsCopied) {
  const std::string in = make(kModel);
  for (const auto& [type, number] : std::vector<std::pair<DType, int>>{{DType::F32, 0},
                                                                       {DType::F16, 1},
                                                                       {DType::Q4_0, 2},
                                                                       {DType::Q4_1, 3},
                                                                       {DType::Q8_0, 7},
                                                                       {DType::Q5_0, 8},
                                                                       {DType::Q4_K, 14},
                                                                       {DType::Q6_K, 18},
                                                                       {DType::BF16, 32}}) {
    const GgufFile out = convert(in, type);
    EXPECT_EQ(out.get_int("general.file_type"), number);
    EXPECT_EQ(out.get_int("general.quantization_version"), 2);
    EXPECT_EQ(out.get_int("general.alignment"), 64);
    EXPECT_EQ(out.metadata().at("general.scale").type, GgufType::F64);
    EXPECT_EQ(out.get_array("tokens").strings.size(), 2u);
    EXPECT_FALSE(out.has("split.count"));
    EXPECT_EQ(out.tensors().size(), kModel.size());
  }
}

TEST_F(Requantize, ValuesAreThoseOfTheRows) {
  const std::string path = make(kModel);
  const GgufFile in = GgufFile::open(path);
  for (const int threads : {1, 3}) {
    RequantizeOptions options;
    options.threads = threads;
    const GgufFile out = convert(path, DType::Q8_0, options);
    for (const GgufTensor& t : in.tensors()) {
      const GgufTensor& converted = out.tensor(t.name);
      EXPECT_EQ(converted.shape, t.shape);
      EXPECT_EQ(converted.dims, t.dims);
      if (!can_dequantize(t.dtype) || converted.dtype == t.dtype) {
        EXPECT_EQ(std::memcmp(converted.data, t.data, t.bytes), 0) << t.name;
        continue;
      }
      const std::vector<float> x = values(t);
      std::vector<std::byte> expected(converted.bytes);
      quantize(converted.dtype, x.data(), expected.data(), t.elements());
      EXPECT_EQ(std::memcmp(converted.data, expected.data(), expected.size()), 0) << t.name;
    }
  }
}

TEST_F(Requantize, Options) {
  const std::string tied = make(kModel);
  std::vector<Source> with_output = kModel;
  with_output.push_back({"output.weight", DType::F32, {256, 40}});
  const std::string untied = make(with_output, "untied.gguf");

  RequantizeOptions pure;
  pure.pure = true;
  EXPECT_EQ(convert(tied, DType::Q4_K, pure).tensor("token_embd.weight").dtype, DType::Q4_K);
  EXPECT_EQ(convert(untied, DType::Q4_0, pure).tensor("output.weight").dtype, DType::Q4_0);
  EXPECT_EQ(convert(untied, DType::Q4_0).tensor("output.weight").dtype, DType::Q6_K);
  EXPECT_EQ(convert(untied, DType::Q4_0).tensor("token_embd.weight").dtype, DType::Q4_0);
  EXPECT_EQ(convert(untied, DType::Q8_0).tensor("output.weight").dtype, DType::Q8_0);

  RequantizeOptions output;
  output.output_type = DType::Q8_0;
  EXPECT_EQ(convert(untied, DType::Q4_0, output).tensor("output.weight").dtype, DType::Q8_0);
  EXPECT_EQ(convert(untied, DType::Q4_0, output).tensor("token_embd.weight").dtype, DType::Q4_0);
  EXPECT_EQ(convert(tied, DType::Q4_0, output).tensor("token_embd.weight").dtype, DType::Q8_0);
  output.token_embedding_type = DType::F16;
  EXPECT_EQ(convert(untied, DType::Q4_0, output).tensor("token_embd.weight").dtype, DType::F16);
  EXPECT_EQ(convert(tied, DType::Q4_0, output).tensor("token_embd.weight").dtype, DType::F16);
}

TEST_F(Requantize, RefusesWhatItCannotDo) {
  const std::string path = make(kModel);
  const GgufFile in = GgufFile::open(path);
  const std::string out = dir_.file("out.gguf");
  EXPECT_THAT([&] { requantize(in, DType::Q2_K, out); },
              ThrowsMessage<Error>("type Q2_K: expected a type that narrows can encode"));
  RequantizeOptions options;
  options.output_type = DType::I8;
  EXPECT_THAT([&] { requantize(in, DType::Q8_0, out, options); }, ThrowsMessage<Error>(HasSubstr("type I8")));
  EXPECT_THAT([&] { requantize(in, DType::Q8_0, path); },
              ThrowsMessage<Error>(path + ": the output is the input file: expected another path"));
  std::filesystem::create_symlink(path, dir_.file("link.gguf"));
  EXPECT_THAT([&] { requantize(in, DType::Q8_0, dir_.file("link.gguf")); },
              ThrowsMessage<Error>(HasSubstr("the output is the input file")));
}

TEST_F(Requantize, RefusesWeightsThatAreNotFinite) {
  const std::string path = make({{"a.weight", DType::F32, {64, 8}}, {"n.weight", DType::F32, {64}}});
  for (const std::string name : {"a.weight", "n.weight"}) {
    std::size_t offset;
    std::int64_t row = 0;
    {
      const GgufFile in = GgufFile::open(path);
      offset = static_cast<std::size_t>(in.tensor(name).data - in.parts()[0].bytes().data());
    }
    if (name == "a.weight") row = 5;
    const std::string bad = dir_.file("bad.gguf");
    std::filesystem::copy_file(path, bad, std::filesystem::copy_options::overwrite_existing);
    std::fstream file(bad, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset + static_cast<std::size_t>(row * 256 + 12)));
    const float nan = NAN;
    file.write(reinterpret_cast<const char*>(&nan), 4);
    file.close();
    const GgufFile in = GgufFile::open(bad);
    for (const int threads : {1, 4}) {
      RequantizeOptions options;
      options.threads = threads;
      for (const DType type : {DType::Q8_0, DType::F32})
        EXPECT_THAT(
            [&] { requantize(in, type, dir_.file("none.gguf"), options); },
            ThrowsMessage<Error>(fmt::format(
                "{}: tensor {}: row {}: element 3: expected a finite value, found nan", bad, name, row)));
    }
    EXPECT_FALSE(std::filesystem::exists(dir_.file("none.gguf")));
  }
}

}  // namespace
}  // namespace narrows
