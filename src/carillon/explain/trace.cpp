#include "carillon/explain/trace.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace carillon::explain {
namespace {

using schedule::ActionKind;

// Requests that are open at a time get a line each; beyond these they are counted alone.
constexpr std::size_t most_lines = 64;
constexpr int requests_process = 1;
constexpr int first_device = 2;

struct Event {
  TimePoint at;
  std::string text;  // without its time
};

// One thread of a process as it is drawn: what begins and ends there, in its order.
struct Thread {
  TimePoint free = TimePoint::min();
  std::vector<Event> events;
};

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

class Tracer {
 public:
  explicit Tracer(const TraceInput& input) : input_(input) {}

  std::string write() {
    draw_requests();
    draw_actions();
    count_waiting();
    return join();
  }

 private:
  bool may_see(std::string_view model) const { return !input_.may_see || input_.may_see(model); }
  std::string shown(const std::string& model) const { return may_see(model) ? model : "another model"; }

  // A thread of `kind` where nothing is drawn after `begin`; none where there may be no more.
  Thread* thread_at(int process, int kind, TimePoint begin, std::size_t most) {
    auto& lines = threads_[{process, kind}];
    for (Thread& line : lines)
      if (line.free <= begin) return &line;
    if (lines.size() >= most) return nullptr;
    return &lines.emplace_back();
  }
  int thread_number(int kind, std::size_t line) const { return kind + 1 + static_cast<int>(line) * 8; }

  // Appends a slice; its events get their process and thread when all is joined.
  static void slice(Thread& thread, TimePoint begin, TimePoint end, const std::string& name,
                    const std::string& arguments, std::vector<std::string> flows) {
    thread.events.push_back({begin, fmt::format(R"("ph":"B","name":{},"cat":"carillon","args":{{{}}})",
                                                json_text(name), arguments)});
    for (std::string& flow : flows) thread.events.push_back({begin, std::move(flow)});
    thread.events.push_back({end, R"("ph":"E")"});
    thread.free = end;
  }

  static std::string flow(std::string_view phase, std::uint64_t number) {
    return fmt::format(R"("ph":"{}","name":"request","cat":"flow","id":{}{})", phase, number,
                       phase == "s" ? "" : R"(,"bp":"e")");
  }

  void draw_requests() {
    std::vector<const RequestFacts*> order;
    for (const RequestFacts& request : input_.requests) order.push_back(&request);
    std::ranges::sort(order, {}, [](const auto* r) { return std::pair(r->arrival, r->number); });
    for (const RequestFacts* r : order) {
      const TimePoint end = std::max(r->arrival, r->ended != never ? r->ended : input_.now);
      Thread* const line = thread_at(requests_process, 0, r->arrival, most_lines);
      if (line == nullptr) continue;
      std::string arguments = fmt::format(R"("number":{},"outcome":"{}","reason":"{}")", r->number,
                                          name_of(r->outcome), name_of(r->cause));
      if (r->deadline != TimePoint::max())
        arguments += fmt::format(R"(,"deadline_ms":{:.3f})", to_ms(r->deadline - r->arrival));
      slice(*line, r->arrival, end, fmt::format("{} {} {}", shown(r->model), r->number, name_of(r->outcome)),
            arguments, {flow("s", r->number)});
      drawn_.emplace(r->number, r->arrival);
    }
  }

  // The steps of an action that are known, with the kind of thread that each has.
  struct Part {
    int kind;
    TimePoint begin, end;
  };
  std::vector<Part> parts(const ActionFacts& action) const {
    std::vector<Part> out;
    const auto add = [&](int kind, TimePoint begin, TimePoint end) {
      if (begin == never) return;
      out.push_back({kind, begin, std::max(begin, end != never ? end : input_.now)});
    };
    if (action.kind == ActionKind::load) add(0, action.exec_start, action.exec_end);
    if (action.kind != ActionKind::infer) return out;
    add(1, action.input_start, action.input_end);
    add(2, action.exec_start, action.exec_end);
    add(3, action.output_start, action.output_end);
    return out;
  }

  void draw_actions() {
    struct Drawn {
      const ActionFacts* action;
      Part part;
      bool last;  // of its action
    };
    std::vector<Drawn> order;
    for (const ActionFacts& action : input_.actions) {
      const std::vector<Part> all = parts(action);
      for (std::size_t i = 0; i < all.size(); ++i) order.push_back({&action, all[i], i + 1 == all.size()});
    }
    std::ranges::stable_sort(order, {}, [](const Drawn& d) { return d.part.begin; });
    for (const auto& [action, part, last] : order) {
      std::vector<std::string> flows;
      for (const std::uint64_t number : action->requests)
        if (const auto found = drawn_.find(number); found != drawn_.end() && found->second <= part.begin)
          flows.push_back(
              flow(last && action->status == schedule::ActionStatus::success ? "f" : "t", number));
      std::string arguments =
          fmt::format(R"("action":{},"batch":{})", action->entry, std::max(action->rows, 0));
      if (part.kind == 2 || part.kind == 0)
        arguments += fmt::format(R"(,"predicted_ms":{:.3f})", to_ms(action->predicted));
      if (action->status) arguments += fmt::format(R"(,"status":"{}")", schedule::name_of(*action->status));
      if (action->preemptions > 0)
        arguments += fmt::format(R"(,"preemptions":{},"paused_ms":{:.3f})", action->preemptions,
                                 to_ms(action->paused));
      std::string name = shown(action->model);
      if (action->kind == ActionKind::infer && action->rows > 1) name += fmt::format(" x{}", action->rows);
      if (action->again) name += " again";
      const int process = first_device + static_cast<int>(action->device);
      slice(*thread_at(process, part.kind, part.begin, std::numeric_limits<std::size_t>::max()), part.begin,
            part.end, name, arguments, std::move(flows));
    }
  }

  // By model: requests that came and of which no run has begun.
  void count_waiting() {
    std::unordered_map<std::uint64_t, TimePoint> begun;
    for (const ActionFacts& action : input_.actions)
      if (action.kind == ActionKind::infer && action.ran())
        for (const std::uint64_t number : action.requests) {
          auto [at, added] = begun.emplace(number, action.exec_start);
          if (!added) at->second = std::min(at->second, action.exec_start);
        }
    struct Change {
      TimePoint at;
      const std::string* model;
      int by;
    };
    std::vector<Change> changes;
    for (const RequestFacts& r : input_.requests) {
      TimePoint over = r.ended != never ? r.ended : input_.now;
      if (const auto found = begun.find(r.number); found != begun.end()) over = std::min(over, found->second);
      changes.push_back({r.arrival, &r.model, 1});
      changes.push_back({std::max(over, r.arrival), &r.model, -1});
    }
    std::ranges::stable_sort(changes, [](const Change& a, const Change& b) {
      return std::pair(a.at, -a.by) < std::pair(b.at, -b.by);
    });
    std::map<std::string, int> waiting;
    for (const Change& change : changes) {
      int& now = waiting[shown(*change.model)];
      now += change.by;
      counters_.push_back({change.at, fmt::format(R"("ph":"C","name":{},"args":{{"waiting":{}}})",
                                                  json_text("waiting: " + shown(*change.model)), now)});
    }
  }

  std::string join() {
    std::vector<std::pair<TimePoint, std::string>> all;
    std::string head;
    const auto named = [&](int process, int thread, std::string_view what, const std::string& name) {
      head += fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"name":{}}}}},)"
                          "\n",
                          process, thread, what, json_text(name));
    };
    static constexpr std::array<std::string_view, 4> kinds{"LOAD", "INPUT", "EXEC", "OUTPUT"};
    int process_named = 0;
    for (auto& [key, lines] : threads_) {
      const auto [process, kind] = key;
      if (process != process_named) {
        const auto device = static_cast<std::uint32_t>(process - first_device);
        const auto name = input_.device_names.find(device);
        named(process, 0, "process_name",
              process == requests_process ? "requests"
              : name == input_.device_names.end() || name->second.empty()
                  ? fmt::format("device {}", device)
                  : fmt::format("device {}: {}", device, name->second));
        process_named = process;
      }
      for (std::size_t line = 0; line < lines.size(); ++line) {
        const int thread = thread_number(kind, line);
        const std::string name = process == requests_process
                                     ? std::string("open")
                                     : std::string(kinds[static_cast<std::size_t>(kind)]);
        named(process, thread, "thread_name", line == 0 ? name : fmt::format("{} {}", name, line + 1));
        for (Event& event : lines[line].events)
          all.emplace_back(event.at, fmt::format(R"("pid":{},"tid":{},{}}})", process, thread, event.text));
      }
    }
    for (Event& event : counters_)
      all.emplace_back(event.at, fmt::format(R"("pid":{},"tid":0,{}}})", requests_process, event.text));
    // Stable: what a thread has at one instant stays in its order.
    std::ranges::stable_sort(all, {}, &std::pair<TimePoint, std::string>::first);
    const TimePoint zero = all.empty() ? TimePoint{} : all.front().first;
    std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + head;
    for (const auto& [at, text] : all) {
      const std::int64_t ns = (at - zero).count();
      fmt::format_to(std::back_inserter(out), "{{\"ts\":{}.{:03},{},\n", ns / 1000, ns % 1000, text);
    }
    if (out.ends_with(",\n")) out.resize(out.size() - 2);
    return out + "\n]}\n";
  }

  const TraceInput& input_;
  std::unordered_map<std::uint64_t, TimePoint> drawn_;  // requests, with their arrival
  std::map<std::pair<int, int>, std::vector<Thread>> threads_;
  std::vector<Event> counters_;
};

}  // namespace

std::string to_trace(const TraceInput& input) {
  return Tracer(input).write();
}

}  // namespace carillon::explain
