// Loads the bytes as a whole model and computes three tokens: two of a prompt, one of decode.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "step_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace narrows;
  static const int fd = memfd_create("model", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  constexpr KvType types[] = {KvType::F16, KvType::F32, KvType::Q8_0};
  step_model(path, {.threads = 1, .repack = size % 2 == 0}, types[size % 3]);
  return 0;
}
