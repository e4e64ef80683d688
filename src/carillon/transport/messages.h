#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cluster/coordinator/member.h"
#include "carillon/cluster/protocols.h"
#include "carillon/ledger/event.h"
#include "carillon/ledger/order.h"
#include "carillon/wire/ends.h"
#include "carillon/wire/model.h"
#include "carillon/wire/report.h"
#include "carillon/wire/row_trace.h"
#include "carillon/workload/request.h"

// What frontends, schedulers and workers tell each other: the calls of wire/ends.h as values. Times are on
// the sender's clock until whoever hears a message has converted them (times.h).
namespace carillon::transport {

using cluster::Protocols;
using cluster::Role;

// Who speaks: the first thing that a stream carries.
struct Hello {
  std::string cluster;  // cluster::is_name(), as `id`
  std::string id;
  Role role{};
  std::uint64_t incarnation = 0;  // of the process
  Protocols protocols = cluster::own_protocols;
  std::string build = {};  // cluster::is_build(); empty: of an earlier version
  friend bool operator==(const Hello&, const Hello&) = default;
};

// A frontend to the leader: see wire::Dispatcher. The frontend gives numbers to applications itself.
struct Application {
  AppId app;
  std::string name;
  std::optional<wire::Dispatcher::Alike> alike = std::nullopt;
};
struct Offer {
  Request row;
  bool more = false;
  std::uint64_t key = 0;  // whoever has it may pull the row, while it is open
  std::uint64_t tensor_bytes = 0;
  std::optional<wire::RowTrace> trace = std::nullopt;  // none: its request is not sampled
};
struct Withdraw {
  RequestId row;
  ModelId model;
};
// Where the frontend's rows are pulled from.
struct RowsAt {
  std::string address;  // HOST:PORT
};

// The leader to a frontend: see wire::Calls. All rows are of that frontend.
struct Sent {
  std::vector<RequestId> rows;
  DeviceId device;
};
struct CameBack {
  std::vector<RequestId> rows;
};
struct Ended {
  std::vector<RequestId> rows;
  wire::Report report;
};
struct TurnedDown {
  RequestId row;
  Error error;
};
struct Lost {
  std::vector<RequestId> rows;
  std::string why;
};
struct Keep {
  std::vector<RequestId> rows;
};
struct Forget {
  std::vector<RequestId> rows;
};
// How many devices the leader decides for.
struct DeviceCount {
  std::uint32_t alive = 0;
  std::uint32_t known = 0;
};

// Of the rows that the frontend has offered, the leader has taken up so many more. At most `most` may be
// offered and not taken up.
struct OfferCredit {
  std::uint32_t taken = 0;
  std::uint32_t most = 0;
};

// The leader to a worker: see wire::DeviceLink. `device` is the worker's own number.
struct RowReference {
  RequestId row;
  std::uint32_t frontend = 0;
  std::uint64_t key = 0;
  std::optional<wire::RowTrace> trace = std::nullopt;  // as of its Offer
  friend bool operator==(const RowReference&, const RowReference&) = default;
};
struct Infer {
  ledger::Infer order;
  std::vector<RowReference> rows;  // of order.requests, in their order
};
struct Profile {
  ledger::Profile order;
  RowReference row;
};
struct Retire {
  DeviceId device;
  std::uint32_t life = 0;  // of the next
};
struct Probe {
  DeviceId device;
};
// The device is taken as it says it is, without the end of a life. `life`: the number of its present one.
struct Adopt {
  DeviceId device;
  std::uint32_t life = 0;
};
// Where the rows of that frontend are pulled from. Before any order that has rows of it.
struct FrontendAt {
  std::uint32_t frontend = 0;
  std::string address;
  Protocols protocols = {1, 1};  // of the frontend; a leader that tells nothing has such frontends alone
};

// A scheduler to all others: it leads, in the frame's epoch. Whatever an earlier leader was told is to be
// told again.
struct Leads {};

// The leader to a worker or a frontend: it has been given its last order, or is not to be ready. `undo`: all
// is as before. A worker answers an undo with the same, and tells all of its models and devices once more.
struct Drain {
  bool undo = false;
};
// A worker or a frontend that drains to the leader, and to each new one; again when it has ended all.
struct Drains {
  std::uint32_t actions = 0;  // that a worker has yet to end, or rows that a frontend has
};

// A client's order to load or unload a model: see controller::ModelControl. A frontend to the leader, and the
// leader to workers; they answer by ModelOrdered. `order`: as the sender numbers them.
struct ModelOrder {
  std::uint64_t order = 0;
  std::string model;
  bool unload = false;
};
struct ModelOrdered {
  std::uint64_t order = 0;
  Result<> result{};
};

// A worker to the leader, and the leader to frontends: see wire::Model. Numbers of models are the sender's.
struct ModelComes {
  wire::Model model;
};
struct ModelGoes {
  ModelId model;
  bool for_now = false;  // to frontends: no worker has it, and one may come back, which ModelComes tells
};
struct ModelTimes {
  ModelId model;
  std::vector<ledger::BatchProfile> batches;  // of the sizes that it came with
};

// A worker to the leader. What it tells of a device, again whenever that changes.
struct DeviceState {
  // What an earlier leader's orders have left there. Models have the worker's numbers.
  struct Run {
    ModelId model;
    Class cls{};
    std::uint32_t rows = 0;
    Duration took{0}, expected{0};  // as ledger::Ledger::times() counts
    Duration ago{0};                // it ended
    friend bool operator==(const Run&, const Run&) = default;
  };
  struct Left {
    std::vector<ModelId> held;  // whose weights are there, or being copied
    std::vector<Run> runs;      // the latest of each model and batch size, by their ends
    friend bool operator==(const Left&, const Left&) = default;
  };
  DeviceId device;
  std::uint64_t pages = 0;
  int best_effort = 1;
  wire::Credit credit{};
  // None: it is to be retired before it works for another leader.
  std::optional<Left> left = std::nullopt;
  // The device's place among the devices of all workers; none: its worker knows no place. Devices with the
  // last places are to be idle first.
  std::optional<std::uint32_t> order = std::nullopt;
};

// A worker to the leader, after a Report that `delivers`: every row of the action has its outputs at its
// frontend, or nobody wants them.
struct Delivered {
  ActionId action;
  Duration took{0};  // from the end of EXEC to the last outputs that were taken; 0: not told, as none were
};

using Message =
    std::variant<Application, Offer, Withdraw,                                          //
                 Sent, CameBack, Ended, TurnedDown, Lost, wire::Verdict, Keep, Forget,  //
                 ledger::Load, ledger::Unload, Infer, Profile, ledger::Stop, ledger::Preempt, Retire, Probe,
                 Adopt, wire::Report, wire::ProbeReport, DeviceState, ledger::Excuse,  //
                 Delivered, RowsAt, DeviceCount, OfferCredit, FrontendAt, Leads, ModelComes, ModelGoes,
                 ModelTimes, Drain, Drains, ModelOrder, ModelOrdered>;

struct Frame {
  std::uint64_t epoch = 0;  // in which the messages were decided
  std::optional<Hello> hello = std::nullopt;
  std::vector<Message> messages{};
  std::uint32_t protocol = cluster::own_protocols.oldest;  // in which it is written
};

}  // namespace carillon::transport
