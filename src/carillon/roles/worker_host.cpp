#include "carillon/roles/worker_host.h"

#include <utility>
#include <variant>

#include <spdlog/spdlog.h>

#include "carillon/base/clock.h"
#include "carillon/transport/codec.h"

namespace carillon::roles {

WorkerHost::WorkerHost(std::function<void(const std::string&)> warn, std::optional<std::uint32_t> order,
                       explain::RowSpansSink traced)
    : warn_(std::move(warn)), order_(order), traced_(std::move(traced)) {}

WorkerHost::~WorkerHost() {
  leave();
  end();
}

controller::MakeDecider WorkerHost::decider() {
  return [this](controller::Holder&, dispatch::Notes& notes) {
    auto agent = std::make_unique<Agent>(static_cast<AgentOut&>(*this), notes, order_);
    lookup_.agent = agent.get();
    return agent;
  };
}

Result<> WorkerHost::join(const MemberArguments& arguments, controller::Controller& controller) {
  controller_ = &controller;
  const transport::RowClient::Options options{.cluster = arguments.coordinator.name, .tls = arguments.tls};
  controller.react([this, options](TimePoint) { client_ = transport::RowClient::make(options); });
  auto follower = Follower::open(arguments, *this);
  if (!follower) return std::unexpected(follower.error());
  const std::lock_guard lock(follower_mutex_);
  follower_ = std::move(*follower);
  return {};
}

void WorkerHost::leave() {
  std::unique_ptr<Follower> left;
  const std::lock_guard lock(follower_mutex_);
  left.swap(follower_);
}

void WorkerHost::end() {
  client_.reset();
}

// --- The leader

void WorkerHost::leads(std::shared_ptr<transport::Stream> stream, std::uint64_t epoch,
                       const transport::Hello& self) {
  controller_->react([this, stream = std::move(stream), epoch, self](TimePoint now) {
    leader_ = stream;
    self_ = self;
    epoch_ = epoch;
    lookup_.agent->leads(now);
  });
}

void WorkerHost::leader_left() {
  controller_->react([this](TimePoint now) {
    leader_.reset();
    lookup_.agent->leader_left(now);
  });
}

void WorkerHost::heard(std::vector<transport::Message> messages) {
  controller_->react([this, messages = std::move(messages)](TimePoint now) mutable {
    for (transport::Message& message : messages) {
      if (const auto* drain = std::get_if<transport::Drain>(&message);
          drain != nullptr && std::exchange(drains_, !drain->undo) == drain->undo)
        spdlog::info(drains_ ? "drains: it gets nothing new to do, and ends what it has" : "drains no more");
      lookup_.agent->heard(std::move(message), now);
    }
  });
}

void WorkerHost::send(transport::Message message) {
  if (leader_ != nullptr) (void)leader_->queue(epoch_, std::move(message));
}

std::optional<ClusterFigures> WorkerHost::figures() const {
  ClusterFigures figures{.member = {}, .unwanted = unwanted_.load(std::memory_order_relaxed)};
  {
    const std::lock_guard lock(follower_mutex_);
    if (follower_ == nullptr) return std::nullopt;
    figures.member = follower_->membership().figures();
  }
  const std::lock_guard lock(rows_mutex_);
  figures.rows = rows_taken_;
  return figures;
}

void WorkerHost::count(LatencyHistogram RowTimes::*of, TimePoint asked) {
  const Duration took = SteadyClock().now() - asked;
  const std::lock_guard lock(rows_mutex_);
  (rows_taken_.*of).add(took);
}

void WorkerHost::flush() {
  unwanted_.store(lookup_.agent->counters().unwanted, std::memory_order_relaxed);
  if (client_ != nullptr) client_->flush();
  if (leader_ != nullptr) leader_->flush();
}

// A leader hears of the orders of its own time alone.
void WorkerHost::order_model(const transport::ModelOrder& order) {
  controller::ModelControl::Done done = [this, epoch = epoch_, number = order.order](Result<> result,
                                                                                     bool full) {
    // A model that does not fit is no fault that passes.
    if (!result && !full && result.error().code == ErrorCode::resource_exhausted)
      result.error().code = ErrorCode::invalid_argument;
    controller_->react([this, epoch, told = transport::ModelOrdered{number, std::move(result)}](TimePoint) {
      if (epoch == epoch_) send(told);
    });
  };
  controller::ModelControl* const control = controller_->control();
  if (control == nullptr)
    done(fail(ErrorCode::unavailable,
              "it takes no orders to load and unload; start it with --model-control-mode explicit"),
         false);
  else if (order.unload)
    control->unload(order.model, false, std::move(done));
  else
    control->load(order.model, {}, std::move(done));
}

// --- Rows

void WorkerHost::connect(const std::string& address, const cluster::Protocols& speaks) {
  // Without a version that both speak the frontend refuses it, with words.
  const std::uint32_t protocol =
      cluster::settle({"the worker", self_.protocols}, {address, speaks}).value_or(self_.protocols.newest);
  protocols_.insert_or_assign(address, protocol);
  if (client_ != nullptr) client_->connect(address, protocol);
}

std::uint64_t WorkerHost::pull(const std::string& address, std::uint64_t key, TimePoint urgency,
                               std::shared_ptr<PulledRow> row) {
  const std::uint64_t ticket = next_ticket_++;
  transport::RowClient::Pull pull{.address = address,
                                  .key = key,
                                  .urgency = urgency,
                                  .room = [row](std::int64_t length, std::span<const std::uint64_t> bytes) {
                                    return row->make(length, bytes);
                                  }};
  tickets_[ticket] = client_->pull(
      std::move(pull), [this, ticket, asked = SteadyClock().now()](Result<std::int64_t> length) {
        if (length) count(&RowTimes::pulls, asked);
        Result<> result;
        if (!length) result = std::unexpected(length.error());
        controller_->react([this, ticket, result = std::move(result)](TimePoint now) {
          tickets_.erase(ticket);
          lookup_.agent->pulled(ticket, result, now);
        });
      });
  return ticket;
}

std::uint64_t WorkerHost::push(const std::string& address, std::uint64_t key, std::shared_ptr<PulledRow> row,
                               const wire::Report& report) {
  const std::uint64_t ticket = next_ticket_++;
  transport::RowClient::Push push{
      .address = address, .key = key, .epoch = epoch_, .report = {}, .outputs = row->outputs()};
  const auto settled = protocols_.find(address);
  transport::encode({.epoch = epoch_,
                     .hello = self_,
                     .messages = {report},
                     .protocol = settled != protocols_.end() ? settled->second : self_.protocols.oldest},
                    push.report, {.text = 256});
  tickets_[ticket] =
      client_->push(std::move(push), [this, ticket, row, asked = SteadyClock().now()](Result<bool> taken) {
        if (taken && *taken) count(&RowTimes::pushes, asked);
        controller_->react([this, ticket, taken = std::move(taken)](TimePoint now) {
          tickets_.erase(ticket);
          lookup_.agent->pushed(ticket, taken, now);
        });
      });
  return ticket;
}

void WorkerHost::cancel(std::uint64_t ticket) {
  if (const auto found = tickets_.find(ticket); found != tickets_.end()) client_->cancel(found->second);
}

}  // namespace carillon::roles
