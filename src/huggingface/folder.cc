#include "huggingface/folder.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "formats/gguf_format.h"
#include "huggingface/architectures.h"
#include "tokenizer/hf_metadata.h"

namespace narrows {
namespace {

using namespace hf;

std::vector<Architecture> architectures() {
  std::vector<Architecture> all;
  for (const auto& family : {decoder_family(), gpt_family()}) all.insert(all.end(), family.begin(), family.end());
  return all;
}

// Rows of the embedding: of a multimodal model its language model's.
std::int64_t config_vocabulary(const Config& config) {
  const Config text = config.object_or_empty({"text_config"});
  return (text.find({"vocab_size"}) ? text : config).integer({"vocab_size"}, 1, std::int64_t{1} << 31);
}

GgufFile open_folder(const std::string& folder, std::vector<std::string>* notes) {
  const std::string config_path = (std::filesystem::path(folder) / "config.json").string();
  std::error_code absent;
  if (!std::filesystem::exists(config_path, absent))
    fail("{}: expected a GGUF file, or a Hugging Face folder: this one has no config.json", folder);
  const Config config(config_path, read_json_file(config_path));
  const std::string type = config.text_or({"model_type"}, "");
  const std::vector<Architecture> known = architectures();
  const auto found = std::ranges::find(known, type, &Architecture::model_type);
  if (found == known.end())
    fail("{}: model_type: expected one of {}, found \"{}\"", config_path, known_model_types(), gguf::printable(type));
  if (config.find({"quantization_config"}))
    fail("{}: quantization_config: expected weights in F32, F16 or BF16, found quantized ones", config_path);
  SafeTensors source = SafeTensors::open(folder);
  Assembly assembly(folder, source);
  const std::filesystem::path normal = std::filesystem::absolute(folder).lexically_normal();
  assembly.set_text("general.name", (normal.has_filename() ? normal : normal.parent_path()).filename().string());
  found->build(config, assembly);
  HfTokenizerMetadata tokenizer = read_hf_tokenizer(folder, config_vocabulary(config));
  for (auto& [key, entry] : tokenizer.entries) assembly.set(key, entry.type, std::move(entry.value));
  if (notes) *notes = std::move(tokenizer.notes);
  return assembly.finish(std::move(source).take_files());
}

}  // namespace

std::string known_model_types() {
  std::string names;
  for (const Architecture& a : architectures()) names += (names.empty() ? "" : ", ") + std::string(a.model_type);
  return names;
}

bool is_model_folder(const std::string& path) {
  std::error_code absent;
  return std::filesystem::is_directory(path, absent);
}

GgufFile open_model(const std::string& path, std::vector<std::string>* notes) {
  return is_model_folder(path) ? open_folder(path, notes) : GgufFile::open(path);
}

}  // namespace narrows
