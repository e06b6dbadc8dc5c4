#include "tokenizer/chat_template.h"

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "tokenizer/jinja.h"

namespace narrows {

struct ChatTemplate::Impl {
  jinja::Template tree;
  std::string bos_token, eos_token;
};

ChatTemplate::ChatTemplate(std::string source, std::string bos_token, std::string eos_token)
    : impl_(new Impl{jinja::Template(source), std::move(bos_token), std::move(eos_token)}) {}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  auto list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  const nlohmann::ordered_json variables = {
      {"messages", std::move(list)},   {"tools", nullptr},
      {"documents", nullptr},          {"add_generation_prompt", add_generation_prompt},
      {"bos_token", impl_->bos_token}, {"eos_token", impl_->eos_token}};
  return impl_->tree.render(variables, std::time(nullptr));
}

}  // namespace narrows
