#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "carillon/cli/commands.h"
#include "carillon/cli/environment.h"
#include "carillon/cli/headroom.h"

namespace {

// CLI11's ranges let NaN through, which compares with nothing.
void refuse_what_is_no_number(CLI::App& program) {
  const CLI::Validator finite(
      [](const std::string& text) {
        double value = 0;
        return CLI::detail::lexical_cast(text, value) && !std::isfinite(value)
                   ? "Value " + text + " is no finite number"
                   : std::string{};
      },
      "");
  for (CLI::App* command : program.get_subcommands({})) {
    refuse_what_is_no_number(*command);
    for (CLI::Option* option : command->get_options())
      if (option->get_type_name().starts_with("FLOAT")) option->check(finite);
  }
}

bool is_of(const CLI::App& command, const std::string& word) {
  for (const CLI::App* other : command.get_subcommands({}))
    if (other->get_name() == word) return true;
  return false;
}

std::string commands_of(const CLI::App& command) {
  std::string out;
  for (const CLI::App* other : command.get_subcommands({}))
    out += (out.empty() ? "" : ", ") + other->get_name();
  return out;
}

// Whether `before` is an option that takes the word behind it.
bool is_value_of(const CLI::App& command, const std::string& before) {
  const CLI::Option* const option = command.get_option_no_throw(before);
  return before.starts_with('-') && option != nullptr && option->get_items_expected_max() > 0;
}

// The option that looks most like what was typed: the one with the longest common beginning.
std::string like(const CLI::App& command, const std::string& typed) {
  std::string best;
  std::size_t most = 4;  // "--" and two letters
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) {
      const std::string whole = "--" + name;
      const auto same = static_cast<std::size_t>(
          std::mismatch(whole.begin(), whole.end(), typed.begin(), typed.end()).first - whole.begin());
      if (same >= most) {
        best = whole;
        most = same + 1;
      }
    }
  return best;
}

// The parser says first what is missing, not that it was written otherwise.
std::string mistyped(const CLI::App& program, int argc, char** argv) {
  const CLI::App* command = &program;
  std::string path = "carillon";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") break;
    // What follows the script is the script's.
    if (path == "carillon run" && !word.starts_with('-') && !is_value_of(*command, argv[i - 1])) break;
    if (!word.starts_with('-')) {
      if (is_of(*command, word)) {
        command = command->get_subcommand(word);
        path += " " + word;
      } else if (command == &program ||
                 (!command->get_subcommands({}).empty() && argv[i - 1] == command->get_name())) {
        return "there is no command '" + word + "' of " + path + "; there are: " + commands_of(*command);
      }
      continue;
    }
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with("--") || command == &program || command->get_option_no_throw(name) != nullptr)
      continue;
    const std::string near = like(*command, name);
    return path + " has no option " + name + (near.empty() ? "" : "; is " + near + " meant?");
  }
  return {};
}

// The words for the parser, which takes '--' before the program of 'carillon run' for the beginning of
// arguments that there are none of.
std::vector<std::string> words_of(const CLI::App& program, int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words.front() != "run") return words;
  const CLI::App& run = *program.get_subcommand("run");
  for (std::size_t i = 1; i < words.size() && (words[i].starts_with('-') || is_value_of(run, words[i - 1]));
       ++i)
    if (words[i] == "--") {
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  return words;
}

// What was printed is there only once it is written: the disk may be full, or the reader gone.
bool printed() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  std::fprintf(stderr, "carillon: cannot write to standard output: %s\n", std::strerror(errno));
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace carillon::cli;
  end_in_words();
  prepare_environment();

  CLI::App program{
      "Carillon runs deep-learning models by their deadlines.\n"
      "Clients speak the KServe v2 / Triton protocol over HTTP and gRPC and name a deadline with the "
      "request\n"
      "parameter 'timeout' (microseconds)."};
  program.name("carillon");
  program.set_version_flag("--version", std::string("carillon ") + CARILLON_VERSION);
  program.require_subcommand(1);
  program.footer(
      "Examples:\n"
      "  carillon serve --models ./models\n"
      "  carillon profile --models ./models --out profile.json\n"
      "  carillon load http://127.0.0.1:8000 --model resnet50 --rate 20 --deadline 200\n"
      "  carillon simulate scenarios/symphony_table2_resnet50.toml\n"
      "  carillon plan workloads.json --coefficients models.json --hardware v100.json\n"
      "'carillon COMMAND --help' tells more.");

  int status = exit_success;
  add_serve(program, status);
  add_frontend(program, status);
  add_scheduler(program, status);
  add_worker(program, status);
  add_profile(program, status);
  add_load(program, status);
  add_simulate(program, status);
  add_goodput(program, status);
  add_disb(program, status);
  add_plan(program, status);
  add_partition(program, status);
  add_cluster(program, status);
  add_replay(program, status);
  add_explain(program, status);
  add_key(program, status);
  add_share(program, status);
  add_run(program, status);
  add_jobs(program, status);
  add_bench(program, status);
  refuse_what_is_no_number(program);
  if (const std::string wrong = mistyped(program, argc, argv); !wrong.empty()) {
    std::fprintf(stderr, "%s\n'carillon --help' and 'carillon COMMAND --help' tell more.\n", wrong.c_str());
    return exit_usage;
  }
  try {
    std::vector<std::string> words = words_of(program, argc, argv);
    std::reverse(words.begin(), words.end());  // as the parser takes them
    program.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    if (program.exit(error) != 0) return exit_usage;
    return printed() ? exit_success : exit_failure;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "carillon: %s\n", error.what());
    return exit_failure;
  }
  return printed() || status != exit_success ? status : exit_failure;
}
