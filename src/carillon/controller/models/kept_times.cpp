#include "carillon/controller/models/kept_times.h"

#include <algorithm>
#include <utility>

#include "carillon/base/file_digest.h"
#include "carillon/graph/tensor.h"

namespace carillon::controller {

KeptTimes::KeptTimes(std::shared_ptr<engine::WeightFiles> store, std::string machine)
    : store_(std::move(store)), machine_(std::move(machine)) {}

std::optional<std::string> KeptTimes::name_of(const PreparedModel& model, int threads) const {
  if (!model.file) return std::nullopt;
  const engine::CompiledModel& compiled = *model.compiled.front();
  std::string key = machine_ + "\n" + to_text(*model.file) + "\n" + model.config.precision + " " +
                    model.config.model_class + " " + std::to_string(threads) + " " +
                    std::to_string(compiled.weights().count) +
                    (compiled.memory().weights > Bytes{} ? " in memory" : "") +
                    (compiled.has_one_plan() ? " one plan" : "");
  const auto add = [&](const engine::Plan* plan) {
    if (plan == nullptr) return;
    key += " " + std::to_string(plan->kernels()) + " " + std::to_string(plan->workspace().count);
    for (const auto tensors : {plan->inputs(), plan->outputs()})
      for (const graph::TensorSpec& each : tensors)
        key += " " + std::string(graph::kserve_name(each.type)) + graph::to_text(each.shape);
  };
  for (const int batch : compiled.batch_sizes()) {
    key += "\n" + std::to_string(batch);
    for (const std::int64_t length : compiled.lengths()) add(compiled.plan(batch, length));
    if (compiled.lengths().empty()) add(compiled.plan(batch));
  }
  return to_text(digest_of_text(key));
}

std::optional<profile::ModelProfile> KeptTimes::find(const std::string& name) const {
  const auto text = store_->note(name);
  if (!text) return std::nullopt;
  auto read = profile::parse_profile(*text, name);
  if (!read || read->models.size() != 1) return std::nullopt;
  return std::move(read->models.front());
}

void KeptTimes::keep(const std::string& name, profile::ModelProfile measured, int threads) const {
  store_->put_note(name, profile::to_json({.device = machine_,
                                           .created = "",
                                           .carillon = "",
                                           .threads = threads,
                                           .models = {std::move(measured)}}));
}

KeptWatch::KeptWatch(Stopwatch& other, const KeptTimes& kept, const PreparedModel& model, int threads)
    : other_(other), kept_(kept), threads_(threads), name_(kept.name_of(model, threads)) {
  if (!name_) return;
  if (auto found = kept_.find(*name_)) times_ = *std::move(found);
  // The note is JSON, which a folder's name need not fit into.
  times_.name = "model";
  times_.precision = model.config.precision;
  times_.weights = model.compiled.front()->weights();
}

profile::BatchTimes* KeptWatch::times_of(int batch, std::int64_t length) {
  std::vector<profile::BatchTimes>* batches = &times_.batches;
  if (length > 0) {
    const auto at = std::ranges::find(times_.lengths, length, &profile::LengthTimes::length);
    if (at == times_.lengths.end()) return nullptr;
    batches = &at->batches;
  }
  const auto found = std::ranges::find(*batches, batch, &profile::BatchTimes::batch);
  return found == batches->end() ? nullptr : &*found;
}

void KeptWatch::note(int batch, std::int64_t length, const profile::Times& exec) {
  changed_ = true;
  if (profile::BatchTimes* const known = times_of(batch, length)) {
    known->exec = exec;
    return;
  }
  std::vector<profile::BatchTimes>* batches = &times_.batches;
  if (length > 0) {
    auto at = std::ranges::lower_bound(times_.lengths, length, {}, &profile::LengthTimes::length);
    if (at == times_.lengths.end() || at->length != length) at = times_.lengths.insert(at, {length, {}});
    batches = &at->batches;
  }
  const auto at = std::ranges::lower_bound(*batches, batch, {}, &profile::BatchTimes::batch);
  batches->insert(at, {batch, exec});
}

Result<std::vector<Duration>> KeptWatch::exec(int batch, int repeats, std::int64_t length,
                                              std::string* refused) {
  if (name_ && !changed_)
    if (const profile::BatchTimes* const known = times_of(batch, length))
      return std::vector<Duration>(static_cast<std::size_t>(repeats), known->exec.min);
  auto measured = other_.exec(batch, repeats, length, refused);
  if (refused != nullptr && !refused->empty()) refused_ = true;
  if (measured && !measured->empty()) {
    std::vector<Duration> times = *measured;
    note(batch, length, profile::summarize(times));
  }
  return measured;
}

Result<std::vector<Duration>> KeptWatch::load(int repeats) {
  if (times_.load.n > 0) return std::vector<Duration>(static_cast<std::size_t>(repeats), times_.load.min);
  auto measured = other_.load(repeats);
  if (measured && !measured->empty()) {
    std::vector<Duration> times = *measured;
    times_.load = profile::summarize(times);
    changed_ = true;
  }
  return measured;
}

void KeptWatch::keep() {
  if (!name_ || !changed_ || refused_) return;
  // A profile has batches also where there are lengths.
  if (times_.batches.empty() && !times_.lengths.empty())
    times_.batches = times_.lengths[times_.lengths.size() / 2].batches;
  if (!times_.batches.empty()) kept_.keep(*name_, times_, threads_);
}

}  // namespace carillon::controller
