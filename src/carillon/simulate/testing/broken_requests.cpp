// Clients that send what they do not, and requests that end otherwise than they did.
#include "carillon/simulate/testing/broken_promises.h"
#include "carillon/simulate/testing/checker_world.h"

namespace carillon::simulate::testing::broken {
namespace {

using schedule::Infer;
using schedule::Refuse;
using schedule::RequestArrived;
using schedule::RequestCancelled;

const Fault of_requests[] = {
    // -- time and clients
    {"time ran backwards",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome&, TimePoint& at) { return at -= delay, true; };
     }},
    {"requests out of order",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.id.value += 1, true; };
     }},
    {"unknown model",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.model.value = 3, true; };
     }},
    {"unknown model",
     [](World& w) { w.decision = each_told<Infer>([](Infer& i, TimePoint) { i.model.value = 3; }); }},
    {"a request that no client sends",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint& at) {
         r.arrival = at -= 1ns;
         r.deadline -= 1ns;
         return true;
       };
     }},
    {"a request that no client sends",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) {
         r.model.value = (r.model.value + 1) % 3;
         return true;
       };
     }},
    {"a request that no client sends",
     [](World& w) {
       closed_loop(w);
       w.sent = [](Checker& c, Request& r, Duration& alone, TimePoint& at) {
         c.on_sent(r, alone, at);
         r.id.value += 1;
         return r.id.value == 20;
       };
     }},
    {"a request that was not sent",
     [](World& w) { w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.id.value < 20; }; }},
    {"a request that was not sent",
     [](World& w) {
       closed_loop(w);
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.id.value < 20; };
     }},
    {"a request that takes no time",
     [](World& w) {
       of_two_modes(w);
       w.sent = [](Checker&, Request&, Duration& alone, TimePoint&) { return alone = Duration{0}, true; };
     }},
    {"a request that is not the scenario's",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.deadline += 1ns, true; };
     }},
    {"a request that is not the scenario's",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.cls = Class::real_time, true; };
     }},
    {"a request that is not the scenario's",
     [](World& w) {
       for (auto& m : w.scenario.models) {
         for (int i = 0; i < 10; ++i)
           m.arrivals.push_back({.at = TimePoint{20ms * (i + 1)}, .slo = 12ms, .priority = 2});
       }
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.priority = 0, true; };
     }},
    {"heard of what was not sent", [](World& w) { w.decision = heard_twice<RequestArrived>(); }},
    {"heard of what was not sent",
     [](World& w) {
       w.decision = each_heard<RequestArrived>([](auto& e, TimePoint&) { e.request.id.value += 1000; });
     }},
    {"heard of another request",
     [](World& w) {
       w.decision = each_heard<RequestArrived>([](auto& e, TimePoint&) { e.request.deadline += 1ns; });
     }},
    {"heard of another request",
     [](World& w) {
       w.decision = each_heard<RequestArrived>([](auto& e, TimePoint&) { e.request.arrival -= delay; });
     }},
    {"heard out of time",
     [](World& w) { w.decision = each_heard<RequestArrived>([](auto&, TimePoint& now) { now += 1ns; }); }},
    {"heard out of time",  // though its client has gone
     [](World& w) {
       cancelled(w);
       w.scenario.network_delay = 5ms;
       w.outcome = [](Checker& c, Request& r, Outcome& what, TimePoint& at) {
         c.on_outcome(r, what, at);
         r.arrival += 5ms;
         if (what == Outcome::cancelled && at < r.arrival)
           c.on_decision(RequestArrived{r}, r.arrival, {}, TimePoint::max());
         return false;
       };
     }},
    {"never heard of", [](World& w) { w.decision = unheard<RequestArrived>(); }},
    {"a cancellation of nothing",
     [](World& w) {
       cancelled(w);
       w.decision = heard_twice<RequestCancelled>();
     }},
    {"a cancellation of nothing",
     [](World& w) {
       cancelled(w);
       w.decision = each_heard<RequestCancelled>([](auto& e, TimePoint&) { e.model.value += 1; });
     }},
    {"a cancellation of nothing",
     [](World& w) {
       cancelled(w);
       w.decision = each_heard<RequestCancelled>([](auto&, TimePoint& now) { now += 1ns; });
     }},
    {"a cancellation that was not told",
     [](World& w) {
       cancelled(w);
       w.decision = unheard<RequestCancelled>();
     }},
    // -- outcomes
    {"an outcome of nothing",
     [](World& w) {
       w.outcome = [](Checker&, Request& r, Outcome&, TimePoint&) { return r.id.value += 1000, true; };
     }},
    {"an outcome of nothing",
     [](World& w) {
       w.outcome = [](Checker&, Request& r, Outcome&, TimePoint&) { return r.deadline += 1ns, true; };
     }},
    {"two outcomes",
     [](World& w) {
       w.outcome = [](Checker& c, Request& r, Outcome& what, TimePoint& at) {
         c.on_outcome(r, what, at);
         return true;
       };
     }},
    {"no outcome",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) { return what != Outcome::refused; };
     }},
    {"never answered",
     [](World& w) {
       w.decides = [](const schedule::Event&, TimePoint, schedule::Actions& actions) {
         std::erase_if(actions, [](const auto& a) { return std::holds_alternative<Refuse>(a); });
       };
     }},
    {"called on time but late",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) {
         if (what == Outcome::late) what = Outcome::on_time;
         return true;
       };
     }},
    {"called late but on time",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) {
         if (what == Outcome::on_time) what = Outcome::late;
         return true;
       };
     }},
    {"refused by nobody",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) {
         if (what == Outcome::on_time) what = Outcome::refused;
         return true;
       };
     }},
    {"refused by nobody",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint& at) {
         if (what == Outcome::refused) at += 1ns;
         return true;
       };
     }},
    {"cancelled by nobody",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) {
         return what = Outcome::cancelled, true;
       };
     }},
    {"cancelled by nobody",
     [](World& w) {
       cancelled(w);
       w.outcome = [](Checker&, Request& r, Outcome& what, TimePoint& at) {
         if (what == Outcome::cancelled) at = r.arrival + 24ms + 1ns;
         return true;
       };
     }},
    {"an answer that nobody gave",
     [](World& w) {
       w.outcome = [](Checker&, Request& r, Outcome& what, TimePoint& at) {
         if (what == Outcome::refused) what = at <= r.deadline ? Outcome::on_time : Outcome::late;
         return true;
       };
     }},
    {"an answer that nobody gave",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint& at) {
         if (what == Outcome::on_time) at -= 1ns;
         return true;
       };
     }},
    {"an answer that nobody gave",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint& at) {
         if (what == Outcome::late) at += 1ns;
         return true;
       };
     }},
    {"an answer that nobody gave",
     [](World& w) {
       w.options.faults.late_reports = 0.5;
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint& at) {
         if (what == Outcome::late) at += 20ms + 1ns;
         return true;
       };
     }},
    {"an answer that was not given",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) { return what != Outcome::on_time; };
     }},
};

}  // namespace

std::span<const Fault> by_requests() {
  return of_requests;
}

}  // namespace carillon::simulate::testing::broken
