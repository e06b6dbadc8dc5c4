// Opens the bytes as a GGUF file. What opens is looked at in full: every key through every accessor, every
// byte of every tensor, and the beginning of each decoded.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "narrows/error.h"

namespace {

using namespace narrows;

template <typename Call>
void allow_error(Call&& call) {
  try {
    call();
  } catch (const Error&) {
    // another kind of value
  }
}

void look_at(const GgufFile& file) {
  for (const auto& item : file.metadata()) {
    const std::string& key = item.first;
    if (!file.has(key)) std::abort();
    allow_error([&] { file.get_int(key); });
    allow_error([&] { file.get_float(key); });
    allow_error([&] { file.find_bool(key); });
    allow_error([&] { file.find_string(key); });
    allow_error([&] { file.get_string(key); });
    allow_error([&] { file.get_array(key); });
  }
  unsigned sum = 0;
  for (const GgufTensor& t : file.tensors()) {
    if (&file.tensor(t.name) != &t) std::abort();
    for (std::size_t i = 0; i < t.bytes; ++i) sum += static_cast<unsigned>(t.data[i]);
    if (!can_dequantize(t.dtype)) continue;
    const std::int64_t block = dtype_info(t.dtype).block_size;
    std::vector<float> values(static_cast<std::size_t>(std::min(t.shape[0], 4 * block)));
    dequantize(t.dtype, t.data, values.data(), static_cast<std::int64_t>(values.size()));
  }
  asm volatile("" : : "r"(sum));  // so that the reads are not optimised away
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int fd = memfd_create("gguf", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  try {
    look_at(GgufFile::open(path));
  } catch (const Error& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
