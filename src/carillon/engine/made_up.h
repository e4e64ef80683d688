#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/graph/faults.h"
#include "carillon/graph/tensor.h"

// Data for runs that are measured, whose results nobody wants. Most models run on zeros. Some refuse zeros: a
// size of 0, a step of 0, a shape that does not fit. Other data are tried on these in turn.
namespace carillon::engine {

// In how many ways data are made up: zeros; ones; whole numbers of -1 and then 1, as a shape that takes any
// tensor; each input zeros or ones, by chance; each element by chance.
inline constexpr int made_up_ways = 8;

// Writes input `input` of a plan, of that type, as that way has it: 0 <= way < made_up_ways, 0 is zeros.
// Elements by chance are the same each time. `to` holds whole elements.
void make_up(int way, std::size_t input, graph::DataType type, std::span<std::byte> to);

// What is known of how a model likes its data made up.
struct MadeUpChoice {
  int way = 0;           // to begin with
  bool settled = false;  // it ran, and no other did better
};

// A model whose runs are measured.
struct MadeUpModel {
  std::function<void(int way)> fill;  // all inputs
  std::function<Result<>()> run;
  std::function<Result<>()> usable;  // CompiledModel::usable()
  std::function<TimePoint()> now;
  graph::Faults* faults = nullptr;  // that run() notes; `results_unwanted` is set
};

// Runs the model `repeats` >= 1 times on data that it does not refuse and returns how long each run took, the
// first with cold caches. Where each way has faults that the runs go on with, those of the first count.
//
// Where the model refuses all (invalid_argument): the error of the first, if `refused` is null; else
// `*refused` is that error's text, and there is one time, of the shortest run that was refused. All other
// errors end the measurement. Waits for a model that a refused run left to be compiled anew.
Result<std::vector<Duration>> measure_on_made_up(const MadeUpModel& model, int repeats, MadeUpChoice& choice,
                                                 std::string* refused);

}  // namespace carillon::engine
