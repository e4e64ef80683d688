#include "carillon/engine/second/runtime.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

// The library may be older than these headers: it is asked for first (carillon_module).
#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>
#include <onnxruntime_session_options_config_keys.h>

#include "carillon/engine/second/guarded.h"
#include "carillon/graph/bounded.h"

// onnxruntime's side of the boundary. Built as a module of its own; uses headers of ours alone.
namespace carillon::engine::second {
namespace {

using graph::DataType;

struct TypePair {
  DataType ours;
  ONNXTensorElementDataType theirs;
  std::size_t size;
};
// Texts have forms of their own on either side.
constexpr TypePair types[] = {
    {DataType::f32, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4},
    {DataType::f16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2},
    {DataType::bf16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, 2},
    {DataType::f64, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8},
    {DataType::i8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1},
    {DataType::i16, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, 2},
    {DataType::i32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4},
    {DataType::i64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8},
    {DataType::u8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1},
    {DataType::u16, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, 2},
    {DataType::u32, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, 4},
    {DataType::u64, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, 8},
    {DataType::boolean, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1},
};

std::string text_of(const graph::Shape& shape) {
  std::string out = "[";
  for (const std::int64_t extent : shape)
    out += (out.size() > 1 ? "," : "") + (extent < 0 ? std::string("?") : std::to_string(extent));
  return out + "]";
}

std::size_t bytes_of(const TypePair& type, const graph::Shape& shape) {
  std::size_t out = type.size;
  for (const std::int64_t extent : shape) out *= static_cast<std::size_t>(extent);
  return out;
}

// A model file, and what it says of its inputs and outputs.
struct File {
  std::string path;
  std::vector<Port> inputs, outputs;
  std::vector<std::vector<std::string>> symbols;  // of the inputs' dimensions; empty where they have none
};

using Extents = std::map<std::string, std::int64_t>;  // of dimensions, by name

Port port_of(std::string name, const Ort::TypeInfo& info, std::vector<std::string>& symbols) {
  Port out{.name = std::move(name), .shape = {}};
  if (info.GetONNXType() != ONNX_TYPE_TENSOR) return out;
  const auto tensor = info.GetTensorTypeAndShapeInfo();
  const auto* const type = std::ranges::find(types, tensor.GetElementType(), &TypePair::theirs);
  out.known = type != std::end(types);
  if (out.known) out.type = type->ours;
  out.ranked = true;
  out.shape = tensor.GetShape();
  std::vector<const char*> names(out.shape.size(), "");
  if (!names.empty()) tensor.GetSymbolicDimensions(names.data(), names.size());
  symbols.assign(names.begin(), names.end());
  return out;
}

const TypePair& type_of(const Port& port) {
  const auto* const found = std::ranges::find(types, port.type, &TypePair::ours);
  if (!port.known || found == std::end(types))
    throw std::invalid_argument("'" + port.name + "' is of a type that is not served");
  return *found;
}

// `known`: what the file says of an output where no operator does is believed of these dimensions; each run
// looks whether it is so.
std::vector<Port> outputs_of(const Ort::Session& session, const Extents& known) {
  const Ort::AllocatorWithDefaultOptions allocator;
  std::vector<Port> out;
  for (std::size_t i = 0; i < session.GetOutputCount(); ++i) {
    std::vector<std::string> symbols;
    Port& port = out.emplace_back(
        port_of(session.GetOutputNameAllocated(i, allocator).get(), session.GetOutputTypeInfo(i), symbols));
    for (std::size_t d = 0; d < symbols.size(); ++d)
      if (const auto found = known.find(symbols[d]); port.shape[d] < 0 && found != known.end())
        port.shape[d] = found->second;
  }
  return out;
}

// Where the inputs have these shapes. `all`: dimensions without a name are errors.
Extents extents_of(const File& file, std::span<const graph::Shape> inputs, bool all) {
  Extents out;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Port& port = file.inputs[i];
    bool fits = inputs[i].size() == port.shape.size();
    for (std::size_t d = 0; fits && d < inputs[i].size(); ++d) {
      const std::int64_t extent = inputs[i][d];
      if (port.shape[d] >= 0) {
        fits = extent == port.shape[d];
      } else if (const std::string& symbol = file.symbols[i][d]; extent >= 0 && !symbol.empty()) {
        const std::int64_t known = out.emplace(symbol, extent).first->second;
        if (known != extent)
          throw std::invalid_argument("dimension '" + symbol + "' cannot be " + std::to_string(known) +
                                      " and " + std::to_string(extent) + " at once");
      } else if (extent >= 0 && all) {
        throw std::invalid_argument("dimension " + std::to_string(d) + " of input '" + port.name +
                                    "' is open and has no name, by which onnxruntime would find what follows "
                                    "from it; name it in the file");
      }
    }
    if (!fits)
      throw std::invalid_argument("input '" + port.name + "' is " + text_of(port.shape) + ", and cannot be " +
                                  text_of(inputs[i]));
  }
  return out;
}

Ort::SessionOptions options_for(int threads, GraphOptimizationLevel level) {
  Ort::SessionOptions out;
  out.SetIntraOpNumThreads(threads);
  out.SetInterOpNumThreads(1);
  out.SetExecutionMode(ORT_SEQUENTIAL);
  out.SetGraphOptimizationLevel(level);
  // Cores are others' between two runs.
  out.AddConfigEntry(kOrtSessionOptionsConfigAllowIntraOpSpinning, "0");
  out.AddConfigEntry(kOrtSessionOptionsConfigAllowInterOpSpinning, "0");
  // An arena keeps the most that any run of any size took, for good.
  out.DisableCpuMemArena();
  return out;
}

void fix(Ort::SessionOptions& options, const Extents& extents) {
  for (const auto& [symbol, extent] : extents)
    Ort::ThrowOnError(Ort::GetApi().AddFreeDimensionOverrideByName(options, symbol.c_str(), extent));
}

// Makes the threads of sessions, on one of its own, whose priority they have: a session may be made by a
// thread of low priority, and threads that it made itself would have that for good.
class ThreadMaker {
 public:
  ThreadMaker() : thread_([this] { run(); }) {}
  ~ThreadMaker() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  ThreadMaker(const ThreadMaker&) = delete;
  ThreadMaker& operator=(const ThreadMaker&) = delete;

  // Sessions with these options have their threads from it; it outlives them.
  void serve(Ort::SessionOptions& options) {
    options.SetCustomThreadCreationOptions(this);
    options.SetCustomCreateThreadFn(&ThreadMaker::make);
    options.SetCustomJoinThreadFn(&ThreadMaker::join);
  }

 private:
  struct Wish {
    OrtThreadWorkerFn work = nullptr;
    void* of = nullptr;
    std::promise<std::thread*> made;
  };

  // nullptr: the system gives none, and the session says so.
  static OrtCustomThreadHandle make(void* self, OrtThreadWorkerFn work, void* of) {
    auto& maker = *static_cast<ThreadMaker*>(self);
    Wish wish{.work = work, .of = of, .made = {}};
    auto made = wish.made.get_future();
    {
      const std::lock_guard lock(maker.mutex_);
      maker.wishes_.push_back(&wish);
    }
    maker.wake_.notify_one();
    return reinterpret_cast<OrtCustomThreadHandle>(made.get());
  }
  static void join(OrtCustomThreadHandle handle) {
    auto* const thread = reinterpret_cast<std::thread*>(const_cast<OrtCustomHandleType*>(handle));
    thread->join();
    delete thread;
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return ended_ || !wishes_.empty(); });
      if (wishes_.empty()) return;
      Wish& wish = *wishes_.front();
      wishes_.pop_front();
      std::thread* made = nullptr;
      try {
        made = new std::thread(wish.work, wish.of);
      } catch (const std::exception&) {
      }
      wish.made.set_value(made);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Wish*> wishes_;
  bool ended_ = false;
  std::thread thread_;
};

class RequestOf final : public Request {
 public:
  RequestOf(std::shared_ptr<Ort::Session> session, std::shared_ptr<const File> file)
      : session_(std::move(session)), file_(std::move(file)) {
    for (const Port& port : file_->inputs) input_names_.push_back(port.name.c_str());
    for (const Port& port : file_->outputs) output_names_.push_back(port.name.c_str());
  }

  Ran run(std::span<const std::byte* const> inputs, std::span<const graph::Shape> shapes,
          std::span<std::byte* const> outputs, std::span<const graph::Shape> output_shapes) override {
    Ran ran;
    ran.error = guarded([&] {
      options_.UnsetTerminate();
      std::vector<Ort::Value> in, out;
      for (std::size_t i = 0; i < inputs.size(); ++i)
        // Inputs are only read; tensors know no such thing.
        in.push_back(
            tensor(file_->inputs[i],
                   const_cast<std::byte*>(inputs[i]),  // NOLINT(cppcoreguidelines-pro-type-const-cast)
                   shapes[i]));
      // Results are written where they are wanted. One that would be of another shape is an error there. What
      // a kernel leaves unwritten must not be what another run had there, and nobody knows that of every
      // kernel.
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        out.push_back(tensor(file_->outputs[i], outputs[i], output_shapes[i]));
        if (const std::size_t bytes = bytes_of(type_of(file_->outputs[i]), output_shapes[i]); bytes > 0)
          std::memset(outputs[i], 0, bytes);
      }
      session_->Run(options_, input_names_.data(), in.data(), in.size(), output_names_.data(), out.data(),
                    out.size());
      for (std::size_t i = 0; i < outputs.size(); ++i) take(out[i], i, outputs[i], output_shapes[i]);
    });
    return ran;
  }
  // Where it runs in the server's process: it ends before its next operator.
  void give_up() override { options_.SetTerminate(); }

 private:
  Ort::Value tensor(const Port& port, std::byte* at, const graph::Shape& shape) const {
    const TypePair& type = type_of(port);
    if (std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 0; }))
      throw std::invalid_argument("how long '" + port.name + "' is depends on the data");
    return Ort::Value::CreateTensor(memory_, at, bytes_of(type, shape), shape.data(), shape.size(),
                                    type.theirs);
  }
  void take(const Ort::Value& made, std::size_t i, std::byte* to, const graph::Shape& shape) const {
    const Port& port = file_->outputs[i];
    const auto is = made.GetTensorTypeAndShapeInfo();
    if (is.GetShape() != shape || is.GetElementType() != type_of(port).theirs)
      throw std::runtime_error("output '" + port.name + "' came out with shape " + text_of(is.GetShape()) +
                               ", and not with " + text_of(shape) + " as its operators said");
    const void* const from = made.GetTensorRawData();
    const std::size_t bytes = bytes_of(type_of(port), shape);
    if (from != to && bytes > 0) std::memcpy(to, from, bytes);
  }

  const std::shared_ptr<Ort::Session> session_;
  const std::shared_ptr<const File> file_;
  const Ort::MemoryInfo memory_ = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  std::vector<const char*> input_names_, output_names_;
  Ort::RunOptions options_;
};

class CompiledOf final : public Compiled {
 public:
  CompiledOf(std::shared_ptr<Ort::Session> session, std::shared_ptr<const File> file)
      : session_(std::move(session)), file_(std::move(file)) {}
  std::string make_request(std::unique_ptr<Request>& into) override {
    return guarded([&] { into = std::make_unique<RequestOf>(session_, file_); });
  }

 private:
  const std::shared_ptr<Ort::Session> session_;
  const std::shared_ptr<const File> file_;
};

class NetworkOf final : public Network {
 public:
  NetworkOf(Ort::Env& env, ThreadMaker& threads, const std::string& path) : env_(env), threads_(threads) {
    auto file = std::make_shared<File>(File{.path = path, .inputs = {}, .outputs = {}, .symbols = {}});
    const Ort::Session session(env_, path.c_str(), options_for(1, ORT_DISABLE_ALL));
    const Ort::AllocatorWithDefaultOptions allocator;
    for (std::size_t i = 0; i < session.GetInputCount(); ++i)
      file->inputs.push_back(port_of(session.GetInputNameAllocated(i, allocator).get(),
                                     session.GetInputTypeInfo(i), file->symbols.emplace_back()));
    file->outputs = outputs_of(session, {});
    file_ = std::move(file);
  }

  const std::vector<Port>& inputs() const override { return file_->inputs; }
  const std::vector<Port>& outputs() const override { return file_->outputs; }

  std::string shapes_at(std::span<const graph::Shape> inputs,
                        std::vector<graph::Shape>& outputs) const override {
    return guarded([&] {
      const auto session = compiled_.lock();
      const Extents extents = extents_of(*file_, inputs, session == nullptr);
      std::vector<graph::Shape> sizes(inputs.begin(), inputs.end());
      auto known = known_.find(sizes);
      if (known == known_.end()) {
        auto found = session == nullptr ? inferred(extents) : seen(*session, inputs);
        if (known_.size() >= most_known) known_.clear();
        known = known_.emplace(std::move(sizes), std::move(found)).first;
      }
      outputs = known->second;
    });
  }

  std::string compile(const Options& options, std::unique_ptr<Compiled>& into) const override {
    return guarded([&] {
      if (options.bf16)
        throw std::invalid_argument("precision bf16 is not to be had of it: it computes f32 as f32");
      Ort::SessionOptions made = options_for(options.threads, ORT_ENABLE_ALL);
      threads_.serve(made);
      fix(made, extents_of(*file_, options.inputs, false));
      // It is kept for each size that there ever was.
      const bool open = std::ranges::any_of(options.inputs, [](const graph::Shape& shape) {
        return std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 0; });
      });
      if (open) made.DisableMemPattern();
      auto session = std::make_shared<Ort::Session>(env_, file_->path.c_str(), made);
      compiled_ = session;
      into = std::make_unique<CompiledOf>(std::move(session), file_);
    });
  }

 private:
  // A session is made that has these sizes, and asked what follows: what is computed from them is constant
  // there, and folded. What is left open the data decide.
  std::vector<graph::Shape> inferred(const Extents& extents) const {
    Ort::SessionOptions options = options_for(1, ORT_ENABLE_BASIC);
    fix(options, extents);
    const Ort::Session session(env_, file_->path.c_str(), options);
    std::vector<graph::Shape> out;
    for (const Port& port : outputs_of(session, extents)) out.push_back(port.shape);
    return out;
  }

  // What comes out at these sizes: the data decide nothing of a model that was compiled. The file may be
  // another by now, or gone.
  std::vector<graph::Shape> seen(Ort::Session& session, std::span<const graph::Shape> inputs) const {
    Ort::AllocatorWithDefaultOptions allocator;
    std::vector<const char*> input_names, output_names;
    std::vector<Ort::Value> zeros;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const TypePair& type = type_of(file_->inputs[i]);
      input_names.push_back(file_->inputs[i].name.c_str());
      zeros.push_back(Ort::Value::CreateTensor(allocator, inputs[i].data(), inputs[i].size(), type.theirs));
      std::memset(zeros.back().GetTensorMutableRawData(), 0, bytes_of(type, inputs[i]));
    }
    for (const Port& port : file_->outputs) output_names.push_back(port.name.c_str());
    std::vector<graph::Shape> out;
    for (const Ort::Value& made : session.Run(Ort::RunOptions(), input_names.data(), zeros.data(),
                                              zeros.size(), output_names.data(), output_names.size()))
      out.push_back(made.GetTensorTypeAndShapeInfo().GetShape());
    return out;
  }

  static constexpr std::size_t most_known = 1024;
  Ort::Env& env_;
  ThreadMaker& threads_;
  std::shared_ptr<const File> file_;
  mutable std::weak_ptr<Ort::Session> compiled_;
  mutable std::map<std::vector<graph::Shape>, std::vector<graph::Shape>> known_;  // of inputs, of outputs
};

class RuntimeOf final : public Runtime {
 public:
  std::string version() const override { return Ort::GetVersionString(); }
  std::string read(const std::string& file, std::unique_ptr<Network>& into) override {
    return guarded([&] { into = std::make_unique<NetworkOf>(env_, threads_, file); });
  }

 private:
  ThreadMaker threads_;
  Ort::Env env_{ORT_LOGGING_LEVEL_FATAL, "carillon"};  // errors come back, and are told once
};

}  // namespace
}  // namespace carillon::engine::second

extern "C" __attribute__((visibility("default"))) std::string carillon_module(
    std::unique_ptr<carillon::engine::second::Runtime>& into);
std::string carillon_module(std::unique_ptr<carillon::engine::second::Runtime>& into) {
  using namespace carillon::engine::second;
  const OrtApiBase* const base = OrtGetApiBase();
  const OrtApi* const api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr)
    return std::string("the library is onnxruntime ") + base->GetVersionString() +
           ", older than the headers that this module was built with (1." + std::to_string(ORT_API_VERSION) +
           ")";
  Ort::InitApi(api);
  return guarded([&] { into = std::make_unique<RuntimeOf>(); });
}
