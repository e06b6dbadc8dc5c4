#include "model/loaded_model.h"

#include "base/error.h"
#include "huggingface/folder.h"
#include "model/load.h"

namespace narrows {

std::shared_ptr<Model> Model::load(const std::string& path, const LoadOptions& options) {
  return std::make_shared<LoadedModel>(path, options);
}

namespace {

std::string architecture_of(const GgufFile& file) {
  std::string name = file.get_string("general.architecture");
  if (name == "gsi") fail("{}: expected a model, found a file of bases: give it with --gsi", file.path());
  return name;
}

}  // namespace

LoadedModel::LoadedModel(const std::string& path, const LoadOptions& options)
    : file_(open_model(path)),
      architecture_(architecture_of(file_)),
      tokenizer_(Tokenizer::from_gguf(file_)),
      pool_(std::make_unique<ThreadPool>(options.threads)) {
  if (options.vocab_only) return;
  spec_ = load_spec(file_);
  weights_ = load_weights(file_, spec_, options.repack, *pool_);
  has_weights_ = true;
  if (tokenizer_->vocab_size() > spec_.vocab)
    fail("{}: token_embd.weight: expected a row for each of the tokenizer's {} tokens, found {}", path,
         tokenizer_->vocab_size(), spec_.vocab);
}

std::int32_t LoadedModel::vocab_size() const {
  return has_weights_ ? static_cast<std::int32_t>(spec_.vocab) : tokenizer_->vocab_size();
}

void LoadedModel::set_threads(int threads) {
  const std::lock_guard lock(mutex_);
  const int wanted = threads < 1 ? ThreadPool::default_threads() : threads;
  if (wanted != pool_->size()) pool_ = std::make_unique<ThreadPool>(wanted);
}

void LoadedModel::set_profiling(bool on) {
  const std::lock_guard lock(mutex_);
  if (on) profile_ = {};
  workspace_.profile = on ? &profile_ : nullptr;
}

std::vector<OperationCost> LoadedModel::operation_costs() const {
  std::vector<OperationCost> costs;
  for (std::size_t i = 0; i < kOperationNames.size(); ++i) {
    const Profile::Entry& entry = profile_.entries[i];
    costs.push_back({kOperationNames[i], entry.calls, entry.seconds, entry.bytes});
  }
  return costs;
}

std::vector<TokenId> LoadedModel::tokenize(std::string_view text, const TokenizeOptions& options) const {
  return tokenizer_->encode(text, {options.add_special, options.parse_special});
}

std::string LoadedModel::detokenize(std::span<const TokenId> ids, bool show_special) const {
  return tokenizer_->decode(ids, show_special);
}

// Models pad their embeddings: ids beyond the tokenizer's are valid, and mean nothing.
std::string LoadedModel::piece(TokenId id, bool show_special) const {
  if (id >= tokenizer_->vocab_size() && id < vocab_size()) return {};
  return tokenizer_->piece(id, show_special);
}

bool LoadedModel::is_end_of_generation(TokenId id) const {
  return id >= 0 && id < tokenizer_->vocab_size() && tokenizer_->is_end_of_generation(id);
}

std::string LoadedModel::format_chat(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  const std::lock_guard lock(template_mutex_);
  if (!template_) {
    if (!has_chat_template()) fail("{}: the model has no chat template", path());
    const auto spelled = [&](TokenId id) { return id == kNoToken ? std::string() : tokenizer_->spelling(id); };
    template_.emplace(tokenizer_->chat_template(), spelled(tokenizer_->bos()), spelled(tokenizer_->eos()));
  }
  return template_->render(messages, add_generation_prompt);
}

void LoadedModel::run(AttentionPolicy& attention, const Batch& batch, const LogitRows& wanted) {
  const std::lock_guard lock(mutex_);
  forward(spec_, weights_, attention, *pool_, workspace_, batch, wanted);
}

}  // namespace narrows
