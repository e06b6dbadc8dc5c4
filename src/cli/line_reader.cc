#include "cli/line_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <cstdio>
#include <cwchar>
#include <iostream>

#include "cli/interrupt.h"

namespace narrows::cli {
namespace {

constexpr char kCtrlD = '\x04';

// Reads one character for the editor, whose own reader would go on reading after a signal. 0 ends the input.
int read_character(EditLine*, wchar_t* character) {
  std::mbstate_t state{};
  for (;;) {
    char byte = 0;
    if (!wait_for_input(STDIN_FILENO) || ::read(STDIN_FILENO, &byte, 1) != 1) return 0;
    // Ctrl-D typed while the terminal still had its own line mode, during an answer say, arrives as NUL.
    if (byte == '\0') byte = kCtrlD;
    switch (std::mbrtowc(character, &byte, 1, &state)) {
      case static_cast<std::size_t>(-2):
        continue;  // more bytes to come
      case static_cast<std::size_t>(-1):
        *character = L'?';
        return 1;
      default:
        return 1;
    }
  }
}

char* prompt(EditLine*) {
  static char text[] = "> ";
  return text;
}

}  // namespace

struct LineReader::Editor {
  Editor() {
    edit = el_init("narrows", stdin, ::isatty(STDOUT_FILENO) ? stdout : stderr, stderr);
    history = history_init();
    HistEvent event;
    ::history(history, &event, H_SETSIZE, 1000);
    el_set(edit, EL_PROMPT, prompt);
    el_set(edit, EL_EDITOR, "emacs");
    el_set(edit, EL_HIST, ::history, history);
    el_set(edit, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(edit, EL_GETCFN, read_character);
  }
  ~Editor() {
    history_end(history);
    el_end(edit);
  }
  EditLine* edit;
  History* history;
};

LineReader::LineReader() {
  if (::isatty(STDIN_FILENO)) editor_ = std::make_unique<Editor>();
}
LineReader::~LineReader() = default;

std::optional<std::string> LineReader::read_line() {
  std::string line;
  if (!editor_) {
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  int count = 0;
  const char* text = el_gets(editor_->edit, &count);
  if (interrupted() || !text || count <= 0) return std::nullopt;
  line.assign(text);
  if (line.find_first_not_of(" \t\n") != std::string::npos) {
    HistEvent event;
    ::history(editor_->history, &event, H_ENTER, line.c_str());
  }
  if (line.ends_with('\n')) line.pop_back();
  return line;
}

std::optional<std::string> LineReader::read() {
  std::string text;
  for (;;) {
    const auto line = read_line();
    if (!line) return std::nullopt;
    text += *line;
    if (!text.ends_with('\\')) return text;
    text.back() = '\n';
  }
}

}  // namespace narrows::cli
