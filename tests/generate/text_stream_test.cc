#include "generate/text_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "narrows/error.h"

namespace narrows {
namespace {

using State = TextStream::State;

TEST(IncompleteUtf8, FindsBegunCharacters) {
  EXPECT_EQ(incomplete_utf8(""), 0u);
  EXPECT_EQ(incomplete_utf8("abc"), 0u);
  EXPECT_EQ(incomplete_utf8("é"), 0u);
  EXPECT_EQ(incomplete_utf8("\xC3"), 1u);
  EXPECT_EQ(incomplete_utf8("a\xE2\x82"), 2u);
  EXPECT_EQ(incomplete_utf8("\xE2\x82\xAC"), 0u);
  EXPECT_EQ(incomplete_utf8("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_utf8("\xF0\x9F\x98\x80"), 0u);
  // No character begins like this.
  for (const char* bytes : {"\x80", "\xC0", "\xC1", "\xF5", "\xFF", "\xE0\x80", "\xED\xA0", "\xF0\x80",
                            "\xF4\x90", "\x80\x80\x80", "\xC3\xA9\x80"})
    EXPECT_EQ(incomplete_utf8(bytes), 0u);
}

struct Collected {
  std::vector<std::string> pieces;
  std::string text;
  State state = State::Open;
};

Collected stream(const std::vector<std::string>& pieces, const std::vector<std::string>& stop = {}) {
  Collected result;
  TextStream s(stop, [&](std::string_view text) {
    EXPECT_FALSE(text.empty());
    result.pieces.emplace_back(text);
    return true;
  });
  for (const auto& piece : pieces) s.push(piece);
  result.state = s.finish();
  result.text = s.text();
  return result;
}

using Pieces = std::vector<std::string>;

TEST(TextStream, HoldsBackPartOfACharacter) {
  EXPECT_EQ(stream({"a\xF0", "\x9F", "\x98", "\x80z"}).pieces, (Pieces{"a", "\xF0\x9F\x98\x80z"}));
}

TEST(TextStream, DeliversInvalidBytesAsTheyAre) {
  EXPECT_EQ(stream({"\xFF", "\x80", "a"}).pieces, (Pieces{"\xFF", "\x80", "a"}));
  EXPECT_EQ(stream({"\xE2\x82", "x"}).pieces, (Pieces{"\xE2\x82x"}));
  EXPECT_EQ(stream({"\xE2", "\xE2", "\x82\xAC"}).pieces, (Pieces{"\xE2", "\xE2\x82\xAC"}));
  EXPECT_EQ(stream({"a\xE2\x82"}).text, "a\xE2\x82");  // the end delivers what was begun
}

TEST(TextStream, StopStringsSpanPieces) {
  const auto r = stream({"Hello", " <", "|e", "nd|> more"}, {"<|end|>"});
  EXPECT_EQ(r.text, "Hello ");
  EXPECT_EQ(r.state, State::StopString);
  EXPECT_EQ(stream({"a <|", "x", " b"}, {"<|end|>"}).pieces, (Pieces{"a ", "<|x", " b"}));
  EXPECT_EQ(stream({"a <|en"}, {"<|end|>"}).text, "a <|en");
  EXPECT_EQ(stream({"aaab"}, {"aab"}).text, "a");
  EXPECT_EQ(stream({"a", "a", "a", "b"}, {"aab"}).text, "a");
}

TEST(TextStream, TheFirstCompleteStopStringCounts) {
  EXPECT_EQ(stream({"xx ab cd"}, {"cd", "ab"}).text, "xx ");
  EXPECT_EQ(stream({"xabcd"}, {"abcde", "bc"}).text, "xa");
  EXPECT_EQ(stream({"xabc"}, {"c", "bc"}).text, "xa");
}

TEST(TextStream, StopsWhenRefused) {
  int calls = 0;
  TextStream s({}, [&](std::string_view) { return ++calls < 2; });
  EXPECT_EQ(s.push("a"), State::Open);
  EXPECT_EQ(s.push("b"), State::Refused);
  EXPECT_EQ(s.push("c"), State::Refused);
  EXPECT_EQ(s.finish(), State::Refused);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(s.text(), "ab");
}

TEST(TextStream, RefusesAnEmptyStopString) { EXPECT_THROW(TextStream({"a", ""}, {}), Error); }

TEST(TextStream, ResultDoesNotDependOnPieces) {
  std::mt19937 rng(3);
  const Pieces alphabet{"a", "b", "<", "|", "é", "€", "😀", "\xFF", "\xE2", "\x80"};
  const Pieces stop{"<|a", "ab<", "€b", "|\xFF"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += alphabet[rng() % alphabet.size()];
    Pieces bytes, cut;
    for (char c : text) bytes.emplace_back(1, c);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = 1 + rng() % 5;
      cut.push_back(text.substr(at, n));
      at += n;
    }
    const auto whole = stream({text}, stop), by_byte = stream(bytes, stop), by_cut = stream(cut, stop);
    ASSERT_EQ(whole.text, by_byte.text);
    ASSERT_EQ(whole.text, by_cut.text);
    ASSERT_EQ(whole.state, by_byte.state);
    ASSERT_EQ(whole.state, by_cut.state);
    ASSERT_EQ(whole.state == State::Open, whole.text == text);
  }
}

}  // namespace
}  // namespace narrows
