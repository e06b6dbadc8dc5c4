#include "tokenizer/hf_pre_tokenizer.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/onig_regex.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace narrows {

namespace {

using Step = HfPreTokenizer::Step;
using Word = HfWords::Word;

// Calls the visitor with begin and end of each match in a text.
using Visit = std::function<void(std::size_t, std::size_t)>;
using Find = std::function<void(std::string_view, const Visit&)>;

// What becomes of the matches of a pattern.
enum class Behavior { Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous };

Behavior read_behavior(const JsonItem& item) {
  const std::string& name = item.string();
  for (const auto& [known, behavior] :
       {std::pair{"Isolated", Behavior::Isolated}, std::pair{"Removed", Behavior::Removed},
        std::pair{"MergedWithPrevious", Behavior::MergedWithPrevious},
        std::pair{"MergedWithNext", Behavior::MergedWithNext},
        std::pair{"Contiguous", Behavior::Contiguous}}) {
    if (name == known) return behavior;
  }
  item.expected("Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
}

struct Part {
  std::size_t begin, end;
  bool match;
};

// The parts that remain, in order.
void merge_parts(std::vector<Part>& parts, Behavior behavior) {
  std::vector<Part> out;
  bool previous = false;
  switch (behavior) {
    case Behavior::Isolated:
      return;
    case Behavior::Removed:
      std::erase_if(parts, [](const Part& part) { return part.match; });
      return;
    case Behavior::Contiguous:
      for (const Part& part : parts) {
        if (part.match == previous && !out.empty()) {
          out.back().end = part.end;
        } else {
          out.push_back(part);
        }
        previous = part.match;
      }
      break;
    case Behavior::MergedWithPrevious:
      for (const Part& part : parts) {
        if (part.match && !previous && !out.empty()) {
          out.back().end = part.end;
        } else {
          out.push_back(part);
        }
        previous = part.match;
      }
      break;
    case Behavior::MergedWithNext:
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->match && !previous && !out.empty()) {
          out.back().begin = part->begin;
        } else {
          out.push_back(*part);
        }
        previous = part->match;
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  parts = std::move(out);
}

void split(HfWords& words, const Find& find, Behavior behavior, bool invert = false) {
  std::vector<Word> next;
  std::vector<Part> parts;
  for (const Word& word : words.words) {
    const std::string_view text = words.view(word);
    parts.clear();
    std::size_t done = 0;
    find(text, [&](std::size_t begin, std::size_t end) {
      if (begin > done) parts.push_back({done, begin, invert});
      parts.push_back({begin, end, !invert});
      done = end;
    });
    if (done < text.size()) parts.push_back({done, text.size(), invert});
    merge_parts(parts, behavior);
    for (const Part& part : parts) {
      if (part.begin == part.end) continue;
      const std::size_t start = word.start_bytes - std::min(word.start_bytes, part.begin);
      next.push_back(
          {word.begin + part.begin, word.begin + part.end, std::min(start, part.end - part.begin)});
    }
  }
  words.words = std::move(next);
}

Find by_regex(std::shared_ptr<const OnigRegex> regex) {
  return
      [regex = std::move(regex)](std::string_view text, const Visit& visit) { regex->matches(text, visit); };
}

Find by_regex(std::string_view pattern) {
  return by_regex(std::make_shared<OnigRegex>(pattern, "pre-tokenizer"));
}

// Each character that is so is a match.
template <typename Is>
Find by_character(Is is) {
  return [is](std::string_view text, const Visit& visit) {
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t length = utf8_sequence(text.substr(i));
      if (is(decode_utf8(text.substr(i), length))) visit(i, i + length);
      i += length;
    }
  };
}

// Writes the text anew, word by word: `write(word, bytes, out)` appends what the word becomes, and gives how
// much of that comes from the start if some of the word does.
template <typename Write>
void rewrite(HfWords& words, const Write& write) {
  std::string out;
  out.reserve(words.text.text.size() * 2);
  for (Word& word : words.words) {
    const std::size_t begin = out.size();
    const std::size_t start = write(word, words.view(word), out);
    words.text.check_length(out.size());
    word = {begin, out.size(), word.start_bytes > 0 ? start : 0};
  }
  words.text.text = std::move(out);
}

struct Split final : Step {
  Split(Find f, Behavior b, bool i = false) : find(std::move(f)), behavior(b), invert(i) {}
  void apply(HfWords& words) const override { split(words, find, behavior, invert); }
  Find find;
  Behavior behavior;
  bool invert;
};

struct PrefixSpace final : Step {
  void apply(HfWords& words) const override {
    rewrite(words, [](const Word& word, std::string_view bytes, std::string& out) {
      const bool there = bytes.starts_with(' ');
      if (!there) out += ' ';
      out += bytes;
      return word.start_bytes + !there;
    });
  }
  bool prepends_always() const override { return true; }
};

struct Bytes final : Step {
  void apply(HfWords& words) const override {
    rewrite(words, [](const Word& word, std::string_view bytes, std::string& out) {
      std::size_t start = 0;
      const std::size_t begin = out.size();
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        out += byte_alphabet().character(static_cast<unsigned char>(bytes[i]));
        if (i < word.start_bytes) start = out.size() - begin;
      }
      return start;
    });
  }
};

struct Metaspace final : Step {
  Metaspace(std::string r, PrependScheme s) : replacement(std::move(r)), scheme(s) {}
  void apply(HfWords& words) const override {
    rewrite(words, [this](const Word& word, std::string_view bytes, std::string& out) {
      const bool there = bytes.starts_with(replacement) || bytes.starts_with(' ');
      const bool wanted =
          scheme == PrependScheme::Always || (scheme == PrependScheme::First && word.start_bytes > 0);
      std::size_t start = 0;
      const std::size_t begin = out.size();
      if (wanted && !there) out += replacement;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] == ' ') {
          out += replacement;
        } else {
          out += bytes[i];
        }
        if (i < word.start_bytes) start = out.size() - begin;
      }
      return start;
    });
  }
  bool prepends_always() const override { return scheme == PrependScheme::Always; }
  std::string replacement;
  PrependScheme scheme;
};

// A string that must be one character.
const std::string& character(const JsonItem& item) {
  const std::string& text = item.string();
  if (text.empty() || utf8_sequence(text) != text.size()) item.expected("one character");
  return text;
}

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

PrependScheme read_prepend_scheme(const JsonItem& metaspace) {
  if (!metaspace.boolean_or("add_prefix_space", true)) return PrependScheme::Never;
  const auto scheme = metaspace.find("prepend_scheme");
  if (!scheme || scheme->string() == "always") return PrependScheme::Always;
  if (scheme->string() == "never") return PrependScheme::Never;
  if (scheme->string() == "first") return PrependScheme::First;
  scheme->expected("always, never or first");
}

HfPreTokenizer::HfPreTokenizer(const JsonItem& description) {
  for (const JsonItem& part : sequence_parts(description, "pretokenizers")) add(part);
}
HfPreTokenizer::HfPreTokenizer(HfPreTokenizer&&) noexcept = default;
HfPreTokenizer& HfPreTokenizer::operator=(HfPreTokenizer&&) noexcept = default;
HfPreTokenizer::~HfPreTokenizer() = default;

void HfPreTokenizer::add(const JsonItem& description) {
  const std::string& type = description.get("type").string();
  const auto push = [&]<typename S>(S step) { steps_.push_back(std::make_unique<S>(std::move(step))); };
  if (type == "ByteLevel") {
    if (description.boolean_or("add_prefix_space", true)) push(PrefixSpace());
    if (description.boolean_or("use_regex", true)) push(Split(by_regex(kGpt2), Behavior::Isolated));
    push(Bytes());
  } else if (type == "Split") {
    auto regex = std::make_shared<OnigRegex>(read_hf_pattern(description.get("pattern")));
    push(Split(by_regex(std::move(regex)), read_behavior(description.get("behavior")),
               description.boolean_or("invert", false)));
  } else if (type == "Digits") {
    const bool each = description.boolean_or("individual_digits", false);
    push(Split(by_character(is_numeric), each ? Behavior::Isolated : Behavior::Contiguous));
  } else if (type == "Metaspace") {
    const std::string& replacement = character(description.get("replacement"));
    push(Metaspace(replacement, read_prepend_scheme(description)));
    if (description.boolean_or("split", true)) {
      push(Split(by_regex(escaped_pattern(replacement)), Behavior::MergedWithNext));
    }
  } else if (type == "Whitespace") {
    // Words, or runs of what is neither word nor white space.
    constexpr std::string_view kPattern = R"([\w\u200C\u200D]+|[^\w\s\u200C\u200D]+)";
    push(Split(by_regex(kPattern), Behavior::Removed, true));
  } else if (type == "WhitespaceSplit") {
    push(Split(by_character(is_white_space), Behavior::Removed));
  } else if (type == "Punctuation") {
    const auto behavior = description.find("behavior");
    push(Split(by_character(is_punctuation), behavior ? read_behavior(*behavior) : Behavior::Isolated));
  } else if (type == "BertPreTokenizer") {
    push(Split(by_character(is_white_space), Behavior::Removed));
    push(Split(by_character(is_punctuation), Behavior::Isolated));
  } else if (type == "CharDelimiterSplit") {
    push(Split(by_regex(escaped_pattern(character(description.get("delimiter")))), Behavior::Removed));
  } else {
    description.get("type").expected(
        "Sequence, ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit, Punctuation, "
        "BertPreTokenizer or "
        "CharDelimiterSplit");
  }
}

bool HfPreTokenizer::prepends_always() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const auto& step) { return step->prepends_always(); });
}

void HfPreTokenizer::apply(HfWords& words) const {
  std::erase_if(words.words, [](const Word& word) { return word.begin == word.end; });
  for (const auto& step : steps_) step->apply(words);
}

}  // namespace narrows
