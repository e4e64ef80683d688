#pragma once

#include <CLI/CLI.hpp>

// The headings of 'serve --help', in the order in which they stand there. An option's
// heading is named where the option is defined. Other commands that share the option show the same heading.
namespace carillon::cli::heading {

inline constexpr const char* cluster = "Cluster";
inline constexpr const char* models = "Models";
inline constexpr const char* addresses = "Addresses";
inline constexpr const char* memory = "Memory";
inline constexpr const char* deadlines = "Deadlines and scheduling";
inline constexpr const char* devices = "Devices and kernels";
inline constexpr const char* classes = "Real-time and best-effort requests";
inline constexpr const char* security = "Security";
inline constexpr const char* limits = "Limits and connections";
inline constexpr const char* readiness = "Readiness and stopping";
inline constexpr const char* logs = "Logs and tracing";
inline constexpr const char* training = "Training beside serving";
inline constexpr const char* plans = "Plans of several workloads";
inline constexpr const char* help = "Help";

// Options that are defined from here on, and name no heading themselves, stand under this one.
inline void begin(CLI::App& command, const char* heading) {
  command.option_defaults()->group(heading);
}

}  // namespace carillon::cli::heading
