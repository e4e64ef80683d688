#include "carillon/roles/frontend_host.h"

#include <utility>

#include <pthread.h>
#include <spdlog/spdlog.h>

#include "carillon/base/assert.h"
#include "carillon/base/unix_time.h"
#include "carillon/engine/engine.h"
#include "carillon/repository/config.h"
#include "carillon/transport/codec.h"

namespace carillon::roles {
namespace {

// A model that runs elsewhere: its tensors and batch sizes, and no plans.
class ElsewhereModel final : public engine::CompiledModel {
 public:
  explicit ElsewhereModel(const wire::Model& model)
      : inputs_(model.inputs), outputs_(model.outputs), lengths_(model.lengths) {
    for (const ledger::BatchProfile& each : model.info.batches) batches_.push_back(each.batch);
  }
  const std::vector<graph::TensorSpec>& inputs() const override { return inputs_; }
  const std::vector<graph::TensorSpec>& outputs() const override { return outputs_; }
  Bytes weights() const override { return {}; }
  Result<> write_weights(std::uint64_t, std::span<std::byte>) const override {
    return fail(ErrorCode::unsupported, "its weights are on other hosts");
  }
  std::span<const int> batch_sizes() const override { return batches_; }
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  const engine::Plan* plan(int, std::int64_t) const override { return nullptr; }

 private:
  std::vector<graph::TensorSpec> inputs_, outputs_;
  std::vector<std::int64_t> lengths_;
  std::vector<int> batches_;
};

constexpr Duration patience_of_models = std::chrono::seconds{10};
constexpr Duration patience_of_unloads = std::chrono::seconds{5};
// An order of a client waits so long for the next leader.
constexpr Duration patience_of_orders = std::chrono::seconds{5}, looks_at_orders = std::chrono::seconds{1};

}  // namespace

FrontendHost::FrontendHost(const controller::Options& options, const Clock& clock,
                           std::function<void(const std::string&)> warn, explain::RowSpansSink traced,
                           std::string rows_at, std::string cluster)
    : clock_(clock), warn_(std::move(warn)), traced_(std::move(traced)), cluster_(std::move(cluster)) {
  controller_ = std::make_unique<controller::Controller>(
      [&](controller::Holder& holder, dispatch::Notes&) {
        auto offering =
            std::make_unique<Offering>(holder, static_cast<OfferingOut&>(*this), std::move(rows_at));
        offering_ = offering.get();
        return offering;
      },
      nullptr, options, clock);
}

Result<std::unique_ptr<FrontendHost>> FrontendHost::open(const MemberArguments& arguments,
                                                         const controller::Options& options,
                                                         const Clock& clock,
                                                         std::function<void(const std::string&)> warn,
                                                         bool takes_orders, explain::RowSpansSink traced) {
  std::unique_ptr<FrontendHost> made(new FrontendHost(options, clock, std::move(warn), std::move(traced),
                                                      arguments.listen, arguments.coordinator.name));
  made->protocols_ = arguments.protocols;
  auto rows = transport::RowServer::open(
      arguments.listen,
      {.cluster = arguments.coordinator.name, .speaks = arguments.protocols, .tls = arguments.tls},
      made->store_, [to = made.get()](RequestId row, std::uint64_t, const std::string& report) {
        to->outputs(row, report);
      });
  if (!rows) return in_context("--listen", rows.error());
  made->rows_ = std::move(*rows);
  if (takes_orders) made->controller_->set_control(made.get());
  made->controller_->set_loading(true);  // until a leader has told of its models
  made->why_ = Why::no_leader;
  made->controller_->set_why_not_ready("no scheduler leads cluster '" + made->cluster_ + "'");
  made->controller_->start();
  made->models_ = std::jthread([to = made.get()](const std::stop_token& ended) { to->follow_models(ended); });
  auto follower = Follower::open(arguments, *made);
  if (!follower) return std::unexpected(follower.error());
  made->follower_ = std::move(*follower);
  return made;
}

FrontendHost::~FrontendHost() {
  stop();
}

void FrontendHost::stop() {
  rows_.reset();  // its thread asks the follower for clocks
  follower_.reset();
  models_.request_stop();
  wake_.notify_all();
  if (models_.joinable()) models_.join();
  controller_->stop();
  const Error ends{ErrorCode::unavailable, "the server is not serving now"};
  for (auto& [number, order] : std::exchange(under_way_, {})) order.done(std::unexpected(ends), false);
  for (auto& news : std::exchange(news_, {}))
    if (auto* ordered = std::get_if<Ordered>(&news)) ordered->order.done(std::move(ordered->result), false);
}

// --- The leader

void FrontendHost::leads(std::shared_ptr<transport::Stream> stream, std::uint64_t epoch,
                         const transport::Hello&) {
  controller_->react([this, stream = std::move(stream), epoch](TimePoint now) {
    leader_ = stream;
    epoch_ = epoch;
    offering_->leads(now);
    told_open_.reset();
    give_orders_again();
  });
}

void FrontendHost::leader_left() {
  controller_->react([this](TimePoint now) {
    leader_.reset();
    offering_->leader_left(now);
    orders_lost_at_ = saturating_add(now, patience_of_orders);
  });
}

void FrontendHost::heard(std::vector<transport::Message> messages) {
  controller_->react([this, messages = std::move(messages)](TimePoint now) mutable {
    for (transport::Message& message : messages)
      if (const auto* drains = std::get_if<transport::Drain>(&message)) {
        drain(drains->undo);
      } else if (auto* told = std::get_if<transport::ModelOrdered>(&message)) {
        auto order = under_way_.extract(told->order);
        if (order.empty()) continue;
        // The first time it was carried out, and nobody heard of that.
        if (order.mapped().again && order.mapped().what.unload && !told->result &&
            told->result.error().code == ErrorCode::not_found)
          told->result = Result<>{};
        ordered(std::move(order.mapped()), std::move(told->result));
      } else {
        offering_->heard(std::move(message), now);
      }
  });
}

// The frontend goes on answering. It tells load balancers that it is not ready.
void FrontendHost::drain(bool undo) {
  const std::lock_guard lock(mutex_);
  told_open_.reset();  // the leader asks anew
  if (std::exchange(drains_, !undo) == !undo) return;
  controller_->set_loading(drains_ || !told_);
  spdlog::info(drains_ ? "drains: it answers on, and is not ready" : "drains no more");
}

// In a turn. The leader hears whether calls are open.
void FrontendHost::tell_drain() {
  const std::lock_guard lock(mutex_);
  if (!drains_) return told_open_.reset();
  const std::size_t open = offering_->open_rows();
  if (leader_ == nullptr || (told_open_ && (*told_open_ == 0) == (open == 0))) return;
  told_open_ = open;
  send(transport::Drains{static_cast<std::uint32_t>(open)});
}

void FrontendHost::send(transport::Message message) {
  if (leader_ != nullptr) (void)leader_->queue(epoch_, std::move(message));
}

// In a turn.
void FrontendHost::tell_why() {
  bool drains = false;
  {
    const std::lock_guard lock(mutex_);
    drains = drains_;
  }
  const Why now = drains                            ? Why::drains
                  : leader_ == nullptr              ? Why::no_leader
                  : offering_->devices_alive() == 0 ? Why::no_worker
                                                    : Why::serves;
  if (std::exchange(why_, now) == now) return;
  switch (now) {
    case Why::serves:
      return controller_->set_why_not_ready({});
    case Why::drains:
      return controller_->set_why_not_ready("this frontend drains: 'carillon cluster drain' ordered so");
    case Why::no_leader:
      return controller_->set_why_not_ready("no scheduler leads cluster '" + cluster_ + "'");
    case Why::no_worker:
      return controller_->set_why_not_ready("no worker of cluster '" + cluster_ + "' has a device");
  }
}

ClusterFigures FrontendHost::figures() const {
  return {.member = follower_->membership().figures(),
          .reoffered = reoffered_.load(std::memory_order_relaxed),
          .doubled = rows_->doubled()};
}

void FrontendHost::flush() {
  reoffered_.store(offering_->counters().reoffered, std::memory_order_relaxed);
  tell_drain();
  tell_why();
  if (leader_ != nullptr) leader_->flush();
}

// --- Rows

std::uint64_t FrontendHost::open(RequestId row, transport::RowTensors tensors) {
  return store_.open(row, std::move(tensors));
}

void FrontendHost::close(std::uint64_t key) {
  store_.close(key);
}

TimePoint FrontendHost::unix_zero() {
  return TimePoint{-unix_minus_steady()};
}

void FrontendHost::traced(std::shared_ptr<const explain::RowSpans> spans) {
  if (traced_) traced_(std::move(spans));
}

// A worker's report comes as the one message of a frame whose hello says who it is.
void FrontendHost::outputs(RequestId row, const std::string& report) {
  auto frame = transport::decode(report, {}, protocols_);
  wire::Report told;
  if (frame && frame->hello && frame->messages.size() == 1 &&
      std::holds_alternative<wire::Report>(frame->messages.front()) && follower_ != nullptr &&
      follower_->to_our_time(*frame->hello, frame->messages.front())) {
    told = std::get<wire::Report>(std::move(frame->messages.front()));
  } else {
    // The outputs are here: without the times the row is answered all the same.
    const TimePoint now = clock_.now();
    told.times = {.received = now,
                  .input_start = now,
                  .input_end = now,
                  .exec_start = now,
                  .exec_end = now,
                  .output_start = now,
                  .output_end = now};
  }
  told.status = ledger::ActionStatus::success;
  controller_->react(
      [this, row, told = std::move(told)](TimePoint now) { offering_->outputs(row, told, now); });
}

// --- Models

void FrontendHost::load(std::string model, Brought brought, Done done) {
  if (brought.config || !brought.files.empty())
    return done(
        fail(ErrorCode::unsupported,
             "an order to a cluster brings no config and no files: put them into the repositories of its "
             "workers, and give the order without them"),
        false);
  order({.model = std::move(model)}, std::move(done));
}

void FrontendHost::unload(std::string model, bool dependents, Done done) {
  // Which models would go only the workers know, and so nobody could say whether the client's key has them.
  if (dependents)
    return done(fail(ErrorCode::unsupported,
                     "an order to a cluster unloads one model: leave out unload_dependents, and unload the "
                     "others by their names"),
                false);
  order({.model = std::move(model), .unload = true}, std::move(done));
}

void FrontendHost::order(transport::ModelOrder order, Done done) {
  controller_->react(
      [this, order = std::move(order), done = std::make_shared<Done>(std::move(done))](TimePoint) mutable {
        Order given{std::move(*done), order};
        if (leader_ == nullptr)
          return ordered(std::move(given),
                         fail(ErrorCode::unavailable, "no scheduler leads now; try again later"));
        order.order = given.what.order = ++orders_;
        under_way_.emplace(order.order, std::move(given));
        send(std::move(order));
      });
}

// The next leader knows nothing of them. To carry one out twice does no harm.
void FrontendHost::give_orders_again() {
  orders_lost_at_ = TimePoint::max();
  for (auto& [number, order] : under_way_) {
    order.again = true;
    send(order.what);
  }
}

void FrontendHost::lose_orders(TimePoint now) {
  if (now < orders_lost_at_) return;
  orders_lost_at_ = TimePoint::max();
  for (auto& [number, order] : std::exchange(under_way_, {}))
    ordered(std::move(order),
            fail(ErrorCode::unavailable,
                 "the scheduler that led leads no more, and may have carried out the order; no other leads "
                 "yet: give it once more"));
}

// Once the models that came and went before are known here.
void FrontendHost::ordered(Order order, Result<> result) {
  const std::lock_guard lock(mutex_);
  news_.emplace_back(Ordered{std::move(order), std::move(result), clock_.now() + patience_of_unloads});
  wake_.notify_all();
}

// A worker answers an unload first. Its word that the model goes comes when its runs have ended.
bool FrontendHost::still_serves(const Ordered& ordered) const {
  if (!ordered.order.what.unload || !ordered.result || clock_.now() >= ordered.until) return false;
  const auto model = controller_->find(ordered.order.what.model, "");
  return model && (*model)->ready;
}

void FrontendHost::model_comes(const wire::Model& model) {
  const std::lock_guard lock(mutex_);
  news_.emplace_back(Comes{model});
  wake_.notify_all();
}

void FrontendHost::model_goes(ModelId id) {
  const std::lock_guard lock(mutex_);
  news_.emplace_back(Goes{id});
  wake_.notify_all();
}

void FrontendHost::model_held(ModelId id, bool held) {
  const std::lock_guard lock(mutex_);
  if (const auto found = held_.find(id); found != held_.end()) *found->second = held;
}

void FrontendHost::models_told() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(told_, true)) return;
  news_.emplace_back(Told{});
  wake_.notify_all();
}

void FrontendHost::follow_models(const std::stop_token& ended) {
  pthread_setname_np(pthread_self(), "carillon-models");
  std::unique_lock lock(mutex_);
  while (!ended.stop_requested()) {
    if (!wake_.wait_for(lock, ended, looks_at_orders, [&] { return !news_.empty(); })) {
      lock.unlock();
      controller_->react([this](TimePoint now) { lose_orders(now); });
      lock.lock();
      continue;
    }
    if (ended.stop_requested()) break;
    auto news = std::move(news_.front());
    news_.pop_front();
    lock.unlock();
    if (std::holds_alternative<Told>(news)) {
      controller_->set_all_named();
      const std::lock_guard again(mutex_);
      controller_->set_loading(drains_);
    }
    if (const auto* comes = std::get_if<Comes>(&news)) add(comes->model, ended);
    if (auto* ordered = std::get_if<Ordered>(&news); ordered != nullptr && still_serves(*ordered)) {
      lock.lock();
      wake_.wait_for(lock, ended, std::chrono::milliseconds{10}, [] { return false; });
      news_.push_back(std::move(news));
      continue;
    }
    if (auto* ordered = std::get_if<Ordered>(&news)) {
      const bool full = !ordered->result && ordered->result.error().code == ErrorCode::resource_exhausted;
      ordered->order.done(std::move(ordered->result), full);
    }
    if (const auto* goes = std::get_if<Goes>(&news)) {
      for (controller::ModelView view : controller_->models())
        if (!view.left_out && view.id == goes->id) {
          view.reason = "no worker has it";
          view.left_out = true;
          view.usable = {};
          controller_->add_unready(std::move(view));
          (void)controller_->remove_model(goes->id, patience_of_models, ended);
        }
      const std::lock_guard again(mutex_);
      held_.erase(goes->id);
    }
    lock.lock();
  }
}

void FrontendHost::add(const wire::Model& model, const std::stop_token& ended) {
  const std::string named = "model '" + model.info.name + "' version " + std::to_string(model.version);
  if (controller_->next_model().value >= worker::most_models)
    return warn_(named + " is not served: no more than " + std::to_string(worker::most_models) +
                 " models can come while a frontend runs");
  auto config = repository::completed_config(model.config, model.info.name, model.inputs, model.outputs);
  if (!config)
    return warn_(named + " is not served: its config, as its worker tells: " + config.error().message);
  controller::ModelView view{.name = model.info.name,
                             .version = model.version,
                             .config = *std::move(config),
                             .usable = {},
                             .hash = model.hash};
  // What is served of it now: the new takes its place.
  std::optional<ModelId> before;
  if (const auto old = controller_->find(view.name, std::to_string(view.version)); old && !(*old)->left_out)
    before = (*old)->id;
  wire::Model here = model;
  here.info.id = controller_->next_model();
  const auto held = std::make_shared<std::atomic<bool>>(true);
  view.usable = [held]() -> Result<> {
    return *held ? Result<>{} : fail(ErrorCode::unavailable, "no worker has it now; try again later");
  };
  view.returns = true;
  {
    const std::lock_guard lock(mutex_);
    held_[here.info.id] = held;
  }
  controller_->add_model(std::move(view), ElsewhereModel(here), here.info);
  spdlog::info("{} is served", named);
  if (before) (void)controller_->remove_model(*before, patience_of_models, ended);
}

}  // namespace carillon::roles
