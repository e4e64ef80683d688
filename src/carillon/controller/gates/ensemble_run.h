#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "carillon/controller/gates/ensemble.h"

namespace carillon::controller {

// One request to an ensemble: which steps may start, and its tensors, which go from step to step. A tensor is
// moved to the last who wants it, and copied for those before. Knows no time, and nobody else.
//
//   EnsembleRun run(ensemble, call);
//   for (std::size_t step : run.take_ready()) submit(run.call_of(step, config));
//   ... run.done(step, answered) ... again; at last run.finish(call)
class EnsembleRun {
 public:
  // Takes the inputs out of `call`, whose rows and extents were held against the ensemble's config. Only
  // those steps run that the outputs need which `call` wants.
  EnsembleRun(std::shared_ptr<const Ensemble> ensemble, InferCall& call);

  // The steps that may start now; each comes once.
  std::vector<std::size_t> take_ready();
  // The call of a step that take_ready() gave, once: inputs, rows and extents. `model`: its config as it is
  // now, with inputs as they were when the ensemble was made. Errors (invalid_argument): a shape that was not
  // known before does not fit it.
  Result<std::unique_ptr<InferCall>> call_of(std::size_t step, const repository::ModelConfig& model);
  // The step's answer, a success: takes its outputs.
  Result<> done(std::size_t step, const repository::ModelConfig& model, InferCall& answered);

  // Bytes of the tensors that are here: the request's inputs and the outputs of steps. A tensor leaves when
  // the last step that reads it starts.
  std::size_t bytes() const;
  // Bytes that call_of() copies for the step, since others read these tensors later.
  std::size_t copied_for(std::size_t step) const;

  bool finished() const { return done_ == needed_; }
  std::uint64_t needed() const { return needed_; }  // steps, by bit
  // Gives `call` the outputs that it wants, and says their shapes. Requires finished(). Errors (internal):
  // rows that are not the request's.
  Result<> finish(InferCall& call);

 private:
  struct Tensor {
    graph::Shape shape;
    std::vector<std::byte> bytes;
    std::size_t wanted = 0;  // how often, from now on
  };
  std::vector<std::byte> take(Tensor& tensor);

  std::shared_ptr<const Ensemble> ensemble_;
  int rows_;
  std::vector<bool> outputs_wanted_;
  std::uint64_t needed_;
  std::vector<Tensor> tensors_;
  std::uint64_t taken_ = 0;  // steps, by bit
  std::uint64_t done_ = 0;
};

}  // namespace carillon::controller
