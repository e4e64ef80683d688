#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/kernels/kernels.h"
#include "carillon/engine/cuda/library/chains.h"
#include "carillon/engine/cuda/library/library.h"
#include "carillon/graph/graph.h"

// A graph as a list of kernels and library calls, each byte's place known: what cuda_plan.h captures into
// CUDA graphs. Made without a device but for the library's calls.
namespace carillon::engine::cuda {

// The constants of a model as its kernels want them, packed once for all batch sizes. Used while compiling,
// from one thread.
class Weights {
 public:
  // Where `bytes` lie that `make` gives, for the same `what` and `from` made once. `from` is kept alive.
  std::uint64_t place(const std::vector<graph::SharedTensor>& from, const std::string& what,
                      std::size_t bytes, const std::function<void(std::span<std::byte>)>& make);
  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::map<std::pair<std::vector<const graph::Tensor*>, std::string>, std::uint64_t> places_;
  std::vector<graph::SharedTensor> kept_;
  std::vector<std::byte> bytes_;
};

// Bytes of the plan's workspace, or of the model's weights.
struct Place {
  enum class Area : std::uint8_t { none, workspace, weights };
  Area area = Area::none;
  std::uint64_t offset = 0;

  // Where it is, with the areas at these addresses; 0 for none.
  Address at(Address workspace, Address weights) const {
    return area == Area::none ? 0 : offset + (area == Area::workspace ? workspace : weights);
  }
};

// One kernel of our own, or one call of a library.
struct Step {
  std::string name;  // "<node> <what computes it>"

  kernels::Launch launch;  // kernel is nullptr: a call
  std::vector<std::byte> params;
  std::vector<std::pair<std::size_t, Place>> pointers;  // where in `params` the addresses go
  std::shared_ptr<const ChainKernel> chain;             // of a chain: what is launched, with a ChainLaunch

  std::shared_ptr<const Call> call;
  Place a, b, out, bias, residual, scratch;
};

struct Recipe {
  struct Edge {
    Place at;  // dense and row-major, in the graph's type
    std::uint64_t bytes = 0;
    bool of_numbers = false;  // f32
  };
  // Attention that one kernel could compute: steps [first, last) do, which one of them is where `one_kernel`.
  struct Attention {
    std::string node, key;
    int first = 0, last = 0;
    bool one_kernel = false;
  };
  std::vector<Step> steps;
  std::vector<Attention> attentions;  // in the order of their steps
  std::vector<int> segment_ends;      // the step after each segment's last, ascending; one at least
  std::vector<Edge> inputs, outputs;  // in the graph's order
  std::uint64_t workspace = 0;        // bytes
};

struct RecipeOptions {
  Number number = Number::f32;  // what f32 values become between inputs and outputs; other types stay
  unsigned processors = 1;      // of the device
  // Steps fall into segments of so many, from the first on (0: one segment). A segment may be run again, so
  // none of its steps writes where what it took from earlier ones lies.
  int longest_segment = 0;
  std::vector<int> segment_ends{};  // instead, as in Recipe
  // Whether attention of this key is to be one kernel, where there is one; none: never.
  std::function<bool(const std::string& key)> one_kernel{};
  // Products of one input are one (joined_products.h).
  bool join_products = true;
  // Who makes kernels of chains (chains.h); none: each step is a kernel of its own.
  ChainLibrary* chains = nullptr;
};
// Errors: `unsupported`, which names the node, its operator and types, and why no kernel covers it.
Result<Recipe> make_recipe(const graph::Graph& graph, const RecipeOptions& options, MathLibrary& library,
                           Weights& weights);

}  // namespace carillon::engine::cuda
