#include "carillon/engine/second/second_engine.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#include "carillon/base/assert.h"
#include "carillon/engine/host/memory.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/onnx_import.h"
#include "carillon/graph/row_proof.h"
#include "carillon/graph/signature.h"
#include "carillon/graph/text.h"

namespace carillon::engine {
namespace {

namespace fs = std::filesystem;
using graph::Shape;
using graph::Signature;
using graph::TensorSpec;

// What such an engine says may be long (a stack of its own checks), and may quote the file.
std::unexpected<Error> told(const second::Kind& kind, ErrorCode code, std::string text) {
  constexpr std::size_t longest = 600;
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return fail(code, std::string(kind.title) + ": " + graph::printable(text, longest));
}

// A model that was read, with what is asked of it from several threads.
class SharedNetwork {
 public:
  SharedNetwork(const second::Kind& kind, std::unique_ptr<second::Network> network,
                std::shared_ptr<second::Runtime> runtime)
      : kind_(kind), runtime_(std::move(runtime)), network_(std::move(network)) {}

  const second::Kind& kind() const { return kind_; }

  const std::vector<second::Port>& inputs() const { return network_->inputs(); }

  Result<std::vector<TensorSpec>> outputs_at(const Signature::Question& question) {
    const std::lock_guard lock(mutex_);
    std::vector<Shape> shapes;
    if (auto error = network_->shapes_at(question.inputs, shapes); !error.empty())
      return told(kind_, network_->broken().empty() ? ErrorCode::invalid_argument : ErrorCode::unavailable,
                  std::move(error));
    std::vector<TensorSpec> out;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const second::Port& port = network_->outputs()[i];
      const std::string what = "output '" + port.name + "'";
      if (!port.known) return fail(ErrorCode::unsupported, what + " is of a type that is not served");
      if (std::ranges::any_of(shapes[i],
                              [](std::int64_t extent) { return extent < 0 && !graph::is_bounded(extent); }))
        return fail(ErrorCode::unsupported, what + " " + graph::to_text(graph::bounds_of(shapes[i])) +
                                                ": how long it is where -1 stands depends on the data, and "
                                                "there is no telling how long at most");
      if (auto most = graph::element_count(graph::bounds_of(shapes[i])); !most)
        return in_context(what, most.error());
      out.push_back({.name = port.name, .type = port.type, .shape = std::move(shapes[i])});
    }
    return out;
  }

  Result<std::unique_ptr<second::Compiled>> compile(const second::Network::Options& options) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<second::Compiled> out;
    if (auto error = network_->compile(options, out); !error.empty())
      return told(kind_, ErrorCode::unsupported, std::move(error));
    return out;
  }

 private:
  const second::Kind& kind_;
  std::shared_ptr<second::Runtime> runtime_;  // outlives what it made
  std::mutex mutex_;
  std::unique_ptr<second::Network> network_;
};

class FileModel final : public graph::SignedModel {
 public:
  FileModel(std::string name, std::shared_ptr<SharedNetwork> network, Signature signature)
      : name_(std::move(name)), network_(std::move(network)) {
    set_signature(std::move(signature));
  }

  const std::string& name() const override { return name_; }
  Result<graph::Graph> specialize(std::int64_t, std::int64_t) const override {
    return fail(ErrorCode::unsupported,
                "the model was read by " + std::string(network_->kind().title) + ", which shows no graph");
  }

  const std::shared_ptr<SharedNetwork>& network() const { return network_; }

  // Rows were proven apart at the reference by this graph of the file, and are to be at other extents, too.
  void proves_by(graph::OnnxGraph graph) { graph_ = std::move(graph); }
  Result<> prove_rows_at(std::int64_t batch, std::span<const std::int64_t> extents) const {
    return graph_ ? graph::prove_rows_at(*graph_, signature(), batch, extents, nullptr, nullptr) : Result<>{};
  }

 private:
  std::optional<graph::OnnxGraph> graph_;
  std::string name_;
  std::shared_ptr<SharedNetwork> network_;
};

// A run that is only ended where nobody waits for it any more.
class GivenUp final : public Interruptible {
 public:
  explicit GivenUp(second::Request& request) : request_(request) {}
  void interrupt() override {}
  void give_up() override { request_.give_up(); }

 private:
  second::Request& request_;
};

// A model that runs, and its requests, of which each run takes one.
class Runner {
 public:
  Runner(std::shared_ptr<SharedNetwork> network, std::unique_ptr<second::Compiled> compiled)
      : network_(std::move(network)), compiled_(std::move(compiled)) {}

  // False: it was told to stop, and has not begun. Errors: bad data (invalid_argument), what else fails
  // (internal).
  Result<bool> run(std::span<const std::byte* const> inputs, std::span<const Shape> shapes,
                   std::span<std::byte* const> outputs, std::span<const Shape> output_shapes,
                   StopSignal* stop) const {
    auto request = take();
    if (!request) return std::unexpected(request.error());
    GivenUp inside(**request);
    if (stop != nullptr) stop->set_inside(&inside);
    (*request)->count_steps(stop);
    const bool stopped = stop != nullptr && stop->requested();  // by who came before that
    second::Ran ran;
    if (!stopped) ran = (*request)->run(inputs, shapes, outputs, output_shapes);
    if (stop != nullptr) stop->set_inside(nullptr);
    // One that failed otherwise may be in any state.
    if (ran.error.empty() || ran.bad_data) give(std::move(*request));
    if (!ran.error.empty())
      return told(network_->kind(), ran.bad_data ? ErrorCode::invalid_argument : ErrorCode::internal,
                  std::move(ran.error));
    return !stopped;
  }

  Result<> usable() const {
    if (auto why = compiled_->broken(); !why.empty())
      return told(network_->kind(), ErrorCode::unavailable, std::move(why));
    return {};
  }
  std::uint64_t resident() const { return compiled_->resident(); }

  // Makes the first request, ahead of any run.
  Result<> prepare() const {
    auto request = take();
    if (!request) return std::unexpected(request.error());
    give(std::move(*request));
    return {};
  }

 private:
  Result<std::unique_ptr<second::Request>> take() const {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto request = std::move(idle_.back());
        idle_.pop_back();
        return request;
      }
    }
    std::unique_ptr<second::Request> made;
    if (auto error = compiled_->make_request(made); !error.empty())
      return told(network_->kind(), ErrorCode::internal, std::move(error));
    return made;
  }
  void give(std::unique_ptr<second::Request> request) const {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(request));
  }

  std::shared_ptr<SharedNetwork> network_;  // its libraries outlive what they made
  std::unique_ptr<second::Compiled> compiled_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<second::Request>> idle_;
};

class OpaquePlan final : public Plan {
 public:
  OpaquePlan(std::shared_ptr<const Runner> runner, std::string name, int batch,
             const std::vector<TensorSpec>& inputs, Signature::Question question,
             std::vector<TensorSpec> outputs)
      : runner_(std::move(runner)),
        name_(std::move(name)),
        batch_(batch),
        shapes_(std::move(question.inputs)),
        outputs_(std::move(outputs)) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      inputs_.push_back({.name = inputs[i].name, .type = inputs[i].type, .shape = shapes_[i]});
    for (const TensorSpec& output : outputs_) output_shapes_.push_back(output.shape);
  }

  int batch() const override { return batch_; }
  std::span<const TensorSpec> inputs() const override { return inputs_; }
  std::span<const TensorSpec> outputs() const override { return outputs_; }
  Bytes workspace() const override { return {}; }
  int kernels() const override { return 1; }
  std::string_view kernel_name(int) const override { return name_; }

  Result<> run(KernelRange range, const Binding& binding, std::span<Duration> durations, StopSignal* stop,
               Pacer* pacer) const override {
    CARILLON_ASSERT(0 <= range.first && range.first <= range.last && range.last <= 1);
    CARILLON_ASSERT(binding.inputs.size() == inputs_.size() && binding.outputs.size() == outputs_.size());
    CARILLON_ASSERT(durations.empty() || durations.size() == 1);
    if (stop != nullptr) stop->next = range.first;
    if (range.first == range.last) return {};
    const auto stopped = [&] { return stop != nullptr && stop->requested(); };
    if (stopped()) return {};
    if (pacer != nullptr) pacer->begin();
    const auto begin = std::chrono::steady_clock::now();
    const auto ran = runner_->run(binding.inputs, shapes_, binding.outputs, output_shapes_, stop);
    if (!durations.empty()) durations[0] = std::chrono::steady_clock::now() - begin;
    if (pacer != nullptr) pacer->end(stopped);
    if (stop != nullptr && (!ran || *ran)) stop->next = range.last;  // one that failed is over, too
    if (!ran) return std::unexpected(ran.error());
    return {};
  }

 private:
  std::shared_ptr<const Runner> runner_;
  std::string name_;
  int batch_;
  std::vector<Shape> shapes_;
  std::vector<TensorSpec> inputs_, outputs_;
  std::vector<Shape> output_shapes_;
};

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return file ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

class OpaqueModel final : public CompiledModel {
 public:
  OpaqueModel(std::shared_ptr<const FileModel> source, std::shared_ptr<const Runner> runner,
              std::vector<int> batch_sizes, bool pads)
      : source_(std::move(source)),
        runner_(std::move(runner)),
        batch_sizes_(std::move(batch_sizes)),
        pads_(pads) {}

  Result<> add_plans() {
    std::vector<std::int64_t> lengths(lengths_of().begin(), lengths_of().end());
    if (lengths.empty()) lengths.push_back(0);
    for (const int batch : batch_sizes_)
      for (const std::int64_t length : lengths) {
        auto plan = make_plan(batch, source_->signature().at(batch, length));
        if (!plan) return std::unexpected(plan.error());
        plans_[{batch, length}] = std::move(*plan);
      }
    return {};
  }
  void set_taken(Bytes taken) { taken_ = taken; }
  Bytes taken() const { return taken_; }

  const std::vector<TensorSpec>& inputs() const override { return source_->inputs(); }
  const std::vector<TensorSpec>& outputs() const override { return source_->outputs(); }
  Bytes weights() const override { return {}; }
  Result<> write_weights(std::uint64_t offset, std::span<std::byte> to) const override {
    CARILLON_ASSERT(offset == 0 && to.empty());
    return {};
  }
  std::span<const int> batch_sizes() const override { return batch_sizes_; }
  std::span<const std::int64_t> lengths() const override { return lengths_of(); }
  bool pads() const override { return pads_; }
  std::span<const std::int64_t> reference() const override { return source_->reference(); }
  Result<> usable() const override { return runner_->usable(); }
  // Of this process where it runs here, else of its own.
  ModelMemory memory() const override {
    if (const std::uint64_t now = runner_->resident(); now > 0) return {.processes = Bytes{now}};
    return {.plans = taken_};
  }
  const Plan* plan(int batch, std::int64_t length) const override {
    const auto found = plans_.find({batch, length});
    return found == plans_.end() ? nullptr : found->second.get();
  }
  Result<std::vector<std::unique_ptr<const Plan>>> make_plans(std::span<const std::int64_t> extents,
                                                              std::span<const int> batches,
                                                              const std::atomic<bool>* ended) const override {
    if (!open()) return CompiledModel::make_plans(extents, batches, ended);
    std::vector<std::unique_ptr<const Plan>> out;
    for (const int batch : batches) {
      if (ended != nullptr && *ended) return fail(ErrorCode::cancelled, "nobody wants the plan any more");
      if (auto ok = source_->prove_rows_at(batch, extents); !ok) return std::unexpected(ok.error());
      auto plan = make_plan(batch, source_->signature().at_extents(batch, extents));
      if (!plan) return std::unexpected(plan.error());
      out.push_back(std::move(*plan));
    }
    return out;
  }

 private:
  std::span<const std::int64_t> lengths_of() const { return source_->signature().lengths(); }
  Result<std::unique_ptr<const Plan>> make_plan(int batch, Result<Signature::Question> question) const {
    if (!question) return std::unexpected(question.error());
    auto outputs = source_->network()->outputs_at(*question);
    if (!outputs) return std::unexpected(outputs.error());
    return std::make_unique<OpaquePlan>(runner_,
                                        source_->name() + " " + std::string(source_->network()->kind().name),
                                        batch, source_->inputs(), std::move(*question), std::move(*outputs));
  }

  std::shared_ptr<const FileModel> source_;
  std::shared_ptr<const Runner> runner_;
  std::vector<int> batch_sizes_;
  bool pads_;
  Bytes taken_;
  std::map<std::pair<int, std::int64_t>, std::unique_ptr<const Plan>> plans_;
};

// What a format of the engine's own says of its inputs, which have no symbols.
Result<std::vector<Signature::Input>> inputs_of(const std::vector<second::Port>& ports) {
  std::vector<Signature::Input> out;
  for (const second::Port& port : ports) {
    if (!port.known)
      return fail(ErrorCode::unsupported, "input '" + port.name + "' is of a type that is not served");
    Signature::Input& input =
        out.emplace_back(Signature::Input{.name = port.name, .type = port.type, .ranked = port.ranked});
    for (const std::int64_t extent : port.shape) input.dimensions.push_back({.extent = extent, .symbol = ""});
  }
  return out;
}

// The outline's inputs in the engine's order.
Result<std::vector<Signature::Input>> in_order(std::vector<Signature::Input> inputs,
                                               const std::vector<second::Port>& ports,
                                               const std::string& title) {
  std::vector<Signature::Input> out;
  for (const second::Port& port : ports) {
    const auto found = std::ranges::find(inputs, port.name, &Signature::Input::name);
    if (found == inputs.end())
      return fail(ErrorCode::unsupported, title + ": input '" + port.name + "' is not one of the file's");
    if (!port.known || port.type != found->type)
      return fail(ErrorCode::unsupported,
                  title + ": input '" + port.name + "' is taken for another type than the file's");
    out.push_back(*found);
  }
  if (out.size() != inputs.size())
    return fail(ErrorCode::unsupported, title + ": " + std::to_string(inputs.size() - out.size()) +
                                            " of the file's inputs are not there");
  return out;
}

fs::path running_program() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error);
}

// As packaging/build-wheel puts it: PACKAGE/_bin/carillon, and beside _bin what starts it.
bool is_of_wheel(const fs::path& program) {
  std::error_code error;
  const fs::path folder = program.parent_path();
  return folder.filename() == "_bin" && fs::exists(folder.parent_path() / "_launch.py", error);
}

std::vector<fs::path> module_places(const second::Kind& kind) {
  const std::string name = "libcarillon_" + std::string(kind.name) + ".so";
  const fs::path folder = running_program().parent_path();
  if (folder.empty()) return {};
  return {folder / name, folder.parent_path() / "lib" / "carillon" / name};
}

class SecondEngine final : public ReadingEngine {
 public:
  SecondEngine(const second::Kind& kind, SecondOptions options, std::shared_ptr<second::Runtime> runtime)
      : kind_(kind), options_(std::move(options)), runtime_(std::move(runtime)) {
    CARILLON_ASSERT(options_.threads >= 1);
    // Here, and not when it is first needed: that may be on a thread of low priority.
    std::string tried;
    if (runtime_ == nullptr && options_.apart && find_module(tried))
      starter_ = std::make_shared<second::Starter>();
  }

  std::string_view name() const override { return kind_.name; }

  Result<> available() override {
    if (runtime_ != nullptr) return {};
    if (!tried_) tried_ = load();
    return *tried_;
  }
  std::string version() override { return available() ? runtime_->version() : ""; }
  bool reads_alone(const fs::path& file) const override {
    return !kind_.format.empty() && file.extension() == kind_.format;
  }

  Result<std::shared_ptr<const graph::Model>> read(const fs::path& file,
                                                   const graph::ImportOptions& options) override {
    if (auto there = available(); !there) return std::unexpected(there.error());
    const std::string where = "model file '" + file.string() + "'";
    graph::OnnxOutline outline;
    if (reads_alone(file)) {
      std::error_code error;
      outline.bytes_on_disk = fs::file_size(file, error);
      if (error) return fail(ErrorCode::not_found, where + ": cannot open it: " + error.message());
      if (const auto weights = fs::file_size(fs::path(file).replace_extension(".bin"), error); !error)
        outline.bytes_on_disk += weights;
      outline.name = file.stem().string();
    } else {
      auto found = graph::outline_onnx(file);
      if (!found) return std::unexpected(found.error());
      outline = std::move(*found);
      if (kind_.misreads_nodes && !outline.misread_node.empty())
        return fail(ErrorCode::unsupported, where + ": " + outline.misread_node);
    }
    // It is read, and then brought into the layouts that kernels want.
    if (const auto left = available_memory(); left && left->count / 2 < outline.bytes_on_disk)
      return fail(ErrorCode::resource_exhausted,
                  where + ": it has " + to_text(Bytes{outline.bytes_on_disk}) + ", of which " + title() +
                      " needs twice as much, and the machine has " + to_text(*left) + " left");
    std::unique_ptr<second::Network> network;
    if (auto error = runtime_->read(file.string(), network); !error.empty())
      return in_context(where, told(kind_, ErrorCode::invalid_argument, std::move(error)).error());
    const auto shared = std::make_shared<SharedNetwork>(kind_, std::move(network), runtime_);
    auto inputs = reads_alone(file) ? inputs_of(shared->inputs())
                                    : in_order(std::move(outline.inputs), shared->inputs(), title());
    if (!inputs) return in_context(where, inputs.error());
    std::optional<graph::OnnxGraph> graph;  // once it was wanted for the proof
    auto signature = Signature::find(
        std::move(*inputs), options,
        [&](const Signature::Question& question) { return shared->outputs_at(question); },
        [&](const Signature& found, std::span<const int> sizes) {
          return why_not(file, found, sizes, graph);
        });
    if (!signature) return in_context(where, signature.error());
    const bool proves = options.wants_proof() && signature->free().any() && signature->batched() &&
                        signature->unproven().empty();
    auto model = std::make_shared<FileModel>(outline.name, shared, std::move(*signature));
    if (proves && graph) model->proves_by(*std::move(graph));
    return model;
  }

  Result<std::shared_ptr<const CompiledModel>> compile(const graph::Model& model,
                                                       const CompileOptions& options) override {
    const auto source = std::dynamic_pointer_cast<const FileModel>(model.weak_from_this().lock());
    if (source == nullptr)
      return fail(ErrorCode::unsupported, title() + " compiles only models that it has read itself");
    if (auto has = has_precision(options.precision, title()); !has)
      return in_context("model \"" + model.name() + "\"", has.error());
    const auto& sizes = options.batch_sizes;
    if (sizes.empty() || sizes.front() < 1 ||
        std::ranges::adjacent_find(sizes, std::greater_equal<>()) != sizes.end())
      return invalid("model \"" + model.name() +
                     "\": batch sizes must be ascending, distinct and at least 1");
    second::Network::Options wanted{.inputs = {},
                                    .threads = options.one_thread ? 1 : options_.threads,
                                    .bf16 = options.precision == Precision::bf16,
                                    .most_bytes = options_.workspace.count};
    for (const TensorSpec& input : source->inputs()) {
      Shape& shape = wanted.inputs.emplace_back(input.shape);
      for (std::int64_t& extent : shape) {
        if (extent == graph::batch_dimension && sizes.size() == 1) extent = sizes.front();
        if (extent == graph::length_dimension && source->lengths().size() == 1)
          extent = source->lengths().front();
        extent = std::max<std::int64_t>(extent, -1);
      }
    }
    const std::uint64_t before = resident_bytes();
    auto compiled = source->network()->compile(wanted);
    if (!compiled) return std::unexpected(compiled.error());
    auto runner = std::make_shared<const Runner>(source->network(), std::move(*compiled));
    if (auto ok = runner->prepare(); !ok) return std::unexpected(ok.error());
    const std::uint64_t there = runner->resident();  // a process of its own has nothing else
    const std::uint64_t after = there > 0 ? before + there : resident_bytes();
    auto out = std::make_shared<OpaqueModel>(source, std::move(runner), sizes, options.pads);
    out->set_taken(Bytes{after > before ? after - before : 0});
    if (auto ok = out->add_plans(); !ok) return std::unexpected(ok.error());
    return out;
  }

  void end_loading() override {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    if (runtime_ != nullptr) runtime_->end_loading();
  }

  Bytes taken(const CompiledModel& model) const override {
    const auto* const mine = dynamic_cast<const OpaqueModel*>(&model);
    return mine == nullptr ? Bytes{} : mine->taken();
  }

 private:
  std::string title() const { return std::string(kind_.title); }

  // Rows are proven apart by our own graph of the file, whoever runs it. The file is read into `graph` where
  // that is empty.
  std::string why_not(const fs::path& file, const Signature& signature, std::span<const int> sizes,
                      std::optional<graph::OnnxGraph>& graph) const {
    if (reads_alone(file)) return "a file of " + title() + "'s own format is not looked into";
    if (!graph) {
      auto source = graph::read_onnx(file);
      if (!source) return "its graph is not known: " + source.error().message;
      graph = *std::move(source);
    }
    return graph::why_not_row_by_row(*graph, signature, sizes, nullptr);
  }

  Result<> load() {
    const std::string remedy(remedy_of(kind_, running_program()));
    std::string tried;
    const auto place = find_module(tried);
    if (!place)
      return fail(
          ErrorCode::unavailable,
          "there is no module for " + title() + " (looked for " + tried + ")" +
              (is_of_wheel(running_program()) ? "; the wheel was made of a build without it" : remedy));
    if (options_.apart) {
      if (starter_ == nullptr) starter_ = std::make_shared<second::Starter>();  // it came meanwhile
      return start_apart(*place);
    }
    // Never closed: what it made may live for as long as the program.
    void* const module = ::dlopen(place->c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr)
      return fail(ErrorCode::unavailable,
                  "the module " + place->string() + " cannot be loaded: " + ::dlerror() + remedy);
    const auto make = reinterpret_cast<second::EntryPoint>(::dlsym(module, second::entry_point));
    if (make == nullptr)
      return fail(ErrorCode::unavailable, place->string() + " is not a module of this program");
    std::unique_ptr<second::Runtime> made;
    if (auto text = make(made); !text.empty()) return told(kind_, ErrorCode::unavailable, std::move(text));
    take(std::move(made));
    return {};
  }

  // Where its module is; `tried`: where it is not.
  std::optional<fs::path> find_module(std::string& tried) const {
    for (const fs::path& place :
         options_.module.empty() ? module_places(kind_) : std::vector<fs::path>{options_.module}) {
      std::error_code error;
      if (fs::exists(place, error)) return place;
      tried += (tried.empty() ? "" : ", ") + place.string();
    }
    return std::nullopt;
  }

  Result<> start_apart(const fs::path& module) {
    second::ApartOptions options = options_.processes;
    options.process.module = fs::absolute(module);
    if (options.process.program.empty())
      options.process.program =
          options.process.module.parent_path() / ("carillon-" + std::string(kind_.name));
    auto made = second::make_apart_runtime(options, starter_);
    if (!made) {
      // What loads it says that a library is missing; nothing else is a matter of what is installed.
      const bool missing = made.error().message.contains("cannot be loaded: ");
      auto error = told(kind_, made.error().code, std::move(made.error().message));
      if (missing) error.error().message += remedy_of(kind_, running_program());
      return error;
    }
    take(std::move(*made));
    return {};
  }
  void take(std::shared_ptr<second::Runtime> runtime) {
    const std::lock_guard lock(mutex_);
    runtime_ = std::move(runtime);
    if (ended_) runtime_->end_loading();
  }

  const second::Kind& kind_;
  const SecondOptions options_;
  std::shared_ptr<second::Starter> starter_;
  std::mutex mutex_;  // of what end_loading() wants, which comes from other threads
  std::shared_ptr<second::Runtime> runtime_;
  bool ended_ = false;
  std::optional<Result<>> tried_;
};

}  // namespace

std::string_view remedy_of(const second::Kind& kind, const fs::path& program) {
  return is_of_wheel(program) ? kind.wheel_remedy : kind.remedy;
}

std::shared_ptr<ReadingEngine> make_second_engine(const second::Kind& kind, const SecondOptions& options) {
  return make_second_engine(kind, options, nullptr);
}

std::shared_ptr<ReadingEngine> make_second_engine(const second::Kind& kind, const SecondOptions& options,
                                                  std::shared_ptr<second::Runtime> runtime) {
  return std::make_shared<SecondEngine>(kind, options, std::move(runtime));
}

}  // namespace carillon::engine
