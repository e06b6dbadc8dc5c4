#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "narrows/error.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tiny_vocabularies.h"
#include "tokenizer/utf8.h"

namespace narrows {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<TokenId>;

std::vector<std::string> spell(const Tokenizer& t, std::string_view text, EncodeOptions options = {}) {
  std::vector<std::string> out;
  for (const TokenId id : t.encode(text, options)) out.push_back(t.spelling(id));
  return out;
}

template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Utf8, AcceptsWhatRfc3629Does) {
  for (const char* valid :
       {"a", "\x7F", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(is_valid_utf8(valid)) << valid;
  }
  for (const char* invalid :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xFF"}) {
    EXPECT_FALSE(is_valid_utf8(invalid)) << invalid;
  }
  std::string out;
  append_valid_utf8("a\xE2\x82z\xFF\xC3\xA9", out);
  EXPECT_EQ(out, "a\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD\xC3\xA9");
}

TEST(Bpe, MergesByRank) {
  const auto t = TinyBpe{}.make();
  EXPECT_THAT(spell(*t, "hello hello"), ElementsAre("hello", "Ġhello"));
  EXPECT_THAT(spell(*t, "abc"), ElementsAre("abc"));  // a+b comes before b+c
  EXPECT_THAT(spell(*t, "bcab"), ElementsAre("bc", "ab"));
  EXPECT_THAT(spell(*t, "é"), ElementsAre("Ã©"));
  EXPECT_THAT(spell(*t, ""), ElementsAre());
}

TEST(Bpe, LongWordsMergeLikeShortOnes) {
  const auto t = TinyBpe{}.make();
  std::string text;
  Ids expected;
  for (int i = 0; i < 200; ++i) {
    text += "abcbcab";
    for (const char* token : {"abc", "bc", "ab"}) expected.push_back(t->find(token));
  }
  // The last "ab" of each turn stands before "abc", not before a "c".
  EXPECT_EQ(t->encode(text), expected);
}

TEST(Bpe, InvalidUtf8BecomesTheReplacementCharacter) {
  const auto t = TinyBpe{}.make();
  EXPECT_EQ(t->decode(t->encode("a\xFFz")), "a\xEF\xBF\xBDz");
}

TEST(Bpe, BytesWithoutTokensAreLeftOut) {
  TinyBpe tiny;
  Vocabulary v = tiny.vocabulary();
  v.spellings['q'] = "(no q)";
  finish_vocabulary(v);
  const auto t = make_bpe_tokenizer(std::move(v), tiny.merges);
  EXPECT_THAT(spell(*t, "aqb"), ElementsAre("ab"));
}

TEST(Bpe, WholeWordsWhereMergesAreIgnored) {
  TinyBpe tiny;
  tiny.special.emplace_back("zzz", TokenKind::Normal);
  EXPECT_EQ(tiny.make()->encode("zzz").size(), 3u);
  tiny.pre = "llama-bpe";
  EXPECT_EQ(tiny.make()->encode("zzz").size(), 1u);
}

TEST(Bpe, RefusesMergesThatDoNotFitTheVocabulary) {
  TinyBpe tiny;
  const auto error = [&](const std::string& merge) {
    return error_of([&] {
      Vocabulary v = tiny.vocabulary();
      finish_vocabulary(v);
      const std::vector<std::string> merges = {merge};
      make_bpe_tokenizer(std::move(v), merges);
    });
  };
  EXPECT_THAT(error("ab"), HasSubstr("tiny.gguf: key tokenizer.ggml.merges: merge 0: expected two tokens"));
  EXPECT_THAT(error("a "), HasSubstr("expected two tokens"));
  EXPECT_THAT(error(""), HasSubstr("expected two tokens"));
  EXPECT_THAT(error("a xx"), HasSubstr("expected tokens of the vocabulary, found 'xx'"));
  EXPECT_THAT(error("a z"), HasSubstr("found 'az'"));
}

TEST(Bpe, DecodesWhatIsNoByteAsItIsSpelled) {
  TinyBpe tiny;
  tiny.special.emplace_back("日本", TokenKind::Normal);
  const auto t = tiny.make();
  EXPECT_EQ(t->piece(t->find("日本")), "日本");
  EXPECT_EQ(t->piece(t->find("Ġhello")), " hello");
}

TEST(Special, ControlTokensOnlyIfAskedFor) {
  const auto t = TinyBpe{}.make();
  EXPECT_THAT(spell(*t, "a<|im_end|>", {.parse_special = true}), ElementsAre("a", "<|im_end|>"));
  EXPECT_EQ(t->encode("<|im_end|>").size(), 10u);
  EXPECT_THAT(spell(*t, "a[tool]b"), ElementsAre("a", "[tool]", "b"));
  EXPECT_EQ(t->decode(t->encode("a<s>b", {.parse_special = true})), "ab");
  EXPECT_EQ(t->decode(t->encode("a<s>b", {.parse_special = true}), true), "a<s>b");
}

TEST(Special, LongerTokensFirstWhereverTheyAre) {
  const auto t = TinyBpe{}.make();
  EXPECT_THAT(spell(*t, "[tool][x]"), ElementsAre("[tool][x]"));
  // "[tool][x]" (9 bytes) is taken before "x]yz", which overlaps it.
  EXPECT_THAT(spell(*t, "[tool][x]yz"), ElementsAre("[tool][x]", "y", "z"));
  EXPECT_THAT(spell(*t, "[tool][[tool][x"), ElementsAre("[tool]", "[", "[tool]", "[", "x"));
  TinyBpe tiny;
  tiny.special = {
      {"xyz", TokenKind::UserDefined}, {"zzzzz", TokenKind::UserDefined}, {"xy", TokenKind::UserDefined}};
  // The longer token on the right takes the z, and the shorter one ends before it.
  EXPECT_THAT(spell(*tiny.make(), "xyzzzzz"), ElementsAre("xy", "zzzzz"));
}

TEST(Special, RunsOfOneCharacter) {
  TinyBpe tiny;
  for (int n = 2; n < 25; ++n)
    tiny.special.emplace_back(std::string(static_cast<std::size_t>(n), '~'), TokenKind::UserDefined);
  const auto t = tiny.make();
  EXPECT_THAT(spell(*t, std::string(30, '~')), ElementsAre(std::string(24, '~'), std::string(6, '~')));
  EXPECT_EQ(t->encode(std::string(240000, '~')).size(), 10000u);
}

TEST(Special, BosAndEos) {
  TinyBpe tiny;
  Vocabulary v = tiny.vocabulary();
  v.add_bos = v.add_eos = true;
  finish_vocabulary(v);
  const auto t = make_bpe_tokenizer(std::move(v), tiny.merges);
  EXPECT_THAT(t->encode("", {.add_special = true}), ElementsAre(t->bos(), t->eos()));
  EXPECT_THAT(t->encode(""), ElementsAre());
}

TEST(Spm, MergesByScore) {
  const auto t = TinySpm{.add_space_prefix = false}.make();
  EXPECT_THAT(spell(*t, "abc"), ElementsAre("a", "bc"));
  EXPECT_THAT(spell(*t, "ab"), ElementsAre("ab"));
  std::string text;
  Ids expected;
  for (int i = 0; i < 100; ++i) {
    text += "abc";
    expected.insert(expected.end(), {t->find("a"), t->find("bc")});
  }
  EXPECT_EQ(t->encode(text), expected);
}

TEST(Spm, SpacePrefix) {
  const auto t = TinySpm{}.make();
  EXPECT_THAT(spell(*t, "ab"), ElementsAre("▁ab"));
  EXPECT_THAT(spell(*t, " ab"), ElementsAre("▁▁", "ab"));
  EXPECT_THAT(spell(*t, "a<s>a", {.parse_special = true}), ElementsAre("▁a", "<s>", "▁a"));
  EXPECT_THAT(spell(*t, "ab", {.add_special = true}), ElementsAre("<s>", "▁ab"));
  for (const char* text : {"", " ", "ab", " ab", "  a  b ", "a[tool]b", "[tool] a", "a\n\tb"}) {
    EXPECT_EQ(t->decode(t->encode(text)), text);
  }
  EXPECT_EQ(t->decode(t->encode("a<s> a", {.parse_special = true}), true), "a<s> a");
}

TEST(Spm, BytesFallBack) {
  const auto t = TinySpm{.add_space_prefix = false}.make();
  EXPECT_THAT(spell(*t, "é"), ElementsAre("é"));
  EXPECT_THAT(spell(*t, "中"), ElementsAre("<0xE4>", "<0xB8>", "<0xAD>"));
  EXPECT_THAT(spell(*t, "\xC3"), ElementsAre("<0xC3>"));
  EXPECT_THAT(spell(*t, "\xE2 a"), ElementsAre("<0xE2>", "▁a"));
  EXPECT_EQ(t->decode(t->encode("中\xFF\xE2 a\xC3")), "中\xFF\xE2 a\xC3");
}

TEST(Spm, UnknownWithoutByteTokens) {
  const auto t = TinySpm{.bytes = false, .add_space_prefix = false}.make();
  EXPECT_THAT(spell(*t, "a中b"), ElementsAre("a", "<unk>", "b"));
}

TEST(Spm, TextIsNeverAControlToken) {
  const auto t = TinySpm{.add_space_prefix = false}.make();
  EXPECT_THAT(spell(*t, "<s>"), ElementsAre("<s", ">"));
  EXPECT_THAT(spell(*t, "<s>", {.parse_special = true}), ElementsAre("<s>"));
}

TEST(Spm, WhiteSpaceRules) {
  EXPECT_THAT(spell(*TinySpm{.strip_after_special = true}.make(), "[tool] \n a"),
              ElementsAre("[tool]", "▁a"));
  const auto t = TinySpm{.remove_extra_whitespaces = true}.make();
  EXPECT_THAT(spell(*t, "  a   b "), ElementsAre("▁a", "▁", "b"));
  EXPECT_THAT(spell(*t, "   "), ElementsAre());
}

TEST(Vocabulary, RefusesDuplicates) {
  TinyBpe tiny;
  tiny.special.emplace_back("hello", TokenKind::Normal);
  EXPECT_THAT(error_of([&] { tiny.make(); }),
              HasSubstr("tiny.gguf: key tokenizer.ggml.tokens: tokens 262 and 273 are"));
}

TEST(Vocabulary, RefusesBosThatIsMissing) {
  Vocabulary v = TinyBpe{}.vocabulary();
  v.bos = kNoToken;
  v.add_bos = true;
  EXPECT_THAT(error_of([&] { finish_vocabulary(v); }), HasSubstr("tokenizer.ggml.bos_token_id is missing"));
}

TEST(Vocabulary, KnowsWhatEndsGeneration) {
  TinyBpe tiny;
  tiny.special.emplace_back("<|end|>", TokenKind::Normal);
  const auto t = tiny.make();
  const auto ends = [](const Tokenizer& u, const char* spelling) {
    return u.is_end_of_generation(u.find(spelling));
  };
  EXPECT_TRUE(ends(*t, "<s>"));  // the EOS here
  EXPECT_TRUE(ends(*t, "<|im_end|>"));
  EXPECT_TRUE(ends(*t, "<|end|>"));
  EXPECT_FALSE(ends(*t, "hello"));
  EXPECT_EQ(t->kind(t->find("<|end|>")), TokenKind::Control);
  EXPECT_EQ(t->eot(), t->find("<|im_end|>"));
  tiny.special.emplace_back("<|return|>", TokenKind::Control);
  tiny.special.emplace_back("<|call|>", TokenKind::Control);
  EXPECT_FALSE(ends(*tiny.make(), "<|end|>"));
}

TEST(Vocabulary, RefusesIdsOutOfRange) {
  const auto t = TinyBpe{}.make();
  EXPECT_THAT(error_of([&] { t->piece(-1); }), HasSubstr("token -1: expected an id from 0 to"));
  EXPECT_THAT(error_of([&] { t->decode(Ids{100000}); }), HasSubstr("token 100000"));
  EXPECT_THAT(error_of([&] { t->is_end_of_generation(t->vocab_size()); }), HasSubstr("expected an id"));
}

std::vector<std::string_view> words(const char* pre, std::string_view text) {
  std::vector<std::string_view> out;
  PreTokenizer(pre, "tiny.gguf").split(text, out);
  return out;
}

TEST(PreTokenizer, Patterns) {
  EXPECT_THAT(words("gpt-2", "I'll go  there 123!?\n\n x"),
              ElementsAre("I", "'ll", " go", " ", " there", " 123", "!?", "\n\n", " x"));
  EXPECT_THAT(words("llama-bpe", "I'LL 12345 (a)\n \n b"),
              ElementsAre("I", "'LL", " ", "123", "45", " (", "a", ")\n", " \n", " b"));
  EXPECT_THAT(words("qwen2", "x12"), ElementsAre("x", "1", "2"));
  EXPECT_THAT(words("smollm", "x 12"), ElementsAre("x", " ", "1", "2"));
  EXPECT_THAT(words("falcon", "a,b 12345"), ElementsAre("a", ",", "b", " ", "123", "45"));
  EXPECT_THAT(words("", "a,b 12345"), ElementsAre("a", ",", "b", " ", "123", "45"));
  EXPECT_THAT(words("gpt-4o", "HelloWORLD's été 1234"),
              ElementsAre("Hello", "WORLD's", " été", " ", "123", "4"));
  EXPECT_THAT(words("tekken", "helloWorld 12"), ElementsAre("hello", "World", " ", "1", "2"));
  EXPECT_THAT(words("deepseek-v3", "你好abc1234"), ElementsAre("你好", "abc", "123", "4"));
  EXPECT_THAT(words("deepseek-coder", "a b\n12"), ElementsAre("a", " b", "\n", "1", "2"));
  EXPECT_THAT(words("qwen35", "e\u0301a"), ElementsAre("e\u0301a"));
  // U+0085 is white space, U+180E is not.
  EXPECT_THAT(words("gpt-2", "a\u0085\u180e"), ElementsAre("a", "\u0085", "\u180e"));
  EXPECT_THAT(error_of([] { words("no such", ""); }),
              HasSubstr("tiny.gguf: key tokenizer.ggml.pre: 'no such'"));
}

// Every pattern on texts that invite backtracking: nothing may be lost, and nothing take quadratic time.
TEST(PreTokenizer, LongRuns) {
  for (const char* pre :
       {"llama-bpe", "dbrx", "qwen2", "qwen35", "gpt-2", "smollm", "falcon", "default", "gpt-4o", "tekken",
        "deepseek-coder", "deepseek-v3", "bailingmoe", "seed-coder", "bloom", "viking"}) {
    for (const std::string unit :
         {" ", "\n", " \n", "\t", "A", "a", "1", "!", "中", "\u0301", "'", "(", "\r\n", "aB "}) {
      std::string text;
      for (int i = 0; i < 100000; ++i) text += unit;
      for (const char* last : {"", "x", "\n", "!"}) {
        std::size_t bytes = 0;
        for (const auto word : words(pre, text + last)) bytes += word.size();
        ASSERT_EQ(bytes, text.size() + std::string_view(last).size()) << pre << ' ' << unit;
      }
    }
  }
}

}  // namespace
}  // namespace narrows
