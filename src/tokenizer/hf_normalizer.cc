#include "tokenizer/hf_normalizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/onig_regex.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace narrows {

namespace {

using Step = HfNormalizer::Step;

struct Form final : Step {
  Form(bool c, bool k) : compose(c), compatibility(k) {}
  void apply(HfText& text) const override {
    const std::string start = normalize(text.text.substr(0, text.start_bytes), compose, compatibility);
    text.text = normalize(text.text, compose, compatibility);
    if (text.start_bytes == 0) return;
    // What follows may have been composed with it.
    text.start_bytes = text.text.starts_with(start) ? start.size() : utf8_sequence(text.text);
  }
  bool compose, compatibility;
};

struct Prepend final : Step {
  explicit Prepend(std::string p) : prefix(std::move(p)) {}
  void apply(HfText& text) const override {
    if (text.text.empty()) return;
    text.check_length(text.text.size() + prefix.size());
    text.text.insert(0, prefix);
    if (text.start_bytes > 0) text.start_bytes += prefix.size();
  }
  bool prepends() const override { return true; }
  std::string prefix;
};

// `matches(visit)` calls visit with the begin and end of each match.
template <typename Matches>
void replace(HfText& text, const std::string& content, const Matches& matches) {
  std::string out;
  std::size_t done = 0;
  const std::size_t start = text.start_bytes;
  std::size_t new_start = std::string::npos;  // not known before what follows the start is reached
  matches([&](std::size_t begin, std::size_t end) {
    out.append(text.text, done, begin - done);
    // What replaces several characters counts as coming from the last of them.
    if (end > start && new_start == std::string::npos)
      new_start = out.size() - (begin > start ? begin - start : 0);
    out += content;
    text.check_length(out.size());
    done = end;
  });
  out.append(text.text, done);
  if (new_start == std::string::npos) new_start = out.size() - (text.text.size() - start);
  text.start_bytes = start == 0 ? 0 : new_start;
  text.text = std::move(out);
}

struct Replace final : Step {
  Replace(OnigRegex p, std::string c) : pattern(std::move(p)), content(std::move(c)) {}
  void apply(HfText& text) const override {
    replace(text, content, [&](const auto& visit) { pattern.matches(text.text, visit); });
  }
  OnigRegex pattern;
  std::string content;
};

// A replacement of a plain string, without the detour.
struct ReplaceString final : Step {
  ReplaceString(std::string p, std::string c) : pattern(std::move(p)), content(std::move(c)) {}
  void apply(HfText& text) const override {
    replace(text, content, [&](const auto& visit) {
      std::size_t at = text.text.find(pattern);
      for (; at != std::string::npos; at = text.text.find(pattern, at + pattern.size())) {
        visit(at, at + pattern.size());
      }
    });
  }
  std::string pattern, content;
};

template <typename Visit>
void for_each_character(std::string_view text, const Visit& visit) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_sequence(text.substr(i));
    visit(i, decode_utf8(text.substr(i), length), text.substr(i, length));
    i += length;
  }
}

// `write(c, bytes, out)` appends what a character becomes.
template <typename Write>
void rewrite(HfText& text, const Write& write) {
  std::string out;
  std::size_t new_start = 0;
  for_each_character(text.text, [&](std::size_t at, char32_t c, std::string_view bytes) {
    write(c, bytes, out);
    if (at < text.start_bytes) new_start = out.size();
  });
  text.start_bytes = new_start;
  text.text = std::move(out);
}

struct Lowercase final : Step {
  void apply(HfText& text) const override {
    rewrite(text, [](char32_t c, std::string_view, std::string& out) { append_lower(c, out); });
  }
};

struct Strip final : Step {
  Strip(bool l, bool r) : left(l), right(r) {}
  void apply(HfText& text) const override {
    std::size_t begin = text.text.size(), end = 0;
    for_each_character(text.text, [&](std::size_t at, char32_t c, std::string_view bytes) {
      if (is_white_space(c)) return;
      begin = std::min(begin, at);
      end = at + bytes.size();
    });
    if (!left) begin = 0;
    if (!right) end = text.text.size();
    text.start_bytes -= std::min(text.start_bytes, begin);
    text.text = begin < end ? text.text.substr(begin, end - begin) : std::string();
  }
  bool left, right;
};

struct StripAccents final : Step {
  void apply(HfText& text) const override {
    rewrite(text, [](char32_t c, std::string_view bytes, std::string& out) {
      if (!is_mark(c)) out += bytes;
    });
  }
};

struct Precompiled final : Step {
  explicit Precompiled(Charsmap m) : map(std::move(m)) {}
  void apply(HfText& text) const override {
    const std::string start = map.apply(text.text.substr(0, text.start_bytes));
    text.text = map.apply(text.text);
    if (text.start_bytes == 0) return;
    // `tokenizers` takes what follows a first character that is dropped for the first.
    const bool kept = !start.empty() && text.text.starts_with(start);
    text.start_bytes = kept ? start.size() : text.text.empty() ? 0 : utf8_sequence(text.text);
  }
  Charsmap map;
};

struct Bytes final : Step {
  void apply(HfText& text) const override {
    rewrite(text, [](char32_t, std::string_view bytes, std::string& out) {
      for (const char c : bytes) out += byte_alphabet().character(static_cast<unsigned char>(c));
    });
  }
};

}  // namespace

void HfText::check_length(std::size_t bytes) const {
  if (bytes > longest) fail("normalizer: expected at most {} bytes from a text, found {}", longest, bytes);
}

OnigRegex read_hf_pattern(const JsonItem& pattern) {
  if (const auto string = pattern.find("String")) return {escaped_pattern(string->string()), string->where()};
  const JsonItem regex = pattern.get("Regex");
  return {regex.string(), regex.where()};
}

HfNormalizer::HfNormalizer(const JsonItem& description) {
  for (const JsonItem& part : sequence_parts(description, "normalizers")) add(part);
}
HfNormalizer::HfNormalizer(HfNormalizer&&) noexcept = default;
HfNormalizer& HfNormalizer::operator=(HfNormalizer&&) noexcept = default;
HfNormalizer::~HfNormalizer() = default;

void HfNormalizer::add(const JsonItem& description) {
  const std::string& type = description.get("type").string();
  const auto push = [&]<typename S>(S step) { steps_.push_back(std::make_unique<S>(std::move(step))); };
  if (type == "NFC" || type == "NFD") {
    push(Form(type == "NFC", false));
  } else if (type == "NFKC" || type == "NFKD") {
    push(Form(type == "NFKC", true));
  } else if (type == "Prepend") {
    push(Prepend(description.get("prepend").string()));
  } else if (type == "Replace") {
    const JsonItem pattern = description.get("pattern");
    const std::string& content = description.get("content").string();
    const auto string = pattern.find("String");
    if (string && !string->string().empty()) {
      push(ReplaceString(string->string(), content));
    } else {
      push(Replace(read_hf_pattern(pattern), content));
    }
  } else if (type == "Lowercase") {
    push(Lowercase());
  } else if (type == "Strip") {
    push(Strip(description.boolean_or("strip_left", true), description.boolean_or("strip_right", true)));
  } else if (type == "StripAccents") {
    push(StripAccents());
  } else if (type == "ByteLevel") {
    push(Bytes());
  } else if (type == "Precompiled") {
    const auto item = description.find("precompiled_charsmap");
    if (!item) return;  // what SentencePiece's identity becomes
    const auto bytes = decode_base64(item->string());
    if (!bytes) item->expected("base64");
    push(Precompiled(Charsmap(*bytes, item->where())));
  } else {
    description.get("type").expected(
        "Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, StripAccents, ByteLevel or "
        "Precompiled");
  }
}

bool HfNormalizer::prepends() const {
  for (const auto& step : steps_) {
    if (step->prepends()) return true;
  }
  return false;
}

void HfNormalizer::apply(HfText& text) const {
  for (const auto& step : steps_) {
    step->apply(text);
    text.check_length(text.text.size());
  }
}

}  // namespace narrows
