#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/controller/controller.h"
#include "carillon/roles/agent.h"
#include "carillon/roles/follower.h"
#include "carillon/roles/metrics.h"
#include "carillon/transport/row_client.h"

namespace carillon::roles {

// A worker of a cluster, live: what its process's controller asks in place of a scheduler, and its streams to
// the schedulers.
class WorkerHost final : FollowerHandlers, AgentOut {
 public:
  // `order`: see Agent. `traced` gets the spans of rows of sampled requests.
  WorkerHost(std::function<void(const std::string&)> warn, std::optional<std::uint32_t> order,
             explain::RowSpansSink traced = {});
  ~WorkerHost() override;

  // For the controller, which must live until end() has returned.
  controller::MakeDecider decider();
  controller::RowLookup& rows() { return lookup_; }
  // Once the controller runs, and has its models. Errors: as hosts::Membership::open().
  Result<> join(const MemberArguments& arguments, controller::Controller& controller);
  // Any thread. None while it is no member.
  std::optional<ClusterFigures> figures() const;
  // Hears and says nothing any more. Before the controller stops. Again: nothing.
  void leave();
  // Pulls and pushes nothing any more. Once the controller has stopped, and before it goes. Again: nothing.
  void end();

 private:
  // The agent's, which the controller owns.
  struct Lookup final : controller::RowLookup {
    worker::RowBuffers buffers(RequestId row) const override { return agent->buffers(row); }
    bool run_again(const ledger::Profile& order, worker::InferCommand& command) override {
      return agent->run_again(order, command);
    }
    Agent* agent = nullptr;
  };
  // FollowerHandlers.
  void leads(std::shared_ptr<transport::Stream> stream, std::uint64_t epoch,
             const transport::Hello& self) override;
  void leader_left() override;
  void heard(std::vector<transport::Message> messages) override;
  // AgentOut, in the controller's turns.
  void send(transport::Message message) override;
  void connect(const std::string& address, const cluster::Protocols& speaks) override;
  std::uint64_t pull(const std::string& address, std::uint64_t key, TimePoint urgency,
                     std::shared_ptr<PulledRow> row) override;
  std::uint64_t push(const std::string& address, std::uint64_t key, std::shared_ptr<PulledRow> row,
                     const wire::Report& report) override;
  void cancel(std::uint64_t ticket) override;
  void order_model(const transport::ModelOrder& order) override;
  void flush() override;
  void warn(const std::string& text) override { warn_(text); }
  void traced(std::shared_ptr<const explain::RowSpans> spans) override {
    if (traced_) traced_(std::move(spans));
  }

  void count(LatencyHistogram RowTimes::*of, TimePoint asked);

  const std::function<void(const std::string&)> warn_;
  const std::optional<std::uint32_t> order_;
  const explain::RowSpansSink traced_;
  Lookup lookup_;
  std::map<std::string, std::uint32_t> protocols_;  // that frontends are spoken to in, by address
  controller::Controller* controller_ = nullptr;
  std::shared_ptr<transport::Stream> leader_;  // of the controller's turns, as all that follows
  std::uint64_t epoch_ = 0;
  bool drains_ = false;
  std::uint64_t next_ticket_ = 1;
  std::map<std::uint64_t, std::uint64_t> tickets_;  // ours to the client's
  transport::Hello self_;                           // for whoever gets outputs
  std::unique_ptr<transport::RowClient> client_;
  std::atomic<std::uint64_t> unwanted_{0};  // Agent::Counters::unwanted, after each turn
  mutable std::mutex rows_mutex_;           // of what follows
  RowTimes rows_taken_;
  mutable std::mutex follower_mutex_;  // while it changes, and while others than its threads use it
  std::unique_ptr<Follower> follower_;
};

}  // namespace carillon::roles
