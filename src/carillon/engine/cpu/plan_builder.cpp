#include "carillon/engine/cpu/plan_builder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <unordered_map>

#include "carillon/base/assert.h"
#include "carillon/engine/cpu/divider.h"
#include "carillon/engine/cpu/nan.h"
#include "carillon/engine/memory_planner.h"
#include "carillon/graph/guards.h"
#include "carillon/graph/shape_inference.h"
#include "carillon/graph/slices.h"

namespace carillon::engine::cpu {

namespace {

constexpr int weights_buffer = 0;

std::string describe(const graph::TensorType& type) {
  return std::string(graph::onnx_name(type.type)) + graph::to_text(type.shape);
}

}  // namespace

PlanBuilder::PlanBuilder(const dnnl::engine& engine, const graph::Graph& graph, int batch,
                         WeightStore& weights, Precision precision, int parts, Division division, Ways ways)
    : engine_(engine),
      graph_(graph),
      batch_(batch),
      weights_(weights),
      heavy_type_(precision == Precision::bf16 ? DnnlType::bf16 : DnnlType::f32),
      arena_parts_(parts),
      division_(std::move(division)),
      ways_(ways),
      consumers_(graph.values.size()),
      is_output_(graph.values.size(), false),
      shows_input_(graph.values.size(), false),
      places_(graph.values.size()),
      output_written_(graph.outputs.size(), false),
      origins_(graph::origins(graph, batch)),
      guards_(graph.guards),
      conditions_(graph.guards.size()) {
  for (std::size_t g = 0; g < guards_.size(); ++g)
    guard_numbers_.try_emplace({guards_[g].condition, guards_[g].when, guards_[g].parent},
                               static_cast<int>(g));
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto note = [&](graph::ValueId id) {
      if (id == graph::no_value) return;
      auto& readers = consumers_[id.index()];
      if (readers.empty() || readers.back() != static_cast<int>(n)) readers.push_back(static_cast<int>(n));
    };
    for (const auto id : graph.nodes[n].inputs) note(id);
    for (const auto& op : graph.nodes[n].post_ops) note(op.operand);
  }
  buffers_.push_back({.where = Where::weights});
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const auto id = graph.inputs[i];
    buffers_.push_back({.where = Where::input, .index = static_cast<int>(i)});
    const Desc desc = plain_desc(id);
    places_[id.index()] = {{.operand = {.buffer = static_cast<int>(buffers_.size()) - 1, .desc = desc}}};
  }
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    buffers_.push_back({.where = Where::output, .index = static_cast<int>(i)});
    is_output_[graph.outputs[i].index()] = true;
  }
  watch_inputs();
}

// Watches for NaN where a node may lose it and it may come from somewhere.
void PlanBuilder::watch_inputs() {
  std::map<std::string_view, bool> by_op;  // asked of oneDNN, which takes a while
  const bool lost = std::ranges::any_of(graph_.nodes, [&](const graph::Node& node) {
    const auto [known, fresh] = by_op.try_emplace(node.op, false);
    if (fresh) known->second = cpu::loses_nan(engine_, node.op);
    return known->second || std::ranges::any_of(node.post_ops, [&](const auto& op) { return loses_nan(op); });
  });
  if (!lost) return;
  std::vector<std::pair<Operand, Elements>> inputs;
  bool shown = false;
  for (const auto id : graph_.inputs) {
    if (!graph::belongs(type(id).type, graph::TypeClass::floating)) continue;
    std::vector<graph::ValueId> results;
    std::int64_t elements = 0;
    if (shows_in_products(id, results)) {
      for (const auto result : results) elements += type(result).elements();
      if (elements < type(id).elements()) {
        shown = true;
        for (const auto result : results) shows_input_[result.index()] = true;
        continue;
      }
    }
    inputs.push_back({places_[id.index()].front().operand,
                      {type(id).type, static_cast<std::uint64_t>(type(id).elements())}});
  }
  const bool always = std::ranges::any_of(graph_.values, [&](const graph::Value& value) {
    return value.constant != nullptr && weights_.has_nan(value.constant);
  });
  const bool made =
      std::ranges::any_of(graph_.nodes, [](const graph::Node& node) { return makes_nan(node.op); });
  if (!inputs.empty() || always || made || shown) watch(inputs, always);
}

bool PlanBuilder::shows_in_products(graph::ValueId id, std::vector<graph::ValueId>& results) {
  static constexpr std::array moves{"Concat",  "Flatten",   "Identity", "Reshape",
                                    "Squeeze", "Transpose", "Unsqueeze"};
  return std::ranges::all_of(consumers(id), [&](int index) {
    const graph::Node& reader = node(index);
    const bool loses =
        std::ranges::any_of(reader.post_ops, [&](const graph::PostOp& op) { return loses_nan(op); });
    if (loses || reader.outputs.size() != 1) return false;
    if (reader.op != "MatMul")
      return std::ranges::find(moves, reader.op) != moves.end() && reader.post_ops.empty() &&
             shows_in_products(reader.outputs[0], results);
    results.push_back(reader.outputs[0]);
    return true;
  });
}

void PlanBuilder::watch(const std::vector<std::pair<Operand, Elements>>& values, bool always) {
  std::vector<Elements> tensors;
  // One flag for all: a guard looks at it once in a run, so each that comes after a change is a new one.
  const bool first = watch_.buffer < 0;
  const Operand flag = first ? Operand{.buffer = new_buffer(1)} : watch_;
  std::vector<Operand> operands{flag, watch_};
  for (const auto& [operand, elements] : values) {
    operands.push_back(operand);
    tensors.push_back(elements);
  }
  append("watch for NaN", std::make_unique<WatchKernel>(std::move(tensors), always), operands);
  watch_ = flag;
  careful_.clear();
}

void PlanBuilder::watch(graph::ValueId id) {
  if (!keeps_nan() || is_constant(id) || !graph::belongs(type(id).type, graph::TypeClass::floating)) return;
  const Operand operand = current(id);
  // What is only another view of a value has been watched as that.
  if (buffers_[static_cast<std::size_t>(operand.buffer)].owner != id && !is_output(id) && !shows_input(id))
    return;
  watch({{operand, operand.desc.is_zero()
                       ? Elements{type(id).type, static_cast<std::uint64_t>(type(id).elements())}
                       : elements_of(operand.desc)}},
        false);
}

int PlanBuilder::careful(bool met) {
  CARILLON_ASSERT(keeps_nan());
  const auto [entry, fresh] = careful_.try_emplace({met, guard_}, static_cast<int>(guards_.size()));
  if (fresh) {
    guards_.push_back({graph::no_value, met, guard_});
    conditions_.push_back(watch_);
  }
  return entry->second;
}

bool PlanBuilder::loses_nan(const graph::PostOp& op) {
  if (graph::takes_operand(op.kind)) return false;
  const auto [entry, fresh] = loses_nan_.try_emplace({static_cast<int>(op.kind), op.alpha == 0}, false);
  if (fresh) entry->second = cpu::loses_nan(engine_, eltwise_of(op));
  return entry->second;
}

int PlanBuilder::under(const Operand& flag) {
  flags_ = true;
  guards_.push_back({graph::no_value, true, guard_});
  conditions_.push_back(flag);
  return static_cast<int>(guards_.size()) - 1;
}

int PlanBuilder::under(graph::ValueId condition, bool when) {
  const auto [entry, fresh] =
      guard_numbers_.try_emplace({condition, when, guard_}, static_cast<int>(guards_.size()));
  if (fresh) {
    guards_.push_back({condition, when, guard_});
    conditions_.emplace_back();
  }
  return entry->second;
}

bool PlanBuilder::is_real(graph::ValueId id) const {
  return id != graph::no_value && type(id).type == graph::DataType::f32 && type(id).elements() > 0 &&
         shape(id).size() <= 6;
}

bool PlanBuilder::is_byte(graph::ValueId id) const {
  return id != graph::no_value &&
         (type(id).type == graph::DataType::u8 || type(id).type == graph::DataType::i8) &&
         type(id).elements() > 0 && shape(id).size() <= 6;
}

Desc PlanBuilder::plain_desc(graph::ValueId id) const {
  if (is_real(id)) return cpu::row_major(shape(id), DnnlType::f32);
  if (!is_byte(id)) return Desc();
  return cpu::row_major(shape(id), type(id).type == graph::DataType::u8 ? DnnlType::u8 : DnnlType::s8);
}

bool PlanBuilder::prefers_heavy_type(graph::ValueId id, int depth) const {
  static constexpr std::array heavy{"Conv", "ConvTranspose", "Gemm", "MatMul"};
  static constexpr std::array carries{"Add",         "Sub",
                                      "Mul",         "Div",
                                      "Relu",        "Clip",
                                      "Concat",      "MaxPool",
                                      "AveragePool", "GlobalAveragePool",
                                      "Gelu",        "LayerNormalization",
                                      "Softmax",     "Reshape",
                                      "Transpose",   "BatchNormalization",
                                      "Sigmoid",     "HardSwish",
                                      "LeakyRelu",   "Tanh",
                                      "Merge"};
  if (depth > 8) return false;
  return std::ranges::any_of(consumers(id), [&](int n) {
    const graph::Node& reader = node(n);
    if (std::ranges::find(heavy, reader.op) != heavy.end()) return true;
    return std::ranges::find(carries, reader.op) != carries.end() &&
           prefers_heavy_type(reader.outputs.front(), depth + 1);
  });
}

DnnlType PlanBuilder::result_type(graph::ValueId output) const {
  if (heavy_type_ == DnnlType::f32) return DnnlType::f32;
  return prefers_heavy_type(output, 0) ? heavy_type_ : DnnlType::f32;
}

Operand PlanBuilder::current(graph::ValueId id) {
  CARILLON_ASSERT(id != graph::no_value);
  if (is_constant(id)) {
    return raw(constant(id), plain_desc(id));
  }
  CARILLON_ASSERT(!places_[id.index()].empty());
  return places_[id.index()].front().operand;
}

DnnlType PlanBuilder::current_type(graph::ValueId id) const {
  if (is_constant(id)) return is_byte(id) ? plain_desc(id).get_data_type() : DnnlType::f32;
  CARILLON_ASSERT(!places_[id.index()].empty());
  return places_[id.index()].front().operand.desc.get_data_type();
}

Operand PlanBuilder::in_layout(graph::ValueId id, const Desc& wanted) {
  CARILLON_ASSERT(is_laid_out(id));
  if (is_constant(id)) return packed(id, plain_desc(id), wanted);
  for (const auto& [place, guard] : places_[id.index()])
    if (same_layout(place.desc, wanted) && graph::is_within(guards_, guard_, guard)) {
      Operand found = place;
      found.desc = wanted;
      return found;
    }
  const Operand copy = reordered(graph_.value(id).name, current(id), wanted);
  places_[id.index()].push_back({copy, guard_});
  return copy;
}

Operand PlanBuilder::row_major(graph::ValueId id) {
  if (!is_laid_out(id)) return current(id);
  Operand plain = in_layout(id, plain_desc(id));
  if (plain.factor == 1) return plain;
  const dnnl::eltwise_forward::primitive_desc desc(engine_, dnnl::prop_kind::forward_inference,
                                                   dnnl::algorithm::eltwise_linear, plain.desc, plain.desc,
                                                   plain.factor, 0, attributes());
  const Operand scaled = temporary(plain.desc);
  emit(graph_.value(id).name + " scale", desc, dnnl::eltwise_forward(desc),
       Arguments{{DNNL_ARG_SRC, plain}, {DNNL_ARG_DST, scaled}});
  return scaled;
}

Operand PlanBuilder::dense(graph::ValueId id) {
  Operand now = current(id);
  if (is_constant(id) || (is_dense(now.desc) && now.desc.get_submemory_offset() == 0)) return now;
  if (now.desc.get_inner_nblks() == 0) return in_layout(id, layout_like(now.desc, now.desc.get_dims()));
  return in_layout(id, cpu::row_major(shape(id), now.desc.get_data_type()));
}

Operand PlanBuilder::packed(const graph::SharedTensor& tensor, const Desc& source, const Desc& target,
                            float factor) {
  return {
      .buffer = weights_buffer, .offset = weights_.packed(tensor, source, target, factor), .desc = target};
}

Operand PlanBuilder::raw(const graph::SharedTensor& tensor, const Desc& desc) {
  return {.buffer = weights_buffer, .offset = weights_.raw(tensor), .desc = desc};
}

Operand PlanBuilder::reordered(const std::string& name, const Operand& operand, const Desc& wanted) {
  const dnnl::reorder::primitive_desc desc(engine_, operand.desc, engine_, wanted, attributes());
  const dnnl::reorder primitive(desc);
  Operand copy = temporary(wanted);
  copy.factor = operand.factor;
  emit(name + " reorder", desc, primitive, Arguments{{DNNL_ARG_FROM, operand}, {DNNL_ARG_TO, copy}});
  return copy;
}

int PlanBuilder::new_buffer(std::uint64_t size) {
  buffers_.push_back({.where = Where::workspace, .size = size});
  return static_cast<int>(buffers_.size()) - 1;
}

Operand PlanBuilder::temporary(const Desc& desc) {
  return {.buffer = new_buffer(desc.get_size()), .desc = desc};
}

Operand PlanBuilder::define(graph::ValueId id, const Desc& desc) {
  Operand place{.desc = desc};
  const bool as_client_wants =
      desc.is_zero() || (desc.get_data_type() == plain_desc(id).get_data_type() && cpu::is_row_major(desc));
  if (is_output(id) && as_client_wants) {
    const auto i = static_cast<std::size_t>(std::ranges::find(graph_.outputs, id) - graph_.outputs.begin());
    output_written_[i] = true;
    place.buffer = static_cast<int>(1 + graph_.inputs.size() + i);
  } else {
    place.buffer = new_buffer(desc.is_zero() ? type(id).bytes().count : desc.get_size());
    buffers_.back().owner = id;
  }
  places_[id.index()] = {{place, guard_}};
  return place;
}

void PlanBuilder::alias(graph::ValueId id, const Operand& operand) {
  places_[id.index()] = {{operand, guard_}};
  buffers_[static_cast<std::size_t>(operand.buffer)].owner = graph::no_value;
}

bool PlanBuilder::is_last_reader(const graph::Node& reader, graph::ValueId id) const {
  if (is_constant(id) || is_output(id)) return false;
  const auto& readers = consumers(id);
  const Operand& place = places_[id.index()].front().operand;
  return readers.size() == 1 && &node(readers[0]) == &reader && place.factor == 1 &&
         buffers_[static_cast<std::size_t>(place.buffer)].owner == id;
}

void PlanBuilder::take_over(graph::ValueId id, graph::ValueId from) {
  const Operand place = current(from);
  places_[id.index()] = {{place, guard_}};
  buffers_[static_cast<std::size_t>(place.buffer)].owner = id;
}

void PlanBuilder::copy(const std::string& name, graph::ValueId id, const Operand& to) {
  const Operand from = is_laid_out(id) && is_constant(id) ? in_layout(id, to.desc) : current(id);
  CARILLON_ASSERT(from.factor == 1);  // only products read what has one
  if (!is_laid_out(id) || same_layout(from.desc, to.desc)) {
    append(name + " copy",
           std::make_unique<CopyKernel>(is_laid_out(id) ? to.desc.get_size() : type(id).bytes().count),
           {from, to});
    return;
  }
  const dnnl::reorder::primitive_desc desc(engine_, from.desc, engine_, to.desc, attributes());
  emit(name + " reorder", desc, dnnl::reorder(desc), Arguments{{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

dnnl::primitive_attr PlanBuilder::attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

Candidate PlanBuilder::timed(std::string name, std::vector<std::pair<int, Desc>> operands,
                             std::function<dnnl::primitive()> make) const {
  // What is larger is no use to measure: it would take too long to fill.
  constexpr std::size_t most_bytes = std::size_t{1} << 29;
  return {std::move(name), [engine = engine_, operands = std::move(operands), make = std::move(make)] {
            std::size_t bytes = 0;
            for (const auto& [id, desc] : operands) bytes += desc.is_zero() ? 0 : desc.get_size();
            if (bytes > most_bytes) throw std::bad_alloc();
            std::unordered_map<int, dnnl::memory> arguments;
            for (const auto& [id, desc] : operands) {
              if (desc.is_zero() || desc.get_size() == 0) continue;
              dnnl::memory memory(desc, engine);
              // Ordinary numbers: zeros for factors are as quick, but pages that nobody wrote are one.
              constexpr float value = 0.01F;
              auto* const to = static_cast<std::byte*>(memory.get_data_handle());
              for (std::size_t i = 0; i + sizeof value <= desc.get_size(); i += sizeof value)
                std::memcpy(to + i, &value, sizeof value);
              arguments.emplace(id, std::move(memory));
            }
            return [primitive = make(), arguments = std::move(arguments),
                    stream = dnnl::stream(engine)]() mutable {
              primitive.execute(stream, arguments);
              stream.wait();
            };
          }};
}

int PlanBuilder::wanted_parts() const {
  const std::size_t next = parts_.kernels.size();
  return next < division_.parts.size() ? std::max(division_.parts[next], arena_parts_) : arena_parts_;
}

PlanBuilder::Step PlanBuilder::step_of(const Made& made, const Arguments& arguments) {
  std::vector<DnnlKernel::Argument> described;
  Step step;
  for (const auto& [id, operand] : arguments) {
    described.push_back({id, operand.desc});
    step.operands.push_back(operand);
  }
  if (!made.scratchpad.is_zero() && made.scratchpad.get_size() > 0) {
    described.push_back({DNNL_ARG_SCRATCHPAD, made.scratchpad});
    step.operands.push_back(temporary(made.scratchpad));
  }
  step.kernel = std::make_unique<DnnlKernel>(engine_, made.primitive, std::move(described));
  return step;
}

// `made` for about as many parts, or for half as many and so on, and for how many. Nothing where it would be
// another implementation, which may be far slower: oneDNN's convolutions by brgemm refuse numbers of threads
// that would share the work unevenly. To ask takes up to 20 ms, so not all numbers are tried.
std::optional<PlanBuilder::Divided> PlanBuilder::made_for(int parts, const Made& made,
                                                          const std::function<std::optional<Made>()>& again) {
  constexpr int farthest = 16;
  for (int about = parts; about > arena_parts_; about /= 2)
    for (int off = 0; off <= std::min(farthest, about / 2); off = off > 0 ? -off : 1 - off) {
      std::optional<Made> other;
      division_.arenas->of(about + off).execute([&] {
        try {
          other = again();
        } catch (const dnnl::error&) {
          other.reset();
        }
      });
      if (other && other->implementation == made.implementation)
        return Divided{.made = std::move(*other), .parts = about + off};
    }
  return std::nullopt;
}

void PlanBuilder::emit_primitive(const std::string& node, const Made& made, const Arguments& arguments,
                                 const std::function<std::optional<Made>()>& again) {
  int parts = arena_parts_;
  std::optional<Divided> divided;
  if (const int wanted = wanted_parts(); wanted > arena_parts_) {
    divided = made_for(wanted, made, again);
    if (divided) parts = divided->parts;
  }
  if (sequence_) {
    // All of a sequence runs in one arena.
    const bool fits = divided && divided->parts == wanted_parts();
    sequence_->steps.push_back(step_of(made, arguments));
    sequence_->divides = sequence_->divides && fits;
    sequence_->divided.push_back(fits ? step_of(divided->made, arguments) : Step{});
    return;
  }
  append(node + " " + made.implementation, step_of(divided ? divided->made : made, arguments), parts);
}

void PlanBuilder::append(std::string name, std::unique_ptr<Kernel> kernel,
                         const std::vector<Operand>& operands) {
  if (sequence_) {
    sequence_->divided.push_back({});
    sequence_->steps.push_back({std::move(kernel), operands});
    return;
  }
  const int pieces = division_.parts.empty() ? 1 : std::min(kernel->pieces(), Divider::most_parts);
  const int parts = kernel->divides() ? std::max(pieces, arena_parts_) : 0;
  append(std::move(name), {std::move(kernel), operands}, parts);
}

void PlanBuilder::append(std::string name, Step step, int parts) {
  const int k = static_cast<int>(parts_.kernels.size());
  check_places(name, step);
  parts_.names.push_back(std::move(name));
  parts_.parts.push_back(parts);
  parts_.kernels.push_back(std::move(step.kernel));
  parts_.guard_of.push_back(guard_);
  for (int g = guard_; g >= 0; g = guards_[static_cast<std::size_t>(g)].parent) {
    Operand& condition = conditions_[static_cast<std::size_t>(g)];
    if (condition.buffer < 0) condition = current(guards_[static_cast<std::size_t>(g)].condition);
    buffers_[static_cast<std::size_t>(condition.buffer)].last = k;
  }
  for (std::size_t i = 0; i < step.operands.size(); ++i) {
    const auto& [buffer, offset, desc, factor] = step.operands[i];
    if (buffer < 0) continue;
    uses_.push_back({k, static_cast<int>(i), buffer, offset});
    Buffer& b = buffers_[static_cast<std::size_t>(buffer)];
    if (b.first < 0) b.first = k;
    b.last = k;
  }
}

void PlanBuilder::check_places(const std::string& name, const Step& step) {
  const auto count = static_cast<int>(step.operands.size());
  if (count != step.kernel->operand_count() && misplaced_.empty())
    misplaced_ = "kernel \"" + name + "\" has " + std::to_string(step.kernel->operand_count()) +
                 " operands, and is given places for " + std::to_string(count);
  for (int i = 0; i < count && misplaced_.empty(); ++i) {
    const Operand& operand = step.operands[static_cast<std::size_t>(i)];
    const bool there = operand.buffer >= 0 && operand.buffer < static_cast<int>(buffers_.size());
    if (there ? operand.buffer == weights_buffer && operand.offset >= weights_.end()
              : operand.buffer >= 0 || !step.kernel->may_lack(i))
      misplaced_ = "kernel \"" + name + "\": operand " + std::to_string(i) + " has no place";
  }
}

void PlanBuilder::begin_sequence() {
  CARILLON_ASSERT(!sequence_);
  sequence_.emplace();
}

void PlanBuilder::end_sequence(std::string name) {
  CARILLON_ASSERT(sequence_.has_value());
  const int wanted = wanted_parts();
  Sequence made = std::move(*sequence_);
  sequence_.reset();
  const bool divided = made.divides && wanted > arena_parts_;
  Step whole;
  std::vector<SequenceKernel::Part> parts;
  for (std::size_t i = 0; i < made.steps.size(); ++i) {
    Step& step = divided && made.divided[i].kernel ? made.divided[i] : made.steps[i];
    parts.push_back({std::move(step.kernel), static_cast<int>(step.operands.size())});
    whole.operands.insert(whole.operands.end(), step.operands.begin(), step.operands.end());
  }
  whole.kernel = std::make_unique<SequenceKernel>(std::move(parts));
  const int in = !whole.kernel->divides() ? 0 : divided ? wanted : arena_parts_;
  append(std::move(name), std::move(whole), in);
}

void PlanBuilder::recover(int guard) {
  sequence_.reset();
  enter(guard);
}

std::optional<graph::Origin> PlanBuilder::origin(graph::ValueId id, const graph::Node& node) const {
  if (is_constant(id)) return std::nullopt;
  graph::Origin found = origins_[id.index()];
  // Whether the node runs at all may be another row's doing.
  if (node.guard >= 0 && found.rows > 1) found.rows = 0;
  return found;
}

Result<> PlanBuilder::emit_plain(const graph::Node& node) {
  std::vector<const graph::TensorType*> inputs, outputs, extras;
  for (const auto id : node.inputs) inputs.push_back(id == graph::no_value ? nullptr : &type(id));
  for (const auto id : node.outputs) outputs.push_back(id == graph::no_value ? nullptr : &type(id));
  for (const auto& types : {inputs, outputs})
    if (auto ok = graph::check_dimensions(types); !ok)
      return in_context("node \"" + node.name + "\" (" + node.op + ")", ok.error());
  const graph::PlainKernel kernel = graph::find_plain_kernel(node, inputs);
  if (kernel == nullptr) {
    std::string types;
    for (const auto* t : inputs)
      types += (types.empty() ? "" : ", ") + (t == nullptr ? "none" : describe(*t));
    return fail(ErrorCode::unsupported,
                "node \"" + node.name + "\": no kernel for " + node.op + "(" + types + ") on this engine");
  }
  std::vector<Operand> operands;
  for (const auto id : node.inputs) operands.push_back(id == graph::no_value ? Operand{} : row_major(id));
  std::vector<Operand> post_operands;
  for (const auto& op : node.post_ops) {
    const bool none = op.operand == graph::no_value;
    extras.push_back(none ? nullptr : &type(op.operand));
    post_operands.push_back(none ? Operand{} : row_major(op.operand));
  }
  for (const auto id : node.outputs)
    operands.push_back(id == graph::no_value ? Operand{} : define(id, plain_desc(id)));
  const std::optional<graph::TensorType> room = graph::plain_workspace(node, inputs);
  if (room) {
    outputs.push_back(&*room);
    operands.push_back({.buffer = new_buffer(room->bytes().count)});
  }
  operands.insert(operands.end(), post_operands.begin(), post_operands.end());
  std::vector<std::optional<graph::Origin>> origins(node.inputs.size());
  for (std::size_t i = 0; i < origins.size(); ++i) {
    if (node.inputs[i] != graph::no_value) origins[i] = origin(node.inputs[i], node);
  }
  auto step = std::make_unique<PlainKernelStep>(node, kernel, inputs, outputs, extras);
  step->take_notes(std::move(origins));
  divide(*step, [&] {
    std::vector<const graph::Tensor*> constants;
    for (const auto id : node.inputs) constants.push_back(is_constant(id) ? constant(id).get() : nullptr);
    return graph::Slices::of(node, inputs, outputs, extras, constants);
  });
  append(node.name + " plain:" + node.op, std::move(step), operands);
  return {};
}

void PlanBuilder::emit_plain_binary(const graph::Node& node, std::string_view op, const Operand& a,
                                    const Operand& b, const Operand& result) {
  const auto seen = [](const Operand& operand) -> Seen {
    CARILLON_ASSERT(cpu::is_row_major(operand.desc) && operand.desc.get_data_type() == DnnlType::f32);
    return {operand, {graph::DataType::f32, operand.desc.get_dims()}};
  };
  const bool found = emit_plain_as(node, op, {seen(a), seen(b)}, {seen(result)});
  CARILLON_ASSERT(found);
}

bool PlanBuilder::emit_plain_as(const graph::Node& node, std::string_view op, const std::vector<Seen>& inputs,
                                const std::vector<Seen>& outputs) {
  graph::Node part{
      .name = node.name, .op = std::string(op), .outputs = node.outputs, .attributes = node.attributes};
  part.outputs.resize(outputs.size(), node.outputs.front());
  std::vector<const graph::TensorType*> read, written;
  std::vector<Operand> operands;
  for (const Seen& seen : inputs) {
    read.push_back(seen.operand.buffer < 0 ? nullptr : &seen.type);
    operands.push_back(seen.operand);
  }
  for (const Seen& seen : outputs) {
    written.push_back(&seen.type);
    operands.push_back(seen.operand);
  }
  const graph::PlainKernel kernel = graph::find_plain_kernel(part, read);
  if (kernel == nullptr) return false;
  auto step =
      std::make_unique<PlainKernelStep>(part, kernel, read, written, std::vector<const graph::TensorType*>{});
  divide(*step, [&] { return graph::Slices::of(part, read, written, {}, {}); });
  append(node.name + " plain:" + part.op, std::move(step), operands);
  return true;
}

// As its time wants it, or among the threads where that is worth it.
void PlanBuilder::divide(PlainKernelStep& step,
                         const std::function<std::optional<graph::Slices>()>& slices_of) const {
  const int wanted = wanted_parts();
  if (wanted < 2 || step.elements() == 0 || (wanted <= arena_parts_ && !worth_dividing(step.elements())))
    return;
  if (auto slices = slices_of()) step.divide(std::move(*slices), wanted);
}

Result<PlanParts> PlanBuilder::finish() {
  enter(-1);
  for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
    if (output_written_[i]) continue;
    const auto id = graph_.outputs[i];
    Operand target{.buffer = static_cast<int>(1 + graph_.inputs.size() + i)};
    target.desc = plain_desc(id);
    copy(graph_.value(id).name, id, target);
  }
  if (!misplaced_.empty()) return fail(ErrorCode::internal, misplaced_);

  std::vector<BufferNeed> needs;
  std::vector<std::size_t> slot_of(buffers_.size(), 0);
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const Buffer& buffer = buffers_[b];
    if (buffer.where != Where::workspace || buffer.first < 0) continue;
    slot_of[b] = needs.size();
    needs.push_back({.size = buffer.size, .first = buffer.first, .last = buffer.last});
  }
  const MemoryPlan plan = plan_memory(needs);
  parts_.workspace = plan.total;
  const auto slot = [&](int b, std::uint64_t offset) -> Slot {
    const Buffer& buffer = buffers_[static_cast<std::size_t>(b)];
    if (buffer.where == Where::weights && weights_.is_above(offset))
      return {.where = Where::own, .offset = weights_.offset_above(offset)};
    const std::uint64_t base =
        buffer.where == Where::workspace ? plan.offsets[slot_of[static_cast<std::size_t>(b)]] : 0;
    return {.where = buffer.where, .index = buffer.index, .offset = base + offset};
  };
  for (const auto& [kernel, operand, b, offset] : uses_)
    parts_.patches.push_back({.kernel = kernel, .operand = operand, .slot = slot(b, offset)});
  parts_.branches = flags_ || std::ranges::any_of(guards_, [](const auto& guard) {
                      return guard.condition != graph::no_value;
                    });
  for (std::size_t g = 0; g < guards_.size(); ++g) {
    // No kernel has a guard without a place, but its number is taken.
    const Operand& condition = conditions_[g];
    parts_.guards.push_back(
        {.condition = condition.buffer < 0 ? Slot{} : slot(condition.buffer, condition.offset),
         .when = guards_[g].when,
         .parent = guards_[g].parent});
  }
  return std::move(parts_);
}

}  // namespace carillon::engine::cpu
