#include "carillon/schedule/symphony/options.h"

#include "carillon/schedule/numbers.h"

namespace carillon::schedule {
namespace {

constexpr Number<SymphonyOptions> symphony_numbers[] = {
    {"hold", &SymphonyOptions::hold, 0, 1},
    {"least_gain", &SymphonyOptions::least_gain, 0, 10},
    {"leisure", &SymphonyOptions::leisure, 0, 1},
    {"waste", &SymphonyOptions::waste, 0, 1e6},
    {"value", &SymphonyOptions::value, 0, 1e6},
    {"spare", &SymphonyOptions::spare, 0, 1},
    {"fill", &SymphonyOptions::fill, 0, 1},
    {"weigh", &SymphonyOptions::weigh, 0, 1},
    {"limit", &SymphonyOptions::limit, 0, 1},
    {"exceeded", &SymphonyOptions::exceeded, 1e-6, 1},
    {"known_after", &SymphonyOptions::known_after, 0, 1e6},
};

}  // namespace

Result<SymphonyOptions> symphony_options(std::string_view text) {
  SymphonyOptions options;
  if (!text.empty()) options.name += ":" + std::string(text);
  if (auto set = set_numbers<SymphonyOptions>("symphony", text, symphony_numbers, options); !set)
    return std::unexpected(std::move(set.error()));
  return options;
}

}  // namespace carillon::schedule
