// Models as Hugging Face publishes them: a folder with config.json, safetensors and a tokenizer, read as what GGUF would hold.
#pragma once
#include <string>
#include <vector>

#include "formats/gguf.h"

namespace narrows {

// A GGUF file, or a Hugging Face folder, whose tensors and metadata get the names, layouts and keys that GGUF has for its
// architecture (llama.cpp's where it knows it). Weights stay in the mapped files; what has another layout there (permuted
// rotary pairs, interleaved or transposed projections, experts one by one) is made when it is asked for.
// Throws Error for what GgufFile::open() and SafeTensors::open() refuse, an unknown model_type, settings that narrows does
// not implement, tensors that are missing, of another shape than config.json says, or without a place in the model.
// `notes` gains, of a folder, why its tokenizer is more than GGUF's keys for tokenizers can say, if it is.
GgufFile open_model(const std::string& path, std::vector<std::string>* notes = nullptr);

// Whether the path is a folder, and so read as one of Hugging Face.
bool is_model_folder(const std::string& path);

// The model_types of config.json that open_model() reads.
std::string known_model_types();

}  // namespace narrows
