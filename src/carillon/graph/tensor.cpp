#include "carillon/graph/tensor.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>

#include <sys/mman.h>
#include <unistd.h>

#include "carillon/base/assert.h"

namespace carillon::graph {
namespace {

// To begin at a page of its own, and to end with one, costs a tensor up to two of them.
constexpr std::size_t large = 64U << 10;
std::uint64_t system_page() {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

struct TypeNames {
  DataType type;
  std::size_t size;
  std::string_view kserve;
  std::string_view onnx;
};

// In the order of the enum.
constexpr std::array<TypeNames, 14> type_names{{
    {DataType::f32, 4, "FP32", "float"},
    {DataType::f16, 2, "FP16", "float16"},
    {DataType::bf16, 2, "BF16", "bfloat16"},
    {DataType::f64, 8, "FP64", "double"},
    {DataType::i8, 1, "INT8", "int8"},
    {DataType::i16, 2, "INT16", "int16"},
    {DataType::i32, 4, "INT32", "int32"},
    {DataType::i64, 8, "INT64", "int64"},
    {DataType::u8, 1, "UINT8", "uint8"},
    {DataType::u16, 2, "UINT16", "uint16"},
    {DataType::u32, 4, "UINT32", "uint32"},
    {DataType::u64, 8, "UINT64", "uint64"},
    {DataType::boolean, 1, "BOOL", "bool"},
    {DataType::string, 8, "BYTES", "string"},
}};

const TypeNames& names(DataType type) {
  const auto index = static_cast<std::size_t>(type);
  CARILLON_ASSERT(index < type_names.size());
  return type_names[index];
}

constexpr std::int64_t max_elements = std::int64_t{1} << 40;
constexpr std::size_t alignment = 64;

}  // namespace

std::size_t size_of(DataType type) {
  return names(type).size;
}

std::string_view kserve_name(DataType type) {
  return names(type).kserve;
}

std::string_view onnx_name(DataType type) {
  return names(type).onnx;
}

std::string to_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

Result<std::int64_t> element_count(std::span<const std::int64_t> shape) {
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return invalid("shape " + to_text(shape) + " has a negative extent");
    empty = empty || extent == 0;
  }
  // An extent of zero must not hide an absurd one beside it: strides are computed from them too.
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent == 0) continue;
    if (extent > max_elements / count)
      return invalid("shape " + to_text(shape) + " has more than 2^40 elements");
    count *= extent;
  }
  return empty ? 0 : count;
}

std::int64_t TensorType::elements() const {
  const auto count = element_count(shape);
  CARILLON_ASSERT(count.has_value());
  return *count;
}

Bytes TensorType::bytes() const {
  return Bytes{static_cast<std::uint64_t>(elements()) * size_of(type)};
}

void FreeTensor::operator()(std::byte* data) const {
  // The allocator gets back memory such as it gave.
  if (moved && ::mmap(data, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
                   MAP_FAILED)
    return;
  std::free(data);
}

Tensor::Tensor(TensorType type) : type_(std::move(type)) {
  size_ = type_.bytes().count;
  const bool pages = size_ >= large;
  const std::size_t unit = pages ? system_page() : alignment;
  const std::size_t room = round_up(std::max<std::size_t>(size_, 1), unit);
  data_ = {static_cast<std::byte*>(std::aligned_alloc(unit, room)), FreeTensor{.pages = pages ? room : 0}};
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_.get(), 0, room);
}

Result<> Tensor::write_to(int file, std::uint64_t offset) const {
  CARILLON_ASSERT(pages() > 0 && offset % system_page() == 0);
  for (std::uint64_t done = 0; done < pages();) {
    const ssize_t put = ::pwrite(file, data_.get() + done, pages() - done, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return fail(ErrorCode::unavailable, std::generic_category().message(put < 0 ? errno : EIO));
    done += static_cast<std::uint64_t>(put);
  }
  return {};
}

Result<> Tensor::move_to(int file, std::uint64_t offset) const {
  // Elsewhere first: a mapping that fails in the place of another leaves a hole there.
  void* const at = ::mmap(nullptr, pages(), PROT_READ, MAP_PRIVATE, file, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return fail(ErrorCode::unavailable, std::generic_category().message(errno));
  // The mapping replaces the pages at once. A thread that reads meanwhile sees the old or the new ones, which
  // hold the same bytes.
  CARILLON_ASSERT(::mremap(at, pages(), pages(), MREMAP_MAYMOVE | MREMAP_FIXED, data_.get()) != MAP_FAILED);
  std::atomic_ref(data_.get_deleter().moved).store(true);
  return {};
}

void Tensor::let_go() const {
  if (std::atomic_ref(data_.get_deleter().moved).load()) ::madvise(data_.get(), pages(), MADV_DONTNEED);
}

Tensor Tensor::of_i64(Shape shape, std::span<const std::int64_t> values) {
  Tensor tensor(TensorType{DataType::i64, std::move(shape)});
  CARILLON_ASSERT(tensor.as<std::int64_t>().size() == values.size());
  std::copy(values.begin(), values.end(), tensor.as<std::int64_t>().begin());
  return tensor;
}

Tensor Tensor::of_f32(Shape shape, std::span<const float> values) {
  Tensor tensor(TensorType{DataType::f32, std::move(shape)});
  CARILLON_ASSERT(tensor.as<float>().size() == values.size());
  std::copy(values.begin(), values.end(), tensor.as<float>().begin());
  return tensor;
}

}  // namespace carillon::graph
