#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/record_ring.h"
#include "carillon/controller/calls/service.h"
#include "carillon/explain/facts.h"
#include "carillon/explain/story.h"
#include "carillon/schedule/action.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

// A name that the journal knows.
using NameNumber = Id<struct NameTag, std::uint32_t>;

// What is kept of a call: fixed in size, its texts cut off where they are long.
struct CallRecord {
  static constexpr std::size_t most_actions = 6;

  std::uint64_t number = 0;
  std::uint64_t log_request = 0;
  TimePoint arrival;
  TimePoint deadline = TimePoint::max();
  TimePoint handed = explain::never;  // to the controller
  TimePoint at_door = explain::never;
  TimePoint decided = explain::never;  // the scheduler heard of it
  TimePoint ended = explain::never;
  Duration would_take{-1};  // < 0: none
  Duration retry_after{-1};
  std::int64_t version = 1;
  NameNumber model;
  std::int32_t rows = 1;
  std::uint32_t priority = 0;
  Class cls = Class::normal;
  explain::DeadlineFrom deadline_from = explain::DeadlineFrom::none;
  explain::Outcome outcome = explain::Outcome::open;
  explain::Cause cause = explain::Cause::none;

  // Of a refusal: explain::Expectation.
  bool has_expected = false;
  bool loading = false;
  std::uint16_t exec_batch = 0;
  std::uint16_t devices = 0;
  std::uint16_t holding = 0;
  std::uint32_t device = 0;
  std::int32_t device_actions = 0;
  Duration exec{0};
  Duration busy{0};

  std::int32_t tries = 0;
  std::uint32_t said = 0;  // bytes of `texts` that are used
  std::array<std::uint64_t, most_actions>
      actions{};  // entries of the last ones, the newest at (tries - 1) % 6

  struct Text {
    std::uint16_t begin = 0, size = 0;
  };
  Text id, application, key, trace, message;
  std::uint32_t unused = 0;
  std::array<char, 392> texts{};  // the last member: what is not used is not copied

  // Once for each text; at most so many bytes of it, whole characters. Nothing is said where there is no
  // room.
  void say(Text& text, std::string_view what, std::size_t most);
  std::string_view read(const Text& text) const;
  std::size_t used() const;  // bytes of this record that mean something
};

// Likewise, of an action.
struct ActionRecord {
  static constexpr std::size_t most_requests = 17;  // one and 16 others

  std::uint64_t entry = 0;
  schedule::ActionKind kind{};
  bool again = false;
  bool lost = false;
  std::uint8_t status = under_way;  // schedule::ActionStatus, or:
  static constexpr std::uint8_t under_way = 255;
  std::uint32_t device = 0;
  NameNumber model;
  std::int32_t rows = 0;
  TimePoint sent;
  Window window;
  Duration predicted{0};
  TimePoint ended = explain::never;
  TimePoint input_start, input_end, exec_start, exec_end, output_start, output_end;
  Duration paused{0};
  std::int32_t preemptions = 0;
  std::uint32_t count = 0;  // of what follows: most_requests at most
  std::array<std::uint64_t, most_requests> requests{};

  std::size_t used() const;
};

// One call and its own actions, the oldest of them first.
struct KeptCall {
  explain::RequestFacts request;
  std::vector<explain::ActionFacts> own;
  std::string device_name;  // of the last action's
};

// The last calls and actions of a server, in rings that are filled without allocation, a lock or a wait, and
// that any thread may read meanwhile. Numbers ascend from 1; several controllers may share a journal.
//
// A call is put when the scheduler hears of it and when it is answered, an action when it is sent and when it
// has ended: what is read in between says that it is open, or under way.
class Journal {
 public:
  // `capacity` (>= 1): calls that are kept, and as many actions. `unix_minus_timeline`: what to add to a
  // TimePoint to get Unix time.
  Journal(std::size_t capacity, Duration unix_minus_timeline);

  std::size_t capacity() const { return calls_.capacity(); }

  // For those who fill it.
  std::uint64_t next_number() { return last_number_.fetch_add(1, std::memory_order_relaxed) + 1; }
  std::uint64_t next_entry() { return last_entry_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // The same name is the same number. Takes a lock, and allocates: when models and devices come.
  NameNumber name(std::string_view name);
  // Gives the number by which records name it: of several controllers no two have one.
  std::uint32_t add_device(std::string_view name);
  void put(const CallRecord& call) { calls_.put(call.number, call, call.used()); }
  void put(const ActionRecord& action) { actions_.put(action.entry, action, action.used()); }

  // For those who read it: slow, and nobody's wait.
  using MaySee = std::function<bool(const explain::RequestFacts&)>;
  // Whether the number is, or was, one of its calls.
  std::uint64_t newest() const { return last_number_.load(std::memory_order_relaxed); }
  // The call of that number, if it is kept and `may_see` it; the newest call with the client's `id` that
  // `may_see` lets through.
  std::optional<explain::Story> find(std::uint64_t number, TimePoint now, const MaySee& may_see) const;
  std::optional<explain::Story> find_id(std::string_view id, TimePoint now, const MaySee& may_see) const;
  // Without what surrounded it: looks at no other call and at no other call's actions, so that what each
  // costs does not grow with what is kept.
  std::optional<KeptCall> call(std::uint64_t number) const;
  // The LOADs that were sent after the entry `seen` (0: all that are kept), which becomes the newest there
  // is; action() says what became of them.
  std::vector<std::uint64_t> loads_since(std::uint64_t& seen) const;
  std::optional<explain::ActionFacts> action(std::uint64_t entry) const;
  // The newest `most` that `wanted` lets through, the newest first, each with its last action alone.
  std::vector<explain::Story> list(std::size_t most, TimePoint now, const MaySee& wanted) const;
  // What was open or under way from `since` on, as a trace.
  std::string trace(TimePoint since, TimePoint now,
                    const std::function<bool(std::string_view model)>& may_see) const;

 private:
  explain::RequestFacts facts(const CallRecord& call) const;
  explain::ActionFacts facts(const ActionRecord& action) const;
  std::string name_of(NameNumber number) const;
  std::string device_name_of(std::uint32_t device) const;
  explain::Story story(const CallRecord& call, TimePoint now) const;
  std::vector<std::uint64_t> entries_of(const CallRecord& call) const;
  // Calls `look` with each that is kept, the newest first, until it returns false.
  template <typename Record>
  static void each(const RecordRing<Record>& ring, std::uint64_t newest,
                   const std::function<bool(const Record&)>& look);

  const Duration unix_minus_timeline_;
  RecordRing<CallRecord> calls_;
  RecordRing<ActionRecord> actions_;
  std::atomic<std::uint64_t> last_number_{0}, last_entry_{0};
  mutable std::mutex mutex_;  // of the names
  std::deque<std::string> names_;
  std::map<std::string, std::uint32_t, std::less<>> numbers_;
  std::map<std::uint32_t, std::string> devices_;
};

// What is known of a call when it comes. `deadline`: the one that counts, from wherever.
CallRecord record_of(const InferCall& call, std::uint64_t number, NameNumber model, std::int64_t version,
                     Class cls, TimePoint deadline);
// What the client is told.
void say_message(CallRecord& record, std::string_view message);

}  // namespace carillon::controller
