#include "base/spill_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace narrows {

SpillFile::SpillFile(const std::string& path) : path_(path) {
  namespace fs = std::filesystem;
  std::error_code absent;
  const bool special = fs::exists(path, absent) && !fs::is_regular_file(path, absent);
  std::string temporary = ((special ? fs::temp_directory_path() : fs::path(path).parent_path()) / ".narrows-XXXXXX").string();
  fd_ = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd_ < 0) fail("{}: cannot make a temporary file beside it: {}", path, std::strerror(errno));
  ::unlink(temporary.c_str());
}

SpillFile::~SpillFile() { ::close(fd_); }

std::int64_t SpillFile::add(std::span<const std::byte> bytes) {
  const std::int64_t at = size_;
  while (!bytes.empty()) {
    const ::ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), size_);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("{}: cannot write a temporary file beside it: {}", path_, std::strerror(n < 0 ? errno : ENOSPC));
    size_ += n;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return at;
}

void SpillFile::read(std::int64_t at, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ::ssize_t n = ::pread(fd_, to.data(), to.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("{}: cannot read the temporary file beside it: {}", path_, n < 0 ? std::strerror(errno) : "too short");
    at += n;
    to = to.subspan(static_cast<std::size_t>(n));
  }
}

}  // namespace narrows
