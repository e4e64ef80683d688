#include "carillon/schedule/carillon/matching.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "carillon/schedule/parts/lanes.h"

namespace carillon::schedule {

namespace {

// Lines that a device looks at before it idles: bounds the work.
constexpr std::size_t lines_looked_at = 64;
// Likewise devices, for a line that may start: those are not free, or too slow for it.
constexpr std::size_t devices_looked_at = 64;

}  // namespace

void Matching::hear(const Event& event, const Orders& out) {
  if (const auto* changed = std::get_if<DeviceChanged>(&event)) {
    know(changed->device, out);
    look_at(changed->device, out);  // it may have come with weights
    relieve();
  }
  for (const std::uint32_t place : out.ledger().changes().ended) {
    const auto& ended = out.ledger().at(place);
    if (ended.kind == ActionKind::infer) look_at(ended.device, out);
  }
}

void Matching::know(DeviceId device, const Orders& out) {
  const bool alive = out.ledger().device(device).alive;
  free_.know(device, alive ? std::optional(view_.plan.paces().step(device)) : std::nullopt);
}

// What runs there has changed.
void Matching::look_at(DeviceId device, const Orders& out) {
  for (const Class streams : life_.all_streams())
    free_.look(device, streams, out.ledger(), times(streams, out).dispatch(device), out.time());
  if (keep_off_.hear(out.ledger(), device)) relieve();
}

// They may take a run by now.
void Matching::look_at_due(const Orders& out) {
  for (const Class streams : life_.all_streams())
    while (const auto device = free_.due(streams, out.time()))
      free_.look(*device, streams, out.ledger(), times(streams, out).dispatch(*device), out.time());
}

void Matching::match_ready(Orders& out) {
  if (!untried_.empty())
    for (const auto& untried : std::exchange(untried_, {}))
      if (out.ledger().device(untried.device).alive) free_.stir(untried.device, untried.streams);
  parts::Ready& ready = lines_.ready();
  kept_.take(lines_looked_at, [&](std::uint32_t line) {
    ready.freshen(line);
    ++looked_at_;
  });
  while (ready.any()) {
    if (const auto stirred = free_.take_stirred()) {
      ready.list_fresh(out.ledger(),
                       [&](std::uint32_t line) { return view_.kinds.model(Waiting::of_line(line).first); });
      while (send_next(stirred->device, stirred->streams, out)) {
      }
    } else if (const auto line = ready.take_fresh()) {
      send_somewhere(*line, out);
    } else {
      return;
    }
  }
  free_.calm();
}

// Sends the first of what may start on these streams of the device, where they have room; what is fresh goes
// to the fastest device, perhaps another. False: nothing was sent, or the device has what was.
bool Matching::send_next(DeviceId device, Class streams, Orders& out) {
  const Times times = this->times(streams, out);
  const auto next = parts::next_run(out.ledger(), device, streams, times.dispatch(device), out.time());
  if (next.at > out.time() || !out.ledger().device(device).alive) return false;
  std::optional<std::uint32_t> found;
  std::optional<Choice> choice;
  bool all = true;
  std::vector<std::uint32_t>& over = over_;
  const auto find = [&](bool hope) {
    all = lines_.ready().visit(device, life_.only(streams), lines_looked_at, [&](std::uint32_t line) {
      ++looked_at_;
      const auto [model, cls] = Waiting::of_line(line);
      if (life_.waiting().head(model, cls) == nullptr) {
        over.push_back(line);
        return false;
      }
      if (!parts::runs_there(out.ledger(), device, view_.kinds.model(model))) return false;
      choice = may_start(line, device, times, next.start, hope, out);
      if (choice) found = line;
      return choice.has_value();
    });
  };
  const bool pressed = view_.shortage.pressed();
  find(!pressed);
  if (!found && pressed && view_.in_time.takes_chances(device, streams, out.ledger()))
    find(true);                                                       // nobody else has the device now
  for (const std::uint32_t line : over) lines_.ready().remove(line);  // its requests were refused
  over.clear();
  if (!all) untried_.push_back({.device = device, .streams = streams});
  if (!found) return false;
  if (lines_.ready().fresh(*found) && send_somewhere(*found, out)) return true;
  send(*found, device, *choice, out);
  return false;
}

// Sends what the line may start to the fastest device that can. False: there is none.
bool Matching::send_somewhere(std::uint32_t line, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  const Class streams = life_.streams(cls);
  const ModelId whole = view_.kinds.model(model);
  const bool everywhere = out.ledger().model(whole).info->pages == 0;
  const Times times = this->times(streams, out);
  std::size_t tried = 0;
  const bool sent =
      free_.visit(streams, everywhere ? nullptr : &view_.placing.loaded(whole), [&](DeviceId device) {
        ++looked_at_;
        const auto next = parts::next_run(out.ledger(), device, streams, times.dispatch(device), out.time());
        if (next.at > out.time() || !out.ledger().device(device).alive) {
          free_.take_out(device, streams);
          return false;
        }
        if (++tried > devices_looked_at) return true;
        const auto choice = may_start(line, device, times, next.start, true, out);
        if (choice) send(line, device, *choice, out);
        return choice.has_value();
      });
  if (sent && tried <= devices_looked_at) return true;
  lines_.ready().list(line, out.ledger(), whole);
  if (tried > 0) lines_.doubt(line, out.time());
  return false;
}

// What may start on the device, which has the model. `hope`: see Batches::choose().
std::optional<parts::Choice> Matching::may_start(std::uint32_t line, DeviceId device, const Times& times,
                                                 TimePoint start, bool hope, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  const Waiting::Head* const head = life_.waiting().head(model, cls);
  if (head == nullptr) return std::nullopt;
  if (!keeps_off(device, model, out)) return batches_.choose(*head, times, device, start, hope, out);
  kept_.keep(line);
  return std::nullopt;
}

// KeepOff takes every device for as good as any other. Where memory is scarce a device that a long run keeps
// off may not have the quick models, and others have no copy of the long one: there Placing keeps them apart.
bool Matching::keeps_off(DeviceId device, ModelId model, const Orders& out) const {
  return !view_.placing.scarce() && !keep_off_.may_run(out.ledger(), device, model);
}

void Matching::send(std::uint32_t line, DeviceId device, const Choice& choice, Orders& out) {
  lines_.send(line, device, choice, out);
  look_at(device, out);
  lines_.look(line, out);
}

void Matching::overtake(Orders& out) {
  if (life_.waiting().heads().empty()) return;
  const auto devices = may_make_way_.next(free_, out.ledger());
  if (const auto overtaken = parts::overtake(life_, devices, times(Class::normal, out), out)) {
    look_at(overtaken->device, out);
    lines_.look(line_of(overtaken->head.model, overtaken->head.cls), out);
  }
}

}  // namespace carillon::schedule
