// A GGUF model in memory, to be changed and written again.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "formats/gguf.h"

namespace narrows {

struct ModelFile {
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> data;
  };
  std::map<std::string, GgufEntry, std::less<>> metadata;
  std::vector<Tensor> tensors;

  static ModelFile read(const std::string& path) {
    const GgufFile file = GgufFile::open(path);
    ModelFile model;
    model.metadata = file.metadata();
    model.metadata.erase("general.alignment");
    for (const GgufTensor& t : file.tensors())
      model.tensors.push_back(
          {t.name, t.dtype, {t.shape.begin(), t.shape.begin() + t.dims}, {t.data, t.data + t.bytes}});
    return model;
  }

  void write(const std::string& path) const {
    GgufWriter writer;
    for (const auto& [key, entry] : metadata) writer.set(key, entry);
    for (const Tensor& t : tensors) writer.add_tensor(t.name, t.dtype, t.shape);
    writer.write(path,
                 [&](std::size_t i, auto&& sink) { sink(std::span<const std::byte>(tensors[i].data)); });
  }

  Tensor& tensor(const std::string& name) {
    for (Tensor& t : tensors)
      if (t.name == name) return t;
    throw std::runtime_error("no tensor " + name);
  }
  void remove(const std::string& name) {
    tensors.erase(
        std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; }));
  }
  // Replaces the tensor of this name or adds it, with random values around `mean`.
  void set_random(const std::string& name, DType dtype, std::vector<std::int64_t> shape, float mean,
                  float deviation, std::mt19937& random) {
    std::int64_t n = 1;
    for (const std::int64_t size : shape) n *= size;
    std::vector<float> values(static_cast<std::size_t>(n));
    std::normal_distribution<float> normal(mean, deviation);
    for (float& v : values) v = normal(random);
    Tensor made{name, dtype, std::move(shape), std::vector<std::byte>(row_bytes(dtype, n))};
    quantize(dtype, values.data(), made.data.data(), n);
    for (Tensor& t : tensors)
      if (t.name == name) {
        t = std::move(made);
        return;
      }
    tensors.push_back(std::move(made));
  }

  void set(const std::string& key, std::int64_t value) { metadata[key] = {GgufType::I64, value}; }
  void set(const std::string& key, double value) { metadata[key] = {GgufType::F64, value}; }
  void set(const std::string& key, const std::string& value) { metadata[key] = {GgufType::String, value}; }
  void set(const std::string& key, std::vector<std::int64_t> values) {
    GgufArray array;
    array.element = GgufType::I32;
    array.integers = std::move(values);
    metadata[key] = {GgufType::Array, std::move(array)};
  }
};

// The sizes of a llama model with random weights.
struct LlamaSizes {
  std::int64_t layers = 2, d = 256, heads = 4, kv_heads = 2, head_dims = 64, d_inter = 256;
  std::int64_t window = 0, rotary_dims = 64;
  bool tied = false;
};

// A llama model of these sizes, its matrices of the type `dtype`, with the tokenizer (and so the vocabulary)
// of another model. Weights are drawn so that attention and logits are far from uniform.
inline ModelFile random_llama(const ModelFile& tokenizer_of, const LlamaSizes& sizes, DType dtype,
                              unsigned seed) {
  ModelFile model;
  for (const auto& [key, entry] : tokenizer_of.metadata)
    if (key.starts_with("tokenizer.")) model.metadata[key] = entry;
  const auto& tokens = std::get<GgufArray>(tokenizer_of.metadata.at("tokenizer.ggml.tokens").value);
  const std::int64_t vocab = static_cast<std::int64_t>(tokens.size());
  model.set("general.architecture", std::string("llama"));
  model.set("llama.block_count", sizes.layers);
  model.set("llama.embedding_length", sizes.d);
  model.set("llama.context_length", std::int64_t{1024});
  model.set("llama.feed_forward_length", sizes.d_inter);
  model.set("llama.attention.head_count", sizes.heads);
  model.set("llama.attention.head_count_kv", sizes.kv_heads);
  model.set("llama.attention.key_length", sizes.head_dims);
  model.set("llama.attention.value_length", sizes.head_dims);
  model.set("llama.rope.dimension_count", sizes.rotary_dims);
  if (sizes.window > 0) model.set("llama.attention.sliding_window", sizes.window);

  std::mt19937 random(seed);
  const auto matrix = [&](const std::string& name, std::int64_t cols, std::int64_t rows) {
    model.set_random(name, dtype, {cols, rows}, 0, 1.5f / std::sqrt(static_cast<float>(cols)), random);
  };
  const auto norm = [&](const std::string& name) {
    model.set_random(name, DType::F32, {sizes.d}, 1, 0.2f, random);
  };
  matrix("token_embd.weight", sizes.d, vocab);
  norm("output_norm.weight");
  if (!sizes.tied) matrix("output.weight", sizes.d, vocab);
  const std::int64_t q = sizes.heads * sizes.head_dims, k = sizes.kv_heads * sizes.head_dims;
  for (std::int64_t i = 0; i < sizes.layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    norm(block + "attn_norm.weight");
    norm(block + "ffn_norm.weight");
    matrix(block + "attn_q.weight", sizes.d, q);
    matrix(block + "attn_k.weight", sizes.d, k);
    matrix(block + "attn_v.weight", sizes.d, k);
    matrix(block + "attn_output.weight", q, sizes.d);
    matrix(block + "ffn_gate.weight", sizes.d, sizes.d_inter);
    matrix(block + "ffn_up.weight", sizes.d, sizes.d_inter);
    matrix(block + "ffn_down.weight", sizes.d_inter, sizes.d);
  }
  return model;
}

}  // namespace narrows
