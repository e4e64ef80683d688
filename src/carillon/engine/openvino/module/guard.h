#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <openvino/openvino.hpp>

namespace carillon::engine::second {

// What guards found in the run that is under way. Thread-safe.
class Faults {
 public:
  // The first of a run is kept.
  void note(const std::string& fault);
  // What was noted since the last take(); empty: nothing.
  std::string take();

 private:
  std::mutex mutex_;
  std::string first_;
};

// An operand as a guard sees it: its elements in order, whatever their type. Whole numbers are exact, as
// OpenVINO computes them in 32 bits; products saturate.
struct Seen {
  ov::Shape shape;
  std::vector<double> values;
};
// Returns what is wrong, empty: nothing. Where something is, it may change `values`, the first operand's,
// into some that do no harm.
using Judge = std::function<std::string(std::span<const Seen> operands, std::vector<double>& values)>;

// The first operand's values, once a judge has seen all operands. What the judge finds is noted, and the run
// goes on with the values that the judge leaves: so OpenVINO need not compile the model anew. Stands anywhere
// in a model, inside bodies too. Not for operands of which the first has no elements.
ov::Output<ov::Node> guarded_values(const ov::OutputVector& operands, Judge judge,
                                    std::shared_ptr<Faults> faults);

// `value` as it is, which costs a copy, once a judge has seen `operands`. What the judge finds is noted and
// ends the run before the value is read. Where the value has no elements nobody is asked.
ov::Output<ov::Node> guarded(const ov::Output<ov::Node>& value, const ov::OutputVector& operands, Judge judge,
                             std::shared_ptr<Faults> faults);

}  // namespace carillon::engine::second
