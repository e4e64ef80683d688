#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <variant>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/controller/controller.h"
#include "carillon/roles/follower.h"
#include "carillon/roles/metrics.h"
#include "carillon/roles/offering.h"
#include "carillon/transport/rows.h"

namespace carillon::roles {

// A frontend of a cluster, live: a controller whose calls the leader decides on, rows that workers pull, and
// the models that the leader tells of. Needs no repository. Orders to load and unload models go to all
// workers.
class FrontendHost final : FollowerHandlers, OfferingOut, controller::ModelControl {
 public:
  // Errors: an address that cannot be bound, and as hosts::Membership::open(). `clock` outlives this.
  // `takes_orders`: to load and unload models. `traced` gets the spans of rows of sampled requests.
  static Result<std::unique_ptr<FrontendHost>> open(const MemberArguments& arguments,
                                                    const controller::Options& options, const Clock& clock,
                                                    std::function<void(const std::string&)> warn,
                                                    bool takes_orders, explain::RowSpansSink traced = {});
  ~FrontendHost() override;

  controller::Service& service() { return *controller_; }
  // Any thread, before stop().
  ClusterFigures figures() const;
  // Answers all that is open; ends.
  void stop();

 private:
  struct Comes {
    wire::Model model;
  };
  struct Goes {
    ModelId id;
  };
  struct Told {};  // all that a leader knew
  struct Order {
    Done done;
    transport::ModelOrder what;
    bool again = false;  // an earlier leader was given it, too, and may have had it carried out
  };
  struct Ordered {
    Order order;
    Result<> result;
    TimePoint until{};  // an unloaded model is waited for to go
  };
  FrontendHost(const controller::Options& options, const Clock& clock,
               std::function<void(const std::string&)> warn, explain::RowSpansSink traced,
               std::string rows_at, std::string cluster);

  // FollowerHandlers.
  void leads(std::shared_ptr<transport::Stream> stream, std::uint64_t epoch,
             const transport::Hello& self) override;
  void leader_left() override;
  void heard(std::vector<transport::Message> messages) override;
  // OfferingOut, in the controller's turns.
  void send(transport::Message message) override;
  std::uint64_t open(RequestId row, transport::RowTensors tensors) override;
  void close(std::uint64_t key) override;
  void model_comes(const wire::Model& model) override;
  void model_goes(ModelId id) override;
  void model_held(ModelId id, bool held) override;
  void models_told() override;
  TimePoint unix_zero() override;
  void traced(std::shared_ptr<const explain::RowSpans> spans) override;
  void flush() override;
  // ModelControl.
  void load(std::string model, Brought brought, Done done) override;
  void unload(std::string model, bool dependents, Done done) override;

  void order(transport::ModelOrder order, Done done);
  void give_orders_again();
  void lose_orders(TimePoint now);
  void ordered(Order order, Result<> result);
  bool still_serves(const Ordered& ordered) const;
  void drain(bool undo);
  void tell_drain();
  void tell_why();
  void outputs(RequestId row, const std::string& report);
  void follow_models(const std::stop_token& ended);
  void add(const wire::Model& model, const std::stop_token& ended);

  const Clock& clock_;
  const std::function<void(const std::string&)> warn_;
  const explain::RowSpansSink traced_;
  transport::RowStore store_;
  Offering* offering_ = nullptr;  // the controller's
  std::unique_ptr<controller::Controller> controller_;
  std::shared_ptr<transport::Stream> leader_;  // of the controller's turns, as epoch_
  std::uint64_t epoch_ = 0;
  std::atomic<std::uint64_t> reoffered_{0};   // Offering::Counters::reoffered, after each turn
  std::uint64_t orders_ = 0;                  // of models; likewise
  std::map<std::uint64_t, Order> under_way_;  // of these, by number; likewise
  // Likewise: nobody leads whom they could be given to, and they are lost then.
  TimePoint orders_lost_at_ = TimePoint::max();
  enum class Why : std::uint8_t { serves, drains, no_leader, no_worker };
  Why why_ = Why::serves;  // it is not ready; likewise
  const std::string cluster_;
  cluster::Protocols protocols_;          // before it joins
  std::optional<std::size_t> told_open_;  // rows, as the leader was told while this drains; likewise
  std::unique_ptr<transport::RowServer> rows_;
  std::unique_ptr<Follower> follower_;

  std::mutex mutex_;  // of what follows
  std::condition_variable_any wake_;
  std::deque<std::variant<Comes, Goes, Told, Ordered>> news_;
  std::map<ModelId, std::shared_ptr<std::atomic<bool>>> held_;  // whether a worker has it
  bool told_ = false;                                           // Told is, or was, among them
  bool drains_ = false;                                         // and so it is not ready
  std::jthread models_;
};

}  // namespace carillon::roles
