#include "tokenizer/hf_decoder.h"

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/hf_normalizer.h"
#include "tokenizer/hf_pre_tokenizer.h"

namespace narrows {

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// The value of "<0xAB>", -1 if the token is not spelled so.
int byte_value(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return -1;
  const int high = hex_digit(spelling[3]), low = hex_digit(spelling[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

HfDecoder::HfDecoder(const JsonItem& document) {
  if (const auto decoder = document.find("decoder")) {
    for (const JsonItem& part : sequence_parts(*decoder, "decoders")) add(part);
  } else {
    space_before_ = strips_space_ = true;
  }
}

void HfDecoder::add(const JsonItem& description) {
  const std::string& type = description.get("type").string();
  const auto replace = [&](OnigRegex pattern, std::string content) {
    steps_.push_back({Step::Kind::Replace, std::move(pattern), std::move(content)});
  };
  if (type == "ByteLevel") {
    steps_.push_back({Step::Kind::ByteLevel, std::nullopt, ""});
  } else if (type == "ByteFallback") {
    steps_.push_back({Step::Kind::ByteFallback, std::nullopt, ""});
  } else if (type == "Replace") {
    const JsonItem content = description.get("content");
    constexpr std::size_t kLongest = 256;
    if (content.string().size() > kLongest) content.expected("a shorter string");
    replace(read_hf_pattern(description.get("pattern")), content.string());
  } else if (type == "Metaspace") {
    const JsonItem replacement = description.get("replacement");
    replace({escaped_pattern(replacement.string()), replacement.where()}, " ");
    strips_space_ |= read_prepend_scheme(description) != PrependScheme::Never;
  } else if (type == "BPEDecoder") {
    const JsonItem suffix = description.get("suffix");
    if (!suffix.string().empty()) replace({escaped_pattern(suffix.string()), suffix.where()}, " ");
  } else if (type == "Strip") {
    if (description.get("stop").integer(0, 1 << 20) != 0) description.get("stop").expected("0");
    const bool strips = description.get("start").integer(0, 1 << 20) > 0;
    if (strips && description.get("content").string() != " ") description.get("content").expected("a space");
    strips_space_ |= strips;
  } else if (type != "Fuse") {
    description.get("type").expected(
        "Sequence, ByteLevel, Metaspace, ByteFallback, Fuse, Strip, Replace or BPEDecoder");
  }
}

std::string HfDecoder::bytes(std::string_view spelling, bool added) const {
  std::string text = space_before_ ? " " : "";
  text += spelling;
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::ByteLevel:
        if (!added) text = byte_alphabet().decode(text);
        break;
      case Step::Kind::ByteFallback:
        if (const int value = byte_value(text); value >= 0) return std::string(1, static_cast<char>(value));
        break;
      case Step::Kind::Replace: {
        std::string valid, out;
        append_valid_utf8(text, valid);
        std::size_t done = 0;
        step.pattern->matches(valid, [&](std::size_t begin, std::size_t end) {
          out.append(valid, done, begin - done) += step.content;
          done = end;
        });
        text = out.append(valid, done);
      }
    }
  }
  return text;
}

}  // namespace narrows
