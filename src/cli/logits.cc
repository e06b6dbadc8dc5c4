// narrows logits: the logits after each token, as a NumPy file.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/output_file.h"
#include "base/progress.h"
#include "cli/common.h"

namespace narrows::cli {
namespace {

struct LogitsOptions {
  ModelOptions model;
  CacheOptions cache;
  std::string ids, output;
};

// The header of a NumPy file, format 1.0: float32, little-endian, C order. Its length is a multiple of 64.
std::string npy_header(std::size_t rows, std::size_t columns) {
  std::string text =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  constexpr std::size_t kPreamble = 10;
  text.resize((kPreamble + text.size() + 1 + 63) / 64 * 64 - kPreamble - 1, ' ');
  text += '\n';
  const auto size = static_cast<std::uint16_t>(text.size());
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(size & 0xFF);
  header += static_cast<char>(size >> 8);
  return header + text;
}

void logits(const LogitsOptions& options) {
  const std::vector<TokenId> ids = parse_ids(options.ids, "--ids");
  check_output(options.output, options.model.inputs());
  const SessionOptions session_options{.context = std::ssize(ids), .kv_type = options.cache.kv_type()};
  const auto model = options.model.load();
  Session session(model, session_options);
  const auto vocab = static_cast<std::size_t>(model->vocab_size());
  OutputFile file(options.output);
  const std::string header = npy_header(ids.size(), vocab);
  file.write(header.data(), header.size());

  constexpr std::size_t kBufferBytes = std::size_t{64} << 20;
  const std::size_t rows = std::max<std::size_t>(1, kBufferBytes / (vocab * sizeof(float)));
  std::vector<float> buffer;
  Progress progress("logits", std::ssize(ids));
  for (std::size_t at = 0; at < ids.size(); at += rows) {
    const auto part = std::span(ids).subspan(at, std::min(rows, ids.size() - at));
    buffer.resize(part.size() * vocab);
    session.step_all(part, buffer);
    file.write(std::as_bytes(std::span(buffer)));
    progress.update(static_cast<std::int64_t>(at + part.size()));
  }
  file.commit();
}

}  // namespace

void add_logits(CLI::App& program) {
  CLI::App* command = program.add_subcommand("logits", "Write the logits after each token to a NumPy file");
  const auto options = std::make_shared<LogitsOptions>();
  add_model_options(*command, options->model);
  add_method_options(*command, options->model);
  add_kv_type(*command, options->cache);
  command->add_option("--ids", options->ids, "The tokens; nothing is added")->type_name("1,2,3")->required();
  command->add_option("-o,--output", options->output, "The file: float32, tokens × vocabulary")
      ->type_name("OUT.npy")
      ->required();
  command->callback([options] { logits(*options); });
}

}  // namespace narrows::cli
