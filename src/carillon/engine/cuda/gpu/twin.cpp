#include "carillon/engine/cuda/gpu/twin.h"

#include <utility>

namespace carillon::engine::cuda::gpu {
namespace {

using MadeCall = Result<std::shared_ptr<const Call>>;

class Recording final : public MathLibrary {
 public:
  Recording(std::unique_ptr<MathLibrary> library, AskedCalls& asked)
      : library_(std::move(library)), asked_(asked) {}
  MadeCall convolution(const Convolution& spec) override {
    return kept(identity(spec), library_->convolution(spec));
  }
  MadeCall product(const Product& spec) override { return kept(identity(spec), library_->product(spec)); }
  bool fuses(const Convolution& spec) override {
    return asked_.fuses[identity(spec)] = library_->fuses(spec);
  }
  bool fuses(const Product& spec) override { return asked_.fuses[identity(spec)] = library_->fuses(spec); }
  std::int32_t channels_for(const Convolution& spec) override {
    return asked_.channels[identity(spec)] = library_->channels_for(spec);
  }
  void size_for(unsigned processors) override { library_->size_for(processors); }
  void compiled() override { library_->compiled(); }

 private:
  MadeCall kept(const std::string& key, MadeCall call) {
    if (call) asked_.calls[key] = *call;
    return call;
  }
  std::unique_ptr<MathLibrary> library_;
  AskedCalls& asked_;
};

class TwinCall final : public Call {
 public:
  TwinCall(std::shared_ptr<const Call> of, std::shared_ptr<const Call> plain)
      : of_(std::move(of)), plain_(std::move(plain)) {}
  std::string_view name() const override { return of_->name(); }
  std::uint64_t workspace() const override { return of_->workspace(); }
  Result<> enqueue(Stream stream, const CallPlaces& places) const override {
    return plain_->enqueue(stream, places);
  }

 private:
  std::shared_ptr<const Call> of_, plain_;
};

class Twin final : public MathLibrary {
 public:
  Twin(const AskedCalls& asked, std::unique_ptr<MathLibrary> plain)
      : asked_(asked), plain_(std::move(plain)) {}
  MadeCall convolution(const Convolution& spec) override {
    return twin(identity(spec), [&] { return plain_->convolution(spec); });
  }
  MadeCall product(const Product& spec) override {
    return twin(identity(spec), [&] { return plain_->product(spec); });
  }
  bool fuses(const Convolution& spec) override { return fused(identity(spec)); }
  bool fuses(const Product& spec) override { return fused(identity(spec)); }
  std::int32_t channels_for(const Convolution& spec) override {
    const auto found = asked_.channels.find(identity(spec));
    return found == asked_.channels.end() ? spec.channels : found->second;
  }

 private:
  template <typename Make>
  MadeCall twin(const std::string& key, const Make& make) {
    const auto found = asked_.calls.find(key);
    if (found == asked_.calls.end()) return fail(ErrorCode::unsupported, "the device's plan has no " + key);
    auto plain = make();
    if (!plain) return plain;
    return std::make_shared<TwinCall>(found->second, std::move(*plain));
  }
  bool fused(const std::string& key) const {
    const auto found = asked_.fuses.find(key);
    return found != asked_.fuses.end() && found->second;
  }
  const AskedCalls& asked_;
  std::unique_ptr<MathLibrary> plain_;
};

}  // namespace

std::unique_ptr<MathLibrary> recording(std::unique_ptr<MathLibrary> library, AskedCalls& asked) {
  return std::make_unique<Recording>(std::move(library), asked);
}
std::unique_ptr<MathLibrary> twin_of(const AskedCalls& asked, std::unique_ptr<MathLibrary> plain) {
  return std::make_unique<Twin>(asked, std::move(plain));
}

}  // namespace carillon::engine::cuda::gpu
