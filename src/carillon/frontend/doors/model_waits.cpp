#include "carillon/frontend/doors/model_waits.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include <pthread.h>

#include "carillon/base/assert.h"

namespace carillon::frontend {
namespace {

// How often it is looked whether models are ready: a small part of the time that one takes to load.
constexpr std::chrono::milliseconds model_look_every{2};

// Of what is found while the server loads its models. Before the repository was looked at no name is known.
bool is_coming(const Result<std::shared_ptr<const controller::ModelView>>& found) {
  return found ? !(*found)->ready && (*found)->coming : found.error().code == ErrorCode::unavailable;
}

}  // namespace

ModelWaits::~ModelWaits() {
  {
    const std::lock_guard lock(mutex_);
    CARILLON_ASSERT(waiting_.empty());
    ending_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

std::optional<TimePoint> ModelWaits::would(const controller::Service& service, std::string_view model,
                                           std::string_view version, TimePoint arrival) const {
  if (draining_ || !service.loading()) return std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= most) return std::nullopt;
  }
  const auto view = service.find(model, version);
  if (!view) return is_coming(view) ? std::optional(TimePoint::max()) : std::nullopt;
  // It may have become ready since it was looked for.
  if (!(*view)->ready && !is_coming(view)) return std::nullopt;
  const auto& slo = (*view)->config.slo;
  return slo ? saturating_add(arrival, *slo) : TimePoint::max();
}

void ModelWaits::wait(const controller::Service& service, Request request) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() < most) {
      if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
      waiting_.push_back({&service, std::move(request)});
      wake_.notify_one();
      return;
    }
  }
  request.go_on();
}

void ModelWaits::settle() {
  CARILLON_ASSERT(draining_);
  std::unique_lock lock(mutex_);
  settled_.wait(lock, [this] { return waiting_.empty() && going_on_ == 0; });
}

bool ModelWaits::waits_on(const Waiting& waiting, Looked& looked) const {
  const Request& request = waiting.request;
  if (draining_ || *request.gone || !waiting.service->loading() || waiting.service->now() >= request.until)
    return false;
  const auto [at, is_new] = looked.try_emplace({waiting.service, request.model, request.version}, false);
  if (is_new) at->second = is_coming(waiting.service->find(request.model, request.version));
  return at->second;
}

void ModelWaits::go_on(Request request) {
  WorkPool::Work work = [this, request = std::move(request)]() mutable {
    request.go_on();
    request = {};
    const std::lock_guard lock(mutex_);
    --going_on_;
    settled_.notify_all();
  };
  if (!heavy_.post(std::move(work))) work();
}

void ModelWaits::run() {
  pthread_setname_np(pthread_self(), "carillon-waits");
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (waiting_.empty())
      wake_.wait(lock);
    else
      wake_.wait_for(lock, model_look_every, [this] { return ending_; });
    Looked looked;
    std::vector<bool> goes_on(waiting_.size());
    for (std::size_t i = 0; i < waiting_.size(); ++i) goes_on[i] = !waits_on(waiting_[i], looked);
    std::vector<Waiting> through;
    std::size_t left = 0;
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      if (goes_on[i])
        through.push_back(std::move(waiting_[i]));
      else if (left++ != i)
        waiting_[left - 1] = std::move(waiting_[i]);
    }
    waiting_.resize(left);
    going_on_ += through.size();
    lock.unlock();
    for (Waiting& each : through) go_on(std::move(each.request));
    lock.lock();
  }
}

}  // namespace carillon::frontend
