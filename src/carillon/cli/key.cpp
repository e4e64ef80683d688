#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "carillon/cli/commands.h"
#include "carillon/frontend/access/keys.h"

namespace carillon::cli {
namespace {

struct KeyArguments {
  std::string name;
  bool json = false;
  bool real_time = false;
};

int make_key(const KeyArguments& arguments) {
  const auto secret = frontend::new_secret();
  const auto entry = secret ? frontend::key_entry(arguments.name, *secret, arguments.real_time)
                            : std::unexpected(secret.error());
  if (!entry) {
    fmt::print(stderr, "carillon key new: {}\n", entry.error().message);
    return entry.error().code == ErrorCode::invalid_argument ? exit_usage : exit_failure;
  }
  if (arguments.json) {
    const nlohmann::ordered_json object{{"name", arguments.name},
                                        {"secret", *secret},
                                        {"sha256", frontend::to_hex(frontend::digest_of(*secret))},
                                        {"real_time", arguments.real_time}};
    fmt::print("{}\n", object.dump(2));
  } else {
    // Apart from each other: the file needs the entry alone.
    fmt::print(stderr, "The secret, for the client; it is kept nowhere: {}\nFor the server's --keys:\n",
               *secret);
    fmt::print("{}", *entry);
  }
  return exit_success;
}

}  // namespace

void add_key(CLI::App& program, int& status) {
  auto* const command = program.add_subcommand("key", "Make keys for clients ('carillon serve --keys')");
  command->require_subcommand(1);
  auto* const fresh = command->add_subcommand(
      "new",
      "Print a new secret (on standard error), and the lines for the file of keys that let its holder in");
  const auto arguments = std::make_shared<KeyArguments>();
  fresh->add_option("name", arguments->name, "The key's name, for people and the log")->required();
  fresh->add_flag("--real-time", arguments->real_time,
                  "Its holder's requests of priority 1 are real-time, for every model that the key may use");
  fresh->add_flag("--json", arguments->json, "Print one JSON object");
  fresh->footer(
      "Example:\n"
      "  carillon key new team-a >> keys.toml    # the secret is shown on standard error");
  fresh->callback([arguments, &status] { status = make_key(*arguments); });
}

}  // namespace carillon::cli
