#include "carillon/cluster/clock/peer_clock.h"

#include <algorithm>

namespace carillon::cluster {
namespace {

__extension__ typedef __int128 Wide;  // no overflow of a product of times

// Differences and times from outside stay so far from the ends that sums of a few do not overflow: 36 years.
constexpr std::int64_t farthest = std::int64_t{1} << 60;
constexpr Duration anchor_every = std::chrono::seconds{5};

bool usable(TimePoint t) {
  return t.time_since_epoch().count() > -farthest && t.time_since_epoch().count() < farthest;
}

}  // namespace

PeerClock::Verdict PeerClock::add(const Sample& s) {
  for (const TimePoint t : {s.sent, s.received, s.replied, s.heard})
    if (!usable(t)) return Verdict::impossible;
  const Duration away = s.heard - s.sent, there = s.replied - s.received;
  if (away < Duration{0} || there < Duration{0}) return Verdict::impossible;
  if (agreed_ == 0) begin(s.sent);
  if (there > away + Duration{drifted(base_ + away) + 1}) return Verdict::impossible;
  if (s.sent - turned_ >= options_.memory / 2) {
    older_ = newer_;
    newer_ = {};
    turned_ = s.sent;
  }
  const auto take = [&] {
    newer_.least = std::max(newer_.least, (s.replied - s.heard).count() + drifted(s.sent));
    newer_.most = std::min(newer_.most, (s.received - s.sent).count() - drifted(s.sent));
    last_ = std::max(last_, s.heard);
  };
  take();
  const Span now = span(last_);
  const bool agrees = now.least <= now.most;
  if (!agrees) {
    begin(s.sent);
    take();
  }
  agreed_ = std::min(agreed_ + 1, options_.settle_samples);
  if (const auto difference = at(last_); !next_ || last_ - next_->at >= anchor_every) {
    anchor_ = next_;
    next_ = {last_, *difference};
  }
  return agrees ? Verdict::agrees : Verdict::jumped;
}

void PeerClock::begin(TimePoint sent) {
  base_ = turned_ = last_ = sent;
  older_ = newer_ = {};
  agreed_ = 0;
  anchor_.reset();
  next_.reset();
}

// By how much the clocks may have come to differ since `base_`; less than nothing before it.
std::int64_t PeerClock::drifted(TimePoint ours) const {
  const Wide since = Wide{ours.time_since_epoch().count()} - base_.time_since_epoch().count();
  return static_cast<std::int64_t>(
      std::clamp<Wide>(since * options_.max_drift_ppm / 1'000'000, -Wide{farthest}, Wide{farthest}));
}

// Two nanoseconds on each side are for rounding. Before the last sample the lines are not looked back upon.
PeerClock::Span PeerClock::span(TimePoint ours) const {
  const std::int64_t back = std::max<std::int64_t>(0, drifted(last_) - drifted(ours));
  const std::int64_t wider = drifted(std::max(ours, last_)) + back + 2;
  return {Duration{std::max(older_.least, newer_.least) - wider},
          Duration{std::min(older_.most, newer_.most) + wider}};
}

std::optional<PeerClock::Difference> PeerClock::at(TimePoint ours) const {
  if (agreed_ == 0) return std::nullopt;
  const Span found = span(ours);
  const Duration offset = found.least + (found.most - found.least) / 2;
  return Difference{offset, std::max(found.most - offset, offset - found.least)};
}

std::optional<PeerClock::Drift> PeerClock::drift() const {
  const std::optional<Anchor>& from = anchor_ ? anchor_ : next_;
  if (!from || last_ - from->at < std::chrono::seconds{1}) return std::nullopt;
  const Difference now = *at(last_);
  const double ms = to_ms(last_ - from->at);
  return Drift{to_us(now.offset - from->difference.offset) * 1e3 / ms,
               to_us(now.bound + from->difference.bound) * 1e3 / ms};
}

std::optional<Window> PeerClock::inside(const Window& peers) const {
  if (agreed_ == 0) return std::nullopt;
  Window ours = peers;
  // The difference drifts until then, and so it is not known when exactly that is by our clock.
  const Duration offset = at(last_)->offset;
  const auto there = [&](TimePoint t) {
    const TimePoint about = saturating_add(t, -offset);
    const Duration error = 2 * at(about)->bound;
    const Span before = span(saturating_add(about, -error)), after = span(saturating_add(about, error));
    return Span{std::min(before.least, after.least), std::max(before.most, after.most)};
  };
  if (peers.earliest != TimePoint::min())
    ours.earliest = saturating_add(peers.earliest, -there(peers.earliest).least);
  if (peers.latest != TimePoint::max()) ours.latest = saturating_add(peers.latest, -there(peers.latest).most);
  if (ours.earliest > ours.latest) return std::nullopt;
  return ours;
}

}  // namespace carillon::cluster
