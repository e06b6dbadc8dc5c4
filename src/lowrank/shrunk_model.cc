#include "lowrank/shrunk_model.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "formats/requantize.h"
#include "model/load.h"

namespace narrows {
namespace {

std::unique_ptr<LinearSite> site(std::initializer_list<const StoredMap*> maps) {
  std::vector<Linear> linear;
  for (const StoredMap* map : maps) linear.push_back(map->linear());
  return std::make_unique<DenseSite>(std::move(linear));
}

constexpr std::string_view kRopeDivisors = "rope_freqs.weight";

std::string block(int number) { return "blk." + std::to_string(number) + "."; }

// Tensors that take the place of others.
struct Replacement {
  DType type;
  std::vector<std::int64_t> shape;
  struct Part {
    std::span<const std::byte> bytes;
    std::int64_t spilled_at = -1;  // then the bytes are there
    std::size_t size = 0;
  };
  std::vector<Part> parts;  // one after the other
};

class Replacements {
 public:
  void add(const std::string& name, const StoredMap& map) { add_fused(name, {&map}); }
  // Maps of the same input that are stored as one.
  void add_fused(const std::string& name, const std::vector<const StoredMap*>& maps) {
    std::int64_t rows = 0;
    for (const StoredMap* map : maps) rows += map->rows;
    if (rows == 0) return;  // not replaced
    Replacement weight{maps[0]->type, {maps[0]->columns, rows}, {}}, bias{DType::F32, {rows}, {}};
    for (const StoredMap* map : maps) {
      weight.parts.push_back({std::span(map->w), map->spilled_at, map->bytes()});
      bias.parts.push_back({std::as_bytes(std::span(map->bias)), -1, 0});
    }
    by_name_[name + ".weight"] = std::move(weight);
    if (!maps[0]->bias.empty()) by_name_[name + ".bias"] = std::move(bias);
  }
  void add_floats(const std::string& name, const AlignedVector<float>& values,
                  std::vector<std::int64_t> shape) {
    by_name_[name] = {DType::F32, std::move(shape), {{std::as_bytes(std::span(values)), -1, 0}}};
  }
  const Replacement* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &found->second;
  }

 private:
  std::map<std::string, Replacement> by_name_;
};

// `heads_kept`: they have their old norms.
Replacements replacements(const GgufFile& in, std::span<const ShrunkLayer> layers, bool heads_kept) {
  Replacements all;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const ShrunkLayer& layer = layers[i];
    const std::string prefix = block(static_cast<int>(i));
    if (in.find_tensor(prefix + "attn_qkv.weight")) {
      all.add_fused(prefix + "attn_qkv", {&layer.q, &layer.k, &layer.v});
    } else {
      all.add(prefix + "attn_q", layer.q);
      all.add(prefix + "attn_k", layer.k);
      all.add(prefix + "attn_v", layer.v);
    }
    all.add(prefix + "attn_output", layer.o);
    if (layer.up.size() > 1 && !in.find_tensor(prefix + "ffn_gate.weight")) {
      all.add_fused(prefix + "ffn_up", {&layer.up.front(), &layer.up.back()});
    } else if (!layer.up.empty()) {
      if (layer.up.size() > 1) all.add(prefix + "ffn_gate", layer.up.front());
      all.add(prefix + "ffn_up", layer.up.back());
    }
    all.add(prefix + "ffn_down", layer.down);
    const auto add_norm = [&](const char* name, const AlignedVector<float>& norm, int heads) {
      if (!norm.empty() && !heads_kept) all.add_floats(prefix + name, norm, {layer.sizes.d_qk, heads});
    };
    add_norm("attn_q_norm.weight", layer.q_norm, layer.sizes.heads);
    add_norm("attn_k_norm.weight", layer.k_norm, layer.sizes.kv_heads);
  }
  return all;
}

// Vectors are F32 in GGUF files; a Hugging Face folder may have others.
DType written_type(const GgufTensor& t) { return t.dims == 1 && can_dequantize(t.dtype) ? DType::F32 : t.dtype; }

GgufEntry integers(std::vector<std::int64_t> values) {
  return {GgufType::Array,
          GgufArray{.element = GgufType::U32, .strings = {}, .integers = std::move(values), .floats = {}}};
}

bool heads_kept(const ModelSpec& before, std::span<const ShrunkLayer> layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerSpec &is = layers[i].sizes, &was = before.layer[i];
    const int pairs = was.rotary < 0 ? 0 : before.rotaries[static_cast<std::size_t>(was.rotary)].pairs;
    if (is.d_qk != was.d_qk || is.d_vo != was.d_vo || std::ssize(layers[i].pairs) != std::int64_t{is.kv_heads} * pairs)
      return false;
  }
  return true;
}

void set_sizes(GgufWriter& writer, const std::string& prefix, std::span<const ShrunkLayer> layers, bool heads_kept, bool portable) {
  const auto set = [&](const char* key, int LayerSpec::*size) {
    std::vector<std::int64_t> values;
    for (const ShrunkLayer& layer : layers) values.push_back(layer.sizes.*size);
    if (std::count(values.begin(), values.end(), values[0]) == std::ssize(values))
      writer.set_u32(prefix + key, static_cast<std::uint32_t>(values[0]));
    else
      writer.set(prefix + key, integers(std::move(values)));
  };
  set("feed_forward_length", &LayerSpec::d_inter);
  if (heads_kept) return;
  set("attention.key_length", &LayerSpec::d_qk);
  set("attention.value_length", &LayerSpec::d_vo);
  if (portable) return;
  std::vector<std::int64_t> counts, pairs;
  for (const ShrunkLayer& layer : layers) {
    counts.push_back(std::ssize(layer.pairs) / layer.sizes.kv_heads);
    pairs.insert(pairs.end(), layer.pairs.begin(), layer.pairs.end());
  }
  if (pairs.empty()) return;
  writer.set(std::string(kPairCountKey), integers(std::move(counts)));
  writer.set(std::string(kPairsKey), integers(std::move(pairs)));
}

// What the rotary frequencies of heads of 2 n dimensions are to be divided by, so that they are these n.
AlignedVector<float> rope_divisors(const GgufFile& in, const std::string& prefix, const ModelSpec& before,
                                   std::span<const int> pairs) {
  const double base = in.find_float(prefix + "rope.freq_base").value_or(10000);
  AlignedVector<float> divisors;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const double own = std::pow(base, -static_cast<double>(i) / static_cast<double>(pairs.size()));
    divisors.push_back(static_cast<float>(own / before.rotaries[0].frequencies[static_cast<std::size_t>(pairs[i])]));
  }
  return divisors;
}

// What set_attention and set_feed_forward do once their part of the layer is stored.
void use_attention(LoadedModel& model, int number, ShrunkLayer& layer) {
  ModelSpec& spec = model.changing_spec();
  const LayerSpec before = spec.layer[static_cast<std::size_t>(number)];
  if (before.rotary >= 0) {
    const Rotary& old = spec.rotaries[static_cast<std::size_t>(before.rotary)];
    const int base = old.base < 0 ? before.rotary : old.base;
    Rotary rotary{old.layout, {}, {}, static_cast<int>(layer.pairs.size()) / layer.sizes.kv_heads, old.magnitude, base,
                  layer.pairs};
    for (const int pair : layer.pairs)
      rotary.frequencies.push_back(
          spec.rotaries[static_cast<std::size_t>(base)].frequencies[static_cast<std::size_t>(pair)]);
    layer.sizes.rotary = rotary.pairs > 0 ? static_cast<int>(spec.rotaries.size()) : -1;
    if (rotary.pairs > 0) spec.rotaries.push_back(std::move(rotary));
  }
  spec.layer[static_cast<std::size_t>(number)] = layer.sizes;
  LayerWeights& weights = model.weights().layer[static_cast<std::size_t>(number)];
  weights.qkv = site({&layer.q, &layer.k, &layer.v});
  weights.o = site({&layer.o});
  if (layer.q_norm.empty()) return;
  weights.q_norm.weight = layer.q_norm.data();
  weights.k_norm.weight = layer.k_norm.data();
  weights.q_norm_by_head = weights.k_norm_by_head = true;
}

void use_feed_forward(LoadedModel& model, int number, ShrunkLayer& layer) {
  std::vector<Linear> up;
  for (const StoredMap& map : layer.up) up.push_back(map.linear());
  model.changing_spec().layer[static_cast<std::size_t>(number)].d_inter = layer.sizes.d_inter;
  LayerWeights& weights = model.weights().layer[static_cast<std::size_t>(number)];
  weights.up = std::make_unique<DenseSite>(std::move(up));
  weights.down = site({&layer.down});
}

}  // namespace

void set_attention(LoadedModel& model, int number, const AttentionMaps& maps, DType type,
                   ShrunkLayer& layer) {
  const std::string name = model.path() + ": " + block(number);
  layer.sizes = maps.sizes;
  layer.pairs = maps.pairs;
  layer.q = store(maps.q, type, name + "attn_q");
  layer.k = store(maps.k, type, name + "attn_k");
  layer.v = store(maps.v, type, name + "attn_v");
  layer.o = store(maps.o, type, name + "attn_output");
  layer.q_norm.assign(maps.q_norm.begin(), maps.q_norm.end());
  layer.k_norm.assign(maps.k_norm.begin(), maps.k_norm.end());
  use_attention(model, number, layer);
}

void set_output(LoadedModel& model, int number, const MapValues& o, DType type, ShrunkLayer& layer) {
  layer.o = store(o, type, model.path() + ": " + block(number) + "attn_output");
  model.weights().layer[static_cast<std::size_t>(number)].o = site({&layer.o});
}

void set_feed_forward(LoadedModel& model, int number, const FeedForwardMaps& maps, DType type,
                      ShrunkLayer& layer) {
  const std::string name = model.path() + ": " + block(number);
  layer.up.clear();
  for (const MapValues& map : maps.up)
    layer.up.push_back(
        store(map, type, name + (maps.up.size() > 1 && layer.up.empty() ? "ffn_gate" : "ffn_up")));
  layer.down = store(maps.down, type, name + "ffn_down");
  layer.sizes.d_inter = static_cast<int>(maps.down.columns);
  use_feed_forward(model, number, layer);
}

void run_with(LoadedModel& model, int number, ShrunkLayer& layer) {
  use_attention(model, number, layer);
  use_feed_forward(model, number, layer);
}

void spill(LoadedModel& model, int number, ShrunkLayer& layer, SpillFile& file) {
  for (StoredMap* map : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.down}) map->spill(file);
  for (StoredMap& map : layer.up) map.spill(file);
  LayerWeights& weights = model.weights().layer[static_cast<std::size_t>(number)];
  for (auto* site : {&weights.qkv, &weights.o, &weights.up, &weights.down}) site->reset();
}

void write_shrunk_model(const GgufFile& in, std::span<const ShrunkLayer> layers, DType type,
                        const std::string& path, const std::string& architecture, const SpillFile* spilled) {
  GgufWriter writer = rewriter(in, type, architecture);
  const std::string own = in.get_string("general.architecture") + ".",
                    prefix = architecture.empty() ? own : architecture + ".";
  const ModelSpec before = load_spec(in);
  const bool portable = !architecture.empty(), kept = heads_kept(before, layers) && !in.has(kPairCountKey);
  Replacements new_tensors = replacements(in, layers, kept);
  AlignedVector<float> divisors;
  if (!kept) {
    writer.set_f32(prefix + "attention.scale", layers[0].sizes.score_scale);
    if (portable) {
      writer.set_u32(prefix + "rope.dimension_count", static_cast<std::uint32_t>(layers[0].sizes.d_qk));
      const std::span pairs = std::span(layers[0].pairs).first(layers[0].pairs.size() / static_cast<std::size_t>(layers[0].sizes.kv_heads));
      divisors = rope_divisors(in, own, before, pairs);
      new_tensors.add_floats(std::string(kRopeDivisors), divisors, {std::ssize(divisors)});
    } else if (!before.rotaries.empty() && !in.has(own + "rope.dimension_count")) {
      // What the pairs are counted in: without this key it would be a head's new size.
      writer.set_u32(prefix + "rope.dimension_count", static_cast<std::uint32_t>(2 * before.rotaries[0].pairs));
    }
  }
  set_sizes(writer, prefix, layers, kept, portable);

  for (const GgufTensor& t : in.tensors()) {
    if (const Replacement* r = new_tensors.find(t.name))
      writer.add_tensor(t.name, r->type, r->shape);
    else
      writer.add_tensor(t.name, written_type(t), std::span(t.shape).first(static_cast<std::size_t>(t.dims)));
  }
  if (!divisors.empty() && !in.find_tensor(kRopeDivisors))
    writer.add_tensor(std::string(kRopeDivisors), DType::F32, std::vector<std::int64_t>{std::ssize(divisors)});
  constexpr std::size_t kTogetherBytes = 4 << 20;
  std::vector<std::byte> room;
  writer.write(path, [&](std::size_t i, auto&& sink) {
    if (i == in.tensors().size()) return sink(std::as_bytes(std::span(divisors)));
    const GgufTensor& t = in.tensors()[i];
    if (const Replacement* r = new_tensors.find(t.name)) {
      for (const Replacement::Part& part : r->parts) {
        if (part.spilled_at < 0) sink(part.bytes);
        for (std::size_t done = 0, n; part.spilled_at >= 0 && done < part.size; done += n) {
          n = std::min(kTogetherBytes, part.size - done);
          room.resize(n);
          spilled->read(part.spilled_at + static_cast<std::int64_t>(done), room);
          sink(room);
        }
      }
      return;
    }
    if (written_type(t) != t.dtype) {
      std::vector<float> values(static_cast<std::size_t>(t.elements()));
      t.dequantize_to(values.data());
      return sink(std::as_bytes(std::span(values)));
    }
    constexpr std::int64_t kTogether = 1024;  // rows, where they are made
    const std::int64_t step = t.data ? t.rows() : kTogether;
    const std::size_t row = row_bytes(t.dtype, t.shape[0]);
    for (std::int64_t first = 0; first < t.rows(); first += step) {
      const std::int64_t count = std::min(step, t.rows() - first);
      sink(std::span(t.rows(first, count, room), static_cast<std::size_t>(count) * row));
    }
  });
}

}  // namespace narrows
