#include "narrows/session.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "generate/session_attention.h"
#include "model/kv_cache.h"
#include "model/loaded_model.h"
#include "selection/compressed_attention.h"

namespace narrows {
namespace {

KvFormat format_of(KvType type) {
  switch (type) {
    case KvType::F32: return KvFormat::F32;
    case KvType::Q8_0: return KvFormat::Q8_0;
    default: return KvFormat::F16;
  }
}

}  // namespace

struct Session::Impl {
  std::shared_ptr<Model> model;
  LoadedModel* loaded = nullptr;
  SessionOptions options;
  std::unique_ptr<AttentionPolicy> attention;
  std::unique_ptr<SequenceCache> cache;
  bool own_attention = false;   // not the dense one: its caches are no others'
  std::vector<TokenId> tokens;  // the cache may hold fewer: the rest is computed by the next step
  std::vector<float> logits;

  void begin_sequence();
  void check(std::span<const TokenId> added) const;
  void shift();
  std::span<const TokenId> pending() const {
    return std::span(tokens).subspan(static_cast<std::size_t>(cache->length()));
  }
};

void Session::Impl::begin_sequence() {
  cache = attention->new_sequence();
  cache->long_context = loaded->spec().is_long(options.context);
}

void Session::Impl::check(std::span<const TokenId> added) const {
  if (added.empty()) fail("step: expected at least one token");
  for (const TokenId id : added)
    if (id < 0 || id >= model->vocab_size())
      fail("step: token id {}: expected 0 to {}", id, model->vocab_size() - 1);
  const std::int64_t length = static_cast<std::int64_t>(tokens.size() + added.size());
  if (length > options.context && !options.context_shift)
    fail("context of {} tokens is full: {} tokens do not fit", options.context, length);
}

// Makes room by forgetting the older half of what follows the kept tokens.
void Session::Impl::shift() {
  const std::int64_t length = static_cast<std::int64_t>(tokens.size()), keep = options.keep;
  const std::int64_t dropped = std::max<std::int64_t>((length - keep) / 2, 1);
  tokens.erase(tokens.begin() + keep, tokens.begin() + keep + dropped);
  cache->truncate(keep);
}

namespace {

// Computes every session's pending tokens in passes of at most `chunk` rows. Row r of session i, counted from its
// last rows[i] tokens, gets its logits at out[i] + r · vocab.
struct Wanted {
  std::int64_t rows;
  float* out;
};

void compute(std::span<Session::Impl* const> sessions, std::span<const Wanted> wanted) {
  LoadedModel& model = *sessions.front()->loaded;
  const std::int64_t vocab = model.vocab_size();
  std::int64_t chunk = 1;
  for (const Session::Impl* s : sessions) chunk = std::max(chunk, s->options.chunk);
  std::vector<float> logits;
  for (;;) {
    Batch batch;
    std::vector<std::int64_t> rows;
    std::vector<float*> targets;
    for (std::size_t i = 0; i < sessions.size() && batch.rows < chunk; ++i) {
      Session::Impl& s = *sessions[i];
      const auto pending = s.pending();
      if (pending.empty()) continue;
      const std::int64_t position = s.cache->length(), first_row = batch.rows;
      const auto part = pending.first(static_cast<std::size_t>(
          std::min({std::ssize(pending), chunk - batch.rows, s.attention->next_boundary(*s.cache) - position})));
      const std::int64_t first_wanted = static_cast<std::int64_t>(s.tokens.size()) - wanted[i].rows;
      for (std::int64_t t = 0; t < static_cast<std::int64_t>(part.size()); ++t)
        if (position + t >= first_wanted) {
          rows.push_back(first_row + t);
          targets.push_back(wanted[i].out + (position + t - first_wanted) * vocab);
        }
      batch.add(s.cache.get(), part, position);
    }
    if (batch.rows == 0) return;
    // Rows that lie one after the other in the caller's memory are written there at once.
    const bool contiguous = [&] {
      for (std::size_t i = 1; i < targets.size(); ++i)
        if (targets[i] != targets[0] + static_cast<std::int64_t>(i) * vocab) return false;
      return true;
    }();
    if (contiguous) {
      model.run(*sessions.front()->attention, batch, {rows, targets.empty() ? nullptr : targets[0]});
    } else {
      logits.resize(rows.size() * static_cast<std::size_t>(vocab));
      model.run(*sessions.front()->attention, batch, {rows, logits.data()});
      for (std::size_t i = 0; i < targets.size(); ++i)
        std::copy_n(logits.data() + static_cast<std::int64_t>(i) * vocab, vocab, targets[i]);
    }
  }
}

}  // namespace

Session::Session(std::shared_ptr<Model> model, const SessionOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->loaded = dynamic_cast<LoadedModel*>(model.get());
  if (!impl_->loaded || !impl_->loaded->has_weights())
    fail("Session: expected a model loaded with its weights");
  const ModelSpec& spec = impl_->loaded->spec();
  impl_->model = std::move(model);
  impl_->options = options;
  SessionOptions& o = impl_->options;
  if (o.context == 0) o.context = spec.trained_context;
  if (o.context < 1) fail("context: expected at least 1 token, found {}", o.context);
  if (spec.positions == Positions::Learned && o.context > spec.trained_context)
    fail("{}: context of {} tokens: expected at most the {} positions that the model has learned", impl_->model->path(), o.context,
         spec.trained_context);
  if (o.chunk < 1) fail("chunk: expected at least 1 token, found {}", o.chunk);
  if (o.keep < 0 || (o.context_shift && o.keep >= o.context))
    fail("keep: expected 0 to {} tokens, found {}", o.context - 1, o.keep);
  if (o.compression)
    impl_->attention = compressed_attention(spec, impl_->loaded->weights(), format_of(o.kv_type), *o.compression);
  else
    impl_->attention = std::make_unique<DenseAttention>(spec, format_of(o.kv_type));
  impl_->begin_sequence();
}

void set_attention(Session& session, const AttentionFactory& make) {
  Session::Impl& s = session.impl();
  if (!s.tokens.empty()) fail("attention: expected a session without tokens, found {}", s.tokens.size());
  s.attention = make(s.loaded->spec());
  s.begin_sequence();
  s.own_attention = true;
}

Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

std::span<const float> Session::step(std::span<const TokenId> tokens) {
  const BatchItem item{this, tokens};
  narrows::step(std::span(&item, 1));
  return impl_->logits;
}

void Session::step_all(std::span<const TokenId> tokens, std::span<float> logits) {
  impl_->check(tokens);
  const std::size_t vocab = static_cast<std::size_t>(impl_->model->vocab_size());
  if (logits.size() != tokens.size() * vocab)
    fail("step_all: expected room for {} logits, found {}", tokens.size() * vocab, logits.size());
  if (static_cast<std::int64_t>(impl_->tokens.size() + tokens.size()) > impl_->options.context)
    fail("step_all: {} tokens do not fit into the context of {}", tokens.size(), impl_->options.context);
  const std::vector<TokenId> added(tokens.begin(), tokens.end());  // `tokens` may be the session's own
  impl_->tokens.insert(impl_->tokens.end(), added.begin(), added.end());
  Impl* self = impl_.get();
  const Wanted wanted{static_cast<std::int64_t>(tokens.size()), logits.data()};
  compute(std::span(&self, 1), std::span(&wanted, 1));
  impl_->logits.assign(logits.end() - static_cast<std::ptrdiff_t>(vocab), logits.end());
}

std::span<const float> Session::logits() const { return impl_->logits; }
const std::vector<TokenId>& Session::tokens() const { return impl_->tokens; }
std::int64_t Session::context() const { return impl_->options.context; }
std::int64_t Session::next_compression() const { return impl_->attention->next_boundary(*impl_->cache); }
std::size_t Session::kv_bytes() const { return impl_->cache->bytes(); }
std::size_t Session::kv_bytes_read() const { return impl_->cache->bytes_read(); }
const std::shared_ptr<Model>& Session::model() const { return impl_->model; }
const SessionOptions& Session::options() const { return impl_->options; }

void Session::truncate(std::int64_t length) {
  if (length < 0 || length > static_cast<std::int64_t>(impl_->tokens.size()))
    fail("truncate: expected 0 to {} tokens, found {}", impl_->tokens.size(), length);
  impl_->tokens.resize(static_cast<std::size_t>(length));
  impl_->cache->truncate(length);
}

void step(std::span<const BatchItem> batch) {
  std::vector<Session::Impl*> sessions;
  std::vector<std::vector<TokenId>> added;  // a copy: what is given may be the sessions' own tokens
  for (const BatchItem& item : batch) {
    Session::Impl& s = item.session->impl();
    s.check(item.tokens);
    if (!sessions.empty() && s.loaded != sessions.front()->loaded)
      fail("step: expected sessions of one model");
    if (!sessions.empty() && s.options.kv_type != sessions.front()->options.kv_type)
      fail("step: expected sessions with one type of key/value cache");
    if (!sessions.empty() && s.options.compression != sessions.front()->options.compression)
      fail("step: expected sessions with one compression of the key/value cache");
    if (batch.size() > 1 && s.own_attention) fail("step: a session with an attention of its own is stepped alone");
    if (std::find(sessions.begin(), sessions.end(), &s) != sessions.end()) fail("step: a session is given twice");
    sessions.push_back(&s);
    added.emplace_back(item.tokens.begin(), item.tokens.end());
  }
  if (sessions.empty()) return;
  const auto compute_pending = [](std::span<Session::Impl* const> which) {
    std::vector<Wanted> wanted;
    for (Session::Impl* s : which) {
      s->logits.resize(static_cast<std::size_t>(s->model->vocab_size()));
      wanted.push_back({1, s->logits.data()});
    }
    compute(which, wanted);
  };
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Session::Impl* s = sessions[i];
    std::span<const TokenId> rest = added[i];
    // Only with context shift: fill the context, make room, go on.
    while (static_cast<std::int64_t>(s->tokens.size() + rest.size()) > s->options.context) {
      const std::size_t fits = static_cast<std::size_t>(s->options.context) - s->tokens.size();
      s->tokens.insert(s->tokens.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(fits));
      rest = rest.subspan(fits);
      s->shift();
    }
    s->tokens.insert(s->tokens.end(), rest.begin(), rest.end());
  }
  compute_pending(sessions);
}

}  // namespace narrows
