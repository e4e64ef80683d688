#include "carillon/engine/openvino/module/passed_on.h"

#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include <openvino/op/parameter.hpp>
#include <openvino/op/result.hpp>

namespace carillon::engine::second {
namespace {

// By the name of each result of the compiled model: the input that it is, or nothing. Compiled inputs are in
// the model's order. An input that is passed on may have got the name of that output.
std::map<std::string, std::optional<std::size_t>> inputs_by_result(const ov::CompiledModel& compiled) {
  std::map<std::string, std::size_t> inputs;
  for (std::size_t i = 0; i < compiled.inputs().size(); ++i)
    inputs[compiled.inputs()[i].get_node()->get_friendly_name()] = i;
  std::map<std::string, std::optional<std::size_t>> out;
  const std::shared_ptr<const ov::Model> ran = compiled.get_runtime_model();
  for (const auto& result : ran->get_results()) {
    const ov::Node& source = *result->input_value(0).get_node();
    auto& input = out[result->get_friendly_name()];
    if (!ov::is_type<ov::op::v0::Parameter>(&source)) continue;
    const auto found = inputs.find(source.get_friendly_name());
    if (found == inputs.end())
      throw std::runtime_error("OpenVINO passes on an input '" + source.get_friendly_name() +
                               "', which its compiled model does not have");
    input = found->second;
  }
  return out;
}

}  // namespace

PassedOn PassedOn::compile(const std::shared_ptr<ov::Model>& model, const Compile& compile,
                           std::optional<ov::CompiledModel>& into) {
  const ov::ResultVector results = model->get_results();
  PassedOn out;
  out.input_of_.resize(results.size());
  const auto name = [](std::size_t i) { return "result " + std::to_string(i); };
  for (std::size_t i = 0; i < results.size(); ++i) results[i]->set_friendly_name(name(i));
  for (bool found = true; found;) {
    found = false;
    into.reset();
    if (model->get_results().empty()) break;
    into = compile(model);
    const auto inputs = inputs_by_result(*into);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (out.input_of_[i]) continue;
      const auto is = inputs.find(name(i));
      if (is == inputs.end())
        throw std::runtime_error("OpenVINO does not tell what output " + std::to_string(i) + " is made by");
      if (!is->second) continue;
      out.input_of_[i] = is->second;
      model->remove_result(results[i]);
      found = true;
    }
  }
  std::size_t next = 0;
  for (const auto& input : out.input_of_) out.output_of_.push_back(input ? 0 : next++);
  return out;
}

}  // namespace carillon::engine::second
