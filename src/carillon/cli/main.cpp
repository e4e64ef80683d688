#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

#include "carillon/cli/commands.h"
#include "carillon/cli/environment.h"
#include "carillon/cli/headroom.h"

int main(int argc, char** argv) {
  using namespace carillon::cli;
  end_in_words();
  prepare_environment(argc, argv);

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
  add_plan(program, status);
  add_replay(program, status);
  add_bench(program, status);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? exit_success : exit_usage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "carillon: %s\n", error.what());
    return exit_failure;
  }
  return status;
}
