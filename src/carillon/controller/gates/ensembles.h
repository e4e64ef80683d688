#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/controller/calls/book.h"
#include "carillon/controller/calls/service.h"
#include "carillon/controller/gates/ensemble_run.h"
#include "carillon/controller/gates/steps_room.h"

namespace carillon::controller {

struct EnsembleOptions {
  int lanes = 1;  // runs of models at a time: devices
  std::optional<Duration> default_deadline;
  // What a step is expected to take beyond its run, on its way to the next: what the schedulers start from,
  // too (docs/papers.md).
  double safety = 0.05;
  Duration hop = std::chrono::microseconds{500};
  std::size_t most_open = 1 << 16;  // requests to ensembles; more are refused
  // Hears, on the ensembles' thread, that uses() is no longer true of some model. May be empty.
  std::function<void()> on_let_go = {};
};

// Ensembles in front of a service that knows their models: a request to an ensemble becomes requests to its
// steps' models, each as soon as what it reads is there; all else goes on to the service.
//
// The deadline is the request's, else the ensemble's slo_ms, else the server's; with none of them each step
// has its model's own. A step is due so much before it as what follows it takes at least (times_of()), and is
// admitted or refused by that; and the whole is refused at once where its steps take longer than there is
// time. A step whose model's queue policy delays requests by their timeout is not held to it: it counts only
// where a step that is held follows. Class, priority and application are the request's; a class that the
// ensemble's config says goes before its models'. Only the steps run that the outputs need which the request
// wants. A model that comes anew, or goes, while a request is open: the request's later steps take the new
// one where it takes the same, else the old one (uses()). Where a step is refused, fails, or the request is
// cancelled, what else runs of it is cancelled, and it has its one answer.
//
// One thread owns all that is open; answers are given on it. Safe from any thread.
class Ensembles final : public Service {
 public:
  // `inner` and `clock` outlive it. Its steps come back from `inner` until that has stopped.
  Ensembles(Service& inner, const Clock& clock, EnsembleOptions options);
  ~Ensembles() override;  // stops
  Ensembles(const Ensembles&) = delete;
  Ensembles& operator=(const Ensembles&) = delete;

  void start();
  // After `inner` has answered all that was open. Again: nothing.
  void stop();

  bool ready() const override { return inner_.ready(); }
  bool loading() const override { return inner_.loading(); }
  std::string why_not_ready() const override { return inner_.why_not_ready(); }
  std::vector<ModelView> models() const override { return inner_.models(); }
  ModelCounts model_counts() const override { return inner_.model_counts(); }
  Result<std::shared_ptr<const ModelView>> find(std::string_view model,
                                                std::string_view version) const override {
    return inner_.find(model, version);
  }
  TimePoint now() const override { return inner_.now(); }
  std::uint64_t submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) override;
  void cancel(std::uint64_t ticket) override;
  // With those of ensembles beside those of their models: executions are requests (a batch is a request's
  // rows), and compute_infer is what passes from the first step's start to the last one's end.
  ServerStatistics statistics() const override;
  Duration expected(ModelId model, int rows) const override;
  std::shared_ptr<const Ensemble> ensemble(ModelId id) const override { return inner_.ensemble(id); }
  bool responds(Duration longest) override { return inner_.responds(longest); }
  std::vector<TimelinePart> timelines() const override { return inner_.timelines(); }
  ModelControl* control() const override { return inner_.control(); }
  const Journal* journal() const override { return inner_.journal(); }

  // Whether an open request may still need that model of the inner service, though another has its name now.
  bool uses(ModelId model) const;

 private:
  struct Open {
    std::shared_ptr<const Ensemble> ensemble;
    std::unique_ptr<InferCall> call;  // without its inputs, which are in `run`
    AnswerHandler handler;
    EnsembleRun run;
    EnsembleTimes times;        // where there is no time for all steps: of what the deadline holds
    std::uint64_t delayed = 0;  // the steps, by bit, that the deadline does not hold
    TimePoint deadline;
    TimePoint started;
    std::vector<ModelId> models;  // that its steps may still need, as they were when it came
    struct Under {
      std::uint64_t ticket = 0;
      TimePoint sent;
      std::shared_ptr<const ModelView> view;
      std::size_t inputs = 0;  // bytes
    };
    std::map<std::size_t, Under> under_way;  // by step
    std::shared_ptr<StepsRoom> room;         // which the steps' calls share
    std::vector<std::uint64_t> numbers;      // InferAnswer::steps

    // The bytes of tensors that wait for steps, and of the inputs of steps that are under way.
    std::size_t tensors() const;
    // Whether a step that the deadline does not hold is one of the last.
    bool ends_delayed() const;
  };
  struct Begin {
    std::uint64_t ticket = 0;
    std::unique_ptr<Open> open;
  };
  struct Answered {
    std::uint64_t ticket = 0;
    std::size_t step = 0;
    InferAnswer answer;
  };
  struct Cancel {
    std::uint64_t ticket = 0;
  };
  using Event = std::variant<Begin, Answered, Cancel>;

  EnsembleTimes times(const Ensemble& ensemble, int rows, const std::vector<bool>& outputs_wanted) const;
  std::vector<Duration> takes(const Ensemble& ensemble, int rows,
                              const std::vector<bool>& outputs_wanted) const;
  EnsembleTimes bounding(const Ensemble& ensemble, std::vector<Duration> takes, std::uint64_t needed,
                         std::uint64_t delayed) const;
  TimePoint deadline_of(const InferCall& call, const Ensemble& ensemble) const;
  void post(Event event);
  void run();
  void handle(Begin& event);
  void handle(Answered& event);
  void handle(Cancel& event);
  void go_on(std::uint64_t ticket, Open& open);
  Result<> start_step(std::uint64_t ticket, Open& open, std::size_t step);
  void end(std::uint64_t ticket, Result<> status, std::optional<Duration> would_take = {},
           std::optional<Duration> retry_after = {});
  void give(Open& open, Result<> status, std::optional<Duration> would_take,
            std::optional<Duration> retry_after);
  ModelId page_of(const std::string& name, std::int64_t version, const std::optional<Duration>& slo) const;

  Service& inner_;
  const Clock& clock_;
  const EnsembleOptions options_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Open>> open_;  // the thread's

  mutable std::mutex book_mutex_;  // of adding to the book
  mutable std::map<std::pair<std::string, std::int64_t>, ModelId> pages_;
  mutable Book book_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::vector<Event> events_;
  std::uint64_t next_ticket_ = 1;
  std::size_t open_count_ = 0;
  std::map<ModelId, std::size_t> used_;  // by how many steps of open requests
  bool running_ = false;
  std::thread thread_;
};

}  // namespace carillon::controller
