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
#include "carillon/transport/messages.h"

namespace carillon::roles {

// A stream with a host, by a number that its owner never uses again.
using PeerId = std::uint64_t;

// Orders of clients to load and unload models, which come by a frontend and hold for all workers of a
// cluster. An order is carried out if one worker did so, and is then given to workers that come later, too.
// It fails if all workers failed, with the word of one. What workers say is not trusted: an answer that
// nobody waits for changes nothing.
//
// Pure, and not thread-safe. What is to be sent is appended to `out`.
class ModelOrders {
 public:
  using Outbox = std::vector<std::pair<PeerId, transport::Message>>;
  static constexpr std::size_t most_under_way = 256;  // of all frontends; more are refused
  static constexpr std::size_t most_kept = 65'536;    // models whose last order is remembered

  // A frontend asks. `workers`: those that are there, by id.
  void ask(PeerId frontend, const transport::ModelOrder& order, const std::map<PeerId, std::string>& workers,
           Outbox& out);
  // False: nobody waits for it.
  bool answered(PeerId worker, const transport::ModelOrdered& answer, Outbox& out);
  void joined(PeerId worker, const std::string& id, Outbox& out);
  void left(PeerId worker, Outbox& out);
  std::size_t under_way() const { return orders_.size(); }

 private:
  struct Order {
    std::optional<PeerId> frontend;  // none: a worker that came later is told of it
    std::uint64_t theirs = 0;
    transport::ModelOrder what;
    std::map<PeerId, std::string> waits;  // for these workers
    bool carried_out = false;
    std::optional<Error> failed;
  };
  void end(std::uint64_t number, Outbox& out);

  std::map<std::uint64_t, Order> orders_;
  std::map<std::string, transport::ModelOrder> kept_;  // the last that was carried out, by model
  std::uint64_t numbered_ = 0;
};

}  // namespace carillon::roles
