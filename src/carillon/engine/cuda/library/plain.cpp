#include "carillon/engine/cuda/library/plain.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "carillon/engine/cuda/driver/context.h"
#include "carillon/engine/cuda/kernels/chain.h"
#include "carillon/engine/cuda/kernels/kernels.h"
#include "carillon/engine/cuda/kernels/number.h"

namespace carillon::engine::cuda {

namespace {

constexpr const char* convolution_symbol = "plain_convolution";
constexpr const char* product_symbol = "plain_product";

// What the emulated kernels are launched with.
struct ConvolutionWork {
  Convolution spec;
  CallPlaces at;
};
struct ProductWork {
  Product spec;
  CallPlaces at;
};

template <typename T>
const T* in(Address at) {
  return reinterpret_cast<const T*>(at);
}

float tanh_gelu(float x) {
  return 0.5F * x * (1 + std::tanh(0.7978845608028654F * (x + 0.044715F * x * x * x)));
}
float finish(Epilogue epilogue, float x) {
  switch (epilogue) {
    case Epilogue::none:
      return x;
    case Epilogue::relu:
      return x > 0 || std::isnan(x) ? x : 0;
    case Epilogue::gelu_erf:
      return 0.5F * x * (1 + std::erf(x * 0.7071067811865476F));
    case Epilogue::gelu_tanh:
      return tanh_gelu(x);
  }
  return x;
}

template <typename T>
void convolve(const Convolution& c, const CallPlaces& at) {
  using kernels::from_float, kernels::to_float;
  const T *x = in<T>(at.a), *w = in<T>(at.b), *bias = in<T>(at.bias), *residual = in<T>(at.residual);
  T* const y = reinterpret_cast<T*>(at.out);
  const std::int64_t inner = c.channels / c.groups, outer = c.filters / c.groups;
  // Weights as [tap][channel][filter of the group], so that the innermost loop is over filters.
  std::vector<float> turned(static_cast<std::size_t>(inner * c.filters * c.kernel_h * c.kernel_w));
  const std::int64_t taps = std::int64_t{c.kernel_h} * c.kernel_w;
  for (std::int64_t f = 0; f < c.filters; ++f)
    for (std::int64_t t = 0; t < taps; ++t)
      for (std::int64_t i = 0; i < inner; ++i)
        turned[static_cast<std::size_t>((((f / outer) * taps + t) * inner + i) * outer + f % outer)] =
            to_float(w[(f * taps + t) * inner + i]);
  std::vector<float> sums(static_cast<std::size_t>(outer));
  for (std::int64_t n = 0; n < c.batch; ++n)
    for (std::int64_t oh = 0; oh < c.out_height; ++oh)
      for (std::int64_t ow = 0; ow < c.out_width; ++ow)
        for (std::int64_t g = 0; g < c.groups; ++g) {
          std::ranges::fill(sums, 0.0F);
          for (std::int64_t t = 0; t < taps; ++t) {
            const std::int64_t h = oh * c.stride_h - c.pad_top + t / c.kernel_w * c.dilation_h;
            const std::int64_t v = ow * c.stride_w - c.pad_left + t % c.kernel_w * c.dilation_w;
            if (h < 0 || h >= c.height || v < 0 || v >= c.width) continue;
            const T* const pixel = x + ((n * c.height + h) * c.width + v) * c.in_pitch + g * inner;
            const float* line = turned.data() + (g * taps + t) * inner * outer;
            for (std::int64_t i = 0; i < inner; ++i, line += outer) {
              const float left = to_float(pixel[i]);
              for (std::int64_t o = 0; o < outer; ++o) sums[static_cast<std::size_t>(o)] += left * line[o];
            }
          }
          const std::int64_t pixel = (n * c.out_height + oh) * c.out_width + ow;
          for (std::int64_t o = 0; o < outer; ++o) {
            const std::int64_t f = g * outer + o;
            float sum = sums[static_cast<std::size_t>(o)];
            if (c.residual_pitch != 0) sum += to_float(residual[pixel * c.residual_pitch + f]);
            if (c.bias) sum += to_float(bias[f]);
            y[pixel * c.out_pitch + f] = from_float<T>(c.relu ? finish(Epilogue::relu, sum) : sum);
          }
        }
}

template <typename T>
void multiply(const Product& p, const CallPlaces& at) {
  using kernels::from_float, kernels::to_float;
  const T *a = in<T>(at.a), *b = in<T>(at.b), *bias = in<T>(at.bias), *residual = in<T>(at.residual);
  T* const out = reinterpret_cast<T*>(at.out);
  const std::int64_t pitch = p.out_pitch == 0 ? p.columns : p.out_pitch;
  std::vector<float> right(static_cast<std::size_t>(p.depth * p.columns)),
      sums(static_cast<std::size_t>(p.columns));
  for (std::int64_t i = 0; i < p.batch; ++i) {
    if (i == 0 || p.b.step != 0)
      for (std::int64_t k = 0; k < p.depth; ++k)
        for (std::int64_t n = 0; n < p.columns; ++n)
          right[static_cast<std::size_t>(k * p.columns + n)] =
              to_float(b[i * p.b.step + (p.b.turned ? n * p.b.pitch + k : k * p.b.pitch + n)]);
    for (std::int64_t m = 0; m < p.rows; ++m) {
      std::ranges::fill(sums, 0.0F);
      for (std::int64_t k = 0; k < p.depth; ++k) {
        const float left = to_float(a[i * p.a.step + (p.a.turned ? k * p.a.pitch + m : m * p.a.pitch + k)]);
        const float* const line = right.data() + k * p.columns;
        for (std::int64_t n = 0; n < p.columns; ++n) sums[static_cast<std::size_t>(n)] += left * line[n];
      }
      for (std::int64_t n = 0; n < p.columns; ++n) {
        float sum = p.scale * sums[static_cast<std::size_t>(n)];
        if (p.residual_pitch != 0) sum += to_float(residual[m * p.residual_pitch + n]);
        if (p.bias) sum += to_float(bias[n]);
        out[(i * p.rows + m) * pitch + n] = from_float<T>(finish(p.epilogue, sum));
      }
    }
  }
}

template <typename Work>
void dispatch(Number number, const Work& work) {
  if (number == Number::f16) return work(kernels::Half{});
  if (number == Number::bf16) return work(kernels::Bfloat{});
  work(0.0F);
}

// `count` runs of `length` elements, `pitch` apart; one span where there is nothing between them.
void spans(std::vector<Span>& to, Address at, std::int64_t count, std::int64_t pitch, std::int64_t length,
           std::uint64_t element) {
  if (at == 0 || count <= 0) return;
  if (pitch == length || count == 1) {
    to.push_back({at, static_cast<std::uint64_t>(count * length) * element});
    return;
  }
  for (std::int64_t i = 0; i < count; ++i)
    to.push_back(
        {at + static_cast<std::uint64_t>(i * pitch) * element, static_cast<std::uint64_t>(length) * element});
}

void accesses(const Convolution& c, const CallPlaces& at, std::vector<Span>& reads,
              std::vector<Span>& writes) {
  const std::uint64_t size = size_of(c.number);
  const std::int64_t pixels = std::int64_t{c.batch} * c.height * c.width;
  const std::int64_t results = std::int64_t{c.batch} * c.out_height * c.out_width;
  spans(reads, at.a, pixels, c.in_pitch, c.channels, size);
  const std::int64_t weights = std::int64_t{c.filters} * c.kernel_h * c.kernel_w * (c.channels / c.groups);
  spans(reads, at.b, 1, weights, weights, size);
  spans(reads, at.bias, 1, c.filters, c.filters, size);
  spans(reads, at.residual, results, c.residual_pitch, c.filters, size);
  spans(writes, at.out, results, c.out_pitch, c.filters, size);
}

void accesses(const Product& p, const CallPlaces& at, std::vector<Span>& reads, std::vector<Span>& writes) {
  const std::uint64_t size = size_of(p.number);
  const auto matrix = [&](Address first, const Product::Matrix& m, std::int64_t rows, std::int64_t columns) {
    for (std::int64_t i = 0; i < (m.step == 0 ? 1 : p.batch); ++i)
      spans(reads, first + static_cast<std::uint64_t>(i * m.step) * size, m.turned ? columns : rows, m.pitch,
            m.turned ? rows : columns, size);
  };
  matrix(at.a, p.a, p.rows, p.depth);
  matrix(at.b, p.b, p.depth, p.columns);
  spans(reads, at.bias, 1, p.columns, p.columns, size);
  const std::int64_t rows = p.batch * p.rows;
  spans(reads, at.residual, rows, p.residual_pitch, p.columns, size);
  spans(writes, at.out, rows, p.out_pitch == 0 ? p.columns : p.out_pitch, p.columns, size);
}

template <typename Work, typename Run>
EmulatedKernel emulated(const Run& run) {
  const auto work_of = [](const EmulatedKernel::Launch& launch) -> const Work& {
    return *static_cast<const Work*>(launch.parameters[0]);
  };
  return {.parameter_bytes = {sizeof(Work)},
          .run = [=](const EmulatedKernel::Launch& launch) { run(work_of(launch)); },
          .accesses =
              [=](const EmulatedKernel::Launch& launch, std::vector<Span>& reads, std::vector<Span>& writes) {
                const Work& work = work_of(launch);
                accesses(work.spec, work.at, reads, writes);
              },
          .duration = {}};
}

// A module that is unloaded with the last that needs it.
struct Loaded {
  std::shared_ptr<const Driver> driver;
  Module module = nullptr;
  Function convolution = nullptr, product = nullptr;

  explicit Loaded(std::shared_ptr<const Driver> of) : driver(std::move(of)) {}
  ~Loaded() {
    if (module != nullptr) (void)driver->module_unload(module);
  }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
};

template <typename Work, typename Spec>
class PlainCall final : public Call {
 public:
  PlainCall(std::shared_ptr<const Loaded> from, Function function, const Spec& spec)
      : from_(std::move(from)), function_(function), spec_(spec), name_(to_text(spec) + " by plain loops") {}
  std::string_view name() const override { return name_; }
  std::uint64_t workspace() const override { return 0; }
  CallWork work() const override { return work_of(spec_); }
  Result<> enqueue(Stream stream, const CallPlaces& places) const override {
    Work work{spec_, places};
    void* parameters[] = {&work};
    const Status status = from_->driver->launch(function_, 1, 1, 1, 1, 1, 1, 0, stream,
                                                static_cast<void**>(parameters), nullptr);
    if (status == done) return {};
    return fail(is_lost(status) ? ErrorCode::unavailable : ErrorCode::internal,
                name_ + ": " + cuda::name_of(*from_->driver, status));
  }

 private:
  std::shared_ptr<const Loaded> from_;
  Function function_;
  Spec spec_;
  std::string name_;
};

class PlainLibrary final : public MathLibrary {
 public:
  explicit PlainLibrary(std::shared_ptr<const Loaded> loaded) : loaded_(std::move(loaded)) {}
  Result<std::shared_ptr<const Call>> convolution(const Convolution& spec) override {
    return std::make_shared<PlainCall<ConvolutionWork, Convolution>>(loaded_, loaded_->convolution, spec);
  }
  Result<std::shared_ptr<const Call>> product(const Product& spec) override {
    return std::make_shared<PlainCall<ProductWork, Product>>(loaded_, loaded_->product, spec);
  }

 private:
  std::shared_ptr<const Loaded> loaded_;
};

}  // namespace

void know_kernels(Emulated& device) {
  const auto know = [&](const kernels::Kernel& each) {
    device.know(std::string(each.symbol),
                {.parameter_bytes = {each.parameter_bytes},
                 .run = [&each](const EmulatedKernel::Launch& launch) { each.run(launch.parameters[0]); },
                 .accesses =
                     [&each](const EmulatedKernel::Launch& launch, std::vector<Span>& reads,
                             std::vector<Span>& writes) {
                       std::vector<kernels::Bytes> read, written;
                       each.accesses(launch.parameters[0], read, written);
                       for (const auto& bytes : read)
                         reads.push_back({reinterpret_cast<Address>(bytes.at), bytes.count});
                       for (const auto& bytes : written)
                         writes.push_back({reinterpret_cast<Address>(bytes.at), bytes.count});
                     },
                 .duration = each.symbol == "carillon_mark"
                                 ? [](const EmulatedKernel::Launch&) { return Duration{1000}; }
                                 : std::function<Duration(const EmulatedKernel::Launch&)>()});
  };
  for (const kernels::Kernel& each : kernels::all()) know(each);
  know(kernels::chain_interpreter());
  device.know(convolution_symbol, emulated<ConvolutionWork>([](const ConvolutionWork& work) {
                dispatch(work.spec.number, [&](auto t) { convolve<decltype(t)>(work.spec, work.at); });
              }));
  device.know(product_symbol, emulated<ProductWork>([](const ProductWork& work) {
                dispatch(work.spec.number, [&](auto t) { multiply<decltype(t)>(work.spec, work.at); });
              }));
}

EmulatedHost::EmulatedHost(EmulatedOptions options) : device(std::move(options)), driver(Emulated::table()) {
  know_kernels(device);
  (void)driver.init(0);
}

Result<std::unique_ptr<MathLibrary>> make_plain_library(std::shared_ptr<const Driver> owned,
                                                        DeviceNumber device) {
  const Driver& driver = *owned;
  const InPrimaryContext current(driver, device);
  auto loaded = std::make_shared<Loaded>(std::move(owned));
  for (const Status status :
       {current.status(), driver.module_load(&loaded->module, "emulated"),
        driver.module_function(&loaded->convolution, loaded->module, convolution_symbol),
        driver.module_function(&loaded->product, loaded->module, product_symbol)})
    if (status != done)
      return fail(ErrorCode::unavailable, "the emulated library: " + cuda::name_of(driver, status));
  return std::make_unique<PlainLibrary>(std::move(loaded));
}

}  // namespace carillon::engine::cuda
