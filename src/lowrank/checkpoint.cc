#include "lowrank/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/output_file.h"
#include "formats/fingerprint.h"
#include "kernels/dispatch.h"
#include "narrows/narrows.h"
#include "subspace/linear_algebra.h"

namespace narrows {
namespace {

constexpr std::string_view kMagic = "NRWCKPT\n";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kBegin = kMagic.size() + sizeof(kVersion), kRecordHead = 2 * sizeof(std::uint64_t);

class Writer {
 public:
  template <typename Number>
  void number(Number value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <typename Values>
  void array(const Values& values) {
    number(std::uint64_t{values.size()});
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  }
  void map(const StoredMap& map) {
    number(static_cast<std::uint32_t>(map.type));
    number(map.rows);
    number(map.columns);
    array(map.w);
    array(map.bias);
  }
  std::string record() const {
    Writer head;
    head.number(std::uint64_t{bytes.size()});
    head.number(std::uint64_t{XXH3_64bits(bytes.data(), bytes.size())});
    return head.bytes + bytes;
  }

  std::string bytes;
};

// Takes nothing on trust: what is asked for is there, or an Error says that it is not.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) fail("{} bytes expected, {} found", size, rest_.size());
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  template <typename Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  template <typename Values>
  Values array() {
    const auto size = number<std::uint64_t>();
    if (size > rest_.size() / sizeof(typename Values::value_type))
      fail("{} elements expected, {} bytes found", size, rest_.size());
    Values values;
    values.resize(static_cast<std::size_t>(size));
    const std::string_view bytes = take(size * sizeof(typename Values::value_type));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values.data()));
    return values;
  }
  StoredMap map() {
    StoredMap map;
    map.type = static_cast<DType>(number<std::uint32_t>());
    map.rows = number<std::int64_t>();
    map.columns = number<std::int64_t>();
    map.w = array<AlignedVector<std::byte>>();
    map.bias = array<AlignedVector<float>>();
    return map;
  }
  // The bytes of a record; none if it is incomplete or damaged.
  std::optional<std::string_view> record() {
    if (rest_.size() < kRecordHead) return {};
    const auto size = number<std::uint64_t>(), checksum = number<std::uint64_t>();
    if (size > rest_.size()) return {};
    const std::string_view bytes = take(size);
    if (XXH3_64bits(bytes.data(), bytes.size()) != checksum) return {};
    return bytes;
  }
  void expect_end() const {
    if (!rest_.empty()) fail("{} bytes too many", rest_.size());
  }

 private:
  std::string_view rest_;
};

std::string header_record(const RunSettings& settings, const std::vector<CompressedLayer>& ranks) {
  Writer header;
  header.number(std::uint64_t{settings.size()});
  for (const auto& [name, value] : settings) {
    header.array(name);
    header.array(value);
  }
  header.number(std::uint64_t{ranks.size()});
  for (const CompressedLayer& l : ranks)
    for (const int rank : {l.d_qk, l.d_vo, l.d_inter}) header.number(std::int32_t{rank});
  return header.record();
}

// Throws Error where settings differ.
std::vector<CompressedLayer> read_header(std::string_view bytes, const RunSettings& settings) {
  Reader header(bytes);
  if (const auto count = header.number<std::uint64_t>(); count != settings.size())
    fail("{} settings expected, {} found", settings.size(), count);
  for (const auto& [name, value] : settings) {
    const auto found_name = header.array<std::string>(), found = header.array<std::string>();
    if (found_name != name) fail("the setting {} expected, another found", name);
    if (found == value) continue;
    constexpr std::size_t kShort = 31;  // fingerprints say nothing
    if (found.size() > kShort || value.size() > kShort) fail("of a run with another {}", name);
    fail("of a run with another {}: {}, now {}", name, found, value);
  }
  std::vector<CompressedLayer> ranks;
  for (auto rest = header.number<std::uint64_t>(); rest > 0; --rest) {
    const auto d_qk = header.number<std::int32_t>(), d_vo = header.number<std::int32_t>(),
               d_inter = header.number<std::int32_t>();
    ranks.push_back({d_qk, d_vo, d_inter, 0, 0, 0, 0});
  }
  header.expect_end();
  return ranks;
}

std::string layer_record(std::int64_t number, const ShrunkLayer& maps, const CompressedLayer& report,
                         std::int64_t raised) {
  Writer layer;
  layer.number(number);
  for (const int rank : {report.d_qk, report.d_vo, report.d_inter}) layer.number(std::int32_t{rank});
  for (const double loss : {report.qk_loss, report.ov_loss, report.mlp_loss, report.stream_error})
    layer.number(loss);
  layer.number(raised);
  layer.number(maps.sizes.score_scale);
  layer.array(maps.pairs);
  for (const StoredMap* map : {&maps.q, &maps.k, &maps.v, &maps.o, &maps.down}) layer.map(*map);
  layer.number(std::uint64_t{maps.up.size()});
  for (const StoredMap& map : maps.up) layer.map(map);
  layer.array(maps.q_norm);
  layer.array(maps.k_norm);
  return layer.record();
}

FinishedLayer read_layer(std::string_view bytes, std::size_t number) {
  Reader layer(bytes);
  if (const auto found = layer.number<std::uint64_t>(); found != number)
    fail("layer {} expected, layer {} found", number, found);
  FinishedLayer finished;
  CompressedLayer& report = finished.report;
  for (int* rank : {&report.d_qk, &report.d_vo, &report.d_inter}) *rank = layer.number<std::int32_t>();
  for (double* loss : {&report.qk_loss, &report.ov_loss, &report.mlp_loss, &report.stream_error})
    *loss = layer.number<double>();
  finished.raised = layer.number<std::int64_t>();
  ShrunkLayer& maps = finished.maps;
  maps.sizes.score_scale = layer.number<float>();
  maps.pairs = layer.array<std::vector<int>>();
  for (StoredMap* map : {&maps.q, &maps.k, &maps.v, &maps.o, &maps.down}) *map = layer.map();
  for (auto rest = layer.number<std::uint64_t>(); rest > 0; --rest) maps.up.push_back(layer.map());
  maps.q_norm = layer.array<AlignedVector<float>>();
  maps.k_norm = layer.array<AlignedVector<float>>();
  layer.expect_end();
  return finished;
}

void check_map(const char* name, const StoredMap& map, const Linear& dense, std::int64_t rows,
               std::int64_t columns, DType type) {
  if (map.rows != rows || map.columns != columns)
    fail("{}: {} × {} weights expected, {} × {} found", name, rows, columns, map.rows, map.columns);
  if (columns % dtype_info(type).block_size != 0) type = DType::F16;
  if (map.type != type) fail("{}: {} expected", name, dtype_info(type).name);
  if (map.w.size() != static_cast<std::size_t>(rows) * row_bytes(type, columns))
    fail("{}: {} bytes of weights expected, {} found", name,
         static_cast<std::size_t>(rows) * row_bytes(type, columns), map.w.size());
  if (const std::size_t biases = dense.bias ? static_cast<std::size_t>(rows) : 0; map.bias.size() != biases)
    fail("{}: {} biases expected, {} found", name, biases, map.bias.size());
}

void check_pairs(const std::vector<int>& pairs, const ModelSpec& spec, const LayerSpec& sizes) {
  int most = 0;
  if (sizes.rotary >= 0) {
    const Rotary& own = spec.rotaries[static_cast<std::size_t>(sizes.rotary)];
    most = (own.base < 0 ? own : spec.rotaries[static_cast<std::size_t>(own.base)]).pairs;
  }
  const std::size_t heads = static_cast<std::size_t>(sizes.kv_heads), each = pairs.size() / heads;
  if (pairs.size() % heads != 0 || 2 * each > static_cast<std::size_t>(sizes.d_qk))
    fail("rotary pairs: at most {} for each of {} heads expected, {} found", sizes.d_qk / 2, heads,
         pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i)
    if (pairs[i] < 0 || pairs[i] >= most || (i % each != 0 && pairs[i] <= pairs[i - 1]))
      fail("rotary pairs: numbers below {}, ascending, expected, {} found", most, pairs[i]);
}

template <typename T>
void append_values(std::string& to, const std::vector<T>& values) {
  for (const T& v : values) to += fmt::format("{} ", v);
}

std::string value_text(const GgufValue& value) {
  if (const auto* array = std::get_if<GgufArray>(&value)) {
    std::string text;
    append_values(text, array->strings);
    append_values(text, array->integers);
    append_values(text, array->floats);
    return text;
  }
  return std::visit([](const auto& v) -> std::string {
    if constexpr (std::is_same_v<std::decay_t<decltype(v)>, GgufArray>) return {};
    else return fmt::format("{}", v);
  }, value);
}

// What load_spec and the tokenizer read: the beginning of the (first) file, up to about where its tensors
// begin.
std::string metadata_fingerprint(const GgufFile& file) {
  if (file.version() == 0) {  // of a Hugging Face folder: what its files came to
    std::string all;
    for (const auto& [key, entry] : file.metadata()) all += key + "=" + value_text(entry.value) + "\n";
    return fingerprint(all);
  }
  std::size_t tensors = 0;
  for (const GgufTensor& t : file.tensors()) tensors += t.bytes;
  std::string head(file.file_bytes() - std::min(tensors, file.file_bytes()), '\0');
  std::ifstream in(file.path(), std::ios::binary);
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  return fingerprint(head);
}

}  // namespace

RunSettings run_settings(const LoadedModel& model, std::string_view text, const CompressOptions& options) {
  // All fields: a new one does not compile until it has been thought of here.
  const auto& [qk, ov, mlp, allocation, ranks, portable, heads, type, neurons, refit, correct, output_ridge, window,
               max_tokens, threads, progress, resume, kept] = options;
  std::string given;
  for (const CompressedLayer& l : ranks) given += fmt::format("{}/{}/{} ", l.d_qk, l.d_vo, l.d_inter);
  return {{"version of narrows", NARROWS_VERSION},
          {"processor", dispatch_target() + " and " + linear_algebra_core()},  // bits are the same within one
          {"model", fingerprint(model.file()) + metadata_fingerprint(model.file())},
          {"text", fingerprint(text)},
          {"--type", std::string(dtype_info(type).name)},
          {"--ranks", given.empty() ? "none" : fingerprint(given)},
          {"--allocate", allocation == RankAllocation::Mixed ? "mixed" : "uniform"},
          {"choice of --portable", portable ? "yes" : "no"},
          {"share of query and key dimensions", fmt::format("{}", qk)},
          {"share of value dimensions", fmt::format("{}", ov)},
          {"share of neurons", fmt::format("{}", mlp)},
          {"share of portable heads", fmt::format("{}", heads)},
          {"--neurons", kNeuronChoices[static_cast<int>(neurons)]},
          {"--refit", refit ? fmt::format("{}", *refit) : "off"},
          {"choice of --no-correction", correct ? "no" : "yes"},
          {"--output-ridge", fmt::format("{}", output_ridge)},
          {"--ctx-size", fmt::format("{}", window)},
          {"--max-tokens", fmt::format("{}", max_tokens)}};
}

std::string goes_on(std::int64_t finished, std::int64_t layers) {
  return finished < layers
             ? fmt::format("the same command goes on from layer {}", finished)
             : fmt::format("the same command writes the file of the {} finished layers", layers);
}

void check_finished(LoadedModel& model, int number, const CompressedLayer& ranks, DType type,
                    FinishedLayer& layer) {
  const auto at = static_cast<std::size_t>(number);
  const LayerWeights& dense = model.weights().layer[at];
  ShrunkLayer& maps = layer.maps;
  const CompressedLayer& r = layer.report;
  if (r.d_qk != ranks.d_qk || r.d_vo != ranks.d_vo || r.d_inter != ranks.d_inter)
    fail("ranks {}, {} and {} expected, {}, {} and {} found", ranks.d_qk, ranks.d_vo, ranks.d_inter, r.d_qk,
         r.d_vo, r.d_inter);
  constexpr std::int64_t kMostRaised = std::int64_t{1} << 40;
  if (layer.raised < 0 || layer.raised > kMostRaised)
    fail("a number of eigenvalues expected, {} found", layer.raised);
  const float score_scale = maps.sizes.score_scale;
  if (!(score_scale > 0 && std::isfinite(score_scale))) fail("a scale of scores expected, {} found", score_scale);
  maps.sizes = model.spec().layer[at];
  maps.sizes.score_scale = score_scale;
  maps.sizes.d_qk = ranks.d_qk;
  maps.sizes.d_vo = ranks.d_vo;
  maps.sizes.d_inter = ranks.d_inter;
  const LayerSpec& s = maps.sizes;
  check_pairs(maps.pairs, model.spec(), s);

  const std::int64_t d = dense.qkv->in(), heads = s.heads, kv_heads = s.kv_heads;
  const std::vector<Linear>&qkv = dense.qkv->maps(), &up = dense.up->maps();
  check_map("attn_q", maps.q, qkv[0], heads * s.d_qk, d, type);
  check_map("attn_k", maps.k, qkv[1], kv_heads * s.d_qk, d, type);
  check_map("attn_v", maps.v, qkv[2], kv_heads * s.d_vo, d, type);
  check_map("attn_output", maps.o, dense.o->maps()[0], d, heads * s.d_vo, type);
  if (maps.up.size() != up.size()) fail("{} maps to neurons expected, {} found", up.size(), maps.up.size());
  for (std::size_t i = 0; i < up.size(); ++i) check_map("ffn_up", maps.up[i], up[i], s.d_inter, d, type);
  check_map("ffn_down", maps.down, dense.down->maps()[0], d, s.d_inter, type);
  const auto check_norm = [](const AlignedVector<float>& norm, bool present, std::int64_t size) {
    const std::size_t expected = present ? static_cast<std::size_t>(size) : 0;
    if (norm.size() != expected) fail("norms of {} weights expected, {} found", expected, norm.size());
  };
  check_norm(maps.q_norm, dense.q_norm.present, heads * s.d_qk);
  check_norm(maps.k_norm, dense.k_norm.present, kv_heads * s.d_qk);
}

Checkpoint::Checkpoint(std::string path, RunSettings settings)
    : path_(std::move(path)), settings_(std::move(settings)) {
  if (!open()) return;
  try {
    read();
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

Checkpoint::~Checkpoint() {
  if (fd_ >= 0) ::close(fd_);
}

bool Checkpoint::open() {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0 && errno == ENOENT) return false;
  if (fd_ < 0) fail("{}: cannot open: {}", path_, std::strerror(errno));
  // A file system that knows no locks does without.
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
  ::close(fd_);
  fd_ = -1;
  fail("{}: in use by another run", path_);
}

void Checkpoint::read() {
  const MappedFile file(path_);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (bytes.size() < kBegin || !bytes.starts_with(kMagic))
    fail("{}: expected the finished layers of an interrupted narrows compress --resume, found another file",
         path_);
  Reader begin(bytes.substr(kMagic.size()));
  if (const auto version = begin.number<std::uint32_t>(); version != kVersion)
    fail("{}: of version {}, expected {}: remove it to start anew", path_, version, kVersion);
  Reader records(bytes.substr(kBegin));
  const std::optional<std::string_view> header = records.record();
  if (!header) fail("{}: damaged at its beginning: remove it to start anew", path_);
  try {
    ranks_ = read_header(*header, settings_);
    const auto end_of = [&](std::string_view record) {
      return static_cast<std::size_t>(record.data() + record.size() - bytes.data());
    };
    end_ = end_of(*header);
    while (const std::optional<std::string_view> record = records.record()) {
      if (layers_.size() == ranks_.size()) fail("{} layers expected, more found", ranks_.size());
      layers_.push_back(read_layer(*record, layers_.size()));
      end_ = end_of(*record);
    }
  } catch (const Error& error) {
    fail("{}: {}; remove it to start anew", path_, error.what());
  }
  count_ = std::ssize(layers_);
}

void Checkpoint::begin(const std::vector<CompressedLayer>& ranks) {
  OutputFile file(path_);
  file.write(kMagic.data(), kMagic.size());
  file.write(&kVersion, sizeof(kVersion));
  const std::string header = header_record(settings_, ranks);
  file.write(header.data(), header.size());
  end_ = file.written();
  file.commit();
  if (!open()) fail("{}: cannot open: {}", path_, std::strerror(ENOENT));
}

void Checkpoint::add(const ShrunkLayer& maps, const CompressedLayer& report, std::int64_t raised) {
  const std::string record = layer_record(count_, maps, report, raised);
  // What an earlier run left incomplete goes first.
  bool good = ::ftruncate(fd_, static_cast<off_t>(end_)) == 0;
  for (std::size_t at = 0; good && at < record.size();) {
    const ssize_t n = ::pwrite(fd_, record.data() + at, record.size() - at, static_cast<off_t>(end_ + at));
    if (n < 0 && errno == EINTR) continue;
    good = n > 0;
    if (good) at += static_cast<std::size_t>(n);
  }
  if (!good || ::fsync(fd_) != 0) {
    const int error = errno;
    [[maybe_unused]] const int cut = ::ftruncate(fd_, static_cast<off_t>(end_));
    fail("{}: cannot write: {}", path_, std::strerror(error));
  }
  end_ += record.size();
  ++count_;
}

void Checkpoint::remove() { ::unlink(path_.c_str()); }

}  // namespace narrows
