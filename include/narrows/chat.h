// A conversation with a model, in the form of the model's own chat template.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "narrows/generate.h"

namespace narrows {

// Turns share the session's cache: of the formatted conversation only what the cache does not hold yet is computed.
class Chat {
 public:
  // `system` is the first message if it is not empty. The session is used, not owned, and is taken over from the
  // first token on. Throws Error if the model has no chat template.
  explicit Chat(Session& session, std::string system = {});

  // Appends a message of the user and generates the answer, which joins the conversation even if it was cut short.
  // If it throws, the conversation is as it was before.
  GenerateResult answer(std::string_view user, Sampler& sampler, const GenerateOptions& options = {},
                        const TextCallback& on_text = {});

  // Forgets every message but the system's.
  void clear();
  const std::vector<ChatMessage>& messages() const { return messages_; }

 private:
  Session& session_;
  std::vector<ChatMessage> messages_;
  std::size_t fixed_;  // messages that clear() keeps
};

// The ids of the messages in the model's chat template: control tokens parsed, one BOS if the model adds one, whether
// or not the template spells it out too.
std::vector<TokenId> tokenize_chat(const Model& model, std::span<const ChatMessage> messages,
                                   bool add_generation_prompt = true);

}  // namespace narrows
