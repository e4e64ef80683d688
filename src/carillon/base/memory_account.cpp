#include "carillon/base/memory_account.h"

#include <algorithm>
#include <tuple>
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

Result<> MemoryAccount::check(std::string_view model, const ModelNeed& need, Bytes others) const {
  const Bytes most = may_take();
  std::string why;
  if (others + need.memory > most)
    why = "it takes about " + to_text(need.memory) + ", and " + to_text(most - std::min(most, others)) +
          " are left for models";
  for (const auto& [what, needed, there] :
       {std::tuple("weights,", need.weights, options_.weights),
        std::tuple("workspace, for one request,", need.workspace, options_.workspace),
        std::tuple("inputs and outputs, for one request,", need.tensors, options_.tensors)})
    if (there > Bytes{} && needed > there && why.empty())
      why = "it needs " + to_text(needed) + " for its " + what + " and there are " + to_text(there);
  if (why.empty()) return {};
  std::string text = options_.bound + " is too small for model '" + std::string(model) + "'";
  if (need.memory <= most && others + need.memory > most) text += " beside those that are there";
  if (options_.least) {
    ModelNeed all = need;
    all.memory = others + need.memory + need.later + shrunk_;
    if (const Bytes least = options_.least(all); least > Bytes{}) text += ": at least " + whole_mib(least);
  }
  return fail(ErrorCode::resource_exhausted, text + "; " + why);
}

// How much more than models may take is taken, with so much beside what is.
Bytes MemoryAccount::lacks(Bytes needed) const {
  const Bytes most = may_take(), wanted = all() + needed;
  return wanted - std::min(most, wanted);
}

bool MemoryAccount::reclaim(Bytes needed) {
  const std::lock_guard lock(reclaiming_);
  return needed > Bytes{} && reclaim_ && reclaim_(needed);
}

void MemoryAccount::set_reclaim(Reclaim reclaim) {
  const std::lock_guard lock(reclaiming_);
  reclaim_ = std::move(reclaim);
}

Result<MemoryAccount::Charge> MemoryAccount::take(std::string_view model, const ModelNeed& need,
                                                  Reclaims reclaims) {
  Charge out(shared_from_this(), std::string(model));
  if (auto fits = out.expect(need, reclaims); !fits) return std::unexpected(fits.error());
  return out;
}

void MemoryAccount::shrink_by(Bytes bytes) {
  Bytes lacking;
  {
    const std::lock_guard lock(mutex_);
    shrunk_ = bytes;
    lacking = lacks({});
  }
  reclaim(lacking);
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

Result<> MemoryAccount::Charge::expect(const ModelNeed& need, Reclaims reclaims) {
  for (;;) {
    Result<> fits;
    Bytes lacking;
    {
      const std::lock_guard lock(account_->mutex_);
      fits = account_->check(model_, need, account_->all() - expected_);
      if (fits) {
        account_->loading_ = account_->loading_ - expected_ + need.memory;
        expected_ = need.memory;
        return {};
      }
      // Nobody gives anything for what would not fit in all of it.
      if (need.memory <= account_->may_take())
        lacking = account_->lacks(need.memory - std::min(need.memory, expected_));
    }
    if (reclaims == Reclaims::nothing || !account_->reclaim(lacking)) return fits;
  }
}

Result<> MemoryAccount::Charge::settle(const ModelMemory& taken, const ModelNeed& need, Reclaims reclaims) {
  ModelNeed whole = need;
  whole.memory = taken.sum();
  for (;;) {
    Result<> fits;
    Bytes lacking;
    {
      const std::lock_guard lock(account_->mutex_);
      account_->loading_ = account_->loading_ - expected_;
      expected_ = {};
      subtract(account_->taken_, has_);
      fits = account_->check(model_, whole, account_->all());
      has_ = taken;
      add(account_->taken_, has_);
      lacking = account_->lacks({});
    }
    if (fits || reclaims == Reclaims::nothing || !account_->reclaim(lacking)) return fits;
  }
}

}  // namespace carillon
