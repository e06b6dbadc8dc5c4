// Python's two ways to format: "%d" % x and "{:d}".format(x).
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "tokenizer/jinja_eval.h"
#include "tokenizer/jinja_text.h"

namespace narrows::jinja {
namespace {

constexpr std::int64_t kMaxPrecision = 1000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::int64_t read_number(std::string_view text, std::size_t& at, std::int64_t otherwise) {
  if (at >= text.size() || !is_digit(text[at])) return otherwise;
  std::int64_t value = 0;
  for (; at < text.size() && is_digit(text[at]); ++at) {
    value = value * 10 + (text[at] - '0');
    if (value > static_cast<std::int64_t>(kMaxText)) fail("format: expected a width of at most {}", kMaxText);
  }
  return value;
}

// The number without its sign.
std::string real_digits(double value, char type, std::int64_t precision, bool keep_zeros) {
  if (precision > kMaxPrecision) fail("format: expected a precision of at most {}", kMaxPrecision);
  const double magnitude = std::fabs(value);
  if (!std::isfinite(magnitude)) return std::isnan(magnitude) ? "nan" : "inf";
  const int digits = static_cast<int>(precision < 0 ? 6 : precision);
  switch (type) {
    case 'e':
      return fmt::format("{:.{}e}", magnitude, digits);
    case 'f':
      return fmt::format("{:.{}f}", magnitude, digits);
    default:
      return keep_zeros ? fmt::format("{:#.{}g}", magnitude, std::max(digits, 1))
                        : fmt::format("{:.{}g}", magnitude, std::max(digits, 1));
  }
}

std::string integer_digits(std::int64_t value, char type) {
  const std::uint64_t magnitude =
      value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  switch (type) {
    case 'x':
      return fmt::format("{:x}", magnitude);
    case 'X':
      return fmt::format("{:X}", magnitude);
    case 'o':
      return fmt::format("{:o}", magnitude);
    case 'b':
      return fmt::format("{:b}", magnitude);
    default:
      return fmt::format("{}", magnitude);
  }
}

std::string with_commas(std::string digits, char separator) {
  std::size_t end = digits.find_first_of(".e");
  if (end == std::string::npos) end = digits.size();
  for (std::size_t at = end; at > 3; at -= 3) digits.insert(at - 3, 1, separator);
  return digits;
}

std::string upper_if(std::string text, bool upper) {
  if (upper) {
    for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  }
  return text;
}

// Puts sign and digits into a field; '=' pads between them.
std::string numeric_field(Heap& heap, std::string_view sign, std::string_view digits, std::int64_t width,
                          std::string_view fill, char align) {
  if (align != '=') return pad(heap, std::string(sign) + std::string(digits), width, fill, align);
  return std::string(sign) + pad(heap, digits, width - static_cast<std::int64_t>(sign.size()), fill, '>');
}

struct Spec {
  std::string_view fill = " ";
  char align = '\0', sign = '-', separator = '\0', type = '\0';
  bool alternate = false;
  std::int64_t width = 0, precision = -1;
};

Spec parse_spec(std::string_view text) {
  Spec spec;
  std::size_t at = 0;
  const auto take = [&](std::string_view choices) {
    if (at >= text.size() || choices.find(text[at]) == std::string_view::npos) return '\0';
    return text[at++];
  };
  const std::size_t first = text.empty() ? 0 : char_bytes(text, 0);
  if (first < text.size() && std::string_view("<>=^").find(text[first]) != std::string_view::npos) {
    spec.fill = text.substr(0, first);
    at = first;
  }
  spec.align = take("<>=^");
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != '\0';
  if (at < text.size() && text[at] == '0' && !spec.align) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = read_number(text, at, 0);
  spec.separator = take(",_");
  if (take(".")) {
    spec.precision = read_number(text, at, -1);
    if (spec.precision < 0) fail("format: expected a precision after '.'");
  }
  spec.type = take("bcdeEfFgGnosxX%");
  if (at != text.size()) fail("format: expected a format specification, found {:?}", text.substr(0, 40));
  return spec;
}

std::string format_number(Heap& heap, const Value& value, Spec spec) {
  std::int64_t integer = 0;
  double real = 0;
  const bool is_integer = as_integer(value, integer);
  as_real(value, real);
  const char type = static_cast<char>(spec.type | 0x20);
  const bool integral = std::string_view("bcdoxX").find(spec.type) != std::string_view::npos && spec.type;
  std::string digits;
  if (spec.type == 's') fail("format: expected a string for the type 's', found {}", type_name(value));
  if (spec.type == 'c') {
    if (!is_integer || integer < 0 || integer > 0x10FFFF)
      fail("format: expected a character's code for the type 'c'");
    std::string character;
    append_code_point(character, static_cast<std::uint32_t>(integer));
    return pad(heap, character, spec.width, spec.fill, spec.align ? spec.align : '<');
  }
  if (is_integer && (integral || !spec.type || spec.type == 'n')) {
    if (spec.precision >= 0) fail("format: expected no precision for an integer");
    digits = integer_digits(integer, spec.type);
    if (spec.separator) digits = with_commas(std::move(digits), spec.separator);
    if (spec.alternate && spec.type && spec.type != 'd') digits = std::string("0") + spec.type + digits;
  } else if (integral) {
    fail("format: expected an integer for the type '{}', found {}", spec.type, type_name(value));
  } else {
    const bool percent = spec.type == '%';
    if (!spec.type && spec.precision < 0) {
      digits = print_real(std::fabs(real));
    } else if (!spec.type) {
      digits = real_digits(real, 'g', spec.precision, false);
      if (digits.find_first_of(".en") == std::string::npos) digits += ".0";
    } else {
      digits = real_digits(percent ? real * 100 : real,
                           percent       ? 'f'
                           : type == 'n' ? 'g'
                                         : type,
                           spec.precision, spec.alternate);
    }
    if (spec.separator) digits = with_commas(std::move(digits), spec.separator);
    if (percent) digits += '%';
    digits = upper_if(std::move(digits), spec.type == 'E' || spec.type == 'F' || spec.type == 'G');
  }
  const bool negative = is_integer ? integer < 0 : std::signbit(real) && !std::isnan(real);
  const std::string_view sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  return numeric_field(heap, sign, digits, spec.width, spec.fill, spec.align ? spec.align : '>');
}

// The arguments of one str.format call.
class Fields {
 public:
  Fields(Interpreter& in, const Args& args) : in_(in), args_(args) {}

  // `field` is what stands before ':' and '!', such as "0.name[key]".
  Value look_up(std::string_view field) {
    const std::size_t end = std::min(field.find_first_of(".["), field.size());
    Value value = argument(field.substr(0, end));
    field.remove_prefix(end);
    while (!field.empty()) {
      const bool index = field[0] == '[';
      const std::size_t close =
          index ? field.find(']') : std::min(field.find_first_of(".[", 1), field.size());
      if (close == std::string_view::npos) fail("format: expected ']'");
      const std::string_view name = field.substr(1, close - 1);
      if (name.empty()) fail("format: expected a name within a field");
      value = index ? in_.item(value, key(name)) : in_.attribute(value, name);
      field.remove_prefix(close + (index ? 1 : 0));
      if (!field.empty() && field[0] != '.' && field[0] != '[') fail("format: expected '.' or '[' after ']'");
    }
    return value;
  }

 private:
  Value key(std::string_view name) const {
    std::int64_t index = 0;
    const auto result = std::from_chars(name.data(), name.data() + name.size(), index);
    if (result.ec == std::errc() && result.ptr == name.data() + name.size() && is_digit(name[0]))
      return Value(index);
    return in_.heap().string(std::string(name));
  }

  Value argument(std::string_view name) {
    std::size_t index = 0;
    if (name.empty()) {
      if (numbered_) fail("format: expected numbered fields only, or none");
      automatic_ = true;
      index = next_++;
    } else if (is_digit(name[0])) {
      if (automatic_) fail("format: expected numbered fields only, or none");
      numbered_ = true;
      std::size_t at = 0;
      index = static_cast<std::size_t>(read_number(name, at, 0));
    } else {
      for (const auto& [known, value] : args_.named) {
        if (known == name) return value;
      }
      fail("format: expected an argument named '{}'", name);
    }
    if (index >= args_.positional.size())
      fail("format: expected more than {} arguments", args_.positional.size());
    return args_.positional[index];
  }

  Interpreter& in_;
  const Args& args_;
  std::size_t next_ = 0;
  bool automatic_ = false, numbered_ = false;
};

// Fields are replaced in `text`; within a specification they may be nested once.
std::string replace_fields(Interpreter& in, std::string_view text, Fields& fields, int depth) {
  Text out(in.heap());
  while (!text.empty()) {
    const std::size_t brace = std::min(text.find_first_of("{}"), text.size());
    out.append(text.substr(0, brace));
    text.remove_prefix(brace);
    if (text.empty()) break;
    if (text.size() > 1 && text[1] == text[0] && depth == 0) {
      out.append(text[0]);
      text.remove_prefix(2);
      continue;
    }
    if (depth > 1) fail("format: expected fields nested at most once");
    if (text[0] == '}') fail("format: expected '{{' before '}}'");
    std::size_t end = 1;
    for (int open = 1; open > 0; ++end) {
      if (end >= text.size()) fail("format: expected '}}' after '{{'");
      open += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
    }
    const std::string_view field = text.substr(1, end - 2);
    text.remove_prefix(end);
    const std::size_t bracket_end = field.find('[') < field.find_first_of(":!") ? field.find(']') : 0;
    const std::size_t colon = std::min(
        field.find_first_of(":!", bracket_end == std::string_view::npos ? 0 : bracket_end), field.size());
    Value value = fields.look_up(field.substr(0, colon));
    std::string_view rest = field.substr(colon);
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest[1] != 's' && rest[1] != 'r') || (rest.size() > 2 && rest[2] != ':')) {
        fail("format: expected !s or !r");
      }
      Text converted(in.heap());
      if (rest[1] == 's') {
        print(converted, value);
      } else {
        print_repr(converted, value);
      }
      value = in.heap().string(converted.take());
      rest.remove_prefix(2);
    }
    if (rest.starts_with(':')) rest.remove_prefix(1);
    out.append(format_spec(in.heap(), value, replace_fields(in, rest, fields, depth + 1)));
  }
  return out.take();
}

}  // namespace

std::string pad(Heap& heap, std::string_view text, std::int64_t width, std::string_view fill, char align) {
  const auto size = static_cast<std::int64_t>(count_chars(text));
  const std::int64_t missing = width > size ? width - size : 0;
  // str.center puts the odd character on the left if the width is odd; '=' asks for that, '^' for the right.
  const std::int64_t left = align == '<'   ? 0
                            : align == '>' ? missing
                            : align == '=' ? missing / 2 + (missing & width & 1)
                                           : missing / 2;
  Text out(heap);
  out.append(static_cast<std::size_t>(left), fill);
  out.append(text);
  out.append(static_cast<std::size_t>(missing - left), fill);
  return out.take();
}

std::string format_spec(Heap& heap, const Value& value, std::string_view text) {
  if (text.empty()) return printed(heap, value);
  const Spec spec = parse_spec(text);
  double real = 0;
  if (as_real(value, real) && !(value.boolean() && !spec.type)) return format_number(heap, value, spec);
  if (!value.is_string()) {
    fail("format: expected a string or number for the specification {:?}, found {}", text.substr(0, 40),
         type_name(value));
  }
  if ((spec.type && spec.type != 's') || spec.align == '=' || spec.sign != '-' || spec.separator ||
      spec.alternate) {
    fail("format: expected a specification for a string, found {:?}", text.substr(0, 40));
  }
  std::string_view shown = value.text();
  if (spec.precision >= 0)
    shown = shown.substr(0, byte_offset(shown, static_cast<std::size_t>(spec.precision)));
  return pad(heap, shown, spec.width, spec.fill, spec.align ? spec.align : '<');
}

std::string brace_format(Interpreter& in, std::string_view format, const Args& args) {
  Fields fields(in, args);
  return replace_fields(in, format, fields, 0);
}

std::string percent_format(Heap& heap, std::string_view format, const Value& args) {
  const Seq* tuple = args.seq() && args.seq()->kind == SeqKind::Tuple ? args.seq() : nullptr;
  heap.step(format.size() / 16);
  std::size_t used = 0;
  const auto next = [&]() -> const Value& {
    if (tuple ? used >= tuple->items.size() : used > 0) fail("%: expected more values to format");
    ++used;
    return tuple ? tuple->items[used - 1] : args;
  };
  Text out(heap);
  bool by_name = false;
  for (std::size_t at = 0; at < format.size();) {
    const std::size_t sign = std::min(format.find('%', at), format.size());
    out.append(format.substr(at, sign - at));
    at = sign + 1;
    if (sign == format.size()) break;
    const Value* named = nullptr;
    if (at < format.size() && format[at] == '(') {
      const std::size_t close = format.find(')', at);
      if (close == std::string_view::npos || !args.dict()) fail("%: expected a dict for a named value");
      named = find(heap, *args.dict(), format.substr(at + 1, close - at - 1));
      if (!named) fail("%: expected a value named '{}'", format.substr(at + 1, close - at - 1));
      by_name = true;
      at = close + 1;
    }
    Spec spec;
    spec.align = '>';
    for (; at < format.size() && std::string_view("-+ #0").find(format[at]) != std::string_view::npos; ++at) {
      if (format[at] == '-') spec.align = '<';
      if (format[at] == '+' || (format[at] == ' ' && spec.sign != '+')) spec.sign = format[at];
      if (format[at] == '#') spec.alternate = true;
      if (format[at] == '0' && spec.align != '<') spec.align = '=';
    }
    if (spec.align == '=') spec.fill = "0";
    spec.width = read_number(format, at, 0);
    if (at < format.size() && format[at] == '.') spec.precision = read_number(format, ++at, 0);
    if (at >= format.size()) fail("%: expected a type after '%'");
    spec.type = format[at++];
    if (spec.type == '%') {
      out.append('%');
      continue;
    }
    const Value& value = named ? *named : next();
    double real = 0;
    std::int64_t integer = 0;
    if (spec.type == 's' || spec.type == 'r' || (spec.type == 'c' && value.is_string())) {
      Text shown(heap);
      if (spec.type == 'r') {
        print_repr(shown, value);
      } else {
        print(shown, value);
      }
      std::string_view text = shown.view();
      if (spec.type == 'c' && count_chars(text) != 1) fail("%c: expected one character");
      if (spec.precision >= 0)
        text = text.substr(0, byte_offset(text, static_cast<std::size_t>(spec.precision)));
      out.append(pad(heap, text, spec.width, " ", spec.align == '<' ? '<' : '>'));
      continue;
    }
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    if (std::string_view("dxXoeEfFgGc").find(spec.type) == std::string_view::npos)
      fail("%: expected a known type, found '{}'", spec.type);
    if (!as_real(value, real)) fail("%{}: expected a number, found {}", spec.type, type_name(value));
    if (spec.type == 'd' && !as_integer(value, integer)) {
      if (!(std::fabs(real) < 9e18)) fail("%d: expected a number within 64 bits");
      out.append(format_number(heap, Value(static_cast<std::int64_t>(real)), spec));
      continue;
    }
    const std::int64_t digits =
        as_integer(value, integer) && spec.type == 'd' ? std::exchange(spec.precision, -1) : -1;
    std::string shown = format_number(heap, value, spec);
    if (digits > 0 && static_cast<std::int64_t>(shown.size()) < digits)
      shown = pad(heap, shown, digits, "0", '>');
    out.append(shown);
  }
  const bool all_used =
      tuple ? used == tuple->items.size() : used > 0 || by_name || args.dict() || args.seq();
  if (!all_used) fail("%: expected no more values than the format names");
  return out.take();
}

}  // namespace narrows::jinja
