#include "tokenizer/hf_metadata.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/temp_dir.h"
#include "narrows/error.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/hf_vocabulary.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"
#include "tokenizer/read_file.h"

namespace narrows {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// One file after the other into a folder that goes when the test does.
class TemporaryFolder {
 public:
  const TemporaryFolder& file(const std::string& name, const std::string& text) const {
    dir_.write(name, text);
    return *this;
  }
  std::string path() const { return dir_.file("."); }

 private:
  TempDir dir_;
};

// The tokenizer of a GGUF file with the metadata.
std::unique_ptr<const Tokenizer> load(const HfTokenizerMetadata& metadata) {
  const TemporaryFolder folder;
  GgufWriter writer;
  for (const auto& [key, entry] : metadata.entries) writer.set(key, entry);
  const std::string path = folder.path() + "/vocabulary.gguf";
  writer.write(path, [](std::size_t, auto) {});
  return Tokenizer::from_gguf(GgufFile::open(path));
}

const GgufEntry* find(const HfTokenizerMetadata& metadata, std::string_view key) {
  for (const auto& [name, entry] : metadata.entries) {
    if (name == key) return &entry;
  }
  return nullptr;
}

std::string text_of(const HfTokenizerMetadata& metadata, std::string_view key) {
  const GgufEntry* entry = find(metadata, key);
  return entry ? std::get<std::string>(entry->value) : "";
}

std::int64_t id_of(const HfTokenizerMetadata& metadata, const std::string& name) {
  const GgufEntry* entry = find(metadata, "tokenizer.ggml." + name + "_token_id");
  return entry ? static_cast<std::int64_t>(std::get<std::uint64_t>(entry->value)) : -1;
}

std::string error_of(const std::string& folder, std::optional<std::int64_t> vocab_size = std::nullopt) {
  try {
    read_hf_tokenizer(folder, vocab_size);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string golden_folder(const std::string& name) { return NARROWS_TEST_DATA "/tokenizer/hf/" + name; }

std::vector<std::string> test_strings() {
  const std::string file = read_file(NARROWS_TEST_DATA "/tokenizer/strings.bin");
  std::vector<std::string> strings;
  for (std::size_t at = 0; at < file.size(); at += 4 + strings.back().size()) {
    std::uint32_t size;
    std::memcpy(&size, file.data() + at, sizeof size);
    strings.push_back(file.substr(at + 4, size));
  }
  return strings;
}

struct Expected {
  const char* name;
  const char* model;
  const char* pre;
  bool exact;
  friend void PrintTo(const Expected& expected, std::ostream* out) { *out << expected.name; }
};

class HfMetadataTest : public testing::TestWithParam<Expected> {};

// Whatever engine the metadata choose, its ids are those of the tokenizer.json, whose are checked against
// `tokenizers`.
TEST_P(HfMetadataTest, GivesTheIdsOfTheTokenizerJson) {
  const Expected& expected = GetParam();
  const HfTokenizerMetadata metadata = read_hf_tokenizer(golden_folder(expected.name));
  EXPECT_EQ(text_of(metadata, "tokenizer.ggml.model"), expected.model);
  EXPECT_EQ(text_of(metadata, "tokenizer.ggml.pre"), expected.pre);
  EXPECT_EQ(metadata.exact, expected.exact) << testing::PrintToString(metadata.notes);
  EXPECT_EQ(find(metadata, kHfTokenizerKey) == nullptr, expected.exact);
  const auto loaded = load(metadata);
  const std::string text = read_file(golden_folder(expected.name) + "/tokenizer.json");
  const auto direct = make_hf_tokenizer(hf_vocabulary(text, "test"), text, "test");
  EXPECT_EQ(loaded->vocab_size(), direct->vocab_size());
  int failures = 0;
  const auto strings = test_strings();
  for (std::size_t i = 0; i < strings.size(); i += 3) {
    const std::string& string = strings[i];
    if (!is_valid_utf8(string)) continue;
    for (const EncodeOptions options :
         {EncodeOptions{}, EncodeOptions{.add_special = true, .parse_special = true}}) {
      const auto ids = loaded->encode(string, options);
      if (ids == direct->encode(string, options) || ++failures > 3) continue;
      ADD_FAILURE() << testing::PrintToString(string) << testing::PrintToString(ids)
                    << testing::PrintToString(direct->encode(string, options));
    }
    EXPECT_EQ(loaded->decode(loaded->encode(string)), direct->decode(direct->encode(string)));
  }
  EXPECT_EQ(failures, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizers, HfMetadataTest,
    testing::Values(
        Expected{"gpt2", "gpt2", "gpt-2", true}, Expected{"gpt2_prefix", "gpt2", "default", false},
        Expected{"llama3", "gpt2", "llama-bpe", true}, Expected{"qwen2", "gpt2", "qwen2", false},
        Expected{"falcon", "gpt2", "falcon", false}, Expected{"starcoder", "gpt2", "smollm", true},
        Expected{"gpt_neox", "gpt2", "gpt-2", false}, Expected{"llama2", "llama", "default", true},
        Expected{"mistral", "llama", "default", false}, Expected{"gemma", "llama", "default", true},
        Expected{"phi3", "llama", "default", false}, Expected{"t5", "t5", "", false},
        Expected{"unigram_bytes", "t5", "", false}, Expected{"word_level", "none", "", false},
        Expected{"clip", "none", "", false}, Expected{"splits", "gpt2", "default", false}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(HfMetadata, SpecialTokensAndTemplates) {
  const HfTokenizerMetadata llama3 = read_hf_tokenizer(golden_folder("llama3"));
  const auto t = load(llama3);
  EXPECT_EQ(t->spelling(t->bos()), "<|begin_of_text|>");
  EXPECT_EQ(t->spelling(t->eos()), "<|eot_id|>");
  EXPECT_TRUE(t->add_bos());
  EXPECT_FALSE(t->add_eos());
  EXPECT_THAT(t->chat_template(), HasSubstr("bos_token"));
  EXPECT_EQ(text_of(llama3, "tokenizer.chat_template.tool_use"), "unused");
  EXPECT_TRUE(find(llama3, "tokenizer.chat_templates"));
  const auto t5 = load(read_hf_tokenizer(golden_folder("t5")));
  EXPECT_TRUE(t5->add_eos());
  EXPECT_EQ(t5->spelling(t5->eos()), "</s>");
  EXPECT_EQ(t5->spelling(t5->unk()), "<unk>");
}

// A byte-level tokenizer with few tokens.
json small_tokenizer() {
  json vocab = json::object();
  for (const char* token : {"a", "b", "c", "ab", "abc", "<s>", "</s>"}) vocab[token] = vocab.size();
  return {{"added_tokens",
           {{{"id", 5}, {"content", "<s>"}, {"special", true}, {"normalized", false}},
            {{"id", 6}, {"content", "</s>"}, {"special", true}, {"normalized", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", {"ab", "c"}}}}}};
}

TEST(HfMetadata, TheModelMayHaveMoreTokens) {
  const TemporaryFolder folder;
  folder.file("tokenizer.json", small_tokenizer().dump());
  EXPECT_EQ(load(read_hf_tokenizer(folder.path()))->vocab_size(), 7);
  const auto t = load(read_hf_tokenizer(folder.path(), 9));
  EXPECT_EQ(t->vocab_size(), 9);
  EXPECT_EQ(t->spelling(8), "[PAD8]");
  EXPECT_EQ(t->kind(8), TokenKind::Unused);
  EXPECT_THAT(error_of(folder.path(), 6),
              HasSubstr("expected ids below 6, the number of the model's tokens, found 6"));
  EXPECT_THAT(error_of(folder.path(), 0), HasSubstr("expected a model of 1 to"));
}

TEST(HfMetadata, ConfigurationFiles) {
  const TemporaryFolder folder;
  folder.file("tokenizer.json", small_tokenizer().dump())
      .file("config.json", R"({"bos_token_id": 5, "eos_token_id": [6, 4]})")
      .file("generation_config.json", R"({"eos_token_id": [6, 3, 4]})")
      .file("special_tokens_map.json", R"({"pad_token": {"content": "c"}})")
      .file("chat_template.jinja", "{{ messages }}")
      .file("tokenizer_config.json",
            R"({"add_bos_token": true, "chat_template": "other", "added_tokens_decoder": {"7":
          {"content": "<new>", "special": true}}})");
  const HfTokenizerMetadata metadata = read_hf_tokenizer(folder.path());
  EXPECT_EQ(id_of(metadata, "bos"), 5);
  EXPECT_EQ(id_of(metadata, "eos"), 6);
  EXPECT_EQ(id_of(metadata, "padding"), 2);
  EXPECT_EQ(id_of(metadata, "eot"), 3);
  EXPECT_EQ(id_of(metadata, "eom"), 4);
  const auto t = load(metadata);
  EXPECT_EQ(t->chat_template(), "{{ messages }}");
  EXPECT_THAT(t->encode("abc<new>", {.add_special = true, .parse_special = true}), ElementsAre(5, 4, 7));
  EXPECT_EQ(t->decode(t->encode("abcab")), "abcab");
}

TEST(HfMetadata, VocabularyAndMergesAsText) {
  const TemporaryFolder folder;
  folder.file("vocab.json", small_tokenizer()["model"]["vocab"].dump())
      .file("merges.txt", "#version: 0.2\na b\nab c\n")
      .file("added_tokens.json", R"({"<s>": 5, "</s>": 6, "<extra>": 7})");
  const HfTokenizerMetadata metadata = read_hf_tokenizer(folder.path());
  EXPECT_TRUE(metadata.exact) << testing::PrintToString(metadata.notes);
  EXPECT_THAT(load(metadata)->encode("abcab<extra>", {.parse_special = true}), ElementsAre(4, 3, 7));
  folder.file("merges.txt", "a b\nabc\n");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("merges.txt: line 2: expected two tokens, found 'abc'"));
  std::filesystem::remove(folder.path() + "/merges.txt");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("merges.txt: expected the merges"));
}

TEST(HfMetadata, BrokenFolders) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of(folder.path()), HasSubstr("expected tokenizer.json, tokenizer.model, or vocab.json"));
  EXPECT_THAT(error_of(folder.path() + "/none"), HasSubstr("expected a folder with a tokenizer"));
  folder.file("tokenizer.json", "{\"model\": {\"type\": \"BP");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("tokenizer.json: expected JSON: parse error at line 1"));
  folder.file("tokenizer.json", "[]");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("tokenizer.json: expected an object, found an array of 0"));
  folder.file("tokenizer.json", small_tokenizer().dump()).file("config.json", R"({"eos_token_id": "six"})");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("config.json: eos_token_id: expected an integer"));
  folder.file("config.json", "{}").file("tokenizer_config.json", R"({"added_tokens_decoder": {"../7": {}}})");
  EXPECT_THAT(error_of(folder.path()),
              HasSubstr("tokenizer_config.json: added_tokens_decoder: expected ids"));
  folder.file("tokenizer_config.json", R"({"chat_template": [{"name": "a/b", "template": ""}]})");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("expected names of letters"));
}

// A protocol buffer's field.
std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string number(int field, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(value);
}
std::string bytes(int field, const std::string& value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(value.size()) + value;
}
std::string piece(const std::string& text, float score, int type = 1) {
  std::string real(4, '\0');
  std::memcpy(real.data(), &score, 4);
  return bytes(1, bytes(1, text) + varint(2 << 3 | 5) + real + number(3, static_cast<std::uint64_t>(type)));
}

std::string sentencepiece(int type, const std::string& normalizer) {
  std::string model = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) model += piece(fmt::format("<0x{:02X}>", byte), 0, 6);
  const char* pieces[] = {"▁a", "ab", "▁ab", "▁", "a", "b", "c", "▁▁"};
  float score = -1;
  for (const char* text : pieces) model += piece(text, score--);
  return model + bytes(2, number(3, static_cast<std::uint64_t>(type)) + number(35, 1)) + bytes(3, normalizer);
}

TEST(HfMetadata, SentencePieceModels) {
  const TemporaryFolder folder;
  folder.file("tokenizer.model", sentencepiece(2, number(4, 0)))
      .file("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  const HfTokenizerMetadata bpe = read_hf_tokenizer(folder.path());
  EXPECT_TRUE(bpe.exact) << testing::PrintToString(bpe.notes);
  const auto t = load(bpe);
  EXPECT_TRUE(t->add_bos());
  const auto spell = [](const Tokenizer& tokenizer, std::string_view text) {
    std::vector<std::string> out;
    for (const TokenId id : tokenizer.encode(text)) out.push_back(tokenizer.spelling(id));
    return out;
  };
  EXPECT_THAT(spell(*t, "ab c  bq"), ElementsAre("▁ab", "▁", "c", "▁▁", "b", "<0x71>"));
  EXPECT_EQ(t->decode(t->encode("ab c  bq")), "ab c  bq");

  folder.file("tokenizer.model", sentencepiece(1, ""));
  const HfTokenizerMetadata unigram = read_hf_tokenizer(folder.path());
  EXPECT_FALSE(unigram.exact);
  EXPECT_EQ(text_of(unigram, "tokenizer.ggml.model"), "t5");
  const auto u = load(unigram);
  EXPECT_THAT(spell(*u, "  ab   cq "), ElementsAre("▁ab", "▁", "c", "<0x71>"));
  EXPECT_EQ(u->decode(u->encode("ab cq")), "ab cq");
}

TEST(HfMetadata, BrokenSentencePieceModels) {
  const TemporaryFolder folder;
  const std::string model = sentencepiece(2, "");
  const auto error = [&](const std::string& bytes) {
    return error_of(folder.file("tokenizer.model", bytes).path());
  };
  for (std::size_t size = 0; size < 200; ++size) {
    const std::string found = error(model.substr(0, size));
    EXPECT_TRUE(found == "no error" || found.find("tokenizer.model: ") != std::string::npos) << found;
  }
  EXPECT_THAT(error("\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F"), HasSubstr("lacks some of its bytes"));
  EXPECT_THAT(error(std::string(12, '\xFF')), HasSubstr("lacks the end of an integer"));
  EXPECT_THAT(error(sentencepiece(4, "")),
              HasSubstr("expected a model of type 1 (unigram) or 2 (BPE), found 4"));
  EXPECT_THAT(error(piece("<unk>", 0, 9)), HasSubstr("piece 0: expected a type of 1 to 6, found 9"));
  EXPECT_THAT(error(piece("\xFF", 0)), HasSubstr("piece 0: expected text in UTF-8"));
}

TEST(Charsmap, RefusesWhatDoesNotFit) {
  for (const std::string& bytes :
       {std::string("abc"), std::string("\x08\0\0\0abcd", 8), std::string("\x02\0\0\0abcd", 8)}) {
    EXPECT_THROW(Charsmap(bytes, "test"), Error);
  }
  // A trie that leads out of itself.
  const Charsmap map(std::string("\x04\0\0\0\xFF\xFF\xFF\xFF", 8), "test");
  EXPECT_EQ(map.apply("abcé"), "abcé");
  EXPECT_EQ(decode_base64("YWJj"), "abc");
  EXPECT_EQ(decode_base64("YQ=="), "a");
  EXPECT_EQ(decode_base64("Y"), std::nullopt);
  EXPECT_EQ(decode_base64("Y!=="), std::nullopt);
  EXPECT_EQ(encode_base64("ab"), "YWI=");
}

}  // namespace
}  // namespace narrows
