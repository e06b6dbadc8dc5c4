// The Model behind the public interface, and what Session needs of it.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "formats/gguf.h"
#include "model/forward.h"
#include "model/spec.h"
#include "model/weights.h"
#include "narrows/model.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace narrows {

class LoadedModel final : public Model {
 public:
  LoadedModel(const std::string& path, const LoadOptions& options);

  const std::string& path() const override { return file_.path(); }
  const std::string& architecture() const override { return architecture_; }
  std::int32_t vocab_size() const override;
  std::int64_t trained_context() const override { return spec_.trained_context; }
  std::size_t weight_bytes_per_token() const override { return weights_.bytes_per_token(); }
  void set_threads(int threads) override;
  int threads() const override { return pool_->size(); }
  void set_profiling(bool on) override;
  std::vector<OperationCost> operation_costs() const override;
  std::vector<TokenId> tokenize(std::string_view text, const TokenizeOptions& options) const override;
  std::string detokenize(std::span<const TokenId> ids, bool show_special) const override;
  std::string piece(TokenId id, bool show_special) const override;
  bool is_end_of_generation(TokenId id) const override;
  TokenId bos() const override { return tokenizer_->bos(); }
  TokenId eos() const override { return tokenizer_->eos(); }
  bool adds_bos() const override { return tokenizer_->add_bos(); }
  bool has_chat_template() const override { return !tokenizer_->chat_template().empty(); }
  std::string format_chat(std::span<const ChatMessage> messages, bool add_generation_prompt) const override;
  std::string describe(std::int64_t context) const override;

  const ModelSpec& spec() const { return spec_; }
  bool has_weights() const { return has_weights_; }
  const GgufFile& file() const { return file_; }

  // For the methods, which replace sites before the first pass or between two; not while one runs.
  Weights& weights() { return weights_; }
  ModelSpec& changing_spec() { return spec_; }  // with sites of other sizes
  ThreadPool& pool() { return *pool_; }

  // One forward pass; passes of several threads wait for each other.
  void run(AttentionPolicy& attention, const Batch& batch, const LogitRows& wanted);

 private:
  GgufFile file_;
  std::string architecture_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  mutable std::optional<ChatTemplate> template_;  // parsed at first use: many runs need none
  mutable std::mutex template_mutex_;
  std::unique_ptr<ThreadPool> pool_;
  ModelSpec spec_;
  Weights weights_;
  bool has_weights_ = false;
  Workspace workspace_;
  Profile profile_;
  std::mutex mutex_;
};

}  // namespace narrows
