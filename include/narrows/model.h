// A language model loaded from a file: weights, tokenizer and chat template. Immutable once loaded.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrows/error.h"

namespace narrows {

using TokenId = std::int32_t;
inline constexpr TokenId kNoToken = -1;

struct LoadOptions {
  int threads = 0;           // threads for computing, the caller's included; 0: every core the process may use
  bool repack = true;        // lay quantized weights out for wide SIMD at load; false: compute from the mapped file.
                             // The bits of every result are the same.
  bool vocab_only = false;   // tokenizer and template only; a Session cannot be made
};

struct TokenizeOptions {
  bool add_special = true;   // BOS/EOS where the model's file asks for them
  bool parse_special = false;  // control tokens spelled out in the text become their ids
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// Time spent in one operation of the forward pass since profiling began.
struct OperationCost {
  std::string_view name;  // "q, k, v", "attention", "head", …
  std::int64_t calls;
  double seconds;
  double bytes;           // weights and cache that it had to read, each counted once a call
};

class Model {
 public:
  // Loads a GGUF file (the first part of a split one) or a Hugging Face folder (config.json, safetensors, tokenizer.json or
  // tokenizer.model). Throws Error: file missing, truncated or hostile, unknown architecture, tensor missing or of the
  // wrong shape.
  static std::shared_ptr<Model> load(const std::string& path, const LoadOptions& options = {});
  virtual ~Model() = default;

  virtual const std::string& path() const = 0;
  virtual const std::string& architecture() const = 0;  // as GGUF names it: "llama", "qwen2", "gemma3", …
  virtual std::int32_t vocab_size() const = 0;
  virtual std::int64_t trained_context() const = 0;     // tokens

  // Bytes of weights that one decode step reads.
  virtual std::size_t weight_bytes_per_token() const = 0;

  // Threads for the steps that follow; not while a step runs. 0: every core.
  virtual void set_threads(int threads) = 0;
  virtual int threads() const = 0;

  // Starts (from zero) or stops the timing of operations; not while a step runs. It costs about 1 % of a decode step.
  virtual void set_profiling(bool on) = 0;
  virtual std::vector<OperationCost> operation_costs() const = 0;  // in the order of the forward pass

  // Text to ids and back. detokenize gives the exact bytes; control tokens give nothing unless show_special.
  virtual std::vector<TokenId> tokenize(std::string_view text, const TokenizeOptions& options = {}) const = 0;
  virtual std::string detokenize(std::span<const TokenId> ids, bool show_special = false) const = 0;
  virtual std::string piece(TokenId id, bool show_special = false) const = 0;
  virtual bool is_end_of_generation(TokenId id) const = 0;
  virtual TokenId bos() const = 0;  // kNoToken if the model has none
  virtual TokenId eos() const = 0;
  virtual bool adds_bos() const = 0;

  // The model's own template over the messages. Throws Error if it has none or refuses the messages.
  virtual bool has_chat_template() const = 0;
  virtual std::string format_chat(std::span<const ChatMessage> messages, bool add_generation_prompt = true) const = 0;

  // A description for people and programs: JSON text with architecture, sizes, types, tokenizer, template and the
  // memory that a context of `context` tokens needs (0: the trained one).
  virtual std::string describe(std::int64_t context = 0) const = 0;
};

}  // namespace narrows
