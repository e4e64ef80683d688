#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/ledger/event.h"
#include "carillon/ledger/order.h"
#include "carillon/wire/report.h"
#include "carillon/workload/request.h"

// The three ends between which messages pass. At home a message is a call of one of these functions. None of
// them blocks, and `now` never goes back.
namespace carillon::wire {

// How things stood when a request was refused.
struct Prospect {
  Duration exec{0};           // of the model's smallest batch, as the scheduler expects it
  int batch = 0;              // that batch
  std::uint32_t devices = 0;  // that are there
  std::uint32_t holding = 0;  // of them: that have the model's weights, where it has any
  bool loading = false;       // a device is to load them
  // The device that had least to do, of those that hold the weights where any does; none: no device is there.
  std::optional<DeviceId> device;
  bool holds = false;      // that device
  std::uint32_t runs = 0;  // that it had to do, and what they were to take
  Duration busy{0};
};
struct Verdict {
  ledger::Refuse refusal;
  Prospect prospect;
};

// Whoever holds clients' calls. A row is a request of the scheduler's.
class Calls {
 public:
  virtual ~Calls() = default;
  // The row is about to be sent to a device. `entry`: its action's number in the journal. Returns the number
  // of the row's call in the journal; 0: there is no journal, or a row of that call is already in this
  // action.
  virtual std::uint64_t sent(RequestId row, ModelId model, std::uint64_t entry) = 0;
  // The device has no credit for the action: the row waits again.
  virtual void came_back(RequestId row) = 0;
  // Its action ended, however.
  virtual void ended(RequestId row, const Report& report, TimePoint now) = 0;
  // Its action succeeded for others, and not for this row: that is over for the scheduler, too. Withdraws it.
  virtual void turned_down(RequestId row, const Error& error) = 0;
  // Its device went.
  virtual void lost(RequestId row, std::string_view why) = 0;
  // A row that is offered once more in here is heard of afterwards.
  virtual void refused(const Verdict& verdict, TimePoint now) = 0;
  // See ledger::Keep.
  virtual void keep(RequestId row) = 0;
  virtual void forget(RequestId row) = 0;
};

// Whoever decides, as the holder of calls sees it.
class Dispatcher {
 public:
  // Of requests that take alike: of one length of a model.
  struct Alike {
    ModelId model;
    std::size_t length = 0;  // the place of the length among the model's, or the row's order of magnitude
    friend auto operator<=>(const Alike&, const Alike&) = default;
  };
  virtual ~Dispatcher() = default;
  // The number of an application, by its name, and by its requests' length where that is told. What is known
  // of a length is known from here on.
  virtual AppId application(std::string_view name, const std::optional<Alike>& alike, TimePoint now) = 0;
  // `more`: others came with it, and all_arrived() follows. It is decided at once; where this is called from
  // within a Calls function, afterwards. From there only offer() and withdraw() may be called.
  virtual void offer(const Request& row, bool more, TimePoint now) = 0;
  virtual void all_arrived(TimePoint now) = 0;
  // The client has gone, or has its answer. It is heard of before anything else is decided, or in hear().
  virtual void withdraw(RequestId row, ModelId model) = 0;
  virtual void hear(TimePoint now) = 0;
};

// The way to one device.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;
  // No more than credit() says at a time. A Report of each follows; of a Profile of which nothing is kept the
  // Report says `failed`.
  virtual void send(const ledger::Load& order) = 0;
  virtual void send(const ledger::Unload& order) = 0;
  virtual void send(const ledger::Infer& order) = 0;
  virtual void send(const ledger::Profile& order) = 0;
  virtual void stop(ActionId id) = 0;
  virtual void preempt(ActionId id, TimePoint order) = 0;
  // An INFER or LOAD that has not begun will not, and is reported as `stopped`. False: it has begun, and goes
  // on. Not for a device on another host.
  virtual bool cancel(ActionId) { return false; }
  // Ends the device's life, and does not wait for the device, which may hang: the next has the number `life`
  // (the first was 0). From here on nothing of the ended life may touch a row: the holder of rows keeps that.
  virtual void retire(std::uint32_t life) = 0;
  // Asks a device that was retired whether it is well. A ProbeReport follows.
  virtual void probe() = 0;
  // Whether a thread that the lane's work needs lacked a processor since the last call, and whether the work
  // got on. The device is left to the caller.
  virtual ledger::Excuse slowness(ledger::Lane lane) = 0;
  // What the device has told of itself.
  virtual Credit credit() const = 0;
  virtual std::uint64_t pages() const = 0;
  virtual int best_effort() const = 0;  // runs of that class that it does at a time
  // Models whose weights the device has as it comes: see ledger::DeviceChanged.
  virtual std::vector<ModelId> held() const { return {}; }
};

}  // namespace carillon::wire
