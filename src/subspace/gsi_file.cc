#include "subspace/gsi_file.h"

#include <algorithm>

#include "base/error.h"
#include "formats/fingerprint.h"
#include "kernels/projection.h"

namespace narrows {
namespace {

constexpr char kPrefix[] = "narrows.gsi.";
std::string key(const char* name) { return std::string(kPrefix) + name; }

WeightMatrix matrix(const GgufFile& file, const std::string& name, std::int64_t cols) {
  const GgufTensor& tensor = file.tensor(name);
  if (tensor.dims != 2 || (cols > 0 && tensor.shape[0] != cols))
    fail("{}: tensor {}: expected a matrix of {} columns, found {} × {}", file.path(), name, cols, tensor.shape[0],
         tensor.shape[1]);
  if (!can_project(tensor.dtype))
    fail("{}: tensor {}: expected F32, F16, BF16 or Q8_0, found {}", file.path(), name, dtype_info(tensor.dtype).name);
  return {tensor.dtype, tensor.shape[1], tensor.shape[0], tensor.data, nullptr};
}

}  // namespace

std::size_t GsiSite::bytes() const {
  std::size_t total = static_cast<std::size_t>(basis.rows) * row_bytes(basis.dtype, basis.cols);
  for (const WeightMatrix& m : images) total += static_cast<std::size_t>(m.rows) * row_bytes(m.dtype, m.cols);
  return total;
}

GsiFile GsiFile::open(const std::string& path) {
  GsiFile result(GgufFile::open(path));
  const GgufFile& file = result.file_;
  if (file.find_string("general.type").value_or("") != "gsi" || !file.has(key("version")))
    fail("{}: not a file of bases: expected one that `narrows calibrate` wrote", path);
  if (const std::int64_t version = file.get_int(key("version")); version != kGsiVersion)
    fail("{}: {}: expected {}, found {}: calibrate again", path, key("version"), kGsiVersion, version);
  GsiSettings& s = result.settings_;
  s.model = file.get_string(key("model"));
  s.model_name = file.get_string(key("model_name"));
  s.text = file.get_string(key("text"));
  s.tokens = file.get_int(key("tokens"));
  s.window = file.get_int(key("window"));
  s.method = file.get_string(key("method"));
  s.tolerance = file.get_float(key("tolerance"));
  s.epsilon = static_cast<float>(file.get_float(key("epsilon")));

  const GgufArray& names = file.get_array(key("sites"));
  const GgufArray& energies = file.get_array(key("energies"));
  if (names.strings.empty() || names.strings.size() != energies.floats.size())
    fail("{}: {}: expected a name and an energy for each site, found {} and {}", path, key("sites"),
         names.strings.size(), energies.floats.size());
  for (std::size_t i = 0; i < names.strings.size(); ++i) {
    GsiSite& site = result.sites_.emplace_back();
    site.name = names.strings[i];
    site.total_energy = energies.floats[i];
    site.basis = matrix(file, site.name + ".basis", 0);
    for (int map = 0; file.find_tensor(site.name + ".image." + std::to_string(map)); ++map)
      site.images.push_back(matrix(file, site.name + ".image." + std::to_string(map), site.basis.rows));
    const GgufTensor& energy = file.tensor(site.name + ".energy");
    if (energy.dtype != DType::F32 || energy.elements() != site.basis.rows)
      fail("{}: tensor {}: expected {} F32 elements", path, energy.name, site.basis.rows);
    const float* values = reinterpret_cast<const float*>(energy.data);
    site.energies.assign(values, values + site.basis.rows);
  }
  return result;
}

const GsiSite* GsiFile::find(std::string_view name) const {
  const auto at = std::find_if(sites_.begin(), sites_.end(), [&](const GsiSite& s) { return s.name == name; });
  return at == sites_.end() ? nullptr : &*at;
}

void GsiFile::check_model(const LoadedModel& model) const {
  if (fingerprint(model.file()) != settings_.model)
    fail("{}: made for {}, whose weights are not those of {}: calibrate on this model", path(), settings_.model_name,
         model.path());
}

void write_gsi(const std::string& path, const GsiSettings& s, const std::vector<NewGsiSite>& sites) {
  GgufWriter writer(64);
  writer.set_string("general.architecture", "gsi");
  writer.set_string("general.type", "gsi");
  writer.set_string("general.name", "bases of " + s.model_name);
  writer.set_u32(key("version"), static_cast<std::uint32_t>(kGsiVersion));
  writer.set_string(key("model"), s.model);
  writer.set_string(key("model_name"), s.model_name);
  writer.set_string(key("text"), s.text);
  writer.set(key("tokens"), {GgufType::U64, static_cast<std::uint64_t>(s.tokens)});
  writer.set(key("window"), {GgufType::U64, static_cast<std::uint64_t>(s.window)});
  writer.set_string(key("method"), s.method);
  writer.set(key("tolerance"), {GgufType::F64, s.tolerance});
  writer.set_f32(key("epsilon"), s.epsilon);
  GgufArray names, energies;
  names.element = GgufType::String;
  energies.element = GgufType::F64;
  for (const NewGsiSite& site : sites) {
    names.strings.push_back(site.name);
    energies.floats.push_back(site.total_energy);
  }
  writer.set(key("sites"), {GgufType::Array, names});
  writer.set(key("energies"), {GgufType::Array, energies});

  std::vector<std::span<const std::byte>> data;
  const auto add = [&](const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                       std::span<const std::byte> bytes) {
    writer.add_tensor(name, dtype, shape);
    data.push_back(bytes);
  };
  for (const NewGsiSite& site : sites) {
    add(site.name + ".basis", site.dtype, {site.d, site.k}, site.basis);
    for (std::size_t i = 0; i < site.images.size(); ++i)
      add(site.name + ".image." + std::to_string(i), site.dtype, {site.k, site.image_rows[i]}, site.images[i]);
    add(site.name + ".energy", DType::F32, {site.k}, std::as_bytes(std::span(site.energies)));
  }
  writer.write(path, [&](std::size_t i, auto&& sink) { sink(data[i]); });
}

}  // namespace narrows
