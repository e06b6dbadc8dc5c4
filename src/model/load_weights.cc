#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/progress.h"
#include "model/load.h"

namespace narrows {
namespace {

// Bytes that a file may place anywhere, where the kernels want floats on their boundaries.
bool is_aligned(const std::byte* data) { return reinterpret_cast<std::uintptr_t>(data) % alignof(float) == 0; }

class Loader {
 public:
  Loader(const GgufFile& file, Weights& weights) : file_(file), weights_(weights) {}

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  std::int64_t rows(const std::string& name) const {  // 0: there is none
    const GgufTensor* tensor = file_.find_tensor(name);
    return tensor ? tensor->shape[1] : 0;
  }

  // The matrix as it is stored. `parts`: how many of cols × rows lie in the tensor, one after the other, as a third
  // dimension.
  std::vector<WeightMatrix> matrices(const std::string& name, std::int64_t cols, std::int64_t rows, std::int64_t parts) {
    const GgufTensor& tensor = file_.tensor(name);
    if (tensor.shape != std::array<std::int64_t, 4>{cols, rows, parts, 1})
      fail("{}: tensor {}: expected {} × {}{}, found {} × {}{}", file_.path(), name, cols, rows,
           parts > 1 ? fmt::format(" × {}", parts) : "", tensor.shape[0], tensor.shape[1],
           tensor.dims > 2 ? fmt::format(" × {}", tensor.shape[2]) : "");
    if (!can_dequantize(tensor.dtype))
      fail("{}: tensor {}: expected a float or block quantized type, found {}", file_.path(), name,
           dtype_info(tensor.dtype).name);
    const std::byte* data = tensor.data;
    if (!data) {
      LargeBuffer& made = weights_.made.emplace_back(tensor.bytes);
      tensor.make_rows(0, tensor.rows(), made.data());
      data = made.data();
    }
    std::vector<WeightMatrix> all;
    const std::size_t bytes = static_cast<std::size_t>(rows) * row_bytes(tensor.dtype, cols);
    for (std::int64_t i = 0; i < parts; ++i)
      all.push_back({tensor.dtype, rows, cols, data + static_cast<std::size_t>(i) * bytes, nullptr});
    return all;
  }
  WeightMatrix matrix(const std::string& name, std::int64_t cols, std::int64_t rows) {
    return matrices(name, cols, rows, 1).front();
  }

  // A vector of n floats (or `rows` of them), or nullptr if it is absent.
  const float* find_floats(const std::string& name, std::int64_t n, std::int64_t rows = 1) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (!tensor) return nullptr;
    if (tensor->shape[0] != n || tensor->elements() != n * rows)
      fail("{}: tensor {}: expected {}{} elements, found {} × {}", file_.path(), name, n,
           rows > 1 ? fmt::format(" × {}", rows) : "", tensor->shape[0], tensor->elements() / tensor->shape[0]);
    if (tensor->dtype == DType::F32 && tensor->data && is_aligned(tensor->data))
      return reinterpret_cast<const float*>(tensor->data);
    if (!can_dequantize(tensor->dtype))
      fail("{}: tensor {}: expected floats, found {}", file_.path(), name, dtype_info(tensor->dtype).name);
    weights_.floats.push_back(std::make_unique<AlignedVector<float>>(static_cast<std::size_t>(n * rows)));
    tensor->dequantize_to(weights_.floats.back()->data());
    return weights_.floats.back()->data();
  }

  Norm find_norm(const std::string& name, std::int64_t n) {
    Norm norm;
    norm.weight = find_floats(name + ".weight", n);
    norm.bias = find_floats(name + ".bias", n);
    norm.present = norm.weight != nullptr;
    return norm;
  }
  // Of queries or keys: a norm of each head's n elements, with one row of weights for all heads or one for each, or of all
  // heads together.
  Norm find_head_norm(const std::string& name, std::int64_t n, std::int64_t heads, bool& by_head, bool& whole) {
    const GgufTensor* tensor = file_.find_tensor(name + ".weight");
    by_head = tensor && tensor->dims > 1;
    whole = tensor && !by_head && heads > 1 && tensor->shape[0] == n * heads;
    if (whole) return find_norm(name, n * heads);
    if (!by_head) return find_norm(name, n);
    return {find_floats(name + ".weight", n, heads), nullptr, true};
  }
  Norm norm(const std::string& name, std::int64_t n) {
    if (!has(name + ".weight")) fail("{}: tensor {}.weight is missing", file_.path(), name);
    return find_norm(name, n);
  }

  Linear linear(const std::string& name, std::int64_t cols, std::int64_t rows) {
    return {matrix(name + ".weight", cols, rows), find_floats(name + ".bias", rows)};
  }
  // Maps that are stored as one, its rows being theirs in order.
  std::vector<Linear> fused(const std::string& name, std::int64_t cols, std::initializer_list<std::int64_t> rows) {
    std::int64_t total = 0;
    for (const std::int64_t n : rows) total += n;
    const Linear all = linear(name, cols, total);
    std::vector<Linear> maps;
    std::int64_t first = 0;
    for (const std::int64_t n : rows) {
      WeightMatrix part = all.weight;
      part.rows = n;
      part.data += static_cast<std::size_t>(first) * row_bytes(part.dtype, cols);
      maps.push_back({part, all.bias ? all.bias + first : nullptr});
      first += n;
    }
    return maps;
  }

  const std::string& path() const { return file_.path(); }

 private:
  const GgufFile& file_;
  Weights& weights_;
};

// A site that is made once the matrices of all of them are where the kernels want them.
struct Pending {
  std::unique_ptr<LinearSite>* site;
  std::vector<Linear> maps;
};
using PendingSites = std::vector<Pending>;  // in the order in which a token reads them

std::vector<Linear> load_qkv(Loader& loader, const std::string& block, std::int64_t d, std::int64_t q, std::int64_t k,
                             std::int64_t v) {
  if (loader.has(block + "attn_qkv.weight")) return loader.fused(block + "attn_qkv", d, {q, k, v});
  return {loader.linear(block + "attn_q", d, q), loader.linear(block + "attn_k", d, k), loader.linear(block + "attn_v", d, v)};
}

std::vector<Linear> load_up(Loader& loader, const std::string& block, std::int64_t d, std::int64_t inter, bool gated) {
  if (!gated) return {loader.linear(block + "ffn_up", d, inter)};
  if (!loader.has(block + "ffn_gate.weight") && loader.rows(block + "ffn_up.weight") == 2 * inter)
    return loader.fused(block + "ffn_up", d, {inter, inter});
  return {loader.linear(block + "ffn_gate", d, inter), loader.linear(block + "ffn_up", d, inter)};
}

void load_experts(Loader& loader, const std::string& block, std::int64_t d, const LayerSpec& layer, LayerWeights& w,
                  PendingSites& sites) {
  const std::int64_t n = layer.experts, inter = layer.d_inter;
  sites.push_back({&w.router, {loader.linear(block + "ffn_gate_inp", d, n)}});
  const auto gate = loader.matrices(block + "ffn_gate_exps.weight", d, inter, n),
             up = loader.matrices(block + "ffn_up_exps.weight", d, inter, n),
             down = loader.matrices(block + "ffn_down_exps.weight", inter, d, n);
  w.experts.resize(static_cast<std::size_t>(n));
  for (std::size_t e = 0; e < w.experts.size(); ++e) {
    sites.push_back({&w.experts[e].up, {Linear{gate[e]}, Linear{up[e]}}});
    sites.push_back({&w.experts[e].down, {Linear{down[e]}}});
  }
}

void load_layer(Loader& loader, const ModelSpec& spec, int index, LayerWeights& w, PendingSites& sites) {
  const LayerSpec& layer = spec.layer[static_cast<std::size_t>(index)];
  const std::string block = "blk." + std::to_string(index) + ".";
  const std::int64_t d = spec.d, q = std::int64_t{layer.heads} * layer.d_qk,
                     k = std::int64_t{layer.kv_heads} * layer.d_qk, v = std::int64_t{layer.kv_heads} * layer.d_vo,
                     o = std::int64_t{layer.heads} * layer.d_vo;
  bool q_whole = false, k_whole = false;
  w.q_norm = loader.find_head_norm(block + "attn_q_norm", layer.d_qk, layer.heads, w.q_norm_by_head, q_whole);
  w.k_norm = loader.find_head_norm(block + "attn_k_norm", layer.d_qk, layer.kv_heads, w.k_norm_by_head, k_whole);
  w.qk_norm_whole = q_whole || k_whole;
  if (w.qk_norm_whole && ((!q_whole && layer.heads > 1) || (!k_whole && layer.kv_heads > 1)))
    fail("{}: tensors {}attn_q_norm and attn_k_norm: expected both for whole rows, or both for heads", loader.path(), block);
  if (spec.pre_norm) {
    w.attention_norm = loader.norm(block + "attn_norm", d);
    w.attention_post_norm = loader.find_norm(block + "post_attention_norm", d);
    // A parallel block may read one norm; Falcon 40B calls the second that of the attention.
    if (spec.parallel_block && loader.has(block + "attn_norm_2.weight")) {
      w.ffn_norm = w.attention_norm;
      w.attention_norm = loader.norm(block + "attn_norm_2", d);
    } else {
      w.ffn_norm = spec.parallel_block ? loader.find_norm(block + "ffn_norm", d) : loader.norm(block + "ffn_norm", d);
    }
    w.ffn_post_norm = loader.find_norm(block + "post_ffw_norm", d);
  } else {
    w.attention_post_norm = loader.norm(block + "post_attention_norm", d);
    w.ffn_post_norm = loader.norm(block + "post_ffw_norm", d);
  }
  sites.push_back({&w.qkv, load_qkv(loader, block, d, q, k, v)});
  sites.push_back({&w.o, {loader.linear(block + "attn_output", o, d)}});
  if (layer.experts > 0) {
    load_experts(loader, block, d, layer, w, sites);
    return;
  }
  sites.push_back({&w.up, load_up(loader, block, d, layer.d_inter, spec.gated)});
  sites.push_back({&w.down, {loader.linear(block + "ffn_down", layer.d_inter, d)}});
}

constexpr std::int64_t kSliceBytes = 16 << 20;

// Lays the matrices of block types out for the kernels, tile by tile on all threads: one buffer, in the order in which
// a token reads them.
LargeBuffer repack(PendingSites& sites, ThreadPool& pool) {
  std::vector<WeightMatrix*> matrices;
  std::int64_t total = 0, done = 0;
  std::size_t bytes = 0;
  for (Pending& site : sites)
    for (Linear& map : site.maps) {
      WeightMatrix& w = map.weight;
      if (!is_packed_type(w.dtype)) continue;
      matrices.push_back(&w);
      total += w.tiles();
      bytes += static_cast<std::size_t>(w.tiles()) * packed_tile_bytes(w.dtype, w.cols);
    }
  LargeBuffer buffer(bytes);
  std::byte* to = buffer.data();
  Progress progress("Repacking weights", total);
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (WeightMatrix* matrix : matrices) {
    WeightMatrix& w = *matrix;
    const std::size_t tile_bytes = packed_tile_bytes(w.dtype, w.cols), row = row_bytes(w.dtype, w.cols);
    w.packed = to;
    const std::int64_t step = std::max<std::int64_t>(kSliceBytes / static_cast<std::int64_t>(tile_bytes), 1);
    for (std::int64_t first = 0; first < w.tiles(); first += step) {
      const std::int64_t end = std::min(first + step, w.tiles());
      pool.share(end - first, 1, [&](int, Range range) {
        for (std::int64_t t = first + range.begin; t < first + range.end; ++t)
          pack_tile(w, t, to + static_cast<std::size_t>(t) * tile_bytes);
      });
      done += end - first;
      progress.update(done);
      // The file's pages are not needed again: without this the weights would count twice.
      const auto at = reinterpret_cast<std::uintptr_t>(w.data);
      const auto from = (at + static_cast<std::size_t>(first * kTileRows) * row + page - 1) / page * page;
      const auto until = (at + static_cast<std::size_t>(std::min(end * kTileRows, w.rows)) * row) / page * page;
      if (from < until) ::madvise(reinterpret_cast<void*>(from), until - from, MADV_DONTNEED);
    }
    to += static_cast<std::size_t>(w.tiles()) * tile_bytes;
  }
  return buffer;
}

}  // namespace

Weights load_weights(const GgufFile& file, ModelSpec& spec, bool repack_weights, ThreadPool& pool) {
  Weights weights;
  Loader loader(file, weights);
  const std::int64_t width = spec.embedding_width;
  spec.vocab = file.tensor("token_embd.weight").shape[1];
  weights.embedding = loader.matrix("token_embd.weight", width, spec.vocab);
  weights.embedding_norm = loader.find_norm("token_embd_norm", spec.d);
  if (spec.positions == Positions::Learned)
    weights.position_embedding = loader.matrix("position_embd.weight", spec.d, spec.trained_context);
  // A model whose blocks end with a norm may do without a last one.
  weights.output_norm = spec.post_block_norm ? loader.find_norm("output_norm", spec.d) : loader.norm("output_norm", spec.d);
  weights.experts_used = spec.experts_used;

  PendingSites sites;
  if (width != spec.d) sites.push_back({&weights.embedding_map, {loader.linear("token_embd_in", width, spec.d)}});
  weights.layer.resize(static_cast<std::size_t>(spec.layers));
  for (int i = 0; i < spec.layers; ++i)
    load_layer(loader, spec, i, weights.layer[static_cast<std::size_t>(i)], sites);
  if (width != spec.d) sites.push_back({&weights.output_map, {loader.linear("output_proj", spec.d, width)}});
  spec.tied_head = !loader.has("output.weight");
  if (spec.tied_head)
    sites.push_back({&weights.head, {Linear{weights.embedding, nullptr}}});
  else
    sites.push_back({&weights.head, {loader.linear("output", width, spec.vocab)}});

  if (repack_weights) weights.packed = repack(sites, pool);
  for (Pending& site : sites) *site.site = std::make_unique<DenseSite>(std::move(site.maps));
  return weights;
}

namespace {

void release_pages(const GgufFile& file, const WeightMatrix& w) {
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)),
                    bytes = static_cast<std::size_t>(w.rows) * row_bytes(w.dtype, w.cols);
  for (const MappedFile& part : file.parts()) {
    if (w.data < part.bytes().data() || w.data + bytes > part.bytes().data() + part.bytes().size()) continue;
    const auto at = reinterpret_cast<std::uintptr_t>(w.data);
    const auto from = (at + page - 1) / page * page, until = (at + bytes) / page * page;
    if (from < until) ::madvise(reinterpret_cast<void*>(from), until - from, MADV_DONTNEED);
  }
}

}  // namespace

std::vector<WeightMatrix> layer_matrices(const LayerWeights& layer) {
  std::vector<WeightMatrix> all;
  const auto add = [&](const std::unique_ptr<LinearSite>& site) {
    if (!site) return;
    for (const Linear& map : site->maps()) all.push_back(map.weight);
  };
  for (const auto* site : {&layer.qkv, &layer.o, &layer.up, &layer.down}) add(*site);
  for (const Expert& expert : layer.experts) {
    add(expert.up);
    add(expert.down);
  }
  return all;
}

void release_pages(const GgufFile& file, std::span<const WeightMatrix> matrices) {
  for (const WeightMatrix& w : matrices) release_pages(file, w);
}

std::vector<NamedSite> Weights::sites() {
  std::vector<NamedSite> all;
  for (std::size_t i = 0; i < layer.size(); ++i) {
    LayerWeights& w = layer[i];
    const auto add = [&](SiteKind kind, std::unique_ptr<LinearSite>& site, const std::string& after = {}) {
      const std::string_view name = kSiteKindNames[static_cast<std::size_t>(kind)];
      all.push_back({fmt::format("blk.{}.{}{}", i, name, after), kind, static_cast<int>(i), &site});
    };
    add(SiteKind::Qkv, w.qkv);
    add(SiteKind::Output, w.o);
    for (std::size_t e = 0; e < w.experts.size(); ++e) {
      add(SiteKind::GateUp, w.experts[e].up, fmt::format(".{}", e));
      add(SiteKind::Down, w.experts[e].down, fmt::format(".{}", e));
    }
    if (!w.experts.empty()) continue;
    add(SiteKind::GateUp, w.up);
    add(SiteKind::Down, w.down);
  }
  all.push_back({"head", SiteKind::Head, -1, &head});
  return all;
}

std::size_t Weights::bytes_per_token() const {
  std::size_t bytes = head->bytes_read() + row_bytes(embedding.dtype, embedding.cols);
  for (const auto* map : {&embedding_map, &output_map})
    if (*map) bytes += (*map)->bytes_read();
  if (position_embedding.data) bytes += row_bytes(position_embedding.dtype, position_embedding.cols);
  for (const LayerWeights& w : layer) {
    bytes += w.qkv->bytes_read() + w.o->bytes_read();
    if (w.experts.empty()) {
      bytes += w.up->bytes_read() + w.down->bytes_read();
      continue;
    }
    std::size_t experts = 0;
    for (const Expert& e : w.experts) experts += e.up->bytes_read() + e.down->bytes_read();
    bytes += w.router->bytes_read() + experts / w.experts.size() * static_cast<std::size_t>(experts_used);
  }
  return bytes;
}

}  // namespace narrows
