#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

namespace carillon::cli {

// --miss-rate: the share of answers that may be late, of models that do not say.
inline void add_miss_rate_option(CLI::App& command, std::optional<double>& miss_rate,
                                 const std::string& otherwise) {
  command
      .add_option("--miss-rate", miss_rate,
                  "The share of answers that may be late, above 0 and at most 0.5, of models that do not say")
      ->check([](const std::string& text) -> std::string {
        double share = 0;
        const bool read = CLI::detail::lexical_cast(text, share);
        if (read && share > 0 && share <= 0.5) return {};
        return "'" + text + "' is not a share above 0 and at most 0.5, such as 0.01";
      })
      ->default_str(otherwise);
}

}  // namespace carillon::cli
