// Loads the bytes as a whole model and computes three tokens: two of a prompt, one of decode.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "narrows/narrows.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace narrows;
  static const int fd = memfd_create("model", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  try {
    const auto model = Model::load(path, {.threads = 1, .repack = size % 2 == 0});
    const auto last = model->vocab_size() - 1;
    constexpr KvType types[] = {KvType::F16, KvType::F32, KvType::Q8_0};
    Session session(model, {.kv_type = types[size % 3]});
    const TokenId prompt[] = {0, last};
    session.step(prompt);
    session.step(last / 2);
    model->describe();
  } catch (const Error& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
