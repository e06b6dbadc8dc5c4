// narrows quantize: a model with its weights in another type. narrows convert: a Hugging Face folder as a GGUF file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "cli/common.h"
#include "formats/requantize.h"
#include "huggingface/folder.h"

namespace narrows::cli {
namespace {

constexpr const char* kTypes = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K or Q6_K";

struct QuantizeOptions {
  std::string in, out, type, output_type, embedding_type;
  int threads = 0;
  bool pure = false;
  bool folder = false;  // convert
};

DType parse_type(const std::string& name, std::string_view flag) {
  const auto type = dtype_by_name(name);
  if (!type || !can_quantize(*type))
    throw UsageError(
        fmt::format("{}: expected {}, found {}", flag, kTypes, name));
  return *type;
}

// The type of most of the matrices' weights.
DType main_type(const GgufFile& file) {
  std::map<DType, std::size_t> bytes;
  for (const GgufTensor& tensor : file.tensors())
    if (tensor.dims > 1) bytes[tensor.dtype] += tensor.bytes;
  return std::ranges::max_element(bytes, {}, [](const auto& b) { return b.second; })->first;
}

void write_model(const QuantizeOptions& o) {
  const std::string_view flag = o.folder ? "--type" : "TYPE";
  const std::optional<DType> given = o.type.empty() ? std::nullopt : std::optional(parse_type(o.type, flag));
  RequantizeOptions options{.threads = o.threads, .output_type = {}, .token_embedding_type = {},
                            .keep_types = !given, .pure = o.pure};
  if (!o.output_type.empty()) options.output_type = parse_type(o.output_type, "--output-tensor-type");
  if (!o.embedding_type.empty())
    options.token_embedding_type = parse_type(o.embedding_type, "--token-embedding-type");
  if (o.folder && !is_model_folder(o.in))
    fail("{}: expected a Hugging Face folder (narrows quantize rewrites GGUF files)", o.in);
  check_output(o.out, {o.in});
  std::vector<std::string> notes;
  const GgufFile in = open_model(o.in, &notes);
  const DType type = given ? *given : main_type(in);
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
  if (!notes.empty())
    note(fmt::format("the tokenizer is kept whole, too, in tokenizer.huggingface.json, for GGUF's own keys do not say all of it "
                     "(llama.cpp, which goes by them, may give other ids): {}",
                     fmt::join(notes, "; ")));
  if (!others.empty() && given)
    note(fmt::format(
        "{} of {} matrices are {}; where that does not fit their rows, for the output, routers and positions: {}", counts[type],
        std::accumulate(counts.begin(), counts.end(), 0, [](int n, const auto& c) { return n + c.second; }),
        dtype_info(type).name, others));
}

void add_common(CLI::App* command, const std::shared_ptr<QuantizeOptions>& o) {
  command->add_option("--output-tensor-type", o->output_type, "Another type for the output matrix")
      ->type_name("TYPE");
  command->add_option("--token-embedding-type", o->embedding_type, "Another type for the embedding")
      ->type_name("TYPE");
  command->add_flag("--pure", o->pure,
                    "The output matrix too has TYPE, where its rows allow it; otherwise at least Q6_K");
  command->callback([o] { write_model(*o); });
}

}  // namespace

void add_quantize(CLI::App& program) {
  CLI::App* command = program.add_subcommand("quantize", "Write a model with its weights in another type");
  const auto o = std::make_shared<QuantizeOptions>();
  command->add_option("in,-m,--model", o->in, "The model")->type_name("IN.gguf")->required();
  command->add_option("out,-o,--output", o->out, "The file to write; it appears whole or not at all")
      ->type_name("OUT.gguf")
      ->required();
  command->add_option("type,--type", o->type, kTypes)->type_name("TYPE")->required();
  command->add_option("threads,-t,--threads", o->threads, "Threads; 0: every core (default)")
      ->type_name("N")
      ->check(range(0, 1024));
  add_common(command, o);
  command->add_flag_callback("--allow-requantize", [] {})
      ->group("");  // llama-quantize asks for it; always allowed here
}

void add_convert(CLI::App& program) {
  CLI::App* command = program.add_subcommand("convert", "Write a Hugging Face folder as a GGUF file");
  const auto o = std::make_shared<QuantizeOptions>();
  o->folder = true;
  command->add_option("folder,-m,--model", o->in, "The folder: config.json, safetensors, tokenizer")
      ->type_name("HF_FOLDER")
      ->required();
  command->add_option("-o,--output,--outfile", o->out, "The file to write; it appears whole or not at all")
      ->type_name("OUT.gguf")
      ->required();
  command->add_option("--type,--outtype", o->type, std::string(kTypes) + " (default: as the folder has them)")
      ->type_name("TYPE");
  command->add_option("-t,--threads", o->threads, "Threads; 0: every core (default)")->type_name("N")->check(range(0, 1024));
  add_common(command, o);
  command->footer("Reads these model_types: " + known_model_types() +
                  ".\nEvery command takes the folder as its model, too; the file loads faster and can have other types.");
}

}  // namespace narrows::cli
