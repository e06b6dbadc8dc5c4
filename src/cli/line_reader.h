// Lines from the user: edited, with history, on a terminal; plain otherwise.
#pragma once
#include <memory>
#include <optional>
#include <string>

namespace narrows::cli {

class LineReader {
 public:
  LineReader();
  ~LineReader();
  bool terminal() const { return editor_ != nullptr; }

  // The next line without its end; a backslash at the end of a line continues it on the next. nullopt at the
  // end of input, or when Ctrl-C was pressed at the prompt.
  std::optional<std::string> read();

 private:
  struct Editor;
  std::optional<std::string> read_line();
  std::unique_ptr<Editor> editor_;  // nullptr: standard input is no terminal
};

}  // namespace narrows::cli
