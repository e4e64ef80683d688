#include "carillon/engine/openvino/module/guard.h"

#include <atomic>
#include <cstdint>
#include <utility>

#include <openvino/core/except.hpp>
#include <openvino/op/op.hpp>

namespace carillon::engine::second {
namespace {

template <typename T>
void read(const ov::Tensor& from, std::vector<double>& into) {
  const auto* const values = static_cast<const T*>(from.data());
  into.assign(values, values + from.get_size());
}
template <typename T>
void write(const std::vector<double>& from, ov::Tensor& into) {
  auto* const values = static_cast<T*>(into.data());
  for (std::size_t i = 0; i < from.size(); ++i) values[i] = static_cast<T>(from[i]);
}

// Calls `use` with a pointer to the element's type.
template <typename Use>
bool by_type(const ov::element::Type& type, const Use& use) {
  switch (ov::element::Type_t(type)) {
    case ov::element::Type_t::i64:
      return use(static_cast<std::int64_t*>(nullptr));
    case ov::element::Type_t::i32:
      return use(static_cast<std::int32_t*>(nullptr));
    case ov::element::Type_t::u64:
      return use(static_cast<std::uint64_t*>(nullptr));
    case ov::element::Type_t::u32:
      return use(static_cast<std::uint32_t*>(nullptr));
    case ov::element::Type_t::i16:
      return use(static_cast<std::int16_t*>(nullptr));
    case ov::element::Type_t::u16:
      return use(static_cast<std::uint16_t*>(nullptr));
    case ov::element::Type_t::i8:
      return use(static_cast<std::int8_t*>(nullptr));
    case ov::element::Type_t::u8:
      return use(static_cast<std::uint8_t*>(nullptr));
    case ov::element::Type_t::boolean:
      return use(static_cast<bool*>(nullptr));
    case ov::element::Type_t::f16:
      return use(static_cast<ov::float16*>(nullptr));
    case ov::element::Type_t::bf16:
      return use(static_cast<ov::bfloat16*>(nullptr));
    case ov::element::Type_t::f32:
      return use(static_cast<float*>(nullptr));
    case ov::element::Type_t::f64:
      return use(static_cast<double*>(nullptr));
    default:  // of strings and packed types there are no sizes
      return false;
  }
}

// OpenVINO takes two nodes of equal attributes and operands for one: each guard has a number of its own.
std::int64_t next_number() {
  static std::atomic<std::int64_t> last{0};
  return ++last;
}

std::vector<Seen> look(const ov::TensorVector& operands, std::size_t first) {
  std::vector<Seen> out;
  for (std::size_t i = first; i < operands.size(); ++i) {
    Seen& seen = out.emplace_back(Seen{.shape = operands[i].get_shape(), .values = {}});
    const bool known = by_type(operands[i].get_element_type(), [&]<typename T>(T*) {
      read<T>(operands[i], seen.values);
      return true;
    });
    OPENVINO_ASSERT(known, "a guard looks at ", operands[i].get_element_type());
  }
  return out;
}

class Guard final : public ov::op::Op {
 public:
  OPENVINO_OP("Guard", "carillon")

  // `passes`: the first operand is given on, and none of the judge's business.
  Guard(const ov::OutputVector& operands, Judge judge, std::shared_ptr<Faults> faults, bool passes,
        std::int64_t number)
      : Op(operands), judge_(std::move(judge)), faults_(std::move(faults)), passes_(passes), number_(number) {
    constructor_validate_and_infer_types();
  }

  void validate_and_infer_types() override {
    set_output_type(0, get_input_element_type(0), get_input_partial_shape(0));
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& operands) const override {
    return std::make_shared<Guard>(operands, judge_, faults_, passes_, number_);
  }
  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    visitor.on_attribute("number", number_);
    return true;
  }
  bool has_evaluate() const override { return true; }
  // A judge is asked in each run, and by nobody who looks for bounds.
  bool constant_fold(ov::OutputVector&, const ov::OutputVector&) override { return false; }
  bool evaluate_lower(ov::TensorVector&) const override { return false; }
  bool evaluate_upper(ov::TensorVector&) const override { return false; }
  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    outputs[0].set_shape(inputs[0].get_shape());
    const std::vector<Seen> seen = look(inputs, passes_ ? 1 : 0);
    std::vector<double> values;
    if (!passes_) values = seen.front().values;
    if (const std::string fault = judge_(seen, values); !fault.empty()) {
      faults_->note(fault);
      OPENVINO_ASSERT(!passes_, fault);
    }
    if (passes_) {
      inputs[0].copy_to(outputs[0]);
      return true;
    }
    return by_type(outputs[0].get_element_type(), [&]<typename T>(T*) {
      write<T>(values, outputs[0]);
      return true;
    });
  }

 private:
  Judge judge_;
  std::shared_ptr<Faults> faults_;
  bool passes_;
  std::int64_t number_;
};

ov::Output<ov::Node> guard_of(const ov::OutputVector& operands, Judge judge, std::shared_ptr<Faults> faults,
                              bool passes) {
  const auto guard =
      std::make_shared<Guard>(operands, std::move(judge), std::move(faults), passes, next_number());
  guard->set_friendly_name(operands.front().get_node()->get_friendly_name());
  return guard;
}

}  // namespace

void Faults::note(const std::string& fault) {
  const std::lock_guard lock(mutex_);
  if (first_.empty()) first_ = fault;
}

std::string Faults::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(first_, {});
}

ov::Output<ov::Node> guarded_values(const ov::OutputVector& operands, Judge judge,
                                    std::shared_ptr<Faults> faults) {
  return guard_of(operands, std::move(judge), std::move(faults), false);
}

ov::Output<ov::Node> guarded(const ov::Output<ov::Node>& value, const ov::OutputVector& operands, Judge judge,
                             std::shared_ptr<Faults> faults) {
  ov::OutputVector all{value};
  all.insert(all.end(), operands.begin(), operands.end());
  return guard_of(all, std::move(judge), std::move(faults), true);
}

}  // namespace carillon::engine::second
