// Chat templates: a model's own Jinja template turns a list of messages into a prompt.
//
// The subset of Jinja2 that the templates of current models use, with jinja2's output to the byte under the
// settings of transformers' apply_chat_template (trim_blocks, lstrip_blocks, loopcontrols, tojson without escaping,
// raise_exception, strftime_now).
#pragma once
#include <memory>
#include <span>
#include <string>

#include "narrows/model.h"

namespace narrows {

class ChatTemplate {
 public:
  // Parses the template. Throws Error with the line and what was expected.
  ChatTemplate(std::string source, std::string bos_token, std::string eos_token);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Throws Error if the template raises (e.g. roles must alternate) or uses something unknown. Bounded: a template
  // that would run or print without end is refused.
  std::string render(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace narrows
