#include "carillon/frontend/telemetry/recent.h"

#include <algorithm>
#include <cmath>

namespace carillon::frontend {
namespace {

// Latencies are large: of the looks between the oldest and the newest only so many keep theirs.
constexpr Duration latency_step = std::chrono::seconds{5};

constexpr auto counters = {&RecentModel::on_time,       &RecentModel::late,      &RecentModel::refused,
                           &RecentModel::shed,          &RecentModel::cancelled, &RecentModel::failed,
                           &RecentModel::invalid,       &RecentModel::promised,  &RecentModel::promised_late,
                           &RecentModel::avoidable_late};
constexpr auto durations = {&RecentModel::waited, &RecentModel::input, &RecentModel::exec,
                            &RecentModel::output, &RecentModel::took};

RecentModel counts_of(const controller::ModelStatistics& m) {
  return {.on_time = m.on_time,
          .late = m.late,
          .refused = m.refused,
          .shed = m.shed,
          .cancelled = m.cancelled,
          .failed = m.failed,
          .invalid = m.invalid,
          .promised = m.promised,
          .promised_late = m.promised_late,
          .avoidable_late = m.avoidable_late,
          .expected_late = m.expected_late,
          .reasons = m.reasons,
          .waited = m.queue.total,
          .input = m.compute_input.total,
          .exec = m.compute_infer.total,
          .output = m.compute_output.total,
          .took = m.success.total};
}

RecentModel between(const RecentModel& before, const RecentModel& now) {
  RecentModel out;
  for (const auto counter : counters) out.*counter = now.*counter - before.*counter;
  for (const auto duration : durations) out.*duration = now.*duration - before.*duration;
  out.expected_late = now.expected_late - before.expected_late;
  for (std::size_t i = 0; i < out.reasons.size(); ++i) out.reasons[i] = now.reasons[i] - before.reasons[i];
  return out;
}

}  // namespace

std::optional<double> RecentModel::on_time_share() const {
  const std::uint64_t all = on_time + bad();
  if (all == 0) return std::nullopt;
  return static_cast<double>(on_time) / static_cast<double>(all);
}

RecentModel& RecentModel::operator+=(const RecentModel& more) {
  for (const auto counter : counters) this->*counter += more.*counter;
  for (const auto duration : durations) this->*duration += more.*duration;
  expected_late += more.expected_late;
  for (std::size_t i = 0; i < reasons.size(); ++i) reasons[i] += more.reasons[i];
  return *this;
}

void Recent::look(TimePoint now, const controller::ServerStatistics& statistics) {
  // The newest has latencies always; of those behind it, one in so much time.
  if (looks_.size() >= 2) {
    Look& last = looks_.back();
    const auto kept =
        std::find_if(looks_.rbegin() + 1, looks_.rend(), [](const Look& l) { return l.has_latency; });
    if (kept != looks_.rend() && last.at - kept->at < latency_step) {
      last.has_latency = false;
      for (Model& model : last.models) model.latency = {};
    }
  }
  Look look{.at = now, .has_latency = true, .models = {}, .busy = {}, .loads = {}};
  look.models.reserve(statistics.models.size());
  for (const controller::ModelStatistics& m : statistics.models) {
    Model& model = look.models.emplace_back();
    model.name = m.name;
    model.version = m.version;
    model.counts = counts_of(m);
    m.latency.each_bin([&](Duration end, std::uint64_t count) { model.latency.emplace_back(end, count); });
  }
  for (const controller::DeviceStatistics& device : statistics.devices) {
    look.busy.push_back(device.exec_busy);
    look.loads.push_back(device.load_busy);
  }
  looks_.push_back(std::move(look));
  // The first has latencies, and is old enough for a whole minute where any is.
  for (;;) {
    const auto second =
        std::find_if(looks_.begin() + 1, looks_.end(), [](const Look& l) { return l.has_latency; });
    if (second == looks_.end() || now - second->at < window) break;
    looks_.erase(looks_.begin(), second);
  }
}

const Recent::Model& Recent::find(const Look& look, std::size_t place, const Model& model) {
  static const Model none;
  const auto same = [&](const Model& other) {
    return other.name == model.name && other.version == model.version;
  };
  if (place < look.models.size() && same(look.models[place])) return look.models[place];
  const auto found = std::ranges::find_if(look.models, same);
  return found == look.models.end() ? none : *found;
}

std::optional<RecentModel> Recent::model(std::size_t place) const {
  if (looks_.size() < 2 || place >= looks_.back().models.size()) return std::nullopt;
  const Model& now = looks_.back().models[place];
  const Model& before = find(looks_.front(), place, now);
  RecentModel out = between(before.counts, now.counts);
  // Both are in order, and what is in the older is in the newer, too.
  Bins bins;
  std::uint64_t all = 0;
  auto at = before.latency.begin();
  for (const auto& [end, count] : now.latency) {
    while (at != before.latency.end() && at->first < end) ++at;
    const std::uint64_t more = count - (at != before.latency.end() && at->first == end ? at->second : 0);
    if (more > 0) bins.emplace_back(end, more);
    all += more;
  }
  const auto percentile = [&](double q) {
    const auto rank =
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(q * static_cast<double>(all))));
    std::uint64_t seen = 0;
    for (const auto& [end, count] : bins)
      if ((seen += count) >= rank) return end;
    return Duration{0};
  };
  out.p50 = percentile(0.5);
  out.p99 = percentile(0.99);
  return out;
}

std::optional<double> Recent::rate(std::size_t place) const {
  if (looks_.size() < 2 || place >= looks_.back().models.size()) return std::nullopt;
  const Look& now = looks_.back();
  // The newest that is old enough, else the oldest.
  auto before = std::find_if(looks_.rbegin() + 1, looks_.rend(),
                             [&](const Look& look) { return now.at - look.at >= rate_window; });
  if (before == looks_.rend()) --before;
  const double span = to_seconds(now.at - before->at);
  if (span <= 0) return std::nullopt;
  const std::uint64_t earlier = find(*before, place, now.models[place]).counts.all();
  return static_cast<double>(now.models[place].counts.all() - earlier) / span;
}

std::optional<double> Recent::busy(std::size_t device) const {
  if (looks_.size() < 2 || device >= looks_.back().busy.size()) return std::nullopt;
  const Look& now = looks_.back();
  const Look& before = looks_[looks_.size() - 2];
  if (device >= before.busy.size() || now.at <= before.at) return std::nullopt;
  return std::clamp(to_seconds(now.busy[device] - before.busy[device]) / to_seconds(now.at - before.at), 0.0,
                    1.0);
}

std::optional<Recent::DeviceTime> Recent::device_time() const {
  const double seconds = to_seconds(span());
  if (seconds <= 0) return std::nullopt;
  const Look& before = looks_.front();
  const Look& now = looks_.back();
  const std::size_t devices = now.busy.size();
  if (devices == 0) return std::nullopt;
  Duration exec{0}, load{0};
  for (std::size_t i = 0; i < devices; ++i) {
    // One that came after the first look began with nothing.
    const bool known = i < before.busy.size();
    exec += now.busy[i] - (known ? before.busy[i] : Duration{0});
    load += now.loads[i] - (known ? before.loads[i] : Duration{0});
  }
  // A run counts when it ends: what began before may make it more than all.
  const auto share = [&](Duration d) {
    return std::clamp(to_seconds(d) / seconds / static_cast<double>(devices), 0.0, 1.0);
  };
  return DeviceTime{.exec = share(exec), .load = share(load)};
}

Duration Recent::span() const {
  return looks_.size() < 2 ? Duration{0} : looks_.back().at - looks_.front().at;
}

}  // namespace carillon::frontend
