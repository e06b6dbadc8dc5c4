// Hugging Face folders: what has no place, what is missing, what disagrees.
#include "huggingface/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "formats/requantize.h"
#include "formats/safetensors_file.h"
#include "formats/temp_dir.h"
#include "narrows/narrows.h"

namespace narrows {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string hf(const std::string& name) { return std::string(NARROWS_TEST_DATA) + "/hf/" + name; }

class Folder : public testing::Test {
 protected:
  std::string copy_of(const std::string& name) {
    const fs::path to = dir_.file("folder");
    fs::remove_all(to);
    fs::copy(hf(name), to);
    return to;
  }
  // A copy with another config.json.
  template <typename Change>
  std::string with_config(const std::string& name, Change&& change) {
    const std::string folder = copy_of(name), path = folder + "/config.json";
    nlohmann::json config = nlohmann::json::parse(read_bytes(path));
    change(config);
    write_bytes(path, config.dump());
    return folder;
  }
  template <typename Change>
  std::string with_weights(const std::string& name, Change&& change) {
    const std::string folder = copy_of(name), path = folder + "/model.safetensors";
    SafetensorsFile file = SafetensorsFile::read(path);
    change(file);
    file.write(path);
    return folder;
  }
  static void refused(const std::string& folder, const std::string& message) {
    EXPECT_THAT([&] { open_model(folder); }, ThrowsMessage<Error>(HasSubstr(message)));
  }
  TempDir dir_;
};

TEST_F(Folder, Config) {
  const std::string folder = copy_of("llama31");
  fs::remove(folder + "/config.json");
  refused(folder, "this one has no config.json");
  write_bytes(folder + "/config.json", "{");
  refused(folder, "config.json: expected JSON");
  write_bytes(folder + "/config.json", "[]");
  refused(folder, "config.json: expected an object");
  refused(with_config("llama31", [](auto& c) { c["model_type"] = "mamba"; }), "model_type: expected one of llama, ");
  refused(with_config("llama31", [](auto& c) { c.erase("model_type"); }), "found \"\"");
  refused(with_config("llama31", [](auto& c) { c.erase("hidden_size"); }), "hidden_size is missing: expected a whole number");
  refused(with_config("llama31", [](auto& c) { c["hidden_size"] = "32"; }), "hidden_size: expected a whole number of 1 to");
  refused(with_config("llama31", [](auto& c) { c["hidden_size"] = -4; }), "found -4");
  refused(with_config("llama31", [](auto& c) { c["num_hidden_layers"] = 1e30; }), "num_hidden_layers: expected");
  refused(with_config("llama31", [](auto& c) { c["num_key_value_heads"] = 7; }), "expected a divisor of the 2 heads");
  refused(with_config("llama31", [](auto& c) { c["hidden_act"] = "gelu"; }), "hidden_act: expected silu, found \"gelu\"");
  refused(with_config("llama31", [](auto& c) { c["quantization_config"] = {{"quant_method", "gptq"}}; }), "found quantized ones");
  refused(with_config("llama31", [](auto& c) { c["rope_scaling"]["rope_type"] = "dynamic"; }), "rope_type: expected default, linear");
  refused(with_config("llama31", [](auto& c) { c["rope_scaling"]["factor"] = 0; }), "expected factor and original_max");
  refused(with_config("llama31", [](auto& c) { c["rope_theta"] = -1; }), "rope_theta: expected a number above 0");
  refused(with_config("phi3-longrope", [](auto& c) { c["rope_scaling"]["long_factor"].erase(0); }), "long_factor: expected");
  refused(with_config("mixtral", [](auto& c) { c["num_experts_per_tok"] = 9; }), "num_experts_per_tok: expected");
  refused(with_config("gpt2", [](auto& c) { c["scale_attn_by_inverse_layer_idx"] = true; }), "expected false");
  refused(with_config("mpt", [](auto& c) { c["attn_config"]["qk_ln"] = true; }), "attn_config: qk_ln: expected false");
}

TEST_F(Folder, WeightsThatDisagree) {
  refused(with_config("llama31", [](auto& c) { c["intermediate_size"] = 40; }),
          "as config.json says, found [48, 32]");
  refused(with_config("llama31", [](auto& c) { c["num_hidden_layers"] = 1; }), "has no place in a model");
  refused(with_config("llama31", [](auto& c) { c["num_hidden_layers"] = 3; }), "tensor model.layers.2.input_layernorm.weight is missing");
  refused(with_config("llama31", [](auto& c) { c["tie_word_embeddings"] = false; }), "lm_head.weight is missing");
  refused(with_config("llama31", [](auto& c) { c["attention_bias"] = true; }), "q_proj.bias is missing");
  refused(with_weights("llama31", [](auto& f) { f.header["model.layers.0.self_attn.rotary_emb.cache"] = f.header["model.norm.weight"];
                                               f.header.erase("model.norm.weight"); }), "norm.weight is missing");
  refused(with_weights("llama31", [](auto& f) {
            auto& t = f.header["model.norm.weight"];
            t["dtype"] = "I16";
          }), "model.norm.weight: expected F32, F16 or BF16, found I16");
  const std::string folder = copy_of("llama2");
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().string().find("-00002-of-") != std::string::npos) fs::remove(entry.path());
  refused(folder, "is missing");
}

// As transformers reads them: Llama has no window whatever the file says, and a head that is stored beside the embedding it is
// said to share counts if it is another.
TEST_F(Folder, WhatTransformersReads) {
  const GgufFile llama = open_model(with_config("llama31", [](auto& c) { c["sliding_window"] = 4; }));
  EXPECT_FALSE(llama.has("llama.attention.sliding_window"));
  EXPECT_TRUE(open_model(hf("mistral")).has("llama.attention.sliding_window"));
  for (const bool other : {false, true}) {
    const std::string folder = with_weights("llama31", [&](SafetensorsFile& f) {
      auto head = f.header["model.embed_tokens.weight"];
      const auto begin = head["data_offsets"][0].get<std::size_t>(), end = head["data_offsets"][1].get<std::size_t>();
      head["data_offsets"] = {f.data.size(), f.data.size() + end - begin};
      f.data += f.data.substr(begin, end - begin);
      if (other) f.data.back() = static_cast<char>(f.data.back() ^ 1);
      f.header["lm_head.weight"] = head;
    });
    EXPECT_EQ(open_model(folder).find_tensor("output.weight") != nullptr, other);
  }
}

// Weights that begin at odd addresses are read all the same.
TEST_F(Folder, Unaligned) {
  const std::string folder = copy_of("opt-nobias"), path = folder + "/model.safetensors";
  const SafetensorsFile file = SafetensorsFile::read(path);
  std::string header = file.header.dump();
  while (header.size() % 4 != 1) header += ' ';
  write_bytes(path, safetensors_bytes(header, file.data));
  const auto logits = [](const std::string& from) {
    Session session(Model::load(from, {}), {.context = 64});
    const std::vector<TokenId> ids{5, 6, 7, 8};
    const auto last = session.step(ids);
    return std::vector<float>(last.begin(), last.end());
  };
  EXPECT_EQ(logits(folder), logits(hf("opt-nobias")));
}

// The file that is written of a folder is the same model, bit for bit.
TEST_F(Folder, ConvertedFilesGiveTheSameBits) {
  for (const auto& entry : fs::directory_iterator(hf(""))) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const std::string path = dir_.file("converted.gguf");
    RequantizeOptions as_stored;
    as_stored.keep_types = true;
    requantize(open_model(entry.path()), DType::F16, path, as_stored);
    const nlohmann::json golden = nlohmann::json::parse(read_bytes(entry.path() / "golden.json"));
    const auto ids = golden.at("ids").get<std::vector<TokenId>>();
    const auto logits = [&](const std::string& from) {
      const auto model = Model::load(from, {});
      Session session(model, {});
      std::vector<float> all(ids.size() * static_cast<std::size_t>(model->vocab_size()));
      session.step_all(ids, all);
      return all;
    };
    EXPECT_EQ(logits(path), logits(entry.path()));
    requantize(open_model(entry.path()), DType::Q8_0, path);
    for (const float v : logits(path)) ASSERT_TRUE(std::isfinite(v));
  }
}

// Ids of a text, without and with what the tokenizer puts around it; of the folder, and of the file made of it.
TEST_F(Folder, Tokenizers) {
  for (const auto& entry : fs::directory_iterator(hf(""))) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const nlohmann::json golden = nlohmann::json::parse(read_bytes(entry.path() / "golden.json"));
    const std::string text = golden.at("text"), path = dir_.file("converted.gguf");
    requantize(open_model(entry.path()), DType::Q8_0, path);
    for (const std::string& from : {entry.path().string(), path}) {
      const auto model = Model::load(from, {});
      const auto ids = model->tokenize(text, {.add_special = false, .parse_special = true});
      EXPECT_EQ(ids, golden.at("text_ids").get<std::vector<TokenId>>());
      EXPECT_EQ(model->tokenize(text, {.add_special = true, .parse_special = true}),
                golden.at("text_ids_special").get<std::vector<TokenId>>());
    }
  }
}

}  // namespace
}  // namespace narrows
