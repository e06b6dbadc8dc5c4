// The first byte of the input chooses: text through a tiny BPE or SPM vocabulary, or a file whose
// tokenizer.ggml.* keys come from the input. The arrays of the file are cut from the input at newlines.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "../tokenizer/metadata_file.h"
#include "../tokenizer/tiny_vocabularies.h"
#include "formats/gguf.h"
#include "narrows/error.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace narrows {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_bpe(std::string_view text, bool parse_special) {
  static const std::unique_ptr<const Tokenizer> tokenizers[] = {
      TinyBpe{.pre = "gpt-2"}.make(),       TinyBpe{.pre = "llama-bpe"}.make(),
      TinyBpe{.pre = "deepseek-v3"}.make(), TinyBpe{.pre = "gpt-4o"}.make(),
      TinyBpe{.pre = "default"}.make(),     TinyBpe{.pre = "viking"}.make()};
  std::string expected;
  append_valid_utf8(text, expected);
  for (const auto& tokenizer : tokenizers) {
    require(tokenizer->decode(tokenizer->encode(text, {.parse_special = parse_special}), true) == expected);
  }
}

void check_spm(std::string_view text, bool parse_special) {
  static const std::unique_ptr<const Tokenizer> tokenizers[] = {TinySpm{}.make(),
                                                                TinySpm{.add_space_prefix = false}.make()};
  std::string expected(text);
  for (std::size_t at = 0; (at = expected.find("▁", at)) != std::string::npos;) expected.replace(at, 3, " ");
  for (const auto& tokenizer : tokenizers) {
    require(tokenizer->decode(tokenizer->encode(text, {.parse_special = parse_special}), true) == expected);
  }
}

std::vector<std::string> lines(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    out.emplace_back(line);
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return out;
}

// Input: two bytes of choices and four of ids, then sections parted by NUL: tokens, merges, types,
// pre-tokenizer, text.
void check_metadata(std::string_view input) {
  constexpr std::size_t kHead = 6, kSections = 5;
  if (input.size() < kHead) return;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(input[i]); };
  std::string_view rest = input.substr(kHead);
  std::string_view sections[kSections];
  for (auto& section : sections) {
    section = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(section.size() + 1, rest.size()));
  }
  const auto tokens = lines(sections[0]);
  std::vector<std::int32_t> types;
  std::vector<float> scores;
  for (const char c : sections[2]) {
    types.push_back(c - '0');
    scores.push_back(static_cast<float>(c));
  }
  MetadataFile file;
  file.text("tokenizer.ggml.model", byte(0) & 1 ? "llama" : "gpt2").texts("tokenizer.ggml.tokens", tokens);
  if (byte(0) & 2) file.texts("tokenizer.ggml.merges", lines(sections[1]));
  if (byte(0) & 4) file.i32s("tokenizer.ggml.token_type", types);
  if (byte(0) & 8) file.f32s("tokenizer.ggml.scores", scores);
  if (byte(0) & 16) file.text("tokenizer.ggml.pre", sections[3]);
  if (byte(0) & 32) file.text("general.name", "phi-3");
  if (byte(0) & 64)
    file.u32("tokenizer.ggml.bos_token_id", byte(2)).u32("tokenizer.ggml.eos_token_id", byte(3));
  if (byte(0) & 128)
    file.u32("tokenizer.ggml.unknown_token_id", byte(4)).u32("tokenizer.ggml.eot_token_id", byte(5));
  if (byte(1) & 1) file.boolean("tokenizer.ggml.add_bos_token", (byte(1) & 2) != 0);
  if (byte(1) & 4) file.boolean("tokenizer.ggml.add_space_prefix", (byte(1) & 8) != 0);
  if (byte(1) & 16) file.boolean("tokenizer.ggml.remove_extra_whitespaces", true);

  const std::string bytes = file.bytes();
  const int fd = memfd_create("tokenizer_fuzz", 0);
  require(fd >= 0 && write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  try {
    const auto tokenizer = Tokenizer::from_gguf(GgufFile::open(fmt::format("/proc/self/fd/{}", fd)));
    for (const bool parse_special : {false, true}) {
      const auto ids = tokenizer->encode(sections[4], {.add_special = true, .parse_special = parse_special});
      tokenizer->decode(ids, true);
      for (const TokenId id : ids) require(id >= 0 && id < tokenizer->vocab_size());
    }
  } catch (const Error&) {
  }
  close(fd);
}

}  // namespace
}  // namespace narrows

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] & 3) {
    case 0:
      narrows::check_bpe(text, (data[0] & 4) != 0);
      break;
    case 1:
      narrows::check_spm(text, (data[0] & 4) != 0);
      break;
    default:
      narrows::check_metadata(text);
  }
  return 0;
}
