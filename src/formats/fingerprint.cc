#include "formats/fingerprint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace narrows {
namespace {

constexpr std::size_t kWhole = 1 << 20, kPieces = 16, kPiece = kWhole / kPieces;

class Hash {
 public:
  Hash() : state_(XXH3_createState()) { XXH3_128bits_reset(state_.get()); }
  void add(const void* data, std::size_t size) { XXH3_128bits_update(state_.get(), data, size); }
  std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace

std::string fingerprint(const GgufFile& file) {
  Hash hash;
  for (const GgufTensor& t : file.tensors()) {
    // Vectors count as F32, which they are in files: a Hugging Face folder and the file made of it are one model.
    const bool as_f32 = t.dims == 1 && can_dequantize(t.dtype) && dtype_info(t.dtype).block_size == 1;
    const DType dtype = as_f32 ? DType::F32 : t.dtype;
    hash.add(t.name.c_str(), t.name.size() + 1);
    hash.add(&dtype, sizeof(dtype));
    hash.add(t.shape.data(), sizeof(t.shape));
    if (as_f32 && t.dtype != DType::F32) {
      std::vector<float> values(static_cast<std::size_t>(t.elements()));
      t.dequantize_to(values.data());
      hash.add(values.data(), values.size() * sizeof(float));
      continue;
    }
    if (!t.data) {
      // As much of it, in whole rows.
      std::vector<std::byte> room;
      const std::int64_t rows = t.rows(), row = static_cast<std::int64_t>(t.bytes) / rows;
      const std::int64_t pieces = t.bytes <= kWhole ? 1 : kPieces;
      const std::int64_t count = t.bytes <= kWhole ? rows : std::max<std::int64_t>(kPiece / row, 1);
      for (std::int64_t i = 0; i < pieces; ++i)
        hash.add(t.rows((rows - count) / std::max<std::int64_t>(pieces - 1, 1) * i, count, room),
                 static_cast<std::size_t>(count * row));
      continue;
    }
    if (t.bytes <= kWhole) {
      hash.add(t.data, t.bytes);
      continue;
    }
    for (std::size_t i = 0; i < kPieces; ++i) hash.add(t.data + (t.bytes - kPiece) / (kPieces - 1) * i, kPiece);
  }
  return hash.hex();
}

std::string fingerprint(std::string_view bytes) {
  Hash hash;
  hash.add(bytes.data(), bytes.size());
  return hash.hex();
}

}  // namespace narrows
