// GGUF files, versions 2 and 3, little-endian: reading (memory-mapped, split files too) and writing.
// Format: the GGUF specification of the ggml project (docs/gguf.md).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "formats/dtype.h"

namespace narrows {

struct GgufArray;
// One metadata value. Every integer width is widened to 64 bits and f32 to double; the type in the file is
// kept in GgufEntry::type, so that a copy of a file keeps it.
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string, GgufArray>;

enum class GgufType : std::uint32_t {
  U8 = 0,
  I8 = 1,
  U16 = 2,
  I16 = 3,
  U32 = 4,
  I32 = 5,
  F32 = 6,
  Bool = 7,
  String = 8,
  Array = 9,
  U64 = 10,
  I64 = 11,
  F64 = 12,
};

// An array of one element type: strings, or numbers (integers, bools and floats alike, kept by kind). Nested
// arrays are not supported: no known file uses them.
struct GgufArray {
  GgufType element = GgufType::U32;
  std::vector<std::string> strings;    // element == String
  std::vector<std::int64_t> integers;  // integer types and Bool
  std::vector<double> floats;          // F32, F64
  std::size_t size() const { return strings.size() + integers.size() + floats.size(); }
};

struct GgufEntry {
  GgufType type = GgufType::U32;
  GgufValue value;
};

struct GgufTensor {
  std::string name;
  DType dtype = DType::F32;
  // ggml's order: shape[0] is the contiguous dimension (a row's length), shape[1] the number of rows, ….
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};
  int dims = 1;
  const std::byte* data = nullptr;  // into the mapped file; aligned to the file's alignment; nullptr: see make_rows
  std::size_t bytes = 0;
  // Of tensors that no file holds as they are (permuted, stacked, … from another format): writes rows
  // [first, first + count), a row having shape[0] elements, to `to`. Thread-safe.
  std::function<void(std::int64_t first, std::int64_t count, std::byte* to)> make_rows;

  std::int64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
  std::int64_t rows() const { return elements() / shape[0]; }
  // Rows [first, first + count): where they are, or made in `room`.
  const std::byte* rows(std::int64_t first, std::int64_t count, std::vector<std::byte>& room) const;
  // All of it, of a type that can be dequantized, as floats: [elements()].
  void dequantize_to(float* to) const;
};

class GgufFile {
 public:
  // Maps `path` and, if its metadata says that it is the first of a split (split.count > 1, the file named
  // …-00001-of-0000N.gguf), the other parts. Everything is checked before it is returned: every tensor lies
  // inside its file, is aligned, of a known type, overlaps no other, and its row is a whole number of blocks;
  // names are unique; counts and sizes cannot overflow. Throws Error naming the file and the item.
  static GgufFile open(const std::string& path);
  // The same of contents that come from another format. `parts` are the files that the tensors point into. Throws Error
  // for a name that is found twice.
  using Metadata = std::map<std::string, GgufEntry, std::less<>>;
  static GgufFile assemble(std::string path, Metadata metadata, std::vector<GgufTensor> tensors,
                           std::vector<MappedFile> parts);

  const std::string& path() const { return path_; }
  std::uint32_t version() const { return version_; }  // 0: assembled
  const std::map<std::string, GgufEntry, std::less<>>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const std::vector<MappedFile>& parts() const { return files_; }  // the files of a split; one otherwise
  std::size_t file_bytes() const;                                  // all parts together

  const GgufTensor* find_tensor(std::string_view name) const;  // nullptr if absent
  const GgufTensor& tensor(std::string_view name) const;       // throws if absent

  // Typed look-up. The optional forms give nullopt if the key is absent; all throw if it has another kind of
  // value (integers convert between widths if the value fits; an integer is accepted where a float is asked
  // for).
  bool has(std::string_view key) const;
  const GgufEntry* find(std::string_view key) const;  // nullptr if absent
  std::optional<std::int64_t> find_int(std::string_view key) const;
  std::optional<double> find_float(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  const GgufArray* find_array(std::string_view key) const;
  std::int64_t get_int(std::string_view key) const;  // throws if absent
  double get_float(std::string_view key) const;
  const std::string& get_string(std::string_view key) const;
  const GgufArray& get_array(std::string_view key) const;

 private:
  void open_other_parts();
  void index_tensors();

  std::string path_;
  std::uint32_t version_ = 0;
  std::map<std::string, GgufEntry, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::vector<MappedFile> files_;
};

// Writes a version 3 file. Metadata and tensor descriptions first, then the data of each tensor in the order
// of its description, so that a large model never has to be in memory at once.
class GgufWriter {
 public:
  // `alignment` of tensor data: a power of two of at least 8. The key general.alignment follows it.
  explicit GgufWriter(std::uint32_t alignment = 32);
  // Replaces an earlier value. Throws if the value is not of the entry's type or does not fit in it.
  void set(const std::string& key, const GgufEntry& entry);
  void set_u32(const std::string& key, std::uint32_t value);
  void set_f32(const std::string& key, float value);
  void set_string(const std::string& key, std::string value);
  // `shape` in ggml's order, 1 to 4 sizes of at least 1. Throws if the name is taken or a row is not a whole
  // number of blocks.
  void add_tensor(const std::string& name, DType dtype, std::span<const std::int64_t> shape);

  // Writes the file; `produce(i, sink)` is called for each tensor in turn and must pass exactly its bytes to
  // sink, in one or more pieces. The file appears whole or not at all (OutputFile).
  using Sink = void (*)(void* context, std::span<const std::byte>);
  template <typename Produce>
  void write(const std::string& path, Produce&& produce) const {
    struct Call {
      Produce& produce;
      static void run(void* self, std::size_t tensor, Sink sink, void* context) {
        static_cast<Call*>(self)->produce(tensor, [=](std::span<const std::byte> b) { sink(context, b); });
      }
    } call{produce};
    write_with(path, &Call::run, &call);
  }

 private:
  using ProduceFn = void (*)(void* self, std::size_t tensor, Sink sink, void* context);
  void write_with(const std::string& path, ProduceFn produce, void* self) const;
  std::uint32_t alignment_;
  std::vector<std::pair<std::string, std::string>> metadata_;  // key, type and value as the file holds them
  std::vector<GgufTensor> tensors_;
  std::set<std::string, std::less<>> names_;
};

}  // namespace narrows
