#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "carillon/schedule/carillon/carillon.h"

namespace carillon::schedule {
namespace {

std::string percent(double share) {
  return fmt::format("{:.1f}%", 100 * share);
}
std::string ms(double seconds) {
  return fmt::format("{:.3f} ms", 1e3 * seconds);
}
// From now on; what was due is due at once.
std::string in(TimePoint at, TimePoint now) {
  if (at == TimePoint::max()) return "at any time";
  return at <= now ? "now" : "in " + ms(to_seconds(at - now));
}
// The settings that are not as at first.
void add_tried(const parts::Experiments& experiments, Terms& out) {
  using parts::Experiments;
  const auto add = [&](Experiments::Setting setting, std::string_view name, std::string value) {
    if (!experiments.differs(setting)) return;
    value += experiments.trying() ? ", on trial" : ", as more is answered so";
    out.emplace_back(name, std::move(value));
  };
  add(Experiments::keep_off, "long runs keep off",
      experiments.value(Experiments::keep_off) == 1 ? "no devices" : "half of the devices that were planned");
  add(Experiments::limit, "batches are limited for models in a hurry",
      experiments.value(Experiments::limit) == 0 ? "yes" : "no");
  add(Experiments::curb, "batches are curbed under overload",
      experiments.value(Experiments::curb) == 1 ? "yes" : "no");
}

}  // namespace

Terms Carillon::terms(ModelId whole, Class cls, TimePoint now) const {
  if (ledger() == nullptr || whole.index() >= ledger()->models() || !ledger()->model(whole).info) return {};
  ModelId model = whole;  // by the name under which its most urgent request waits
  const parts::Waiting::Head* first = nullptr;
  kinds_.visit(whole, [&](ModelId as) {
    const auto* const there = life_.waiting().head(as, cls);
    if (there == nullptr || (first != nullptr && *first < *there)) return;
    first = there;
    model = as;
  });
  const ledger::Ledger& ledger = *this->ledger();
  Terms out;
  const std::size_t alive = ledger.alive();

  std::string short_of = "no";
  const parts::Backlog& backlog = shortage_.backlog();
  if (plan_.contention() >= 1)
    short_of = "yes: by the rates, requests ask for more than all devices have";
  else if (shortage_.pressed())
    short_of = fmt::format("yes: {} of work waits for {} devices, which have {} on average for it",
                           ms(backlog.work()), alive, ms(backlog.left(now)));
  out.emplace_back("devices are short", std::move(short_of));
  out.emplace_back("a batch finds all devices busy", percent(plan_.contention()));
  out.emplace_back("device time of a request, on average", ms(shortage_.each()));

  if (const std::size_t kinds = kinds_.kinds(whole); kinds > 0)
    out.emplace_back("applications that take unlike times are told apart",
                     fmt::format("in {} {}; below is what goes first", kinds, kinds == 1 ? "kind" : "kinds"));
  const std::uint32_t line = line_of(model, cls);
  if (cls == Class::normal && fair_.first(line, now))
    out.emplace_back("modest tenant goes first",
                     fmt::format("yes: one asks of its model, below its share of {} a second on the devices",
                                 ms(fair_.shares().level())));
  else if (lines_.turn().rest(line, now))
    out.emplace_back("modest tenant goes first",
                     fmt::format("no: its model has none, and tenants ask for more than their share of {} a "
                                 "second on the devices",
                                 ms(fair_.shares().level())));

  const auto& times = plan_.times(model);
  if (!plan_.known(model)) {
    out.emplace_back("its model is asked for", "not of late");
  } else {
    const int planned = plan_.planned(model);
    out.emplace_back("its model is asked for",
                     fmt::format("{:.1f} requests a second, with {} to go", plan_.rate(model),
                                 ms(to_seconds(plan_.slo(model)))));
    out.emplace_back("planned batch", fmt::format("{} ({} of a device for each)", times.batch_size(planned),
                                                  ms(times.each(planned))));
    if (const std::size_t largest = batches_.largest_batch(line, now); largest > 0)
      out.emplace_back("largest batch that is worth its time, or spares others", std::to_string(largest));
  }
  const std::size_t off = keep_off_.devices(model);
  if (off > 0 && !placing_.scarce())
    out.emplace_back("its long runs keep off",
                     fmt::format("{} of {} devices, for quicker models", off, alive));
  add_tried(settings_.experiments(), out);
  if (ledger.model(whole).info->pages > 0)
    out.emplace_back("its weights are on",
                     fmt::format("{} of {} devices{}", ledger.model(whole).places.size(), alive,
                                 placing_.scarce() ? "; memory is short" : ""));

  const parts::Waiting::Head* const head = life_.waiting().head(model, cls);
  out.emplace_back("of its model there wait", fmt::format("{} requests", life_.waiting().size(model, cls)));
  if (head == nullptr || !free_.fastest()) return out;
  const DeviceId fastest = *free_.fastest();
  out.emplace_back("deadline of the first", in(head->deadline, now));
  const auto key = lines_.ready().key(line);
  if (!key) {
    if (const auto look = lines_.next_look(line))
      out.emplace_back("its batch waits for more", "until " + in(*look, now));
    return out;
  }
  const Class streams = life_.streams(cls);
  const parts::Times expected = in_time_.times(streams, ledger, now);
  const TimePoint start = now + expected.dispatch(fastest);
  const auto choice = batches_.first_batch(*head, expected, fastest, start, ledger, now);
  if (!choice) {
    out.emplace_back("its batch", "none is in time on the fastest device");
    return out;
  }
  out.emplace_back("its batch",
                   fmt::format("{} requests, {}", choice->batch.rows, ms(to_seconds(choice->batch.exec))));
  if (in_time_.by_chance()) {
    const auto& batches = ledger.times(streams).info(model)->batches;
    const auto at = std::ranges::find(batches, static_cast<int>(choice->batch.rows), &BatchProfile::batch);
    const ledger::Chances& chances = ledger.chances(streams);
    if (at != batches.end())
      out.emplace_back(
          "chance to be late, if it started now",
          fmt::format("{}; {} is promised",
                      percent(chances.late(fastest, model, static_cast<std::size_t>(at - batches.begin()),
                                           choice->deadline - start)),
                      percent(chances.promised(model))));
  }
  out.emplace_back("has to start", in(choice->latest(), now));
  const Duration back = key->at - choice->latest();
  if (back != Duration{0}) out.emplace_back("comes later, as it costs others more, by", ms(to_seconds(back)));
  std::vector<std::string> before;
  lines_.ready().visit(fastest, std::nullopt, lines_told, [&](std::uint32_t other) {
    if (other == line) return true;
    before.push_back(ledger.model(kinds_.model(parts::Waiting::of_line(other).first)).info->name);
    return false;
  });
  out.emplace_back("goes before it", before.empty() ? "nothing" : fmt::format("{}", fmt::join(before, ", ")));
  return out;
}

}  // namespace carillon::schedule
