#include "carillon/schedule/parts/plan.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace carillon::schedule::parts {

void Plan::hear(const Event& event, const Orders& out) {
  paces_.hear(event, out.ledger(), out.time());
  const auto* const change = std::get_if<ModelChanged>(&event);
  if (change == nullptr || !change->info) return;
  symphony::BatchTimes times(*change->info, environment_);
  if (change->model.index() == times_.size()) {
    times_.push_back(std::move(times));
    all_times_.push_back(&times_.back());
    seeds_.emplace_back();
    worth_.push_back(all_sizes);
    worth_rows_.push_back(0);
    batches_.add_model();
  } else {
    times_[change->model.index()] = std::move(times);
    seeds_[change->model.index()] = {};
    worth_[change->model.index()] = all_sizes;
    worth_rows_[change->model.index()] = 0;
    batches_.renew_model(change->model);
  }
}

bool Plan::step(const Orders& out) {
  if (!busy()) {
    if (out.ledger().alive() == 0 || !batches_.due(out.time())) return false;
    renewed_ = 0;
    renewing_ = true;
  }
  std::size_t most = models_at_a_time;
  for (; renewed_ < times_.size() && most > 0; ++renewed_, --most) renew(renewed_, out);
  if (renewed_ < times_.size()) return false;
  if (std::exchange(renewing_, false)) batches_.begin(out.time(), out.ledger().alive());
  return batches_.go_on(all_times_, most);
}

// What the model's batches take, by its seeds and the pace of devices.
void Plan::renew(std::size_t m, const Orders& out) {
  const ModelId model{static_cast<std::uint32_t>(m)};
  const auto& info = out.ledger().times(Class::normal).info(model);
  const double pace = paces_.mean(model, out.ledger().alive());
  if (seeds_[m].info == info.get() && seeds_[m].pace == pace) return;
  int& worth = worth_[m];
  worth = all_sizes;
  if (by_worth_ && info->time_varies)
    if (const auto largest = paces_.worth().largest(model, info->batches)) worth = static_cast<int>(*largest);
  worth_rows_[m] = worth == all_sizes ? 0 : static_cast<std::size_t>(times_[m].batch_size(worth));
  seeds_[m] = {info.get(), pace};
  symphony::BatchTimes& times = times_[m];
  for (std::size_t i = 0; i < info->batches.size(); ++i) {
    const int at = static_cast<int>(i);
    double seed = static_cast<double>(std::max(info->batches[i].exec, Duration{1}).count());
    if (worth != all_sizes && at <= worth) seed *= paces_.worth().times(model, times.batch_size(at));
    if (at > worth)  // nothing is gained by it
      seed = static_cast<double>(times.exec(worth).count()) / pace * times.batch_size(at) /
             times.batch_size(worth);
    times.set_exec(at, from_ns(pace * seed));
  }
}

}  // namespace carillon::schedule::parts
