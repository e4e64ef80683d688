#include <array>
#include <string>

#include <fmt/format.h>

#include "carillon/tune/policies.h"
#include "carillon/tune/tuning.h"

namespace carillon::tune {
namespace {

constexpr std::array<std::string_view, 4> names{"fifo", "static", "dynamic", "best"};

Result<> check(const TuneOptions& o) {
  const auto overhead = [](const char* name, const std::optional<double>& value) -> Result<> {
    if (value && !(*value >= 1 && *value <= 100))
      return invalid(fmt::format("{} is {:g}, but must be from 1 to 100", name, *value));
    return {};
  };
  if (auto good = overhead("alpha", o.alpha); !good) return good;
  if (auto good = overhead("beta", o.beta); !good) return good;
  if (o.move && o.move->count() < 0) return invalid("the cost of a move is negative");
  if (o.c && (*o.c < 1 || *o.c > 64)) return invalid(fmt::format("c is {}, but must be from 1 to 64", *o.c));
  if (o.d && (*o.d < 1 || *o.d > static_cast<int>(most_devices)))
    return invalid(fmt::format("d is {}, but must be from 1 to {}", *o.d, most_devices));
  if (!(o.threshold >= 0 && o.threshold < 1))
    return invalid(
        fmt::format("the threshold of equation 3.1 is {:g}, but must be from 0 to below 1", o.threshold));
  if (o.most_packed < 1 || o.most_packed > 64)
    return invalid(fmt::format("most_packed is {}, but must be from 1 to 64", o.most_packed));
  if (o.effort < 1000 || o.effort > 1'000'000'000)
    return invalid(fmt::format("effort is {}, but must be from 1000 to 1000000000", o.effort));
  return {};
}

}  // namespace

std::span<const std::string_view> tune_policy_names() {
  return names;
}

Result<std::unique_ptr<Tuning>> make_tuning(std::string_view name, const TuneOptions& options) {
  if (auto good = check(options); !good) return std::unexpected(std::move(good.error()));
  if (name == "fifo") return make_fifo(options);
  if (name == "static") return make_fluid(options, false);
  if (name == "dynamic") return make_fluid(options, true);
  if (name == "best") return make_best(options);
  std::string all;
  for (const std::string_view known : names) all += (all.empty() ? "" : ", ") + std::string(known);
  return invalid("there is no way '" + std::string(name) + "' to run trials; there are " + all);
}

}  // namespace carillon::tune
