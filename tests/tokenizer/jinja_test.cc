// The template language, snippet by snippet, against jinja2, and its limits.
#include "tokenizer/jinja.h"

#include <gtest/gtest.h>

#include <fstream>

#include "narrows/error.h"

namespace narrows::jinja {
namespace {

using Json = nlohmann::ordered_json;

std::string render(std::string_view source, const Json& variables = Json::object()) {
  return Template(source).render(variables, 0);
}

std::string error_of(std::string_view source) {
  try {
    return "no error, but: " + render(source).substr(0, 100);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Jinja, SnippetsGiveWhatJinja2Gives) {
  std::ifstream file(std::string(NARROWS_TEST_DATA) + "/chat/snippets.json");
  const Json goldens = Json::parse(file);
  ASSERT_GE(goldens["snippets"].size(), 400u);
  for (const auto& snippet : goldens["snippets"]) {
    const std::string source = snippet["source"];
    SCOPED_TRACE(source);
    if (snippet.contains("error")) {
      EXPECT_THROW(render(source, goldens["variables"]), Error) << "jinja2: " << snippet["error"];
      continue;
    }
    try {
      EXPECT_EQ(render(source, goldens["variables"]), snippet["output"].get<std::string>());
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(Jinja, RefusesTemplatesWithoutEnd) {
  const char* const hostile[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{{ 'x' * 999999999 }}",
      "{{ [0] * 999999999 }}",
      "{{ range(999999999) }}",
      "{{ 'x'.center(999999999) }}",
      "{{ '%999999999d' % 1 }}",
      "{{ '{:999999999}'.format(1) }}",
      "{{ 2 ** 64 }}",
      "{% set ns = namespace(x='xx') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x == ns.x + [] }}{{ ns.x|tojson }}",
      "{{ ('x' * 9999999).replace('x', 'y' * 99999) }}",
      "{{ ('x' * 9999999)|list }}",
  };
  for (const char* source : hostile)
    EXPECT_NE(error_of(source).find("expected"), std::string::npos) << source;
}

TEST(Jinja, RefusesDeepNesting) {
  const auto nested = [](std::string_view open, std::string_view middle, std::string_view close) {
    std::string source;
    for (int i = 0; i < 100000; ++i) source += open;
    source += middle;
    for (int i = 0; i < 100000; ++i) source += close;
    return source;
  };
  for (const std::string& source :
       {"{{ " + nested("(", "1", ")") + " }}", "{{ " + nested("[", "", "]") + " }}",
        "{{ " + nested("-", "1", "") + " }}", "{{ " + nested("not ", "1", "") + " }}",
        "{{ 1" + nested("+1", "", "") + " }}", "{{ x" + nested(".x", "", "") + " }}",
        "{{ 1" + nested(" if 1 else 1", "", "") + " }}", "{{ 1" + nested("|abs", "", "") + " }}",
        nested("{% if 1 %}", "", "{% endif %}"), nested("{% for x in y %}", "", "{% endfor %}")}) {
    EXPECT_NE(error_of(source).find("expected"), std::string::npos) << source.substr(0, 30);
  }
}

TEST(Jinja, FreesWhatHoldsItself) {
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.self = [ns] %}"
                   "{% macro f() %}{{ f.name }}{% endmacro %}{% set ns.f = f %}"
                   "{% for x in [1] %}{{ loop.changed(loop) }}{% macro g() %}{% endmacro %}{% set ns.g = g "
                   "%}{% endfor %}"),
            "True");
  EXPECT_NE(
      error_of("{% set ns = namespace() %}{% set ns.self = [ns] %}{{ ns.self }}{{ ns.self == [ns] }}").size(),
      0u);
}

TEST(Jinja, NamesTheLineAndWhatWasExpected) {
  EXPECT_EQ(error_of("{{ 1 }}\n\n{{ x.y }}"), "chat template: line 3: 'x' is undefined");
  EXPECT_EQ(error_of("\n{{ 'a' + 1 }}"),
            "chat template: line 2: +: expected operands that fit, found str and int");
  EXPECT_EQ(error_of("{{ 'a' | nothing }}"),
            "chat template: line 1: expected a known filter, found 'nothing'");
  EXPECT_EQ(error_of("\n{% for x in y %}"),
            "chat template: line 2: expected the tag endfor, found the end of the template");
  EXPECT_EQ(error_of("{% include 'x' %}"),
            "chat template: line 1: expected a tag that chat templates use, found 'include'");
}

TEST(Jinja, PrintsTheTimeItIsGiven) {
  const std::time_t noon = 12 * 3600;
  EXPECT_EQ(Template("{{ strftime_now('%Y') }}{{ strftime_now('') }}").render(Json::object(), noon), "1970");
}

}  // namespace
}  // namespace narrows::jinja
