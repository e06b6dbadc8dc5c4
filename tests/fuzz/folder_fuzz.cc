// The bytes are a config.json, a zero byte and a model.safetensors: loads them as a Hugging Face folder and computes three
// tokens, two of a prompt, one of decode.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "step_model.h"

namespace {

// Lives as long as the program, in memory where the machine has such a place.
std::string make_folder() {
  std::string pattern = (std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp") + std::string("/narrows-fuzz-XXXXXX");
  if (!::mkdtemp(pattern.data())) std::abort();
  static const std::string folder = pattern;
  std::atexit([] { std::filesystem::remove_all(folder); });
  std::ofstream(folder + "/tokenizer.json")
      << R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2},"merges":[]},"pre_tokenizer":null,"normalizer":null})";
  return folder;
}

void write(const std::string& path, const std::uint8_t* data, std::size_t size) {
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace narrows;
  static const std::string folder = make_folder();
  const void* zero = size > 0 ? std::memchr(data, 0, size) : nullptr;
  const std::size_t config = zero ? static_cast<std::size_t>(static_cast<const std::uint8_t*>(zero) - data) : size;
  write(folder + "/config.json", data, config);
  write(folder + "/model.safetensors", data + std::min(config + 1, size), size - std::min(config + 1, size));
  step_model(folder, {.threads = 1}, KvType::F32);
  return 0;
}
