#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "carillon/ledger/id_map.h"
#include "carillon/ledger/ledger.h"

namespace carillon::schedule::parts {

// Kinds of requests of a model: those of applications that take alike times. To the parts that plan, each
// kind is a model of its own, with lines, rates and times of its own, that runs with the weights of the one.
// Its name is a ModelId behind those of all models. Requests that tell no application, or one that is not
// known yet, keep the model's own name.
//
// An application that is asked for again is on trial until three of its batches ran by themselves. By these
// it joins the kind whose batches take alike times; else it begins a new kind, while there are few. A trial
// comes again where batches of the kind take other times than before, and after half a minute, and then ever
// more seldom. It also comes again where the kind seems to take longer than a request has, and nothing of it
// ran for a second: what made it slow may be over.
//
// Nothing is learned, and nothing costs more than a comparison, before a model's second application is told.
// A call costs O(1), but O(kinds) at the end of a trial. A model that never came before takes the name of a
// kind: then the kinds of all models are learned anew, in O(models). Memory is bounded for each model. Not
// thread-safe.
class Kinds {
 public:
  // `classes`: requests of other classes than normal run on streams of their own, and have no kinds.
  Kinds(bool on, bool classes) : on_(on), classes_(classes) {}

  // A kind comes as a model, or comes anew: what was known of that name counts no more.
  struct Come {
    ModelId as, model;
    std::shared_ptr<const ledger::ModelInfo> info;
  };
  // What waits under the one name is to wait under the other.
  struct Move {
    ModelId from, to;
  };
  struct Changes {
    std::vector<Move> moves;  // to be done first
    std::vector<Come> come;
    bool forgotten = false;  // all names of kinds: some are other models' now
  };

  // A request comes; before of() is asked for it.
  void arrived(const Request& request, TimePoint now) {
    if (request.app != AppId{} && on_ && has_kinds(request.cls)) told(request, now);
  }
  // What any other event says of models and of runs. O(runs that ended).
  void hear(const ledger::Event& event, const ledger::Ledger& ledger, TimePoint now);
  // A model comes, goes, or comes in another version, or its batches take other times: its kinds are learned
  // anew.
  void changed(ModelId model, const std::shared_ptr<const ledger::ModelInfo>& info);
  // A batch of that name and place of its size took so long, and nothing that matters has changed since it
  // was sent.
  void ran(ModelId as, std::size_t index, Duration took, TimePoint now);
  // What follows from all that was said since this was asked: something where changed() says so.
  Changes take_changes() {
    changed_ = false;
    return std::exchange(changes_, {});
  }
  bool changed() const { return changed_; }
  // Some model has kinds.
  bool any() const { return !slots_.empty(); }

  // The name by which a request is planned.
  ModelId of(const Request& request) const {
    if (slots_.empty() || request.app == AppId{} || !has_kinds(request.cls)) return request.model;
    return name(request);
  }
  // The model that a name stands for.
  ModelId model(ModelId as) const {
    const std::size_t at = as.index() - models_.size();
    return as.index() < models_.size() || at >= slots_.size() ? as : slots_[at].model;
  }
  // Calls look(name) for each name of the model.
  template <typename Look>
  void visit(ModelId model, Look&& look) const {
    look(model);
    if (model.index() >= models_.size() || !models_[model.index()].family) return;
    const Family& f = *models_[model.index()].family;
    for (const Kind& kind : f.kinds)
      if (kind.as) look(*kind.as);
    if (f.trial.as) look(*f.trial.as);
  }
  // How many kinds of the model there are.
  std::size_t kinds(ModelId model) const;

  static constexpr std::size_t most_kinds = 4;  // of a model
  static constexpr std::size_t most_apps = 64;  // of a model that are known

 private:
  struct App {
    AppId id;
    std::uint32_t asked = 0;          // requests, until its first trial
    std::optional<std::size_t> kind;  // none: not known
    TimePoint used, tried;
    Duration pause{0};  // until it is tried again
    bool doubted = false;
    std::uint32_t in_vain = 0;  // trials
    Duration patience{1s};      // until it is tried again while it seems to take too long
  };
  struct Kind {
    std::optional<ModelId> as;
    std::size_t apps = 0;
    std::vector<double> times;  // by place of the batch size, nanoseconds: as they were told
    double off = 0, usual = 0;  // logarithm of what runs take over these; of late, and when `apps` joined
    std::uint32_t runs = 0;
    TimePoint ran;
  };
  struct Run {
    std::size_t index = 0;
    double took = 0;  // nanoseconds
  };
  struct Trial {
    std::optional<ModelId> as;
    std::optional<std::size_t> app;
    std::vector<Run> runs;
    std::uint32_t waited = 0;  // requests of the model that came meanwhile
    std::uint32_t own = 0;     // and its own, since something of it ran
    TimePoint ran;
    Duration left = Duration::max();  // its requests have so long, which seemed to be too short
  };
  struct Family {
    std::vector<double> seeds;  // nanoseconds, by place of the batch size
    std::vector<double> fixed;  // the share of these that does not grow with the batch
    std::vector<double> least;  // of these and of all that any kind was found to take
    std::vector<App> apps;
    ledger::IdMap<AppId, std::uint32_t> places;
    std::size_t hand = 0;  // where an application that makes room is searched for
    std::array<Kind, most_kinds> kinds;
    Trial trial;
  };
  struct Model {
    std::shared_ptr<const ledger::ModelInfo> info;
    AppId first;
    std::unique_ptr<Family> family;
  };
  struct Slot {
    ModelId model;
    std::size_t place = 0;  // of the kind; most_kinds: what is on trial
  };

  bool has_kinds(Class cls) const { return !classes_ || cls == Class::normal; }
  void told(const Request& request, TimePoint now);
  ModelId name(const Request& request) const;
  void move(ModelId from, ModelId to);
  ModelId take_name(ModelId model, std::size_t place);
  void come(ModelId model, ModelId as, const std::vector<double>& times);
  void begin_family(Model& model);
  void end_family(ModelId model);
  App* app_of(Family& family, AppId id, TimePoint now);
  void begin_trial(ModelId model, Family& family, std::size_t app, TimePoint now);
  void fail_trial(ModelId model, Family& family, TimePoint now);
  void end_trial(ModelId model, Family& family, TimePoint now);
  static std::vector<double> fitted(const Family& family, const std::vector<Run>& runs);
  static void follow(Family& family, std::size_t kind, double took, std::size_t index, TimePoint now);
  void leave(ModelId model, Family& family, App& app);

  bool on_, classes_;
  std::vector<Model> models_;
  std::vector<Slot> slots_;
  std::vector<ModelId> free_names_;
  Changes changes_;
  bool changed_ = false;  // there are changes_
};

}  // namespace carillon::schedule::parts
