// Tokenizers from files: defaults, and the errors that name file and key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "formats/gguf.h"
#include "narrows/error.h"
#include "tokenizer/metadata_file.h"
#include "tokenizer/tokenizer.h"

namespace narrows {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<const Tokenizer> load(const MetadataFile& file) {
  const std::string path = testing::TempDir() + "narrows_tokenizer_metadata.gguf";
  std::ofstream(path, std::ios::binary) << file.bytes();
  return Tokenizer::from_gguf(GgufFile::open(path));
}

std::string error_of(const MetadataFile& file) {
  try {
    load(file);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

MetadataFile bpe(const std::string& pre = "gpt-2") {
  return MetadataFile()
      .text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", pre)
      .texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<|endoftext|>"})
      .i32s("tokenizer.ggml.token_type", {1, 1, 1, 3});
}

MetadataFile bpe_with_merges(const std::string& pre = "gpt-2") {
  return bpe(pre).texts("tokenizer.ggml.merges", {"a b"});
}

MetadataFile spm() {
  return MetadataFile()
      .text("tokenizer.ggml.model", "llama")
      .texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "▁", "a", "▁a"})
      .i32s("tokenizer.ggml.token_type", {2, 3, 3, 1, 1, 1});
}

MetadataFile spm_with_scores() { return spm().f32s("tokenizer.ggml.scores", {0, 0, 0, -1, -2, -3}); }

TEST(Metadata, DefaultsOfBpe) {
  const auto t = load(bpe_with_merges());
  EXPECT_EQ(t->bos(), kNoToken);
  EXPECT_EQ(t->eos(), kNoToken);
  EXPECT_EQ(t->eot(), 3);
  EXPECT_FALSE(t->add_bos());
  EXPECT_EQ(t->chat_template(), "");
  EXPECT_THAT(t->encode("ab", {.add_special = true}), ElementsAre(2));
  const auto llama3 = load(bpe_with_merges("llama-bpe").u32("tokenizer.ggml.bos_token_id", 3));
  EXPECT_THAT(llama3->encode("ab", {.add_special = true}), ElementsAre(3, 2));
}

TEST(Metadata, DefaultsOfSpm) {
  const auto t = load(spm_with_scores());
  EXPECT_EQ(t->bos(), 1);
  EXPECT_EQ(t->eos(), 2);
  EXPECT_EQ(t->unk(), 0);
  EXPECT_THAT(t->encode("a", {.add_special = true}), ElementsAre(1, 5));
  const auto bare = load(spm_with_scores()
                             .boolean("tokenizer.ggml.add_bos_token", false)
                             .boolean("tokenizer.ggml.add_eos_token", true)
                             .boolean("tokenizer.ggml.add_space_prefix", false));
  EXPECT_THAT(bare->encode("a", {.add_special = true}), ElementsAre(4, 2));
}

TEST(Metadata, Phi3SwallowsWhiteSpaceAfterSpecialTokens) {
  const auto t = load(spm_with_scores().text("general.name", "Phi-3 mini"));
  EXPECT_THAT(t->encode("</s> \na", {.parse_special = true}), ElementsAre(2, 5));
  EXPECT_THAT(t->encode("<s> a", {.parse_special = true}), ElementsAre(1, 3, 5));
}

TEST(Metadata, IdsThatMeanNone) {
  const auto t = load(bpe_with_merges().u32("tokenizer.ggml.padding_token_id", 0xFFFFFFFF));
  EXPECT_EQ(t->pad(), kNoToken);
}

TEST(Metadata, EmptySpellingsGetNames) {
  const auto t = load(MetadataFile()
                          .text("tokenizer.ggml.model", "gpt2")
                          .texts("tokenizer.ggml.tokens", {"", "a", ""})
                          .texts("tokenizer.ggml.merges", {}));
  EXPECT_EQ(t->spelling(2), "[EMPTY_2]");
}

TEST(Metadata, Errors) {
  EXPECT_THAT(error_of(MetadataFile()),
              HasSubstr("narrows_tokenizer_metadata.gguf: key tokenizer.ggml.model"));
  EXPECT_THAT(error_of(MetadataFile().text("tokenizer.ggml.model", "bert")),
              HasSubstr("expected gpt2 or llama, found 'bert'"));
  EXPECT_THAT(error_of(MetadataFile().text("tokenizer.ggml.model", "gpt2")),
              HasSubstr("key tokenizer.ggml.tokens"));
  EXPECT_THAT(error_of(bpe()), HasSubstr("key tokenizer.ggml.merges"));
  EXPECT_THAT(error_of(bpe().i32s("tokenizer.ggml.merges", {1})),
              HasSubstr("merges: expected an array of strings"));
  EXPECT_THAT(error_of(bpe_with_merges("no-such")), HasSubstr("key tokenizer.ggml.pre: 'no-such'"));
  EXPECT_THAT(error_of(bpe_with_merges("llama-bpe")),
              HasSubstr("key tokenizer.ggml.bos_token_id is missing"));
  EXPECT_THAT(error_of(bpe_with_merges().u32("tokenizer.ggml.eos_token_id", 4)),
              HasSubstr("key tokenizer.ggml.eos_token_id: expected a token id below 4, found 4"));
  EXPECT_THAT(error_of(spm()), HasSubstr("key tokenizer.ggml.scores"));
  EXPECT_THAT(error_of(spm().f32s("tokenizer.ggml.scores", {0})),
              HasSubstr("expected 6 elements, one for each token, found 1"));
  EXPECT_THAT(error_of(spm().f32s("tokenizer.ggml.scores", {0, 0, 0, 0, NAN, 0})),
              HasSubstr("token 4: expected a number"));
  const auto tokens = [](const std::vector<std::string>& spellings) {
    return MetadataFile().text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", spellings);
  };
  EXPECT_THAT(error_of(tokens({})), HasSubstr("expected 1 to 2^31 - 1 tokens, found 0"));
  EXPECT_THAT(error_of(tokens({"a", "b", "a"})), HasSubstr("tokens 0 and 2 are both 'a'"));
  EXPECT_THAT(error_of(tokens({"a\n", "a\n"})), HasSubstr("'a\\x0a'"));
  EXPECT_THAT(error_of(tokens({"a"}).i32s("tokenizer.ggml.token_type", {7})),
              HasSubstr("token 0: expected a type of 0 to 6, found 7"));
  EXPECT_THAT(error_of(tokens({"a"}).f32s("tokenizer.ggml.token_type", {1})),
              HasSubstr("expected an array of integers"));
  EXPECT_THAT(error_of(MetadataFile()
                           .text("tokenizer.ggml.model", "llama")
                           .texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "<0xZZ>"})
                           .f32s("tokenizer.ggml.scores", {0, 0, 0, 0})
                           .i32s("tokenizer.ggml.token_type", {2, 3, 3, 6})),
              HasSubstr("token 3: expected a byte as <0xAB>, found '<0xZZ>'"));
}

}  // namespace
}  // namespace narrows
