#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

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
  add_profile(program, status);
  add_load(program, status);
  add_simulate(program, status);
  add_goodput(program, status);
  add_disb(program, status);
  add_plan(program, status);
  add_replay(program, status);
  add_bench(program, status);
  refuse_what_is_no_number(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (program.exit(error) != 0) return exit_usage;
    return printed() ? exit_success : exit_failure;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "carillon: %s\n", error.what());
    return exit_failure;
  }
  return printed() || status != exit_success ? status : exit_failure;
}
