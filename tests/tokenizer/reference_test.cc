// Against other tokenizers: the pairs that come with llama.cpp's vocabularies, and hashes of the ids that
// llama.cpp and Hugging Face `tokenizers` give for 2,000 strings (tools/make_tokenizer_goldens.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "formats/gguf.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace narrows {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

// "" if the file is not there.
std::string vocabulary_path(const std::string& name) {
  for (const char* folder : {NARROWS_SHARED_DATA "/vocab/", NARROWS_MODELS "/"}) {
    const std::string path = folder + name + ".gguf";
    if (std::filesystem::exists(path)) return path;
  }
  return "";
}

std::uint64_t fnv(std::string_view bytes, std::uint64_t hash = 0xCBF29CE484222325u) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

std::uint32_t hash_ids(const std::vector<TokenId>& ids) {
  const auto hash = static_cast<std::uint32_t>(
      fnv({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(TokenId)}));
  return hash == 0 ? 1 : hash;
}

std::uint32_t read_u32(std::string_view bytes, std::size_t at) {
  std::uint32_t value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::vector<std::string> test_strings() {
  const std::string file = read_file(NARROWS_TEST_DATA "/tokenizer/strings.bin");
  std::vector<std::string> strings;
  for (std::size_t at = 0; at < file.size(); at += 4 + strings.back().size()) {
    strings.push_back(file.substr(at + 4, read_u32(file, at)));
  }
  return strings;
}

std::string hex(std::string_view text) {
  std::string out;
  for (const char c : text) out += fmt::format("{:02x} ", static_cast<unsigned char>(c));
  return out;
}

class ReferenceTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = vocabulary_path(GetParam());
    if (path.empty()) GTEST_SKIP() << GetParam() << ".gguf is absent";
    tokenizer_ = Tokenizer::from_gguf(GgufFile::open(path));
  }
  std::unique_ptr<const Tokenizer> tokenizer_;
};

TEST_P(ReferenceTest, LlamaCppsOwnPairs) {
  const std::string stem = vocabulary_path(GetParam());
  if (!std::filesystem::exists(stem + ".inp")) GTEST_SKIP() << "no pairs for " << GetParam();
  const std::string inputs = read_file(stem + ".inp");
  std::istringstream outputs(read_file(stem + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::string line;
  std::size_t begin = 0;
  for (std::size_t end; (end = inputs.find(separator, begin)) != std::string::npos;
       begin = end + separator.size()) {
    const std::string text = inputs.substr(begin, end - begin);
    ASSERT_TRUE(std::getline(outputs, line));
    std::istringstream numbers(line);
    std::vector<TokenId> expected;
    for (TokenId id; numbers >> id;) expected.push_back(id);
    EXPECT_EQ(tokenizer_->encode(text), expected) << testing::PrintToString(text);
    EXPECT_EQ(tokenizer_->decode(expected), text);
  }
  EXPECT_EQ(begin, inputs.size());
  EXPECT_FALSE(std::getline(outputs, line)) << "more outputs than inputs";
}

TEST_P(ReferenceTest, Strings) {
  const std::string golden = read_file(std::string(NARROWS_TEST_DATA "/tokenizer/") + GetParam() + ".ids");
  const auto strings = test_strings();
  ASSERT_EQ(golden.size(), strings.size() * 12);
  int by_llama = 0, by_tokenizers = 0, with_special = 0, differs = 0;
  for (std::size_t i = 0; i < strings.size() && !HasFailure(); ++i) {
    const std::uint32_t llama = read_u32(golden, i * 12), special = read_u32(golden, i * 12 + 4);
    const std::uint32_t tokenizers = read_u32(golden, i * 12 + 8);
    const auto ids = tokenizer_->encode(strings[i]);
    const auto parsed = tokenizer_->encode(strings[i], {.parse_special = true});
    by_llama += llama != 0 && hash_ids(ids) == llama;
    by_tokenizers += tokenizers != 0 && hash_ids(ids) == tokenizers;
    const auto shown = [&] {
      return testing::PrintToString(strings[i]) + "\n" + hex(strings[i]) + "\n" + testing::PrintToString(ids);
    };
    if (tokenizers != 0) {
      EXPECT_EQ(hash_ids(ids), tokenizers) << "tokenizers, string " << i << ": " << shown();
    } else if (llama != 0) {
      EXPECT_EQ(hash_ids(ids), llama) << "llama.cpp, string " << i << ": " << shown();
    }
    // Where the two references differ on plain text, llama.cpp's ids with special tokens are wrong by the
    // same.
    if (special != 0 && (tokenizers == 0 || tokenizers == llama)) {
      EXPECT_EQ(hash_ids(parsed), special)
          << "special tokens parsed, string " << i << ": " << shown() << testing::PrintToString(parsed);
    }
    with_special += special != 0 && hash_ids(parsed) == special;
    differs += tokenizers != 0 && tokenizers != llama;
  }
  RecordProperty("llama_cpp", by_llama);
  RecordProperty("llama_cpp_special", with_special);
  RecordProperty("tokenizers", by_tokenizers);
  RecordProperty("references_differ", differs);
}

TEST_P(ReferenceTest, Facts) {
  const auto facts =
      nlohmann::json::parse(read_file(std::string(NARROWS_TEST_DATA "/tokenizer/") + GetParam() + ".json"));
  EXPECT_EQ(tokenizer_->bos(), facts["bos"].get<TokenId>());
  EXPECT_EQ(tokenizer_->eos(), facts["eos"].get<TokenId>());
  EXPECT_EQ(tokenizer_->add_bos(), facts["add_bos"].get<bool>());
  EXPECT_EQ(tokenizer_->add_eos(), facts["add_eos"].get<bool>());
  std::vector<TokenId> ends;
  std::uint64_t pieces = fnv("");
  for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id) {
    if (tokenizer_->is_end_of_generation(id)) ends.push_back(id);
    pieces = fnv(tokenizer_->piece(id, true) + '\0', pieces);
  }
  EXPECT_EQ(ends, facts["end_of_generation"].get<std::vector<TokenId>>());
  EXPECT_EQ(fmt::format("{:016x}", pieces), facts["pieces"].get<std::string>());
}

// The text that an encoding stands for: SPM takes U+2581 for a space; byte-level BPE replaces invalid UTF-8
// and leaves out bytes that the vocabulary lacks (Falcon and SmolLM2 have no token for some control
// characters).
std::string encodable(const Tokenizer& tokenizer, std::string_view text) {
  std::string valid, out;
  if (tokenizer.model() == "llama") {
    constexpr std::string_view kSpace = "\xE2\x96\x81";
    for (std::size_t i = 0; i < text.size();) {
      const bool space = text.substr(i).starts_with(kSpace);
      out += space ? ' ' : text[i];
      i += space ? kSpace.size() : 1;
    }
    return out;
  }
  append_valid_utf8(text, valid);
  for (const char c : valid) {
    const bool ascii = static_cast<unsigned char>(c) < 0x80;
    if (!ascii || !tokenizer.encode(std::string_view(&c, 1)).empty()) out += c;
  }
  return out;
}

TEST_P(ReferenceTest, DecodingUndoesEncoding) {
  for (const std::string& text : test_strings()) {
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text)), encodable(*tokenizer_, text)) << hex(text);
    if (HasFailure()) break;
  }
}

TEST(PreTokenizerReferenceTest, Words) {
  const auto strings = test_strings();
  for (const char* pre : {"gpt-4o", "tekken", "qwen35", "deepseek-coder", "deepseek-v3", "bailingmoe",
                          "seed-coder", "bloom", "viking"}) {
    const std::string golden = read_file(fmt::format("{}/tokenizer/words.{}.ids", NARROWS_TEST_DATA, pre));
    ASSERT_EQ(golden.size(), strings.size() * 4);
    const PreTokenizer pre_tokenizer(pre, "test");
    int failures = 0;
    for (std::size_t i = 0; i < strings.size(); ++i) {
      const std::uint32_t expected = read_u32(golden, i * 4);
      if (expected == 0) continue;
      std::vector<std::string_view> words;
      pre_tokenizer.split(strings[i], words);
      std::vector<TokenId> lengths;
      for (const auto word : words) lengths.push_back(static_cast<TokenId>(word.size()));
      if (hash_ids(lengths) != expected && ++failures < 5) {
        ADD_FAILURE() << pre << ", string " << i << ": " << testing::PrintToString(strings[i]) << "\n"
                      << testing::PrintToString(lengths);
      }
    }
    EXPECT_EQ(failures, 0) << pre;
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, ReferenceTest,
                         testing::Values("ggml-vocab-falcon", "ggml-vocab-gpt-2", "ggml-vocab-llama-bpe",
                                         "ggml-vocab-llama-spm", "ggml-vocab-mpt", "ggml-vocab-phi-3",
                                         "ggml-vocab-qwen2", "SmolLM2-135M-Instruct.Q4_1",
                                         "gemma-3-270m-Q4_K_M"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace narrows
