#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <new>

#include "base/output_file.h"
#include "cli/common.h"
#include "subspace/linear_algebra.h"

namespace narrows::cli {
namespace {

// llama.cpp's flags of several letters after one dash. The parser takes "-ngl" for "-n gl": such flags get a
// second dash on their way in, and lose it again in help.
constexpr std::array<std::string_view, 21> kShort{"cnv", "no-cnv", "sys", "st",  "ngl",  "fa",  "ub",
                                                  "ctk", "ctv",    "tb",  "np",  "nkvo", "kvo", "mg",
                                                  "ts",  "sm",     "dev", "mmp", "co",   "ot",  "dt"};

bool is_short(std::string_view name) { return std::find(kShort.begin(), kShort.end(), name) != kShort.end(); }

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  // "-t,--threads", "-ngl"; of a flag that can be negated, both names.
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    if (positional) return CLI::Formatter::make_option_name(option, true);
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames())
      names.push_back((is_short(name) ? "-" : "--") + name);
    return fmt::format("{}", fmt::join(names, ", "));
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_name().empty() ? "" : " " + option->get_type_name();
  }
};

std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string command_name(const CLI::App& program) {
  const auto used = program.get_subcommands();
  return used.empty() ? "" : used.front()->get_name();
}

// A standard stream that the caller closed would lend its number to the next file opened, a model being
// written say. Reading and writing these fails, as it should.
void open_standard_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

// For commands with large matrices: starts the program anew with kernels of OpenBLAS that suit the processor, where it
// has not found them by itself. Goes on as it is if that cannot be done.
void choose_linear_algebra(int argc, char** argv) {
  constexpr std::string_view kUsers[] = {"calibrate", "compress", "gsi-report", "tune"};
  if (argc < 2 || std::ranges::find(kUsers, argv[1]) == std::end(kUsers) || std::getenv("OPENBLAS_CORETYPE")) return;
  const std::string core = better_linear_algebra_core();
  if (core.empty() || ::setenv("OPENBLAS_CORETYPE", core.c_str(), 1) != 0) return;
  ::execv("/proc/self/exe", argv);
}

// "run: what is wrong (see narrows run --help)"; without a command's name, "… (see narrows --help)".
std::string usage_line(const std::string& name, std::string_view what) {
  return name.empty() ? fmt::format("{} (see narrows --help)", what)
                      : fmt::format("{0}: {1} (see narrows {0} --help)", name, what);
}

// What is wrong with the command line, in one line.
std::string usage_message(const CLI::App& program, const CLI::ParseError& error) {
  const std::string name = command_name(program);
  std::string what = name.empty() ? "expected a command" : one_line(error.what());
  // A missing positional goes by what stands in the usage line.
  for (const CLI::App* used : program.get_subcommands())
    for (const CLI::Option* option : used->get_options())
      if (option->get_positional() && what == option->get_name() + " is required")
        what = option->get_type_name() + " is required";
  // A value that is no number.
  if (dynamic_cast<const CLI::ConversionError*>(&error) && what.starts_with("Could not convert: "))
    what = "expected a number: " + what.substr(std::string_view("Could not convert: ").size());
  // Without a command the parser complains of that first, and not of what stands in its place.
  const auto rest = program.remaining(true);
  if (!rest.empty() && (name.empty() || dynamic_cast<const CLI::ExtrasError*>(&error)))
    what = fmt::format("{} {}",
                       name.empty() && rest.front()[0] != '-' ? "unknown command" : "unexpected argument",
                       rest.front());
  return usage_line(name, what);
}

int run_program(int argc, char** argv) {
  CLI::App program("Runs language models, GGUF files and Hugging Face folders, on the CPU.", "narrows");
  program.formatter(std::make_shared<HelpFormatter>());
  program.set_version_flag("--version", "narrows " NARROWS_VERSION);
  program.require_subcommand(1);
  program.option_defaults()->take_last();  // a flag given twice: the last one counts, as in llama.cpp
  program.footer(
      "narrows COMMAND --help describes a command. Flags carry llama.cpp's names where it has them.");
  add_run(program);
  add_info(program);
  add_tokenize(program);
  add_logits(program);
  add_eval(program);
  add_bench(program);
  add_quantize(program);
  add_convert(program);
  add_calibrate(program);
  add_gsi_report(program);
  add_ada_report(program);
  add_tune(program);
  add_compress(program);

  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {  // the parser wants them last first
    std::string argument = argv[i];
    if (argument.size() > 2 && argument[0] == '-' && is_short(argument.substr(1, argument.find('=') - 1)))
      argument.insert(0, "-");
    // The parser would take "-hf x" for "-h -f x", "-prompt=hi" for "-p rompt=hi". What is left of one dash
    // and several letters is a short flag with its number, -n5, or nothing that is known.
    if (argument.size() > 2 && argument[0] == '-' && std::isalpha(static_cast<unsigned char>(argument[1])) &&
        (std::isalpha(static_cast<unsigned char>(argument[2])) || argument[2] == '-')) {
      note(usage_line(argv[1][0] != '-' ? argv[1] : "", fmt::format("unexpected argument {}", argument)));
      return 2;
    }
    arguments.push_back(std::move(argument));
  }
  try {
    program.parse(std::move(arguments));
    return 0;
  } catch (const CLI::CallForHelp&) {
    print(program.help());
    return 0;
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
    return 0;
  } catch (const CLI::RuntimeError& status) {
    return status.get_exit_code();
  } catch (const CLI::ParseError& error) {
    note(usage_message(program, error));
    return 2;
  } catch (const UsageError& error) {
    note(usage_line(command_name(program), one_line(error.what())));
    return 2;
  }
}

}  // namespace
}  // namespace narrows::cli

int main(int argc, char** argv) {
  narrows::cli::open_standard_streams();
  narrows::cli::choose_linear_algebra(argc, argv);
  // Text is UTF-8. Where the environment names no locale that says so, the line editor still reads it.
  if (!std::setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of the write, with a message
  narrows::install_interrupt_handler();
  try {
    return narrows::cli::run_program(argc, argv);
  } catch (const std::bad_alloc&) {
    narrows::cli::note("out of memory");
  } catch (const std::exception& error) {
    narrows::cli::note(narrows::cli::one_line(error.what()));
  } catch (...) {
    narrows::cli::note("unexpected error");
  }
  return 1;
}
