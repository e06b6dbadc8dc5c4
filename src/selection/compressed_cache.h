// What a compressed cache remembers of one sequence.
//
// A KV head of a layer is a list of entries: first those that stand for earlier positions, then one for each position
// from first_exact() on. Each head has pages of its own, as each keeps another number; the last page is as long as
// needed. Layers with a sliding window are in a dense cache.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "base/slab_pool.h"
#include "model/kv_cache.h"
#include "selection/kv_choice.h"

namespace narrows {

struct HeadEntries {
  std::vector<KvPage> pages;         // entry e lies in page e / kPageTokens
  std::int64_t compressed = 0;       // entries before the exact ones
  std::vector<float> worth;          // [entries]: what the policy remembers of each
  std::vector<std::byte> probes;     // [probes][probe_bytes()]: queries, in order of position
};

struct EntryLayer {
  KvShape shape;  // of one head's pages
  std::vector<HeadEntries> heads;  // empty: a layer with a sliding window
};

std::size_t probe_bytes(int d_qk);
void store_probe(const float* q, int d_qk, std::byte* to);
void load_probe(const std::byte* from, int d_qk, float* q);

// What is remembered of entries: nothing, what compressions make of them, or sums over all that is computed.
enum class EntryMemory { None, Compressions, Running };

class CompressedCache final : public SequenceCache {
 public:
  // `first`: where to compress first. It keeps a number of each entry if told so, and
  // the queries of each head that `probes` says as probes.
  CompressedCache(const ModelSpec& spec, const ModelSpec& windowed, KvFormat format, std::int64_t first, EntryMemory memory,
                  ProbeRule probes);
  std::int64_t length() const override { return length_; }
  void truncate(std::int64_t length) override;
  std::size_t bytes() const override;
  std::size_t bytes_read() const override;

  std::int64_t first_exact() const { return first_exact_; }
  std::int64_t next() const { return next_; }
  std::int64_t compressed_at() const { return compressed_at_; }  // tokens held at the last compression
  // Whether a query becomes a probe when it comes.
  bool is_probe(std::int64_t position) const { return probes_.keeps(position, next_); }
  std::vector<std::int64_t> probe_positions() const { return probes_.positions(length_, next_); }
  EntryLayer& layer(int index) { return layers_[static_cast<std::size_t>(index)]; }
  std::vector<EntryLayer>& layers() { return layers_; }
  DenseCache& windowed() { return windowed_; }
  std::int64_t entries(const HeadEntries& head) const { return head.compressed + length_ - first_exact_; }

  void reserve(std::int64_t end);
  void advance(std::int64_t end) { length_ = end; }
  void add_probe(HeadEntries& head, const float* q, int d_qk);

  // Keeps `kept` of a head, the last `window` of them exact; any thread, one a head.
  void keep(const KvShape& shape, HeadEntries& head, std::span<const Entry> kept) const;
  // Weights of its first entries, in units of log 2.
  std::vector<float> biases(const HeadEntries& head) const;
  void set_biases(HeadEntries& head, std::span<const float> biases);
  // Ends a compression: gives back what is no longer needed.
  void finish(std::span<const std::int64_t> kept, std::int64_t window, std::int64_t next);

 private:
  KvPage take(const KvShape& shape, std::int64_t tokens);
  void give(const KvShape& shape, KvPage& page);
  void resize(const KvShape& shape, KvPage& page, std::int64_t tokens);
  void fit(const KvShape& shape, HeadEntries& head, std::int64_t entries);
  void repack();

  std::unique_ptr<SlabPool> pool_ = std::make_unique<SlabPool>();
  std::vector<EntryLayer> layers_;
  DenseCache windowed_;
  const std::int64_t first_next_;
  const EntryMemory memory_;
  const ProbeRule probes_;
  std::int64_t length_ = 0, first_exact_ = 0, compressed_at_ = 0, next_;
};

}  // namespace narrows
