#include "carillon/simulate/scaling.h"

#include <algorithm>
#include <utility>

namespace carillon::simulate {

namespace {

provision::WantedOptions within(provision::WantedOptions options, int devices) {
  options.most = std::min(options.most, devices);
  options.least = std::min(options.least, options.most);
  return options;
}

}  // namespace

Scaling::Scaling(const ScalingOptions& options, int devices)
    : options_(options),
      devices_(static_cast<std::size_t>(devices)),
      wanted_(provision::Wanted::make(within(options.wanted, devices)).value()),
      window_(options.period),
      present_(std::clamp(options.devices, 1, devices)),
      asked_(present_) {
  if (options.usual) {
    UsualOptions usual = *options.usual;
    usual.most = within(options.wanted, devices).most;
    usual.quiet = options.wanted.quiet;
    usual_.emplace(usual);
  }
  for (int i = 0; i < present_; ++i) devices_[static_cast<std::size_t>(i)].state = State::on;
}

std::vector<Scaling::Order> Scaling::look(TimePoint now, const provision::AutoscaleWindow::Counters& counters,
                                          const UsualScaler::Counters& usual) {
  pass(now);
  int number = wanted_.look(now, present_, window_.observe(now, present_, counters)).value();
  int coming = wanted_.coming();
  if (usual_) {
    number = asked_ = usual_->look(now, present_, asked_, usual);
    coming = std::max(0, number - present_);
  }
  figures_.looks.push_back({now, number, present_, coming});
  std::vector<Order> orders;
  for (std::uint32_t i = 0; i < devices_.size(); ++i) {
    Device& device = devices_[i];
    if (std::cmp_less(i, number)) {
      if (device.state == State::leaving) device.state = State::on;
      if (device.state != State::off) continue;
      device.state = State::starting;
      orders.push_back({Order::Kind::start, i, ++device.booking});
    } else if (device.state == State::starting) {
      device.state = State::off;
    } else if (device.state == State::on) {
      device.state = State::leaving;
      device.since = now;
      orders.push_back({Order::Kind::leave, i, 0});
    }
  }
  return orders;
}

bool Scaling::starts(std::uint32_t device, std::uint32_t booking, TimePoint now) {
  if (devices_[device].state != State::starting || devices_[device].booking != booking) return false;
  pass(now);
  devices_[device].state = State::on;
  ++present_;
  return true;
}

void Scaling::left(std::uint32_t device, bool cut_off, TimePoint now) {
  pass(now);
  devices_[device].state = State::off;
  --present_;
  figures_.cut_off += cut_off ? 1U : 0U;
}

ScalingFigures Scaling::take(TimePoint end) {
  pass(end);
  return std::move(figures_);
}

void Scaling::pass(TimePoint now) {
  figures_.device_seconds += to_seconds(std::max(Duration{0}, now - last_)) * present_;
  last_ = std::max(last_, now);
}

}  // namespace carillon::simulate
