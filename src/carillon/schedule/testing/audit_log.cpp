// carillon_audit LOG: drives the scheduler of a log anew, with a ledger beside it, and holds all that the
// scheduler's parts know against the ledger, after each event. Prints what differs; exits with 1 where
// something does.
#include <cstdio>

#include "carillon/schedule/log/reader.h"
#include "carillon/schedule/registry.h"
#include "carillon/schedule/testing/audit.h"

int main(int count, char** arguments) {
  using namespace carillon;
  if (count != 2) {
    std::fprintf(stderr, "usage: carillon_audit LOG\n");
    return 2;
  }
  const auto fail = [](const Error& error) {
    std::fprintf(stderr, "%s\n", error.message.c_str());
    return 2;
  };
  auto reader = schedule::log::LogReader::open(arguments[1]);
  if (!reader) return fail(reader.error());
  const auto scheduler = schedule::make_scheduler(reader->scheduler(), reader->environment());
  if (!scheduler) return fail(scheduler.error());
  schedule::testing::Shadowed shadowed(**scheduler);
  while (true) {
    const auto next = reader->next();
    if (!next) return fail(next.error());
    if (!*next) break;
    schedule::Actions actions;
    shadowed.decide((*next)->event, (*next)->now, actions);
  }
  std::printf("%llu checks\n%s", static_cast<unsigned long long>(shadowed.findings().checks()),
              shadowed.findings().text().c_str());
  return shadowed.findings().all().empty() ? 0 : 1;
}
