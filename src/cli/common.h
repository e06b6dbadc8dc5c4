// What the subcommands share: model flags, texts and ids from the command line, checked output.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "narrows/narrows.h"

namespace narrows::cli {

// Wrong use of the command line found after parsing: exit status 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

struct ModelOptions {
  std::string path;
  int threads = 0;
  bool no_repack = false;
  GsiOptions gsi;    // path empty: no gates
  std::string plan;  // empty: none
  LoadOptions load_options() const { return {.threads = threads < 0 ? 0 : threads, .repack = !no_repack}; }
  // The files that are read: the model, bases, a plan and the bases that it names. Throws Error if the plan is none.
  std::vector<std::string> inputs() const;
  // Throws UsageError for flags that make no sense together.
  void check() const;
  // With the methods that the flags ask for.
  std::shared_ptr<Model> load() const;
};

inline constexpr double kUnbounded = 1 << 30;

// Numbers from least to most; a message of its own, and no clutter in help.
CLI::Validator range(double least, double most);

// An option whose values are separated by commas.
template <typename Value>
CLI::Option* add_list(CLI::App& command, const std::string& name, std::vector<Value>& values, const std::string& help) {
  return command.add_option(name, values, help)->delimiter(',')->allow_extra_args(false)->take_all();
}

// -m, -t, --no-repack, and llama.cpp's flags that mean nothing here, each accepted with a line on stderr.
void add_model_options(CLI::App& command, ModelOptions& options);

// --gsi, --eps, --k, --plan.
void add_method_options(CLI::App& command, ModelOptions& options);

struct CacheOptions {
  std::int64_t context = 0;
  std::string kv_type_k, kv_type_v;
  std::int64_t batch = 2048, micro_batch = 512;
  // Throws UsageError if -ctk and -ctv differ.
  KvType kv_type() const;
  std::int64_t chunk() const { return std::min(batch, micro_batch); }
  // A line on stderr if the context is beyond what the model was trained on.
  void warn_beyond_training(const Model& model) const;
};

// --ada, --tau, --kv-policy, --kv-budget, --window.
struct CompressionOptions {
  std::string ada;  // "kv", "paper" (which is not compression) or empty
  std::string policy;
  std::optional<double> budget, tau;
  std::optional<std::int64_t> window;
  std::int64_t compress_at = 0;
  // Without flags: what the plan asks for, if there is one. Throws UsageError for flags that make no sense together.
  std::optional<KvCompression> compression(const ModelOptions& model) const;
};
// `paper`: whether --ada may also be paper.
void add_compression_options(CLI::App& command, CompressionOptions& options, bool paper = false);

// A line on stderr if texts of `length` tokens are too short for the budget: their cache stays dense.
void warn_uncompressed(const std::shared_ptr<Model>& model, KvType kv_type, const std::optional<KvCompression>& compression,
                       std::int64_t length);

std::string_view kv_type_name(KvType type);  // "f16"
void add_kv_type(CLI::App& command, CacheOptions& options);
void add_chunk_size(CLI::App& command, CacheOptions& options);

// The bytes of a file; "-" is standard input. Throws Error if it cannot be read.
std::string read_file(const std::string& path);

// The same of a text: throws Error for a binary file.
std::string read_text(const std::string& path);

// Before the work: throws UsageError if `output` is one of the files that are read (or a link to it), Error if it cannot
// be written.
void check_output(const std::string& output, const std::vector<std::string>& inputs);

// "1,2,3" (commas, spaces or both, brackets ignored). Throws UsageError naming `flag` if it is no list of
// ids.
std::vector<TokenId> parse_ids(std::string_view text, std::string_view flag);
std::string join_ids(std::span<const TokenId> ids);  // "1,2,3"

// \n \r \t \' \" \\ \xHH become what they stand for; other backslashes stay.
std::string unescape(std::string_view text);

// A token's text on one line: control characters and what is no UTF-8 as \n, \t or \xHH.
std::string printable(std::string_view piece);

// Writes to standard output at once. Throws Error if that fails: a full disk, a closed pipe.
void print(std::string_view text);

// Writes to standard error, and never fails.
void print_error(std::string_view text);

// A line "narrows: …" on standard error.
void note(std::string_view text);

// "98.4 MB" (decimal multiples).
std::string human_bytes(double bytes);

// "98.4M" (decimal multiples).
std::string human_count(double count);

void add_run(CLI::App& program);
void add_info(CLI::App& program);
void add_tokenize(CLI::App& program);
void add_logits(CLI::App& program);
void add_eval(CLI::App& program);
void add_bench(CLI::App& program);
void add_quantize(CLI::App& program);
void add_convert(CLI::App& program);
void add_calibrate(CLI::App& program);
void add_gsi_report(CLI::App& program);
void add_ada_report(CLI::App& program);
void add_tune(CLI::App& program);
void add_compress(CLI::App& program);

}  // namespace narrows::cli
