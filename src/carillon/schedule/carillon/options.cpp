#include "carillon/schedule/carillon/options.h"

#include "carillon/schedule/numbers.h"

namespace carillon::schedule {
namespace {

using Option = CarillonOptions;
constexpr Number<Option> carillon_numbers[] = {
    {"defer", &Option::defer, 0, 1},
    {"least_gain", &Option::least_gain, 0, 10},
    {"leisure", &Option::leisure, 0, 1},
    {"price", &Option::price, 0, 1e6},
    {"limit", &Option::limit, 0, 1},
    {"keep_off", &Option::keep_off, 0, 1},
    {"backlog", &Option::backlog, 0, 1},
    {"value", &Option::value, 0, 1e6},
    {"waste", &Option::waste, 0, 1e6},
    {"hold", &Option::hold, 0, 10},
    {"chance", &Option::chance, 0, 1},
    {"kinds", &Option::kinds, 0, 1},
    {"worth", &Option::worth, 0, 1},
    {"fair", &Option::fair, 0, 1},
    {"tenants", &Option::tenants, 0, 1},
    {"curb", &Option::curb, 0, 1},
    {"experiments", &Option::experiments, 0, 1},
};

}  // namespace

Result<CarillonOptions> carillon_options(std::string_view text) {
  CarillonOptions options;
  if (auto set = set_numbers<Option>("carillon", text, carillon_numbers, options); !set)
    return std::unexpected(std::move(set.error()));
  return options;
}

}  // namespace carillon::schedule
