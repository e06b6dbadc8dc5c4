#include "formats/requantize.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/progress.h"
#include "base/threads.h"
#include "formats/gguf_format.h"
#include "formats/quantize_blocks.h"

namespace narrows {

std::uint32_t gguf_file_type(DType type) {
  switch (type) {
    case DType::F32:
      return 0;
    case DType::F16:
      return 1;
    case DType::Q4_0:
      return 2;
    case DType::Q4_1:
      return 3;
    case DType::Q8_0:
      return 7;
    case DType::Q5_0:
      return 8;
    case DType::Q4_K:
      return 14;
    case DType::Q6_K:
      return 18;
    case DType::BF16:
      return 32;
    default:
      fail("type {}: expected a type that narrows can encode", dtype_info(type).name);
  }
}

namespace {

constexpr std::string_view kOutput = "output.weight", kEmbedding = "token_embd.weight";

bool is_weight_matrix(const GgufTensor& t) {
  // Few values, read by every token: nothing to gain from fewer bits.
  static constexpr std::array<std::string_view, 6> kKept = {"_norm.weight",         "ffn_gate_inp",
                                                            "position_embd.weight", "token_types.weight",
                                                            "ssm_conv1d",           "shortconv.conv"};
  return t.dims >= 2 && t.name.ends_with(".weight") &&
         std::ranges::none_of(kKept,
                              [&](std::string_view part) { return t.name.find(part) != std::string::npos; });
}

bool fits(DType type, std::int64_t row) { return row % dtype_info(type).block_size == 0; }

// `type`, or the nearest one not below it that has blocks which fill the row.
DType for_row(DType type, std::int64_t row) {
  if (fits(type, row)) return type;
  const DType smaller = type == DType::Q4_K ? DType::Q5_0 : DType::Q8_0;
  return fits(smaller, row) ? smaller : DType::F16;
}

DType target_type(const GgufFile& in, const GgufTensor& t, DType type, const RequantizeOptions& options) {
  if (!can_dequantize(t.dtype)) return t.dtype;
  if (t.dims == 1) return DType::F32;
  if (!is_weight_matrix(t) || options.keep_types) return t.dtype;
  const std::int64_t row = t.shape[0];
  const bool embedding = t.name == kEmbedding;
  if (embedding && options.token_embedding_type) return for_row(*options.token_embedding_type, row);
  if (t.name == kOutput || (embedding && !in.find_tensor(kOutput))) {
    if (options.output_type) return for_row(*options.output_type, row);
    const bool coarse = dtype_info(type).block_size > 1 && type != DType::Q8_0;
    if (coarse && !options.pure) return for_row(DType::Q6_K, row);
  }
  return for_row(type, row);
}

void check_encodable(DType type) { gguf_file_type(type); }  // which throws

void check_not_same_file(const GgufFile& in, const std::string& out) {
  for (const MappedFile& part : in.parts()) {
    std::error_code absent;  // `out` need not exist
    if (std::filesystem::equivalent(part.path(), out, absent))
      fail("{}: the output is the input file: expected another path", out);
  }
}

// Converts tensors, a few rows at a time.
class Converter {
 public:
  Converter(const GgufFile& in, int threads) : in_(in), pool_(threads), failures_(pool_.size()) {
    rows_.resize(static_cast<std::size_t>(pool_.size()));
  }

  // Passes the tensor's rows, as `to`, to `sink`.
  template <typename Sink>
  void convert(const GgufTensor& t, DType to, Sink&& sink) {
    const std::int64_t row = t.shape[0], rows = t.rows();
    const std::size_t row_in = row_bytes(t.dtype, row), row_out = row_bytes(to, row);
    const std::int64_t most = std::max<std::int64_t>(kChunkElements / row, pool_.size());
    for (std::int64_t first = 0; first < rows; first += most) {
      const std::int64_t count = std::min(most, rows - first);
      out_.resize(static_cast<std::size_t>(count) * row_out);
      const std::byte* sources = t.rows(first, count, made_);
      pool_.run([&](int thread) {
        std::vector<float>& values = rows_[static_cast<std::size_t>(thread)];
        const Range share = share_of(count, thread, pool_.size());
        std::int64_t r = share.begin;
        try {
          values.resize(static_cast<std::size_t>(row));
          for (; r < share.end; ++r) {
            const std::byte* source = sources + static_cast<std::size_t>(r) * row_in;
            std::byte* target = out_.data() + static_cast<std::size_t>(r) * row_out;
            dequantize(t.dtype, source, values.data(), row);
            if (to != t.dtype) {
              quantize(to, values.data(), target, row);
            } else {
              check_finite(values.data(), row);
              std::memcpy(target, source, row_out);
            }
          }
        } catch (const std::exception& error) {
          failures_[static_cast<std::size_t>(thread)] = fmt::format("row {}: {}", first + r, error.what());
        }
      });
      for (const std::string& failure : failures_)
        if (!failure.empty()) fail("{}: tensor {}: {}", in_.path(), gguf::printable(t.name), failure);
      sink(std::span<const std::byte>(out_));
    }
  }

 private:
  static constexpr std::int64_t kChunkElements = 1 << 22;
  const GgufFile& in_;
  ThreadPool pool_;
  std::vector<std::string> failures_;     // one a thread; the first has the lowest row
  std::vector<std::vector<float>> rows_;  // one a thread
  std::vector<std::byte> made_, out_;
};

}  // namespace

GgufWriter rewriter(const GgufFile& in, DType type, const std::string& architecture) {
  constexpr std::uint32_t kQuantizationVersion = 2;  // ggml's, of the block layouts
  GgufWriter writer(
      static_cast<std::uint32_t>(in.find_int("general.alignment").value_or(gguf::kDefaultAlignment)));
  const std::string prefix = architecture.empty() ? "" : in.get_string("general.architecture") + ".";
  for (const auto& [key, entry] : in.metadata()) {
    if (key.starts_with("split.")) continue;
    writer.set(!prefix.empty() && key.starts_with(prefix) ? architecture + "." + key.substr(prefix.size()) : key, entry);
  }
  if (!architecture.empty()) writer.set_string("general.architecture", architecture);
  writer.set_u32("general.file_type", gguf_file_type(type));
  writer.set_u32("general.quantization_version", kQuantizationVersion);
  return writer;
}

void requantize(const GgufFile& in, DType type, const std::string& out, const RequantizeOptions& options) {
  check_encodable(type);
  if (options.output_type) check_encodable(*options.output_type);
  if (options.token_embedding_type) check_encodable(*options.token_embedding_type);
  check_not_same_file(in, out);

  GgufWriter writer = rewriter(in, type);

  std::vector<DType> types;
  for (const GgufTensor& t : in.tensors()) {
    types.push_back(target_type(in, t, type, options));
    writer.add_tensor(t.name, types.back(), std::span(t.shape).first(static_cast<std::size_t>(t.dims)));
  }

  Converter converter(in, options.threads);
  std::int64_t total = 0, done = 0;
  for (const GgufTensor& t : in.tensors()) total += static_cast<std::int64_t>(t.bytes);
  Progress progress("quantize", total);
  writer.write(out, [&](std::size_t i, auto&& sink) {
    const GgufTensor& t = in.tensors()[i];
    if (can_dequantize(t.dtype))
      converter.convert(t, types[i], sink);
    else
      sink(std::span(t.data, t.bytes));
    done += static_cast<std::int64_t>(t.bytes);
    progress.update(done, t.name);
  });
}

}  // namespace narrows
