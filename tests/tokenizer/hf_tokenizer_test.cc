// Small tokenizers like those of known models, against what `tokenizers` gives for them
// (tools/make_hf_tokenizer_goldens.py).
#include "tokenizer/hf_tokenizer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "narrows/error.h"
#include "tokenizer/hf_vocabulary.h"
#include "tokenizer/onig_regex.h"
#include "tokenizer/read_file.h"

namespace narrows {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::uint32_t hash(std::string_view bytes) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  const auto low = static_cast<std::uint32_t>(hash & 0xFFFF);
  return low == 0 ? 1 : low;
}

std::uint32_t hash_ids(const std::vector<TokenId>& ids) {
  return hash({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(TokenId)});
}

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

std::unique_ptr<const Tokenizer> make(const std::string& json) {
  return make_hf_tokenizer(hf_vocabulary(json, "tokenizer.json"), json, "tokenizer.json");
}

std::string shown(const Tokenizer& t, std::string_view text, const std::vector<TokenId>& ids) {
  std::string out = testing::PrintToString(std::string(text)) + "\n";
  for (const TokenId id : ids) out += fmt::format("{}:{} ", id, t.spelling(id));
  return out;
}

class HfReferenceTest : public testing::TestWithParam<const char*> {};

TEST_P(HfReferenceTest, Strings) {
  const std::string folder = std::string(NARROWS_TEST_DATA "/tokenizer/hf/") + GetParam();
  const auto t = make(read_file(folder + "/tokenizer.json"));
  const std::string golden = read_file(folder + "/ids.bin");
  const auto strings = test_strings();
  ASSERT_EQ(golden.size(), strings.size() * 8);
  int failures[4] = {};
  for (std::size_t i = 0; i < strings.size(); ++i) {
    std::uint16_t expected[4];
    std::memcpy(expected, golden.data() + i * sizeof expected, sizeof expected);
    const auto plain = t->encode(strings[i]);
    if (expected[0] == 0) continue;
    const auto check = [&](int column, std::uint32_t found, const std::vector<TokenId>& ids) {
      if (found == expected[column] || ++failures[column] > 1) return;
      ADD_FAILURE() << "column " << column << ", string " << i << ": " << shown(*t, strings[i], ids);
    };
    const auto parsed = t->encode(strings[i], {.parse_special = true});
    const auto both = t->encode(strings[i], {.add_special = true, .parse_special = true});
    check(0, hash_ids(parsed), parsed);
    check(1, hash_ids(both), both);
    check(2, hash_ids(plain), plain);
    if (expected[3] != 0) check(3, hash(t->decode(plain, true)), plain);
  }
  for (int column = 0; column < 4; ++column) EXPECT_EQ(failures[column], 0) << "column " << column;
}

json byte_level() {
  json vocab = json::object();
  for (const char* token : {"a", "b", "c", "Ġ", "ab", "abc", "<s>", "<|x|>"}) vocab[token] = vocab.size();
  return {{"added_tokens",
           {{{"id", 6}, {"content", "<s>"}, {"special", true}, {"normalized", false}},
            {{"id", 7}, {"content", "<|x|>"}, {"special", false}, {"normalized", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
            {"special_tokens", {{"<s>", {{"ids", {6}}}}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", {"ab", "c"}}}}}};
}

TEST(Hf, SpecialTokensAreParsedOnlyIfAsked) {
  const auto t = make(byte_level().dump());
  EXPECT_THAT(t->encode("a<s>b<|x|>", {.parse_special = true}), ElementsAre(0, 6, 1, 7));
  EXPECT_THAT(t->encode("a<s>b<|x|>"), ElementsAre(0, 1, 7));  // '<', 's' and '>' have no token
  EXPECT_THAT(t->encode("abc", {.add_special = true}), ElementsAre(6, 5));
  EXPECT_TRUE(t->add_bos());
  EXPECT_EQ(t->bos(), 6);
  EXPECT_EQ(t->decode(std::vector<TokenId>{6, 5, 7, 3}), "abc<|x|> ");
  EXPECT_EQ(t->decode(std::vector<TokenId>{6, 5}, true), "<s>abc");
}

TEST(Hf, MetadataDecideAboutBosAndEos) {
  const std::string text = byte_level().dump();
  const auto with = [&](std::optional<bool> add_bos, std::optional<bool> add_eos) {
    Vocabulary v = hf_vocabulary(text, "test");
    v.bos = 6;
    v.eos = 7;
    return make_hf_tokenizer(std::move(v), text, "test", add_bos, add_eos)
        ->encode("a", {.add_special = true});
  };
  EXPECT_THAT(with(std::nullopt, std::nullopt), ElementsAre(6, 0));
  EXPECT_THAT(with(false, std::nullopt), ElementsAre(0));
  EXPECT_THAT(with(true, true), ElementsAre(6, 0, 7));
}

TEST(Hf, InvalidUtf8IsTheReplacementCharacter) {
  json document = byte_level();
  int id = 8;
  for (const char* c : {"ï", "¿", "½"}) document["model"]["vocab"][c] = id++;
  const auto t = make(document.dump());
  EXPECT_EQ(t->decode(t->encode("a\xFF\xE2\x96z")), "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Hf, LongWordsTakeNoQuadraticTime) {
  // Far from a limit that a quadratic loop would stay below: 2^40 steps.
  std::string word(1 << 20, 'a');
  for (std::size_t i = 0; i < word.size(); i += 3) word[i] = 'b';
  const auto t = make(byte_level().dump());
  EXPECT_EQ(t->decode(t->encode(word)), word);
  json unigram = json::parse(R"({"model": {"type": "Unigram", "unk_id": 0, "vocab":
      [["<unk>", 0], ["a", -1], ["b", -1], ["ab", -1.5], ["aab", -2]]}})");
  EXPECT_EQ(make(unigram.dump())->encode(word).size(), word.size() / 3 + 1);
}

TEST(Hf, RefusesWhatIsBroken) {
  const auto error = [](const std::string& text) {
    try {
      make(text);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto patched = [&](const char* patch) {
    json document = byte_level();
    document.merge_patch(json::parse(patch));
    return error(document.dump());
  };
  EXPECT_EQ(patched("{}"), "no error");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model": null})", "tokenizer.json: expected a member 'model', found none"},
      {R"({"model": {"type": "WordPiece"}})",
       "tokenizer.json: model.type: expected BPE, Unigram or WordLevel, found 'WordPiece'"},
      {R"({"model": {"vocab": 3}})", "tokenizer.json: model.vocab: expected an object, found 3"},
      {R"({"model": {"vocab": {"b": -1}}})",
       "tokenizer.json: model.vocab.b: expected an integer from 0 to 16777215, found -1"},
      {R"({"model": {"vocab": {"b": 99999999999999999999}}})", "model.vocab.b: expected an integer from 0"},
      {R"({"model": {"vocab": {"b": 0}}})", "tokenizer.json: model.vocab: 'a' and 'b' both have the id 0"},
      {R"({"model": {"vocab": {"far": 16000000}}})", "expected at most 1048576 ids without a token"},
      {R"({"model": {"merges": ["a d"]}})", "model.merges[0]: expected tokens of the vocabulary, found 'd'"},
      {R"({"model": {"merges": ["a c"]}})", "model.merges[0]: expected tokens of the vocabulary, found 'ac'"},
      {R"({"model": {"merges": ["abc"]}})",
       "model.merges[0]: expected two tokens with a space between, found 'abc'"},
      {R"({"model": {"merges": [["a"]]}})", "model.merges[0]: expected two tokens, found an array of 1"},
      {R"({"model": {"dropout": 0.1}})", "model.dropout: expected no dropout, found 0.1"},
      {R"({"model": {"type": "Unigram", "unk_id": 9, "vocab": [["a", 0]]}})",
       "model.unk_id: expected an integer from 0 to 0"},
      {R"({"model": {"type": "Unigram", "vocab": [["a", 0]]}, "added_tokens": []})",
       "expected a member 'unk_id'"},
      {R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0], ["a", 1]]}})",
       "tokens 0 and 1 are both 'a'"},
      {R"({"added_tokens": [{"id": 0, "content": "a"}, {"id": 1, "content": "a"}]})", "found 'a' twice"},
      {R"({"added_tokens": [{"id": 1, "content": "a"}]})",
       "added token 'a': expected the id that the vocabulary has"},
      {R"({"added_tokens": [{"id": 0, "content": "new"}]})", "added token 'new'"},
      {R"({"normalizer": {"type": "Nmt"}})", "tokenizer.json: normalizer.type: expected Sequence, NFC"},
      {R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "A"}})",
       "expected base64, found 'A'"},
      {R"({"normalizer": {"type": "Replace", "pattern": {"Regex": "(a"}, "content": ""}})",
       "normalizer.pattern.Regex: expected a regular expression, but in '(a' a group is not closed"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\p{Nonsense}"}, "behavior": "Isolated"}})",
       "the property 'Nonsense' is not supported"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Sideways"}})",
       "pre_tokenizer.behavior: expected Isolated, Removed"},
      {R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}})",
       "expected one character, found 'ab'"},
      {R"({"post_processor": {"special_tokens": {"<s>": {"ids": [8]}}}})", "expected an id below 8"},
      {R"({"decoder": {"type": "CTC"}})", "decoder.type: expected Sequence"},
  };
  for (const auto& [patch, expected] : cases) EXPECT_THAT(patched(patch), HasSubstr(expected)) << patch;
  json nested = byte_level()["pre_tokenizer"];
  for (int i = 0; i < 100; ++i) nested = {{"type", "Sequence"}, {"pretokenizers", {nested}}};
  json document = byte_level();
  document["pre_tokenizer"] = nested;
  EXPECT_THAT(error(document.dump()), HasSubstr("sequences nest more than 16 deep"));
  EXPECT_THAT(error(std::string(100000, '[')), HasSubstr("tokenizer.json: expected JSON: parse error"));
  const std::string text = byte_level().dump();
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_THAT(error(text.substr(0, size)), HasSubstr("tokenizer.json: expected JSON")) << size;
  }
}

TEST(Hf, ATextMayNotGrowWithoutEnd) {
  json document = byte_level();
  json steps = json::array();
  for (int i = 0; i < 40; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  document["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  EXPECT_THROW(make(document.dump())->encode("a"), Error);
}

// The parts of "text" that the pattern matches.
std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  std::vector<std::string> out;
  OnigRegex(pattern, "test").matches(text, [&](std::size_t begin, std::size_t end) {
    out.push_back(text.substr(begin, end - begin));
  });
  return out;
}

TEST(OnigRegex, WhatDiffersFromPcre2) {
  EXPECT_THAT(matches(R"(\h+)", "x0aFg h"), ElementsAre("0aF"));  // hexadecimal digits
  EXPECT_THAT(matches(R"(\v)", "a\x0B\n"), ElementsAre("\x0B"));  // the vertical tab alone
  EXPECT_THAT(matches(R"(\w+)", "é²_x-"), ElementsAre("é²_x"));   // by tables of its own
  EXPECT_THAT(matches(R"([\w]+)", "é²_x-"), ElementsAre("é", "_x"));
  EXPECT_THAT(matches(R"(\s+)", "a\u180E\u3000"), ElementsAre("\u3000"));
  EXPECT_THAT(matches("^b$", "a\nb\nc"), ElementsAre("b"));  // always by line
  EXPECT_THAT(matches("(?m:a.b)", "a\nb"), ElementsAre("a\nb"));
  EXPECT_THAT(matches("a{2}+", "aaaaa"), ElementsAre("aaaa"));     // (?:a{2})+, not possessive
  EXPECT_THAT(matches("ba{1}?", "ba b"), ElementsAre("ba", "b"));  // (?:a{1})?
  EXPECT_THAT(matches("ba{,2}", "baaa"), ElementsAre("baa"));
  EXPECT_THAT(matches("a(?i)b|c", "aB aC ab"), ElementsAre("aB", "aC", "ab"));  // to the end of the group
  EXPECT_THAT(matches("[a-c&&[^b]]+", "abcd"), ElementsAre("a", "c"));
  EXPECT_THAT(matches("[a[x-z]]+", "axyb"), ElementsAre("axy"));
  EXPECT_THAT(matches("[^a[b]]+", "abcd"), ElementsAre("cd"));
  EXPECT_THAT(matches(R"([^\S\n]+)", "a \t\nb"), ElementsAre(" \t"));
  EXPECT_THAT(matches("[[:punct:]]+", "a+,b"), ElementsAre("+,"));
  EXPECT_THAT(matches(R"(\p{Punct}+)", "a+,b"), ElementsAre(","));
  EXPECT_THAT(matches(R"(\p{^Lu}+)", "aBc"), ElementsAre("a", "c"));
  EXPECT_THAT(matches(R"(\u0061|\x62|\x{63})", "abc"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(matches("b*", "abc"), ElementsAre("", "b", ""));
  EXPECT_THAT(matches("{a}", "{a}"), ElementsAre("{a}"));
  for (const char* refused :
       {"(*UTF)", "(?R)", "(?C)", "(?|a)", "a**)", "[]", "[a", "\\", "\\Q", "(?x)a", "*", "[[:nonsense:]]"}) {
    EXPECT_THROW(OnigRegex(refused, "test"), Error) << refused;
  }
  EXPECT_THROW(OnigRegex(std::string(200, '('), "test"), Error);
  EXPECT_THROW(OnigRegex("(a+)+$", "test").matches(std::string(40, 'a') + "b", [](auto, auto) {}), Error);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, HfReferenceTest,
                         testing::Values("gpt2", "gpt2_prefix", "llama3", "qwen2", "falcon", "starcoder",
                                         "gpt_neox", "llama2", "mistral", "gemma", "phi3", "t5",
                                         "unigram_bytes", "word_level", "clip", "splits"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace narrows
