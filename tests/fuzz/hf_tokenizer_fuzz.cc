// The first byte of the input chooses: the text of a tokenizer.json, through the engine; the same as a
// folder's file, with a configuration; the bytes of a SentencePiece model; or a regular expression. Sections
// of the input are parted by NUL: the file or the pattern, then the text or the configuration.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "narrows/error.h"
#include "tokenizer/hf_metadata.h"
#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/hf_vocabulary.h"
#include "tokenizer/onig_regex.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/utf8.h"

namespace narrows {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

std::string_view section(std::string_view& input) {
  const std::string_view head = input.substr(0, input.find('\0'));
  input.remove_prefix(std::min(head.size() + 1, input.size()));
  return head;
}

void run(const std::string& json, std::string_view text) {
  const auto tokenizer = make_hf_tokenizer(hf_vocabulary(json, "fuzz"), json, "fuzz");
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer->encode(text, {.add_special = true, .parse_special = parse_special});
    for (const TokenId id : ids) require(id >= 0 && id < tokenizer->vocab_size());
    tokenizer->decode(ids, true);
  }
}

void write(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

void read_folder(const char* name, std::string_view file, std::string_view config) {
  static const std::filesystem::path folder = [] {
    std::string path = "/tmp/hf_tokenizer_fuzz_XXXXXX";
    require(mkdtemp(path.data()) != nullptr);
    return path;
  }();
  for (const char* other : {"tokenizer.json", "tokenizer.model"}) std::filesystem::remove(folder / other);
  write(folder / name, file);
  write(folder / "tokenizer_config.json", config);
  read_hf_tokenizer(folder.string());
}

void check(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] & 3) {
    case 0: {
      const std::string json(section(input));
      run(json, input);
      break;
    }
    case 1: {
      const std::string_view json = section(input);
      read_folder("tokenizer.json", json, input.empty() ? "{}" : input);
      break;
    }
    case 2: {
      const SentencePieceModel model = read_sentencepiece_model(input, "fuzz");
      run(sentencepiece_as_json(model).dump(), "some text\xFF  of two\nlines ");
      read_folder("tokenizer.model", input, "{}");
      break;
    }
    default: {
      const OnigRegex regex(section(input), "fuzz");
      std::string text;
      append_valid_utf8(input, text);
      std::size_t last = 0;
      regex.matches(text, [&](std::size_t begin, std::size_t end) {
        require(last <= begin && begin <= end && end <= text.size());
        last = end;
      });
    }
  }
}

}  // namespace
}  // namespace narrows

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    narrows::check(data, size);
  } catch (const narrows::Error& error) {
    // One line, whatever was wrong.
    narrows::require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
