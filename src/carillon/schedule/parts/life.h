#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "carillon/schedule/parts/kinds.h"
#include "carillon/schedule/parts/times.h"
#include "carillon/schedule/parts/waiting.h"
#include "carillon/schedule/policy.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule::parts {

// The life of a request: it comes and waits, leaves with an INFER, and waits again where that does not
// succeed. It is refused when its model goes, when it was tried in vain too often, or when no time is left.
// Not thread-safe.
class Life {
 public:
  // `ordered`: waiting().heads() is asked. `by_chance`: what could be in time by what runs are expected to
  // take is not refused (Times::by_chance()).
  // `kinds`: it says in which line a request waits.
  explicit Life(const Environment& environment, bool ordered = true, bool by_chance = false,
                const Kinds* kinds = nullptr)
      : classes_(environment.classes), by_chance_(by_chance), kinds_(kinds), waiting_(ordered) {}

  // What an event says of requests and models. O(log n), or O(requests that came back or are refused).
  void hear(const Event& event, Orders& out);
  // Refuses what would be late even if it ran now and alone, once the estimates that say so were doubted.
  void expire(Orders& out) {
    if (!changed_.empty() || late_.top_at() <= out.time()) expire_now(out);
  }
  // Refuses a request that waits; `ends`: when it would have been answered. O(log n).
  void refuse(RequestId id, Reason reason, TimePoint ends, Orders& out);
  // Refuses all that waits for the model.
  void refuse_all(ModelId model, Reason reason, Orders& out);
  // Refuses what waits in a line and has an earlier deadline. O(log n) for each.
  void refuse_before(ModelId model, Class cls, TimePoint deadline, Orders& out);
  // For an INFER that is sent: see Waiting::take().
  std::vector<RequestId> take(ModelId model, Class cls, TimePoint from, std::size_t count);

  // There is another name for what waits of the model (Kinds).
  void know(ModelId as, ModelId model) { waiting_.know(as, model); }
  void forget_names() { waiting_.forget_names(); }
  // All that waits under a name waits under the other. O(its requests x log n).
  void move(ModelId from, ModelId to);

  const Waiting& waiting() const { return waiting_; }
  // The model that a name stands for.
  ModelId model(ModelId as) const { return kinds_ != nullptr ? kinds_->model(as) : as; }
  // The line of a request: where it waits, or would.
  std::uint32_t line_of(const Request& request) const {
    const auto at = waiting_.line_of(request.id);
    return at ? static_cast<std::uint32_t>(*at) : line_of(as(request), request.cls);
  }
  // The class of streams that run requests of a class.
  Class streams(Class cls) const { return classes_ ? cls : Class::normal; }
  // The one class whose requests these streams run. None: they run all.
  std::optional<Class> only(Class streams) const { return classes_ ? std::optional(streams) : std::nullopt; }
  // All that devices have.
  std::span<const Class> all_streams() const {
    static constexpr std::array normal{Class::normal};
    return classes_ ? std::span<const Class>(all_classes) : std::span<const Class>(normal);
  }
  // When expire() has something to do by the clock alone. Each event has it look, too; so while much happens
  // no decision is spent on that, and a refusal comes a millisecond late at most.
  TimePoint wake_at(TimePoint now) const {
    return std::max(changed_.empty() ? late_.top_at() : TimePoint::min(), now + Duration{1ms});
  }
  // Looks at lines from which something was taken since expire(), so that wake_at() need not be as early.
  void settle(const Orders& out) {
    if (!changed_.empty()) settle_now(out);
  }

 private:
  static std::uint32_t line_of(ModelId model, Class cls) {
    return static_cast<std::uint32_t>(Waiting::line_of(model, cls));
  }
  ModelId as(const Request& request) const { return kinds_ != nullptr ? kinds_->of(request) : request.model; }
  void watch(std::uint32_t line);
  void came_back(RequestId id, Orders& out);
  void expire_now(Orders& out);
  void settle_now(const Orders& out);
  void watch(ModelId model, Class cls);
  void look(std::uint32_t line, Orders& out);
  Duration alone(ModelId model, Class cls, const Orders& out) const;
  void refuse_late(const Waiting::Head& head, Duration alone, Orders& out);

  bool classes_, by_chance_;
  const Kinds* kinds_;
  Waiting waiting_;
  TimerHeap late_;                      // by line: when its first request may be late
  std::vector<std::uint32_t> changed_;  // lines whose first is another since expire() looked at it
};

}  // namespace carillon::schedule::parts
