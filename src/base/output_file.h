// A file that appears whole or not at all, or a device or pipe that is written to as it stands.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace narrows {

// Writes go to a temporary file beside `path`; commit() makes it durable and renames it into place. Without
// commit() (an exception, or SIGINT/SIGTERM/SIGHUP when install_interrupt_handler() was called) it is
// removed. A path that names a device, a pipe or a socket (/dev/null, /dev/stdout) is opened and written
// straight to: a rename would replace the node itself.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(std::span<const std::byte> bytes);
  void write(const void* data, std::size_t size) { write({static_cast<const std::byte*>(data), size}); }
  std::size_t written() const { return written_; }
  void commit();

 private:
  void flush();
  std::string path_, temporary_;  // temporary_ is empty when path_ is written straight to
  int fd_ = -1;
  int slot_ = -1;
  std::size_t written_ = 0;
  std::string buffer_;
};

// A file that is needed for a while, in the system's directory for such files. Created empty; whatever is written to or
// renamed onto its path is removed by the destructor, or on the signals below.
class TemporaryFile {
 public:
  TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int slot_ = -1;
};

// On SIGINT, SIGTERM and SIGHUP: removes every uncommitted OutputFile and every TemporaryFile, then ends the process by
// the same signal.
void install_interrupt_handler();

// What is written to standard error when one of these signals ends the process, up to 1 KB; empty: nothing.
void set_interrupt_note(std::string_view text);

}  // namespace narrows
