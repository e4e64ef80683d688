#include "carillon/schedule/parts/kinds.h"

#include <algorithm>
#include <cmath>
#include <variant>

namespace carillon::schedule::parts {
namespace {

// Requests of an application before its first trial: what comes once is not worth one.
constexpr std::uint32_t asked_before = 4;
// Batches of a trial. Where they are unlike, some more.
constexpr std::size_t trial_runs = 3, most_trial_runs = 5;
constexpr double unlike = 0.6;  // logarithm
// So many requests of its model later, a trial has failed.
constexpr std::uint32_t trial_waits = 256;
// Likewise where nothing of it ran for so long, and so many runs more, though requests of it came.
constexpr Duration trial_stalls = 2s;
constexpr int stalled_runs = 8;
// A kind that seems to take too long is tried again after that time, and then ever more seldom.
constexpr Duration first_patience = 1s, most_patience = 8s;
constexpr Duration tried_after = 30s, tried_seldom = 4min;
// Applications whose batches take alike times within that, as a logarithm, are of one kind.
constexpr double alike = 0.18;
// What a kind's batches take changed by so much: its applications are tried again.
constexpr double doubted = 0.26;
constexpr double off_over = 8;     // runs
constexpr double most_step = 1.1;  // that one run counts for
// By how much what is fitted to few runs is kept near to the model's own times.
constexpr double keep_near = 0.05;
constexpr double least_share = 0.02;

}  // namespace

void Kinds::hear(const ledger::Event& event, const ledger::Ledger& ledger, TimePoint now) {
  if (const auto* change = std::get_if<ledger::ModelChanged>(&event)) {
    changed(change->model, change->info);
  } else if (const auto* times = std::get_if<ledger::TimesChanged>(&event)) {
    changed(times->model, ledger.model(times->model).info);
  } else if (const auto* done = any() ? std::get_if<ledger::ActionDone>(&event) : nullptr;
             done != nullptr && done->status == ledger::ActionStatus::success) {
    for (const std::uint32_t place : ledger.changes().ended) {
      const auto& run = ledger.at(place);
      if (run.kind == device::ActionKind::infer && model(run.run.model) != run.run.model &&
          ledger.times(run.cls).tells(run.run))
        this->ran(run.run.model, run.run.index, done->duration, now);
    }
  }
}

void Kinds::changed(ModelId id, const std::shared_ptr<const ledger::ModelInfo>& info) {
  if (id.index() >= models_.size()) {
    if (!slots_.empty()) {  // its name is a kind's
      for (std::size_t m = 0; m < models_.size(); ++m) end_family(ModelId{static_cast<std::uint32_t>(m)});
      slots_.clear();
      free_names_.clear();
      changes_.come.clear();
      changes_.forgotten = changed_ = true;
    }
    models_.resize(id.index() + 1);
  }
  end_family(id);
  models_[id.index()].info = info;
}

void Kinds::told(const Request& request, TimePoint now) {
  if (request.model.index() >= models_.size()) return;
  Model& m = models_[request.model.index()];
  if (!m.family) {
    if (m.first == AppId{}) m.first = request.app;
    if (m.first == request.app || m.info == nullptr) return;
    begin_family(m);
  }
  Family& f = *m.family;
  App* const app = app_of(f, request.app, now);
  if (f.trial.app) {
    if (app == &f.apps[*f.trial.app]) ++f.trial.own;
    const Duration stalls = trial_stalls + stalled_runs * from_ns(f.seeds.front());
    if (++f.trial.waited > trial_waits || (f.trial.own > asked_before && now - f.trial.ran >= stalls))
      fail_trial(request.model, f, now);
  }
  if (app == nullptr) return;
  app->used = now;
  ++app->asked;
  if (f.trial.app) return;
  const std::size_t at = static_cast<std::size_t>(app - f.apps.data());
  if (!app->kind) {
    if (app->asked >= (asked_before << app->in_vain)) begin_trial(request.model, f, at, now);
    return;
  }
  const Kind& kind = f.kinds[*app->kind];
  const Duration left = request.deadline - now;
  const bool hopeless = static_cast<double>(left.count()) < kind.times.front() &&
                        now - std::max(kind.ran, app->tried) >= app->patience;
  if (!hopeless && !app->doubted && now - app->tried < app->pause) return;
  begin_trial(request.model, f, at, now);
  if (hopeless) f.trial.left = left;
}

void Kinds::fail_trial(ModelId model, Family& f, TimePoint now) {
  App& app = f.apps[*f.trial.app];
  app.in_vain = std::min(app.in_vain + 1, 16U);
  app.asked = 0;
  app.tried = now;
  app.doubted = false;
  if (f.trial.left != Duration::max()) app.patience = std::min(2 * app.patience, most_patience);
  f.trial.app.reset();
  move(*f.trial.as, app.kind ? *f.kinds[*app.kind].as : model);
}

ModelId Kinds::name(const Request& request) const {
  if (request.model.index() >= models_.size()) return request.model;
  const auto& family = models_[request.model.index()].family;
  if (!family) return request.model;
  const std::uint32_t* const place = family->places.find(request.app);
  if (place == nullptr) return request.model;
  if (family->trial.app == *place) return *family->trial.as;
  const auto kind = family->apps[*place].kind;
  return kind ? *family->kinds[*kind].as : request.model;
}

std::size_t Kinds::kinds(ModelId model) const {
  if (model.index() >= models_.size() || !models_[model.index()].family) return 0;
  return static_cast<std::size_t>(
      std::ranges::count_if(models_[model.index()].family->kinds, [](const Kind& k) { return k.apps > 0; }));
}

// The straight line through the model's times tells which share of them does not grow with the batch.
void Kinds::begin_family(Model& m) {
  m.family = std::make_unique<Family>();
  Family& f = *m.family;
  const auto& batches = m.info->batches;
  const auto n = static_cast<double>(batches.size());
  double size = 0, time = 0, xx = 0, xy = 0;
  for (const auto& b : batches) {
    f.seeds.push_back(std::max(1.0, static_cast<double>(b.exec.count())));
    size += b.batch / n;
    time += f.seeds.back() / n;
  }
  for (std::size_t i = 0; i < batches.size(); ++i) {
    xx += (batches[i].batch - size) * (batches[i].batch - size);
    xy += (batches[i].batch - size) * (f.seeds[i] - time);
  }
  const double each = xx > 0 ? std::max(0.0, xy / xx) : 0;
  const double once = std::max(0.0, time - each * size);
  f.least = f.seeds;
  for (const auto& b : batches) f.fixed.push_back(once / std::max(1.0, once + each * b.batch));
}

void Kinds::end_family(ModelId id) {
  Model& m = models_[id.index()];
  m.first = {};
  if (!m.family) return;
  const auto end = [&](const std::optional<ModelId>& as) {
    if (!as) return;
    move(*as, id);
    free_names_.push_back(*as);
  };
  for (const Kind& kind : m.family->kinds) end(kind.as);
  end(m.family->trial.as);
  m.family.reset();
}

void Kinds::move(ModelId from, ModelId to) {
  changes_.moves.push_back({from, to});
  changed_ = true;
}

ModelId Kinds::take_name(ModelId model, std::size_t place) {
  if (free_names_.empty()) {
    slots_.push_back({model, place});
    return ModelId{static_cast<std::uint32_t>(models_.size() + slots_.size() - 1)};
  }
  const ModelId name = free_names_.back();
  free_names_.pop_back();
  slots_[name.index() - models_.size()] = {model, place};
  return name;
}

void Kinds::come(ModelId model, ModelId as, const std::vector<double>& times) {
  auto info = std::make_shared<ledger::ModelInfo>(*models_[model.index()].info);
  info->id = as;
  for (std::size_t i = 0; i < times.size(); ++i) info->batches[i].exec = from_ns(times[i]);
  changes_.come.push_back({as, model, std::move(info)});
  changed_ = true;
}

// Where too many are known, one that is not on trial makes room: one that nothing was learned of, or that did
// not come for long. None: there is no room.
Kinds::App* Kinds::app_of(Family& f, AppId id, TimePoint now) {
  if (const std::uint32_t* const place = f.places.find(id)) return &f.apps[*place];
  constexpr int looked_at = 4;
  std::size_t at = f.apps.size();
  if (at < most_apps) {
    f.apps.emplace_back();
  } else {
    bool found = false;
    for (int i = 0; i < looked_at && !found; ++i) {
      at = f.hand++ % most_apps;
      const App& app = f.apps[at];
      found = f.trial.app != at && (!app.kind || now - app.used >= tried_after);
    }
    if (!found) return nullptr;
    if (f.apps[at].kind) --f.kinds[*f.apps[at].kind].apps;
    f.places.erase(f.apps[at].id);
  }
  f.apps[at] = {.id = id, .used = now, .tried = now};
  f.places.insert(id, static_cast<std::uint32_t>(at));
  return &f.apps[at];
}

// What is on trial is told to take what it may take at best: else nothing of it might run.
void Kinds::begin_trial(ModelId model, Family& f, std::size_t at, TimePoint now) {
  f.trial.app = at;
  f.trial.runs.clear();
  f.trial.waited = f.trial.own = 0;
  f.trial.ran = now;
  f.trial.left = Duration::max();
  if (!f.trial.as) f.trial.as = take_name(model, most_kinds);
  come(model, *f.trial.as, f.apps[at].kind ? f.least : f.seeds);
}

void Kinds::ran(ModelId as, std::size_t index, Duration took, TimePoint now) {
  if (as.index() < models_.size() || as.index() - models_.size() >= slots_.size()) return;
  const Slot which = slots_[as.index() - models_.size()];
  if (!models_[which.model.index()].family) return;
  Family& f = *models_[which.model.index()].family;
  if (index >= f.seeds.size()) return;
  const double ns = std::max(1.0, static_cast<double>(took.count()));
  if (which.place < most_kinds) {
    if (f.kinds[which.place].as == as) follow(f, which.place, ns, index, now);
    return;
  }
  if (f.trial.as != as || !f.trial.app) return;
  f.trial.own = 0;
  f.trial.ran = now;
  auto& runs = f.trial.runs;
  runs.push_back({index, ns});
  const bool too_long = f.trial.left < took;  // as it was
  if (runs.size() < trial_runs && !too_long) return;
  const auto lies = [&](const Run& run) { return std::log(run.took / f.seeds[run.index]); };
  std::ranges::sort(runs, {}, lies);
  if (!too_long && runs.size() < most_trial_runs && lies(runs.back()) - lies(runs.front()) > unlike) return;
  const double middle = lies(runs[runs.size() / 2]);
  std::erase_if(runs, [&](const Run& run) { return std::abs(lies(run) - middle) > unlike; });
  end_trial(which.model, f, now);
}

void Kinds::end_trial(ModelId model, Family& f, TimePoint now) {
  App& app = f.apps[*f.trial.app];
  std::optional<std::size_t> nearest, room;
  double least = 0;
  for (std::size_t i = 0; i < most_kinds; ++i) {
    const Kind& kind = f.kinds[i];
    const bool own = app.kind == i;
    if (kind.apps == (own ? 1U : 0U) && (!room || own)) room = i;
    if (kind.apps == 0) continue;
    double beyond = 0;
    for (const Run& run : f.trial.runs) beyond += std::log(run.took / kind.times[run.index]) - kind.off;
    const double far = std::abs(beyond) / static_cast<double>(f.trial.runs.size());
    if (!nearest || far < least) {
      nearest = i;
      least = far;
    }
  }
  const auto before = app.kind;
  const bool joins = nearest && (least <= alike || !room);
  const std::size_t to = joins ? *nearest : *room;
  if (before != to) {
    if (before) leave(model, f, app);
    app.kind = to;
    ++f.kinds[to].apps;
  }
  Kind& kind = f.kinds[to];
  if (!joins) {
    if (!kind.as) kind.as = take_name(model, to);
    kind.times = fitted(f, f.trial.runs);
    kind.off = kind.usual = 0;
    kind.runs = 0;
    for (std::size_t i = 0; i < f.least.size(); ++i) f.least[i] = std::min(f.least[i], kind.times[i]);
    come(model, *kind.as, kind.times);
  }
  kind.ran = now;
  const bool still = static_cast<double>(f.trial.left.count()) < kind.times.front();
  app.patience = still ? std::min(2 * app.patience, most_patience) : first_patience;
  app.pause = joins && before == to ? std::min(2 * app.pause, tried_seldom) : tried_after;
  app.tried = now;
  app.doubted = false;
  app.in_vain = 0;
  f.trial.app.reset();
  move(*f.trial.as, *kind.as);
}

void Kinds::leave(ModelId model, Family& f, App& app) {
  Kind& kind = f.kinds[*app.kind];
  app.kind.reset();
  if (--kind.apps == 0) move(*kind.as, model);
}

// What the model's batches take, with another part that is fixed, and another for each row: the least change
// of both that accounts for the runs.
std::vector<double> Kinds::fitted(const Family& f, const std::vector<Run>& runs) {
  double aa = keep_near, ab = 0, bb = keep_near, ay = 0, by = 0;
  for (const Run& run : runs) {
    const double a = f.fixed[run.index], b = 1 - a, y = run.took / f.seeds[run.index] - 1;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    ay += a * y;
    by += b * y;
  }
  const double over = aa * bb - ab * ab;
  const double once = std::max(least_share, 1 + (bb * ay - ab * by) / over);
  const double each = std::max(least_share, 1 + (aa * by - ab * ay) / over);
  std::vector<double> times;
  for (std::size_t i = 0; i < f.seeds.size(); ++i)
    times.push_back(std::clamp(f.seeds[i] * (f.fixed[i] * once + (1 - f.fixed[i]) * each), 1.0, 1e17));
  return times;
}

void Kinds::follow(Family& f, std::size_t place, double took, std::size_t index, TimePoint now) {
  Kind& kind = f.kinds[place];
  kind.ran = now;
  const double off = std::log(took / kind.times[index]);
  ++kind.runs;
  kind.off += std::clamp(off - kind.off, -most_step, most_step) / std::min<double>(kind.runs, off_over);
  if (kind.runs < off_over) return;
  if (kind.runs == off_over) kind.usual = kind.off;
  if (std::abs(kind.off - kind.usual) <= doubted) return;
  kind.usual = kind.off;
  for (App& app : f.apps) app.doubted = app.doubted || app.kind == place;
}

}  // namespace carillon::schedule::parts
