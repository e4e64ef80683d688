#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

// The constants that specialisations of one model have computed, so that the next one at another batch size
// finds them instead of computing them again, and shares their memory. Safe from any thread; what is made
// first is kept. One above another, which must outlive it, finds what that has, and keeps what is new to
// itself: for specialisations that come and go.
class ConstantStore {
 public:
  using Tensors = std::vector<SharedTensor>;

  explicit ConstantStore(const ConstantStore* below = nullptr) : below_(below) {}

  // One object for all small tensors of the same type and contents; a large one is given back as it is.
  SharedTensor intern(SharedTensor tensor);

  // What `make` gives for `key` and these `inputs` (by identity), made at most once.
  Result<Tensors> derive(std::string key, const Tensors& inputs,
                         const std::function<Result<Tensors>()>& make);

  // All large tensors that are kept here; the same one may come twice.
  void visit(const std::function<void(const SharedTensor&)>& visit) const;

 private:
  struct Entry {
    Tensors inputs;  // kept alive: the key holds their addresses
    Tensors outputs;
  };
  const Entry* find(const std::string& key) const;
  SharedTensor find_small(const std::string& key) const;

  const ConstantStore* below_;
  mutable std::mutex mutex_;
  std::map<std::string, SharedTensor, std::less<>> small_;
  std::map<std::string, Entry, std::less<>> derived_;
};

// Computes constants for one specialisation. What it makes is limited by a budget, so that a small file
// cannot ask for any amount of memory or work.
class Folder {
 public:
  // `budget`: bytes; the multiplications allowed follow from it.
  Folder(ConstantStore& store, std::uint64_t budget)
      : store_(store), budget_(budget), work_(1e9 + 4 * static_cast<double>(budget)) {}

  // Makes `node`'s outputs constants of `graph` where all that it depends on is known and we can compute it;
  // false where not. The outputs' types are set.
  Result<bool> fold(Graph& graph, const Node& node);

  // A constant made from others by a pass, counted against the budget. `make` fills tensors of `types`.
  Result<ConstantStore::Tensors> derive(const std::string& what, const ConstantStore::Tensors& inputs,
                                        const std::vector<TensorType>& types,
                                        const std::function<Result<>(std::span<Tensor>)>& make);

  ConstantStore& store() { return store_; }

 private:
  Result<> take(std::uint64_t bytes);

  ConstantStore& store_;
  std::uint64_t budget_;
  double work_;
};

// Bytes that constants computed from a file of that size may take: enough to widen 8-bit weights and to go
// through several steps, far from what a hostile file could ask for.
std::uint64_t folding_budget(std::uint64_t bytes_on_disk);

// A text that is the same for nodes that compute the same from the same inputs.
std::string signature(const Node& node);

}  // namespace carillon::graph
