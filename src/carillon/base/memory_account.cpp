#include "carillon/base/memory_account.h"

#include <algorithm>
#include <utility>

namespace carillon {
namespace {

void add(ModelMemory& to, const ModelMemory& more) {
  to.plans = to.plans + more.plans;
  to.weights = to.weights + more.weights;
  to.processes = to.processes + more.processes;
}

void subtract(ModelMemory& from, const ModelMemory& less) {
  from.plans = from.plans - less.plans;
  from.weights = from.weights - less.weights;
  from.processes = from.processes - less.processes;
}

}  // namespace

std::string whole_mib(Bytes size) {
  return std::to_string(round_up(size.count, mib(1).count) / mib(1).count) + "MiB";
}

std::shared_ptr<MemoryAccount> MemoryAccount::make(Options options) {
  return std::shared_ptr<MemoryAccount>(new MemoryAccount(std::move(options)));
}

Bytes MemoryAccount::may_take() const {
  return options_.models - std::min(options_.models, shrunk_);
}

Result<> MemoryAccount::check(std::string_view model, const Need& need, Bytes others) const {
  const Bytes most = may_take();
  const bool weights_fit = options_.weights == Bytes{} || need.weights <= options_.weights;
  if (others + need.memory <= most && weights_fit) return {};
  std::string text = options_.bound + " is too small for model '" + std::string(model) + "'";
  if (weights_fit && need.memory <= most) text += " beside those that are there";
  if (options_.least)
    text += ": at least " + whole_mib(options_.least(others + need.memory + shrunk_, need.weights));
  text += weights_fit ? "; to be made ready it takes about " + to_text(need.memory) + ", and " +
                            to_text(most - std::min(most, others)) + " are left for models"
                      : "; its weights are about " + to_text(need.weights) +
                            ", and the cache for weights is " + to_text(options_.weights);
  return fail(ErrorCode::resource_exhausted, text);
}

Result<MemoryAccount::Charge> MemoryAccount::take(std::string_view model, const Need& need) {
  Charge out(shared_from_this(), std::string(model));
  if (auto fits = out.expect(need); !fits) return std::unexpected(fits.error());
  return out;
}

void MemoryAccount::shrink_by(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  shrunk_ = bytes;
}

Bytes MemoryAccount::left() const {
  const std::lock_guard lock(mutex_);
  const Bytes most = may_take();
  return most - std::min(most, all());
}

MemoryAccount::Counts MemoryAccount::counts() const {
  const std::lock_guard lock(mutex_);
  return {.models = may_take(), .taken = taken_, .loading = loading_};
}

MemoryAccount::Charge::Charge(std::shared_ptr<MemoryAccount> account, std::string model)
    : account_(std::move(account)), model_(std::move(model)) {}

MemoryAccount::Charge::Charge(Charge&& other) noexcept
    : account_(std::move(other.account_)),
      model_(std::move(other.model_)),
      expected_(std::exchange(other.expected_, {})),
      has_(std::exchange(other.has_, {})) {}

MemoryAccount::Charge::~Charge() {
  if (account_ == nullptr) return;
  const std::lock_guard lock(account_->mutex_);
  account_->loading_ = account_->loading_ - expected_;
  subtract(account_->taken_, has_);
}

Result<> MemoryAccount::Charge::expect(const Need& need) {
  const std::lock_guard lock(account_->mutex_);
  if (auto fits = account_->check(model_, need, account_->all() - expected_); !fits) return fits;
  account_->loading_ = account_->loading_ - expected_ + need.memory;
  expected_ = need.memory;
  return {};
}

Result<> MemoryAccount::Charge::settle(const ModelMemory& taken) {
  const std::lock_guard lock(account_->mutex_);
  account_->loading_ = account_->loading_ - expected_;
  expected_ = {};
  subtract(account_->taken_, has_);
  auto fits = account_->check(model_, {.memory = taken.sum()}, account_->all());
  has_ = taken;
  add(account_->taken_, has_);
  return fits;
}

}  // namespace carillon
