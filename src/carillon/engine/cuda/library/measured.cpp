#include "carillon/engine/cuda/library/measured.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "carillon/base/bytes.h"
#include "carillon/engine/cuda/driver/bounded_wait.h"
#include "carillon/engine/cuda/driver/time_graph.h"
#include "carillon/engine/cuda/memory/scratch.h"

namespace carillon::engine::cuda {

namespace {

Error told(const Driver& driver, Status status, const std::string& what) {
  const ErrorCode code = is_lost(status)           ? ErrorCode::unavailable
                         : status == out_of_memory ? ErrorCode::resource_exhausted
                                                   : ErrorCode::internal;
  return {code, what + ": " + cuda::name_of(driver, status)};
}

// A stream, two events and a graph, for one measurement.
class Trial {
 public:
  Trial(const Driver& driver, Scratch& scratch, Duration longest)
      : driver_(driver), scratch_(scratch), longest_(longest) {}
  ~Trial() {
    if (spins_) return;  // what it uses stays with it
    if (executable_ != nullptr) (void)driver_.graph_exec_destroy(executable_);
    for (const Event event : events_)
      if (event != nullptr) (void)driver_.event_destroy(event);
    if (stream_ == nullptr) return;
    (void)driver_.stream_synchronize(stream_);  // a trial that failed may have left work
    (void)driver_.stream_destroy(stream_);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  // Not captured.
  Result<> launch_first(const Call& call, const CallPlaces& places) {
    const std::string what(call.name());
    if (const Status status = driver_.stream_create(&stream_, stream_beside_the_default, 0); status != done)
      return std::unexpected(told(driver_, status, what));
    if (const Status status = fill_with_numbers(driver_, scratch_.at(), scratch_.bytes(), stream_, longest_);
        status != done)
      return std::unexpected(ended(status, "what the device did before " + what));
    if (auto put = call.enqueue(stream_, places); !put) return put;
    if (const Status status = wait_for(driver_, stream_, longest_); status != done)
      return std::unexpected(ended(status, what));
    return {};
  }

  // After launch_first().
  Result<Duration> run(const Call& call, const CallPlaces& places) {
    const std::string what(call.name());
    for (const Status status : {driver_.event_create(&events_[0], 0), driver_.event_create(&events_[1], 0)})
      if (status != done) return std::unexpected(told(driver_, status, what));
    if (const Status status = driver_.capture_begin(stream_, capture_of_this_thread); status != done)
      return std::unexpected(told(driver_, status, what));
    Result<> put;
    for (int i = 0; put && i < timer_repeats; ++i) put = call.enqueue(stream_, places);
    Graph graph = nullptr;
    Status status = driver_.capture_end(stream_, &graph);
    if (put && status == done) status = driver_.graph_instantiate(&executable_, graph, 0);
    if (graph != nullptr) (void)driver_.graph_destroy(graph);
    if (!put) return std::unexpected(put.error());
    if (status != done) return std::unexpected(told(driver_, status, what));
    Duration least{0};
    if (status = time_graph(driver_, executable_, stream_, events_, 3, least, longest_); status != done)
      return std::unexpected(ended(status, what));
    return least / timer_repeats;
  }

 private:
  Error ended(Status status, const std::string& what) {
    if (status != not_ready) return told(driver_, status, what);
    spins_ = true;
    scratch_.leave();
    return {
        ErrorCode::unavailable,
        fmt::format("{} has not ended within {:g} s, and holds what it has of the device until the server "
                    "ends",
                    what, to_seconds(longest_))};
  }

  const Driver& driver_;
  Scratch& scratch_;
  const Duration longest_;
  bool spins_ = false;
  Stream stream_ = nullptr;
  std::array<Event, 2> events_{};
  GraphExec executable_ = nullptr;
};

// Without the last that is done to its sums; nothing where nothing is.
std::optional<Convolution> one_less(Convolution spec) {
  if (spec.relu)
    spec.relu = false;
  else if (spec.residual_pitch != 0)
    spec.residual_pitch = 0;
  else if (spec.bias)
    spec.bias = false;
  else
    return std::nullopt;
  return spec;
}
std::optional<Product> one_less(Product spec) {
  if (spec.epilogue == Epilogue::none) return std::nullopt;
  spec.epilogue = Epilogue::none;
  return spec;
}

// A convolution as a product of another library: named by what it is.
class AsProduct final : public Call {
 public:
  AsProduct(std::shared_ptr<const Call> product, const Convolution& spec)
      : product_(std::move(product)), name_(to_text(spec)) {
    const std::string_view by = product_->name();
    name_ += by.substr(std::min(by.find(" by "), by.size()));
  }
  std::string_view name() const override { return name_; }
  std::uint64_t workspace() const override { return product_->workspace(); }
  void size_for(unsigned processors) const override { product_->size_for(processors); }
  Result<> enqueue(Stream stream, const CallPlaces& places) const override {
    return product_->enqueue(stream, places);
  }

 private:
  std::shared_ptr<const Call> product_;
  std::string name_;
};

class MeasuredLibrary final : public MathLibrary {
 public:
  MeasuredLibrary(std::unique_ptr<Ways> convolutions, std::unique_ptr<Ways> products,
                  std::shared_ptr<KernelChoices> choices, MeasuredOptions options)
      : convolutions_(std::move(convolutions)),
        products_(std::move(products)),
        choices_(std::move(choices)),
        options_(std::move(options)) {}

  Result<std::shared_ptr<const Call>> convolution(const Convolution& spec) override {
    return choose(*convolutions_, spec);
  }
  Result<std::shared_ptr<const Call>> product(const Product& spec) override {
    return choose(*products_, spec);
  }
  bool fuses(const Convolution& spec) override { return pays(*convolutions_, spec); }
  bool fuses(const Product& spec) override { return pays(*products_, spec); }
  std::int32_t channels_for(const Convolution& spec) override {
    const bool by_tensor_cores = spec.number == Number::f16 || spec.number == Number::bf16;
    if (!by_tensor_cores || spec.groups != 1 || !options_.timer || !options_.copy_timer) return spec.channels;
    const auto padded = [&](std::int32_t channels) {
      Convolution out = spec;
      out.channels = channels;
      out.in_pitch = channels;
      return out;
    };
    const std::string key = "channels: " + identity(spec);
    std::vector<std::int32_t> more;
    for (const std::int32_t channels : {4, 8})
      if (channels > spec.channels) more.push_back(channels);
    if (more.empty()) return spec.channels;
    if (const auto kept = choices_->find(key)) {
      if (*kept == std::to_string(spec.channels)) return spec.channels;
      for (const std::int32_t channels : more)
        if (*kept == std::to_string(channels) && has_any(*convolutions_, padded(channels))) return channels;
    }
    auto least = time_of(*convolutions_, spec);
    if (!least) return spec.channels;
    std::int32_t best = spec.channels;
    for (const std::int32_t channels : more) {
      const Convolution wider = padded(channels);
      const auto took = time_of(*convolutions_, wider);
      const auto zeros = options_.copy_timer(bytes_of(wider).a);
      if (!took || !zeros || *took + *zeros >= *least) continue;
      least = *took + *zeros;
      best = channels;
    }
    choices_->keep(key, std::to_string(best));
    return best;
  }
  void size_for(unsigned processors) override {
    if (!sizes_.insert(processors).second) return;
    for (const auto& [key, call] : made_)
      if (call) (*call)->size_for(processors);
  }
  void compiled() override {
    (void)choices_->save();  // what cannot be kept is measured again
    spent_compiling_ = Duration{0};
  }

 private:
  template <typename Spec>
  Result<std::shared_ptr<const Call>> choose(Ways& of, const Spec& spec) {
    const auto [it, is_new] = made_.try_emplace(identity(spec), Result<std::shared_ptr<const Call>>{});
    if (!is_new) return it->second;
    it->second = find(of, spec, it->first);
    if (it->second)
      for (const unsigned processors : sizes_) (*it->second)->size_for(processors);
    return it->second;
  }

  static Result<std::vector<Way>> ways_of(Ways& of, const Product& spec) { return of.of(spec); }
  Result<std::vector<Way>> ways_of(Ways& of, const Convolution& spec) {
    auto ways = of.of(spec);
    const auto product = as_product(spec);
    if (!product) return ways;
    auto others = products_->of(*product);
    if (!others) return ways;
    std::vector<Way> all;
    if (ways) all = std::move(*ways);
    for (Way& each : *others)
      all.push_back({.key = "product, " + each.key,
                     .make = [make = std::move(each.make), spec]() -> Result<std::shared_ptr<const Call>> {
                       auto call = make();
                       if (!call) return call;
                       return std::make_shared<AsProduct>(std::move(*call), spec);
                     },
                     .compiles = each.compiles,
                     .other = true});
    return all;
  }

  template <typename Spec>
  bool has_any(Ways& of, const Spec& spec) {
    const auto [it, is_new] = any_.try_emplace(identity(spec), false);
    if (!is_new) return it->second;
    const auto ways = ways_of(of, spec);
    for (const bool compiles : {false, true})
      it->second = it->second || (ways && std::ranges::any_of(*ways, [&](const Way& way) {
                                    return way.compiles == compiles && can_make(it->first, way);
                                  }));
    return it->second;
  }

  // Nothing: no time is left to compile it in. What was compiled is compiled once.
  std::optional<Result<std::shared_ptr<const Call>>> try_make(const std::string& key, const Way& way) {
    if (!way.compiles) return way.make();
    const auto known = compiled_.find({key, way.key});
    if (known != compiled_.end()) return known->second;
    if (spent_compiling_ >= options_.longest_compiling) return std::nullopt;
    const auto begin = std::chrono::steady_clock::now();
    auto call = way.make();
    spent_compiling_ += std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - begin);
    return compiled_.emplace(std::pair(key, way.key), std::move(call)).first->second;
  }
  bool can_make(const std::string& key, const Way& way) {
    const auto call = try_make(key, way);
    return call && call->has_value();
  }

  // How long a call takes that there is.
  template <typename Spec>
  std::optional<Duration> time_of(Ways& of, const Spec& spec) {
    const auto call = choose(of, spec);
    if (!call) return std::nullopt;
    const auto [it, is_new] = times_.try_emplace(identity(spec));
    if (is_new)
      if (const auto took = options_.timer(**call, bytes_of(spec))) it->second = *took;
    return it->second;
  }

  // Whether there is a way that is worth it.
  template <typename Spec>
  bool pays(Ways& of, const Spec& spec) {
    static constexpr std::string_view joined = "joined", apart = "apart";
    if (!has_any(of, spec)) return false;
    const std::optional<Spec> less = one_less(spec);
    if (!less || !options_.timer || !options_.copy_timer) return true;
    const std::string key = "fused or not: " + identity(spec);
    if (const auto kept = choices_->find(key); kept == joined || kept == apart) return kept == joined;
    const auto with = time_of(of, spec), without = time_of(of, *less);
    const auto copy = options_.copy_timer(bytes_of(spec).out);
    if (!with || !without || !copy) return true;
    const bool better = *with <= *without + *copy;
    choices_->keep(key, std::string(better ? joined : apart));
    return better;
  }

  template <typename Spec>
  Result<std::shared_ptr<const Call>> find(Ways& of, const Spec& spec, const std::string& key) {
    auto ways = ways_of(of, spec);
    if (!ways) return std::unexpected(ways.error());
    if (const auto kept = choices_->find(key))
      for (const Way& way : *ways)
        if (way.key == *kept)
          if (auto call = way.make()) {
            const auto launched =
                options_.first_launch ? options_.first_launch(**call, bytes_of(spec)) : Result<>();
            // Where there is no memory to try it in, it is believed.
            if (launched || launched.error().code == ErrorCode::resource_exhausted) return call;
            if (launched.error().code == ErrorCode::unavailable) return std::unexpected(launched.error());
          }
    Result<std::shared_ptr<const Call>> best =
        fail(ErrorCode::unsupported,
             to_text(spec) + ": " + std::string(of.version()) + " has no way to compute it");
    std::optional<Duration> least;
    std::string chosen;
    int measured = 0, compiled = 0, others = 0;
    for (const Way& way : *ways) {
      int& so_far = way.compiles ? compiled : way.other ? others : measured;
      if (so_far == (way.compiles ? options_.most_compiled
                     : way.other  ? options_.most_others
                                  : options_.most_measured))
        continue;
      auto tried = try_make(key, way);
      if (!tried) continue;
      if (way.compiles) ++so_far;
      auto call = std::move(*tried);
      if (!call) {
        if (!best) best = call;
        continue;
      }
      if (!options_.timer) return call;
      if (!way.compiles) ++so_far;
      const auto took = options_.timer(**call, bytes_of(spec));
      if (!took && took.error().code == ErrorCode::unavailable) return std::unexpected(took.error());
      if (!least && (!best || took)) best = call;  // the first that can be made, till one is measured
      if (!took || (least && *took >= *least)) continue;
      least = *took;
      best = call;
      chosen = way.key;
    }
    if (least) {
      choices_->keep(key, chosen);
      times_[key] = least;
    }
    std::erase_if(compiled_, [&](const auto& each) { return each.first.first == key; });
    return best;
  }

  std::unique_ptr<Ways> convolutions_, products_;
  std::shared_ptr<KernelChoices> choices_;
  MeasuredOptions options_;
  std::map<std::string, Result<std::shared_ptr<const Call>>> made_;  // by identity
  Duration spent_compiling_{0};                                      // of this model
  std::set<unsigned> sizes_;                                         // of parts, in processors
  std::map<std::pair<std::string, std::string>, Result<std::shared_ptr<const Call>>>
      compiled_;                                          // by identity, way
  std::map<std::string, std::optional<Duration>> times_;  // by identity, as measured
  std::map<std::string, bool> any_;                       // by identity: whether there is a way
};

}  // namespace

namespace {

// Calls does(trial, places) with the call launched once.
template <typename Does>
auto with_trial(const Driver& driver, DeviceNumber device, Duration longest, const Call& call,
                const CallBytes& bytes, const Does& does)
    -> decltype(does(std::declval<Trial&>(), CallPlaces{})) {
  std::uint64_t all = 0;
  CallPlaces places;
  const std::pair<std::uint64_t, Address*> each[] = {{bytes.a, &places.a},
                                                     {bytes.b, &places.b},
                                                     {bytes.out, &places.out},
                                                     {bytes.bias, &places.bias},
                                                     {bytes.residual, &places.residual},
                                                     {call.workspace(), &places.workspace}};
  for (const auto& [wanted, to] : each) {
    *to = all;
    all += round_up(wanted, 256);
  }
  Scratch scratch(driver, device);
  if (const Status status = scratch.take(all); status != done)
    return std::unexpected(told(driver, status, fmt::format("{} bytes to measure {}", all, call.name())));
  for (const auto& [wanted, to] : each) *to = wanted == 0 ? 0 : *to + scratch.at();
  Trial trial(driver, scratch, longest);
  if (auto launched = trial.launch_first(call, places); !launched) return std::unexpected(launched.error());
  return does(trial, places);
}

}  // namespace

namespace {

class CopyCall final : public Call {
 public:
  CopyCall(const Driver& driver, std::uint64_t bytes) : driver_(driver), bytes_(bytes) {}
  std::string_view name() const override { return "a copy on the device"; }
  std::uint64_t workspace() const override { return 0; }
  Result<> enqueue(Stream stream, const CallPlaces& at) const override {
    const Status status = driver_.copy(at.out, at.a, bytes_, stream);
    if (status != done) return std::unexpected(told(driver_, status, std::string(name())));
    return {};
  }

 private:
  const Driver& driver_;
  std::uint64_t bytes_;
};

}  // namespace

std::function<Result<Duration>(std::uint64_t bytes)> time_copies_on(std::shared_ptr<const Driver> driver,
                                                                    DeviceNumber device, Duration longest) {
  return [driver = std::move(driver), device, longest](std::uint64_t bytes) {
    return time_on(driver, device, longest)(CopyCall(*driver, bytes), {.a = bytes, .out = bytes});
  };
}

CallTimer time_on(std::shared_ptr<const Driver> driver, DeviceNumber device, Duration longest) {
  return [driver = std::move(driver), device, longest](const Call& call, const CallBytes& bytes) {
    return with_trial(*driver, device, longest, call, bytes,
                      [&](Trial& trial, const CallPlaces& places) { return trial.run(call, places); });
  };
}

std::function<Result<>(const Call& call, const CallBytes& bytes)> first_launch_on(
    std::shared_ptr<const Driver> driver, DeviceNumber device, Duration longest) {
  return [driver = std::move(driver), device, longest](const Call& call, const CallBytes& bytes) {
    return with_trial(*driver, device, longest, call, bytes,
                      [](Trial&, const CallPlaces&) { return Result<>(); });
  };
}

std::unique_ptr<MathLibrary> make_measured_library(std::unique_ptr<Ways> convolutions,
                                                   std::unique_ptr<Ways> products,
                                                   std::shared_ptr<KernelChoices> choices,
                                                   const MeasuredOptions& options) {
  return std::make_unique<MeasuredLibrary>(std::move(convolutions), std::move(products), std::move(choices),
                                           options);
}

}  // namespace carillon::engine::cuda
