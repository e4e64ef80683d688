#include <array>
#include <string>

#include "carillon/tune/model.h"
#include "carillon/tune/policies.h"
#include "carillon/tune/tuning.h"

namespace carillon::tune {
namespace {

constexpr std::array<std::string_view, 4> names{"fifo", "static", "dynamic", "best"};

Result<> out_of_range(const std::string& name, const std::string& value, const std::string& range) {
  return invalid(name + " is " + value + ", but must be from " + range);
}

Result<> check(const TuneOptions& o) {
  if (o.alpha && !(*o.alpha >= 1 && *o.alpha <= 100))
    return out_of_range("alpha", number_text(*o.alpha), "1 to 100");
  if (o.beta && !(*o.beta >= 1 && *o.beta <= 100))
    return out_of_range("beta", number_text(*o.beta), "1 to 100");
  if (o.move && o.move->count() < 0) return invalid("the cost of a move is negative");
  if (o.c && (*o.c < 1 || *o.c > 64)) return out_of_range("c", std::to_string(*o.c), "1 to 64");
  if (o.d && (*o.d < 1 || *o.d > static_cast<int>(most_devices)))
    return out_of_range("d", std::to_string(*o.d), "1 to " + std::to_string(most_devices));
  if (!(o.threshold >= 0 && o.threshold < 1))
    return out_of_range("the threshold of equation 3.1", number_text(o.threshold), "0 to below 1");
  if (o.most_packed < 1 || o.most_packed > 64)
    return out_of_range("most_packed", std::to_string(o.most_packed), "1 to 64");
  if (o.effort < 1000 || o.effort > 1'000'000'000)
    return out_of_range("effort", std::to_string(o.effort), "1000 to 1000000000");
  if (o.reaction && o.reaction->count() <= 0) return invalid("the reaction of the tuner must be above 0");
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
