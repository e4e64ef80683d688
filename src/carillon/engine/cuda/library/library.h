#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"

// Convolutions and products of matrices, which libraries compute better than kernels of our own: cuDNN and
// cuBLASLt on a GPU, plain loops on the emulated device (plain.h).
namespace carillon::engine::cuda {

// What elements are stored as; tf32 is f32 whose products may be rounded to 10 bits. Sums are f32 always.
enum class Number : std::uint8_t { f32, tf32, f16, bf16 };
constexpr std::uint64_t size_of(Number number) {
  return number == Number::f16 || number == Number::bf16 ? 2 : 4;
}
std::string_view name_of(Number number);
std::optional<Number> number_named(std::string_view name);

// y = relu?(x * w + residual? + bias?), rounded once. Images are NHWC, with pitches: elements from a pixel to
// the next, at least its channels, rows and images without gaps between; weights are
// [filters][kernel_h][kernel_w][channels / groups], without gaps; `bias` is [filters].
struct Convolution {
  Number number = Number::f32;
  std::int32_t batch = 1, channels = 1, height = 1, width = 1;
  std::int32_t filters = 1, kernel_h = 1, kernel_w = 1, out_height = 1, out_width = 1;
  std::int32_t stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1, groups = 1;
  std::int32_t pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;
  std::int64_t in_pitch = 1, out_pitch = 1, residual_pitch = 0;  // residual: 0 where there is none
  bool bias = false, relu = false;
  std::int32_t alignment = 16;  // bytes: of the addresses of x, y and residual; a power of two, at most 16
};

enum class Epilogue : std::uint8_t { none, relu, gelu_erf, gelu_tanh };

// out = epilogue(scale * a b + residual? + bias?) of `batch` pairs of matrices: a is rows x depth, b depth x
// columns, out and residual rows x columns; `bias` is [columns].
struct Product {
  // How an operand lies: element (r, c) is at r * pitch + c, or where it is turned at c * pitch + r.
  struct Matrix {
    bool turned = false;
    std::int64_t pitch = 1;
    std::int64_t step = 0;  // from one of the batch to the next; 0: all are the same
  };
  Number number = Number::f32;
  std::int64_t batch = 1, rows = 1, columns = 1, depth = 1;
  Matrix a, b;
  float scale = 1;
  // From a row to the next; of one pair alone. out: 0, without gaps; residual: 0, there is none.
  std::int64_t out_pitch = 0, residual_pitch = 0;
  bool bias = false;
  Epilogue epilogue = Epilogue::none;
  std::int32_t alignment = 16;  // bytes: of each matrix's address; a power of two, at most 16
};

// Of a convolution x, w; of a product a, b. 0 where there is none.
struct CallPlaces {
  Address a = 0, b = 0, out = 0, bias = 0, residual = 0, workspace = 0;
  // So many has the part of the device that the stream is in; 0: all.
  unsigned processors = 0;
};

// A convolution of one pixel by one as the product of its pixels and its turned weights; nothing for others.
std::optional<Product> as_product(const Convolution& spec);

// The bytes at each of a call's places.
struct CallBytes {
  std::uint64_t a = 0, b = 0, out = 0, bias = 0, residual = 0;
};
CallBytes bytes_of(const Convolution& spec);
CallBytes bytes_of(const Product& spec);

// What a convolution or product has to do: "conv f16" or "product f16", operations (a product and a sum are
// two), and bytes that are read and written.
struct CallWork {
  std::string kernel;
  double operations = 0, bytes = 0;
};
CallWork work_of(const Convolution& spec);
CallWork work_of(const Product& spec);

// One of them made ready. Immutable; from any thread.
class Call {
 public:
  virtual ~Call() = default;
  // What is computed, " by " and what computes it; for people, profiles and tables.
  virtual std::string_view name() const = 0;
  virtual std::uint64_t workspace() const = 0;  // bytes; aligned to 256
  virtual CallWork work() const { return {}; }  // where it is known
  // Makes it ready for streams of parts of so many processors, too: libraries have kernels with as many
  // blocks as they take a device to have processors. In a part of another number it runs as for the whole
  // device. Takes milliseconds. From any thread.
  virtual void size_for(unsigned /*processors*/) const {}
  // Into a stream, which may be one that is captured. Allocates nothing and waits for nothing.
  virtual Result<> enqueue(Stream stream, const CallPlaces& places) const = 0;
};

// Makes calls ready: at load, from one thread, for the context that is current there.
class MathLibrary {
 public:
  virtual ~MathLibrary() = default;
  // unsupported: it has none for this, and why.
  virtual Result<std::shared_ptr<const Call>> convolution(const Convolution& spec) = 0;
  virtual Result<std::shared_ptr<const Call>> product(const Product& spec) = 0;
  // Whether it computes this with its bias, residual and epilogue; else it is asked for less.
  virtual bool fuses(const Convolution& /*spec*/) { return true; }
  virtual bool fuses(const Product& /*spec*/) { return true; }
  // The number of channels that the images of this convolution should have: their own, or more, where the
  // added channels are zeros. Asked where the images are moved before the convolution in any case.
  virtual std::int32_t channels_for(const Convolution& spec) { return spec.channels; }
  // Its calls, those to come too, are made ready for parts of so many processors (Call::size_for).
  virtual void size_for(unsigned /*processors*/) {}
  // A model's plans are made: what was found out about its calls can be put away.
  virtual void compiled() {}
};

// "conv f16 8x64x56x56 3x3 -> 64 relu": for errors and tables.
std::string to_text(const Convolution& spec);
std::string to_text(const Product& spec);
// The same with all that makes a difference: two specs are alike if these are.
std::string identity(const Convolution& spec);
std::string identity(const Product& spec);

}  // namespace carillon::engine::cuda
