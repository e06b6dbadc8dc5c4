// SentencePiece's model files (tokenizer.model): a protocol buffer of pieces and settings.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace narrows {

struct SentencePieceModel {
  enum class Type { Unigram = 1, Bpe = 2 };
  struct Piece {
    std::string text;
    float score = 0;
    int type = 1;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte: GGUF's numbers
  };
  std::vector<Piece> pieces;
  Type type = Type::Unigram;
  bool byte_fallback = false;
  std::int32_t unk = 0, bos = 1, eos = 2, pad = -1;  // -1: none
  std::string charsmap;                              // "" for the identity
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool whitespace_as_suffix = false;
};

// Throws Error, naming `source`, for bytes that are no such model, or of a type other than unigram and BPE.
SentencePieceModel read_sentencepiece_model(std::string_view bytes, const std::string& source);

// The tokenizer.json that does the same.
nlohmann::json sentencepiece_as_json(const SentencePieceModel& model);

}  // namespace narrows
