// Bytes that are needed later, kept on disk instead of in memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace narrows {

class SpillFile {
 public:
  // A file without a name in the folder of `path`, gone with this object or the process; where `path` is a device or a pipe,
  // in the system's folder for temporary files. Throws Error naming `path` if there can be none.
  explicit SpillFile(const std::string& path);
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;
  ~SpillFile();

  // Appends, and returns where. Throws Error on a full disk.
  std::int64_t add(std::span<const std::byte> bytes);
  void read(std::int64_t at, std::span<std::byte> to) const;

 private:
  std::string path_;
  int fd_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace narrows
