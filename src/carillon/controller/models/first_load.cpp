#include "carillon/controller/models/first_load.h"

#include <algorithm>
#include <set>
#include <system_error>

#include <pthread.h>

#include "carillon/base/assert.h"
#include "carillon/controller/gates/low_priority.h"
#include "carillon/graph/text.h"

namespace carillon::controller {
namespace {

using repository::RepositoryEntry;

// The models that are wanted, and those of the steps of ensembles among them.
std::set<std::string> wanted_of(const std::vector<RepositoryEntry>& entries,
                                const std::function<bool(const std::string&)>& wanted) {
  std::set<std::string> out;
  std::vector<const RepositoryEntry*> left;
  const auto take = [&](const RepositoryEntry& entry) {
    if (out.insert(entry.name).second && entry.config) left.push_back(&entry);
  };
  for (const RepositoryEntry& entry : entries)
    if (!wanted || wanted(entry.name)) take(entry);
  while (!left.empty()) {
    const RepositoryEntry& ensemble = *left.back();
    left.pop_back();
    for (const repository::EnsembleStep& step : ensemble.config->steps)
      if (const auto at = std::ranges::find(entries, step.model, &RepositoryEntry::name); at != entries.end())
        take(*at);
  }
  return out;
}

ModelView view_of(const RepositoryEntry& entry, const repository::ModelVersion* version) {
  ModelView view;
  view.name = entry.name;
  view.config.name = entry.name;
  if (entry.config) view.config = *entry.config;
  if (version != nullptr) view.version = version->version;
  return view;
}

bool lacks_room(const auto& result) {
  return !result && result.error().code == ErrorCode::resource_exhausted;
}

bool has_steps(const RepositoryEntry& entry) {
  return entry.config && !entry.config->steps.empty();
}

}  // namespace

FirstLoad::FirstLoad(std::filesystem::path directory, std::span<const LoadTarget> targets,
                     Controller& controller, LoaderOptions options)
    : directory_(std::move(directory)),
      targets_(targets.begin(), targets.end()),
      controller_(controller),
      options_(std::move(options)) {
  CARILLON_ASSERT(!targets_.empty() && options_.makers >= 1);
}

FirstLoad::~FirstLoad() {
  end();
  for (std::thread& maker : makers_) maker.join();
}

Result<> FirstLoad::look() {
  std::vector<std::string> skipped;
  auto entries = repository::read_repository(directory_, options_.reading, &skipped);
  if (!entries) return std::unexpected(entries.error());
  for (const std::string& each : skipped) note(each);
  report_.stamps.skipped.insert(skipped.begin(), skipped.end());
  entries_ = std::move(*entries);
  names_ = wanted_of(entries_, options_.wanted);
  const std::scoped_lock lock(telling_, mutex_);
  for (const RepositoryEntry& entry : entries_) {
    progress_.total += std::max<std::size_t>(1, entry.versions.size());
    if (!options_.wanted || options_.wanted(entry.name)) report_.stamps.by_name.insert(entry.name);
    if (!wanted(entry)) {
      ++progress_.done;
      ModelView view = view_of(entry, nullptr);
      view.left_out = true;
      view.reason = "not loaded; it is once that is asked for";
      controller_.add_unready(std::move(view));
      continue;
    }
    stamps_[entry.name] = stamps_of(entry);
    if (!entry.config) continue;
    if (has_steps(entry)) ensembles_[entry.name] = &entry;
    for (std::size_t i = 0; i < entry.versions.size(); ++i) {
      ModelView view = view_of(entry, &entry.versions[i]);
      view.reason = "it is still to be loaded";
      view.coming = true;
      controller_.add_unready(std::move(view));
      if (!has_steps(entry)) items_.push_back({.entry = &entry, .version = i});
    }
  }
  // These take the longest.
  std::ranges::stable_partition(
      items_, [&](const Item& item) { return !is_made_alone(*item.entry->config, targets_); });
  for (std::size_t i = 0; i < items_.size(); ++i) items_of_[items_[i].entry->name].push_back(i);
  return {};
}

void FirstLoad::want(std::string_view model) {
  const std::lock_guard lock(mutex_);
  std::set<std::string, std::less<>> names{std::string(model)};
  std::vector<std::string> left{std::string(model)};
  while (!left.empty()) {
    const std::string name = std::move(left.back());
    left.pop_back();
    if (const auto items = items_of_.find(name); items != items_of_.end()) {
      for (const std::size_t i : items->second) {
        if (items_[i].taken || items_[i].asked) continue;
        items_[i].asked = true;
        asked_.push_back(i);
      }
    } else if (const auto ensemble = ensembles_.find(name); ensemble != ensembles_.end()) {
      for (const repository::EnsembleStep& step : ensemble->second->config->steps)
        if (names.insert(step.model).second) left.push_back(step.model);
    }
  }
}

void FirstLoad::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  made_one_.notify_all();
  took_one_.notify_all();
  turn_ended_.notify_all();
}

bool FirstLoad::ended() {
  const std::lock_guard lock(mutex_);
  return ended_;
}

FirstLoad::Turn::Turn(FirstLoad& load, Kind kind) : Turn(load, kind, std::unique_lock(load.mutex_)) {}

FirstLoad::Turn::Turn(FirstLoad& load, Kind kind, std::unique_lock<std::mutex>& lock)
    : load_(load), kind_(kind) {
  if (is_alone(kind)) {
    ++load.waiting_alone_;
    load.turn_ended_.wait(lock, [&] {
      return !load.one_alone_ && load.beside_ == 0 &&
             (kind == Kind::measuring_alone || load.unmeasured_ == 0 || load.ended_);
    });
    --load.waiting_alone_;
    load.one_alone_ = true;
  } else {
    load.turn_ended_.wait(lock, [&] {
      return !load.one_alone_ &&
             (kind == Kind::measuring || (load.waiting_alone_ == 0 && load.beside_ < load.options_.makers));
    });
    ++load.beside_;
  }
}

FirstLoad::Turn::~Turn() {
  const std::lock_guard lock(load_.mutex_);
  if (is_alone(kind_))
    load_.one_alone_ = false;
  else
    --load_.beside_;
  load_.turn_ended_.notify_all();
}

void FirstLoad::tell(const std::string& model, std::string doing) {
  if (!options_.progress) return;
  const std::lock_guard lock(telling_);
  progress_.model = model;
  progress_.doing = std::move(doing);
  options_.progress(progress_);
}

void FirstLoad::note(std::string text) {
  if (options_.note) options_.note(text);
  report_.notes.push_back(std::move(text));
}

// A thread's.
void FirstLoad::make() {
  pthread_setname_np(pthread_self(), "carillon-comp");
  lower_priority();
  const auto most = static_cast<std::size_t>(options_.makers);
  std::unique_lock lock(mutex_);
  for (;;) {
    // Those that are made wait in memory.
    took_one_.wait(lock, [&] { return ended_ || made_.size() < most; });
    while (next_ < items_.size() && items_[next_].taken) ++next_;
    if (ended_ || next_ == items_.size()) return;
    std::size_t item = next_;
    if (!asked_.empty()) {
      item = asked_.front();
      asked_.pop_front();
    }
    items_[item].taken = true;
    // Before another is taken: one that is made alone would not wait for a model that has no turn yet.
    std::optional<Turn> turn;
    turn.emplace(*this, first_turn(item), lock);
    lock.unlock();
    Made made = make_one(item, turn);
    lock.lock();
    made_.push_back(std::move(made));
    ++unmeasured_;
    made_one_.notify_one();
    lock.unlock();
    turn.reset();  // not before it counts as unmeasured: another may wait to be alone
    lock.lock();
  }
}

std::string FirstLoad::label(std::size_t item) const {
  return label_of(items_[item].entry->name, version_of(item).version);
}

// In a turn.
Result<PreparedModel> FirstLoad::prepare(std::size_t item) {
  const std::string model = label(item);
  return guarded([&] {
    return make_model(*items_[item].entry, version_of(item), targets_,
                      [&](std::string doing) { tell(model, std::move(doing)); });
  });
}

FirstLoad::Turn::Kind FirstLoad::first_turn(std::size_t item) const {
  return is_made_alone(*items_[item].entry->config, targets_) ? Turn::Kind::making_alone : Turn::Kind::making;
}

// In `turn`, which goes on when this returns.
FirstLoad::Made FirstLoad::make_one(std::size_t item, std::optional<Turn>& turn) {
  Made out{.item = item, .began = controller_.now()};
  const auto make = [&] {
    if (ended())
      out.model = fail(ErrorCode::cancelled, "the server is stopping");  // nobody takes it any more
    else
      out.model = prepare(item);
  };
  make();
  // While a model is made or measured it takes more memory than later: beside another that is, it may not fit
  // where it does by itself.
  if (first_turn(item) == Turn::Kind::making && lacks_room(out.model)) {
    turn.reset();
    turn.emplace(*this, Turn::Kind::making_alone);
    make();
  }
  return out;
}

// The next that is made, of `left`; nothing after end().
std::optional<FirstLoad::Made> FirstLoad::next_made(std::size_t left) {
  std::unique_lock lock(mutex_);
  if (left == 0) return std::nullopt;
  made_one_.wait(lock, [&] { return ended_ || !made_.empty(); });
  if (ended_) return std::nullopt;
  Made out = std::move(made_.front());
  made_.pop_front();
  took_one_.notify_one();
  return out;
}

void FirstLoad::give_up(const std::string& model, ModelView view, const Error& error) {
  view.reason = graph::printable(error.message);
  const std::string reason = view.reason;
  note(model + " is not ready: " + reason);
  ++report_.not_ready;
  controller_.add_unready(std::move(view));
  tell(model, "not ready: " + reason);
  const std::lock_guard lock(telling_);
  ++progress_.done;
}

void FirstLoad::take_in(Made made) {
  const RepositoryEntry& entry = *items_[made.item].entry;
  const repository::ModelVersion& version = version_of(made.item);
  const std::string model = label(made.item);
  std::vector<std::string> notes;
  const auto add = [&] {
    return guarded([&] {
      return add_version(
          entry, version, std::move(made.model), made.began, targets_, controller_, options_.seeds,
          [&](std::string doing) { tell(model, std::move(doing)); }, notes);
    });
  };
  const bool was_made = made.model.has_value();
  Result<> added;
  {
    const Turn measuring(*this, Turn::Kind::measuring);
    added = add();
  }
  // To be measured it wants room beside what others are made of: it gets that once they are not.
  if (was_made && lacks_room(added)) {
    const Turn alone(*this, Turn::Kind::measuring_alone);
    notes.clear();
    made.model = prepare(made.item);
    added = add();
  }
  for (const std::string& each : notes) note(model + ": " + each);
  const EntryStamps& stamps = stamps_.at(entry.name);
  if (!added) {
    give_up(model, view_of(entry, &version), added.error());
    report_.stamps.failed[entry.name] = stamps.all;
    return;
  }
  report_.stamps.loaded[{entry.name, version.version}] = stamps.versions[items_[made.item].version];
  ++report_.ready;
  tell(model, "ready");
  const std::lock_guard lock(telling_);
  ++progress_.done;
}

// They are ready where the others are.
void FirstLoad::count_ensembles() {
  for (const RepositoryEntry& entry : entries_) {
    if (!wanted(entry) || !has_steps(entry)) continue;
    const EntryStamps& stamps = stamps_.at(entry.name);
    for (std::size_t i = 0; i < entry.versions.size(); ++i) {
      const std::string label = label_of(entry.name, entry.versions[i].version);
      for (const std::string& each : entry.config->ignored) note(label + ": ignored: " + each);
      report_.stamps.loaded[{entry.name, entry.versions[i].version}] = stamps.versions[i];
      const auto state = controller_.state(entry.name, entry.versions[i].version);
      tell(label, state ? "ready" : "not ready: " + state.error().message);
      ++(state ? report_.ready : report_.not_ready);
      if (!state) note(label + " is not ready: " + state.error().message);
      const std::lock_guard lock(telling_);
      ++progress_.done;
    }
  }
}

LoadReport FirstLoad::run() {
  for (const RepositoryEntry& entry : entries_) {
    if (!wanted(entry) || entry.config) continue;
    give_up(entry.name, view_of(entry, nullptr), entry.config.error());
    report_.stamps.failed[entry.name] = stamps_.at(entry.name).all;
  }
  controller_.set_all_named();
  const std::size_t threads = std::min(items_.size(), static_cast<std::size_t>(options_.makers));
  try {
    while (makers_.size() < threads) makers_.emplace_back([this] { make(); });
  } catch (const std::system_error& error) {
    // With as many as can be had; where there are none, here.
    note("models are made by " + std::to_string(makers_.size()) + " threads of " + std::to_string(threads) +
         ": " + error.what());
  }
  if (makers_.empty()) {
    for (std::size_t i = 0; i < items_.size() && !ended(); ++i) {
      std::optional<Turn> turn;
      turn.emplace(*this, first_turn(i));
      Made made = make_one(i, turn);
      turn.reset();
      take_in(std::move(made));
    }
  } else {
    for (std::size_t left = items_.size(); left > 0; --left) {
      auto made = next_made(left);
      if (!made) break;
      take_in(*std::move(made));
      const std::lock_guard lock(mutex_);
      --unmeasured_;
      turn_ended_.notify_all();
    }
    for (std::thread& maker : makers_) maker.join();
    makers_.clear();
  }
  if (!ended()) count_ensembles();
  return std::move(report_);
}

Result<LoadReport> load_models(const std::filesystem::path& directory, std::span<const LoadTarget> targets,
                               Controller& controller, const LoaderOptions& options) {
  FirstLoad load(directory, targets, controller, options);
  if (auto looked = load.look(); !looked) return std::unexpected(looked.error());
  return load.run();
}

}  // namespace carillon::controller
