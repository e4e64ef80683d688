#include "carillon/engine/cpu/way_selector.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/engine/cpu/trial.h"

namespace carillon::engine::cpu {

namespace {

constexpr double clearly_less = 1.03;  // of whole runs
constexpr double negligible = 0.002;   // share of a run that is not worth a measurement
// Trials pack the constants once more each; beyond this kernels are chosen one by one, without.
constexpr std::uint64_t most_constants = mib(256).count;

bool is_convolution(const graph::Node& node) {
  return node.op == "Conv" || node.op == "ConvTranspose";
}

// What share of a run each node that has candidates is likely to take, by its arithmetic and its bytes.
std::map<std::string, double> predict(const graph::Graph& graph) {
  constexpr double flops = 6e10, bytes = 1e10;  // a second; only how they compare matters
  std::map<std::string, double> shares;
  double all = 0;
  for (const graph::Node& node : graph.nodes) {
    if (!is_convolution(node) && node.op != "MatMul" && node.op != "Gemm") continue;
    const auto elements = [&](graph::ValueId id) {
      return static_cast<double>(graph.value(id).type.elements());
    };
    const graph::Shape& weights = graph.value(node.inputs[1]).type.shape;
    if (weights.empty()) continue;
    const double x = elements(node.inputs[0]), w = elements(node.inputs[1]), y = elements(node.outputs[0]);
    const double columns = static_cast<double>(
        is_convolution(node) || node.integer("transB", 0) != 0 ? weights.front() : weights.back());
    const double time =
        2 * y * w / std::max(columns, 1.0) / flops + sizeof(float) * (x + w + y) / bytes;
    shares[node.name] += time;
    all += time;
  }
  for (auto& [name, share] : shares) share /= all;
  std::erase_if(shares, [](const auto& each) { return each.second < negligible; });
  return shares;
}

// The same for graphs that take the same time, as far as their nodes and shapes tell.
std::string plan_key(const graph::Graph& graph, int parts) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  };
  for (const graph::Node& node : graph.nodes) {
    add(node.op);
    for (const auto* ids : {&node.inputs, &node.outputs})
      for (const auto id : *ids) {
        if (id == graph::no_value) continue;
        add(graph::onnx_name(graph.value(id).type.type));
        add(graph::to_text(graph.value(id).type.shape));
      }
    for (const auto& op : node.post_ops) add(std::to_string(static_cast<int>(op.kind)));
    add(";");
  }
  return "plan parts " + std::to_string(parts) + " nodes " + std::to_string(graph.nodes.size()) + " " +
         std::to_string(hash);
}

std::map<std::string, Duration> slices_of(const std::map<std::string, double>& shares, Duration budget) {
  std::map<std::string, Duration> slices;
  // Kernels of one shape are measured once, so that what nodes may take is more than there is.
  for (const auto& [name, share] : shares)
    slices[name] = from_ns(static_cast<double>(budget.count()) * std::min(0.25, 3 * share));
  return slices;
}

}  // namespace

Result<Ways> WaySelector::select(const graph::Graph& graph, int parts, const Make& make) {
  const bool first = way_.empty();
  if (!first && way_ == "rules") return Ways{};
  const std::map<std::string, double> shares = predict(graph);
  if (shares.empty()) {
    if (first) way_ = "rules";
    return Ways{};
  }
  chooser_.allow({}, Duration{0});
  const TimePoint start = chooser_.clock().now();
  const std::string key = plan_key(graph, parts);
  const auto kept = chooser_.kept().find(key);
  if (first) {
    if (kept && (*kept == "rules" || *kept == "chosen" || *kept == "blocked")) {
      way_ = *kept;
    } else if (left_ > Duration{0}) {
      auto way = measure(graph, shares, left_ / 2, make);
      if (!way) return std::unexpected(way.error());
      way_ = *way;
      left_ = std::max(Duration{0}, left_ - (chooser_.clock().now() - start));
    }
    // Without either, kernels are as is kept of each.
    if (way_.empty()) way_ = "chosen";
  }
  if (!kept && measures_) chooser_.kept().keep(key, way_);
  if (way_ == "rules") return Ways{};
  // A size that was measured before is not measured again, though time may not have been enough for all of it.
  if (!kept && left_ > Duration{0}) {
    const Duration budget = left_ / 2;
    left_ -= budget;
    chooser_.allow(slices_of(shares, budget), budget);
  }
  return Ways{.chooser = &chooser_, .blocked = way_ == "blocked"};
}

Result<std::string> WaySelector::measure(const graph::Graph& graph, std::map<std::string, double> shares,
                                         Duration budget, const Make& make) {
  std::uint64_t constants = 0;
  for (const graph::Value& value : graph.values)
    if (value.constant != nullptr) constants += value.constant->bytes().size();
  if (constants > most_constants) return "chosen";

  struct Tried {
    std::string way;
    std::unique_ptr<WeightStore> weights;
    std::unique_ptr<Trial> trial;
    std::vector<std::vector<Duration>> runs;
  };
  std::vector<Tried> all;
  const auto add = [&](const std::string& way, const Ways& ways) -> Result<> {
    auto weights = std::make_unique<WeightStore>(engine_);
    Result<PlanParts> parts = make(*weights, ways);
    if (!parts) return std::unexpected(parts.error());
    all.push_back({way, std::move(weights), std::make_unique<Trial>(std::move(*parts), engine_), {}});
    return {};
  };
  if (auto done = add("rules", {}); !done) return std::unexpected(done.error());
  const bool images = std::ranges::any_of(
      graph.nodes, [&](const graph::Node& node) { return is_convolution(node) && shares.contains(node.name); });
  chooser_.allow(slices_of(shares, budget / (images ? 3 : 2)), budget / (images ? 3 : 2));
  if (auto done = add("chosen", {.chooser = &chooser_}); !done) return std::unexpected(done.error());
  if (!chooser_.differs()) all.pop_back();
  if (images) {
    chooser_.allow(slices_of(shares, budget / 3), budget / 3);
    if (auto done = add("blocked", {.chooser = &chooser_, .blocked = true}); !done)
      return std::unexpected(done.error());
  }
  if (all.size() == 1) return "rules";

  TrialMemory memory;
  for (Tried& each : all) each.trial->run(memory, each.weights->bytes().data());  // touches its memory
  Duration spent{0};
  for (int round = 0; goes_on(round, spent, {.least = 4, .most = 40, .at_least = budget / 3}); ++round)
    for (Tried& each : all) {
      each.runs.push_back(each.trial->run(memory, each.weights->bytes().data()));
      spent += sum(each.runs.back());
    }
  std::size_t best = 0;
  for (std::size_t i = 1; i < all.size(); ++i)
    if (least_time(all[i].runs) * clearly_less < least_time(all[best].runs)) best = i;
  return all[best].way;
}

}  // namespace carillon::engine::cpu
