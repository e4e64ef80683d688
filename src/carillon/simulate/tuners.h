#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "carillon/workload/study.h"

// Tuning algorithms over recorded curves: which trials they want trained for how long, and what they make of
// the results.
namespace carillon::simulate {

// Trials are numbered from 0 on, in the order in which a tuner makes them.
struct TunerOrder {
  enum class Kind : std::uint8_t {
    group,   // `trials` are wanted, each for `epochs` more; new ones, or paused ones
    go_on,   // the trial that reached its budget goes on for `epochs` more
    pause,   // it is not wanted for now
    end,     // or any more
    becomes  // it goes on from the weights of trial `source`, with a setting of its own
  };
  Kind kind{};
  std::vector<std::uint32_t> trials;
  std::uint32_t epochs = 0;
  std::uint32_t source = 0;
  // becomes: the setting is drawn anew, and is not one near that of its source.
  bool anew = false;
};

class StudyTuner {
 public:
  virtual ~StudyTuner() = default;
  // At the start. `appetite`: how many trials the policy could run with a gain.
  virtual void begin(std::size_t appetite, std::vector<TunerOrder>& out) = 0;
  // A trial reached its budget after so many epochs in all. `score`: larger is better.
  virtual void reached(std::uint32_t trial, std::uint32_t epochs, double score, std::size_t appetite,
                       std::vector<TunerOrder>& out) = 0;
  // Which of two unused settings a new trial has is the tuner's guess: of so many that are drawn, the best.
  // 1: it does not guess.
  virtual std::uint32_t guesses() const { return 1; }
};

std::unique_ptr<StudyTuner> make_tuner(const workload::Study& study);

}  // namespace carillon::simulate
