#include "tokenizer/hf_conversion.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/hf_model.h"
#include "tokenizer/hf_pre_tokenizer.h"
#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace narrows {

namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581
constexpr std::size_t kLongest = 1024;               // bytes of a token that are looked at in every way
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";

std::vector<JsonItem> steps_of(const JsonItem& document, std::string_view key, std::string_view members) {
  const auto item = document.find(key);
  return item ? sequence_parts(*item, members) : std::vector<JsonItem>();
}

bool is(const JsonItem& step, std::string_view type) { return step.get("type").string() == type; }

bool has_type(const std::vector<JsonItem>& steps, std::string_view type) {
  return std::any_of(steps.begin(), steps.end(), [&](const JsonItem& step) { return is(step, type); });
}

bool replaces_spaces(const JsonItem& step) {
  if (!is(step, "Replace") || step.string_or("content", "") != kSpace) return false;
  return step.get("pattern").string_or("String", "") == " ";
}

// Text can become these in SPM.
bool can_be_text(TokenKind kind) {
  return kind == TokenKind::Normal || kind == TokenKind::UserDefined || kind == TokenKind::Unused;
}

class Converter {
 public:
  Converter(const JsonItem& document, const HfTokens& tokens)
      : model_(document.get("model")),
        tokens_(tokens),
        normalizers_(steps_of(document, "normalizer", "normalizers")),
        pre_tokenizers_(steps_of(document, "pre_tokenizer", "pretokenizers")) {}

  HfConversion run() {
    const std::string type = model_.string_or("type", "BPE");
    check_added_tokens();
    if (type == "Unigram") {
      unigram();
    } else if (type != "BPE") {
      out_.model = "none";
      reason("llama.cpp has no model of type {}", type);
    } else if (has_type(pre_tokenizers_, "ByteLevel") || has_type(normalizers_, "ByteLevel")) {
      byte_level();
    } else if (model_.boolean_or("byte_fallback", false) || writes_spaces()) {
      spm();
    } else {
      out_.model = "none";
      reason("llama.cpp has no BPE that is neither byte-level nor SentencePiece's");
    }
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void reason(fmt::format_string<Args...> format, Args&&... args) {
    out_.reasons.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  bool writes_spaces() const {
    return has_type(pre_tokenizers_, "Metaspace") ||
           std::any_of(normalizers_.begin(), normalizers_.end(), replaces_spaces);
  }

  // GGUF has no place for most properties of added tokens; and where two of them overlap in a text, the
  // longer is taken, not the first. That differs if the second can be longer.
  void check_added_tokens() {
    bool plain = false;
    for (const HfAddedToken& token : tokens_.added) {
      if (token.content.size() > kLongest) {
        reason("the added token {} has more than {} bytes", narrows::quoted(token.content), kLongest);
        return;
      }
      if (token.lstrip || token.rstrip || token.single_word) {
        reason("the added token {} strips white space or must be a word", narrows::quoted(token.content));
        break;
      }
      plain |= !token.normalized;
    }
    std::unordered_map<std::string_view, std::size_t> beginnings;  // of tokens, to the length of the longest
    for (const HfAddedToken& token : tokens_.added) {
      for (std::size_t n = 1; n < token.content.size(); ++n) {
        std::size_t& longest = beginnings[std::string_view(token.content).substr(0, n)];
        longest = std::max(longest, token.content.size());
      }
    }
    for (const HfAddedToken& token : tokens_.added) {
      const std::string_view text = token.content;
      // Runs of one character are cut alike.
      if (text.find_first_not_of(text[0]) == text.npos) continue;
      for (std::size_t n = 1; n < text.size(); ++n) {
        const auto other = beginnings.find(text.substr(text.size() - n));
        if (other == beginnings.end() || other->second <= text.size()) continue;
        reason("the added token {} may overlap with another", narrows::quoted(text));
        return;
      }
    }
    for (const HfAddedToken& token : tokens_.added) {
      if (token.normalized && (!normalizers_.empty() || plain)) {
        reason("the added token {} is searched in the normalized text", narrows::quoted(token.content));
        return;
      }
    }
  }

  void check_bpe() {
    if (!model_.string_or("continuing_subword_prefix", "").empty() ||
        !model_.string_or("end_of_word_suffix", "").empty()) {
      reason("tokens have a prefix or suffix for their place in a word");
    }
  }

  void byte_level() {
    out_.model = "gpt2";
    check_bpe();
    for (const JsonItem& step : normalizers_) reason("normalizer {}", step.get("type").string());
    const HfVocabulary vocabulary = read_hf_vocabulary(model_);
    if (const auto unk = model_.find("unk_token"); unk && !unk->string().empty()) {
      for (unsigned byte = 0; byte < 256; ++byte) {
        if (vocabulary.find(byte_alphabet().character(static_cast<unsigned char>(byte))) != kNoToken)
          continue;
        reason("a byte that has no token becomes the unknown token");
        break;
      }
    }
    bool crosses_digits = false;
    std::unordered_set<std::string> seen;
    for_each_hf_merge(model_, [&](std::size_t, std::string_view left, std::string_view right) {
      std::string merge(left);
      merge.append(" ").append(right);
      if (left.find(' ') != left.npos || right.find(' ') != right.npos) {
        if (!spaced_merge_) reason("the merge {} has a space in a token", narrows::quoted(merge));
        spaced_merge_ = true;
        merge = spaceless(left) + " " + spaceless(right);
      }
      if (!seen.insert(merge).second && !repeated_merge_) {
        reason("the merge {} is there twice", narrows::quoted(merge));
        repeated_merge_ = true;
      }
      crosses_digits |= is_digits(left) != is_digits(right);
      out_.merges.push_back(std::move(merge));
    });
    const bool ignores = model_.boolean_or("ignore_merges", false);
    std::vector<std::string> patterns;
    const bool known = read_patterns(patterns);
    if (known) {
      const std::vector<std::string> falcon = {
          std::string(PreTokenizerPatterns::kPunctuation), std::string(PreTokenizerPatterns::kByteLevel),
          std::string(PreTokenizerPatterns::kDigits), std::string(kThreeDigits)};
      // Falcon parts digits from what is before them after the bytes are written: without merges across, that
      // changes nothing.
      if (patterns == falcon && !crosses_digits) patterns.erase(patterns.begin() + 2);
      out_.pre = pre_tokenizer_name(patterns, ignores);
    }
    if (out_.pre.empty()) {
      out_.pre = "default";
      reason("the pre-tokenizer is none that tokenizer.ggml.pre has a name for");
    }
  }

  static std::string spaceless(std::string_view part) {
    std::string out;
    for (const char c : part) {
      if (c == ' ') {
        out += byte_alphabet().character(' ');
      } else {
        out += c;
      }
    }
    return out;
  }

  // Whether it has only numbers, as characters of the byte alphabet.
  static bool is_digits(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t length = utf8_sequence(text.substr(i));
      if (!is_numeric(decode_utf8(text.substr(i), length))) return false;
      i += length;
    }
    return true;
  }

  // The pre-tokenizer as patterns that are applied one after the other; false if it cannot be written so.
  bool read_patterns(std::vector<std::string>& patterns) const {
    bool bytes = false;
    for (const JsonItem& step : pre_tokenizers_) {
      const std::string& type = step.get("type").string();
      const std::string behavior = step.string_or("behavior", "Isolated");
      if (type == "ByteLevel") {
        if (bytes || step.boolean_or("add_prefix_space", true)) return false;
        bytes = true;
        if (step.boolean_or("use_regex", true)) patterns.emplace_back(PreTokenizerPatterns::kByteLevel);
      } else if (type == "Split") {
        const auto regex = step.get("pattern").find("Regex");
        if (!regex || behavior != "Isolated" || step.boolean_or("invert", false)) return false;
        if (bytes && regex->string() != kThreeDigits) return false;
        patterns.push_back(regex->string());
      } else if (type == "Digits") {
        const bool each = step.boolean_or("individual_digits", false);
        if (bytes && each) return false;
        patterns.emplace_back(each ? PreTokenizerPatterns::kEachDigit : PreTokenizerPatterns::kDigits);
      } else if (type == "Punctuation" && behavior == "Contiguous" && !bytes) {
        patterns.emplace_back(PreTokenizerPatterns::kPunctuation);
      } else {
        return false;
      }
    }
    return bytes;
  }

  void spm() {
    out_.model = "llama";
    check_bpe();
    if (model_.boolean_or("ignore_merges", false)) reason("merges are ignored for whole words");
    const bool prepend_replace = normalizers_.size() == 2 && is(normalizers_[0], "Prepend") &&
                                 normalizers_[0].string_or("prepend", "") == kSpace &&
                                 replaces_spaces(normalizers_[1]);
    const bool replace = normalizers_.size() == 1 && replaces_spaces(normalizers_[0]);
    if (prepend_replace || replace) {
      out_.add_space_prefix = prepend_replace;
    } else if (!normalizers_.empty()) {
      reason("the normalizer does more than write spaces");
    }
    for (const JsonItem& step : pre_tokenizers_) {
      if (is(step, "Metaspace")) {
        const PrependScheme scheme = read_prepend_scheme(step);
        out_.add_space_prefix |= scheme != PrependScheme::Never;
        if (scheme != PrependScheme::Never) reason("Metaspace does not always put a space before the text");
        if (step.boolean_or("split", true)) reason("Metaspace splits at spaces");
        if (step.get("replacement").string() != kSpace) reason("spaces are not written as U+2581");
      } else if (!(is(step, "Split") && step.get("pattern").string_or("String", "") == " " &&
                   !normalizers_.empty())) {
        reason("pre-tokenizer {}", step.get("type").string());
      }
    }
    if (!writes_spaces()) reason("spaces are not written as U+2581");
    const HfVocabulary vocabulary = read_hf_vocabulary(model_);
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (model_.boolean_or("byte_fallback", false) &&
          vocabulary.find(fmt::format("<0x{:02X}>", byte)) != kNoToken)
        continue;
      reason("not every byte has a token");
      break;
    }
    make_scores(vocabulary);
  }

  // SPM merges what makes the token of the highest score. That is the order of the merges if those that make
  // the same token follow one another, and if there is a merge for every way to make a token.
  void make_scores(const HfVocabulary& vocabulary) {
    out_.scores.assign(tokens_.spellings.size(), 0);
    std::vector<bool> scored(tokens_.spellings.size());
    std::unordered_map<std::string, std::size_t> ways;  // merges that make a token
    std::string joined;
    TokenId last = kNoToken;
    float score = 0;
    bool in_order = true;
    for_each_hf_merge(model_, [&](std::size_t, std::string_view left, std::string_view right) {
      joined.assign(left).append(right);
      ++ways[joined];
      const TokenId id = vocabulary.find(joined);
      if (id == kNoToken || id == last) return;
      last = id;
      const auto at = static_cast<std::size_t>(id);
      in_order &= !scored[at];
      if (scored[at]) return;
      scored[at] = true;
      out_.scores[at] = score;
      score -= 1;
    });
    if (!in_order) reason("merges that make the same token do not follow one another");
    for (std::size_t id = 0; id < scored.size(); ++id) {
      const bool merged =
          tokens_.kinds[id] == TokenKind::Normal || tokens_.kinds[id] == TokenKind::UserDefined;
      if (!scored[id] && merged) out_.scores[id] = score - static_cast<float>(id);
    }
    const auto is_text = [&](std::string_view text) {
      const TokenId id = vocabulary.find(text);
      return id != kNoToken && can_be_text(tokens_.kinds[static_cast<std::size_t>(id)]);
    };
    for (std::size_t id = 0; id < tokens_.spellings.size(); ++id) {
      const std::string_view text = tokens_.spellings[id];
      if (!can_be_text(tokens_.kinds[id]) || tokens_.kinds[id] == TokenKind::Unused) continue;
      if (text.size() > kLongest) {
        reason("the token {} has more than {} bytes", narrows::quoted(text), kLongest);
        return;
      }
      std::size_t expected = 0;
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t length = utf8_sequence(text.substr(at));
        if (length < text.size() && !is_text(text.substr(at, length)) && vocabulary.find(text) != kNoToken) {
          reason("the token {} has a character that is no token", narrows::quoted(text));
          return;
        }
        if (at > 0) expected += is_text(text.substr(0, at)) && is_text(text.substr(at));
        at += length;
      }
      const auto found = ways.find(std::string(text));
      if (expected != (found == ways.end() ? 0 : found->second)) {
        reason("the token {} can be made in {} ways, but {} merges make it", narrows::quoted(text), expected,
               found == ways.end() ? 0 : found->second);
        return;
      }
    }
  }

  void unigram() {
    out_.model = "t5";
    reason("the model is unigram");
    for (const double score : tokens_.scores) out_.scores.push_back(static_cast<float>(score));
    for (const JsonItem& step : normalizers_) {
      if (is(step, "Precompiled")) {
        if (const auto text = step.find("precompiled_charsmap")) {
          const auto bytes = decode_base64(text->string());
          if (!bytes) text->expected("base64");
          out_.charsmap = *bytes;
        }
      }
      out_.add_space_prefix |= is(step, "Prepend");
      out_.remove_extra_whitespaces |=
          is(step, "Replace") && step.get("pattern").string_or("Regex", "") == " {2,}";
    }
    for (const JsonItem& step : pre_tokenizers_) {
      if (is(step, "Metaspace")) out_.add_space_prefix |= read_prepend_scheme(step) != PrependScheme::Never;
      out_.remove_extra_whitespaces |= is(step, "WhitespaceSplit");
    }
  }

  JsonItem model_;
  const HfTokens& tokens_;
  std::vector<JsonItem> normalizers_, pre_tokenizers_;
  HfConversion out_;
  bool spaced_merge_ = false, repeated_merge_ = false;
};

// Without anything that is searched for in a text: the words alone are compared.
Vocabulary plain_vocabulary(const HfConversion& conversion, const HfTokens& tokens,
                            const JsonItem& document) {
  Vocabulary v;
  v.source = document.where();
  v.model = conversion.model;
  v.pre = conversion.pre;
  v.spellings = tokens.spellings;
  v.kinds = tokens.kinds;
  v.scores = conversion.scores;
  v.unk = tokens.unk;
  v.add_space_prefix = conversion.add_space_prefix;
  finish_vocabulary(v);
  return v;
}

// Tokens that may overlap with themselves, for which it matters in what order equal merges are made.
bool overlaps_itself(std::string_view text, std::size_t& period) {
  for (period = 1; period < text.size(); ++period) {
    if (text.substr(period) == text.substr(0, text.size() - period)) return true;
  }
  return false;
}

}  // namespace

HfConversion convert_hf_tokenizer(const JsonItem& document, const HfTokens& tokens) {
  return Converter(document, tokens).run();
}

std::string compare_hf_engines(const HfConversion& conversion, const HfTokens& tokens,
                               const JsonItem& document) {
  const bool bytes = conversion.model == "gpt2";
  const auto ours =
      bytes ? make_bpe_tokenizer(plain_vocabulary(conversion, tokens, document), conversion.merges)
            : make_spm_tokenizer(plain_vocabulary(conversion, tokens, document));
  for (std::size_t id = 0; id < tokens.kinds.size(); ++id) {
    if (ours->kind(static_cast<TokenId>(id)) != tokens.kinds[id]) {
      return fmt::format("the token {} is taken for another kind by its spelling",
                         narrows::quoted(tokens.spellings[id]));
    }
  }
  const auto theirs = make_parsed_hf_tokenizer(plain_vocabulary(conversion, tokens, document),
                                               document.json(), document.where());
  const auto differs = [&](const std::string& text) { return ours->encode(text) != theirs->encode(text); };
  const auto reason = [](const std::string& text) {
    return fmt::format("ids differ for {}", narrows::quoted(text));
  };
  constexpr std::size_t kStretch = 4096;
  std::string text;
  for (std::size_t pass = 0; pass < 2; ++pass) {
    // In the order of their ids, and in another.
    const std::size_t count = tokens.spellings.size(), stride = pass == 0 ? 1 : 7919;
    for (std::size_t i = 0, id = 0; i < count; ++i, id = (id + stride) % count) {
      if (tokens.kinds[id] == TokenKind::Normal) text += ours->piece(static_cast<TokenId>(id));
      if (text.size() < kStretch && i + 1 < count) continue;
      if (differs(text)) return reason(text);
      text.clear();
    }
  }
  if (bytes) return "";  // both merge by rank
  std::size_t tried = 0;
  for (std::size_t id = 0; id < tokens.spellings.size(); ++id) {
    if (tokens.kinds[id] != TokenKind::Normal) continue;
    std::string piece = ours->piece(static_cast<TokenId>(id));
    std::size_t period = 0;
    if (piece.size() > kLongest) return reason(piece);
    if (!overlaps_itself(piece, period)) continue;
    constexpr std::size_t kMostTried = std::size_t{2} << 20;
    const std::string unit = piece.substr(0, period);
    for (std::size_t i = 0; i < 3 * piece.size() / period && tried < kMostTried; ++i) {
      piece += unit;
      tried += piece.size();
      if (differs(piece)) return reason(piece);
    }
  }
  return "";
}

}  // namespace narrows
