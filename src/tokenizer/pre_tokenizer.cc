#include "tokenizer/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "tokenizer/vocabulary.h"

namespace narrows {

namespace {

// The patterns are those of the models' own tokenizer.json, not llama.cpp's rewrites of them for std::regex.
// A name may have several, each applied to the pieces that the one before has left; what no alternative
// matches is a piece too. \s and \S stand for Unicode's White_Space property.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
constexpr std::string_view kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view kPunctuation = R"([\p{P}$+<=>\^~|`]+)";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";
constexpr std::string_view kDigit = R"(\p{N})";

struct Rule {
  std::array<std::string_view, 11> names;
  std::array<std::string_view, 5> patterns;
  bool ignore_merges = false;
  bool add_bos = false;
};

constexpr Rule kRules[] = {
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
     {kLlama3},
     true,
     true},
    {{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, {kLlama3}},
    {{"qwen2", "stablelm2", "deepseek-r1-qwen", "kormo", "megrez", "hunyuan", "solar-open", "grok-2"},
     {kQwen2}},
    {{"qwen35"}, {kQwen35}},
    {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0", "mellum",
      "exaone4"},
     {kGpt2}},
    {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}, {kDigit, kGpt2}},
    {{"falcon"}, {kPunctuation, kGpt2, kThreeDigits}},
    {{"default"}, {R"([\p{P}$+<=>\^~|]+)", kGpt2, R"(\p{N}+)", kThreeDigits}},
    {{"gpt-4o", "llama4", "kanana2", "minimax-m2"}, {kO200k}},
    {{"tekken"}, {kTekken}, true, true},
    {{"deepseek-coder"}, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", kDigit}},
    {{"deepseek-v3", "hunyuan-dense", "joyai-llm"},
     {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepseek3}},
    {{"bailingmoe", "bailingmoe2", "llada-moe"}, {kBailing}},
    {{"seed-coder"}, {kSeedCoder}},
    {{"bloom", "poro-chat", "gpt3-finnish"}, {kBloom}},
    {{"viking"}, {kBloom, kDigit}},
};

const Rule* find_rule(std::string_view name) {
  if (name.empty()) name = "default";
  for (const Rule& rule : kRules) {
    for (const auto known : rule.names) {
      if (known == name) return &rule;
    }
  }
  return nullptr;
}

// PCRE2's own \s has U+180E, which left White_Space in Unicode 6.3.
std::string with_white_space(std::string_view pattern) {
  constexpr std::string_view kSpaces =
      R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\') {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      out += c;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's' && in_class) {
      out += kSpaces;
    } else if (escaped == 's' || escaped == 'S') {
      out.append(escaped == 's' ? "[" : "[^").append(kSpaces).append("]");
    } else {
      out.append({'\\', escaped});
    }
  }
  return out;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

bool pre_tokenizer_adds_bos(std::string_view name) {
  const Rule* rule = find_rule(name);
  return rule != nullptr && rule->add_bos;
}

bool pre_tokenizer_ignores_merges(std::string_view name) {
  const Rule* rule = find_rule(name);
  return rule != nullptr && rule->ignore_merges;
}

const std::string_view PreTokenizerPatterns::kByteLevel = kGpt2;
const std::string_view PreTokenizerPatterns::kEachDigit = kDigit;
const std::string_view PreTokenizerPatterns::kDigits = R"(\p{N}+)";
const std::string_view PreTokenizerPatterns::kPunctuation = narrows::kPunctuation;

std::string_view pre_tokenizer_name(std::span<const std::string> patterns, bool ignore_merges) {
  for (const Rule& rule : kRules) {
    const auto used =
        std::count_if(rule.patterns.begin(), rule.patterns.end(), [](auto p) { return !p.empty(); });
    if (rule.ignore_merges == ignore_merges && static_cast<std::size_t>(used) == patterns.size() &&
        std::equal(patterns.begin(), patterns.end(), rule.patterns.begin())) {
      return rule.names[0];
    }
  }
  return "";
}

struct PreTokenizer::Pattern {
  explicit Pattern(std::string_view text) {
    const std::string expanded = with_white_space(text);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
    if (!code) fail("pre-tokenizer pattern {}: PCRE2 error {} at offset {}", expanded, error, offset);
    // Where PCRE2 has no compiler for this machine, its interpreter serves.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  }

  void split(std::string_view text, pcre2_match_data* match, std::vector<std::string_view>& words) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(match);
    std::size_t done = 0;
    while (done < text.size()) {
      const int rc = pcre2_match(code.get(), subject, text.size(), done, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                                 match, nullptr);
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0)
        fail("pre-tokenizer: PCRE2 error {} in a text of {} bytes at offset {}", rc, text.size(), done);
      if (found[0] > done) words.push_back(text.substr(done, found[0] - done));
      words.push_back(text.substr(found[0], found[1] - found[0]));
      done = found[1];
    }
    if (done < text.size()) words.push_back(text.substr(done));
  }

  std::unique_ptr<pcre2_code, FreeCode> code;
};

PreTokenizer::PreTokenizer(std::string_view name, const std::string& source) {
  const Rule* rule = find_rule(name);
  if (rule == nullptr) {
    fail("{}: key tokenizer.ggml.pre: {} is not a pre-tokenizer that narrows knows", source, quoted(name));
  }
  for (const auto pattern : rule->patterns) {
    if (!pattern.empty()) patterns_.emplace_back(pattern);
  }
}

PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::split(std::string_view text, std::vector<std::string_view>& words) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  if (!match) throw std::bad_alloc();
  std::vector<std::string_view> pieces = {text};
  for (std::size_t i = 0; i < patterns_.size(); ++i) {
    std::vector<std::string_view> next;
    auto& into = i + 1 == patterns_.size() ? words : next;
    for (const auto piece : pieces) patterns_[i].split(piece, match.get(), into);
    pieces = std::move(next);
  }
}

}  // namespace narrows
