#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <openvino/openvino.hpp>

// What the data of a run can make OpenVINO's CPU plugin do wrong. It leaves results unwritten, and reads or
// writes memory that is not its own, without telling of either; and it refuses what ONNX allows:
//
// - A Loop that runs 0 times leaves what it collects unwritten. The result keeps the numbers and the extents
//   of the run before.
// - Most operators leave their result unwritten where an operand has no elements and the result has some (a
//   product over a dimension of 0, a convolution that pads, the last state of an LSTM over no steps).
// - GatherND reads, and ScatterElements writes, at an index outside of its axis. Gather gives zeros there.
// - TopK does not run with a k of 0. Trial runs on zeros have such a k where k is an input. A k beyond its
//   axis gives as many results as the axis has.
// - A product with fixed weights reads beyond an operand whose inner extent the data make too small.
// - Loop takes a trip count of -1 for none.
//
// What sizes from data may do says size_guards.h.
//
// The run before may have been another client's, and operators that read such a result carry its numbers on
// to outputs that are written. So clearing outputs is not enough: a run in which this happens must fail.
namespace carillon::engine::second {

// A run failed because of the data in its inputs.
class BadData : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Looks after one compiled model's runs. Any number of threads may use it once it is made.
class DataWatch {
 public:
  // Of a model whose inputs have elements, whatever their open extents are. Adds outputs behind the model's
  // own that tell what check() needs, bounds indices and TopK's k by their axes, and gives nothing for a k of
  // 0. Throws std::runtime_error, naming the operator, where every run would fail, or where the operator is
  // inside a body, which shows nothing.
  static DataWatch add(ov::Model& model);

  // After a run, of which `result` gives what each result is, counted as the model has them. Throws BadData,
  // naming the operator, where one left a result unwritten, or had an index or a k outside of its axis.
  void check(const std::function<ov::Tensor(std::size_t)>& result) const;
  // Whether outputs may be left unwritten at all, as far as the operators tell: whoever hands out memory for
  // them clears it first.
  bool may_leave() const { return may_leave_; }

 private:
  enum class What { iterations, condition, elements, outside };
  struct Watched {
    What what = What::elements;
    std::size_t result = 0;  // of the model
    std::string error;       // what to say, which names the operator
  };
  std::vector<Watched> watched_;
  bool may_leave_ = false;
};

// Of a model at sizes that are all known: throws std::runtime_error, naming the operator, where an operand
// has no elements and the operator would leave a result unwritten or has indices into that operand.
void refuse_unwritten(const ov::Model& model);

}  // namespace carillon::engine::second
