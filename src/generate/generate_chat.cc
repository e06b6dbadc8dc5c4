#include <algorithm>
#include <utility>

#include "base/error.h"
#include "narrows/chat.h"

namespace narrows {

std::vector<TokenId> tokenize_chat(const Model& model, std::span<const ChatMessage> messages,
                                   bool add_generation_prompt) {
  std::vector<TokenId> ids = model.tokenize(model.format_chat(messages, add_generation_prompt),
                                            {.add_special = true, .parse_special = true});
  if (model.adds_bos() && ids.size() > 1 && ids[0] == model.bos() && ids[1] == model.bos())
    ids.erase(ids.begin());
  return ids;
}

Chat::Chat(Session& session, std::string system) : session_(session) {
  if (!session.model()->has_chat_template())
    fail("{}: the model has no chat template", session.model()->path());
  if (!system.empty()) messages_.push_back({"system", std::move(system)});
  fixed_ = messages_.size();
}

void Chat::clear() {
  messages_.resize(fixed_);
  session_.truncate(0);
}

GenerateResult Chat::answer(std::string_view user, Sampler& sampler, const GenerateOptions& options,
                            const TextCallback& on_text) {
  const std::size_t before = messages_.size();
  messages_.push_back({"user", std::string(user)});
  try {
    const std::vector<TokenId> ids = tokenize_chat(*session_.model(), messages_);
    const std::vector<TokenId>& held = session_.tokens();
    auto common = std::mismatch(ids.begin(), ids.end(), held.begin(), held.end()).first - ids.begin();
    common = std::min(common, std::ssize(ids) - 1);  // at least one token is stepped, for its logits
    session_.truncate(common);
    GenerateResult result = generate(session_, std::span(ids).subspan(static_cast<std::size_t>(common)),
                                     sampler, options, on_text);
    messages_.push_back({"assistant", result.text});
    return result;
  } catch (...) {
    messages_.resize(before);
    throw;
  }
}

}  // namespace narrows
