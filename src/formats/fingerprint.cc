#include "formats/fingerprint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <memory>

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
    hash.add(t.name.c_str(), t.name.size() + 1);
    hash.add(&t.dtype, sizeof(t.dtype));
    hash.add(t.shape.data(), sizeof(t.shape));
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
