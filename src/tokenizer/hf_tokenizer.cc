#include "tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tokenizer/hf_added_tokens.h"
#include "tokenizer/hf_decoder.h"
#include "tokenizer/hf_model.h"
#include "tokenizer/hf_normalizer.h"
#include "tokenizer/hf_pre_tokenizer.h"
#include "tokenizer/json_item.h"
#include "tokenizer/utf8.h"

namespace narrows {

namespace {

TokenId read_token_id(const JsonItem& item) {
  return static_cast<TokenId>(item.integer(0, kHfMostTokens - 1));
}

void add_affixes(const JsonItem& processor, HfAffixes& affixes) {
  const std::string& type = processor.get("type").string();
  if (type == "TemplateProcessing") {
    std::vector<TokenId> prefix, suffix;
    bool text = false;
    const JsonItem single = processor.get("single");
    for (std::size_t i = 0; i < single.array_size(); ++i) {
      const JsonItem part = single.element(i);
      if (part.find("Sequence")) {
        if (text) part.expected("one text in the template");
        text = true;
        continue;
      }
      const std::string& name = part.get("SpecialToken").get("id").string();
      const JsonItem ids = processor.get("special_tokens").get(name).get("ids");
      for (std::size_t k = 0; k < ids.array_size(); ++k) {
        (text ? suffix : prefix).push_back(read_token_id(ids.element(k)));
      }
    }
    if (!text) single.expected("a template with a text");
    affixes.prefix.insert(affixes.prefix.begin(), prefix.begin(), prefix.end());
    affixes.suffix.insert(affixes.suffix.end(), suffix.begin(), suffix.end());
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    affixes.prefix.insert(affixes.prefix.begin(), read_token_id(processor.get("cls").element(1)));
    affixes.suffix.push_back(read_token_id(processor.get("sep").element(1)));
  } else if (type != "ByteLevel") {
    processor.get("type").expected(
        "Sequence, ByteLevel, TemplateProcessing, RobertaProcessing or BertProcessing");
  }
}

class HfTokenizer final : public Tokenizer {
 public:
  HfTokenizer(Vocabulary vocabulary, const JsonItem& document, std::optional<bool> add_bos,
              std::optional<bool> add_eos)
      : Tokenizer(std::move(vocabulary)),
        normalizer_(read<HfNormalizer>(document, "normalizer")),
        pre_tokenizer_(read<HfPreTokenizer>(document, "pre_tokenizer")),
        added_(read_hf_added_tokens(document)),
        before_(added_, false, normalizer_),
        after_(added_, true, normalizer_),
        model_(HfModel::read(
            document.get("model"),
            [](const void* self, std::string_view spelling) {
              return static_cast<const HfTokenizer*>(self)->find_added(spelling);
            },
            this)),
        decoder_(document),
        affixes_(read_hf_affixes(document)) {
    const JsonItem model = document.get("model");
    const auto check = [&](TokenId id, std::string_view spelling, const JsonItem& item) {
      if (static_cast<std::size_t>(id) < vocabulary_.size()) return;
      fail("{}: token {}: expected an id below {}, the number of the model's tokens, found {}", item.where(),
           narrows::quoted(spelling), vocabulary_.size(), id);
    };
    const HfVocabulary& own = model_->vocabulary();
    const JsonItem vocab = model.get("vocab");
    for (std::size_t i = 0; i < own.ids.size(); ++i) check(own.ids[i], own.spellings[i], vocab);
    is_added_.resize(vocabulary_.size());
    for (const HfAddedToken& token : added_) {
      check(token.id, token.content, document.get("added_tokens"));
      is_added_[static_cast<std::size_t>(token.id)] = true;
      const TokenId in_model = own.find(token.content);
      if (in_model != kNoToken && in_model != token.id) {
        fail("{}: added token {}: expected the id {} that the model's vocabulary has, found {}",
             document.where(), narrows::quoted(token.content), in_model, token.id);
      }
    }
    for (auto* ids : {&affixes_.prefix, &affixes_.suffix}) {
      for (const TokenId id : *ids) check(id, "of the post-processor", document);
    }
    settle_affix(affixes_.prefix, add_bos, vocabulary_.bos, vocabulary_.add_bos);
    settle_affix(affixes_.suffix, add_eos, vocabulary_.eos, vocabulary_.add_eos);
    vocabulary_.add_space_prefix = decoder_.strips_space();
    vocabulary_.space_prefix_once = !normalizer_.prepends() && !pre_tokenizer_.prepends_always();
  }

  std::vector<TokenId> encode(std::string_view text, EncodeOptions options) const override {
    check_length(text);
    std::vector<TokenId> ids;
    if (options.add_special) ids = affixes_.prefix;
    std::string valid;
    if (!is_valid_utf8(text)) {
      append_valid_utf8(text, valid);
      text = valid;
    }
    HfModel::Scratch scratch;
    before_.cut(text, options.parse_special, [&](std::size_t begin, std::size_t end, TokenId id) {
      if (id != kNoToken) {
        ids.push_back(id);
      } else {
        const std::string_view fragment = text.substr(begin, end - begin);
        encode_text(HfText(fragment, begin == 0 ? utf8_sequence(fragment) : 0), options.parse_special,
                    scratch, ids);
      }
    });
    if (options.add_special) ids.insert(ids.end(), affixes_.suffix.begin(), affixes_.suffix.end());
    return ids;
  }

  std::string piece(TokenId id, bool show_special) const override {
    check_id(id);
    const TokenKind kind_of = kind(id);
    if (kind_of == TokenKind::Control || kind_of == TokenKind::Unknown) {
      return show_special ? spelling(id) : std::string();
    }
    return decoder_.bytes(spelling(id), is_added_[static_cast<std::size_t>(id)]);
  }

 private:
  template <typename Component>
  static Component read(const JsonItem& document, std::string_view key) {
    const auto item = document.find(key);
    return item ? Component(*item) : Component();
  }

  static void settle_affix(std::vector<TokenId>& affix, std::optional<bool> stated, TokenId& token,
                           bool& adds) {
    if (stated && !*stated) affix.clear();
    if (stated && *stated && affix.empty() && token != kNoToken) affix.push_back(token);
    adds = !affix.empty();
    if (adds && token == kNoToken) token = affix.front();
  }

  TokenId find_added(std::string_view content) const {
    for (const HfAddedToken& token : added_) {
      if (token.content == content) return token.id;
    }
    return kNoToken;
  }

  void encode_text(HfText text, bool parse_special, HfModel::Scratch& scratch,
                   std::vector<TokenId>& ids) const {
    normalizer_.apply(text);
    if (after_.empty()) {
      encode_words(std::move(text), scratch, ids);
      return;
    }
    const std::string_view view = text.text;
    after_.cut(view, parse_special, [&](std::size_t begin, std::size_t end, TokenId id) {
      if (id != kNoToken) {
        ids.push_back(id);
      } else {
        const std::size_t start = std::min(text.start_bytes - std::min(text.start_bytes, begin), end - begin);
        encode_words(HfText(view.substr(begin, end - begin), start), scratch, ids);
      }
    });
  }

  void encode_words(HfText text, HfModel::Scratch& scratch, std::vector<TokenId>& ids) const {
    HfWords words(std::move(text));
    pre_tokenizer_.apply(words);
    for (const auto& word : words.words) model_->encode(words.view(word), scratch, ids);
  }

  HfNormalizer normalizer_;
  HfPreTokenizer pre_tokenizer_;
  std::vector<HfAddedToken> added_;
  HfAddedTokenFinder before_, after_;  // normalization
  std::unique_ptr<const HfModel> model_;
  HfDecoder decoder_;
  HfAffixes affixes_;
  std::vector<bool> is_added_;  // by id
};

}  // namespace

HfAffixes read_hf_affixes(const JsonItem& document) {
  HfAffixes affixes;
  if (const auto processor = document.find("post_processor"))
    for (const JsonItem& part : sequence_parts(*processor, "processors")) add_affixes(part, affixes);
  return affixes;
}

std::unique_ptr<const Tokenizer> make_hf_tokenizer(Vocabulary vocabulary, std::string_view tokenizer_json,
                                                   const std::string& source, std::optional<bool> add_bos,
                                                   std::optional<bool> add_eos) {
  return make_parsed_hf_tokenizer(std::move(vocabulary), parse_tokenizer_json(tokenizer_json, source), source, add_bos,
                                  add_eos);
}

std::unique_ptr<const Tokenizer> make_parsed_hf_tokenizer(Vocabulary vocabulary,
                                                          const nlohmann::json& document,
                                                          const std::string& source,
                                                          std::optional<bool> add_bos,
                                                          std::optional<bool> add_eos) {
  return std::make_unique<HfTokenizer>(std::move(vocabulary), JsonItem(document, source), add_bos, add_eos);
}

}  // namespace narrows
