#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "formats/gguf.h"

namespace narrows {
namespace {

const std::string kSmol = NARROWS_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf";

TEST(GgufRead, OpensARealModel) {
  if (!std::filesystem::exists(kSmol)) GTEST_SKIP() << kSmol << " is absent: tools/fetch_models.py brings it";
  const GgufFile file = GgufFile::open(kSmol);
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_int("llama.block_count"), 30);
  EXPECT_EQ(file.get_array("tokenizer.ggml.tokens").strings.size(), 49152u);
  const GgufTensor& t = file.tensor("token_embd.weight");
  EXPECT_EQ(t.dtype, DType::Q8_0);
  EXPECT_EQ(t.shape[0], 576);
  std::vector<float> row(576);
  dequantize(t.dtype, t.data, row.data(), 576);
  EXPECT_TRUE(std::isfinite(row[0]));
}

}  // namespace
}  // namespace narrows
