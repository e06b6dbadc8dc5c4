// Oniguruma's syntax to PCRE2's. What differs: the meaning of \h \s \v \w \b and of POSIX brackets, set
// operations in character classes, names of properties, the dot's option, quantifiers of quantifiers, and
// options in the middle of a group.
#include <array>
#include <string>
#include <utility>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "tokenizer/onig_regex.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocabulary.h"

namespace narrows {

namespace {

// Bodies of character classes. PCRE2's own \s has U+180E, its \w neither marks nor all connectors.
constexpr std::string_view kSpaces =
    R"(\x09-\x0D \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHex = "0-9A-Fa-f";
constexpr std::string_view kPunct = R"(\p{P}\p{S})";  // as a bracket; \p{Punct} is \p{P}
// Outside of classes \w takes in these too, by a table for Latin-1: ² ³ ¹ ¼ ½ ¾.
constexpr std::string_view kWordOutside = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
constexpr std::string_view kAnyCharacter = R"([\x{0}-\x{10FFFF}])";

using Named = std::pair<std::string_view, std::string_view>;
// POSIX brackets, which \p{} knows too.
constexpr std::array kPosix = std::to_array<Named>({{"alpha", R"(\p{Alphabetic})"},
                                                    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
                                                    {"ascii", R"(\x00-\x7F)"},
                                                    {"blank", R"(\p{Zs}\x09)"},
                                                    {"cntrl", R"(\p{Cc})"},
                                                    {"digit", R"(\p{Nd})"},
                                                    {"lower", R"(\p{Lowercase})"},
                                                    {"punct", kPunct},
                                                    {"space", kSpaces},
                                                    {"upper", R"(\p{Uppercase})"},
                                                    {"word", kWord},
                                                    {"xdigit", kHex}});
// General categories by their long names, without separators.
constexpr std::array kCategories = std::to_array<Named>({{"letter", "L"},
                                                         {"casedletter", "L&"},
                                                         {"lc", "L&"},
                                                         {"uppercaseletter", "Lu"},
                                                         {"lowercaseletter", "Ll"},
                                                         {"titlecaseletter", "Lt"},
                                                         {"modifierletter", "Lm"},
                                                         {"otherletter", "Lo"},
                                                         {"mark", "M"},
                                                         {"combiningmark", "M"},
                                                         {"nonspacingmark", "Mn"},
                                                         {"spacingmark", "Mc"},
                                                         {"enclosingmark", "Me"},
                                                         {"number", "N"},
                                                         {"decimalnumber", "Nd"},
                                                         {"letternumber", "Nl"},
                                                         {"othernumber", "No"},
                                                         {"punctuation", "P"},
                                                         {"punct", "P"},
                                                         {"connectorpunctuation", "Pc"},
                                                         {"dashpunctuation", "Pd"},
                                                         {"openpunctuation", "Ps"},
                                                         {"closepunctuation", "Pe"},
                                                         {"initialpunctuation", "Pi"},
                                                         {"finalpunctuation", "Pf"},
                                                         {"otherpunctuation", "Po"},
                                                         {"symbol", "S"},
                                                         {"mathsymbol", "Sm"},
                                                         {"currencysymbol", "Sc"},
                                                         {"modifiersymbol", "Sk"},
                                                         {"othersymbol", "So"},
                                                         {"separator", "Z"},
                                                         {"spaceseparator", "Zs"},
                                                         {"lineseparator", "Zl"},
                                                         {"paragraphseparator", "Zp"},
                                                         {"other", "C"},
                                                         {"control", "Cc"},
                                                         {"format", "Cf"},
                                                         {"unassigned", "Cn"},
                                                         {"privateuse", "Co"}});

template <typename Table>
std::string_view look_up(const Table& table, std::string_view name) {
  for (const auto& [key, value] : table) {
    if (key == name) return value;
  }
  return {};
}

bool is_alnum(char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }

bool compiles(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

// A set of characters: the intersection of its operands, each a class body and further sets.
struct Set {
  struct Union {
    std::string body;
    std::vector<Set> sets;
  };
  bool negated = false;
  std::vector<Union> operands = std::vector<Union>(1);

  bool is_plain() const { return operands.size() == 1 && operands[0].sets.empty(); }
};

Set plain_set(std::string_view body, bool negated) {
  Set set{.negated = negated};
  set.operands[0].body = body;
  return set;
}

std::string write(const Set& set);

std::string write(const Set::Union& operand) {
  std::string out = operand.body.empty() ? std::string() : "[" + operand.body + "]";
  for (const Set& set : operand.sets) out.append(out.empty() ? "" : "|").append(write(set));
  return "(?:" + out + ")";
}

// A pattern that matches one character of the set.
std::string write(const Set& set) {
  if (set.is_plain()) return (set.negated ? "[^" : "[") + set.operands[0].body + "]";
  std::string out;
  for (std::size_t i = 0; i + 1 < set.operands.size(); ++i) out += "(?=" + write(set.operands[i]) + ")";
  out += write(set.operands.back());
  if (!set.negated) return "(?:" + out + ")";
  return "(?:(?!" + out + ")" + std::string(kAnyCharacter) + ")";
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) step();
    if (groups_.size() != 1) fail("a group is not closed");
    out_.append(groups_[0].options, ')');
    return std::move(out_);
  }

 private:
  static constexpr std::size_t kDeepest = 64;  // of groups and classes
  struct Group {
    std::size_t begin = 0;    // in the output
    std::size_t options = 0;  // groups opened for options in the middle
  };

  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }

  void step() {
    const char c = pattern_[at_];
    switch (c) {
      case '\\':
        begin_atom();
        escape();
        return;
      case '[':
        begin_atom();
        ++at_;
        out_ += write(read_class(0));
        return;
      case '(':
        open_group();
        return;
      case ')':
        if (groups_.size() == 1) fail("a ')' closes no group");
        out_.append(groups_.back().options + 1, ')');
        atom_ = groups_.back().begin;
        groups_.pop_back();
        quantified_ = false;
        ++at_;
        return;
      case '*':
      case '+':
      case '?':
        ++at_;
        quantify(std::string(1, c), true, true);
        return;
      case '{':
        if (interval()) return;
        [[fallthrough]];
      case '}':
      case ']':
        begin_atom();
        out_ += '\\';
        out_ += c;
        ++at_;
        return;
      case '|':
        out_ += c;
        atom_ = std::string::npos;
        ++at_;
        return;
      default: {
        begin_atom();
        const std::size_t length = utf8_sequence(pattern_.substr(at_));
        if (length == 0) fail("it is not UTF-8");
        if (c == '\0') {
          out_ += R"(\x00)";
        } else {
          out_ += pattern_.substr(at_, length);
        }
        at_ += length;
      }
    }
  }

  void begin_atom() {
    atom_ = out_.size();
    quantified_ = false;
  }

  // A quantifier of something that has one already, and one that Ruby reads in another way than PCRE2, need a
  // group.
  void quantify(const std::string& text, bool may_be_lazy, bool may_be_possessive) {
    if (atom_ == std::string::npos) fail("a quantifier has nothing to repeat");
    if (quantified_) {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
    out_ += text;
    quantified_ = true;
    if ((may_be_lazy && peek() == '?') || (may_be_possessive && peek() == '+')) out_ += pattern_[at_++];
  }

  // {n}, {n,}, {n,m}, {,m}; false if the brace is a character.
  bool interval() {
    std::size_t i = at_ + 1;
    const auto number = [&] {
      const std::size_t begin = i;
      while (i < pattern_.size() && is_digit(pattern_[i])) ++i;
      return std::string(pattern_.substr(begin, i - begin));
    };
    const std::string low = number();
    const bool comma = i < pattern_.size() && pattern_[i] == ',';
    if (comma) ++i;
    const std::string high = comma ? number() : "";
    if (i >= pattern_.size() || pattern_[i] != '}' || (low.empty() && high.empty())) return false;
    at_ = i + 1;
    quantify("{" + (low.empty() ? "0" : low) + (comma ? "," : "") + high + "}", comma, false);
    return true;
  }

  void open_group() {
    if (groups_.size() >= kDeepest) fail("groups nest more than {} deep", kDeepest);
    if (next_is("(*")) fail("'(*' is not supported");
    const std::size_t begin = out_.size();
    if (!next_is("(?")) {
      out_ += '(';
      ++at_;
    } else if (next_is("(?#")) {
      const std::size_t end = pattern_.find(')', at_);
      if (end == pattern_.npos) fail("a comment is not closed");
      at_ = end + 1;
      return;
    } else {
      std::string_view head;
      for (const std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
        if (next_is(known)) head = known;
      }
      if (!head.empty()) {
        out_ += head;
        at_ += head.size();
      } else if (next_is("(?<")) {
        const std::size_t end = pattern_.find('>', at_);
        if (end == pattern_.npos) fail("the name of a group is not closed");
        out_ += pattern_.substr(at_, end + 1 - at_);
        at_ = end + 1;
      } else if (options()) {
        return;
      }
    }
    groups_.push_back({begin, 0});
    atom_ = std::string::npos;
  }

  // (?i) and (?i:…; true if the options hold for the rest of the group that they stand in.
  bool options() {
    std::size_t i = at_ + 2;
    std::string head = "(?";
    for (; i < pattern_.size() && pattern_[i] != ':' && pattern_[i] != ')'; ++i) {
      const char c = pattern_[i];
      if (c == 'i' || c == '-') {
        head += c;
      } else if (c == 'm') {
        head += 's';  // Ruby's name for a dot that matches line ends too
      } else {
        fail("'(?{}' is not supported", quoted(std::string_view(&c, 1)));
      }
    }
    if (i == pattern_.size()) fail("options are not closed");
    const bool rest = pattern_[i] == ')';
    at_ = i + 1;
    out_ += head + ":";
    if (rest) {
      if (++groups_.back().options > kDeepest) fail("groups nest more than {} deep", kDeepest);
      atom_ = std::string::npos;
    }
    return rest;
  }

  // An escape outside of classes.
  void escape() {
    if (at_ + 1 >= pattern_.size()) fail("it ends with a backslash");
    const char c = pattern_[at_ + 1];
    const auto boundary = [&](bool negated) {
      const std::string w = "[" + std::string(kWordOutside) + "]";
      out_ += negated ? "(?:(?<=" + w + ")(?=" + w + ")|(?<!" + w + ")(?!" + w + "))"
                      : "(?:(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w + "))";
    };
    if (c == 'b' || c == 'B') {
      boundary(c == 'B');
      at_ += 2;
    } else if (std::string_view("AzZGRXK").find(c) != std::string_view::npos || (c >= '1' && c <= '9') ||
               c == 'k' || c == 'g') {
      out_ += {'\\', c};
      at_ += 2;
    } else {
      Set set;
      character_escape(set.operands[0]);
      if (set.operands[0].body == kWord) set.operands[0].body = kWordOutside;
      for (Set& inner : set.operands[0].sets) {
        if (inner.operands[0].body == kWord) inner.operands[0].body = kWordOutside;
      }
      // A single character needs no class.
      const bool single = set.is_plain() && !set_escape_;
      if (!set.is_plain()) {
        out_ += write(set.operands[0].sets[0]);
      } else {
        out_ += single ? set.operands[0].body : "[" + set.operands[0].body + "]";
      }
    }
  }

  // An escape that stands for characters; sets set_escape_ to whether it may be for several.
  void character_escape(Set::Union& into) {
    if (at_ + 1 >= pattern_.size()) fail("it ends with a backslash");
    const char c = pattern_[at_ + 1];
    const auto add_set = [&](std::string_view body, bool negated) {
      if (negated) {
        into.sets.push_back(plain_set(body, true));
      } else {
        into.body += body;
      }
      set_escape_ = true;
      at_ += 2;
    };
    set_escape_ = false;
    switch (c) {
      case 's':
      case 'S':
        return add_set(kSpaces, c == 'S');
      case 'w':
      case 'W':
        return add_set(kWord, c == 'W');
      case 'h':
      case 'H':
        return add_set(kHex, c == 'H');
      case 'd':
        return add_set(R"(\p{Nd})", false);
      case 'D':
        return add_set(R"(\P{Nd})", false);
      case 'p':
      case 'P':
        return property(into, c == 'P');
      case 'u':
        return code_point(into, 2, 4, 4);
      case 'x':
        return hex_escape(into);
      case 'v':
        into.body += R"(\x0B)";
        at_ += 2;
        return;
      default:
        break;
    }
    const bool known = std::string_view("ntrfae0").find(c) != std::string_view::npos;
    if (is_alnum(c) && !known) fail("the escape {} is not supported", quoted(pattern_.substr(at_, 2)));
    const std::size_t length = utf8_sequence(pattern_.substr(at_ + 1));
    if (length == 0) fail("it is not UTF-8");
    if (c == '\0') {
      into.body += R"(\x00)";
    } else {
      if (length == 1) into.body += '\\';
      into.body += pattern_.substr(at_ + 1, length);
    }
    at_ += 1 + length;
  }

  void code_point(Set::Union& into, std::size_t skip, std::size_t least, std::size_t most) {
    std::size_t length = 0;
    while (length < most && at_ + skip + length < pattern_.size() && is_hex(pattern_[at_ + skip + length])) {
      ++length;
    }
    if (length < least) fail("an escape lacks hexadecimal digits");
    into.body += "\\x{" + std::string(pattern_.substr(at_ + skip, length)) + "}";
    at_ += skip + length;
  }

  void hex_escape(Set::Union& into) {
    if (peek(2) == '{') {
      code_point(into, 3, 1, 8);
      if (peek() != '}') fail("an escape is not closed");
      ++at_;
      return;
    }
    // Two digits are a byte for Oniguruma, not a code point.
    if (is_hex(peek(2)) && is_hex(peek(3)) && peek(2) >= '8') fail("a byte above 0x7F is not supported");
    code_point(into, 2, 1, 2);
  }

  void property(Set::Union& into, bool negated) {
    const std::size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == pattern_.npos) fail("a property is not of the form \\p{{…}}");
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    at_ = end + 1;
    set_escape_ = true;
    std::string plain;
    for (const char c : name) {
      if (c == ' ' || c == '_' || c == '-') continue;
      if (!is_alnum(c)) fail("the property {} is not supported", quoted(name));
      plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 0x20) : c;
    }
    std::string known(look_up(kCategories, plain));
    if (const std::string_view body = look_up(kPosix, plain); known.empty() && !body.empty()) {
      if (negated) {
        into.sets.push_back(plain_set(body, true));
      } else {
        into.body += body;
      }
      return;
    }
    if (known.empty()) {
      // Without "sc:" a script takes in characters that it shares with others.
      known = plain.size() > 2 && compiles("\\p{sc:" + plain + "}") ? "sc:" + plain : plain;
      if (!compiles("\\p{" + known + "}")) fail("the property {} is not supported", quoted(name));
    }
    into.body += (negated ? "\\P{" : "\\p{") + known + "}";
  }

  // A class, of which the bracket is read.
  Set read_class(std::size_t depth) {
    if (depth > kDeepest) fail("classes nest more than {} deep", kDeepest);
    Set set;
    if (peek() == '^') {
      set.negated = true;
      ++at_;
    }
    bool first = true;
    while (true) {
      if (at_ >= pattern_.size()) fail("a character class is not closed");
      Set::Union& operand = set.operands.back();
      const char c = peek();
      if (c == ']' && !first) {
        ++at_;
        break;
      }
      if (next_is("&&")) {
        at_ += 2;
        set.operands.emplace_back();
        first = true;
        continue;
      }
      class_item(operand, c, first, depth);
      first = false;
    }
    for (const auto& operand : set.operands) {
      if (operand.body.empty() && operand.sets.empty()) fail("a character class is empty");
    }
    return set;
  }

  void class_item(Set::Union& operand, char c, bool first, std::size_t depth) {
    if (next_is("[:") && posix_bracket(operand)) return;
    if (c == '[') {
      ++at_;
      Set inner = read_class(depth + 1);
      if (inner.is_plain() && !inner.negated) {
        operand.body += inner.operands[0].body;
      } else {
        operand.sets.push_back(std::move(inner));
      }
    } else if (c == '\\') {
      if (peek(1) == 'b') {
        operand.body += R"(\x08)";
        at_ += 2;
      } else {
        character_escape(operand);
      }
    } else if (c == '-') {
      const bool literal =
          first || peek(1) == ']' || peek(1) == '[' || pattern_.substr(at_ + 1).starts_with("&&");
      operand.body += literal ? "\\-" : "-";
      ++at_;
    } else if (c == '^' || c == ']') {
      operand.body += {'\\', c};
      ++at_;
    } else {
      const std::size_t length = utf8_sequence(pattern_.substr(at_));
      if (length == 0) fail("it is not UTF-8");
      operand.body += c == '\0' ? std::string(R"(\x00)") : std::string(pattern_.substr(at_, length));
      at_ += length;
    }
  }

  bool posix_bracket(Set::Union& operand) {
    const std::size_t end = pattern_.find(":]", at_);
    if (end == pattern_.npos || end - at_ > 20) return false;
    std::string_view name = pattern_.substr(at_ + 2, end - at_ - 2);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    for (const char c : name) {
      if (!is_alnum(c)) return false;
    }
    const std::string_view body = look_up(kPosix, name);
    if (body.empty()) fail("the class {} is not supported", quoted(name));
    if (negated) {
      operand.sets.push_back(plain_set(body, true));
    } else {
      operand.body += body;
    }
    at_ = end + 2;
    return true;
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = std::string::npos;  // where what a quantifier would repeat begins in the output
  bool quantified_ = false;               // whether it has a quantifier
  bool set_escape_ = false;
  std::vector<Group> groups_ = std::vector<Group>(1);
};

}  // namespace

std::string pcre2_pattern(std::string_view onig_pattern) { return Translator(onig_pattern).run(); }

std::string escaped_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !is_alnum(c) && c != '\0') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace narrows
