// What the fuzzers do with a model: load it and compute three tokens, two of a prompt, one of decode.
#pragma once
#include <cstdlib>
#include <string>

#include "narrows/narrows.h"

namespace narrows {

// An Error must be one line.
inline void step_model(const std::string& path, const LoadOptions& options, KvType kv_type) {
  try {
    const auto model = Model::load(path, options);
    const auto last = model->vocab_size() - 1;
    Session session(model, {.kv_type = kv_type});
    const TokenId prompt[] = {0, last};
    session.step(prompt);
    session.step(last / 2);
    model->describe();
  } catch (const Error& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
}

}  // namespace narrows
