#include "carillon/repository/ensemble.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "model_config.pb.h"

#include "carillon/graph/text.h"

namespace carillon::repository {
namespace {

using graph::is_text;
using std::to_string;

std::string label_of(std::size_t step, const EnsembleStep& of) {
  return "ensemble_scheduling: step " + to_string(step + 1) + " ('" + of.model + "')";
}

// A map of the message in the order of its keys, which protobuf does not keep.
Result<EnsembleStep::Map> read_map(const google::protobuf::Map<std::string, std::string>& map,
                                   const std::string& where, std::string_view name) {
  EnsembleStep::Map out(map.begin(), map.end());
  std::ranges::sort(out);
  for (const auto& [own, tensor] : out)
    for (const std::string& text : {own, tensor})
      if (text.empty() || !is_text(text))
        return invalid(where + ": " + std::string(name) +
                       " has a name that is empty or has control characters; it is { key: \"the model's\" "
                       "value: \"the ensemble's\" }");
  if (out.empty())
    return invalid(where + ": " + std::string(name) + " is missing; it is { key: \"the model's " +
                   (name == "input_map" ? "input" : "output") + "\" value: \"the ensemble's tensor\" }");
  return out;
}

Result<EnsembleStep> read_step(const inference::ModelEnsembling::Step& message, std::size_t number) {
  EnsembleStep step;
  step.model = message.model_name();
  if (step.model.empty() || !is_text(step.model))
    return invalid("ensemble_scheduling: step " + to_string(number + 1) +
                   ": model_name is missing or has control characters; it is the name of a model in the "
                   "repository");
  const std::string where = label_of(number, step);
  if (message.model_version() < -1 || message.model_version() == 0)
    return invalid(where + ": model_version is " + to_string(message.model_version()) +
                   "; it is a version's number, or -1 for the newest");
  step.version = std::max<std::int64_t>(0, message.model_version());
  if (!message.model_namespace().empty())
    return invalid(where + ": model_namespace is '" + message.model_namespace() +
                   "'; there is one repository, and no namespaces");
  auto inputs = read_map(message.input_map(), where, "input_map");
  if (!inputs) return std::unexpected(inputs.error());
  auto outputs = read_map(message.output_map(), where, "output_map");
  if (!outputs) return std::unexpected(outputs.error());
  step.inputs = std::move(*inputs);
  step.outputs = std::move(*outputs);
  return step;
}

std::string in_quotes(const auto& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "'" : ", '") + name + "'";
  return out;
}

// Who makes each tensor: a step's number, or none for an input of the ensemble.
using Makers = std::map<std::string, std::optional<std::size_t>>;

Result<Makers> makers_of(const std::vector<EnsembleStep>& steps,
                         const std::vector<graph::TensorSpec>& inputs) {
  Makers out;
  for (const graph::TensorSpec& input : inputs) out.emplace(input.name, std::nullopt);
  for (std::size_t i = 0; i < steps.size(); ++i)
    for (const auto& [own, tensor] : steps[i].outputs) {
      const auto [at, fresh] = out.emplace(tensor, i);
      if (fresh) continue;
      return invalid(label_of(i, steps[i]) + ": output_map makes tensor '" + tensor + "', which is " +
                     (at->second ? "made by step " + to_string(*at->second + 1) + " ('" +
                                       steps[*at->second].model + "') already"
                                 : std::string("an input of the ensemble")) +
                     "; each tensor is made once");
    }
  return out;
}

Result<> check_tensors(const std::vector<EnsembleStep>& steps, const Makers& makers,
                       const std::vector<graph::TensorSpec>& outputs) {
  std::set<std::string> read, names;
  for (const auto& [name, maker] : makers) names.insert(name);
  const std::string there = "; there is " + in_quotes(names);
  for (std::size_t i = 0; i < steps.size(); ++i)
    for (const auto& [own, tensor] : steps[i].inputs) {
      if (!makers.contains(tensor))
        return invalid(label_of(i, steps[i]) + ": input_map gives input '" + own + "' the tensor '" + tensor +
                       "', which is neither an input of the ensemble nor in any step's output_map" + there);
      read.insert(tensor);
    }
  for (const graph::TensorSpec& output : outputs) {
    const auto maker = makers.find(output.name);
    if (maker == makers.end())
      return invalid("ensemble_scheduling: output '" + output.name +
                     "' of the ensemble is in no step's output_map" + there);
    if (!maker->second)
      return invalid("ensemble_scheduling: output '" + output.name +
                     "' of the ensemble is an input of it, too; a step has to make it");
    read.insert(output.name);
  }
  for (const auto& [name, maker] : makers) {
    if (read.contains(name)) continue;
    if (!maker)
      return invalid("ensemble_scheduling: input '" + name +
                     "' of the ensemble is in no step's input_map; leave it out, or give it to a step");
    return invalid(label_of(*maker, steps[*maker]) + ": tensor '" + name +
                   "' is neither read by a step nor an output of the ensemble; leave it out of output_map");
  }
  return {};
}

// The steps in an order in which they can run: of those that may be next the first in the config.
Result<std::vector<EnsembleStep>> in_order(std::vector<EnsembleStep> steps, const Makers& makers) {
  std::vector<bool> placed(steps.size());
  std::vector<EnsembleStep> out;
  const auto may_run = [&](std::size_t i) {
    return !placed[i] && std::ranges::all_of(steps[i].inputs, [&](const auto& input) {
      const auto& maker = makers.at(input.second);
      return !maker || placed[*maker];
    });
  };
  while (out.size() < steps.size()) {
    std::size_t next = 0;
    while (next < steps.size() && !may_run(next)) ++next;
    if (next == steps.size()) {
      std::string circle;
      for (std::size_t i = 0; i < steps.size(); ++i)
        if (!placed[i])
          circle += (circle.empty() ? "" : ", ") + to_string(i + 1) + " ('" + steps[i].model + "')";
      return invalid("ensemble_scheduling: the steps " + circle +
                     " wait for each other's tensors, in a circle or behind one; a step reads what earlier "
                     "ones made");
    }
    placed[next] = true;
    out.push_back(steps[next]);
  }
  return out;
}

}  // namespace

Result<std::vector<EnsembleStep>> read_steps(const inference::ModelEnsembling& message,
                                             const std::vector<graph::TensorSpec>& inputs,
                                             const std::vector<graph::TensorSpec>& outputs) {
  if (message.step_size() == 0)
    return invalid(
        "ensemble_scheduling: no step; an ensemble is made of steps { model_name input_map "
        "output_map }");
  if (static_cast<std::size_t>(message.step_size()) > most_steps)
    return invalid("ensemble_scheduling: " + to_string(message.step_size()) + " steps; at most " +
                   to_string(most_steps));
  if (inputs.empty() || outputs.empty())
    return invalid("ensemble_scheduling: an ensemble says its own inputs and outputs, in input and output");
  std::vector<EnsembleStep> steps;
  for (int i = 0; i < message.step_size(); ++i) {
    auto step = read_step(message.step(i), static_cast<std::size_t>(i));
    if (!step) return std::unexpected(step.error());
    steps.push_back(std::move(*step));
  }
  const auto makers = makers_of(steps, inputs);
  if (!makers) return std::unexpected(makers.error());
  if (auto ok = check_tensors(steps, *makers, outputs); !ok) return std::unexpected(ok.error());
  return in_order(std::move(steps), *makers);
}

}  // namespace carillon::repository
