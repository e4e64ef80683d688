#include "carillon/engine/second/runtime.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <openvino/op/if.hpp>
#include <openvino/openvino.hpp>
#include <tbb/task_arena.h>

#include "carillon/base/bytes.h"
#include "carillon/engine/openvino/module/data_watch.h"
#include "carillon/engine/openvino/module/doubles.h"
#include "carillon/engine/openvino/module/guard.h"
#include "carillon/engine/openvino/module/loop_shapes.h"
#include "carillon/engine/openvino/module/nodes.h"
#include "carillon/engine/openvino/module/passed_on.h"
#include "carillon/engine/openvino/module/reading.h"
#include "carillon/engine/openvino/module/size_guards.h"
#include "carillon/engine/second/guarded.h"
#include "carillon/graph/bounded.h"

// OpenVINO's side of the boundary. Built as a module of its own; uses headers of ours alone.
namespace carillon::engine::second {
namespace {

using graph::DataType;

struct TypePair {
  DataType ours;
  ov::element::Type_t theirs;
};
constexpr TypePair types[] = {
    {DataType::f32, ov::element::Type_t::f32},         {DataType::f16, ov::element::Type_t::f16},
    {DataType::bf16, ov::element::Type_t::bf16},       {DataType::f64, ov::element::Type_t::f64},
    {DataType::i8, ov::element::Type_t::i8},           {DataType::i16, ov::element::Type_t::i16},
    {DataType::i32, ov::element::Type_t::i32},         {DataType::i64, ov::element::Type_t::i64},
    {DataType::u8, ov::element::Type_t::u8},           {DataType::u16, ov::element::Type_t::u16},
    {DataType::u32, ov::element::Type_t::u32},         {DataType::u64, ov::element::Type_t::u64},
    {DataType::boolean, ov::element::Type_t::boolean},
};

ov::Shape shape_of(const graph::Shape& shape) {
  return {shape.begin(), shape.end()};
}

ov::PartialShape open_shape_of(const graph::Shape& shape, ov::Dimension open) {
  std::vector<ov::Dimension> out;
  for (const std::int64_t extent : shape) out.push_back(extent < 0 ? open : ov::Dimension(extent));
  return out;
}

std::string name_of(const ov::Output<const ov::Node>& port) {
  // A result's node has the file's own name with the place behind; its port may have another's, or several.
  const auto& names = port.get_names();
  const std::string& friendly = port.get_node()->get_friendly_name();
  if (const std::size_t place = friendly.rfind("/sink_port_"); place != std::string::npos)
    return friendly.substr(0, place);
  if (names.contains(friendly)) return friendly;
  return names.empty() ? friendly : *std::ranges::min_element(names);
}

std::vector<Port> ports_of(const std::vector<ov::Output<const ov::Node>>& theirs) {
  std::vector<Port> out;
  for (const auto& port : theirs) {
    Port& made = out.emplace_back(Port{.name = name_of(port), .shape = {}});
    const auto type =
        std::ranges::find(types, ov::element::Type_t(port.get_element_type()), &TypePair::theirs);
    made.known = type != std::end(types);
    if (made.known) made.type = type->ours;
    const ov::PartialShape& shape = port.get_partial_shape();
    made.ranked = shape.rank().is_static();
    if (!made.ranked) continue;
    for (const ov::Dimension& extent : shape)
      made.shape.push_back(extent.is_static() ? extent.get_length() : -1);
  }
  return out;
}

// OpenVINO's CPU plugin computes whole numbers of 64 bits, and of 32 without a sign, in 32 bits with one. It
// cuts off what does not fit, without telling. Throws BadData, naming the input, for such a number.
template <typename Number>
void check_fits(const ov::Tensor& tensor, const std::string& name) {
  const auto* const begin = tensor.data<const Number>();
  const auto* const end = begin + tensor.get_size();
  const auto* const beyond =
      std::find_if_not(begin, end, [](Number value) { return std::in_range<std::int32_t>(value); });
  if (beyond != end)
    throw BadData("input '" + name + "' has the number " + std::to_string(*beyond) +
                  "; OpenVINO computes whole numbers in 32 bits: -2147483648 to 2147483647");
}
void check_whole_numbers(const ov::Tensor& tensor, const std::string& name) {
  if (tensor.get_element_type() == ov::element::i64) check_fits<std::int64_t>(tensor, name);
  if (tensor.get_element_type() == ov::element::u64) check_fits<std::uint64_t>(tensor, name);
  if (tensor.get_element_type() == ov::element::u32) check_fits<std::uint32_t>(tensor, name);
}

using ShapesOfInputs = std::map<ov::Output<ov::Node>, ov::PartialShape>;
ShapesOfInputs shapes_for(ov::Model& model, std::span<const graph::Shape> shapes,
                          ov::Dimension open = ov::Dimension()) {
  ShapesOfInputs out;
  for (std::size_t i = 0; i < shapes.size(); ++i) out[model.input(i)] = open_shape_of(shapes[i], open);
  return out;
}

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}
bool lacks_memory(const std::string& text) {
  return says(text, "bad_alloc") || says(text, "allocate memory");
}
// Whether an operator's own check failed, by OpenVINO's text: it names a node.
bool is_check_of_node(const std::string& text) {
  const bool named = says(text, "node with name '") || (says(text, "Node ") && says(text, " of type "));
  return named && !lacks_memory(text);
}

// The text without where in OpenVINO's sources its exceptions were thrown.
std::string without_places(const std::string& text) {
  const std::size_t last = text.rfind("Exception from ");
  const std::size_t end = last == std::string::npos ? last : text.find('\n', last);
  return end == std::string::npos ? text : text.substr(end + 1);
}

// Where a model runs that has one thread. OpenVINO's own stream of one thread loses exceptions: infer()
// returns as if it had gone well, the outputs are those of the run before, and the next run on that thread
// begins with the one that failed, whose request may be gone. Without streams infer() runs in the arena that
// calls it, and throws.
class OneThread {
 public:
  template <typename Body>
  auto run(const Body& body) {
    return arena_.execute(body);
  }

 private:
  tbb::task_arena arena_{1};
};

// A compiled model that is compiled anew after a run that failed: OpenVINO's nodes take in a run's sizes
// before they refuse them, and the next run of the earlier sizes would fail, too. Any number of threads may
// use it.
class Renewable {
 public:
  using Compile = std::function<ov::CompiledModel()>;

  // `compile`: none where each result is an input as it is.
  Renewable(std::optional<ov::CompiledModel> model, Compile compile)
      : model_(std::move(model)), compile_(std::move(compile)) {}

  // Takes long after a run that failed.
  void renew() {
    const std::lock_guard lock(mutex_);
    compile_where_needed();
  }
  // Brings a request and the number of its compilation, 0 for none yet, up to what is compiled now.
  void renew(std::optional<ov::InferRequest>& request, std::uint64_t& compilation) {
    if (!compile_) return;
    const std::lock_guard lock(mutex_);
    compile_where_needed();
    if (compilation == compilation_) return;
    request = model_->create_infer_request();
    compilation = compilation_;
  }
  // A run of that compilation failed. Returns whether another had failed before, which may be why.
  bool failed(std::uint64_t compilation) {
    const std::lock_guard lock(mutex_);
    const bool before = !model_ || compilation != compilation_;
    if (compilation == compilation_) model_.reset();
    return before;
  }

 private:
  void compile_where_needed() {
    if (model_ || !compile_) return;
    model_ = compile_();
    ++compilation_;
  }

  std::mutex mutex_;
  std::optional<ov::CompiledModel> model_;
  const Compile compile_;
  std::uint64_t compilation_ = 1;
};

// What all requests to a compiled model share.
struct Shared {
  std::unique_ptr<Renewable> whole;
  PassedOn passed_on;
  std::vector<ov::Output<const ov::Node>> inputs;   // as they were before results were taken out
  std::vector<std::string> outputs;                 // their names, likewise
  std::vector<ov::Output<const ov::Node>> results;  // of what is compiled; behind its own what is watched
  DataWatch watch;
  std::shared_ptr<Faults> faults = std::make_shared<Faults>();  // of the run under way
  mutable std::mutex running;  // held while one is: inside OpenVINO others would wait, too
  bool one_thread = false;
  std::shared_ptr<const ov::Model> model;  // as it was before results were taken out
  mutable std::atomic<bool> ran = false;   // well, once at least

  // Whether the data of a run decide sizes inside the model, where the inputs have these shapes.
  bool data_decide_sizes(std::span<const graph::Shape> shapes) const {
    const auto at = model->clone();
    at->reshape(shapes_for(*at, shapes));
    const auto ops = at->get_ordered_ops();
    return std::ranges::any_of(ops, [](const auto& node) {
      return std::ranges::any_of(node->outputs(),
                                 [](const auto& each) { return each.get_partial_shape().is_dynamic(); });
    });
  }
};

class RequestOf final : public Request {
 public:
  explicit RequestOf(std::shared_ptr<const Shared> shared)
      : shared_(std::move(shared)), given_(shared_->inputs.size()) {
    if (shared_->one_thread) thread_.emplace();
    shared_->whole->renew(request_, compilation_);
  }

  Ran run(std::span<const std::byte* const> inputs, std::span<const graph::Shape> shapes,
          std::span<std::byte* const> outputs, std::span<const graph::Shape> output_shapes) override {
    Ran out;
    out.error = guarded([&] {
      try {
        run_or_throw(inputs, shapes, outputs, output_shapes);
      } catch (const BadData&) {
        out.bad_data = true;
        throw;
      }
    });
    out.stale = std::exchange(stale_, false);
    return out;
  }

 private:
  void run_or_throw(std::span<const std::byte* const> inputs, std::span<const graph::Shape> shapes,
                    std::span<std::byte* const> outputs, std::span<const graph::Shape> output_shapes) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      // Inputs are only read; tensors know no such thing.
      given_[i] =
          ov::Tensor(shared_->inputs[i].get_element_type(), shape_of(shapes[i]),
                     const_cast<std::byte*>(inputs[i]));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
      check_whole_numbers(given_[i], name_of(shared_->inputs[i]));
    }
    infer(shapes, outputs, output_shapes);
    shared_->watch.check([&](std::size_t i) { return result(i); });
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (fixed(i)) continue;
      const ov::Tensor made = result(i);
      const std::string& name = shared_->outputs[i];
      if (bounded(output_shapes[i])) {
        put_bounded(made, output_shapes[i], outputs[i], name);
        continue;
      }
      const ov::Shape said = shape_of(output_shapes[i]);
      // Of nothing OpenVINO's Reshape may make another shape than it said; no element is in the wrong place.
      if (made.get_shape() != said && (made.get_size() > 0 || ov::shape_size(said) > 0))
        throw std::runtime_error("output '" + name + "' came out with shape " + made.get_shape().to_string() +
                                 ", and not with " + graph_text(output_shapes[i]) + " as its operators said");
      if (made.get_byte_size() > 0) std::memcpy(outputs[i], made.data(), made.get_byte_size());
    }
  }
  // To what is compiled now.
  void bind(std::span<std::byte* const> outputs, std::span<const graph::Shape> output_shapes) {
    shared_->whole->renew(request_, compilation_);
    if (!request_) return;
    for (std::size_t i = 0; i < given_.size(); ++i) request_->set_input_tensor(i, given_[i]);
    // Where the file leaves no extent open results are written where they are wanted. Else OpenVINO would
    // want to choose the place.
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!fixed(i)) continue;
      const std::size_t output = shared_->passed_on.output_of(i);
      const ov::Tensor bound(shared_->results[output].get_element_type(), shape_of(output_shapes[i]),
                             outputs[i]);
      if (shared_->watch.may_leave()) std::memset(outputs[i], 0, bound.get_byte_size());
      request_->set_output_tensor(output, bound);
    }
  }
  void infer(std::span<const graph::Shape> shapes, std::span<std::byte* const> outputs,
             std::span<const graph::Shape> output_shapes) {
    const std::lock_guard lock(shared_->running);
    const auto throw_fault = [&] {
      if (const std::string fault = shared_->faults->take(); !fault.empty()) throw BadData(fault);
    };
    shared_->faults->take();
    for (bool again = false;; again = true) {
      bind(outputs, output_shapes);
      try {
        infer_once();
        break;
      } catch (const ov::Exception& error) {
        const bool others_failed = shared_->whole->failed(compilation_);
        if (others_failed && !again) continue;
        stale_ = true;
        throw_fault();
        refuse(error, shapes);
      }
    }
    shared_->ran = true;
    throw_fault();
  }
  [[noreturn]] void refuse(const ov::Exception& error, std::span<const graph::Shape> shapes) {
    const std::string text = error.what();
    // Where the data decide extents they may not fit together.
    if (shared_->watch.may_leave() && !lacks_memory(text)) throw BadData(without_places(text));
    if (is_check_of_node(text) && (shared_->data_decide_sizes(shapes) ||
                                   (fails_again(text) && (shared_->ran || runs_on_zeros(shapes)))))
      throw BadData(without_places(text));
    throw std::runtime_error(is_check_of_node(text) ? without_places(text) : text);
  }
  void infer_once() {
    if (!request_) return;
    if (thread_)
      thread_->run([&] { request_->infer(); });
    else
      request_->infer();
  }
  // Where all sizes are known the data are at fault if an operator refuses them each time, and others have
  // run. (Where data decide sizes a second run shows nothing: nodes have taken in those that were refused.)
  bool fails_again(const std::string& text) {
    try {
      infer_once();
    } catch (const ov::Exception& error) {
      return text == error.what();
    }
    return false;
  }
  bool runs_on_zeros(std::span<const graph::Shape> shapes) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      ov::Tensor zeros(shared_->inputs[i].get_element_type(), shape_of(shapes[i]));
      if (zeros.get_byte_size() > 0) std::memset(zeros.data(), 0, zeros.get_byte_size());
      request_->set_input_tensor(i, zeros);
    }
    try {
      infer_once();
    } catch (const ov::Exception&) {
      return false;
    }
    shared_->ran = true;
    return true;
  }

  // Whether the result's memory can be bound.
  bool fixed(std::size_t result) const {
    const PassedOn& passed_on = shared_->passed_on;
    return !passed_on.input_of(result) &&
           shared_->results[passed_on.output_of(result)].get_partial_shape().is_static();
  }
  ov::Tensor result(std::size_t which) {
    if (const auto input = shared_->passed_on.input_of(which)) return given_[*input];
    return request_->get_output_tensor(shared_->passed_on.output_of(which));
  }
  static bool bounded(const graph::Shape& shape) {
    return std::ranges::any_of(shape, [](std::int64_t extent) { return graph::is_bounded(extent); });
  }
  // The elements, and behind as many as there can be the extents, as graph::memory_of() has room for them.
  static void put_bounded(const ov::Tensor& made, const graph::Shape& shape, std::byte* to,
                          const std::string& name) {
    const ov::Shape& is = made.get_shape();
    std::uint64_t room = made.get_element_type().size();
    bool fits = is.size() == shape.size();
    std::vector<std::int64_t> extents;
    for (std::size_t d = 0; fits && d < shape.size(); ++d) {
      const std::int64_t most =
          graph::is_bounded(shape[d]) ? graph::bounded_dimension(0) - shape[d] : shape[d];
      extents.push_back(static_cast<std::int64_t>(is[d]));
      fits = graph::is_bounded(shape[d]) ? extents[d] <= most : extents[d] == most;
      room *= static_cast<std::uint64_t>(most);
    }
    if (!fits)
      throw std::runtime_error("output '" + name + "' came out with shape " + is.to_string() +
                               ", beyond what its operators said");
    if (made.get_byte_size() > 0) std::memcpy(to, made.data(), made.get_byte_size());
    std::memcpy(to + round_up(room, sizeof(std::int64_t)), extents.data(),
                extents.size() * sizeof(std::int64_t));
  }
  static std::string graph_text(const graph::Shape& shape) { return shape_of(shape).to_string(); }

  const std::shared_ptr<const Shared> shared_;
  std::optional<ov::InferRequest> request_;
  std::uint64_t compilation_ = 0;  // that the request is of
  bool stale_ = false;             // Ran::stale
  std::vector<ov::Tensor> given_;  // the run's inputs
  std::optional<OneThread> thread_;
};

class CompiledOf final : public Compiled {
 public:
  explicit CompiledOf(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}
  std::string make_request(std::unique_ptr<Request>& into) override {
    return guarded([&] { into = std::make_unique<RequestOf>(shared_); });
  }
  std::string renew() override {
    return guarded([&] { shared_->whole->renew(); });
  }

 private:
  const std::shared_ptr<const Shared> shared_;
};

// The name of an If whose branches may give unlike numbers of dimensions; empty: there is none.
std::string if_of_unlike_ranks(const ov::Model& model) {
  std::string found;
  each_node(model, [&](const ov::Node& node, bool) {
    if (!found.empty() || !ov::is_type<ov::op::v8::If>(&node)) return;
    for (const auto& output : node.outputs())
      if (output.get_partial_shape().rank().is_dynamic()) found = node.get_friendly_name();
  });
  return found;
}

class NetworkOf final : public Network {
 public:
  NetworkOf(ov::Core& core, std::shared_ptr<ov::Model> model)
      : core_(core),
        model_(std::move(model)),
        inputs_(ports_of(std::as_const(*model_).inputs())),
        outputs_(ports_of(std::as_const(*model_).outputs())) {}

  const std::vector<Port>& inputs() const override { return inputs_; }
  const std::vector<Port>& outputs() const override { return outputs_; }

  std::string shapes_at(std::span<const graph::Shape> inputs,
                        std::vector<graph::Shape>& outputs) const override {
    return guarded([&] {
      const auto copy = model_->clone();
      copy->reshape(shapes_for(*copy, inputs));
      refuse_unwritten(*copy);
      outputs.clear();
      for (const Port& port : ports_of(std::as_const(*copy).outputs())) {
        if (!port.ranked)
          throw std::runtime_error("how many dimensions output '" + port.name + "' has depends on the data");
        outputs.push_back(port.shape);
      }
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const ov::PartialShape& shape = copy->output(i).get_partial_shape();
        for (std::size_t d = 0; d < outputs[i].size(); ++d)
          if (shape[d].is_dynamic() && shape[d].get_max_length() >= 0)
            outputs[i][d] = graph::bounded_dimension(shape[d].get_max_length());
      }
    });
  }

  std::string compile(const Options& options, std::unique_ptr<Compiled>& into) const override {
    return guarded([&] {
      const auto copy = model_->clone();
      // Extents of 0 were looked at for each size (shapes_at): what else may be empty the data decide.
      copy->reshape(shapes_for(*copy, options.inputs, ov::Dimension(1, -1)));
      refuse_doubles(*copy);
      const auto shared = std::make_shared<Shared>();
      guard_sizes(*copy, options.most_bytes, shared->faults);
      shared->watch = DataWatch::add(*copy);
      copy->reshape(shapes_for(*copy, options.inputs));
      shared->one_thread = options.threads == 1;
      shared->model = copy->clone();
      shared->inputs = std::as_const(*copy).inputs();
      for (const auto& output : std::as_const(*copy).outputs()) shared->outputs.push_back(name_of(output));
      ov::AnyMap wanted{ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY),
                        ov::num_streams(shared->one_thread ? 0 : 1), ov::hint::enable_cpu_pinning(false),
                        ov::hint::execution_mode(options.bf16 ? ov::hint::ExecutionMode::PERFORMANCE
                                                              : ov::hint::ExecutionMode::ACCURACY),
                        ov::hint::inference_precision(options.bf16 ? ov::element::bf16 : ov::element::f32)};
      wanted.insert(ov::inference_num_threads(options.threads));
      const auto compile = [core = std::make_shared<ov::Core>(core_), wanted,
                            one_thread = shared->one_thread](const std::shared_ptr<ov::Model>& model) {
        const auto compiled = [&] { return core->compile_model(model, "CPU", wanted); };
        return one_thread ? OneThread().run(compiled) : compiled();
      };
      std::optional<ov::CompiledModel> first;
      try {
        shared->passed_on = PassedOn::compile(copy, compile, first);
      } catch (const ov::Exception& error) {
        // The plugin names what it came upon, often a node behind the If.
        const std::string unlike = if_of_unlike_ranks(*shared->model);
        if (unlike.empty()) throw;
        throw std::runtime_error(
            "the branches of node '" + unlike +
            "' (If) may give unlike numbers of dimensions, which OpenVINO does not run: " + error.what());
      }
      if (first) shared->results = first->outputs();
      shared->whole = std::make_unique<Renewable>(
          first, first ? Renewable::Compile([copy, compile] { return compile(copy); }) : nullptr);
      into = std::make_unique<CompiledOf>(shared);
    });
  }

 private:
  ov::Core& core_;
  std::shared_ptr<ov::Model> model_;
  std::vector<Port> inputs_, outputs_;
};

class RuntimeOf final : public Runtime {
 public:
  std::string version() const override {
    const ov::Version version = ov::get_openvino_version();
    const std::string text = version.buildNumber == nullptr ? "" : version.buildNumber;
    return text.substr(0, text.find('-'));
  }
  std::string read(const std::string& file, std::unique_ptr<Network>& into) override {
    return guarded([&] {
      const auto model = read_onnx(core_, file);
      open_carried_shapes(*model);
      into = std::make_unique<NetworkOf>(core_, model);
    });
  }

 private:
  ov::Core core_;
};

}  // namespace
}  // namespace carillon::engine::second

extern "C" __attribute__((visibility("default"))) std::string carillon_module(
    std::unique_ptr<carillon::engine::second::Runtime>& into);
std::string carillon_module(std::unique_ptr<carillon::engine::second::Runtime>& into) {
  using namespace carillon::engine::second;
  return guarded([&] { into = std::make_unique<RuntimeOf>(); });
}
