#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carillon/controller/calls/service.h"

namespace carillon::controller {

inline constexpr int most_nested = 8;                  // ensembles in ensembles
inline constexpr std::size_t most_steps_in_all = 256;  // of an ensemble with those in it

// An ensemble whose steps' models are there and fit together. Never changes; the ensemble's next, when a
// model of it has come anew, is another.
struct Ensemble {
  struct Step {
    std::string model;
    std::string version;                              // as Service::find() takes it; empty: the newest
    std::shared_ptr<const ModelView> view;            // as it was when the step was held against it
    std::vector<std::size_t> inputs;                  // tensors, in the order of the model's inputs
    std::vector<std::optional<std::size_t>> outputs;  // likewise; nothing: it is dropped
    std::uint64_t from = 0;                           // the steps whose tensors it reads, by bit
    std::uint64_t behind = 0;                         // the steps that can only run after it
  };
  struct Tensor {
    std::string name;
  };

  std::int64_t version = 1;
  repository::ModelConfig config;  // shapes as far as the models fix them
  std::vector<Step> steps;         // each after those that it reads from
  std::vector<Tensor> tensors;
  std::vector<std::size_t> inputs;   // of the ensemble, tensors in its config's order
  std::vector<std::size_t> outputs;  // likewise
  int nested = 1;                    // 1: no ensemble is in it
  std::size_t steps_in_all = 0;
};

// How a step's model is found: `version` 0: the newest that is ready. Errors: there is none.
using FindModel =
    std::function<Result<std::shared_ptr<const ModelView>>(const std::string& model, std::int64_t version)>;

// The ensemble that the view's config (which has steps) says. Errors name step, model, tensor, and what would
// be right: a model that is not known (not_found) or not ready (unavailable); names that it does not have,
// inputs that nobody gives it; types and shapes that do not fit; batches that are too large for it; ensembles
// in ensembles beyond most_nested or most_steps_in_all (invalid_argument).
Result<std::shared_ptr<const Ensemble>> make_ensemble(const ModelView& view, const FindModel& find);

// The steps, by bit, that must run for these outputs (as InferCall::outputs_wanted; empty: all), and nothing
// else.
std::uint64_t steps_for(const Ensemble& ensemble, const std::vector<bool>& outputs_wanted);

// Which outputs of a step's model anybody wants, as InferCall::outputs_wanted, where `steps` run for these
// outputs of the ensemble.
std::vector<bool> outputs_of_step(const Ensemble& ensemble, std::size_t step, std::uint64_t steps,
                                  const std::vector<bool>& outputs_wanted);

// What follows a step, and what all of it takes at least, from what each step takes by itself (0: it does not
// run): on `lanes`
// devices the longer of the longest way through the steps, one after the other, and of an even share of all
// their work.
struct EnsembleTimes {
  std::vector<Duration> after;  // by step: from its answer to the ensemble's
  Duration whole{0};
};
EnsembleTimes times_of(const Ensemble& ensemble, std::span<const Duration> takes, int lanes);

}  // namespace carillon::controller
