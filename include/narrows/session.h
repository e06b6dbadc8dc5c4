// One sequence of tokens in the making: the key/value cache and the latest logits.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "narrows/model.h"

namespace narrows {

enum class KvType { F16, F32, Q8_0 };

// How a compressed key/value cache chooses what it keeps.
enum class KvPolicy {
  Representatives,  // what the attention of earlier queries, turned to positions to come, would miss most; each head
                    // of each layer keeps as much as it needs
  Streaming,        // the first 4 tokens and the latest (StreamingLLM)
  H2o,              // half of it the latest, half those that received most attention
  SnapKv,           // for each KV head, what the latest 64 queries attend to
  SnapKvMerge,      // the same, and what is dropped is merged into the most similar of what is kept
};

// A key/value cache that shrinks: at a budget B it holds at most B times the bytes of a dense one, everything it
// remembers included, once the text is so long that the latest tokens fit. Layers with a sliding window keep that whole
// and are not counted. Logits are then near those of the dense cache, and still depend on the tokens before them alone.
struct KvCompression {
  KvPolicy policy = KvPolicy::Representatives;
  double budget = 0.25;         // above 0, at most 1: 1 keeps everything
  // > 0, Representatives only: instead of the budget, the relative error of a layer's attention output, in the square
  // mean over the probes, that leaving entries out may cause. The cache is then as large as the text makes it.
  double tau = 0;
  std::int64_t window = 64;     // latest tokens kept exactly; a multiple of 16
  std::int64_t compress_at = 0; // > 0: compress once, when the sequence has this many tokens, to the budget of those
  bool keeps_everything() const { return budget == 1 && tau == 0; }
  bool operator==(const KvCompression&) const = default;
};

struct SessionOptions {
  std::int64_t context = 0;  // tokens the sequence may hold; 0: the model's trained context (longrope: also chooses the frequencies)
  KvType kv_type = KvType::F16;
  std::int64_t chunk = 512;  // tokens computed together in a prompt; changes speed and memory, never a bit
  bool context_shift = false;  // when full: drop the older half of what follows the first `keep` tokens and go on,
                               // instead of throwing. What is kept is computed anew.
  std::int64_t keep = 0;
  std::optional<KvCompression> compression = std::nullopt;  // of the key/value cache; none: dense
};

// Logits depend on the tokens before them alone: not on how they were split into steps, on chunk, threads, or on
// other sequences in a batch. (After a context shift: on the tokens kept.)
class Session {
 public:
  explicit Session(std::shared_ptr<Model> model, const SessionOptions& options = {});
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  // Appends tokens (at least one) and computes them. Returns the logits that follow the last one: vocab_size()
  // floats, valid until the next step. Throws Error for an id out of range or if the context would overflow.
  std::span<const float> step(std::span<const TokenId> tokens);
  std::span<const float> step(TokenId token) { return step(std::span(&token, 1)); }

  // As step(), but keeps the logits after every token: tokens.size() × vocab_size() floats, row-major.
  void step_all(std::span<const TokenId> tokens, std::span<float> logits);

  std::span<const float> logits() const;           // of the last step; empty before it
  const std::vector<TokenId>& tokens() const;      // all tokens held
  std::int64_t context() const;
  const SessionOptions& options() const;           // as given
  std::int64_t next_compression() const;           // tokens at which the cache is compressed next; INT64_MAX: never
  std::size_t kv_bytes() const;                    // memory that the cache holds now
  std::size_t kv_bytes_read() const;               // keys and values that a decode step reads now

  // Forgets everything after the first `length` tokens. The logits are those of the last step still.
  void truncate(std::int64_t length);

  const std::shared_ptr<Model>& model() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// One token run for one of several sequences of the same model.
struct BatchItem {
  Session* session;                  // each session at most once
  std::span<const TokenId> tokens;   // at least one
};

// Steps several sequences through one forward pass; each session's logits() are as if it had been stepped alone.
void step(std::span<const BatchItem> batch);
inline void step(std::initializer_list<BatchItem> batch) { step(std::span(batch.begin(), batch.size())); }

}  // namespace narrows
