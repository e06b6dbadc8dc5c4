// Parses any bytes as a template and renders two messages with it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "narrows/error.h"
#include "tokenizer/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<narrows::ChatMessage> kMessages = {
      {"system", "Be brief. \xC3\xA9\xFF"},
      {"user", " What is 2 + 2?\n<think>x</think> 'a' \"b\" "},
  };
  try {
    const narrows::ChatTemplate chat(std::string(reinterpret_cast<const char*>(data), size), "<s>", "</s>");
    chat.render(kMessages, true);
  } catch (const narrows::Error&) {
    // A refused template is an answer.
  }
  return 0;
}
