// The tiny models of tests/data/models, and words for their tokenizers.
#pragma once
#include <random>
#include <string>

namespace narrows {

inline std::string tiny(const std::string& name) { return std::string(NARROWS_TEST_DATA) + "/models/" + name + ".gguf"; }

inline std::string some_text(int words) {
  std::string text;
  std::mt19937 random(3);
  for (int i = 0; i < words; ++i) {
    for (unsigned n = 1 + random() % 6; n > 0; --n) text += static_cast<char>('a' + random() % 26);
    text += ' ';
  }
  return text;
}

}  // namespace narrows
