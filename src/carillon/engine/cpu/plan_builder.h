#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <dnnl.hpp>

#include "carillon/engine/cpu/candidates.h"
#include "carillon/engine/cpu/kernel.h"
#include "carillon/engine/cpu/layout.h"
#include "carillon/engine/cpu/nan.h"
#include "carillon/engine/cpu/plan.h"
#include "carillon/engine/cpu/remake.h"
#include "carillon/engine/cpu/team.h"
#include "carillon/engine/cpu/weight_store.h"
#include "carillon/engine/engine.h"
#include "carillon/graph/graph.h"
#include "carillon/graph/origin.h"

namespace carillon::engine::cpu {

// How the kernels of a plan are divided.
struct Division {
  std::vector<int> parts;  // by kernel: into how many, if it can be; 0: as many as the builder is told
  Arenas* arenas = nullptr;
};

// Which ways kernels take where there are several.
struct Ways {
  Chooser* chooser = nullptr;  // nullptr: as the rules say
  bool blocked = false;        // convolutions take channels in blocks of 16, not last, where both are fast
};

// Bytes that a kernel reads or writes: where, and in which layout.
struct Operand {
  int buffer = -1;           // the builder's number
  std::uint64_t offset = 0;  // in the buffer
  Desc desc;                 // zero: row-major elements of a type that oneDNN is not asked about
  float factor = 1;  // what is meant is the bytes times this: see lower_binary; row_major() settles it
};

// What decides how a primitive is made: equal ones are the same primitive.
struct Looks {
  std::string what;         // kind, algorithm, numbers
  std::vector<Desc> descs;  // of its operands
};

// Collects a plan's kernels while the graph's nodes are lowered one after the other. It knows for every value
// where it lies and how; a kernel that wants it otherwise gets a reorder in front, once for all who want the
// same. What is appended while a guard is entered runs only if that holds; a copy made so is nobody else's.
// When all nodes are lowered, finish() gives every buffer its place.
//
// Where kernels may lose NaN (nan.h) the plan watches for it from its first kernel on, and lowerings add
// kernels under careful(true) that put it right.
//
// Members that make primitives throw dnnl::error.
class PlanBuilder {
 public:
  // `graph` is at a batch of `batch` rows. `parts`: of the arena in which the builder is used, and of all
  // kernels for which `division` asks for no more.
  PlanBuilder(const dnnl::engine& engine, const graph::Graph& graph, int batch, WeightStore& weights,
              Precision precision, int parts, Division division, Ways ways = {});

  const dnnl::engine& engine() const { return engine_; }
  const graph::Graph& graph() const { return graph_; }
  int batch() const { return batch_; }
  // That may share a run.
  int threads() const { return arena_parts_; }
  const Ways& ways() const { return ways_; }
  // A way to run a kernel: `desc` on memory of its own. Beside source, weights, bias and result it reads what
  // `more` says.
  template <typename Primitive, typename PrimitiveDesc, typename More>
  Candidate candidate(std::string name, const PrimitiveDesc& desc, const More& more) const {
    std::vector<std::pair<int, Desc>> operands{{DNNL_ARG_SRC, desc.src_desc()},
                                               {DNNL_ARG_WEIGHTS, desc.weights_desc()},
                                               {DNNL_ARG_DST, desc.dst_desc()},
                                               {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}};
    if (const Desc bias = desc.query_md(dnnl::query::weights_md, 1); !bias.is_zero())
      operands.emplace_back(DNNL_ARG_BIAS, bias);
    for (const auto& [id, operand] : more) operands.emplace_back(id, operand.desc);
    return timed(std::move(name), std::move(operands), [desc] { return dnnl::primitive(Primitive(desc)); });
  }
  const graph::TensorType& type(graph::ValueId id) const { return graph_.value(id).type; }
  const graph::Shape& shape(graph::ValueId id) const { return type(id).shape; }
  const graph::SharedTensor& constant(graph::ValueId id) const { return graph_.value(id).constant; }
  bool is_constant(graph::ValueId id) const { return graph_.is_constant(id); }
  bool is_output(graph::ValueId id) const { return is_output_[id.index()]; }
  // Indices of the nodes that read the value (as input or post-op operand), in order.
  const std::vector<int>& consumers(graph::ValueId id) const { return consumers_[id.index()]; }
  const graph::Node& node(int index) const { return graph_.nodes[static_cast<std::size_t>(index)]; }

  // Kernels appended from now on run only if `guard` (an index in the graph's, or from under(); -1: always)
  // holds. Gives back the one before.
  int enter(int guard) { return std::exchange(guard_, guard); }
  // A guard under the present one, of which the graph may have none.
  int under(graph::ValueId condition, bool when);
  // Likewise where a kernel before has written anything but 0 to `flag`, a byte of its own.
  int under(const Operand& flag);

  // Whether runs may meet NaN that one of the plan's kernels loses.
  bool keeps_nan() const { return watch_.buffer >= 0; }
  // A guard under the present one: whether the run has met anything but ordinary numbers so far. Requires
  // keeps_nan().
  int careful(bool met);
  // Whether NaN of an input is looked for in this value: a product of a larger input that only products read.
  // Such an input is not watched itself. (A decoder's step reads more keys and values than it has products.)
  bool shows_input(graph::ValueId id) const { return shows_input_[id.index()]; }
  // The value, made just now, may be where the run meets it first.
  void watch(graph::ValueId id);
  // Whether the post-op makes a number of it.
  bool loses_nan(const graph::PostOp& op);

  // f32 with at least one element: what most of the oneDNN lowerings deal with.
  bool is_real(graph::ValueId id) const;
  // Likewise of bytes, with a sign or without.
  bool is_byte(graph::ValueId id) const;
  // Either: its layout is known to the builder. Any other value lies row-major.
  bool is_laid_out(graph::ValueId id) const { return is_real(id) || is_byte(id); }
  // Row-major in its own type, or zero where it is not laid out.
  Desc plain_desc(graph::ValueId id) const;
  // What a heavy kernel reads and, unless nobody wants it, writes.
  DnnlType heavy_type() const { return heavy_type_; }
  DnnlType result_type(graph::ValueId output) const;

  // How the value lies now. A constant lies row-major in the weights.
  Operand current(graph::ValueId id);
  DnnlType current_type(graph::ValueId id) const;
  // The value in exactly this layout: where it lies, or a copy made by a reorder.
  Operand in_layout(graph::ValueId id, const Desc& wanted);
  // The value row-major in its own type.
  Operand row_major(graph::ValueId id);
  // The value in its layout if that has no gaps, else row-major; the type stays.
  Operand dense(graph::ValueId id);
  // The constant seen as `source`, packed as `target`, times `factor`.
  Operand packed(graph::ValueId id, const Desc& source, const Desc& target, float factor = 1) {
    return packed(constant(id), source, target, factor);
  }
  Operand packed(const graph::SharedTensor& tensor, const Desc& source, const Desc& target, float factor = 1);
  // The tensor's own bytes, row-major.
  Operand raw(const graph::SharedTensor& tensor, const Desc& desc);
  // See WeightStore::derive().
  graph::SharedTensor derive(const std::string& what, const std::vector<graph::SharedTensor>& from,
                             const std::function<graph::Tensor()>& make) {
    return weights_.derive(what, from, make);
  }
  // `operand` in the layout `wanted` by a reorder (no copy is kept).
  Operand reordered(const std::string& name, const Operand& operand, const Desc& wanted);
  const Desc* known_layout(graph::ValueId id, const Dims& dims, DnnlType type) const {
    return known_layout(constant(id), dims, type);
  }
  const Desc* known_layout(const graph::SharedTensor& tensor, const Dims& dims, DnnlType type) const {
    return weights_.known_layout(tensor, dims, type);
  }

  // Room for a kernel's result: the value lies there from now on. A graph output in row-major f32 goes
  // straight to where the client wants it.
  Operand define(graph::ValueId id, const Desc& desc);
  // Room for bytes between two kernels.
  Operand temporary(const Desc& desc);
  // The value is another view of what `operand` describes.
  void alias(graph::ValueId id, const Operand& operand);
  // Whether the value alone lies in a buffer of the workspace, where `reader` is the last to see it.
  bool is_last_reader(const graph::Node& reader, graph::ValueId id) const;
  // `id` gets the buffer of a value of which that is so.
  void take_over(graph::ValueId id, graph::ValueId from);
  // Appends what brings the value to `to`, whatever layout that has.
  void copy(const std::string& name, graph::ValueId id, const Operand& to);

  // Appends a primitive; the scratchpad is taken care of.
  template <typename PrimitiveDesc, typename Arguments>
  void emit(const std::string& node, const PrimitiveDesc& desc, const dnnl::primitive& primitive,
            const Arguments& arguments) {
    emit(node, desc, primitive, arguments, [&] {
      PrimitiveDesc other = remake(engine_, desc);
      if constexpr (requires { other.next_impl(); })
        if (other) (void)seek(other, desc.impl_info_str());
      return other;
    });
  }
  // For one whose descriptor does not tell all that it was made of: `again` makes it.
  template <typename PrimitiveDesc, typename Arguments, typename Again>
  void emit(const std::string& node, const PrimitiveDesc& desc, const dnnl::primitive& primitive,
            const Arguments& arguments, const Again& again) {
    emit_primitive(node, made_of(desc, primitive), {arguments.begin(), arguments.end()},
                   [&]() -> std::optional<Made> {
                     const PrimitiveDesc other = again();
                     if (!other) return std::nullopt;
                     return made_of(other, dnnl::primitive(other.get()));
                   });
  }
  // What `make` gives, made once for all that look alike: to ask oneDNN takes long beside such a kernel, and
  // the steps of a loop are alike. `looks.what` names the kind of what is made.
  template <typename Thing, typename Make>
  const Thing& once(const Looks& looks, const Make& make) {
    auto& alike = made_[looks.what];
    for (const auto& [descs, thing] : alike)
      if (descs == looks.descs) return *static_cast<const Thing*>(thing.get());
    const auto made = std::make_shared<const Thing>(make());
    alike.emplace_back(looks.descs, made);
    return *made;
  }
  using Arguments = std::vector<std::pair<int, Operand>>;
  // Appends a kernel whose operand i lies at operands[i] (a buffer of -1: absent).
  void append(std::string name, std::unique_ptr<Kernel> kernel, const std::vector<Operand>& operands);
  // What is appended between the two becomes one kernel.
  void begin_sequence();
  void end_sequence(std::string name);
  // After a lowering that failed half way.
  void recover(int guard);
  // Which request's data the value is, for a kernel of `node` that notes bad data; nothing: no request's.
  std::optional<graph::Origin> origin(graph::ValueId id, const graph::Node& node) const;
  // Appends the node's plain kernel; an error where there is none.
  Result<> emit_plain(const graph::Node& node);
  // Appends the plain kernel of an operator of two operands that broadcast; all three are row-major f32.
  void emit_plain_binary(const graph::Node& node, std::string_view op, const Operand& a, const Operand& b,
                         const Operand& result);
  // An operand as a plain kernel sees it; a buffer of -1: absent.
  struct Seen {
    Operand operand;
    graph::TensorType type;
  };
  // Appends the plain kernel of operator `op` with the node's attributes, for operands that are seen
  // otherwise than the node's: flat, for example, where their layout does not matter. False: there is none.
  bool emit_plain_as(const graph::Node& node, std::string_view op, const std::vector<Seen>& inputs,
                     const std::vector<Seen>& outputs);

  // Attributes that every primitive of a plan has.
  static dnnl::primitive_attr attributes();

  // Copies outputs that lie elsewhere, places the buffers, gives the plan up. An error (internal) names a
  // kernel with an operand that has no place: such a plan must never run.
  Result<PlanParts> finish();

 private:
  struct Buffer {
    Where where = Where::workspace;
    int index = 0;
    std::uint64_t size = 0;
    int first = -1, last = -1;               // kernels that touch it
    graph::ValueId owner = graph::no_value;  // the one value that lies in it
  };
  // The value as it lies wherever `guard` holds.
  struct Place {
    Operand operand;
    int guard = -1;
  };

  // A primitive as it is made in the arena where it was asked for.
  struct Made {
    dnnl::primitive primitive;
    Desc scratchpad;
    std::string implementation;
  };

  struct Step {
    std::unique_ptr<Kernel> kernel;
    std::vector<Operand> operands;
  };

  Candidate timed(std::string name, std::vector<std::pair<int, Desc>> operands,
                  std::function<dnnl::primitive()> make) const;
  int new_buffer(std::uint64_t size);
  // For how many parts the next kernel is to be made.
  int wanted_parts() const;
  void divide(PlainKernelStep& step, const std::function<std::optional<graph::Slices>()>& slices_of) const;
  template <typename PrimitiveDesc>
  static Made made_of(const PrimitiveDesc& desc, const dnnl::primitive& primitive) {
    return {primitive, desc.scratchpad_desc(), desc.impl_info_str()};
  }
  void emit_primitive(const std::string& node, const Made& made, const Arguments& arguments,
                      const std::function<std::optional<Made>()>& again);
  Step step_of(const Made& made, const Arguments& arguments);
  struct Divided {
    Made made;
    int parts = 1;
  };
  std::optional<Divided> made_for(int parts, const Made& made,
                                  const std::function<std::optional<Made>()>& again);
  void append(std::string name, Step step, int parts);
  // Whether each operand has a place that its kernel cannot do without; remembered for finish().
  void check_places(const std::string& name, const Step& step);
  void watch(const std::vector<std::pair<Operand, Elements>>& values, bool always);
  void watch_inputs();
  // Whether all that reads the value are products, or moves what these read: NaN makes NaN of results that it
  // has a part in, and an infinity NaN or an infinity. `results`: appended to, those products'.
  bool shows_in_products(graph::ValueId id, std::vector<graph::ValueId>& results);
  bool prefers_heavy_type(graph::ValueId id, int depth) const;

  dnnl::engine engine_;
  const graph::Graph& graph_;
  int batch_;
  WeightStore& weights_;
  DnnlType heavy_type_;
  int arena_parts_;
  Division division_;
  Ways ways_;
  std::vector<std::vector<int>> consumers_;
  std::vector<bool> is_output_;
  std::vector<bool> shows_input_;
  std::vector<std::vector<Place>> places_;  // of each value; the first is where it was made
  std::vector<Buffer> buffers_;             // 0: the weights; then inputs; then outputs; then the rest
  std::vector<bool> output_written_;
  struct Use {
    int kernel, operand, buffer;
    std::uint64_t offset;
  };
  std::vector<Use> uses_;
  std::vector<graph::Origin> origins_;  // of each value
  std::vector<graph::Guard> guards_;    // the graph's, then more
  std::vector<Operand> conditions_;     // of guards that a kernel has
  std::map<std::tuple<graph::ValueId, bool, int>, int> guard_numbers_;
  int guard_ = -1;
  bool flags_ = false;  // whether there are guards on flags, beside those of the graph and NaN's
  Operand watch_;       // the flag; buffer -1: nothing is watched for
  std::map<std::pair<bool, int>, int> careful_;     // guards on it as it is now, by value and parent
  std::map<std::pair<int, bool>, bool> loses_nan_;  // post-ops, by kind and whether alpha is 0
  struct Sequence {
    // Written out for clang: the optional below asks for it before the class, and so its initializers, is
    // whole.
    Sequence() : divides(true) {}
    std::vector<Step> steps, divided;  // the same, for more parts
    bool divides;                      // there is each of them
  };
  std::optional<Sequence> sequence_;
  // By Looks: see once().
  std::unordered_map<std::string, std::vector<std::pair<std::vector<Desc>, std::shared_ptr<const void>>>>
      made_;
  std::string misplaced_;  // the first operand without a place, in words; empty: each has one
  PlanParts parts_;
};

// Post-ops of a node as oneDNN's, and the operands that they read.
struct FusedPostOps {
  dnnl::post_ops ops;
  PlanBuilder::Arguments arguments;
};

// Appends the node's post-ops [first, last) to `fused`, for a primitive whose result has dimensions `dims`
// (the node's output's, or a flattening that keeps the last one). False: an operand cannot be shown to oneDNN
// so.
bool append_post_ops(PlanBuilder& builder, const graph::Node& node, std::size_t first, std::size_t last,
                     const Dims& dims, FusedPostOps& fused);
// They look so.
void describe(const FusedPostOps& fused, Looks& looks);
// What of them decides how long they take, as text.
std::string to_text(const FusedPostOps& fused);
// The first of the node's post-ops from `first` on that loses NaN; as many as there are where none does, or
// none matters.
std::size_t first_that_loses_nan(PlanBuilder& builder, const graph::Node& node, std::size_t first);
// Emits by `fused` a primitive whose result is `result`, with post-ops of the node up to `post_ops.last`; for
// runs that must be careful with NaN emits by `part` the same primitive with those before `post_ops.first`
// only, and the others behind it. Where there are none between, `fused` alone.
struct PostOpRange {
  std::size_t first = 0, last = 0;
};
void emit_keeping_nan(PlanBuilder& builder, const graph::Node& node, PostOpRange post_ops,
                      const Operand& result, const std::function<void()>& fused,
                      const std::function<void()>& part);
// For runs that must be careful with NaN: appends a kernel that brings it from `from` to `to`. Requires
// builder.keeps_nan().
void spread_nan(PlanBuilder& builder, const std::string& node, std::unique_ptr<Kernel> kernel,
                const Operand& from, const Operand& to);
// Applies the node's post-ops [first, ...) to `value` by kernels of their own, the last of which defines the
// node's output. Without any, `value` becomes the output.
void apply_separately(PlanBuilder& builder, const graph::Node& node, std::size_t first, Operand value);

// Turns one node into kernels; false: the plain kernel must do it. Nothing is emitted then but reorders.
// Throws dnnl::error, which means the same.
bool lower_convolution(PlanBuilder& builder, const graph::Node& node);    // Conv, ConvTranspose
bool lower_matmul(PlanBuilder& builder, const graph::Node& node);         // MatMul
bool lower_gemm(PlanBuilder& builder, const graph::Node& node);           // Gemm
bool lower_pooling(PlanBuilder& builder, const graph::Node& node);        // pools, and means over all pixels
bool lower_eltwise(PlanBuilder& builder, const graph::Node& node);        // activations, Clip, Exp, ...
bool lower_binary(PlanBuilder& builder, const graph::Node& node);         // Add, Mul, Sub, Div, Max, Min
bool lower_normalization(PlanBuilder& builder, const graph::Node& node);  // Batch-, Layer-, LRN, Softmax
bool lower_recurrent(PlanBuilder& builder, const graph::Node& node);      // LSTM, GRU, RNN
bool lower_resize(PlanBuilder& builder, const graph::Node& node);
bool lower_concat(PlanBuilder& builder, const graph::Node& node);
bool lower_merge(PlanBuilder& builder, const graph::Node& node);
bool lower_view(PlanBuilder& builder, const graph::Node& node);   // Reshape, Transpose: no kernel at all
bool lower_slice(PlanBuilder& builder, const graph::Node& node);  // Slice, Split, Gather of one: likewise
bool lower_quantized_convolution(PlanBuilder& builder, const graph::Node& node);  // QLinearConv
bool lower_quantized_matmul(PlanBuilder& builder, const graph::Node& node);       // QLinearMatMul
bool lower_byte_product(PlanBuilder& builder,
                        const graph::Node& node);  // QLinearMatMul, MatMulInteger: by a kernel of our own
bool lower_bytes(PlanBuilder& builder, const graph::Node& node);  // to bytes, from bytes, bytes to bytes

}  // namespace carillon::engine::cpu
