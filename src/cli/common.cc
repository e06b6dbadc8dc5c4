#include "cli/common.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/output_file.h"
#include "plan/plan.h"

namespace narrows::cli {
namespace {

// llama.cpp's flags without a meaning here. Values: how many each takes; -1: one, but it may be left out.
struct IgnoredFlag {
  const char* names;
  int values;
  const char* why;
};
constexpr IgnoredFlag kIgnored[] = {
    {"--gpu-layers,--n-gpu-layers,--ngl", 1, "narrows computes on the CPU"},
    {"--flash-attn,--fa", -1, "attention never stores the score matrix"},
    {"--mlock", 0, "weights are not locked in memory"},
    {"--no-mmap", 0, "files are always memory-mapped"},
    {"--mmap", 0, "files are always memory-mapped"},
    {"--mmp", 1, "files are always memory-mapped"},
    {"--numa", 1, "threads are not bound to nodes"},
    {"--no-kv-offload,--nkvo", 0, "narrows computes on the CPU"},
    {"--kv-offload,--kvo", 0, "narrows computes on the CPU"},
    {"--main-gpu,--mg", 1, "narrows computes on the CPU"},
    {"--tensor-split,--ts", 1, "narrows computes on the CPU"},
    {"--split-mode,--sm", 1, "narrows computes on the CPU"},
    {"--device,--dev", 1, "narrows computes on the CPU"},
    {"--override-tensor,--ot", 1, "narrows computes on the CPU"},
    {"--no-warmup", 0, "there is no warm-up run"},
    {"--warmup", 0, "there is no warm-up run"},
    {"--threads-batch,--tb", 1, "-t sets the threads of prompts and of generation"},
    {"--defrag-thold,--dt", 1, "the cache does not fragment"},
    {"--prio", 1, "threads keep the priority of the process"},
    {"--poll", 1, "idle threads wait a moment, then sleep"},
    {"--jinja", 0, "chat templates are always Jinja"},
    {"--color,--co", 0, "the output has no colours"},
    {"--simple-io", 0, "input and output are plain where they are no terminal"},
    {"--log-disable", 0, "there is no log"},
    {"--log-file", 1, "there is no log"},
    {"--log-colors", -1, "there is no log"},
    {"--repack", 0, "weights are repacked unless --no-repack is given"},
    {"--no-host", 0, "narrows computes on the CPU"},
    {"--no-op-offload", 0, "narrows computes on the CPU"},
    {"--cpu-moe", 0, "narrows computes on the CPU"},
    {"--direct-io", 0, "files are always memory-mapped"},
    {"--cpu-mask", 1, "threads keep the affinity of the process"},
    {"--cpu-strict", 1, "threads keep the affinity of the process"},
    {"--swa-full", 0, "what a sliding window has left behind is not kept"},
    {"--offline", 0, "nothing is ever fetched"},
};

}  // namespace

CLI::Validator range(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        if (number && value >= least && value <= most) return std::string();
        // Without an exponent where they are whole.
        const auto bound = [](double b) {
          return b == std::floor(b) ? fmt::format("{:.0f}", b) : fmt::format("{:g}", b);
        };
        return most >= kUnbounded && !(number && value > most)
                   ? fmt::format("expected a number from {}, found {}", bound(least), text)
                   : fmt::format("expected a number from {} to {}, found {}", bound(least), bound(most),
                                 text);
      },
      "");
}

void add_model_options(CLI::App& command, ModelOptions& options) {
  command.add_option("-m,--model", options.path, "The model: a GGUF file (of a split one the first part) or a Hugging Face folder")
      ->type_name("FILE")
      ->required();
  command.add_option("-t,--threads", options.threads, "Threads; 0: every core that may be used (default)")
      ->type_name("N")
      ->check(range(-1, 1024));
  command.add_flag("--no-repack", options.no_repack,
                   "Compute from the mapped file: starts sooner, runs slower, same result");
  for (const IgnoredFlag& flag : kIgnored) {
    const std::string names = flag.names, name = names.substr(0, names.find(','));
    const auto tell = [name, why = flag.why] { note(fmt::format("{} has no effect: {}", name, why)); };
    if (flag.values == 0) {
      command.add_flag_callback(names, tell)->group("");
    } else {
      CLI::Option* option = command.add_option(names, [tell](const CLI::results_t&) {
        tell();
        return true;
      });
      option->group("");
      option->expected(flag.values < 0 ? 0 : 1, 1);
    }
  }
}

std::vector<std::string> ModelOptions::inputs() const {
  std::vector<std::string> files{path, gsi.path, plan};
  if (!plan.empty()) files.push_back(read_plan(plan).bases);
  return files;
}

void ModelOptions::check() const {
  if (gsi.path.empty() && (gsi.epsilon || gsi.k > 0)) throw UsageError("--eps and --k need --gsi");
  if (!gsi.path.empty() && !plan.empty()) throw UsageError("--gsi and --plan exclude each other");
}

std::shared_ptr<Model> ModelOptions::load() const {
  check();
  auto model = Model::load(path, load_options());
  if (!plan.empty()) apply_plan(*model, plan);
  if (!gsi.path.empty()) apply_gsi(*model, gsi);
  return model;
}

void add_method_options(CLI::App& command, ModelOptions& options) {
  command.add_option("--plan", options.plan, "Compute as this plan says (see narrows tune)")->type_name("FILE");
  command.add_option("--gsi", options.gsi.path, "Gated subspace inference with the bases of this file (see narrows calibrate)")
      ->type_name("FILE");
  command
      .add_option("--eps", options.gsi.epsilon,
                  "With --gsi: tokens nearer than this to a site's subspace take the fast path; 0: none, inf: all")
      ->type_name("E")
      ->check(range(0, std::numeric_limits<double>::infinity()));
  command.add_option("--k", options.gsi.k, "With --gsi: directions used, at most those of the file (default: all)")
      ->type_name("K")
      ->check(range(1, 1 << 20));
}

KvType CacheOptions::kv_type() const {
  if (!kv_type_k.empty() && !kv_type_v.empty() && kv_type_k != kv_type_v)
    throw UsageError(fmt::format("--cache-type-k {} and --cache-type-v {} differ: expected one type for both",
                                 kv_type_k, kv_type_v));
  const std::string& name = kv_type_k.empty() ? kv_type_v : kv_type_k;
  for (const KvType type : {KvType::F32, KvType::Q8_0})
    if (name == kv_type_name(type)) return type;
  return KvType::F16;
}

void CacheOptions::warn_beyond_training(const Model& model) const {
  if (context > model.trained_context())
    note(fmt::format("-c {} exceeds the {} tokens of context that the model was trained on", context,
                     model.trained_context()));
}

namespace {

constexpr std::pair<std::string_view, KvPolicy> kPolicies[] = {{"representatives", KvPolicy::Representatives},
                                                               {"streaming", KvPolicy::Streaming},
                                                               {"h2o", KvPolicy::H2o},
                                                               {"snapkv", KvPolicy::SnapKv},
                                                               {"snapkv-merge", KvPolicy::SnapKvMerge}};

}  // namespace

std::optional<KvCompression> CompressionOptions::compression(const ModelOptions& model) const {
  model.check();
  const std::optional<KvCompression> planned = model.plan.empty() || ada == "paper" ? std::nullopt : plan_compression(model.plan);
  const bool kv = ada == "kv" || policy == "representatives" || (policy.empty() && planned);
  if (tau && !kv && ada != "paper") throw UsageError("--tau needs --ada");
  if (tau && budget) throw UsageError("--tau and --kv-budget exclude each other");
  if (!kv && policy.empty()) {
    if (budget || window || compress_at > 0)
      throw UsageError(fmt::format("{} needs --ada kv or --kv-policy", budget ? "--kv-budget" : window ? "--window" : "--compress-at"));
    return std::nullopt;
  }
  if (ada == "kv" && !policy.empty() && policy != "representatives")
    throw UsageError(fmt::format("--ada kv and --kv-policy {} exclude each other", policy));
  KvCompression c;
  if (kv && planned && !budget) c = *planned;
  for (const auto& [name, value] : kPolicies)
    if (name == policy) c.policy = value;
  c.compress_at = compress_at;
  if (budget) c.budget = *budget;
  if (!(c.budget > 0) || c.budget > 1)
    throw UsageError(fmt::format("--kv-budget: expected more than 0 and at most 1, found {:g}", c.budget));
  if (kv && tau) c.tau = *tau;
  if (tau && !(c.tau > 0 && c.tau <= 1)) throw UsageError(fmt::format("--tau: expected more than 0 and at most 1 with a cache, found {:g}", *tau));
  if (window) c.window = *window;
  if (c.window % 16 != 0) throw UsageError(fmt::format("--window: expected a multiple of 16, found {}", c.window));
  return c;
}

void add_compression_options(CLI::App& command, CompressionOptions& options, bool paper) {
  std::string help = "kv: a key/value cache of representatives, see --kv-budget";
  std::vector<std::string> modes = {"kv"};
  if (paper) {
    help += "; paper: attention among representative tokens alone, as published; loses most of the quality";
    modes.emplace_back("paper");
  }
  command.add_option("--ada", options.ada, help)->type_name("MODE")->check(CLI::IsMember(modes).description(""));
  std::vector<std::string> names;
  for (const auto& [name, value] : kPolicies) names.emplace_back(name);
  command
      .add_option("--kv-policy", options.policy,
                  "Keep a part of the key/value cache: representatives (as --ada kv), streaming, h2o, snapkv, snapkv-merge")
      ->type_name("NAME")
      ->check(CLI::IsMember(names).description(""));
  command
      .add_option("--kv-budget", options.budget,
                  "With --ada kv or --kv-policy: bytes kept, of the dense cache's at the same length; above 0, at most 1 (default 0.25)")
      ->type_name("B");
  std::string tau = "With --ada kv, instead of a budget: how far a layer's attention output may err, relatively, for what is left out; above 0, at most 1";
  if (paper) tau += "; with --ada paper: a representative's cosines with what precedes it are below 1 - tau^2 (default 0.3; 0: off)";
  command.add_option("--tau", options.tau, tau)->type_name("TAU");
  command
      .add_option("--window", options.window, "With --ada kv or --kv-policy: latest tokens kept exactly, a multiple of 16 (default 64)")
      ->type_name("W")
      ->check(range(16, 1 << 20));
}

void warn_uncompressed(const std::shared_ptr<Model>& model, KvType kv_type, const std::optional<KvCompression>& compression,
                       std::int64_t length) {
  if (!compression || compression->keeps_everything()) return;
  const std::int64_t first = Session(model, {.context = length, .kv_type = kv_type, .compression = compression}).next_compression();
  if (first <= length) return;
  note(fmt::format("the cache stays dense: {} tokens are too few for the latest {} and the budget, which takes {}", length,
                   compression->window, first == INT64_MAX ? "a larger budget" : fmt::format("{} tokens", first)));
}

std::string_view kv_type_name(KvType type) {
  switch (type) {
    case KvType::F16:
      return "f16";
    case KvType::F32:
      return "f32";
    case KvType::Q8_0:
      return "q8_0";
  }
  return "";
}

void add_kv_type(CLI::App& command, CacheOptions& options) {
  const auto types = CLI::IsMember({"f16", "f32", "q8_0"}).description("");
  command
      .add_option("--kv-type,--cache-type-k,--ctk", options.kv_type_k,
                  "Type of the key/value cache: f16 (default), f32 or q8_0")
      ->type_name("TYPE")
      ->check(types);
  command.add_option("--cache-type-v,--ctv", options.kv_type_v, "V: as K")->check(types)->group("");
}

void add_chunk_size(CLI::App& command, CacheOptions& options) {
  command
      .add_option("--ubatch-size,--ub", options.micro_batch,
                  "Prompt tokens computed together (default 512); changes speed and memory, never the result")
      ->type_name("N")
      ->check(range(1, 1 << 20));
  command.add_option("-b,--batch-size", options.batch, "An upper bound for -ub (default 2048)")
      ->type_name("N")
      ->check(range(1, 1 << 20));
}

std::string read_file(const std::string& path) {
  const bool standard = path == "-";
  std::FILE* file = standard ? stdin : std::fopen(path.c_str(), "rb");
  if (!file) fail("{}: cannot open: {}", path, std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  // A short count is the end: asking again would wait for a second Ctrl-D on a terminal.
  for (std::size_t n = sizeof(buffer); n == sizeof(buffer);) {
    n = std::fread(buffer, 1, sizeof(buffer), file);
    text.append(buffer, n);
  }
  const int error = std::ferror(file) ? errno : 0;
  if (!standard) std::fclose(file);
  if (error != 0) fail("{}: cannot read: {}", standard ? "standard input" : path, std::strerror(error));
  return text;
}

std::string read_text(const std::string& path) {
  std::string text = read_file(path);
  const std::string name = path == "-" ? "standard input" : path;
  if (text.starts_with("GGUF")) fail("{}: expected a text, found a GGUF file", name);
  if (const std::size_t at = text.find('\0'); at != std::string::npos)
    fail("{}: expected a text, found a zero byte at {}", name, at);
  return text;
}

void check_output(const std::string& output, const std::vector<std::string>& inputs) {
  if (output.empty()) throw UsageError("the file to write: expected a name, found none");
  std::error_code absent;
  if (std::filesystem::is_directory(output, absent)) fail("{}: expected a file to write, found a directory", output);
  for (const std::string& input : inputs) {
    if (std::filesystem::equivalent(input, output, absent))
      throw UsageError(fmt::format("{}: expected another file than {}, which is read", output, input));
    // Of a Hugging Face folder every file.
    const std::filesystem::path parent = std::filesystem::absolute(output).parent_path();
    if (std::filesystem::is_directory(input, absent) && std::filesystem::exists(output, absent) &&
        std::filesystem::equivalent(input, parent, absent))
      throw UsageError(fmt::format("{}: expected another file than one of {}, which is read", output, input));
  }
  // A device or a pipe is opened once, when there is something to write.
  if (std::filesystem::is_regular_file(output, absent) || !std::filesystem::exists(output, absent))
    OutputFile probe(output);
}

std::vector<TokenId> parse_ids(std::string_view text, std::string_view flag) {
  constexpr std::string_view kBetween = ", \t\r\n[]";
  std::vector<TokenId> ids;
  for (std::size_t at = 0; (at = text.find_first_not_of(kBetween, at)) != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    TokenId id = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || rest != word.data() + word.size() || id < 0)
      throw UsageError(fmt::format("{}: expected token ids like 1,2,3, found \"{}\"", flag, word));
    ids.push_back(id);
    at = end;
  }
  if (ids.empty()) throw UsageError(fmt::format("{}: expected token ids like 1,2,3, found none", flag));
  return ids;
}

std::string join_ids(std::span<const TokenId> ids) { return fmt::format("{}", fmt::join(ids, ",")); }

std::string unescape(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    constexpr std::string_view kFrom = "nrt'\"\\", kTo = "\n\r\t'\"\\";
    if (text[i] != '\\' || next == '\0') {
      result += text[i];
    } else if (const std::size_t at = kFrom.find(next); at != std::string_view::npos) {
      result += kTo[at];
      ++i;
    } else {
      unsigned byte = 0;
      const std::string_view digits = text.substr(std::min(i + 2, text.size()), 2);
      const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
      if (next == 'x' && error == std::errc() && rest == digits.data() + 2) {
        result += static_cast<char>(byte);
        i += 3;
      } else {
        result += '\\';
      }
    }
  }
  return result;
}

std::string printable(std::string_view piece) {
  std::string text;
  for (std::size_t i = 0; i < piece.size();) {
    const auto byte = static_cast<unsigned char>(piece[i]);
    const std::size_t length = byte < 0x80   ? 1
                               : byte < 0xC2 ? 0
                               : byte < 0xE0 ? 2
                               : byte < 0xF0 ? 3
                               : byte < 0xF5 ? 4
                                             : 0;
    bool whole = length > 0 && i + length <= piece.size();
    for (std::size_t k = 1; whole && k < length; ++k)
      whole = (static_cast<unsigned char>(piece[i + k]) & 0xC0) == 0x80;
    if (byte == '\n') {
      text += "\\n";
    } else if (byte == '\t') {
      text += "\\t";
    } else if (!whole || byte < 0x20 || byte == 0x7F) {
      text += fmt::format("\\x{:02X}", byte);
    } else {
      text += piece.substr(i, length);
    }
    i += whole ? length : 1;
  }
  return text;
}

void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;  // Ctrl-C stops an answer, not its last words
    if (written < 0) fail("standard output: cannot write: {}", std::strerror(errno));
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void print_error(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);  // where that fails too there is nobody to tell
}

void note(std::string_view text) { print_error(fmt::format("narrows: {}\n", text)); }

std::string human_bytes(double bytes) {
  constexpr std::string_view kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string human_count(double count) {
  constexpr std::string_view kUnits[] = {"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  for (; count >= 1000 && unit + 1 < std::size(kUnits); ++unit) count /= 1000;
  return fmt::format("{:.{}f}{}", count, unit == 0 ? 0 : 1, kUnits[unit]);
}

}  // namespace narrows::cli
