// Builds what GGUF holds of a model from the tensors of its safetensors.
#pragma once
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "formats/safetensors.h"

namespace narrows::hf {

// Rows of some matrix, wherever they are: runs of rows at even distances.
class Rows {
 public:
  std::int64_t rows() const { return ends_.empty() ? 0 : ends_.back(); }
  std::int64_t cols() const { return cols_; }

  Rows slice(std::int64_t first, std::int64_t count) const;
  Rows pick(const std::vector<std::int64_t>& rows) const;
  static Rows stacked(const std::vector<Rows>& parts);  // of equal types and columns
  bool equals(const Rows& other) const;                 // bit for bit

 private:
  friend class Assembly;
  struct Run {
    const std::byte* data;
    std::int64_t count, row_bytes, element_bytes;  // from one to the next
  };
  void add(const Run& run);
  void copy(std::int64_t first, std::int64_t count, std::byte* to) const;
  const std::byte* as_stored() const;  // nullptr if the rows do not lie together, aligned

  DType dtype_ = DType::F32;
  std::int64_t cols_ = 0;
  std::vector<Run> runs_;
  std::vector<std::int64_t> ends_;  // rows up to and with each run
};

class Assembly {
 public:
  Assembly(std::string folder, const SafeTensors& source) : folder_(std::move(folder)), source_(source) {}

  // Names given below are looked up with a prefix, then as they are. The prefix is the first with which `probe` is there.
  void choose_prefix(const std::vector<std::string>& prefixes, const std::string& probe);
  bool has(const std::string& name) const { return source_.find(full(name)) != nullptr; }
  // Tensors of the shapes that config.json asks for. All throw Error if it is missing, of another shape, or of a type that
  // narrows does not read.
  Rows matrix(const std::string& name, std::int64_t rows, std::int64_t cols);
  Rows transposed(const std::string& name, std::int64_t rows, std::int64_t cols);  // stored as [cols][rows]
  Rows vector(const std::string& name, std::int64_t size);                         // as [size][1]
  // [count][rows][cols], one part after the other.
  std::vector<Rows> stack(const std::string& name, std::int64_t count, std::int64_t rows, std::int64_t cols);
  void ignore(const std::string& name);         // if it is there: nothing that the model needs
  void ignore_under(const std::string& start);  // all whose full names begin so

  void add_matrix(const std::string& name, const Rows& rows);
  void add_embedding(const Rows& rows);  // token_embd.weight
  const Rows& embedding() const { return embedding_; }
  void add_matrix_f32(const std::string& name, const Rows& rows);
  void add_experts(const std::string& name, const std::vector<Rows>& experts);  // [experts][rows][cols]
  void add_vector(const std::string& name, const Rows& elements, float plus = 0);
  void add_vectors(const std::string& name, const std::vector<Rows>& vectors);  // [vectors][elements]
  void add_floats(const std::string& name, std::vector<float> values, std::int64_t rows = 1);

  void set(const std::string& key, GgufType type, GgufValue value) { metadata_[key] = {type, std::move(value)}; }
  void set_count(const std::string& key, std::int64_t value);
  void set_number(const std::string& key, double value) { set(key, GgufType::F32, value); }
  void set_flag(const std::string& key, bool value) { set(key, GgufType::Bool, value); }
  void set_text(const std::string& key, std::string value) { set(key, GgufType::String, std::move(value)); }
  void set_flags(const std::string& key, const std::vector<bool>& values);

  // Throws Error if a tensor of the source has no place.
  GgufFile finish(std::vector<MappedFile> files);

  const std::string& folder() const { return folder_; }

 private:
  std::string full(const std::string& name) const;
  const SafeTensor& take(const std::string& name);
  Rows shaped(const std::string& name, std::span<const std::int64_t> shape, std::int64_t rows, std::int64_t cols);
  void add(const std::string& name, const Rows& rows, std::vector<std::int64_t> shape, DType dtype, float plus);

  std::string folder_, prefix_;
  const SafeTensors& source_;
  std::set<std::string, std::less<>> taken_;
  GgufFile::Metadata metadata_;
  std::vector<GgufTensor> tensors_;
  Rows embedding_;
};

}  // namespace narrows::hf
