// Filters of sequences and dicts.
#pragma once
#include <string_view>

#include "tokenizer/jinja_eval.h"

namespace narrows::jinja {

FilterBody find_sequence_filter(std::string_view name);  // null if unknown

}  // namespace narrows::jinja
