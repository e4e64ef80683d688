#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <dnnl.hpp>

#include "carillon/engine/cpu/layout.h"
#include "carillon/graph/tensor.h"

namespace carillon::engine::cpu {

// One growing block of memory from the system: it grows by moving pages, never by copying bytes. Starts at a
// page's boundary.
class HostBlock {
 public:
  HostBlock() = default;
  HostBlock(HostBlock&& other) noexcept;
  HostBlock& operator=(HostBlock&& other) noexcept;
  ~HostBlock();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::span<std::byte> bytes() { return {data_, size_}; }
  // Appends `size` zero bytes at a multiple of 64 and returns their offset. Throws std::bad_alloc.
  std::uint64_t append(std::uint64_t size);
  void shrink_to_fit();

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  std::uint64_t capacity_ = 0;
};

// The constants of one model as its kernels want them: packed once, shared by all plans that ask for the same
// tensor in the same layout. Used while compiling, from one thread.
//
// One above another that is sealed finds what that has, and packs only what is new, for a plan that is made
// later: such offsets are as if its block lay behind the other's (is_above()).
class WeightStore {
 public:
  explicit WeightStore(const dnnl::engine& engine, const WeightStore* below = nullptr)
      : engine_(engine), below_(below), base_(below == nullptr ? 0 : below->sealed_at_) {}

  // Whether the offset is of what lies in this store, above one that is sealed, and where it is in its block.
  bool is_above(std::uint64_t offset) const { return below_ != nullptr && offset >= base_; }
  std::uint64_t offset_above(std::uint64_t offset) const { return offset - base_; }
  // Where all that is packed, here and below, ends.
  std::uint64_t end() const { return base_ + block_.bytes().size(); }

  // Where the tensor's own bytes lie.
  std::uint64_t raw(const graph::SharedTensor& tensor);
  // Where the tensor, seen as `source` and (f32 only) multiplied by `factor`, lies in the layout `target`.
  std::uint64_t packed(const graph::SharedTensor& tensor, const Desc& source, const Desc& target,
                       float factor = 1);
  // The layout in which this tensor was packed first, for the same dimensions and type; nullptr: not yet.
  const Desc* known_layout(const graph::SharedTensor& tensor, const Dims& dims, DnnlType type) const;

  // A tensor made of others, for kernels that want weights in an order that no layout describes: the same
  // object for the same `what` and `from`, made once.
  graph::SharedTensor derive(const std::string& what, const std::vector<graph::SharedTensor>& from,
                             const std::function<graph::Tensor()>& make);

  // Whether one of the tensor's elements is NaN; looked up once.
  bool has_nan(const graph::SharedTensor& tensor);

  // The tensors that are kept to be looked up, and what was derived of them; the same one may come twice.
  void visit(const std::function<void(const graph::SharedTensor&)>& visit) const;

  // What is packed so far; it moves as more is.
  std::span<const std::byte> bytes() const { return block_.bytes(); }

  // Ends packing: gives up the block, forgets the tensors.
  HostBlock take();
  // Ends packing: gives up the block, and stays to be looked into, from any thread.
  HostBlock seal();

 private:
  struct Copy {
    Desc source, target;  // both zero: raw
    float factor = 1;
    std::uint64_t offset = 0;
  };
  struct Entry {
    graph::SharedTensor keep_alive;  // the address is the key
    std::vector<Copy> copies;
  };
  // The offset of a copy for which `is_it` holds, here or below.
  template <typename IsIt>
  std::optional<std::uint64_t> find(const graph::SharedTensor& tensor, const IsIt& is_it) const;
  // Remembers a copy at an offset in this block; gives its offset among all.
  std::uint64_t keep(const graph::SharedTensor& tensor, const Copy& copy);

  dnnl::engine engine_;
  const WeightStore* below_;
  std::uint64_t base_;
  std::uint64_t sealed_at_ = 0;  // the size of the block that was given up
  std::unordered_map<const graph::Tensor*, Entry> entries_;
  std::unordered_map<graph::SharedTensor, bool> has_nan_;
  std::map<std::pair<std::string, std::vector<graph::SharedTensor>>, graph::SharedTensor> derived_;
  HostBlock block_;
};

}  // namespace carillon::engine::cpu
