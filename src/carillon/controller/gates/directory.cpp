#include "carillon/controller/gates/directory.h"

#include <algorithm>
#include <charconv>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/controller/gates/ensemble.h"

namespace carillon::controller {
namespace {

using View = std::shared_ptr<const ModelView>;

constexpr std::size_t listed_at_most = 20;  // names in an error text
constexpr std::size_t shown_at_most = 100;  // characters of a client's text in an error

std::string shown(std::string_view text) {
  if (text.size() <= shown_at_most) return std::string(text);
  return std::string(text.substr(0, shown_at_most)) + "...";
}

std::string list(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size() && i < listed_at_most; ++i) out += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > listed_at_most) out += " and " + std::to_string(names.size() - listed_at_most) + " more";
  return out;
}

bool before(const ModelView& a, const ModelView& b) {
  return std::tie(a.name, a.version) < std::tie(b.name, b.version);
}

bool shows_ensemble(const ModelView& view) {
  return !view.config.steps.empty() && !view.left_out;
}

// Whether it is ready, now.
Result<> usable_now(const ModelView& view) {
  if (!view.ready) return fail(ErrorCode::unavailable, view.reason);
  return view.usable ? view.usable() : Result<>{};
}

const std::string& name_of(const auto& entry) {
  return entry.put->name;
}

}  // namespace

void Directory::put(ModelView view) {
  auto shared = std::make_shared<const ModelView>(std::move(view));
  const std::lock_guard lock(mutex_);
  const auto at = std::ranges::lower_bound(entries_, *shared, before,
                                           [](const Entry& entry) -> const ModelView& { return *entry.put; });
  if (at != entries_.end() && !before(*shared, *at->put))
    at->put = at->shown = std::move(shared);
  else
    entries_.insert(at, {shared, shared});
  work_out();
}

// Of all ensembles: those of models first, then those that have such in them, and so on.
void Directory::work_out() {
  std::size_t left = 0;
  for (Entry& entry : entries_) {
    entry.known = !shows_ensemble(*entry.put);
    if (entry.known) continue;
    if (auto text = circle(entry.put->name); !text.empty())
      show_unready(entry, std::move(text));
    else
      ++left;
  }
  while (left > 0) {
    const std::size_t before_pass = left;
    for (Entry& entry : entries_) {
      if (entry.known || !std::ranges::all_of(entry.put->config.steps, [&](const auto& step) {
            return std::ranges::all_of(of_name(step.model), &Entry::known);
          }))
        continue;
      work_out(entry);
      --left;
    }
    CARILLON_ASSERT(left < before_pass);  // there are no circles
  }
}

std::span<const Directory::Entry> Directory::of_name(std::string_view model) const {
  const auto [first, last] = std::ranges::equal_range(entries_, model, {}, name_of<Entry>);
  return {first, last};
}

void Directory::show_unready(Entry& entry, std::string reason) {
  auto view = std::make_shared<ModelView>(*entry.put);
  view->ready = false;
  view->reason = std::move(reason);
  view->coming = may_come(entry);
  entry.shown = std::move(view);
  entry.known = true;
}

// Each of an ensemble's steps has its model, or may have it soon. Of one that is in itself no step has.
bool Directory::may_come(const Entry& entry) const {
  return entry.put->coming && std::ranges::all_of(entry.put->config.steps, [&](const auto& step) {
           return std::ranges::any_of(of_name(step.model), [&](const Entry& one) {
             return one.known && (one.shown->ready || one.shown->coming);
           });
         });
}

// Requires that its steps' models are known.
void Directory::work_out(Entry& entry) {
  const auto find_one = [&](const std::string& model, std::int64_t version) -> Result<View> {
    const auto there = of_name(model);
    if (there.empty())
      return fail(ErrorCode::not_found, "there is no model '" + model + "' in the repository");
    const Entry* found = nullptr;
    for (const Entry& one : there)
      if (version == 0 ? one.shown->ready || found == nullptr || !found->shown->ready
                       : one.put->version == version)
        found = &one;
    if (found == nullptr)
      return fail(ErrorCode::not_found,
                  "model '" + model + "' has no version " + std::to_string(version) + " in the repository");
    return found->shown;
  };
  if (const auto& old = entry.shown->ensemble; old != nullptr) {
    const auto& steps = entry.put->config.steps;
    std::size_t same = 0;
    while (same < steps.size() && find_one(steps[same].model, steps[same].version) == old->steps[same].view)
      ++same;
    entry.known = true;
    if (same == steps.size()) return;
  }
  auto made = make_ensemble(*entry.put, find_one);
  if (!made) return show_unready(entry, std::move(made.error().message));
  auto view = std::make_shared<ModelView>(*entry.put);
  view->ready = true;
  view->reason.clear();
  view->config = (*made)->config;
  view->id = {ensemble_bit | next_ensemble_++};
  std::erase_if(ensembles_, [](const auto& each) { return each.second.expired(); });
  ensembles_.emplace(view->id, *made);
  view->ensemble = std::move(*made);
  entry.shown = std::move(view);
  entry.known = true;
}

// "'a', 'b', 'a'", where the ensemble is in itself; else nothing.
std::string Directory::circle(const std::string& model) const {
  std::set<std::string> seen;
  std::vector<std::pair<std::string, std::string>> left{{model, "'" + model + "'"}};
  while (!left.empty()) {
    const auto [at, way] = std::move(left.back());
    left.pop_back();
    for (const Entry& entry : of_name(at)) {
      if (!shows_ensemble(*entry.put)) continue;
      for (const repository::EnsembleStep& step : entry.put->config.steps) {
        const std::string further = way + ", '" + step.model + "'";
        if (step.model == model) return "ensembles are in each other, in a circle: " + further;
        if (seen.insert(step.model).second) left.emplace_back(step.model, further);
      }
    }
  }
  return {};
}

Result<> Directory::state(std::string_view model, std::int64_t version) const {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_)
    if (entry.put->name == model && entry.put->version == version) return usable_now(*entry.shown);
  return fail(ErrorCode::not_found, "it is not known");
}

std::shared_ptr<const Ensemble> Directory::ensemble(ModelId id) const {
  if ((id.value & ensemble_bit) == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto at = ensembles_.find(id);
  return at == ensembles_.end() ? nullptr : at->second.lock();
}

void Directory::close(std::string reason) {
  const std::lock_guard lock(mutex_);
  closed_ = std::move(reason);
}

void Directory::open() {
  const std::lock_guard lock(mutex_);
  closed_.reset();
}

View Directory::seen(const View& view) const {
  if (!view->ready) return view;
  const auto usable = usable_now(*view);
  if (!closed_ && usable) return view;
  auto out = std::make_shared<ModelView>(*view);
  out->ready = false;
  out->reason = closed_ ? *closed_ : usable.error().message;
  return out;
}

std::vector<ModelView> Directory::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<ModelView> out;
  out.reserve(entries_.size());
  for (const Entry& entry : entries_) out.push_back(*seen(entry.shown));
  return out;
}

ModelCounts Directory::counts() const {
  const std::lock_guard lock(mutex_);
  ModelCounts out;
  for (const Entry& entry : entries_) {
    if (entry.shown->ready) {
      ++out.ready;
    } else if (!entry.shown->left_out) {
      if (out.broken++ == 0) out.a_broken_one = entry.shown->name;
    }
  }
  return out;
}

Result<std::shared_ptr<const ModelView>> Directory::find(std::string_view model,
                                                         std::string_view version) const {
  std::int64_t wanted = 0;
  if (!version.empty()) {
    const auto [end, error] = std::from_chars(version.data(), version.data() + version.size(), wanted);
    if (error != std::errc{} || end != version.data() + version.size() || wanted <= 0)
      return invalid("version '" + shown(version) + "' of model '" + shown(model) +
                     "' is not a positive integer");
  }
  const std::lock_guard lock(mutex_);
  const std::span<const Entry> there = of_name(model);
  if (there.empty()) {
    std::vector<std::string> names;
    for (const Entry& entry : entries_)
      if (names.empty() || names.back() != entry.put->name) names.push_back(entry.put->name);
    return fail(ErrorCode::not_found, "model '" + shown(model) + "' is not in the repository; " +
                                          (names.empty() ? "it is empty" : "there is: " + list(names)));
  }
  if (version.empty()) {
    for (const Entry& entry : std::views::reverse(there))
      if (usable_now(*entry.shown)) return seen(entry.shown);
    return seen(there.back().shown);
  }
  for (const Entry& entry : there)
    if (entry.put->version == wanted) return seen(entry.shown);
  std::vector<std::string> versions;
  for (const Entry& entry : there) versions.push_back(std::to_string(entry.put->version));
  return fail(ErrorCode::not_found, "model '" + shown(model) + "' has no version " + shown(version) +
                                        "; there is: " + list(versions));
}

}  // namespace carillon::controller
