#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "carillon/controller/gates/directory.h"

// Models and ensembles as views, for tests of what is made of them.
namespace carillon::controller::testing {

using Names = repository::EnsembleStep::Map;

// A model that is ready, of FP32 tensors whose rows have these extents; it batches up to `most` (0: not at
// all).
inline ModelView model_view(std::string name, std::uint32_t id,
                            const std::vector<std::pair<std::string, int>>& inputs,
                            const std::vector<std::pair<std::string, int>>& outputs, int most = 8) {
  ModelView view;
  view.name = name;
  view.ready = true;
  view.id = {id};
  view.config.name = std::move(name);
  view.config.max_batch_size = most;
  const auto add = [most](const auto& tensors, std::vector<graph::TensorSpec>& specs) {
    for (const auto& [tensor, extent] : tensors) {
      graph::Shape shape{extent};
      if (most > 0) shape.insert(shape.begin(), graph::batch_dimension);
      specs.push_back({tensor, graph::DataType::f32, std::move(shape)});
    }
  };
  add(inputs, view.config.inputs);
  add(outputs, view.config.outputs);
  return view;
}

// An ensemble as the repository has it, from `inputs` to `outputs`.
inline ModelView ensemble_view(std::string name, const std::vector<std::pair<std::string, int>>& inputs,
                               const std::vector<std::pair<std::string, int>>& outputs,
                               std::vector<repository::EnsembleStep> steps, int most = 8) {
  ModelView view = model_view(std::move(name), 0, inputs, outputs, most);
  view.ready = false;
  view.config.steps = std::move(steps);
  return view;
}

// first: x -> y, z; left: y -> l; right: z -> r; last: l, r -> out. "diamond" is in -> out of all four.
inline void put_diamond(Directory& directory) {
  directory.put(ensemble_view("diamond", {{"in", 3}}, {{"out", 2}},
                              {{"first", 0, {{"x", "in"}}, {{"y", "a"}, {"z", "b"}}},
                               {"left", 0, {{"y", "a"}}, {{"l", "c"}}},
                               {"right", 0, {{"z", "b"}}, {{"r", "d"}}},
                               {"last", 0, {{"l", "c"}, {"r", "d"}}, {{"out", "out"}}}}));
  directory.put(model_view("first", 0, {{"x", 3}}, {{"y", 4}, {"z", 5}}));
  directory.put(model_view("left", 1, {{"y", 4}}, {{"l", 1}}));
  directory.put(model_view("right", 2, {{"z", 5}}, {{"r", 1}}));
  directory.put(model_view("last", 3, {{"l", 1}, {"r", 1}}, {{"out", 2}}));
}

}  // namespace carillon::controller::testing
