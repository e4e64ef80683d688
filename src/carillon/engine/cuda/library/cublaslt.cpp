#include "carillon/engine/cuda/library/cublaslt.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "carillon/base/symbols.h"

namespace carillon::engine::cuda {

namespace blas {

Result<Api> find_api(const Library& library) {
  Api api;
  Symbols find([&](const char* name) { return library.symbol(name); });
#define CARILLON_CUBLASLT_FIND(member, symbol, result, arguments) find(#symbol, api.member);
  CARILLON_CUBLASLT_FUNCTIONS(CARILLON_CUBLASLT_FIND)
#undef CARILLON_CUBLASLT_FIND
  if (find.missing().empty()) return api;
  return fail(ErrorCode::unavailable,
              library.path() + " is not cuBLASLt as CUDA 13 has it: it has no " + find.missing());
}

}  // namespace blas

namespace {

constexpr std::uint64_t workspace_limit = std::uint64_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr int ways_asked_for = 16;

struct Blas {
  blas::Api api;
  blas::Handle handle = nullptr;
  explicit Blas(const blas::Api& of) : api(of) {}
  ~Blas() {
    if (handle != nullptr) (void)api.destroy(handle);
  }
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
};

int type_of(Number number) {
  return number == Number::f16 ? blas::type_f16 : number == Number::bf16 ? blas::type_bf16 : blas::type_f32;
}

// A product as cuBLASLt, whose matrices lie by columns, sees it: out' = b' a', each of ours read as its
// turned.
class Shaped {
 public:
  // `processors`: as CallPlaces has them.
  Shaped(std::shared_ptr<const Blas> blas, const Product& p, unsigned processors) : blas_(std::move(blas)) {
    const blas::Api& api = blas_->api;
    keep(api.operation_create(&operation_, p.number == Number::tf32 ? blas::compute_tf32 : blas::compute_f32,
                              blas::type_f32));
    const std::int32_t turned = blas::turned;
    if (p.b.turned) operation(blas::operation_turns_a, turned);
    if (p.a.turned) operation(blas::operation_turns_b, turned);
    std::uint32_t epilogue = p.epilogue == Epilogue::relu        ? blas::epilogue_relu
                             : p.epilogue == Epilogue::gelu_tanh ? blas::epilogue_gelu
                                                                 : 0;
    if (p.bias) epilogue |= blas::epilogue_bias;
    if (epilogue != 0) operation(blas::operation_epilogue, epilogue);
    if (processors != 0) operation(blas::operation_processors, static_cast<std::int32_t>(processors));
    const void* const somewhere =
        reinterpret_cast<void*>(std::uintptr_t{256});  // engines depend on how it is aligned
    if (p.bias) operation(blas::operation_bias, somewhere);
    layout(a_, p, p.b, p.b.turned ? p.depth : p.columns, p.b.turned ? p.columns : p.depth);
    layout(b_, p, p.a, p.a.turned ? p.rows : p.depth, p.a.turned ? p.depth : p.rows);
    layout(out_, p, {.pitch = p.out_pitch == 0 ? p.columns : p.out_pitch, .step = p.rows * p.columns},
           p.columns, p.rows);
    if (p.residual_pitch != 0) layout(residual_, p, {.pitch = p.residual_pitch}, p.columns, p.rows);
  }
  ~Shaped() {
    const blas::Api& api = blas_->api;
    for (const blas::Layout each : {a_, b_, out_, residual_})
      if (each != nullptr) (void)api.layout_destroy(each);
    if (operation_ != nullptr) (void)api.operation_destroy(operation_);
  }
  Shaped(const Shaped&) = delete;
  Shaped& operator=(const Shaped&) = delete;

  blas::Status status() const { return status_; }
  const Blas& blas() const { return *blas_; }
  const std::shared_ptr<const Blas>& shared_blas() const { return blas_; }

  blas::Status find(const Product& p, std::uint64_t most_workspace, std::span<blas::Found> into, int& count) {
    const blas::Api& api = blas_->api;
    blas::Preference preference = nullptr;
    keep(api.preference_create(&preference));
    const auto prefer = [&](int attribute, auto value) {
      if (status_ == 0) keep(api.preference_set(preference, attribute, &value, sizeof value));
    };
    prefer(blas::most_workspace, most_workspace);
    prefer(blas::reductions, std::uint32_t{blas::reduces_in_f32});
    for (const int which : {blas::alignment_a, blas::alignment_b, blas::alignment_c, blas::alignment_d})
      prefer(which, static_cast<std::uint32_t>(p.alignment));
    if (status_ == 0)
      keep(api.heuristic(blas_->handle, operation_, a_, b_, added(), out_, preference,
                         static_cast<int>(into.size()), into.data(), &count));
    if (preference != nullptr) (void)api.preference_destroy(preference);
    return status_;
  }

  // One thread at a time: the place of a bias is part of what is described.
  blas::Status multiply(const Product& p, const blas::Found& way, Stream stream, const CallPlaces& at) const {
    const std::scoped_lock turn(turn_);
    const blas::Api& api = blas_->api;
    if (p.bias) {
      const void* const bias = reinterpret_cast<const void*>(at.bias);
      if (const auto set = api.operation_set(operation_, blas::operation_bias, &bias, sizeof bias); set != 0)
        return set;
    }
    const float beta = p.residual_pitch != 0 ? 1 : 0;
    void* const out = reinterpret_cast<void*>(at.out);
    const void* const residual = p.residual_pitch != 0 ? reinterpret_cast<const void*>(at.residual) : out;
    return api.multiply(blas_->handle, operation_, &p.scale, reinterpret_cast<const void*>(at.b), a_,
                        reinterpret_cast<const void*>(at.a), b_, &beta, residual, added(), out, out_,
                        &way.algorithm, reinterpret_cast<void*>(at.workspace), way.workspace, stream);
  }

 private:
  blas::Layout added() const { return residual_ != nullptr ? residual_ : out_; }
  void keep(blas::Status status) {
    if (status_ == 0) status_ = status;
  }
  template <typename T>
  void operation(int attribute, const T& value) {
    if (status_ == 0) keep(blas_->api.operation_set(operation_, attribute, &value, sizeof value));
  }
  void layout(blas::Layout& to, const Product& p, const Product::Matrix& m, std::int64_t rows,
              std::int64_t columns) {
    if (status_ != 0) return;
    const blas::Api& api = blas_->api;
    keep(api.layout_create(&to, type_of(p.number), static_cast<std::uint64_t>(rows),
                           static_cast<std::uint64_t>(columns), m.pitch));
    const auto batch = static_cast<std::int32_t>(p.batch);
    if (status_ == 0 && p.batch > 1) {
      keep(api.layout_set(to, blas::layout_batch, &batch, sizeof batch));
      keep(api.layout_set(to, blas::layout_step, &m.step, sizeof m.step));
    }
  }

  std::shared_ptr<const Blas> blas_;
  blas::Operation operation_ = nullptr;
  blas::Layout a_ = nullptr, b_ = nullptr, out_ = nullptr, residual_ = nullptr;
  blas::Status status_ = 0;
  mutable std::mutex turn_;
};

Error why(const Blas& blas, const std::string& what, blas::Status status, ErrorCode code) {
  return {code, what + ": cuBLASLt: " + blas.api.status_name(status)};
}

class CublasLtCall final : public Call {
 public:
  CublasLtCall(std::shared_ptr<const Shaped> shaped, const Product& spec, const blas::Found& way,
               std::string name)
      : whole_{std::move(shaped), way}, spec_(spec), name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  std::uint64_t workspace() const override { return whole_.way.workspace; }
  Result<> enqueue(Stream stream, const CallPlaces& places) const override {
    const Sized* sized = &whole_;
    {
      const std::scoped_lock lock(mutex_);
      if (const auto found = parts_.find(places.processors); found != parts_.end()) sized = &found->second;
    }
    if (const auto status = sized->shaped->multiply(spec_, sized->way, stream, places); status != 0)
      return std::unexpected(why(sized->shaped->blas(), name_, status, ErrorCode::internal));
    return {};
  }
  // By the same algorithm where cuBLASLt has it for so many processors, too; else by its first guess.
  void size_for(unsigned processors) const override {
    const std::scoped_lock lock(mutex_);
    if (processors == 0 || parts_.contains(processors)) return;
    auto shaped = std::make_shared<Shaped>(whole_.shaped->shared_blas(), spec_, processors);
    std::array<blas::Found, ways_asked_for> found{};
    int count = 0;
    if (shaped->find(spec_, whole_.way.workspace, found, count) != 0) return;
    const std::span<const blas::Found> all(found.data(),
                                           static_cast<std::size_t>(std::clamp(count, 0, ways_asked_for)));
    const blas::Found* best = nullptr;
    for (const blas::Found& each : all) {
      if (each.state != 0 || each.workspace > whole_.way.workspace) continue;
      if (best == nullptr || each.algorithm.data == whole_.way.algorithm.data) best = &each;
    }
    if (best != nullptr) parts_.emplace(processors, Sized{std::move(shaped), *best});
  }

 private:
  struct Sized {
    std::shared_ptr<const Shaped> shaped;
    blas::Found way;
  };
  Sized whole_;
  Product spec_;
  std::string name_;
  mutable std::mutex mutex_;
  mutable std::map<unsigned, Sized> parts_;  // by their processors; what is there stays as it is
};

class CublasLt final : public Ways {
 public:
  explicit CublasLt(std::shared_ptr<const Blas> blas) : blas_(std::move(blas)) {
    const std::size_t version = blas_->api.version();
    version_ = fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }
  std::string_view version() const override { return version_; }
  Result<std::vector<Way>> of(const Convolution&) override {
    return fail(ErrorCode::unsupported, "cuBLASLt has no convolutions");
  }
  Result<std::vector<Way>> of(const Product& spec) override {
    const std::string text = to_text(spec);
    if (spec.epilogue == Epilogue::gelu_erf)
      return fail(ErrorCode::unsupported, text + ": cuBLASLt has no GELU by erf");
    auto shaped = std::make_shared<Shaped>(blas_, spec, 0);
    std::array<blas::Found, ways_asked_for> found{};
    int count = 0;
    if (const auto status = shaped->find(spec, workspace_limit, found, count); status != 0)
      return std::unexpected(why(*blas_, text, status, ErrorCode::unsupported));
    std::vector<Way> ways;
    for (int i = 0; i < std::min(count, ways_asked_for); ++i) {
      const blas::Found& way = found[static_cast<std::size_t>(i)];
      if (way.state != 0) continue;
      std::string key = "algorithm";
      for (const std::uint64_t word : way.algorithm.data) key += fmt::format(" {:x}", word);
      ways.push_back({key,
                      [shaped, spec, way, name = fmt::format("{} by cuBLASLt's way {}", text, i)]()
                          -> Result<std::shared_ptr<const Call>> {
                        return std::make_shared<CublasLtCall>(shaped, spec, way, name);
                      }});
    }
    if (ways.empty()) return fail(ErrorCode::unsupported, text + ": cuBLASLt has no algorithm for it");
    return ways;
  }

 private:
  std::shared_ptr<const Blas> blas_;
  std::string version_;
};

}  // namespace

Result<std::unique_ptr<Ways>> make_cublaslt(const blas::Api& api) {
  auto made = std::make_shared<Blas>(api);
  if (const auto status = api.create(&made->handle); status != 0) {
    made->handle = nullptr;
    return std::unexpected(why(*made, "cuBLASLt does not start", status, ErrorCode::unavailable));
  }
  return std::make_unique<CublasLt>(std::move(made));
}

}  // namespace carillon::engine::cuda
