// narrows quantize: a model with its weights in another type.
#include <fmt/format.h>

#include <map>
#include <numeric>

#include "cli/common.h"
#include "formats/requantize.h"

namespace narrows::cli {
namespace {

struct QuantizeOptions {
  std::string in, out, type, output_type, embedding_type;
  int threads = 0;
  bool pure = false;
};

DType parse_type(const std::string& name, std::string_view flag) {
  const auto type = dtype_by_name(name);
  if (!type || !can_quantize(*type))
    throw UsageError(
        fmt::format("{}: expected F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K or Q6_K, found {}", flag, name));
  return *type;
}

void quantize_file(const QuantizeOptions& o) {
  const DType type = parse_type(o.type, "TYPE");
  RequantizeOptions options{
      .threads = o.threads, .output_type = {}, .token_embedding_type = {}, .pure = o.pure};
  if (!o.output_type.empty()) options.output_type = parse_type(o.output_type, "--output-tensor-type");
  if (!o.embedding_type.empty())
    options.token_embedding_type = parse_type(o.embedding_type, "--token-embedding-type");
  const GgufFile in = GgufFile::open(o.in);
  requantize(in, type, o.out, options);
  const GgufFile out = GgufFile::open(o.out);
  print(fmt::format("{}: {} -> {}: {}\n", o.in, human_bytes(static_cast<double>(in.file_bytes())), o.out,
                    human_bytes(static_cast<double>(out.file_bytes()))));
  // Rows that are not a whole number of blocks have another type; the output matrix may, too.
  std::map<DType, int> counts;
  for (const GgufTensor& tensor : out.tensors())
    if (tensor.dims > 1) ++counts[tensor.dtype];
  std::string others;
  for (const auto& [other, count] : counts)
    if (other != type)
      others += fmt::format("{}{} of {}", others.empty() ? "" : ", ", count, dtype_info(other).name);
  if (!others.empty())
    note(fmt::format(
        "{} of {} matrices are {}; where that does not fit their rows, or for the output: {}", counts[type],
        std::accumulate(counts.begin(), counts.end(), 0, [](int n, const auto& c) { return n + c.second; }),
        dtype_info(type).name, others));
}

}  // namespace

void add_quantize(CLI::App& program) {
  CLI::App* command = program.add_subcommand("quantize", "Write a model with its weights in another type");
  const auto o = std::make_shared<QuantizeOptions>();
  command->add_option("in,-m,--model", o->in, "The model")->type_name("IN.gguf")->required();
  command->add_option("out,-o,--output", o->out, "The file to write; it appears whole or not at all")
      ->type_name("OUT.gguf")
      ->required();
  command->add_option("type,--type", o->type, "F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K or Q6_K")
      ->type_name("TYPE")
      ->required();
  command->add_option("threads,-t,--threads", o->threads, "Threads; 0: every core (default)")
      ->type_name("N")
      ->check(range(0, 1024));
  command->add_option("--output-tensor-type", o->output_type, "Another type for the output matrix")
      ->type_name("TYPE");
  command->add_option("--token-embedding-type", o->embedding_type, "Another type for the embedding")
      ->type_name("TYPE");
  command->add_flag("--pure", o->pure,
                    "The output matrix too has TYPE, where its rows allow it; otherwise at least Q6_K");
  command->add_flag_callback("--allow-requantize", [] {})
      ->group("");  // llama-quantize asks for it; always allowed here
  command->callback([o] { quantize_file(*o); });
}

}  // namespace narrows::cli
