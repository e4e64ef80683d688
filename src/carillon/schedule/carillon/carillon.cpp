#include "carillon/schedule/carillon/carillon.h"

#include <algorithm>
#include <variant>

namespace carillon::schedule {
namespace {

// After that time a wait for a device that was measured counts e times less: long beside bursts, short beside
// the day.
constexpr Duration wait_horizon = 10s;
// For how many requests beyond a tail there has to be room before it is believed: its share is then known to
// a half.
constexpr double known_after = 4;
// Where a part has more to do than one event allows, and nothing else happens, it goes on after that time.
constexpr Duration planned_after = 100us;

// A Wake says nothing, but for what schedulers around the policy did before they passed it on.
bool says_something(const Event& event, const ledger::Ledger::Changes& changes) {
  return !std::holds_alternative<Wake>(event) || !changes.back.empty() || !changes.ended.empty();
}

}  // namespace

Carillon::Carillon(const Environment& environment, const CarillonOptions& options)
    : Policy(environment),
      options_(options),
      kinds_(options.kinds > 0, environment.classes),
      life_(environment, environment.preemption == Preemption::deadline, options.chance > 0, &kinds_),
      plan_(environment, options.worth > 0),
      shortage_(plan_),
      in_time_(options.chance > 0, plan_, shortage_),
      fair_(options.fair, options.tenants),
      waits_(parts::Plan::exceeded, wait_horizon, known_after),
      view_{.options = options_,
            .kinds = kinds_,
            .life = life_,
            .placing = placing_,
            .plan = plan_,
            .keep_off = keep_off_,
            .shortage = shortage_,
            .in_time = in_time_,
            .fair = fair_,
            .free = free_,
            .waits = waits_,
            .overtakes = environment.preemption == Preemption::deadline},
      batches_(view_),
      deferral_(view_, environment, batches_, waits_),
      lines_(view_, batches_, deferral_, life_, placing_, shortage_, fair_),
      matching_(view_, batches_, lines_, life_, keep_off_, free_),
      settings_(view_, keep_off_, plan_) {}

TimePoint Carillon::act(const Event& event, Orders& out) {
  std::optional<RequestId> turned_away;
  if (const auto* const arrival = std::get_if<RequestArrived>(&event)) {
    turned_away = hear(*arrival, event, out);
    if (arrival->more) return wake_;
  } else if (says_something(event, out.ledger().changes())) {
    hear(event, out);
  }
  // What follows from it.
  if (plan_.due(out.time()) || keep_off_.planning()) go_on(out);
  life_.expire(out);
  shortage_.find(out.ledger().alive(), out.time());
  if (fair_.on()) fair_.step(out.ledger().alive(), out.time());
  lines_.step(out);
  matching_.step(out);
  placing_.step(life_, out);
  life_.settle(out);
  if (!out.ledger().changes().refused.empty()) count_lost(turned_away, out);
  // When there is more to do.
  wake_ = std::min({lines_.wake_at(), life_.wake_at(out.time()), placing_.wake_at(), matching_.wake_at()});
  if (plan_.busy() || keep_off_.planning() || lines_.busy() || matching_.busy())
    wake_ = std::min(wake_, out.time() + planned_after);
  return wake_ = std::max(wake_, out.time() + Duration{1});
}

// What follows from other kinds for all that plans by them.
void Carillon::follow_kinds(Orders& out) {
  const auto changes = kinds_.take_changes();
  for (const auto& come : changes.come) life_.know(come.as, come.model);
  for (const auto& [from, to] : changes.moves) {
    life_.move(from, to);
    for (const Class cls : all_classes)
      for (const ModelId as : {from, to}) lines_.look_soon(line_of(as, cls));
  }
  if (changes.forgotten) life_.forget_names();
  for (const auto& come : changes.come) {
    out.plan(come.as, come.info);
    plan_.hear(ModelChanged{come.as, come.info}, out);
    deferral_.renew(come.as);
    for (const Class cls : all_classes) lines_.look_soon(line_of(come.as, cls));
  }
}

// What an event says that is no arrival.
void Carillon::hear(const Event& event, Orders& out) {
  kinds_.hear(event, out.ledger(), out.time());
  if (kinds_.changed()) follow_kinds(out);
  life_.hear(event, out);
  placing_.hear(event, life_, out);
  plan_.hear(event, out);
  follow(event, out);
}

// What an arrival says. Its request, if that is not admitted.
std::optional<RequestId> Carillon::hear(const RequestArrived& arrival, const Event& event, Orders& out) {
  const Request& request = arrival.request;
  kinds_.arrived(request, out.time());
  if (kinds_.changed()) follow_kinds(out);
  life_.hear(event, out);
  if (placing_.any() || out.ledger().alive() == 0) placing_.hear(event, life_, out);
  plan_.arrived(request, kinds_.of(request), out.time());
  const bool admitted = !fair_.on(request) || admit(request, out);
  lines_.came(request);
  if (!out.ledger().changes().back.empty()) follow(event, out);
  return admitted ? std::nullopt : std::optional(request.id);
}

// Which settings, lines and devices are to be looked at again.
void Carillon::follow(const Event& event, Orders& out) {
  if (settings_.hear(event, out)) matching_.relieve();
  lines_.hear(event, out);
  matching_.hear(event, out);
}

// Plans, now and then.
void Carillon::go_on(Orders& out) {
  if (plan_.step(out)) {
    for (const DeviceId device : plan_.paces().take_stepped()) matching_.know(device, out);
    if (settings_.step(out.time())) matching_.relieve();
    if (options_.keep_off > 0) keep_off_.begin(plan_);
    lines_.look_at_changed();
    deferral_.planned();
  }
  if (keep_off_.planning() && keep_off_.go_on(plan_, out.ledger())) matching_.relieve();
}

// Counts a request that came for its tenant. False: it is refused, as modest ones would be late for its sake.
bool Carillon::admit(const Request& request, Orders& out) {
  const ModelId as = kinds_.of(request);
  const std::size_t alive = out.ledger().alive();
  const double load = shortage_.backlog().load(alive, out.time());
  if (fair_.came(request, line_of(as, request.cls), plan_.work(as), load, alive, out.time()) ||
      !life_.waiting().has(request.id))
    return true;
  life_.refuse(request.id, Reason::cannot_finish, saturating_add(request.deadline, Duration{1}), out);
  return false;
}

// What was refused in this event; its tenant does not lose the request that was not admitted.
void Carillon::count_lost(std::optional<RequestId> but, const Orders& out) {
  for (const auto& [refusal, model, cls] : out.ledger().changes().refused) {
    if (refusal.reason == Reason::no_model || cls == Class::best_effort) continue;
    settings_.lost(1);
    if (!fair_.on() || refusal.request == but) continue;
    kinds_.visit(model, [&](ModelId as) {
      fair_.lost(line_of(as, Class::normal), plan_.slo(as) - plan_.times(as).exec(0), out.time());
    });
  }
}

}  // namespace carillon::schedule
