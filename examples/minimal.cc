// Generates text from a prompt: minimal MODEL.gguf "PROMPT"
#include <narrows/narrows.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "use: minimal MODEL.gguf \"PROMPT\"\n";
    return 2;
  }
  try {
    const auto model = narrows::Model::load(argv[1]);
    narrows::Session session(model, {.context = 2048});
    narrows::Sampler sampler({.temperature = 0});  // the likeliest token each time
    const auto print = [](std::string_view text) {
      std::cout << text << std::flush;
      return true;  // false would stop
    };
    if (model->has_chat_template()) {
      narrows::Chat(session).answer(argv[2], sampler, {.max_tokens = 100}, print);
    } else {
      narrows::generate(session, model->tokenize(argv[2]), sampler, {.max_tokens = 100}, print);
    }
    std::cout << "\n";
    return 0;
  } catch (const narrows::Error& error) {
    std::cerr << "minimal: " << error.what() << "\n";
    return 1;
  }
}
