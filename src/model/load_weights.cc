#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/progress.h"
#include "model/load.h"

namespace narrows {
namespace {

class Loader {
 public:
  Loader(const GgufFile& file, Weights& weights) : file_(file), weights_(weights) {}

  WeightMatrix matrix(const std::string& name, std::int64_t cols, std::int64_t rows) const {
    const GgufTensor& tensor = file_.tensor(name);
    if (tensor.shape[0] != cols || tensor.shape[1] != rows || tensor.shape[2] != 1 || tensor.shape[3] != 1)
      fail("{}: tensor {}: expected {} × {}, found {} × {}{}", file_.path(), name, cols, rows, tensor.shape[0],
           tensor.shape[1], tensor.dims > 2 ? " × …" : "");
    if (!can_dequantize(tensor.dtype))
      fail("{}: tensor {}: expected a float or block quantized type, found {}", file_.path(), name,
           dtype_info(tensor.dtype).name);
    return {tensor.dtype, rows, cols, tensor.data, nullptr};
  }

  // A vector of n floats, or nullptr if it is absent.
  const float* find_floats(const std::string& name, std::int64_t n, std::int64_t rows = 1) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (!tensor) return nullptr;
    if (tensor->shape[0] != n || tensor->elements() != n * rows)
      fail("{}: tensor {}: expected {}{} elements, found {} × {}", file_.path(), name, n,
           rows > 1 ? " × " + std::to_string(rows) : "", tensor->shape[0], tensor->elements() / tensor->shape[0]);
    if (tensor->dtype == DType::F32) return reinterpret_cast<const float*>(tensor->data);
    if (!can_dequantize(tensor->dtype))
      fail("{}: tensor {}: expected floats, found {}", file_.path(), name, dtype_info(tensor->dtype).name);
    weights_.floats.push_back(std::make_unique<AlignedVector<float>>(static_cast<std::size_t>(n * rows)));
    dequantize(tensor->dtype, tensor->data, weights_.floats.back()->data(), n * rows);
    return weights_.floats.back()->data();
  }

  Norm find_norm(const std::string& name, std::int64_t n) {
    Norm norm;
    norm.weight = find_floats(name + ".weight", n);
    norm.bias = find_floats(name + ".bias", n);
    norm.present = norm.weight != nullptr;
    return norm;
  }
  // A norm of each head's n elements: one row of weights for all heads, or one for each.
  Norm find_head_norm(const std::string& name, std::int64_t n, std::int64_t heads, bool& by_head) {
    const GgufTensor* tensor = file_.find_tensor(name + ".weight");
    by_head = tensor && tensor->dims > 1;
    if (!by_head) return find_norm(name, n);
    return {find_floats(name + ".weight", n, heads), nullptr, true};
  }
  Norm norm(const std::string& name, std::int64_t n) {
    if (!file_.find_tensor(name + ".weight")) fail("{}: tensor {}.weight is missing", file_.path(), name);
    return find_norm(name, n);
  }

  Linear linear(const std::string& name, std::int64_t cols, std::int64_t rows) {
    return {matrix(name + ".weight", cols, rows), find_floats(name + ".bias", rows)};
  }

 private:
  const GgufFile& file_;
  Weights& weights_;
};

void load_layer(Loader& loader, const ModelSpec& spec, int index, LayerWeights& w,
                std::vector<std::vector<Linear>>& sites) {
  const LayerSpec& layer = spec.layer[static_cast<std::size_t>(index)];
  const std::string block = "blk." + std::to_string(index) + ".";
  const std::int64_t d = spec.d, q = std::int64_t{layer.heads} * layer.d_qk,
                     k = std::int64_t{layer.kv_heads} * layer.d_qk, v = std::int64_t{layer.kv_heads} * layer.d_vo,
                     o = std::int64_t{layer.heads} * layer.d_vo, inter = layer.d_inter;
  w.attention_norm = loader.norm(block + "attn_norm", d);
  w.q_norm = loader.find_head_norm(block + "attn_q_norm", layer.d_qk, layer.heads, w.q_norm_by_head);
  w.k_norm = loader.find_head_norm(block + "attn_k_norm", layer.d_qk, layer.kv_heads, w.k_norm_by_head);
  w.attention_post_norm = loader.find_norm(block + "post_attention_norm", d);
  w.ffn_norm = loader.norm(block + "ffn_norm", d);
  w.ffn_post_norm = loader.find_norm(block + "post_ffw_norm", d);
  sites.push_back({loader.linear(block + "attn_q", d, q), loader.linear(block + "attn_k", d, k),
                   loader.linear(block + "attn_v", d, v)});
  sites.push_back({loader.linear(block + "attn_output", o, d)});
  sites.push_back({loader.linear(block + "ffn_gate", d, inter), loader.linear(block + "ffn_up", d, inter)});
  sites.push_back({loader.linear(block + "ffn_down", inter, d)});
}

constexpr std::int64_t kSliceBytes = 16 << 20;

// Lays the matrices of block types out for the kernels, tile by tile on all threads: one buffer, in the order in which
// a token reads them.
LargeBuffer repack(std::vector<std::vector<Linear>>& sites, ThreadPool& pool) {
  std::vector<WeightMatrix*> matrices;
  std::int64_t total = 0, done = 0;
  std::size_t bytes = 0;
  for (auto& site : sites)
    for (Linear& map : site) {
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
  spec.vocab = file.tensor("token_embd.weight").shape[1];
  weights.embedding = loader.matrix("token_embd.weight", spec.d, spec.vocab);
  weights.output_norm = loader.norm("output_norm", spec.d);

  std::vector<std::vector<Linear>> sites;  // four a layer, then the head
  for (int i = 0; i < spec.layers; ++i) load_layer(loader, spec, i, weights.layer.emplace_back(), sites);
  spec.tied_head = !file.find_tensor("output.weight");
  if (spec.tied_head)
    sites.push_back({Linear{weights.embedding, nullptr}});
  else
    sites.push_back({loader.linear("output", spec.d, spec.vocab)});

  if (repack_weights) weights.packed = repack(sites, pool);
  auto site = sites.begin();
  const auto next = [&] { return std::make_unique<DenseSite>(std::move(*site++)); };
  for (LayerWeights& layer : weights.layer) {
    layer.qkv = next();
    layer.o = next();
    layer.up = next();
    layer.down = next();
  }
  weights.head = next();
  return weights;
}

std::vector<NamedSite> Weights::sites() {
  std::vector<NamedSite> all;
  for (std::size_t i = 0; i < layer.size(); ++i) {
    LayerWeights& w = layer[i];
    const auto add = [&](SiteKind kind, std::unique_ptr<LinearSite>& site) {
      const std::string_view name = kSiteKindNames[static_cast<std::size_t>(kind)];
      all.push_back({"blk." + std::to_string(i) + "." + std::string(name), kind, static_cast<int>(i), &site});
    };
    add(SiteKind::Qkv, w.qkv);
    add(SiteKind::Output, w.o);
    add(SiteKind::GateUp, w.up);
    add(SiteKind::Down, w.down);
  }
  all.push_back({"head", SiteKind::Head, -1, &head});
  return all;
}

std::size_t Weights::bytes_per_token() const {
  std::size_t bytes = head->bytes_read() + row_bytes(embedding.dtype, embedding.cols);
  for (const LayerWeights& w : layer)
    bytes += w.qkv->bytes_read() + w.o->bytes_read() + w.up->bytes_read() + w.down->bytes_read();
  return bytes;
}

}  // namespace narrows
