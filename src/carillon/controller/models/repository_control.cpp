#include "carillon/controller/models/repository_control.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <pthread.h>

#include "carillon/controller/gates/ensemble.h"
#include "carillon/graph/text.h"
#include "carillon/repository/config.h"
#include "carillon/repository/repository.h"

namespace carillon::controller {
namespace {

constexpr std::size_t most_orders = 256;  // that wait

bool is_ensemble(const ModelView& view) {
  return !view.config.steps.empty();
}

}  // namespace

RepositoryControl::RepositoryControl(std::filesystem::path directory, std::vector<LoadTarget> targets,
                                     Controller& controller, RepositoryOptions options)
    : directory_(std::move(directory)),
      targets_(std::move(targets)),
      controller_(controller),
      options_(std::move(options)) {}

RepositoryControl::~RepositoryControl() {
  stop();
}

void RepositoryControl::start(Stamps taken) {
  if (!options_.explicit_orders && !options_.poll) return;
  stamps_ = std::move(taken);
  const std::lock_guard lock(mutex_);
  running_ = true;
  thread_ = std::thread([this] { run(); });
}

void RepositoryControl::stop() {
  std::deque<Order> left;
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
    ending_.request_stop();
    std::swap(left, orders_);
    wake_.notify_one();
  }
  for (Order& order : left) order.done(fail(ErrorCode::unavailable, "the server is stopping"), false);
  // What is just being compiled elsewhere need not be waited for.
  for (const LoadTarget& target : targets_)
    for (engine::ReadingEngine* other : target.others) other->end_loading();
  if (thread_.joinable()) thread_.join();
}

void RepositoryControl::load(std::string model, Brought brought, Done done) {
  give({.loads = true, .model = std::move(model), .brought = std::move(brought), .done = std::move(done)});
}

void RepositoryControl::unload(std::string model, bool dependents, Done done) {
  give({.loads = false,
        .model = std::move(model),
        .brought = {},
        .dependents = dependents,
        .done = std::move(done)});
}

void RepositoryControl::give(Order order) {
  Result<> refused;
  std::size_t bytes = 0;
  for (const auto& [path, file] : order.brought.files) bytes += path.size() + file.size();
  if (!graph::is_text(order.model)) {
    refused = invalid(
        "the model's name is not UTF-8 text without control characters; no model has such a name, "
        "and a folder with such a name is none");
  } else if (!options_.explicit_orders) {
    refused =
        fail(ErrorCode::unavailable,
             options_.poll ? "models follow the repository, which the server looks at: it takes no orders "
                             "to load and unload (--model-control-mode is poll)"
                           : "the server takes no orders to load and unload; start it with "
                             "--model-control-mode explicit");
  } else {
    const std::lock_guard lock(mutex_);
    if (ending_.stop_requested()) {
      refused = fail(ErrorCode::unavailable, "the server is not serving now");
    } else if (orders_.size() >= most_orders) {
      refused = fail(ErrorCode::resource_exhausted,
                     std::to_string(orders_.size()) + " orders to load and unload wait; try again later");
    } else if (waiting_bytes_ > 0 && waiting_bytes_ + bytes > options_.most_waiting_bytes) {
      refused = fail(ErrorCode::resource_exhausted, "orders to load with " + std::to_string(waiting_bytes_) +
                                                        " bytes of files wait; try again later");
    } else {
      waiting_bytes_ += bytes;
      orders_.push_back(std::move(order));
      wake_.notify_one();
      return;
    }
  }
  const bool full = refused.error().code == ErrorCode::resource_exhausted;
  order.done(std::move(refused), full);
}

void RepositoryControl::run() {
  pthread_setname_np(pthread_self(), "carillon-repo");
  auto next_look = std::chrono::steady_clock::now() + options_.poll.value_or(Duration{0});
  std::chrono::steady_clock::time_point next_try{};  // of what is left
  std::unique_lock lock(mutex_);
  while (running_) {
    if (!orders_.empty()) {
      Order order = std::move(orders_.front());
      orders_.pop_front();
      for (const auto& [path, file] : order.brought.files) waiting_bytes_ -= path.size() + file.size();
      lock.unlock();
      std::vector<ModelId> replaced;
      auto result = guarded([&] { return carry_out(order, replaced); });
      if (!result) options_.warn(order.model + ": " + result.error().message);
      order.done(std::move(result), false);
      end(replaced);
      lock.lock();
    } else if (left_ > 0 && std::chrono::steady_clock::now() >= next_try) {
      lock.unlock();
      remove_left();
      next_try = std::chrono::steady_clock::now() + options_.try_again;
      lock.lock();
    } else if (!options_.poll || std::chrono::steady_clock::now() < next_look) {
      auto until = std::chrono::steady_clock::time_point::max();
      if (options_.poll) until = next_look;
      if (left_ > 0) until = std::min(until, next_try);
      if (until == std::chrono::steady_clock::time_point::max())
        wake_.wait(lock);
      else
        wake_.wait_until(lock, until);
    } else {
      lock.unlock();
      if (auto looked = guarded([&] {
            look();
            return Result<>{};
          });
          !looked)
        options_.warn(looked.error().message);
      next_look = std::chrono::steady_clock::now() + *options_.poll;
      lock.lock();
    }
  }
}

Result<> RepositoryControl::carry_out(const Order& order, std::vector<ModelId>& replaced) {
  if (!order.loads) return unload_now(order.model, order.dependents, replaced);
  auto loaded = load_now(order.model, order.brought, replaced);
  if (loaded) stamps_.by_name.insert(order.model);
  return loaded;
}

// Those that were not told before.
void RepositoryControl::tell_skipped(const std::vector<std::string>& lines) {
  for (const std::string& line : lines)
    if (stamps_.skipped.insert(line).second) options_.warn(line);
}

// Whether anything has changed, and what becomes of it.
void RepositoryControl::look() {
  std::vector<std::string> skipped;
  const auto entries = repository::read_repository(directory_, options_.reading, &skipped);
  if (!entries) return options_.warn("the repository cannot be read now: " + entries.error().message);
  tell_skipped(skipped);
  stamps_.skipped = {skipped.begin(), skipped.end()};
  std::set<std::string> there;
  for (const repository::RepositoryEntry& entry : *entries) {
    if (ending_.stop_requested()) return;
    there.insert(entry.name);
    const EntryStamps stamps = stamps_of(entry);
    const auto failed = stamps_.failed.find(entry.name);
    if (failed != stamps_.failed.end() && failed->second == stamps.all) continue;
    bool same = entry.config.has_value();
    for (std::size_t i = 0; i < entry.versions.size(); ++i) {
      const auto known = stamps_.loaded.find({entry.name, entry.versions[i].version});
      same = same && known != stamps_.loaded.end() && known->second == stamps.versions[i];
    }
    const auto views = views_of(entry.name);
    if (same)
      same = std::ranges::all_of(views, [&](const ModelView& view) {
        return view.left_out || repository::same_version_policy(*entry.config, view.config);
      });
    // Whether an ensemble that was taken in is ready follows from its models.
    const auto served = std::ranges::count_if(
        views, [](const ModelView& view) { return view.ready || (is_ensemble(view) && !view.left_out); });
    if (same && static_cast<std::size_t>(served) == entry.versions.size()) continue;
    std::vector<ModelId> replaced;
    if (const auto loaded = load_now(entry.name, {}, replaced); !loaded) {
      options_.warn(entry.name + ": " + loaded.error().message);
      stamps_.failed[entry.name] = stamps.all;
    }
    end(replaced);
  }
  std::set<std::string> gone;
  for (const ModelView& view : controller_.models())
    if (!there.contains(view.name) && !view.left_out) gone.insert(view.name);
  for (const std::string& name : gone) {
    std::vector<ModelId> replaced;
    (void)unload_now(name, false, replaced);
    end(replaced);
  }
}

std::vector<ModelView> RepositoryControl::views_of(const std::string& model) const {
  std::vector<ModelView> out;
  for (ModelView& view : controller_.models())
    if (view.name == model) out.push_back(std::move(view));
  return out;
}

void RepositoryControl::take_out(ModelView view, std::string reason, std::vector<ModelId>& replaced) {
  if (view.ready && !is_ensemble(view)) replaced.push_back(view.id);
  stamps_.loaded.erase({view.name, view.version});
  view.ready = false;
  view.left_out = true;
  view.reason = std::move(reason);
  controller_.add_unready(std::move(view));
}

Result<> RepositoryControl::load_now(const std::string& model, const Brought& brought,
                                     std::vector<ModelId>& replaced) {
  auto loaded = try_to_load(model, brought, replaced);
  if (!loaded) loaded.error().message = graph::printable(loaded.error().message);
  return loaded;
}

Result<> RepositoryControl::try_to_load(const std::string& model, const Brought& brought,
                                        std::vector<ModelId>& replaced) {
  std::optional<std::string> text;
  if (brought.config) {
    auto read = repository::config_from_json(*brought.config);
    if (!read) return in_context("model '" + model.substr(0, 100) + "'", read.error());
    text = std::move(*read);
  }
  std::optional<repository::GivenFolder> given;
  if (!brought.files.empty()) {
    if (!text)
      return invalid("model '" + model.substr(0, 100) +
                     "': files come with an order, and no config; give one as parameter config");
    auto made = repository::GivenFolder::make(model, brought.files);
    if (!made) return in_context("model '" + model.substr(0, 100) + "'", made.error());
    given = std::move(*made);
  }
  const auto told = [&given](Error error) {
    if (given) error.message = given->in_senders_words(std::move(error.message));
    return error;
  };
  std::vector<std::string> skipped;
  const auto entry = given ? repository::read_entry(given->repository(), model, text, {}, &skipped)
                           : repository::read_entry(directory_, model, text, options_.reading, &skipped);
  if (!entry) return std::unexpected(told(entry.error()));
  tell_skipped(skipped);
  const auto before = views_of(model);
  const auto view_of = [&](std::int64_t version) {
    const auto found = std::ranges::find(before, version, &ModelView::version);
    return found == before.end() ? nullptr : &*found;
  };
  if (!entry->config) {
    // What is served goes on; where nothing is, the index says why.
    if (std::ranges::none_of(before, &ModelView::ready)) {
      ModelView view;
      view.name = model;
      view.config.name = model;
      view.reason = graph::printable(told(entry->config.error()).message);
      if (!before.empty()) view.version = before.back().version;
      controller_.add_unready(std::move(view));
    }
    return std::unexpected(told(entry->config.error()));
  }
  const bool ensemble = !entry->config->steps.empty();
  bool some_loaded = false;
  Result<> result;
  if (ensemble) result = load_steps(*entry->config, replaced);
  for (const repository::ModelVersion& version : entry->versions) {
    if (ending_.stop_requested()) return fail(ErrorCode::unavailable, "the server is stopping");
    const std::pair served{model, version.version};
    const std::string label = label_of(model, version.version);
    // What an order brought is never the repository's.
    const std::string stamp = given ? "files of an order" : repository::stamp_of(*entry, version);
    const ModelView* const old = view_of(version.version);
    const bool was_ready = old != nullptr && old->ready && !is_ensemble(*old);
    if (ensemble) {
      if (auto put = put_ensemble(*entry, version, stamp, was_ready ? &old->id : nullptr, replaced);
          !put && result)
        result = in_context(label, put.error());
      continue;
    }
    if (const auto known = stamps_.loaded.find(served);
        was_ready && !given && known != stamps_.loaded.end() && known->second == stamp) {
      if (!repository::same_version_policy(*entry->config, old->config)) {
        ModelView view = *old;
        repository::take_version_policy(*entry->config, view.config);
        controller_.tell_anew(std::move(view));
      }
      continue;
    }
    std::vector<std::string> notes;
    const auto loaded = load_version(
        *entry, version, targets_, controller_, options_.seeds,
        [&](const std::string& doing) { options_.tell(label + ": " + doing); }, notes);
    for (const std::string& note : notes) options_.warn(label + ": " + note);
    if (loaded) {
      stamps_.loaded[served] = stamp;
      some_loaded = true;
      if (was_ready) replaced.push_back(old->id);
      options_.tell(label + ": ready" + (was_ready ? ", in the place of what was served" : ""));
      continue;
    }
    if (!was_ready) {
      ModelView view;
      view.name = model;
      view.version = version.version;
      view.config = *entry->config;
      view.reason = graph::printable(told(loaded.error()).message);
      controller_.add_unready(std::move(view));
    }
    if (result) result = in_context(label, told(loaded.error()));
  }
  if (auto& folders = given_[model]; result || some_loaded) {
    if (result) std::ranges::move(std::exchange(folders, {}), std::back_inserter(given_before_));
    if (given) folders.push_back(*std::move(given));
  }
  if (given_[model].empty()) given_.erase(model);
  if (!result) return result;
  stamps_.failed.erase(model);
  // Versions that are not wanted any more, once the others serve.
  for (const ModelView& view : before)
    if (std::ranges::find(entry->versions, view.version, &repository::ModelVersion::version) ==
            entry->versions.end() &&
        (view.ready || !view.left_out)) {
      options_.tell(label_of(model, view.version) + ": unloaded");
      take_out(view, "unloaded: the repository, or its version policy, does not have it", replaced);
    }
  return {};
}

// Those of an ensemble's models that are not served. Ensembles among them bring theirs, as deep as they may
// be nested; what is not ready beyond that the ensemble's own state tells.
Result<> RepositoryControl::load_steps(const repository::ModelConfig& ensemble,
                                       std::vector<ModelId>& replaced) {
  if (depth_ >= most_nested) return {};
  ++depth_;
  Result<> result;
  std::set<std::string> seen{ensemble.name};
  for (const repository::EnsembleStep& step : ensemble.steps) {
    if (!seen.insert(step.model).second) continue;
    const auto views = views_of(step.model);
    if (std::ranges::any_of(views, &ModelView::ready)) continue;
    if (auto loaded = load_now(step.model, {}, replaced); !loaded && result)
      result = in_context("its model '" + step.model + "'", loaded.error());
  }
  --depth_;
  return result;
}

Result<> RepositoryControl::put_ensemble(const repository::RepositoryEntry& entry,
                                         const repository::ModelVersion& version, const std::string& stamp,
                                         const ModelId* was, std::vector<ModelId>& replaced) {
  const std::string label = label_of(entry.name, version.version);
  const std::pair served{entry.name, version.version};
  if (const auto known = stamps_.loaded.find(served); known == stamps_.loaded.end() || known->second != stamp)
    for (const std::string& note : entry.config->ignored) options_.warn(label + ": ignored: " + note);
  ModelView view;
  view.name = entry.name;
  view.version = version.version;
  view.config = *entry.config;
  controller_.add_unready(std::move(view));
  stamps_.loaded[served] = stamp;
  if (was != nullptr) replaced.push_back(*was);
  auto state = controller_.state(entry.name, version.version);
  if (state) options_.tell(label + ": ready");
  return state;
}

bool RepositoryControl::in_an_ensemble(const std::string& model) const {
  return std::ranges::any_of(controller_.models(), [&](const ModelView& view) {
    return !view.left_out && std::ranges::find(view.config.steps, model, &repository::EnsembleStep::model) !=
                                 view.config.steps.end();
  });
}

Result<> RepositoryControl::unload_now(const std::string& model, bool dependents,
                                       std::vector<ModelId>& replaced) {
  const auto views = views_of(model);
  if (views.empty())
    return fail(ErrorCode::not_found, "model '" + model.substr(0, 100) + "' is not known: nothing to unload");
  std::set<std::string> steps;
  for (const ModelView& view : views) {
    if (!view.left_out)
      for (const repository::EnsembleStep& step : view.config.steps) steps.insert(step.model);
    if (view.ready) options_.tell(label_of(model, view.version) + ": unloaded");
    take_out(view, "unloaded", replaced);
  }
  stamps_.failed.erase(model);
  stamps_.by_name.erase(model);
  if (auto brought = given_.extract(model))
    std::ranges::move(brought.mapped(), std::back_inserter(given_before_));
  // What is out already has no steps here, so that a circle ends.
  if (dependents)
    for (const std::string& step : steps)
      if (!stamps_.by_name.contains(step) && !in_an_ensemble(step) && !views_of(step).empty())
        if (auto gone = unload_now(step, true, replaced); !gone) return gone;
  return {};
}

void RepositoryControl::end(const std::vector<ModelId>& replaced) {
  for (const ModelId id : replaced)
    if (!controller_.remove_model(id, options_.patience, ending_.get_token()) && !ending_.stop_requested())
      options_.warn(
          "a model that was unloaded is still in use on a device; its memory is given back once that has let "
          "go of it");
  given_before_.clear();
  remove_left();
}

// What devices held when it was to end, or a load that failed.
void RepositoryControl::remove_left() {
  const std::size_t before = std::exchange(left_, controller_.remove_left());
  if (left_ < before)
    options_.tell("memory of " + std::to_string(before - left_) +
                  (before - left_ == 1 ? " model" : " models") + " that went was given back");
}

}  // namespace carillon::controller
