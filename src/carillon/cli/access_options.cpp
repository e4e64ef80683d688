#include "carillon/cli/access_options.h"

namespace carillon::cli {

void add_access_options(CLI::App& command, AccessArguments& arguments) {
  command.add_option(
      "--ca", arguments.ca,
      "With https:// and grpcs://: believe servers whose certificate is of a CA in this file, in PEM; "
      "without it those of the system");
  command.add_option(
      "--cert", arguments.cert,
      "The client's certificate, in PEM, for servers that want one, and behind it those between it "
      "and its CA");
  command.add_option("--cert-key", arguments.cert_key,
                     "The private key of --cert, in PEM without a passphrase");
  command
      .add_option(
          "--key", arguments.key,
          "A key's secret, or @FILE that has it, for servers that want keys. On the command line all of the "
          "machine's users can see it (ps): @FILE and the variable are not shown")
      ->envname("CARILLON_KEY");
}

}  // namespace carillon::cli
