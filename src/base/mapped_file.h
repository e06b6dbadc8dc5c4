// A file mapped read-only into memory.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace narrows {

class MappedFile {
 public:
  // Maps the whole of `path`. Throws Error if it cannot be opened, is a directory, or is empty.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace narrows
