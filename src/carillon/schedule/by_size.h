#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "carillon/profile/size_fit.h"
#include "carillon/schedule/around.h"
#include "carillon/schedule/id_map.h"

namespace carillon::schedule {

struct BySizeOptions {
  // Classes of sizes that are told apart of a model at a time. A class is a quarter of a power of two, so
  // these reach over eight of them; where there are more, a size counts to the class above it.
  std::size_t classes = 32;
};

// A policy that plans with fixed times, for models whose requests have sizes (ModelInfo::sizes): to the
// policy each class of alike sizes is a model of its own, with times of its own, that runs with the weights
// of the one (ModelInfo::weights_of). So batches are of one class, a class is believed by its own last
// measurements, as any model is, and all that a policy promises it promises by class.
//
// What a class is told to take when its first request comes is predicted from what ran of all sizes
// (profile::SizeFit, at the quantile that is promised); as long as nothing of a class ran, it is predicted
// anew for each request that comes. Where classes run out, one that nobody waits for becomes another.
//
// Ids of models in front of it and behind it are not the same: behind it, classes take some. All else passes
// as it is; models without sizes at the cost of a look-up. Not thread-safe.
class BySize final : public Around {
 public:
  explicit BySize(std::unique_ptr<Scheduler> policy, const BySizeOptions& options = {})
      : Around(std::move(policy)), options_(options) {}

  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;
  bool load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) override;

 private:
  friend struct testing::Audit;
  struct SizeClass {
    ModelId inner;
    int step = 0;
    Effort effort;                    // of its largest row so far
    std::size_t open = 0;             // requests of it without an outcome
    std::size_t flying = 0;           // INFERs
    bool ran = false;                 // since it is of this step
    std::vector<BatchProfile> seeds;  // as it was told
    std::uint64_t told = 0;           // SizeFit::measurements() when it was told what it takes
    std::uint64_t used = 0;
  };
  struct Model {
    std::shared_ptr<const ModelInfo> info;  // as it was told; null: it went
    ModelId inner;                          // of requests that tell no size
    profile::SizeFit fit;
    std::vector<SizeClass> classes;
    std::uint64_t version = 0;
    std::vector<std::uint64_t> times;  // by place of the batch size: how often its seed changed
    bool sized() const { return info != nullptr && !info->sizes.empty(); }
    bool tells_apart(const Request& request) const { return sized() && request.effort.known(); }
  };
  struct Origin {  // of a model behind this
    ModelId model;
    std::size_t size_class = 0;  // its place and one; 0: of no class
  };
  struct Open {
    ModelId inner;
    Effort effort;
  };
  struct Flight {
    ModelId inner;
    DeviceId device;
    std::vector<RequestId> requests;
    profile::SizedRun run;
    std::uint64_t version = 0, times = 0;  // of its model and its size, when it was sent
  };

  void arrived(RequestArrived arrival, TimePoint now, Actions& out);
  void model_changed(const ModelChanged& change, TimePoint now, Actions& out);
  void times_changed(const TimesChanged& change, TimePoint now, Actions& out);
  void done(const ActionDone& done);
  static std::uint64_t times_of(const Model& model, int rows);
  static std::vector<BatchProfile> predicted(const Model& model, const SizeClass& as);
  SizeClass& class_of(Model& model, const Effort& effort, TimePoint now, Actions& out);
  void tell(const Model& model, SizeClass& as, TimePoint now, Actions& out);
  void device_changed(DeviceId device);
  static void learn_seeds(Model& model);
  static void learn_seed(Model& model, const SizeTime& seed);
  void ask(const Event& event, TimePoint now, Actions& out);
  void name_anew(std::size_t from, Actions& out);
  void follow(Infer& infer);
  void close(RequestId request);

  BySizeOptions options_;
  TimePoint wake_ = TimePoint::max();  // as the policy said last
  std::vector<Model> models_;
  std::vector<Origin> origins_;         // by id behind this
  IdMap<RequestId, Open> open_;         // of models with sizes
  std::map<ActionId, Flight> flights_;  // likewise
  std::uint64_t uses_ = 0;
};

}  // namespace carillon::schedule
