#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"

namespace carillon::graph {

enum class DataType : std::uint8_t {
  f32,
  f16,
  bf16,
  f64,
  i8,
  i16,
  i32,
  i64,
  u8,
  u16,
  u32,
  u64,
  boolean,
  string
};

// Bytes of one element; of a string: of its handle (known_texts.h).
std::size_t size_of(DataType type);
// KServe v2 name ("FP32", "INT64", "BOOL", "BYTES", ...).
std::string_view kserve_name(DataType type);
// Name as ONNX prints it ("float", "int64", ...), for error texts.
std::string_view onnx_name(DataType type);

// Extents of a dense row-major tensor, outermost first; empty for a scalar; each >= 0.
using Shape = std::vector<std::int64_t>;

// "[1,3,224,224]"
std::string to_text(std::span<const std::int64_t> shape);

// Product of the extents; an error where it does not fit 2^40 or an extent is negative (outside input is
// never trusted with a size).
Result<std::int64_t> element_count(std::span<const std::int64_t> shape);

struct TensorType {
  DataType type = DataType::f32;
  Shape shape;

  std::int64_t elements() const;  // requires a shape that passed element_count()
  Bytes bytes() const;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

// Gives a tensor's memory back.
struct FreeTensor {
  std::uint64_t pages = 0;     // bytes of whole pages; 0: of small ones
  mutable bool moved = false;  // to a file
  void operator()(std::byte* data) const;
};

// A constant: dense, row-major, 64-byte aligned, immutable once shared. Tensors are shared by pointer: the
// same weight used at several batch sizes is one object. A large one has whole pages of the system's to
// itself, and can give them to a file.
class Tensor {
 public:
  explicit Tensor(TensorType type);  // zero-filled
  static Tensor of_i64(Shape shape, std::span<const std::int64_t> values);
  static Tensor of_f32(Shape shape, std::span<const float> values);

  const TensorType& type() const { return type_; }
  std::span<std::byte> bytes() { return {data_.get(), size_}; }
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_.get()), size_ / sizeof(T)};
  }
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_.get()), size_ / sizeof(T)};
  }

  // What the system must give for it, where it is large: a multiple of the system's page. 0: it is not.
  std::uint64_t pages() const { return data_.get_deleter().pages; }
  // Of a large one. write_to() copies it into `file` at `offset`, a multiple of the system's page; it takes
  // pages() bytes there. Afterwards move_to() maps these bytes, for reading alone, in the place of the
  // memory. The address stays, and the descriptor may be closed then. Other threads may read the tensor
  // meanwhile. Errors (unavailable): the system's; the tensor stays as it was.
  Result<> write_to(int file, std::uint64_t offset) const;
  Result<> move_to(int file, std::uint64_t offset) const;
  // Of one that was moved: it needs no memory until it is read again. From any thread.
  void let_go() const;

 private:
  TensorType type_;
  std::size_t size_ = 0;
  std::unique_ptr<std::byte, FreeTensor> data_;
};

using SharedTensor = std::shared_ptr<const Tensor>;

}  // namespace carillon::graph
