#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/transport/messages.h"

namespace carillon::roles {

// A stream with a host, by a number that its owner never uses again.
using PeerId = std::uint64_t;

// Orders of clients to load and unload models, which come by a frontend and hold for all workers of a
// cluster. An order is carried out if one worker did so. It fails if all workers failed, with the word of
// one. A worker that does not answer in time has failed. An order to unload fails if any worker failed but
// those that do not have the model (not_found). The last order of each model that was carried out is kept,
// and is given to workers that come later.
//
// A worker is told one order at a time, as it carries out one at a time and has room for few. Orders that
// clients wait for go first. A kept order waits while a client orders something else of its model.
//
// What workers say is not trusted: an answer that nobody waits for changes nothing. Pure, and not
// thread-safe. What is to be sent is appended to `out`.
class ModelOrders {
 public:
  using Outbox = std::vector<std::pair<PeerId, transport::Message>>;
  static constexpr std::size_t most_under_way = 256;  // of all frontends; more are refused
  static constexpr std::size_t most_kept = 65'536;    // orders; those of more models are not kept
  static constexpr std::size_t most_away = 1024;      // workers that went; with more all are forgotten

  // A worker that has not answered an order for so long has failed it, and each that comes later: its loads
  // may hang. Once it answers, it is told the next. Many models take long to load.
  static constexpr Duration answers_within = std::chrono::minutes{5};

  // A frontend asks.
  void ask(PeerId frontend, const transport::ModelOrder& order, TimePoint now, Outbox& out);
  // False: nobody waits for it.
  bool answered(PeerId worker, const transport::ModelOrdered& answer, TimePoint now, Outbox& out);
  // A process whose stream broke is told only what it has not answered.
  void joined(PeerId worker, const transport::Hello& self, TimePoint now, Outbox& out);
  void left(PeerId worker, TimePoint now, Outbox& out);
  // When wake() wants to be called; max() for never.
  TimePoint wake_at() const { return due_; }
  void wake(TimePoint now, Outbox& out);
  std::size_t under_way() const { return orders_.size(); }
  // The model that is to be unloaded by that order; null: none is.
  const std::string* unloads(std::uint64_t order) const;

 private:
  struct Order {
    PeerId frontend = 0;
    std::uint64_t theirs = 0;
    transport::ModelOrder what;
    std::size_t waits = 0;  // for so many workers
    bool carried_out = false;
    std::optional<Error> failed;
  };
  struct Worker {
    std::string id;
    std::uint64_t incarnation = 0;
    std::set<std::uint64_t> open;    // orders that it is yet to answer; some may hold no more
    std::set<std::uint64_t> waited;  // of these: orders under way that wait for it
    std::optional<std::uint64_t> told;
    TimePoint told_at{};
    bool silent = false;  // it has not answered that in time
  };
  struct Away {
    std::uint64_t incarnation = 0;
    std::set<std::uint64_t> open;
    std::uint64_t numbered = 0;  // orders there were as it went
  };
  void fails(Order& order, ErrorCode code, const std::string& worker, const std::string& why);
  void miss(Worker& worker, TimePoint now, Outbox& out);
  void next(PeerId id, Worker& worker, TimePoint now, Outbox& out);
  void next(TimePoint now, Outbox& out);
  void end(std::uint64_t number, Outbox& out);
  void find_due();

  std::map<std::uint64_t, Order> orders_;                // under way, by our number; they end in this order
  std::map<std::uint64_t, transport::ModelOrder> kept_;  // likewise by number
  std::map<std::string, std::uint64_t> last_;            // of kept_, by model
  std::map<PeerId, Worker> workers_;
  std::map<std::string, Away> away_;  // by id
  TimePoint due_ = TimePoint::max();  // the first of what workers were told has to be answered
  std::uint64_t numbered_ = 0;
};

}  // namespace carillon::roles
