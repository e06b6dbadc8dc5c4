// A Jinja2 interpreter for what chat templates use; see chat_template.h for the settings.
//
// Differences from jinja2 that remain: ints are 64 bits wide, case mappings are one-to-one, a slice of a
// range is a list, unknown filters are refused when reached; no inheritance, imports, recursive loops, \N{}
// escapes, cycler, joiner or lipsum, nor the filters for HTML and prose (urlize, wordwrap, truncate, ...).
#pragma once
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "tokenizer/jinja_ast.h"

namespace narrows::jinja {

class Template {
 public:
  // Throws Error "chat template: line N: expected …".
  explicit Template(std::string_view source);

  // Renders with the members of `variables`, an object. Strings may hold any bytes. `now` is the time that
  // strftime_now prints. Throws Error with the template's line; a template that would run, nest or print
  // without end is refused (limits in jinja_value.h).
  std::string render(const nlohmann::ordered_json& variables, std::time_t now) const;

 private:
  Body body_;
};

}  // namespace narrows::jinja
