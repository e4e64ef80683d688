#include "carillon/engine/cuda/plan/chains.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace carillon::engine::cuda {

namespace {

constexpr std::size_t no_chain = static_cast<std::size_t>(-1);

std::int64_t elements_of(const kernels::ChainOperand& read) {
  std::int64_t count = 1;
  for (int i = 0; i < read.rank; ++i) count *= read.extents[i];
  return count;
}
// One element after the other, from the first on.
bool goes_straight(const kernels::ChainOperand& read) {
  std::int64_t expected = 1;
  for (int i = read.rank - 1; i >= 0; --i) {
    if (read.extents[i] != 1 && read.strides[i] != expected) return false;
    expected *= read.extents[i];
  }
  return true;
}
// The same elements in the same order.
bool same(const ElementStep::Operand& a, const ElementStep::Operand& b) {
  return a.tensor.buffer == b.tensor.buffer && a.tensor.offset == b.tensor.offset &&
         a.tensor.type == b.tensor.type && a.read.rank == b.read.rank &&
         std::equal(a.read.extents, a.read.extents + a.read.rank, b.read.extents) &&
         std::equal(a.read.strides, a.read.strides + a.read.rank, b.read.strides);
}
// Whether `operand` is the whole of what `of` gives, in the order in which that goes through it.
bool is_result(const ElementStep::Operand& operand, const ElementStep& of) {
  return operand.tensor.buffer == of.out.buffer && operand.tensor.offset == of.out.offset &&
         operand.tensor.type == of.out.type && goes_straight(operand.read) &&
         elements_of(operand.read) == of.out.elements();
}

class Finder {
 public:
  Finder(std::span<const std::optional<ElementStep>> elements,
         std::span<const std::vector<std::size_t>> users, const std::vector<bool>& is_edge)
      : elements_(elements), users_(users), is_edge_(is_edge), chain_of_(elements.size(), no_chain) {}

  std::vector<ChainOf> find() {
    // From the last on, so that who uses a value has its chain when the value is looked at.
    for (std::size_t i = elements_.size(); i-- > 0;) {
      if (!elements_[i]) continue;
      const std::size_t into = user_of(i);
      if (into != no_chain && fits(into, i)) {
        chain_of_[i] = into;
        members_[into].push_back(i);
      } else {
        chain_of_[i] = members_.size();
        members_.push_back({i});
      }
    }
    std::vector<ChainOf> out;
    for (std::size_t chain = members_.size(); chain-- > 0;) {
      std::ranges::sort(members_[chain]);
      if (members_[chain].size() > 1) out.push_back(made_of(members_[chain]));
    }
    return out;
  }

 private:
  // The one chain whose steps alone use what a step gives, each as a whole.
  std::size_t user_of(std::size_t step) const {
    const ElementStep& made = *elements_[step];
    const auto buffer = static_cast<std::size_t>(made.out.buffer);
    if (made.out.buffer < 0 || is_edge_[buffer]) return no_chain;
    std::size_t into = no_chain;
    for (const std::size_t user : users_[buffer]) {
      if (user == step) continue;
      if (user < step || !elements_[user]) return no_chain;
      for (const ElementStep::Operand& operand : elements_[user]->operands)
        if (operand.tensor.buffer == made.out.buffer && !is_result(operand, made)) return no_chain;
      if (into != no_chain && chain_of_[user] != into) return no_chain;
      into = chain_of_[user];
    }
    return into;
  }

  // What a chain of these steps reads from outside.
  std::vector<ElementStep::Operand> outside(std::span<const std::size_t> steps) const {
    std::vector<ElementStep::Operand> out;
    for (const std::size_t step : steps)
      for (const ElementStep::Operand& operand : elements_[step]->operands) {
        const bool inside = std::ranges::any_of(steps, [&](std::size_t other) {
          return operand.tensor.buffer >= 0 && elements_[other]->out.buffer == operand.tensor.buffer;
        });
        if (!inside && std::ranges::none_of(out, [&](const auto& known) { return same(known, operand); }))
          out.push_back(operand);
      }
    return out;
  }

  bool fits(std::size_t chain, std::size_t step) const {
    std::vector<std::size_t> steps = members_[chain];
    steps.push_back(step);
    return steps.size() <= kernels::most_chain_steps &&
           outside(steps).size() <= static_cast<std::size_t>(kernels::most_chain_operands);
  }

  ChainOf made_of(const std::vector<std::size_t>& steps) const {
    ChainOf out{};
    out.steps = steps;
    kernels::Chain& chain = out.launch.chain;
    kernels::ChainParams params{};  // with addresses that are aligned as those will be
    for (const ElementStep::Operand& operand : outside(steps)) {
      const int at = chain.operand_count++;
      chain.operands[at].type = *kernel_type(operand.tensor.type);
      out.launch.params.operands[at] = params.operands[at] = operand.read;
      params.operands[at].at = reinterpret_cast<const void*>(operand.tensor.offset);
      out.operands.push_back(operand.tensor);
    }
    const std::vector<ElementStep::Operand> read = outside(steps);
    for (const std::size_t each : steps) {
      const ElementStep& made = *elements_[each];
      kernels::Chain::Step step = made.step;
      for (std::size_t k = 0; k < made.operands.size(); ++k) {
        const ElementStep::Operand& operand = made.operands[k];
        const auto inside = std::ranges::find_if(steps, [&](std::size_t other) {
          return operand.tensor.buffer >= 0 && elements_[other]->out.buffer == operand.tensor.buffer;
        });
        step.of[k] =
            inside != steps.end()
                ? chain.operand_count + static_cast<int>(inside - steps.begin())
                : static_cast<int>(
                      std::ranges::find_if(read, [&](const auto& known) { return same(known, operand); }) -
                      read.begin());
      }
      chain.steps[chain.step_count++] = step;
    }
    const ElementStep& last = *elements_[steps.back()];
    out.launch.params.count = last.out.elements();
    choose_readings(chain, params);
    out.name = last.node + " " + kernels::chain_symbol + " of " + std::to_string(steps.size()) + " from " +
               elements_[steps.front()]->node;
    return out;
  }

  std::span<const std::optional<ElementStep>> elements_;
  std::span<const std::vector<std::size_t>> users_;
  const std::vector<bool>& is_edge_;
  std::vector<std::size_t> chain_of_;  // by step
  std::vector<std::vector<std::size_t>> members_;
};

}  // namespace

std::vector<ChainOf> find_chains(std::span<const std::optional<ElementStep>> elements,
                                 std::span<const std::vector<std::size_t>> users,
                                 const std::vector<bool>& is_edge) {
  return Finder(elements, users, is_edge).find();
}

}  // namespace carillon::engine::cuda
