// Attention over a key/value cache kept in pages.
//
// A page holds kPageTokens positions of one layer: page p the absolute positions [128 p, 128 p + 128); where entries
// stand for more than one position each, 128 entries, and fewer in a page that is made shorter. A query meets
// one page at a time: scores, their maximum, exponentials and the weighted sum of values, each in an order that
// depends on the page alone; then partial results are merged page by page in ascending order. So neither the number
// of queries computed together nor the split among threads changes a bit, and a query computed in a prompt equals
// one computed in decode. (Online softmax: Milakov and Gimelshein, 2018, arXiv 1805.02867.)
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace narrows {

enum class KvFormat { F16, F32, Q8_0 };

inline constexpr std::int64_t kPageTokens = 128;
inline constexpr std::int64_t kKeyGroup = 16;  // keys interleaved in a page: one vector of scores
inline constexpr int kMostQueryRows = 8;       // rows that attend_page() takes at once

// Sizes of one layer's cache. In a page, head after head: the keys of groups of 16 positions as
// [group][d_qk][16], for Q8_0 followed by f16 scales [⌈d_qk / 32⌉][16]; then the values as [position][padded d_vo],
// for Q8_0 followed by f16 scales [position][⌈d_vo / 32⌉].
struct KvShape {
  int kv_heads = 0, d_qk = 0, d_vo = 0;
  KvFormat format = KvFormat::F16;
  std::int64_t page_tokens = kPageTokens;  // a multiple of kKeyGroup, at most kPageTokens

  int padded_d_vo() const { return (d_vo + 15) / 16 * 16; }
  std::size_t element_bytes() const;
  std::size_t key_group_bytes() const;
  std::size_t keys_bytes() const { return static_cast<std::size_t>(page_tokens / kKeyGroup) * key_group_bytes(); }
  std::size_t value_bytes() const;  // of all positions of a head
  std::size_t head_bytes() const { return keys_bytes() + value_bytes(); }
  std::size_t page_bytes() const { return static_cast<std::size_t>(kv_heads) * head_bytes(); }
  KvShape with_page(std::int64_t tokens) const {
    KvShape shape = *this;
    shape.page_tokens = tokens;
    return shape;
  }
};

// Writes one position's keys ([kv_heads][d_qk]) and values ([kv_heads][d_vo]). `page` is 64-byte aligned.
void store_kv(const KvShape& shape, std::byte* page, std::int64_t slot, const float* keys, const float* values);

// Copies one position as it is stored; the pages may be of different lengths, or the same one.
void copy_kv(const KvShape& from_shape, const std::byte* from, std::int64_t from_slot, const KvShape& to_shape,
             std::byte* to, std::int64_t to_slot);

// What is stored of the positions [0, count) of one head: keys [count][d_qk], or nullptr if they are not wanted, and
// values [count][padded_d_vo], filled up with zeros.
void load_kv(const KvShape& shape, const std::byte* page, int kv_head, std::int64_t count, float* keys, float* values);

// How scores come from products of query and key.
struct ScoreRule {
  float scale = 1;      // score = scale · q·k
  float soft_cap = 0;   // > 0: score = cap · tanh(score / cap)   (Gemma 2)
};

// One query of one head; it sees the positions [first_key, end_key), a non-empty range.
struct QueryRow {
  const float* q;                    // [d_qk]
  std::int64_t first_key, end_key;
  float alibi_slope = 0;             // adds slope · (key position - last position seen)   (ALiBi)
};

// What a query has gathered, with scores in units of log 2: out = Σ 2^(score - max) · value, sum = Σ 2^(score - max).
struct AttentionState {
  float max, sum;
  float* out;  // [padded_d_vo], 64-byte aligned
};

// Beyond keys and values.
struct PageExtras {
  const float* bias = nullptr;  // [kPageTokens]: added to the scores, in units of log 2
  float* weights = nullptr;     // [rows][kPageTokens]: receives 2^(score - max), 0 for what is not seen
};

// Attends up to kMostQueryRows queries, all of KV head `kv_head`, to one page that begins at position page_start;
// overwrites the states. Rows that see nothing of this page get sum 0.
void attend_page(const KvShape& shape, const std::byte* page, int kv_head, std::int64_t page_start,
                 const ScoreRule& rule, std::span<const QueryRow> rows, std::span<AttentionState> states,
                 const PageExtras& extras = {});

// Merges a page's state into a running one (which starts with sum 0); pages in ascending order.
void merge_attention(AttentionState& running, const AttentionState& page, int d_vo);

// out[i] = running.out[i] / running.sum
void finish_attention(const AttentionState& running, float* out, int d_vo);

}  // namespace narrows
