#include "carillon/schedule/orloj/profiler.h"

#include <algorithm>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"

namespace carillon::schedule::orloj {

void Profiler::sent(const Request& request, Actions& out) {
  if (share_ <= 0 || open_.size() + waiting_.size() >= backlog_) return;
  // By its id: the same request is chosen each time that it is sent.
  if (Random(request.id.value).uniform() >= share_) return;
  if (std::ranges::find(open_, request.id, &Sample::request) != open_.end()) return;
  open_.push_back({request.id, request.model, request.app});
  out.emplace_back(Keep{request.id});
}

void Profiler::answered(RequestId request) {
  const auto found = std::ranges::find(open_, request, &Sample::request);
  if (found == open_.end()) return;
  waiting_.push_back(*found);
  open_.erase(found);
}

void Profiler::gone(RequestId request) {
  std::erase_if(open_, [request](const Sample& sample) { return sample.request == request; });
}

void Profiler::changed(ModelId model) {
  const auto drop = [&](auto& samples, std::size_t from) {
    for (std::size_t i = from; i < samples.size();) {
      if (samples[i].model != model) {
        ++i;
        continue;
      }
      dropped_.push_back(samples[i].request);
      samples.erase(samples.begin() + static_cast<std::ptrdiff_t>(i));
    }
  };
  drop(open_, 0);
  if (running_ && waiting_.front().model == model) running_->outdated = true;
  drop(waiting_, running_ ? 1 : 0);
}

void Profiler::tidy(Actions& out) {
  for (const RequestId request : dropped_) out.emplace_back(Keep{request, false});
  dropped_.clear();
}

void Profiler::drop() {
  CARILLON_ASSERT(!running_);
  dropped_.push_back(waiting_.front().request);
  waiting_.pop_front();
  tried_ = 0;
}

void Profiler::begin(ActionId id, DeviceId device) {
  CARILLON_ASSERT(!running_ && !waiting_.empty());
  running_ = Running{.id = id, .device = device};
}

void Profiler::stop(Actions& out) {
  if (!running_ || std::exchange(running_->stopped, true)) return;
  out.emplace_back(Stop{running_->id, running_->device});
}

void Profiler::restarted(DeviceId device) {
  if (running_ && running_->device == device) running_.reset();
}

std::optional<Profiler::Sample> Profiler::ended(ActionStatus status) {
  CARILLON_ASSERT(running_);
  const bool outdated = running_->outdated;
  running_.reset();
  if (made_way(status)) {
    if (++tried_ >= attempts_) drop();
    return std::nullopt;
  }
  tried_ = 0;
  const Sample sample = waiting_.front();
  waiting_.pop_front();
  if (status != ActionStatus::success || outdated) return std::nullopt;
  return sample;
}

}  // namespace carillon::schedule::orloj
