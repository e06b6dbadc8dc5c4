#include "tokenizer/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/hf_model.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocabulary.h"

namespace narrows {

namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

// Reads the fields of one message of a protocol buffer.
class Message {
 public:
  Message(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  bool next() {
    if (at_ == bytes_.size()) return false;
    const std::uint64_t tag = varint();
    field = tag >> 3;
    if (field == 0) broken("a field number");
    wire_ = static_cast<unsigned>(tag & 7);
    switch (wire_) {
      case 0:
        number = varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        text = take(varint());
        break;
      case 5:
        fixed_ = take(4);
        break;
      default:
        broken("a wire type of 0, 1, 2 or 5");
    }
    return true;
  }

  // Of the field that next() has read; throw Error if it is of another type.
  std::string_view bytes() const {
    if (wire_ != 2) broken("bytes");
    return text;
  }
  std::uint64_t integer() const {
    if (wire_ != 0) broken("an integer");
    return number;
  }
  bool boolean() const { return integer() != 0; }
  std::int32_t int32() const { return static_cast<std::int32_t>(static_cast<std::uint32_t>(integer())); }
  float real() const {
    if (wire_ != 5) broken("a float");
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 4; ++i)
      bits |= std::uint32_t{static_cast<unsigned char>(fixed_[i])} << (8 * i);
    return std::bit_cast<float>(bits);
  }

  std::uint64_t field = 0;

 private:
  [[noreturn]] void broken(std::string_view what) const {
    fail("{}: expected a SentencePiece model, but field {} at byte {} of a message of {} lacks {}", source_,
         field, at_, bytes_.size(), what);
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) broken("the end of an integer");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    broken("the end of an integer");
  }

  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size() - at_) broken("some of its bytes");
    const std::string_view taken = bytes_.substr(at_, size);
    at_ += size;
    return taken;
  }

  std::string_view bytes_;
  const std::string& source_;
  std::size_t at_ = 0;
  unsigned wire_ = 0;
  std::uint64_t number = 0;
  std::string_view text, fixed_;
};

SentencePieceModel::Piece read_piece(std::string_view bytes, const std::string& source, std::size_t id) {
  SentencePieceModel::Piece piece;
  for (Message message(bytes, source); message.next();) {
    if (message.field == 1) piece.text = message.bytes();
    if (message.field == 2) piece.score = message.real();
    if (message.field == 3) piece.type = message.int32();
  }
  constexpr std::size_t kLongest = 1024;
  if (piece.text.size() > kLongest) {
    fail("{}: piece {}: expected at most {} bytes, found {}", source, id, kLongest, piece.text.size());
  }
  if (!std::isfinite(piece.score)) fail("{}: piece {}: expected a finite score", source, id);
  if (piece.type < 1 || piece.type > 6)
    fail("{}: piece {}: expected a type of 1 to 6, found {}", source, id, piece.type);
  if (piece.text.empty() || !is_valid_utf8(piece.text)) {
    fail("{}: piece {}: expected text in UTF-8, found {}", source, id, narrows::quoted(piece.text));
  }
  return piece;
}

void read_trainer(std::string_view bytes, const std::string& source, SentencePieceModel& model) {
  for (Message message(bytes, source); message.next();) {
    switch (message.field) {
      case 3:
        if (message.integer() != 1 && message.integer() != 2) {
          fail("{}: expected a model of type 1 (unigram) or 2 (BPE), found {}", source, message.integer());
        }
        model.type = static_cast<SentencePieceModel::Type>(message.integer());
        break;
      case 24:
        model.whitespace_as_suffix = message.boolean();
        break;
      case 35:
        model.byte_fallback = message.boolean();
        break;
      case 40:
        model.unk = message.int32();
        break;
      case 41:
        model.bos = message.int32();
        break;
      case 42:
        model.eos = message.int32();
        break;
      case 43:
        model.pad = message.int32();
        break;
      default:
        break;
    }
  }
}

void read_normalizer(std::string_view bytes, const std::string& source, SentencePieceModel& model) {
  for (Message message(bytes, source); message.next();) {
    if (message.field == 2) model.charsmap = message.bytes();
    if (message.field == 3) model.add_dummy_prefix = message.boolean();
    if (message.field == 4) model.remove_extra_whitespaces = message.boolean();
    if (message.field == 5) model.escape_whitespaces = message.boolean();
  }
}

// Every way to make a piece of two others, in the order of what they make.
nlohmann::json make_merges(const SentencePieceModel& model) {
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) ids.emplace(model.pieces[id].text, id);
  struct Merge {
    float score;
    std::size_t result, left, right;
  };
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& [text, score, type] = model.pieces[id];
    if (type != 1 && type != 4 && type != 5) continue;
    for (std::size_t at = utf8_sequence(text); at < text.size();
         at += utf8_sequence(std::string_view(text).substr(at))) {
      const auto left = ids.find(std::string_view(text).substr(0, at));
      const auto right = ids.find(std::string_view(text).substr(at));
      if (left != ids.end() && right != ids.end()) merges.push_back({score, id, left->second, right->second});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return a.score != b.score ? a.score > b.score : a.result < b.result;
  });
  auto list = nlohmann::json::array();
  for (const Merge& merge : merges) {
    list.push_back({model.pieces[merge.left].text, model.pieces[merge.right].text});
  }
  return list;
}

nlohmann::json replace(const char* kind, std::string_view pattern, std::string_view content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

}  // namespace

SentencePieceModel read_sentencepiece_model(std::string_view bytes, const std::string& source) {
  SentencePieceModel model;
  for (Message message(bytes, source); message.next();) {
    if (message.field == 1) {
      if (model.pieces.size() >= static_cast<std::size_t>(kHfMostTokens)) fail("{}: too many pieces", source);
      model.pieces.push_back(read_piece(message.bytes(), source, model.pieces.size()));
    } else if (message.field == 2) {
      read_trainer(message.bytes(), source, model);
    } else if (message.field == 3) {
      read_normalizer(message.bytes(), source, model);
    }
  }
  if (model.pieces.empty())
    fail("{}: expected a SentencePiece model, found no pieces in {} bytes", source, bytes.size());
  for (std::int32_t* id : {&model.unk, &model.bos, &model.eos, &model.pad}) {
    if (*id < 0 || static_cast<std::size_t>(*id) >= model.pieces.size()) *id = -1;
  }
  if (model.unk < 0) fail("{}: expected an unknown piece, found none", source);
  return model;
}

nlohmann::json sentencepiece_as_json(const SentencePieceModel& model) {
  using nlohmann::json;
  const bool bpe = model.type == SentencePieceModel::Type::Bpe;
  json vocab = bpe ? json::object() : json::array(), added = json::array();
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& [text, score, type] = model.pieces[id];
    if (bpe) {
      vocab[text] = id;
    } else {
      vocab.push_back({text, score});
    }
    if (type == 2 || type == 3 || type == 4) {
      added.push_back({{"id", id}, {"content", text}, {"special", type != 4}, {"normalized", false}});
    }
  }
  json description = {{"vocab", std::move(vocab)}, {"byte_fallback", model.byte_fallback}};
  if (bpe) {
    description["type"] = "BPE";
    description["unk_token"] = model.pieces[static_cast<std::size_t>(model.unk)].text;
    description["fuse_unk"] = true;
    description["merges"] = make_merges(model);
  } else {
    description["type"] = "Unigram";
    description["unk_id"] = model.unk;
  }
  json normalizers = json::array();
  if (!model.charsmap.empty()) {
    normalizers.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(model.charsmap)}});
  }
  if (model.remove_extra_whitespaces) {
    normalizers.push_back(replace("Regex", "\\A +| +\\z", ""));
    normalizers.push_back(replace("Regex", " {2,}", " "));
  }
  if (model.add_dummy_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  if (model.escape_whitespaces) normalizers.push_back(replace("String", " ", kSpace));
  json decoders =
      json::array({replace("String", kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (model.add_dummy_prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"version", "1.0"},
          {"added_tokens", std::move(added)},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
          {"model", std::move(description)}};
}

}  // namespace narrows
