// Parses a template's source into its syntax tree.
#pragma once
#include <string_view>

#include "tokenizer/jinja_ast.h"

namespace narrows::jinja {

// Throws Error "chat template: line N: expected …".
Body parse(std::string_view source);

}  // namespace narrows::jinja
