#include "base/output_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/error.h"

namespace narrows {
namespace {

// Paths to unlink from a signal handler: fixed storage, since a handler may not allocate or lock.
constexpr int kSlots = 16;
constexpr std::size_t kPathMax = 4096;
struct Slot {
  std::atomic<int> state{0};  // 0 free, 1 being filled, 2 in use
  char path[kPathMax];
};
std::array<Slot, kSlots> slots;

int register_temporary(const std::string& path) {
  if (path.size() >= kPathMax) fail("{}: the path is too long", path);
  for (int i = 0; i < kSlots; ++i) {
    int expected = 0;
    if (slots[i].state.compare_exchange_strong(expected, 1)) {
      std::memcpy(slots[i].path, path.c_str(), path.size() + 1);
      slots[i].state.store(2);
      return i;
    }
  }
  return -1;  // more than kSlots files at once: those are removed by destructors only
}

// Two, so that the one that a handler may read is not the one being filled.
struct Note {
  std::size_t size = 0;
  char text[1024];
};
std::array<Note, 2> notes;
std::atomic<int> current_note{0};

extern "C" void on_interrupt(int signal_number) {
  for (auto& slot : slots)
    if (slot.state.load() == 2) ::unlink(slot.path);
  const Note& note = notes[static_cast<std::size_t>(current_note.load())];
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, note.text, note.size);
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  for (int s : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(s, &action, nullptr);
}

void set_interrupt_note(std::string_view text) {
  const int next = 1 - current_note.load();
  Note& note = notes[static_cast<std::size_t>(next)];
  note.size = std::min(text.size(), sizeof(note.text));
  std::copy_n(text.begin(), note.size, note.text);
  current_note.store(next);
}

TemporaryFile::TemporaryFile() {
  std::error_code error;
  const auto directory = std::filesystem::temp_directory_path(error);
  if (error) fail("the directory for temporary files: {}: {}", directory.string(), error.message());
  path_ = directory / "narrows-XXXXXX";
  const int fd = ::mkostemp(path_.data(), O_CLOEXEC);
  if (fd < 0) fail("{}: cannot create: {}", path_, std::strerror(errno));
  ::close(fd);
  try {
    slot_ = register_temporary(path_);
  } catch (...) {
    ::unlink(path_.c_str());
    throw;
  }
}

TemporaryFile::~TemporaryFile() {
  ::unlink(path_.c_str());
  if (slot_ >= 0) slots[slot_].state.store(0);
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) {
    // The file that a link points to is what is replaced, not the link.
    const std::unique_ptr<char, decltype(&std::free)> target(::realpath(path.c_str(), nullptr), std::free);
    if (!S_ISREG(status.st_mode) || !target) {
      fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
      if (fd_ < 0) fail("{}: cannot open: {}", path, std::strerror(errno));
      return;
    }
    path_ = target.get();
  }
  temporary_ = path_ + ".partial." + std::to_string(::getpid());
  slot_ = register_temporary(temporary_);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    const int error = errno;
    if (slot_ >= 0) slots[slot_].state.store(0);
    fail("{}: cannot create: {}", path, std::strerror(error));
  }
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }
  if (slot_ >= 0) slots[slot_].state.store(0);
}

void OutputFile::flush() {
  const char* p = buffer_.data();
  std::size_t left = buffer_.size();
  while (left > 0) {
    const ssize_t n = ::write(fd_, p, left);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("{}: cannot write: {}", path_, std::strerror(errno));
    p += n;
    left -= static_cast<std::size_t>(n);
  }
  buffer_.clear();
}

void OutputFile::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  written_ += bytes.size();
  if (buffer_.size() >= (1u << 20)) flush();
}

void OutputFile::commit() {
  flush();
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS)
    fail("{}: cannot write: {}", path_, std::strerror(errno));
  const int fd = fd_;
  fd_ = -1;
  if (temporary_.empty()) {
    if (::close(fd) != 0) fail("{}: cannot write: {}", path_, std::strerror(errno));
    return;
  }
  if (::close(fd) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    fail("{}: cannot write: {}", path_, std::strerror(error));
  }
}

}  // namespace narrows
