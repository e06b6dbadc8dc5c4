#include "huggingface/assembly.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "formats/gguf_format.h"

namespace narrows::hf {
namespace {

std::int64_t element_bytes(DType dtype) { return static_cast<std::int64_t>(row_bytes(dtype, 1)); }

template <typename T>
void copy_elements(const std::byte* from, std::int64_t step, std::int64_t count, std::byte* to) {
  for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + i * std::int64_t{sizeof(T)}, from + i * step, sizeof(T));
}

}  // namespace

void Rows::add(const Run& run) {
  if (run.count <= 0) return;
  if (!runs_.empty()) {  // neighbours become one
    Run& last = runs_.back();
    if (last.element_bytes == run.element_bytes && last.row_bytes == run.row_bytes &&
        last.data + last.count * last.row_bytes == run.data) {
      last.count += run.count;
      ends_.back() += run.count;
      return;
    }
  }
  ends_.push_back(rows() + run.count);
  runs_.push_back(run);
}

Rows Rows::slice(std::int64_t first, std::int64_t count) const {
  Rows out;
  out.dtype_ = dtype_;
  out.cols_ = cols_;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const std::int64_t start = ends_[i] - runs_[i].count;
    const std::int64_t begin = std::max(first, start), end = std::min(first + count, ends_[i]);
    if (begin >= end) continue;
    Run run = runs_[i];
    run.data += (begin - start) * run.row_bytes;
    run.count = end - begin;
    out.add(run);
  }
  return out;
}

Rows Rows::pick(const std::vector<std::int64_t>& rows) const {
  Rows out;
  out.dtype_ = dtype_;
  out.cols_ = cols_;
  for (const std::int64_t r : rows) {
    const auto at = static_cast<std::size_t>(std::ranges::upper_bound(ends_, r) - ends_.begin());
    Run run = runs_[at];
    run.data += (r - (ends_[at] - run.count)) * run.row_bytes;
    run.count = 1;
    out.add(run);
  }
  return out;
}

Rows Rows::stacked(const std::vector<Rows>& parts) {
  Rows out;
  out.dtype_ = parts.front().dtype_;
  out.cols_ = parts.front().cols_;
  for (const Rows& part : parts)
    for (const Run& run : part.runs_) out.add(run);
  return out;
}

bool Rows::equals(const Rows& other) const {
  if (dtype_ != other.dtype_ || cols_ != other.cols_ || rows() != other.rows()) return false;
  constexpr std::int64_t kTogether = 1024;
  std::vector<std::byte> mine, theirs;
  for (std::int64_t first = 0; first < rows(); first += kTogether) {
    const std::int64_t count = std::min(kTogether, rows() - first);
    mine.resize(static_cast<std::size_t>(count * cols_ * element_bytes(dtype_)));
    theirs.resize(mine.size());
    copy(first, count, mine.data());
    other.copy(first, count, theirs.data());
    if (mine != theirs) return false;
  }
  return true;
}

void Rows::copy(std::int64_t first, std::int64_t count, std::byte* to) const {
  const std::int64_t size = element_bytes(dtype_), row = cols_ * size;
  auto at = static_cast<std::size_t>(std::ranges::upper_bound(ends_, first) - ends_.begin());
  for (const std::int64_t end = first + count; first < end; ++at) {
    const Run& run = runs_[at];
    const std::int64_t begin = first - (ends_[at] - run.count), n = std::min(end, ends_[at]) - first;
    const std::byte* from = run.data + begin * run.row_bytes;
    if (run.element_bytes == size && run.row_bytes == row) {
      std::memcpy(to, from, static_cast<std::size_t>(n * row));
    } else {
      for (std::int64_t r = 0; r < n; ++r) {
        if (size == 4)
          copy_elements<std::uint32_t>(from + r * run.row_bytes, run.element_bytes, cols_, to + r * row);
        else
          copy_elements<std::uint16_t>(from + r * run.row_bytes, run.element_bytes, cols_, to + r * row);
      }
    }
    to += n * row;
    first += n;
  }
}

const std::byte* Rows::as_stored() const {
  if (runs_.size() != 1) return nullptr;
  const Run& run = runs_.front();
  const std::int64_t size = element_bytes(dtype_);
  if (run.element_bytes != size || (run.count > 1 && run.row_bytes != cols_ * size)) return nullptr;
  return reinterpret_cast<std::uintptr_t>(run.data) % static_cast<std::uintptr_t>(size) == 0 ? run.data : nullptr;
}

void Assembly::choose_prefix(const std::vector<std::string>& prefixes, const std::string& probe) {
  for (const std::string& prefix : prefixes)
    if (source_.find(prefix + probe)) {
      prefix_ = prefix;
      return;
    }
  fail("{}: tensor {}{} is missing", folder_, prefixes.front(), probe);
}

std::string Assembly::full(const std::string& name) const {
  return source_.find(prefix_ + name) || !source_.find(name) ? prefix_ + name : name;
}

const SafeTensor& Assembly::take(const std::string& name) {
  const SafeTensor* t = source_.find(full(name));
  if (!t) fail("{}: tensor {} is missing", folder_, full(name));
  if (!dtype_of_safetensor(t->type))
    fail("{}: tensor {}: expected F32, F16 or BF16, found {}", source_.files()[t->file].path(), gguf::printable(t->name),
         t->type);
  taken_.insert(t->name);
  return *t;
}

void Assembly::ignore(const std::string& name) {
  if (has(name)) taken_.insert(full(name));
}

void Assembly::ignore_under(const std::string& start) {
  for (const auto& [name, tensor] : source_.tensors())
    if (name.starts_with(start)) taken_.insert(name);
}

Rows Assembly::shaped(const std::string& name, std::span<const std::int64_t> shape, std::int64_t rows, std::int64_t cols) {
  const SafeTensor& t = take(name);
  if (!std::ranges::equal(t.shape, shape))
    fail("{}: tensor {}: expected a shape of [{}] as config.json says, found {}", source_.files()[t.file].path(),
         gguf::printable(t.name), fmt::join(shape, ", "), t.shape_text());
  Rows out;
  out.dtype_ = *dtype_of_safetensor(t.type);
  out.cols_ = cols;
  const std::int64_t size = element_bytes(out.dtype_);
  out.add({t.data, rows, cols * size, size});
  return out;
}

Rows Assembly::matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
  return shaped(name, std::array{rows, cols}, rows, cols);
}

Rows Assembly::transposed(const std::string& name, std::int64_t rows, std::int64_t cols) {
  Rows out = shaped(name, std::array{cols, rows}, cols, rows);
  const std::byte* data = out.runs_.front().data;
  const std::int64_t size = element_bytes(out.dtype_);
  out.cols_ = cols;
  out.runs_ = {{data, rows, size, rows * size}};
  out.ends_ = {rows};
  return out;
}

Rows Assembly::vector(const std::string& name, std::int64_t n) { return shaped(name, std::array{n}, n, 1); }

std::vector<Rows> Assembly::stack(const std::string& name, std::int64_t count, std::int64_t rows, std::int64_t cols) {
  const Rows all = shaped(name, std::array{count, rows, cols}, count * rows, cols);
  std::vector<Rows> parts;
  for (std::int64_t i = 0; i < count; ++i) parts.push_back(all.slice(i * rows, rows));
  return parts;
}

void Assembly::add(const std::string& name, const Rows& rows, std::vector<std::int64_t> shape, DType dtype, float plus) {
  GgufTensor& t = tensors_.emplace_back();
  t.name = name;
  t.dtype = dtype;
  t.dims = static_cast<int>(shape.size());
  std::ranges::copy(shape, t.shape.begin());
  t.bytes = static_cast<std::size_t>(t.rows()) * row_bytes(dtype, t.shape[0]);
  if (dtype == rows.dtype_ && plus == 0 && (t.data = rows.as_stored())) return;
  // A row of the new tensor is `ratio` of the source's: of vectors, all of them.
  const auto source = std::make_shared<const Rows>(rows);
  const std::int64_t ratio = t.shape[0] / rows.cols_;
  if (dtype == rows.dtype_ && plus == 0) {
    t.make_rows = [source, ratio](std::int64_t first, std::int64_t count, std::byte* to) {
      source->copy(first * ratio, count * ratio, to);
    };
    return;
  }
  t.make_rows = [source, ratio, plus](std::int64_t first, std::int64_t count, std::byte* to) {
    const std::int64_t n = count * ratio * source->cols_;
    std::vector<std::byte> stored(row_bytes(source->dtype_, n));
    source->copy(first * ratio, count * ratio, stored.data());
    std::vector<float> values(static_cast<std::size_t>(n));
    dequantize(source->dtype_, stored.data(), values.data(), n);
    for (float& v : values) v += plus;
    std::memcpy(to, values.data(), values.size() * sizeof(float));
  };
}

void Assembly::add_embedding(const Rows& rows) {
  embedding_ = rows;
  add_matrix("token_embd.weight", rows);
}

void Assembly::add_matrix(const std::string& name, const Rows& rows) {
  add(name, rows, {rows.cols(), rows.rows()}, rows.dtype_, 0);
}

void Assembly::add_matrix_f32(const std::string& name, const Rows& rows) {
  add(name, rows, {rows.cols(), rows.rows()}, DType::F32, 0);
}

void Assembly::add_experts(const std::string& name, const std::vector<Rows>& experts) {
  for (const Rows& expert : experts)
    if (expert.dtype_ != experts.front().dtype_)
      fail("{}: {}: expected experts of one type, found {} and {}", folder_, name,
           dtype_info(experts.front().dtype_).name, dtype_info(expert.dtype_).name);
  const Rows all = Rows::stacked(experts);
  add(name, all, {all.cols(), experts.front().rows(), std::ssize(experts)}, all.dtype_, 0);
}

void Assembly::add_vector(const std::string& name, const Rows& elements, float plus) {
  add(name, elements, {elements.rows()}, plus == 0 ? elements.dtype_ : DType::F32, plus);
}

void Assembly::add_vectors(const std::string& name, const std::vector<Rows>& vectors) {
  add(name, Rows::stacked(vectors), {vectors.front().rows(), std::ssize(vectors)}, DType::F32, 0);
}

void Assembly::add_floats(const std::string& name, std::vector<float> values, std::int64_t rows) {
  GgufTensor& t = tensors_.emplace_back();
  t.name = name;
  t.dtype = DType::F32;
  t.dims = rows > 1 ? 2 : 1;
  t.shape[0] = std::ssize(values) / rows;
  t.shape[1] = rows;
  t.bytes = values.size() * sizeof(float);
  const std::int64_t row = t.shape[0];
  t.make_rows = [held = std::make_shared<const std::vector<float>>(std::move(values)), row](std::int64_t first,
                                                                                          std::int64_t count, std::byte* to) {
    std::memcpy(to, held->data() + first * row, static_cast<std::size_t>(count * row) * sizeof(float));
  };
}

void Assembly::set_count(const std::string& key, std::int64_t value) {
  set(key, GgufType::U32, static_cast<std::uint64_t>(value));
}

void Assembly::set_flags(const std::string& key, const std::vector<bool>& values) {
  GgufArray array;
  array.element = GgufType::Bool;
  array.integers.assign(values.begin(), values.end());
  set(key, GgufType::Array, std::move(array));
}

GgufFile Assembly::finish(std::vector<MappedFile> files) {
  for (const auto& entry : source_.tensors()) {
    const std::string& name = entry.first;
    // Tables that older checkpoints keep beside the weights.
    static constexpr std::string_view kTables[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                                   ".attention.bias", ".attention.masked_bias"};
    if (taken_.contains(name) ||
        std::ranges::any_of(kTables, [&](std::string_view end) { return name.ends_with(end); }))
      continue;
    fail("{}: tensor {}: has no place in a model as config.json describes it", files[entry.second.file].path(),
         gguf::printable(name));
  }
  return GgufFile::assemble(folder_, std::move(metadata_), std::move(tensors_), std::move(files));
}

}  // namespace narrows::hf
