#include "carillon/cluster/election/testing/election_world.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/cluster/election/election.h"
#include "carillon/cluster/election/witness.h"

namespace carillon::cluster::election::testing {
namespace {

using Kind = Message::Kind;

struct Happening {
  enum class What : std::uint8_t {
    tick,
    message,
    order,
    asked,     // the coordinator
    answered,  // by the coordinator, or told by it
    failed,    // a request
    sync,      // a member that is new asks for the value
    fault,
    mend,
  };
  TimePoint at;
  std::uint64_t order = 0;  // ties
  What what = What::tick;
  std::size_t to = 0, from = 0;
  std::uint64_t life = 0;  // of `to`, or of who asked; else in vain
  std::uint64_t number = 0;
  Message message{};
  Leadership value{};
  bool claim = false, set = false;

  friend bool operator>(const Happening& a, const Happening& b) {
    return std::pair{a.at, a.order} > std::pair{b.at, b.order};
  }
};
using What = Happening::What;

struct Fault {
  enum class What : std::uint8_t { cut, halves, alone, pause, crash, gone, slow, coordinator_cut, handover };
  What what = What::cut;
  TimePoint until;
  std::size_t one = 0, other = 0;
  bool both = true;        // directions; else from `one`
  bool of_leader = false;  // `one` is who leads when the fault begins
  std::uint64_t side = 0;
  std::uint64_t life = 0;
};

struct Host {
  bool scheduler = false, up = false, paused = false;
  bool deaf = false;  // while it is paused: the whole host stands still, and what comes is lost
  std::uint64_t life = 0;
  Duration zero{0};
  double ppm = 0;
  std::optional<Election> election;
  std::optional<Witness> witness;
  std::vector<Happening> waiting;
  int from_coordinator_cut = 0;
  std::uint64_t request = 0;
  // What the world knows of it.
  Epoch told;     // by anything that this process was passed
  Epoch obeyed;   // by any process of the member
  Epoch at_rest;  // obeyed since the check began
  bool awake = false, unread = false;
  TimePoint ticked;
  Epoch handed;  // the last epoch in which it began a handover
};

class ElectionWorld {
 public:
  ElectionWorld(std::uint64_t seed, Faults faults, Plant plant)
      : random_(seed), views_(~seed), faults_(faults), plant_(plant) {
    schedulers_ = 2 + random_.below(2);
    if (faults == Faults::dead_spares) schedulers_ += 1 + random_.below(4);
    hosts_.resize(schedulers_ + 3 + random_.below(6));
    cut_.assign(hosts_.size() * hosts_.size(), 0);
    const bool wild = faults == Faults::all;
    near_ = wild ? 50us + part(2ms) : 100us;
    tail_ = wild ? part(3ms) : 300us;
    far_ = wild ? 30ms : 1ms;
    loss_ = wild ? 0.1 * random_.uniform() * random_.uniform() : 0.001;
    twice_ = wild && random_.below(2) == 0 ? 0.05 : 0;
    coordinator_ = wild ? 300us + part(5ms) : 500us;
    if (plant == Plant::stalls_counted) options_.witness.stall = 1h;
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      hosts_[i].scheduler = i < schedulers_;
      hosts_[i].zero = part(2000s) - 1000s;
      hosts_[i].ppm = 200 * random_.uniform() - 100;
      members_.push_back({MemberId{i}, hosts_[i].scheduler});
    }
  }

  ElectionWorldFigures run() {
    for (std::size_t i = 0; i < hosts_.size(); ++i) start(i);
    switch (faults_) {
      case Faults::all:
        draw_faults();
        run_until(TimePoint{faults_end});
        mend_all();
        run_until(TimePoint{faults_end + rest_within});
        check_rest();
        run_until(TimePoint{faults_end + rest_within + 200ms});
        check_rest();
        for (std::size_t i = schedulers_; i < hosts_.size() && !figures_.broken; ++i)
          if (hosts_[i].at_rest != value_.epoch)
            broken("member " + std::to_string(i) + " obeyed no order at rest");
        figures_.rest = std::max(Duration{0}, settled_ - TimePoint{faults_end});
        break;
      case Faults::leader:
        run_until(TimePoint{300ms + part(100ms)});
        crash_leader();
        break;
      case Faults::dead_spares:
        run_until(TimePoint{300ms + part(100ms)});
        crash_spares();
        crash_leader();
        break;
      case Faults::spare:
        run_until(TimePoint{300ms});
        trouble_spare();
        break;
      case Faults::stalls:
        run_until(TimePoint{300ms});
        stall_all();
        break;
      case Faults::handover:
        run_until(TimePoint{300ms + part(100ms)});
        hand_over();
        break;
    }
    figures_.epochs = value_.epoch.value;
    for (const Host& h : hosts_) count(h);
    return figures_;
  }

 private:
  static constexpr Duration faults_end = 1200ms;

  // --- draws
  Duration part(Duration whole) { return from_ns(random_.uniform() * static_cast<double>(whole.count())); }
  bool chance(double p) { return p > 0 && random_.uniform() < p; }
  Duration way() {
    return std::min(near_ + from_ns(random_.exponential(static_cast<double>(tail_.count()) + 1)), far_);
  }
  Duration coordinator_way() {
    const Duration usual = coordinator_ / 2 + from_ns(random_.exponential(300e3));
    return slow_ > 0 ? usual + part(150ms) : std::min<Duration>(usual, 20ms);
  }

  void broken(const std::string& what) {
    if (!figures_.broken)
      figures_.broken = "at " + std::to_string(to_ms(now_ - TimePoint{})) + " ms: " + what;
  }
  void add(Happening h) {
    h.order = happenings_++;
    queue_.push(h);
  }
  TimePoint clock(const Host& h) const {
    const Duration t = now_ - TimePoint{};
    return TimePoint{h.zero + t + from_ns(static_cast<double>(t.count()) * h.ppm * 1e-6)};
  }
  int& cut(std::size_t from, std::size_t to) { return cut_[from * hosts_.size() + to]; }

  // --- processes
  void start(std::size_t i) {
    Host& h = hosts_[i];
    h.up = true;
    h.paused = h.awake = h.unread = false;
    h.waiting.clear();
    ++h.life;
    h.told = {};
    h.handed = {};
    const Incarnation incarnation{plant_ == Plant::no_incarnation ? 1 : 100 * i + h.life};
    if (h.scheduler) {
      h.election.emplace(MemberId{i}, incarnation, options_);
      h.election->set_members(members_);
    } else {
      h.witness.emplace(options_.witness);
      add({.at = now_, .what = What::sync, .to = i, .life = h.life});
    }
    add({.at = now_ + part(2ms), .what = What::tick, .to = i, .life = h.life});
  }
  void crash(std::size_t i) {
    count(hosts_[i]);
    hosts_[i].election.reset();
    hosts_[i].witness.reset();
    hosts_[i].up = false;
  }
  void count(const Host& h) {
    const Witness* const witness = h.election ? &h.election->witness() : h.witness ? &*h.witness : nullptr;
    if (witness == nullptr) return;
    figures_.refused += witness->counters().refused;
    figures_.stalls += witness->counters().stalls;
    if (!h.election) return;
    const ElectionCounters& counters = h.election->counters();
    figures_.claims += counters.claims;
    figures_.won += counters.won;
    figures_.withdrawn += counters.withdrawn;
    figures_.denied += counters.denied;
    figures_.unanswered += counters.unanswered;
    figures_.unknown += counters.unknown;
    figures_.handed_over += counters.handovers - counters.kept;
  }

  void tick(std::size_t i) {
    Host& h = hosts_[i];
    // A stall that a process must notice, with what clocks differ by.
    h.unread = h.unread || (h.awake && now_ - h.ticked > WitnessOptions{}.stall + 10us && !h.waiting.empty());
    h.ticked = now_;
    if (faults_ == Faults::all && h.election && views_.below(20) == 0) {
      for (Member& member : members_) member.there = views_.below(2) == 0;
      // At rest a leader hears somebody.
      if (now_ >= TimePoint{faults_end}) members_[(i + 1) % members_.size()].there = true;
      h.election->set_members(members_);
    }
    h.awake = h.election ? h.election->tick(clock(h), out_) : h.witness->tick(clock(h));
    after(i);
  }
  void resume(std::size_t i) {
    Host& h = hosts_[i];
    h.paused = false;
    tick(i);
    const std::vector<Happening> waited = std::exchange(h.waiting, {});
    for (const Happening& w : waited)
      if (h.up) pass_on(w);
    h.unread = false;
    if (random_.below(2) == 0) tick(i);
    add({.at = now_ + part(2ms), .what = What::tick, .to = i, .life = h.life});
  }

  // Something has come for a process that runs.
  void pass_on(const Happening& w) {
    Host& h = hosts_[w.to];
    switch (w.what) {
      case What::message: {
        if (h.election && plant_ == Plant::no_stop && h.election->leads() &&
            w.message.epoch > h.election->epoch()) {
          h.told = std::max(h.told, w.message.epoch);
          return check_leads(w.to);
        }
        h.told = std::max(h.told, w.message.epoch);
        if (h.election) {
          h.election->heard(MemberId{w.from}, w.message, out_);
          after(w.to);
        } else if (const auto reply = h.witness->heard(MemberId{w.from}, w.message)) {
          send(w.to, w.from, *reply);
        }
        return;
      }
      case What::order: {
        if (h.election) {
          h.told = std::max(h.told, w.message.epoch);
          h.election->heard(MemberId{w.from}, {.kind = Kind::told, .epoch = w.message.epoch}, out_);
          return after(w.to);
        }
        ++figures_.orders;
        if (h.witness->obeys(w.message.epoch) || plant_ == Plant::no_fence) {
          if (w.message.epoch < h.obeyed)
            broken("member " + std::to_string(w.to) + " obeyed epoch " +
                   std::to_string(w.message.epoch.value) + " after " + std::to_string(h.obeyed.value));
          h.obeyed = h.at_rest = std::max(h.obeyed, w.message.epoch);
        } else {
          send(w.to, w.from, h.witness->told());
        }
        return;
      }
      case What::answered: {
        if (!h.election) {
          h.witness->coordinator_said(w.value);
          return;
        }
        h.told = std::max(h.told, w.value.epoch);
        if (plant_ == Plant::no_stop && h.election->leads() && w.value.epoch > h.election->epoch())
          return check_leads(w.to);
        Leadership said = w.value;
        if (plant_ == Plant::blind_claim && !w.set) said.incarnation = {};
        h.election->coordinator_said(said, out_);
        after(w.to);
        if (w.value.epoch > Epoch{0} && w.value.leader == MemberId{w.to} &&
            life_of_[w.value.epoch] == h.life && w.value.epoch >= h.told && h.awake &&
            h.handed != w.value.epoch && !h.election->leads())
          broken("scheduler " + std::to_string(w.to) + " was told that epoch " +
                 std::to_string(w.value.epoch.value) + " is its own, and does not lead");
        return;
      }
      case What::failed:
        if (h.election && h.request == w.number) h.election->coordinator_failed();
        return;
      case What::tick:
      case What::asked:
      case What::sync:
      case What::fault:
      case What::mend:
        return;
    }
  }

  // Carries out what a process wants, and holds it to its promises.
  void after(std::size_t i) {
    Host& h = hosts_[i];
    if (!h.election) return;
    for (std::size_t k = 0; k < out_.messages.size(); ++k) {
      const auto [to, message] = out_.messages[k];
      if (plant_ == Plant::no_asking && message.kind == Kind::question) {
        Message silent = message;
        silent.kind = Kind::silent;
        h.election->heard(to, silent, out_);
      } else {
        send(i, to.index(), message);
      }
    }
    out_.messages.clear();
    if (out_.request) {
      ask_coordinator(i, *out_.request);
      out_.request.reset();
    }
    check_leads(i);
    if (h.election->leads() && random_.below(2) == 0) {
      next_order_ = (next_order_ + 1) % hosts_.size();
      if (next_order_ != i)
        send(i, next_order_, {.kind = Kind::told, .epoch = h.election->epoch()}, What::order);
    }
    if (plant_ == Plant::claims_cut_off && h.election->counters().unanswered > cut_off_[i]) {
      cut_off_[i] = h.election->counters().unanswered;
      ask_coordinator(
          i, {.kind = Request::Kind::claim,
              .claim = {Epoch{h.election->epoch().value + 1}, MemberId{i}, Incarnation{100 * i + h.life}}});
    }
  }

  void check_leads(std::size_t i) {
    Host& h = hosts_[i];
    if (!h.election->leads()) return;
    const Epoch epoch = h.election->epoch();
    const std::string who = "scheduler " + std::to_string(i) + " leads epoch " + std::to_string(epoch.value);
    const auto [led, first] = led_.try_emplace(epoch, i, h.life);
    if (first) last_led_ = now_;
    if (led->second != std::pair{i, h.life})
      broken(who + " that scheduler " + std::to_string(led->second.first) + " or its earlier process led");
    if (epoch < h.told) broken(who + " and was told of " + std::to_string(h.told.value));
    if (h.unread) broken(who + " after a stall, and has not read what waits");
    if (!life_of_.contains(epoch)) broken(who + " that the coordinator never had");
  }

  // --- links
  void send(std::size_t from, std::size_t to, const Message& message, What what = What::message) {
    if (cut(from, to) > 0) return;
    for (int copies = chance(twice_) ? 2 : 1; copies > 0; --copies)
      if (!chance(loss_)) add({.at = now_ + way(), .what = what, .to = to, .from = from, .message = message});
  }

  // --- the coordinator
  bool coordinator_reached(std::size_t by) const {
    return gone_ == 0 && hosts_[by].from_coordinator_cut == 0;
  }
  void ask_coordinator(std::size_t i, const Request& request) {
    Host& h = hosts_[i];
    Happening asked{
        .at = now_ + coordinator_way(), .what = What::asked, .to = i, .life = h.life, .number = ++h.request};
    asked.value = request.claim;
    asked.claim = request.kind == Request::Kind::claim;
    if (!coordinator_reached(i)) return fail(asked);
    add(asked);
  }
  // No answer comes; some clients say so after a while.
  void fail(Happening asked) {
    if (random_.below(2) == 0) return;
    asked.at = now_ + part(60ms);
    asked.what = What::failed;
    add(asked);
  }
  void serve(Happening asked) {
    if (!coordinator_reached(asked.to)) return fail(asked);
    Happening answer = asked;
    if (asked.claim && (asked.value.epoch.value == value_.epoch.value + 1 || plant_ == Plant::no_compare)) {
      if (asked.value.epoch < value_.epoch) broken("the coordinator's epoch falls");
      value_ = asked.value;
      life_of_[value_.epoch] = asked.life;
      answer.set = true;
      for (std::size_t i = 0; i < hosts_.size(); ++i)
        if (coordinator_reached(i) && !chance(lossy_ > 0 ? 0.5 : 0)) tell(i);
    }
    answer.value = value_;
    answer.what = What::answered;
    answer.at = now_ + coordinator_way();
    if (chance(lossy_ > 0 ? 0.5 : 0)) return fail(asked);
    add(answer);
  }
  void tell(std::size_t i) {
    Happening told{.at = now_ + coordinator_way(), .what = What::answered, .to = i, .life = hosts_[i].life};
    told.value = value_;
    add(told);
  }

  // --- the run
  void run_until(TimePoint end) {
    while (!figures_.broken && !queue_.empty() && queue_.top().at <= end) {
      const Happening h = queue_.top();
      queue_.pop();
      now_ = h.at;
      ++figures_.events;
      happen(h);
    }
    now_ = std::max(now_, end);
  }
  void happen(const Happening& w) {
    Host& h = hosts_[w.to];
    const bool alive = h.up && h.life == w.life;
    switch (w.what) {
      case What::tick:
        if (!alive || h.paused) return;
        tick(w.to);
        add({.at = now_ + 1800us + std::min<Duration>(from_ns(random_.exponential(200e3)), 2ms),
             .what = What::tick,
             .to = w.to,
             .life = w.life});
        return;
      case What::message:
      case What::order:
        if (h.up) come(w);
        return;
      case What::answered:
        if (alive && (faults_ != Faults::all || h.from_coordinator_cut == 0)) come(w);
        return;
      case What::failed:
        if (alive) come(w);
        return;
      case What::asked:
        return serve(w);
      case What::sync:
        if (!alive) return;
        if (coordinator_reached(w.to)) return tell(w.to);
        add({.at = now_ + 20ms, .what = What::sync, .to = w.to, .life = w.life});
        return;
      case What::fault:
        return begin(w.number);
      case What::mend:
        return mend(w.number);
    }
  }
  void come(const Happening& w) {
    constexpr std::size_t socket_holds = 200;
    Host& h = hosts_[w.to];
    if (!h.paused) return pass_on(w);
    if (!h.deaf && h.waiting.size() < socket_holds) h.waiting.push_back(w);
  }

  // --- faults
  void add_fault(const Fault& fault, TimePoint at) {
    drawn_.push_back(fault);
    add({.at = at, .what = What::fault, .number = drawn_.size() - 1});
    add({.at = fault.until, .what = What::mend, .number = drawn_.size() - 1});
  }
  Fault draw_fault(TimePoint at, Duration longest) {
    Fault fault;
    fault.what = static_cast<Fault::What>(random_.below(9));
    fault.until = at + from_ms(2 * std::pow(to_ms(longest) / 2, random_.uniform()));
    // Half of the faults are of schedulers.
    const auto any = [&] { return random_.below(random_.below(2) == 0 ? schedulers_ : hosts_.size()); };
    fault.one = any();
    fault.other = any();
    fault.both = random_.below(2) == 0;
    fault.side = random_.bits();
    return fault;
  }
  void draw_faults() {
    const TimePoint last{faults_end - 20ms};
    for (std::uint64_t n = 4 + random_.below(16); n > 0; --n) {
      const TimePoint at = TimePoint{part(last - TimePoint{})};
      Fault fault = draw_fault(at, 500ms);
      fault.of_leader = random_.below(3) == 0;
      fault.until = std::min(fault.until, last);
      add_fault(fault, at);
    }
  }
  void cut_all(const Fault& f, int by) {
    for (std::size_t i = 0; i < hosts_.size(); ++i)
      for (std::size_t j = 0; j < hosts_.size(); ++j) {
        const auto in = [&](std::size_t k) {
          return f.what == Fault::What::halves ? (f.side >> k & 1) != 0 : k == f.one;
        };
        if (f.what == Fault::What::cut ? i == f.one && j == f.other : in(i) && !in(j)) {
          cut(i, j) += by;
          if (f.both) cut(j, i) += by;
        }
      }
  }
  void begin(std::size_t number) {
    Fault& f = drawn_[number];
    if (f.of_leader) f.one = leader().value_or(f.one);
    Host& h = hosts_[f.one];
    f.life = h.life;
    switch (f.what) {
      case Fault::What::cut:
      case Fault::What::halves:
      case Fault::What::alone:
        return cut_all(f, 1);
      case Fault::What::pause:
        if (h.paused || !h.up) {
          f.life = 0;
          return;
        }
        h.paused = true;
        h.deaf = !f.both;
        return;
      case Fault::What::crash:
        if (!h.up) {
          f.life = 0;
          return;
        }
        return crash(f.one);
      case Fault::What::gone:
        ++gone_;
        return;
      case Fault::What::slow:
        ++(f.both ? slow_ : lossy_);
        return;
      case Fault::What::coordinator_cut:
        ++h.from_coordinator_cut;
        return;
      case Fault::What::handover:
        for (std::size_t i = 0; i < schedulers_; ++i)
          if (hosts_[i].up && !hosts_[i].paused && hosts_[i].election->leads() &&
              hosts_[i].election->hand_over(MemberId{f.side % schedulers_}, out_)) {
            hosts_[i].handed = hosts_[i].election->epoch();
            after(i);
          }
        return;
    }
  }
  void mend(std::size_t number) {
    const Fault& f = drawn_[number];
    Host& h = hosts_[f.one];
    switch (f.what) {
      case Fault::What::cut:
      case Fault::What::halves:
      case Fault::What::alone:
        return cut_all(f, -1);
      case Fault::What::pause:
        if (h.up && h.life == f.life && h.paused) resume(f.one);
        return;
      case Fault::What::crash:
        if (f.life != 0 && !h.up) start(f.one);
        return;
      case Fault::What::gone:
        --gone_;
        return;
      case Fault::What::slow:
        --(f.both ? slow_ : lossy_);
        return;
      case Fault::What::coordinator_cut:
        --h.from_coordinator_cut;
        return;
      case Fault::What::handover:
        return;
    }
  }
  // All faults have ended. Links and the coordinator's watch are well from now on.
  void mend_all() {
    near_ = 100us;
    tail_ = 300us;
    far_ = 1ms;
    loss_ = twice_ = 0;
    for (std::size_t i = 0; i < hosts_.size(); ++i) tell(i);
  }
  void check_rest() {
    if (figures_.broken) return;
    std::size_t leaders = 0;
    for (std::size_t i = 0; i < schedulers_; ++i) leaders += hosts_[i].election->leads() ? 1 : 0;
    if (leaders != 1) broken(std::to_string(leaders) + " schedulers lead at rest");
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      Host& h = hosts_[i];
      const Witness& witness = h.election ? h.election->witness() : *h.witness;
      if (witness.epoch() != value_.epoch || witness.leader() != value_.leader)
        broken("member " + std::to_string(i) + " does not know the leader at rest");
      if (settled_ == TimePoint{}) h.at_rest = {};
    }
    if (settled_ == TimePoint{}) {
      settled_ = last_led_;
      settled_epoch_ = value_.epoch;
    } else if (settled_epoch_ != value_.epoch) {
      broken("an election at rest");
    }
  }

  std::optional<std::size_t> leader() const {
    for (std::size_t i = 0; i < schedulers_; ++i)
      if (hosts_[i].up && hosts_[i].election->leads()) return i;
    return std::nullopt;
  }
  void crash_leader() {
    const auto old = leader();
    if (!old) return broken("nobody leads after the start");
    crash(*old);
    await_leader();
  }
  // All but the leader and another one, which miss the dead by when the next fault comes.
  void crash_spares() {
    const auto leading = leader();
    if (!leading) return broken("nobody leads after the start");
    const std::size_t left = (*leading + 1 + random_.below(schedulers_ - 1)) % schedulers_;
    for (std::size_t i = 0; i < schedulers_; ++i)
      if (i != *leading && i != left) {
        crash(i);
        members_[i].there = plant_ == Plant::none_missed;
      }
    run_until(now_ + 40ms + part(100ms));
    for (Host& h : hosts_)
      if (h.election) h.election->set_members(members_);
  }
  void hand_over() {
    const auto old = leader();
    if (!old) return broken("nobody leads after the start");
    const std::size_t to = (*old + 1 + random_.below(schedulers_ - 1)) % schedulers_;
    if (!hosts_[*old].election->hand_over(MemberId{to}, out_)) return broken("no handover");
    hosts_[*old].handed = value_.epoch;
    after(*old);
    await_leader();
    if (leader() != to || value_.epoch != Epoch{2}) broken("another than the spare that was named leads");
  }
  void await_leader() {
    const TimePoint from = now_;
    while (!figures_.broken && !leader() && now_ - from < 2s) run_until(now_ + 100us);
    figures_.gap = now_ - from;
    run_until(now_ + 100ms);
    if (!leader()) broken("nobody leads");
  }
  void trouble_spare() {
    const auto leading = leader();
    if (!leading) return broken("nobody leads after the start");
    const std::size_t spare = (*leading + 1 + random_.below(schedulers_ - 1)) % schedulers_;
    const bool link = random_.below(3) == 0;
    for (std::uint64_t n = 3 + random_.below(5); n > 0; --n) {
      const TimePoint at = now_ + part(700ms);
      Fault fault = draw_fault(at, 300ms);
      fault.one = spare;
      fault.other = random_.below(2) == 0 ? *leading : random_.below(hosts_.size());
      constexpr Fault::What of_one[] = {Fault::What::cut, Fault::What::alone, Fault::What::pause,
                                        Fault::What::crash, Fault::What::coordinator_cut};
      fault.what = of_one[random_.below(5)];
      if (link || fault.what == Fault::What::cut) {
        fault.what = Fault::What::cut;
        if (link) fault.other = *leading;
        if (random_.below(2) == 0) std::swap(fault.one, fault.other);
      }
      add_fault(fault, at);
    }
    run_until(now_ + 1100ms);
    check_kept(*leading);
  }
  void stall_all() {
    const auto leading = leader();
    if (!leading) return broken("nobody leads after the start");
    for (int n = 0; n < 3; ++n) {
      const TimePoint at = now_ + n * 400ms + part(100ms);
      Fault fault{.what = Fault::What::pause, .until = at + 5ms + part(250ms), .both = random_.below(2) == 0};
      for (fault.one = 0; fault.one < hosts_.size(); ++fault.one) {
        Fault one = fault;
        one.until += part(3ms);
        if (fault.one != *leading) add_fault(one, at);
      }
      const TimePoint later = now_ + n * 400ms + 370ms;
      add_fault({.what = Fault::What::pause, .until = later + part(15ms), .one = *leading}, later);
    }
    run_until(now_ + 1300ms);
    check_kept(*leading);
  }
  void check_kept(std::size_t leading) {
    if (figures_.broken) return;
    if (value_.epoch != Epoch{1}) return broken("an election, though the leader was well");
    if (leader() != leading) broken("the leader stopped");
  }

  Random random_;
  Random views_;  // whom members take for there
  Faults faults_;
  Plant plant_;
  ElectionOptions options_;
  ElectionWorldFigures figures_;

  TimePoint now_;
  std::uint64_t happenings_ = 0;
  std::priority_queue<Happening, std::vector<Happening>, std::greater<>> queue_;
  std::size_t schedulers_ = 0;
  std::vector<Host> hosts_;
  std::vector<Member> members_;
  Output out_;
  std::size_t next_order_ = 0;

  Duration near_{0}, tail_{0}, far_{0}, coordinator_{0};
  double loss_ = 0, twice_ = 0;
  std::vector<int> cut_;
  int gone_ = 0, slow_ = 0, lossy_ = 0;
  std::vector<Fault> drawn_;
  std::map<std::size_t, std::uint64_t> cut_off_;

  Leadership value_;
  std::map<Epoch, std::uint64_t> life_of_;                      // the process that the coordinator gave it to
  std::map<Epoch, std::pair<std::size_t, std::uint64_t>> led_;  // that led
  TimePoint last_led_, settled_;
  Epoch settled_epoch_;
};

}  // namespace

ElectionWorldFigures run_election_world(std::uint64_t seed, Faults faults, Plant plant) {
  return ElectionWorld(seed, faults, plant).run();
}

}  // namespace carillon::cluster::election::testing
