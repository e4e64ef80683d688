#include "carillon/cluster/partition/partition.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/cli/commands.h"
#include "carillon/cli/seed_option.h"
#include "carillon/cluster/partition/cbc.h"
#include "carillon/cluster/partition/partition_json.h"

namespace carillon::cli {
namespace {

struct PartitionArguments {
  std::string models;
  std::int64_t groups = 0;
  std::string current;
  std::optional<std::int64_t> max_move;
  double time_limit_s = 3;
  std::uint64_t seed = 1;
  bool json = false;
};

int fail_partition(const Error& error) {
  fmt::print(stderr, "carillon partition: {}\n", error.message);
  return error.code == ErrorCode::invalid_argument ? exit_usage : exit_failure;
}

int run_partition(const PartitionArguments& arguments) {
  if (arguments.max_move && arguments.current.empty())
    return fail_partition({ErrorCode::invalid_argument, "--max-move goes with --current alone"});
  auto problem = cluster::read_problem(arguments.models, arguments.groups);
  if (!problem) return fail_partition(problem.error());
  cluster::Changes changes;
  if (!arguments.current.empty()) {
    const auto read = cluster::read_current(arguments.current, *problem);
    if (!read) return fail_partition(read.error());
    changes = *read;
    problem->max_move = arguments.max_move;
  }
  const auto found = cluster::partition(
      *problem, {.search = {.seed = arguments.seed}, .proof_seconds = arguments.time_limit_s});
  if (!found) return fail_partition(found.error());
  if (!found->proved && arguments.time_limit_s > 0 && cluster::Cbc::find() == nullptr)
    fmt::print(stderr,
               "carillon partition: COIN-OR's CBC (libCbcSolver.so.3) is not on this machine, so the search "
               "alone decided, and nothing was proved. It is in Debian's coinor-libcbc3.\n");
  if (arguments.json)
    fmt::print("{}\n", cluster::to_json(*problem, *found, changes));
  else
    fmt::print("{}", cluster::to_table(*problem, *found, changes));
  return exit_success;
}

}  // namespace

void add_partition(CLI::App& program, int& status) {
  auto arguments = std::make_shared<PartitionArguments>();
  CLI::App& command = *program.add_subcommand(
      "partition", "Divides models over groups of devices, so that load and memory are balanced");
  command.add_option("MODELS", arguments->models, "JSON file of models, their rates and sizes")->required();
  command
      .add_option("--groups", arguments->groups, "How many groups: 1 to 10000, and at most as many as models")
      ->required();
  command.add_flag("--json", arguments->json, "Print one JSON object");
  command.add_option(
      "--current", arguments->current,
      "The division in force (what --json printed): group numbers stay, and moves are counted");
  command
      .add_option("--max-move", arguments->max_move,
                  "With --current: the most that the models that change group may cost together, by their "
                  "move_cost")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000'000'000'000'000}));
  command
      .add_option(
          "--time-limit", arguments->time_limit_s,
          "Seconds that COIN-OR's CBC may take after the search, to improve the division or prove that "
          "none is better; 0: the search alone")
      ->check(CLI::Range(0.0, 1e7))
      ->capture_default_str();
  command.add_option("--seed", arguments->seed, "Of the search")->check(check_seed)->capture_default_str();
  command.footer(
      "MODELS is {\"memory_bytes\": 16e9, \"max_rate_rps\": 5000, \"models\": [{\"name\": \"resnet50\", "
      "\"rate_rps\": 120,\n"
      "\"static_bytes\": 102e6, \"dynamic_bytes\": 30e6, \"move_cost\": 1}]}. Every device of a group holds "
      "all "
      "models of\n"
      "the group: their static_bytes and the largest dynamic_bytes fit memory_bytes.\n"
      "Optional are\n"
      "  max_rate_rps   most requests per second of a group; default: no bound\n"
      "  dynamic_bytes  memory while the model runs; default: 0\n"
      "  move_cost      of another group than now, in any unit, for all models or none; default: "
      "static_bytes,\n"
      "                 as a move takes the time of loading the weights\n"
      "With --current, a model that is new costs nothing to place, and one that is gone is left out.\n"
      "The same input and seed give the same division, unless CBC finds a better one within the time limit.\n"
      "docs/provisioning.md tells more.\n"
      "Examples:\n"
      "  carillon partition models.json --groups 4 --json > now.json\n"
      "  carillon partition models.json --groups 4 --current now.json --max-move 2000000000");
  command.callback([arguments, &status] { status = run_partition(*arguments); });
}

}  // namespace carillon::cli
