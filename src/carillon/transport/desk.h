#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <grpcpp/security/credentials.h>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cluster/clock/peer_clock.h"
#include "carillon/cluster/coordinator/member.h"
#include "carillon/provision/wanted.h"
#include "carillon/transport/identity.h"

namespace carillon::transport {

// What a member of a cluster knows of all, for people.
struct Look {
  enum class Drain : std::uint8_t { none, drains, drained };
  struct Member {
    std::string id;
    cluster::Role role = cluster::Role::worker;
    std::string address;
    bool alive = false;
    std::uint32_t devices = 0;                            // 0: none, or not told
    std::optional<cluster::PeerClock::Difference> clock;  // its time less the answering member's
    // Of frontends and workers as the leader knows, and of a scheduler as it knows itself.
    Drain drain = Drain::none;
    // As the member registered them, or said in a stream. None: not known.
    std::optional<cluster::Protocols> protocols = std::nullopt;
    std::string build = {};  // empty: not known, or of an earlier version
  };
  std::string id;  // who answers
  bool leads = false;
  std::uint64_t epoch = 0;
  std::string leader;  // of that epoch; empty: not known
  std::vector<Member> members;
  // How many devices the load needs, by sub-cluster. The leader alone knows; none: it has no number yet.
  std::vector<provision::WantedFigures> wanted = {};
  // Tells the division of models over sub-clusters from others. The leader alone knows. 0: none, or not told.
  std::uint64_t division = 0;
};

// What people want a member to do.
struct HandOver {
  std::string to;  // a member's id; empty: any other scheduler
};
struct DrainMember {
  std::string id;
  bool undo = false;  // it is to serve again
};
using DeskOrder = std::variant<HandOver, DrainMember>;

// Who answers people, at the address where a host's streams are opened (stream.h). Called from gRPC's
// threads, several at a time; must not wait, but for drain() half a second at most.
class Desk {
 public:
  virtual ~Desk() = default;
  virtual Look look() = 0;
  // Begins it. Errors are told to whoever asked.
  virtual Result<> hand_over(const std::string& to) = 0;
  // Likewise. A leader is asked for frontends and workers, a scheduler for itself. look() tells when the
  // member is drained. `undo`: the member is to serve again.
  virtual Result<> drain(const std::string& id, bool undo) = 0;
};

// ---- whoever asks

// Asks all of the addresses at once, and waits for `within` at most. The answers are in the addresses' order.
// Errors say why a member gave none: unavailable, deadline_exceeded, unsupported (it has no desk), or what it
// said itself. An answer comes from outside, and is checked.
std::vector<Result<Look>> look(const std::vector<std::string>& addresses,
                               const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                               const std::string& cluster, Duration within);
// An error other than unavailable and deadline_exceeded: nothing is done.
Result<> order(const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
               const std::string& cluster, const DeskOrder& what, Duration within);

// ---- whoever serves, as the listener of streams does

enum class DeskCall : std::uint8_t { look, order };
// By gRPC's name of the method. None: it is no desk's.
std::optional<DeskCall> desk_call_of(std::string_view method);
// The reply to a request: bytes of a LookReply or OrderReply. Whatever the request holds. `asker`: by the
// certificate; none: the connection has no TLS. With a certificate only schedulers and admins may order.
std::string reply_to(DeskCall call, std::string_view request, Desk& desk, std::string_view cluster,
                     const std::optional<Identity>& asker);

}  // namespace carillon::transport
