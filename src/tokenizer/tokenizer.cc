#include "tokenizer/tokenizer.h"

#include "base/error.h"
#include "formats/gguf.h"
#include "tokenizer/hf_tokenizer.h"

namespace narrows {

std::unique_ptr<const Tokenizer> Tokenizer::from_gguf(const GgufFile& file) {
  Vocabulary vocabulary = read_vocabulary(file);
  if (const auto text = file.find_string(kHfTokenizerKey)) {
    const std::string source = fmt::format("{}: key {}", file.path(), kHfTokenizerKey);
    return make_hf_tokenizer(std::move(vocabulary), *text, source,
                             file.find_bool("tokenizer.ggml.add_bos_token"),
                             file.find_bool("tokenizer.ggml.add_eos_token"));
  }
  if (vocabulary.model == "llama") return make_spm_tokenizer(std::move(vocabulary));
  constexpr std::string_view kMerges = "tokenizer.ggml.merges";
  const GgufArray& merges = file.get_array(kMerges);
  if (merges.element != GgufType::String)
    fail("{}: key {}: expected an array of strings", file.path(), kMerges);
  return make_bpe_tokenizer(std::move(vocabulary), merges.strings);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool show_special) const {
  std::string text;
  // Encoding puts a space before the text that follows the start or a token that was cut out of it.
  bool after_prefix = vocabulary_.add_space_prefix;
  for (const TokenId id : ids) {
    const std::string bytes = piece(id, show_special);
    const TokenKind kind = vocabulary_.kind(id);
    if (kind == TokenKind::Normal || kind == TokenKind::Unused || kind == TokenKind::Byte) {
      text.append(bytes, after_prefix && bytes.starts_with(' ') ? 1 : 0);
      after_prefix = false;
    } else {
      text += bytes;
      if (!vocabulary_.space_prefix_once) after_prefix = vocabulary_.add_space_prefix;
    }
  }
  return text;
}

bool Tokenizer::is_end_of_generation(TokenId id) const {
  check_id(id);
  return vocabulary_.end_of_generation[static_cast<std::size_t>(id)];
}

void Tokenizer::check_id(TokenId id) const {
  if (id < 0 || id >= vocab_size()) {
    fail("{}: token {}: expected an id from 0 to {}", vocabulary_.source, id, vocab_size() - 1);
  }
}

void Tokenizer::check_length(std::string_view text) {
  constexpr std::size_t kLongest = std::size_t{1} << 30;
  if (text.size() > kLongest) fail("text of {} bytes: expected at most {} to encode", text.size(), kLongest);
}

}  // namespace narrows
