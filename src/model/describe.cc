#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/fingerprint.h"
#include "model/loaded_model.h"

namespace narrows {

using Json = nlohmann::ordered_json;

namespace {

// One number where all layers agree, else one a layer.
template <typename Get>
Json by_layer(const ModelSpec& spec, Get&& get) {
  const auto first = get(spec.layer.front());
  if (std::all_of(spec.layer.begin(), spec.layer.end(), [&](const LayerSpec& l) { return get(l) == first; })) return first;
  Json values = Json::array();
  for (const LayerSpec& layer : spec.layer) values.push_back(get(layer));
  return values;
}

// llama.cpp's names for mixtures of types.
std::string file_type_name(std::int64_t type) {
  static const std::map<std::int64_t, const char*> kNames = {
      {0, "F32"},     {1, "F16"},     {2, "Q4_0"},    {3, "Q4_1"},    {7, "Q8_0"},    {8, "Q5_0"},    {9, "Q5_1"},
      {10, "Q2_K"},   {11, "Q3_K_S"}, {12, "Q3_K_M"}, {13, "Q3_K_L"}, {14, "Q4_K_S"}, {15, "Q4_K_M"}, {16, "Q5_K_S"},
      {17, "Q5_K_M"}, {18, "Q6_K"},   {25, "IQ4_NL"}, {30, "IQ4_XS"}, {32, "BF16"}};
  const auto found = kNames.find(type);
  return found == kNames.end() ? "type " + std::to_string(type) : found->second;
}

Json describe_cache(const ModelSpec& spec, std::int64_t context) {
  // Elements a token adds in layers that keep everything, and those that a sliding window keeps.
  double elements = 0;
  for (const LayerSpec& layer : spec.layer) {
    const std::int64_t held = layer.window > 0 ? std::min<std::int64_t>(context, layer.window) : context;
    elements += static_cast<double>(held) * layer.kv_heads * (layer.d_qk + layer.d_vo);
  }
  return {{"f16_bytes", static_cast<std::int64_t>(elements * 2)},
          {"f32_bytes", static_cast<std::int64_t>(elements * 4)},
          {"q8_0_bytes", static_cast<std::int64_t>(elements * 34 / 32)}};
}

}  // namespace

std::string LoadedModel::describe(std::int64_t context) const {
  Json json;
  json["path"] = path();
  json["format"] = file_.version() == 0 ? "Hugging Face folder" : fmt::format("GGUF v{}", file_.version());
  json["architecture"] = architecture_;
  json["fingerprint"] = fingerprint(file_);
  json["name"] = file_.find_string("general.name").value_or("");
  if (const auto type = file_.find_int("general.file_type")) json["file_type"] = file_type_name(*type);
  std::int64_t parameters = 0, tensor_bytes = 0;
  std::map<std::string, std::pair<int, std::int64_t>> types;
  for (const GgufTensor& tensor : file_.tensors()) {
    parameters += tensor.elements();
    tensor_bytes += static_cast<std::int64_t>(tensor.bytes);
    auto& [count, bytes] = types[std::string(dtype_info(tensor.dtype).name)];
    ++count;
    bytes += static_cast<std::int64_t>(tensor.bytes);
  }
  json["parameters"] = parameters;
  json["file_bytes"] = file_.file_bytes();
  json["weight_bytes"] = tensor_bytes;
  for (const auto& [name, type] : types) json["types"][name] = {{"tensors", type.first}, {"bytes", type.second}};

  if (has_weights_) {
    json["weight_bytes_per_token"] = weight_bytes_per_token();
    json["context_length"] = spec_.trained_context;
    json["embedding_length"] = spec_.d;
    json["layers"] = spec_.layers;
    json["vocab_size"] = spec_.vocab;
    json["heads"] = by_layer(spec_, [](const LayerSpec& l) { return l.heads; });
    json["kv_heads"] = by_layer(spec_, [](const LayerSpec& l) { return l.kv_heads; });
    json["head_dimensions"] = by_layer(spec_, [](const LayerSpec& l) { return l.d_qk; });
    json["value_dimensions"] = by_layer(spec_, [](const LayerSpec& l) { return l.d_vo; });
    json["feed_forward_length"] = by_layer(spec_, [](const LayerSpec& l) { return l.d_inter; });
    json["sliding_window"] = by_layer(spec_, [](const LayerSpec& l) { return l.window; });
    json["tied_head"] = spec_.tied_head;
    const std::int64_t tokens = context > 0 ? context : spec_.trained_context;
    json["memory"] = {{"context", tokens},
                      {"weight_bytes", tensor_bytes},
                      {"kv_cache", describe_cache(spec_, tokens)}};
  }

  const auto token = [&](TokenId id) -> Json {
    if (id == kNoToken) return nullptr;
    return {{"id", id}, {"text", tokenizer_->spelling(id)}};
  };
  json["tokenizer"] = {{"model", tokenizer_->model()},     {"pre", tokenizer_->pre()},
                       {"tokens", tokenizer_->vocab_size()}, {"bos", token(tokenizer_->bos())},
                       {"eos", token(tokenizer_->eos())},    {"eot", token(tokenizer_->eot())},
                       {"adds_bos", tokenizer_->add_bos()},  {"adds_eos", tokenizer_->add_eos()}};
  json["chat_template"] = tokenizer_->chat_template();
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace narrows
