// Weights of a Hugging Face folder: model.safetensors, or the shards that model.safetensors.index.json names.
// Format: the safetensors project's description (a length, a JSON header, the tensors' bytes).
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "formats/dtype.h"

namespace narrows {

struct SafeTensor {
  std::string name;
  std::string type;                 // as the file spells it: "F32", "BF16", …
  std::vector<std::int64_t> shape;  // row-major: the last is the contiguous one
  const std::byte* data = nullptr;  // into the mapped file; not aligned in general
  std::size_t bytes = 0;
  std::size_t file = 0;  // index into files()

  std::int64_t elements() const;
  std::string shape_text() const;  // "[2, 3]"
};

class SafeTensors {
 public:
  // Maps the folder's files. Everything is checked first: headers (at most 100 MB, no key twice), types' sizes against the
  // bytes of each tensor, that these lie inside the file and overlap no other's, that the index names plain files of
  // this folder, that each tensor is where it says, and that no name is found in two shards. Throws Error naming file and item.
  static SafeTensors open(const std::string& folder);

  const std::vector<MappedFile>& files() const { return files_; }
  std::vector<MappedFile> take_files() && { return std::move(files_); }  // the tensors stay where they are
  const std::map<std::string, SafeTensor, std::less<>>& tensors() const { return tensors_; }
  const SafeTensor* find(std::string_view name) const;  // nullptr if absent

 private:
  void add_file(const std::string& path);
  std::vector<MappedFile> files_;
  std::map<std::string, SafeTensor, std::less<>> tensors_;
};

// The storage type that is spelled so in a safetensors header, if narrows can decode it.
std::optional<DType> dtype_of_safetensor(std::string_view type);

}  // namespace narrows
