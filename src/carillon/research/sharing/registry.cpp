#include <array>
#include <string>

#include "carillon/base/range.h"
#include "carillon/research/sharing/policies.h"

namespace carillon::research {
namespace {

struct Policy {
  std::string_view name;
  std::unique_ptr<Sharing> (*make)(const SharingOptions&);
};
constexpr std::array policies{Policy{"reef", make_reef}, Policy{"rt-only", make_rt_only},
                              Policy{"sequential", make_sequential}, Policy{"streams", make_streams},
                              Policy{"wait", make_wait}};

Result<> check(const SharingOptions& options) {
  for (const Result<>& checked :
       {within("units", options.units, 1, 1024), within("in_flight", options.in_flight, 1, 512),
        within<std::int64_t>("in_flight_time (ns)", options.in_flight_time.count(), 0, 1'000'000'000),
        within<std::int64_t>("dispatch (ns)", options.dispatch.count(), 0, 1'000'000'000),
        within("margin", options.margin, 0.0, 1.0), within("slowdown", options.slowdown, 0.0, 1.0),
        within("best_effort_share", options.best_effort_share, 0.0, 0.9)})
    if (!checked) return checked;
  return {};
}

}  // namespace

std::span<const std::string_view> sharing_names() {
  static constexpr auto names = [] {
    std::array<std::string_view, policies.size()> all;
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = policies[i].name;
    return all;
  }();
  return names;
}

Result<std::unique_ptr<Sharing>> make_sharing(std::string_view name, const SharingOptions& options) {
  if (const auto checked = check(options); !checked) return std::unexpected(checked.error());
  for (const Policy& policy : policies)
    if (policy.name == name) return policy.make(options);
  std::string known;
  for (const Policy& policy : policies) known.append(known.empty() ? "" : ", ").append(policy.name);
  return fail(ErrorCode::not_found,
              "there is no scheduler '" + std::string(name) + "' here; there are " + known);
}

}  // namespace carillon::research
