#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/frontend/telemetry/watch.h"

namespace carillon::frontend {

class Caller;
struct Commons;

// Which models a status has, and in which order.
struct StatusQuery {
  enum class Sort : std::uint8_t {
    name,
    rate,     // the highest first
    trouble,  // broken ones, then those with most requests that were not on time in the last minute, then
              // those with the highest p99 against their SLO
  };
  Sort sort = Sort::name;
  std::string part;  // of the name, whatever the case of ASCII letters; empty: all
  std::size_t offset = 0;
  std::size_t limit = std::numeric_limits<std::size_t>::max();
};
// From the query of a request's target: `sort`, `name`, `offset` and `limit`, each of which may be left out.
// Errors name the value and what it may be.
Result<StatusQuery> parse_status_query(std::string_view target);

// The server, its devices and models as JSON, for people who look at it (docs/admin-page.md): of the models,
// and of what devices do, those that the caller may use (null: all). It waits for nobody. The counts of the
// last minute are of all of these models, whichever of them the query wants. O(models), and as long as the
// query wants.
std::string status_json(Watch& watch, const Commons& commons, const Caller* caller,
                        const StatusQuery& query = {});

// The last hour, from the sample of number `since` on, which is the `next` of an earlier answer; empty: all
// of it. Without samples for a caller whose key is not for all models. Errors: `since` is no number.
Result<std::string> trend_json(Watch& watch, std::string_view since, const Caller* caller);

}  // namespace carillon::frontend
