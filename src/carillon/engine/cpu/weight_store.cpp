#include "carillon/engine/cpu/weight_store.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <sys/mman.h>

#include "carillon/base/assert.h"
#include "carillon/base/bytes.h"
#include "carillon/engine/cpu/nan.h"

namespace carillon::engine::cpu {

HostBlock::HostBlock(HostBlock&& other) noexcept {
  *this = std::move(other);
}

HostBlock& HostBlock::operator=(HostBlock&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

HostBlock::~HostBlock() {
  if (data_ != nullptr) munmap(data_, capacity_);
}

std::uint64_t HostBlock::append(std::uint64_t size) {
  const std::uint64_t offset = round_up(size_, 64);
  const std::uint64_t end = offset + size;
  if (end > capacity_) {
    const std::uint64_t wanted = round_up(std::max(end, capacity_ + capacity_ / 2), mib(1).count);
    void* const moved =
        data_ == nullptr ? mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                         : mremap(data_, capacity_, wanted, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(moved);
    capacity_ = wanted;
  }
  size_ = end;
  return offset;
}

void HostBlock::shrink_to_fit() {
  const std::uint64_t wanted = round_up(size_, 4096);
  if (data_ == nullptr || wanted == 0 || wanted >= capacity_) return;
  void* const moved = mremap(data_, capacity_, wanted, MREMAP_MAYMOVE);
  if (moved == MAP_FAILED) return;  // the larger block serves as well
  data_ = static_cast<std::byte*>(moved);
  capacity_ = wanted;
}

template <typename IsIt>
std::optional<std::uint64_t> WeightStore::find(const graph::SharedTensor& tensor, const IsIt& is_it) const {
  if (below_ != nullptr)
    if (const auto found = below_->find(tensor, is_it)) return found;
  const auto entry = entries_.find(tensor.get());
  if (entry == entries_.end()) return std::nullopt;
  const auto copy = std::ranges::find_if(entry->second.copies, is_it);
  return copy == entry->second.copies.end() ? std::nullopt : std::optional(copy->offset);
}

std::uint64_t WeightStore::keep(const graph::SharedTensor& tensor, const Copy& copy) {
  Entry& entry = entries_[tensor.get()];
  entry.keep_alive = tensor;
  entry.copies.push_back(copy);
  entry.copies.back().offset += base_;
  return entry.copies.back().offset;
}

std::uint64_t WeightStore::raw(const graph::SharedTensor& tensor) {
  if (const auto found = find(tensor, [](const Copy& copy) { return copy.target.is_zero(); })) return *found;
  const auto bytes = tensor->bytes();
  // A place of its own for a tensor without elements, too: kernels are never given an address of nothing.
  const std::uint64_t offset = block_.append(std::max<std::size_t>(1, bytes.size()));
  if (!bytes.empty()) std::memcpy(block_.bytes().data() + offset, bytes.data(), bytes.size());
  return keep(tensor, {.source = {}, .target = {}, .factor = 1, .offset = offset});
}

std::uint64_t WeightStore::packed(const graph::SharedTensor& tensor, const Desc& source, const Desc& target,
                                  float factor) {
  const bool real = tensor->type().type == graph::DataType::f32;
  CARILLON_ASSERT(real || factor == 1);
  CARILLON_ASSERT(source.get_size() <= tensor->bytes().size());
  // Bytes may want sums beside them, of which their strides say nothing.
  if (factor == 1 && source.get_data_type() == target.get_data_type() && is_row_major(source) &&
      is_row_major(target) && (real || target == row_major(target.get_dims(), target.get_data_type())))
    return raw(tensor);
  const auto found = find(tensor, [&](const Copy& copy) {
    return !copy.target.is_zero() && copy.source == source && copy.target == target && copy.factor == factor;
  });
  if (found) return *found;

  const std::uint64_t offset = block_.append(target.get_size());
  const void* values = tensor->bytes().data();
  std::vector<float> scaled;
  if (factor != 1) {
    scaled.assign(tensor->as<float>().begin(), tensor->as<float>().end());
    for (float& value : scaled) value *= factor;
    values = scaled.data();
  }
  // oneDNN takes the source of a reorder as a pointer to mutable bytes, and only reads it.
  dnnl::memory from(source, engine_, const_cast<void*>(values));
  dnnl::memory to(target, engine_, block_.bytes().data() + offset);
  dnnl::stream stream(engine_);
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
  return keep(tensor, {.source = source, .target = target, .factor = factor, .offset = offset});
}

const Desc* WeightStore::known_layout(const graph::SharedTensor& tensor, const Dims& dims,
                                      DnnlType type) const {
  if (below_ != nullptr)
    if (const Desc* known = below_->known_layout(tensor, dims, type)) return known;
  const auto entry = entries_.find(tensor.get());
  if (entry == entries_.end()) return nullptr;
  for (const Copy& copy : entry->second.copies)
    if (!copy.target.is_zero() && copy.target.get_dims() == dims && copy.target.get_data_type() == type)
      return &copy.target;
  return nullptr;
}

graph::SharedTensor WeightStore::derive(const std::string& what, const std::vector<graph::SharedTensor>& from,
                                        const std::function<graph::Tensor()>& make) {
  const std::pair key{what, from};
  if (below_ != nullptr)
    if (const auto known = below_->derived_.find(key); known != below_->derived_.end()) return known->second;
  graph::SharedTensor& tensor = derived_[key];
  if (tensor == nullptr) tensor = std::make_shared<const graph::Tensor>(make());
  return tensor;
}

bool WeightStore::has_nan(const graph::SharedTensor& tensor) {
  if (below_ != nullptr)
    if (const auto known = below_->has_nan_.find(tensor); known != below_->has_nan_.end())
      return known->second;
  const auto [entry, fresh] = has_nan_.try_emplace(tensor, false);
  if (fresh) entry->second = cpu::has_nan(*tensor);
  return entry->second;
}

void WeightStore::visit(const std::function<void(const graph::SharedTensor&)>& visit) const {
  for (const auto& [address, entry] : entries_) visit(entry.keep_alive);
  for (const auto& [from, tensor] : derived_) visit(tensor);
}

HostBlock WeightStore::take() {
  entries_.clear();
  has_nan_.clear();
  derived_.clear();
  return seal();
}

HostBlock WeightStore::seal() {
  sealed_at_ = round_up(base_ + block_.bytes().size(), 64);
  block_.shrink_to_fit();
  return std::move(block_);
}

}  // namespace carillon::engine::cpu
