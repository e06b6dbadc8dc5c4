// Chat templates of current models against jinja2: tools/make_chat_goldens.py writes what is expected.
#include "tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "narrows/error.h"

namespace narrows {
namespace {

using Json = nlohmann::ordered_json;
const std::string kFolder = std::string(NARROWS_TEST_DATA) + "/chat/";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Replaces \x01format\x01 by today's date in that format.
std::string fill_dates(const std::string& text) {
  std::string out;
  std::size_t at = 0;
  while (true) {
    const std::size_t begin = text.find('\x01', at);
    out += text.substr(at, begin - at);
    if (begin == std::string::npos) return out;
    const std::size_t end = text.find('\x01', begin + 1);
    const std::time_t now = std::time(nullptr);
    char date[200];
    std::strftime(date, sizeof date, text.substr(begin + 1, end - begin - 1).c_str(), std::localtime(&now));
    out += date;
    at = end + 1;
  }
}

std::vector<ChatMessage> messages_of(const Json& conversation) {
  std::vector<ChatMessage> messages;
  for (const auto& message : conversation) messages.push_back({message["role"], message["content"]});
  return messages;
}

void expect_case(const ChatTemplate& chat, const Json& conversations, const Json& expected) {
  const auto messages = messages_of(conversations.at(expected["conversation"].get<std::size_t>()));
  std::string output, error;
  try {
    output = chat.render(messages, expected["prompt"].get<bool>());
  } catch (const Error& e) {
    error = e.what();
  }
  if (expected.contains("error")) {
    EXPECT_NE(error, "") << "expected an error, rendered: " << output;
  } else {
    EXPECT_EQ(error, "");
    EXPECT_EQ(output, fill_dates(expected["output"]));
  }
}

// Renders every case; `source_of` gives a template's source.
template <typename SourceOf>
void expect_goldens(const Json& goldens, SourceOf source_of) {
  for (const auto& [name, golden] : goldens["templates"].items()) {
    const ChatTemplate chat(source_of(name, golden), "<s>", "</s>");
    for (const auto& expected : golden["cases"]) {
      SCOPED_TRACE(name + ", conversation " + expected["conversation"].dump() + ", prompt " +
                   expected["prompt"].dump());
      expect_case(chat, goldens["conversations"], expected);
    }
  }
}

TEST(ChatTemplate, RendersModelTemplatesAsJinja2Does) {
  const Json goldens = Json::parse(read_file(kFolder + "goldens.json"));
  ASSERT_GE(goldens["templates"].size(), 15u);
  expect_goldens(goldens, [](const std::string& name, const Json&) {
    return read_file(kFolder + "templates/" + name + ".jinja");
  });
}

TEST(ChatTemplate, RendersOtherTemplatesAsJinja2Does) {
  const char* path = std::getenv("NARROWS_CHAT_GOLDENS");
  if (!path)
    GTEST_SKIP() << "NARROWS_CHAT_GOLDENS names no file; tools/make_chat_goldens.py --templates writes one";
  expect_goldens(Json::parse(read_file(path)),
                 [](const std::string&, const Json& golden) { return golden["source"].get<std::string>(); });
}

TEST(ChatTemplate, SurfacesTheMessageThatATemplateRaises) {
  const ChatTemplate chat("{% if true %}\n{{ raise_exception('Roles must alternate') }}{% endif %}", "", "");
  try {
    chat.render({}, false);
    FAIL() << "expected an Error";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "chat template: line 2: the template raises: Roles must alternate");
  }
}

TEST(ChatTemplate, NamesTheLineOfASyntaxError) {
  try {
    const ChatTemplate chat("a\n{% if %}", "", "");
    FAIL() << "expected an Error";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "chat template: line 2: expected an expression, found the end of the tag");
  }
}

TEST(ChatTemplate, KeepsBytesThatAreNotUtf8) {
  const ChatTemplate chat("{{ messages[0].content | trim }}{{ messages[0].content[1:3] }}", "", "");
  const ChatMessage message{"user", " \xFF\xC3(\x80 "};
  EXPECT_EQ(chat.render(std::span(&message, 1), false), "\xFF\xC3(\x80\xFF\xC3");
}

TEST(ChatTemplate, MovesAndRendersAgain) {
  ChatTemplate chat("{{ bos_token }}{{ messages | length }}{{ eos_token }}", "<s>", "</s>");
  const ChatTemplate moved = std::move(chat);
  const ChatMessage message{"user", "x"};
  EXPECT_EQ(moved.render(std::span(&message, 1), true), "<s>1</s>");
  EXPECT_EQ(moved.render({}, true), "<s>0</s>");
}

}  // namespace
}  // namespace narrows
