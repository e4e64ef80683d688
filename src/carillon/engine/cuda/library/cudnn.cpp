#include "carillon/engine/cuda/library/cudnn.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "carillon/base/symbols.h"
#include "carillon/engine/cuda/library/cudnn_api.h"

namespace carillon::engine::cuda {

namespace dnn {

Result<Api> find_api(const Library& library) {
  Api api;
  Symbols find([&](const char* name) { return library.symbol(name); });
#define CARILLON_CUDNN_FIND(member, symbol, result, arguments) find(#symbol, api.member);
  CARILLON_CUDNN_FUNCTIONS(CARILLON_CUDNN_FIND)
#undef CARILLON_CUDNN_FIND
  if (!find.missing().empty())
    return fail(ErrorCode::unavailable,
                library.path() + " is no cuDNN of 9.8 or newer: it has no " + find.missing());
  if (const std::size_t version = api.version(); version < least_version)
    return fail(ErrorCode::unavailable, fmt::format("{} is cuDNN {}.{}.{}: 9.8 is the least", library.path(),
                                                    version / 10000, version / 100 % 100, version % 100));
  return api;
}

}  // namespace dnn

namespace {

using dnn::Api;
namespace attribute = dnn::attribute;
namespace kind = dnn::kind;
namespace type = dnn::type;
namespace value = dnn::value;

constexpr std::size_t few_ways = 4;  // by heuristic mode A: then B is asked, too
constexpr std::int64_t most_ways = 64, most_notes = 16, most_knobs = 32;
constexpr std::uint64_t most_workspace = std::uint64_t{256} << 20;

class Part {
 public:
  Part(const Api& api, int of) : api_(&api) {
    if (api.create_descriptor(of, &descriptor_) != 0) descriptor_ = nullptr;
  }
  ~Part() {
    if (descriptor_ != nullptr) (void)api_->destroy_descriptor(descriptor_);
  }
  Part(Part&& from) noexcept : api_(from.api_), descriptor_(std::exchange(from.descriptor_, nullptr)) {}
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  Part& operator=(Part&& from) noexcept {
    std::swap(api_, from.api_);
    std::swap(descriptor_, from.descriptor_);
    return *this;
  }

  dnn::Descriptor get() const { return descriptor_; }

 private:
  const Api* api_;
  dnn::Descriptor descriptor_ = nullptr;
};

// cuDNN, a device, and one thread at a time at the handle.
struct Session {
  Api api;
  dnn::Handle handle = nullptr;  // nullptr: of a described device
  std::unique_ptr<Part> device;
  std::mutex turn;
  std::shared_ptr<CodeCache> compiled;  // or none

  explicit Session(const Api& of) : api(of) {}
  ~Session() {
    if (handle != nullptr) (void)api.destroy(handle);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::string why(dnn::Status status) const {
    std::array<char, 512> last{};
    api.last_error(last.data(), last.size() - 1);
    const std::string_view said(last.data());
    return fmt::format("{}{}{}", api.error_text(status), said.empty() ? "" : ": ", said);
  }
};

// Descriptors that are set up one after the other; the first that fails is told at the end.
class Maker {
 public:
  explicit Maker(const Session& session) : session_(session) {}

  Part part(int of) { return {session_.api, of}; }
  template <typename T>
  void set(const Part& part, int which, int of, std::span<const T> values) {
    if (wrong_ == 0)
      wrong_ =
          session_.api.set(part.get(), which, of, static_cast<std::int64_t>(values.size()), values.data());
  }
  template <typename T>
  void set(const Part& part, int which, int of, const T& one) {
    set(part, which, of, std::span<const T>(&one, 1));
  }
  void finish(const Part& part) {
    if (wrong_ == 0) wrong_ = session_.api.finalize(part.get());
  }
  Result<> result(const std::string& what) const {
    if (wrong_ == 0) return {};
    return fail(ErrorCode::unsupported, what + ": cuDNN: " + session_.why(wrong_));
  }

 private:
  const Session& session_;
  dnn::Status wrong_ = 0;
};

int data_type(Number number) {
  return number == Number::f16    ? value::data_f16
         : number == Number::bf16 ? value::data_bf16
                                  : value::data_f32;
}

// What is where in a variant pack.
enum Id : std::int64_t { id_x = 1, id_w, id_residual, id_bias, id_out, id_inner };

struct Problem {
  std::shared_ptr<Session> session;
  std::vector<Part> parts;  // the graph is the last
  std::vector<std::int64_t> ids;
  dnn::Descriptor graph() const { return parts.back().get(); }
};

Part tensor(Maker& maker, std::int64_t id, int of, std::array<std::int64_t, 4> dimensions,
            std::array<std::int64_t, 4> strides, std::int64_t alignment, bool inner) {
  Part made = maker.part(kind::tensor);
  maker.set(made, attribute::tensor_type, type::data_type, of);
  maker.set(made, attribute::tensor_dimensions, type::int64, std::span<const std::int64_t>(dimensions));
  maker.set(made, attribute::tensor_strides, type::int64, std::span<const std::int64_t>(strides));
  maker.set(made, attribute::tensor_id, type::int64, id);
  maker.set(made, attribute::tensor_alignment, type::int64, alignment);
  if (inner) maker.set(made, attribute::tensor_virtual, type::boolean, true);
  maker.finish(made);
  return made;
}

Result<std::shared_ptr<const Problem>> describe(const std::shared_ptr<Session>& session,
                                                const Convolution& c) {
  auto problem = std::make_shared<Problem>();
  problem->session = session;
  Maker maker(*session);
  const int of = data_type(c.number);
  std::vector<Part>& parts = problem->parts;
  parts.reserve(16);
  const auto keep = [&](Part part) {
    parts.push_back(std::move(part));
    return parts.back().get();
  };
  const auto image = [&](std::int64_t id, std::int64_t channels, std::int64_t height, std::int64_t width,
                         std::int64_t pitch, bool inner) {
    const std::int64_t element = inner ? 4 : static_cast<std::int64_t>(size_of(c.number));
    return keep(tensor(maker, id, inner ? value::data_f32 : of, {c.batch, channels, height, width},
                       {height * width * pitch, 1, width * pitch, pitch}, inner ? element : c.alignment,
                       inner));
  };
  const auto result = [&](std::int64_t id, bool last) {
    return image(last ? id_out : id, c.filters, c.out_height, c.out_width, last ? c.out_pitch : c.filters,
                 !last);
  };
  const bool residual = c.residual_pitch != 0;
  std::int64_t inner = id_inner;
  const std::int64_t channels = c.channels / c.groups;

  const auto x = image(id_x, c.channels, c.height, c.width, c.in_pitch, false);
  const auto w = keep(tensor(
      maker, id_w, of, {c.filters, channels, c.kernel_h, c.kernel_w},
      {std::int64_t{c.kernel_h} * c.kernel_w * channels, 1, c.kernel_w * channels, channels}, 16, false));
  dnn::Descriptor now = result(inner++, !residual && !c.bias && !c.relu);

  Part how = maker.part(kind::convolution);
  const std::array<std::int64_t, 2> strides{c.stride_h, c.stride_w}, dilations{c.dilation_h, c.dilation_w},
      before{c.pad_top, c.pad_left}, after{c.pad_bottom, c.pad_right};
  maker.set(how, attribute::convolution_dims, type::int64, std::int64_t{2});
  maker.set(how, attribute::convolution_type, type::data_type, int{value::data_f32});
  maker.set(how, attribute::convolution_mode, type::convolution_mode, int{value::cross_correlation});
  maker.set(how, attribute::convolution_strides, type::int64, std::span<const std::int64_t>(strides));
  maker.set(how, attribute::convolution_dilations, type::int64, std::span<const std::int64_t>(dilations));
  maker.set(how, attribute::convolution_pre, type::int64, std::span<const std::int64_t>(before));
  maker.set(how, attribute::convolution_post, type::int64, std::span<const std::int64_t>(after));
  maker.finish(how);
  const auto convolution = keep(std::move(how));

  std::vector<dnn::Descriptor> operations;
  Part convolve = maker.part(kind::convolve);
  maker.set(convolve, attribute::convolve_how, type::descriptor, convolution);
  maker.set(convolve, attribute::convolve_x, type::descriptor, x);
  maker.set(convolve, attribute::convolve_w, type::descriptor, w);
  maker.set(convolve, attribute::convolve_y, type::descriptor, now);
  maker.set(convolve, attribute::convolve_alpha, type::float32, 1.0F);
  maker.set(convolve, attribute::convolve_beta, type::float32, 0.0F);
  maker.finish(convolve);
  operations.push_back(keep(std::move(convolve)));
  problem->ids = {id_x, id_w, id_out};

  const auto apply = [&](int mode, dnn::Descriptor with, bool last) {
    Part does = maker.part(kind::pointwise);
    maker.set(does, attribute::pointwise_mode, type::pointwise_mode, mode);
    maker.set(does, attribute::pointwise_precision, type::data_type, int{value::data_f32});
    maker.finish(does);
    const auto kept = keep(std::move(does));
    const auto out = result(inner++, last);
    Part applied = maker.part(kind::apply);
    maker.set(applied, attribute::apply_how, type::descriptor, kept);
    maker.set(applied, attribute::apply_x, type::descriptor, now);
    if (with != nullptr) maker.set(applied, attribute::apply_b, type::descriptor, with);
    maker.set(applied, attribute::apply_y, type::descriptor, out);
    maker.finish(applied);
    operations.push_back(keep(std::move(applied)));
    now = out;
  };
  if (residual) {
    const auto other = image(id_residual, c.filters, c.out_height, c.out_width, c.residual_pitch, false);
    problem->ids.push_back(id_residual);
    apply(value::pointwise_add, other, !c.bias && !c.relu);
  }
  if (c.bias) {
    const auto bias = keep(
        tensor(maker, id_bias, of, {1, c.filters, 1, 1}, {c.filters, 1, c.filters, c.filters}, 16, false));
    problem->ids.push_back(id_bias);
    apply(value::pointwise_add, bias, !c.relu);
  }
  if (c.relu) apply(value::pointwise_relu, nullptr, true);

  Part graph = maker.part(kind::graph);
  maker.set(graph, attribute::graph_operations, type::descriptor,
            std::span<const dnn::Descriptor>(operations));
  if (session->handle != nullptr) maker.set(graph, attribute::graph_handle, type::handle, session->handle);
  maker.finish(graph);
  keep(std::move(graph));
  if (auto made = maker.result(to_text(c)); !made) return std::unexpected(made.error());
  return problem;
}

template <typename T>
std::vector<T> values(const Api& api, const Part& of, int which, int as, std::int64_t most) {
  std::vector<T> out(static_cast<std::size_t>(most));
  std::int64_t count = 0;
  if (api.get(of.get(), which, as, most, &count, out.data()) != 0) count = 0;
  out.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, most)));
  return out;
}

std::vector<Part> several(const Api& api, int of, std::int64_t count) {
  std::vector<Part> out;
  out.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) out.emplace_back(api, of);
  return out;
}

std::vector<Part> parts_of(const Api& api, const Part& of, int which, int as, std::int64_t most) {
  std::vector<Part> out = several(api, as, most);
  std::vector<dnn::Descriptor> raw;
  for (const Part& each : out) raw.push_back(each.get());
  std::int64_t count = 0;
  if (api.get(of.get(), which, type::descriptor, most, &count, raw.data()) != 0) count = 0;
  out.erase(out.begin() + std::clamp<std::int64_t>(count, 0, most), out.end());
  return out;
}

bool allowed(Number number, const std::vector<int>& numerical, const std::vector<int>& behavior) {
  const auto has = [](const std::vector<int>& notes, std::initializer_list<int> any) {
    return std::ranges::find_first_of(notes, any) != notes.end();
  };
  if (has(behavior, {value::reorders_filter, value::reorders_bias})) return false;
  // Winograd's tiles of 6 and more, and Fourier transforms, lose digits that f32 is asked for.
  if (has(numerical, {value::nondeterministic, value::reduced_sums, value::down_converts, value::fft,
                      value::winograd_6, value::winograd_13}))
    return false;
  if (number == Number::f32) return !has(numerical, {value::tensor_core});
  return number == Number::tf32 || !has(numerical, {value::winograd});
}

// An engine and how its knobs stand.
struct EngineConfig {
  std::int64_t engine = 0;
  bool compiles = false;
  std::vector<std::pair<int, std::int64_t>> knobs;  // by type
  // "engine 37 (2=0 5=1)"
  std::string key() const {
    std::vector<std::string> texts;
    for (const auto& [which, set] : knobs) texts.push_back(fmt::format("{}={}", which, set));
    std::ranges::sort(texts);
    return fmt::format("engine {} ({})", engine, fmt::join(texts, " "));
  }
};

struct FinishedPlan {
  Part descriptor;
  std::uint64_t workspace = 0;
};

// What `describe` sets makes a plan.
template <typename Describe>
Result<FinishedPlan> finished_plan(const Session& session, const std::string& name,
                                   const Describe& describe) {
  Maker maker(session);
  Part made = maker.part(kind::plan);
  if (session.handle != nullptr) maker.set(made, attribute::plan_handle, type::handle, session.handle);
  describe(maker, made);
  maker.finish(made);
  if (auto finished = maker.result(name); !finished) return std::unexpected(finished.error());
  const auto workspace = values<std::int64_t>(session.api, made, attribute::plan_workspace, type::int64, 1);
  if (workspace.empty() || workspace.front() < 0 ||
      static_cast<std::uint64_t>(workspace.front()) > most_workspace)
    return fail(ErrorCode::unsupported,
                fmt::format("{}: it wants a workspace above {} MiB", name, most_workspace >> 20));
  return FinishedPlan{std::move(made), static_cast<std::uint64_t>(workspace.front())};
}

Result<FinishedPlan> plan_of(const Session& session, const Part& config, const std::string& name) {
  return finished_plan(session, name, [&](Maker& maker, const Part& made) {
    maker.set(made, attribute::plan_config, type::descriptor, config.get());
  });
}

// As plan_of(), of an engine that compiles: as it was kept under `key`, else compiled and kept. cuDNN's JSON
// of a plan has what was compiled.
Result<FinishedPlan> compiled_plan(const Session& session, const Part& config, const std::string& name,
                                   const std::string& key) {
  if (session.compiled == nullptr || session.handle == nullptr) return plan_of(session, config, name);
  if (const auto kept = session.compiled->find(key)) {
    auto plan = finished_plan(session, name, [&](Maker& maker, const Part& made) {
      maker.set(made, attribute::plan_json, type::character,
                std::span<const char>(reinterpret_cast<const char*>(kept->data()), kept->size()));
    });
    if (plan) return plan;  // what cuDNN does not take is compiled anew
  }
  auto plan = plan_of(session, config, name);
  if (!plan) return plan;
  std::int64_t length = 0;
  if (session.api.get(plan->descriptor.get(), attribute::plan_json, type::character, 0, &length, nullptr) ==
          0 &&
      length > 0 && static_cast<std::uintmax_t>(length) <= CodeCache::largest) {
    const auto json =
        values<char>(session.api, plan->descriptor, attribute::plan_json, type::character, length);
    session.compiled->keep(key, std::as_bytes(std::span(json)));
  }
  return plan;
}

class CudnnCall final : public Call {
 public:
  CudnnCall(std::shared_ptr<const Problem> problem, std::shared_ptr<const Part> config, EngineConfig known,
            FinishedPlan plan, std::string name, std::string kept_as)
      : problem_(std::move(problem)),
        config_(std::move(config)),
        known_(std::move(known)),
        plan_(std::move(plan)),
        name_(std::move(name)),
        kept_as_(std::move(kept_as)) {}
  std::string_view name() const override { return name_; }
  std::uint64_t workspace() const override { return plan_.workspace; }
  // The same engine with the same knobs. Where cuDNN cannot give that a number of processors it stays as it
  // is.
  void size_for(unsigned processors) const override {
    Session& session = *problem_->session;
    {
      const std::scoped_lock turn(session.turn);
      if (processors == 0 || parts_.contains(processors)) return;
    }
    Maker maker(session);
    std::vector<Part> knobs;
    std::vector<dnn::Descriptor> raw;
    for (const auto& [which, set] : known_.knobs) {
      Part knob = maker.part(kind::knob_choice);
      maker.set(knob, attribute::knob_type, type::knob_type, which);
      maker.set(knob, attribute::knob_value, type::int64, set);
      maker.finish(knob);
      raw.push_back(knob.get());
      knobs.push_back(std::move(knob));
    }
    Part engine = maker.part(kind::engine);
    maker.set(engine, attribute::engine_graph, type::descriptor, problem_->graph());
    maker.set(engine, attribute::engine_index, type::int64, known_.engine);
    maker.set(engine, attribute::engine_processors, type::int32, static_cast<std::int32_t>(processors));
    if (session.device) maker.set(engine, attribute::engine_device, type::descriptor, session.device->get());
    maker.finish(engine);
    Part config = maker.part(kind::engine_config);
    maker.set(config, attribute::config_engine, type::descriptor, engine.get());
    if (!raw.empty())
      maker.set(config, attribute::config_knobs, type::descriptor, std::span<const dnn::Descriptor>(raw));
    maker.finish(config);
    if (!maker.result(name_)) return;
    auto plan = known_.compiles ? compiled_plan(session, config, name_,
                                                fmt::format("{} for {} processors", kept_as_, processors))
                                : plan_of(session, config, name_);
    if (!plan || plan->workspace > plan_.workspace) return;
    const std::scoped_lock turn(session.turn);  // not while it compiles
    parts_.emplace(processors,
                   Sized{std::move(knobs), std::move(engine), std::move(config), std::move(*plan)});
  }
  Result<> enqueue(Stream stream, const CallPlaces& at) const override {
    Session& session = *problem_->session;
    if (session.handle == nullptr)
      return fail(ErrorCode::internal, name_ + ": it is for a device that was only described");
    Maker maker(session);
    std::vector<void*> pointers;
    for (const std::int64_t id : problem_->ids) {
      const Address address = id == id_x      ? at.a
                              : id == id_w    ? at.b
                              : id == id_out  ? at.out
                              : id == id_bias ? at.bias
                                              : at.residual;
      pointers.push_back(reinterpret_cast<void*>(address));
    }
    const Part pack = maker.part(kind::variant_pack);
    maker.set(pack, attribute::pack_ids, type::int64, std::span<const std::int64_t>(problem_->ids));
    maker.set(pack, attribute::pack_pointers, type::pointer, std::span<void* const>(pointers));
    maker.set(pack, attribute::pack_workspace, type::pointer, reinterpret_cast<void*>(at.workspace));
    maker.finish(pack);
    if (auto made = maker.result(name_); !made) return fail(ErrorCode::internal, made.error().message);
    const std::scoped_lock turn(session.turn);
    dnn::Status status = session.api.set_stream(session.handle, stream);
    const auto sized = parts_.find(at.processors);
    const FinishedPlan& plan = sized == parts_.end() ? plan_ : sized->second.plan;
    if (status == 0) status = session.api.execute(session.handle, plan.descriptor.get(), pack.get());
    if (status == 0) return {};
    return fail(ErrorCode::internal, name_ + ": cuDNN: " + session.why(status));
  }

 private:
  // cuDNN does not say that a plan has copies of what it was made of, so these stay.
  struct Sized {
    std::vector<Part> knobs;
    Part engine, config;
    FinishedPlan plan;
  };
  std::shared_ptr<const Problem> problem_;
  std::shared_ptr<const Part> config_;
  EngineConfig known_;
  FinishedPlan plan_;
  std::string name_;
  std::string kept_as_;                      // of an engine that compiles
  mutable std::map<unsigned, Sized> parts_;  // by their processors; the session's turn guards it
};

class Cudnn final : public Ways {
 public:
  explicit Cudnn(std::shared_ptr<Session> session) : session_(std::move(session)) {
    const std::size_t version = session_->api.version();
    version_ = fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }
  std::string_view version() const override { return version_; }

  Result<std::vector<Way>> of(const Product&) override {
    return fail(ErrorCode::unsupported, "cuDNN is asked for convolutions only");
  }

  Result<std::vector<Way>> of(const Convolution& spec) override {
    auto problem = describe(session_, spec);
    if (!problem) return std::unexpected(problem.error());
    std::vector<Way> ways;
    std::set<std::string> known;
    std::size_t seen = 0;
    std::string wrong;
    for (const int mode : {value::by_a, value::by_b, value::by_fallback}) {
      if (mode == value::by_b && ways.size() >= few_ways) continue;
      Maker maker(*session_);
      Part heuristics = maker.part(kind::heuristics);
      maker.set(heuristics, attribute::heuristics_graph, type::descriptor, (*problem)->graph());
      maker.set(heuristics, attribute::heuristics_mode, type::heuristics_mode, mode);
      if (session_->device)
        maker.set(heuristics, attribute::heuristics_device, type::descriptor, session_->device->get());
      maker.finish(heuristics);
      if (auto asked = maker.result(to_text(spec)); !asked) {
        wrong = asked.error().message;
        continue;
      }
      for (Part& each : parts_of(session_->api, heuristics, attribute::heuristics_results,
                                 kind::engine_config, most_ways)) {
        ++seen;
        auto config = std::make_shared<const Part>(std::move(each));
        auto known_config = allowed_config(*config, spec.number);
        if (!known_config) continue;
        const std::string key = known_config->key();
        if (!known.insert(key).second) continue;
        const bool compiles = known_config->compiles;
        ways.push_back(
            {.key = key,
             .make = [session = session_, problem = *problem, config, as = std::move(*known_config),
                      name = fmt::format("{} by {}", to_text(spec), key),
                      kept_as = fmt::format("{} by {}", identity(spec),
                                            key)]() -> Result<std::shared_ptr<const Call>> {
               auto plan = as.compiles ? compiled_plan(*session, *config, name, kept_as)
                                       : plan_of(*session, *config, name);
               if (!plan) return std::unexpected(plan.error());
               return std::make_shared<CudnnCall>(problem, config, as, std::move(*plan), name, kept_as);
             },
             .compiles = compiles});
      }
    }
    if (!ways.empty()) return ways;
    return fail(ErrorCode::unsupported,
                seen == 0
                    ? (wrong.empty() ? to_text(spec) + ": cuDNN knows no engine for it" : wrong)
                    : fmt::format("{}: cuDNN knows {} engines for it, of which none is deterministic and as "
                                  "exact as {} is to be",
                                  to_text(spec), seen, name_of(spec.number)));
  }

 private:
  // Nothing where it is not to be used.
  std::optional<EngineConfig> allowed_config(const Part& config, Number number) const {
    const Api& api = session_->api;
    std::vector<Part> engines = parts_of(api, config, attribute::config_engine, kind::engine, 1);
    if (engines.empty()) return std::nullopt;
    const auto index = values<std::int64_t>(api, engines.front(), attribute::engine_index, type::int64, 1);
    const auto behavior =
        values<int>(api, engines.front(), attribute::engine_behavior, type::behavior_note, most_notes);
    if (index.empty() || !allowed(number,
                                  values<int>(api, engines.front(), attribute::engine_numerical,
                                              type::numerical_note, most_notes),
                                  behavior))
      return std::nullopt;
    EngineConfig out{.engine = index.front(),
                     .compiles = std::ranges::find(behavior, int{value::compiles}) != behavior.end(),
                     .knobs = {}};
    for (const Part& knob : parts_of(api, config, attribute::config_knobs, kind::knob_choice, most_knobs)) {
      const auto which = values<int>(api, knob, attribute::knob_type, type::knob_type, 1);
      const auto set = values<std::int64_t>(api, knob, attribute::knob_value, type::int64, 1);
      if (!which.empty() && !set.empty()) out.knobs.emplace_back(which.front(), set.front());
    }
    return out;
  }

  std::shared_ptr<Session> session_;
  std::string version_;
};

}  // namespace

Result<std::unique_ptr<Ways>> make_cudnn(const dnn::Api& api, std::shared_ptr<CodeCache> plans) {
  auto session = std::make_shared<Session>(api);
  session->compiled = std::move(plans);
  if (const dnn::Status status = api.create(&session->handle); status != 0) {
    session->handle = nullptr;
    return fail(ErrorCode::unavailable, "cuDNN does not start: " + session->why(status));
  }
  return std::make_unique<Cudnn>(std::move(session));
}

Result<std::unique_ptr<Ways>> make_described_cudnn(const dnn::Api& api, const std::string& json) {
  auto session = std::make_shared<Session>(api);
  Maker maker(*session);
  session->device = std::make_unique<Part>(session->api, kind::device);
  maker.set(*session->device, attribute::device_json, type::character, std::span<const char>(json));
  maker.finish(*session->device);
  if (auto made = maker.result("a device's description"); !made) return invalid(made.error().message);
  return std::make_unique<Cudnn>(std::move(session));
}

std::string h100_description() {
  return R"({"cudaDeviceId":0,"deviceVer":900,"driverVer":13000,"deviceName":"NVIDIA H100 80GB HBM3",)"
         R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
         R"("multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
         R"("maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,)"
         R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)"
         R"("supportCoopLaunch":1,"totalGlobalMem":85017493504,"smClockRateKHz":1980000,)"
         R"("memClockRateKHz":2619000,"l2CacheSize":52428800})";
}

}  // namespace carillon::engine::cuda
