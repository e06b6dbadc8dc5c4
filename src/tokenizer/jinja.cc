#include "tokenizer/jinja.h"

#include "base/error.h"
#include "tokenizer/jinja_eval.h"
#include "tokenizer/jinja_lexer.h"
#include "tokenizer/jinja_parser.h"

namespace narrows::jinja {
namespace {

Value from_json(Heap& heap, const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return Value(json.get<bool>());
    case Type::number_integer:
    case Type::number_unsigned:
      return Value(json.get<std::int64_t>());
    case Type::number_float:
      return Value(json.get<double>());
    case Type::string:
      return heap.string(json.get_ref<const std::string&>());
    case Type::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(from_json(heap, item));
      return heap.list(std::move(items));
    }
    case Type::object: {
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, value] : json.items())
        entries.emplace_back(heap.string(key), from_json(heap, value));
      return heap.dict(std::move(entries));
    }
    default:
      return None{};
  }
}

}  // namespace

Template::Template(std::string_view source) : body_(parse(source)) {}

std::string Template::render(const nlohmann::ordered_json& variables, std::time_t now) const {
  Heap heap;
  const Value globals = from_json(heap, variables);
  Interpreter interpreter(heap, now);
  try {
    return interpreter.run(body_, *globals.dict());
  } catch (const Error& error) {
    fail_at(interpreter.line(), error.what());
  }
}

}  // namespace narrows::jinja
