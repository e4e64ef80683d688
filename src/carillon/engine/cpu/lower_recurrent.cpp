#include <algorithm>
#include <array>
#include <optional>

#include "carillon/engine/cpu/lstm_step.h"
#include "carillon/engine/cpu/plan_builder.h"
#include "carillon/engine/cpu/sequence_lengths.h"
#include "carillon/graph/recurrence.h"

namespace carillon::engine::cpu {

namespace {

using graph::Recurrence;
using graph::SharedTensor;
using graph::ValueId;
using Cell = Recurrence::Cell;

ValueId operand(const graph::Node& node, std::size_t i) {
  return i < node.inputs.size() ? node.inputs[i] : graph::no_value;
}
ValueId result(const graph::Node& node, std::size_t i) {
  return i < node.outputs.size() ? node.outputs[i] : graph::no_value;
}

dnnl::rnn_direction direction_of(const Recurrence& s) {
  switch (s.direction) {
    case Recurrence::Direction::forward:
      return dnnl::rnn_direction::unidirectional_left2right;
    case Recurrence::Direction::reverse:
      return dnnl::rnn_direction::unidirectional_right2left;
    case Recurrence::Direction::bidirectional:
      return dnnl::rnn_direction::bidirectional_concat;
  }
  return dnnl::rnn_direction::undef;
}

// What oneDNN's plain RNN has for both directions. It has ReLU too, which makes a number of NaN; tanh and the
// logistic function keep it in RNNs on all processors.
std::optional<dnnl::algorithm> activation_of(const Recurrence& s) {
  const auto function = s.activations[0].function;
  if (s.directions() == 2 && s.activations[1].function != function) return std::nullopt;
  if (function == Recurrence::Function::tanh) return dnnl::algorithm::eltwise_tanh;
  if (function == Recurrence::Function::sigmoid) return dnnl::algorithm::eltwise_logistic;
  return std::nullopt;
}

bool all_are(const graph::Tensor& tensor, std::int64_t value) {
  if (tensor.type().type == graph::DataType::i32)
    return std::ranges::all_of(tensor.as<std::int32_t>(), [=](std::int32_t x) { return x == value; });
  return std::ranges::all_of(tensor.as<float>(), [=](float x) { return x == static_cast<float>(value); });
}

// Whether there is such a state, and it is not all zeros.
bool is_there(PlanBuilder& builder, const graph::Node& node, std::size_t state) {
  const ValueId id = operand(node, state);
  return id != graph::no_value && !(builder.is_constant(id) && all_are(*builder.constant(id), 0));
}

// Whether sequences end before the last step, or may do so.
bool has_lengths(PlanBuilder& builder, const graph::Node& node, const Recurrence& s) {
  const ValueId id = operand(node, Recurrence::sequence_lens);
  return id != graph::no_value && !(builder.is_constant(id) && all_are(*builder.constant(id), s.steps));
}

// Whether oneDNN, or our own LSTM, has what the node asks for; the weights must be constants, to be packed.
bool suits(PlanBuilder& builder, const graph::Node& node, const Recurrence& s) {
  if (s.clip < std::numeric_limits<float>::infinity() || s.input_forget) return false;
  if (s.cell == Cell::rnn ? !activation_of(s) : !s.usual_activations()) return false;
  if (operand(node, Recurrence::p) != graph::no_value) return false;
  const bool states =
      is_there(builder, node, Recurrence::initial_h) || is_there(builder, node, Recurrence::initial_c);
  if (has_lengths(builder, node, s) && !may_have_lengths(s, states)) return false;
  if (!builder.is_real(node.inputs[Recurrence::x]) || builder.is_constant(node.inputs[Recurrence::x]))
    return false;
  for (const std::size_t i : {Recurrence::w, Recurrence::r, Recurrence::b}) {
    const ValueId id = operand(node, i);
    if (id != graph::no_value && !(builder.is_constant(id) && builder.is_real(id))) return false;
  }
  return true;
}

// ONNX has an LSTM's gates as i, o, f, c, oneDNN as i, f, c, o; those of the others are alike.
constexpr std::array<std::int64_t, 4> lstm_gates{0, 2, 3, 1};
std::int64_t onnx_gate(const Recurrence& s, std::int64_t gate) {
  return s.cell == Cell::lstm ? lstm_gates[static_cast<std::size_t>(gate)] : gate;
}

// W or R with oneDNN's gates.
SharedTensor weights_of(PlanBuilder& builder, const Recurrence& s, const SharedTensor& from) {
  if (s.cell != Cell::lstm) return from;
  return builder.derive("gates", {from}, [&] {
    graph::Tensor made(from->type());
    const std::int64_t size = from->type().elements() / (s.directions() * s.gates());
    for (std::int64_t d = 0; d < s.directions(); ++d)
      for (std::int64_t g = 0; g < s.gates(); ++g)
        std::copy_n(from->as<float>().begin() + (d * s.gates() + onnx_gate(s, g)) * size, size,
                    made.as<float>().begin() + (d * s.gates() + g) * size);
    return made;
  });
}

// ONNX has biases of both products, oneDNN their sum; or, where a gate comes between, that of the state's as
// a fourth.
std::int64_t biases(const Recurrence& s) {
  return s.cell == Cell::gru && s.linear_before_reset ? 4 : s.gates();
}
SharedTensor bias_of(PlanBuilder& builder, const graph::Node& node, const Recurrence& s) {
  const ValueId b = operand(node, Recurrence::b);
  const graph::TensorType type{graph::DataType::f32, {s.directions(), biases(s), s.hidden}};
  if (b == graph::no_value)
    return builder.derive("no bias " + std::to_string(biases(s)),
                          {builder.constant(node.inputs[Recurrence::w])},
                          [&] { return graph::Tensor(type); });
  const SharedTensor& from = builder.constant(b);
  const std::string what = std::string("bias ") + (biases(s) > s.gates() ? "apart" : node.op);
  return builder.derive(what, {from}, [&] {
    graph::Tensor made(type);
    const float* to_read = from->as<float>().data();
    float* to_write = made.as<float>().data();
    for (std::int64_t d = 0; d < s.directions(); ++d, to_read += 2 * s.gates() * s.hidden)
      for (std::int64_t g = 0; g < biases(s); ++g, to_write += s.hidden) {
        const float* of_x = to_read + onnx_gate(s, std::min<std::int64_t>(g, s.gates() - 1)) * s.hidden;
        const float* of_h = of_x + s.gates() * s.hidden;
        const bool apart = biases(s) > s.gates() && g >= 2;
        for (std::int64_t i = 0; i < s.hidden; ++i)
          to_write[i] = apart ? (g == 2 ? of_x : of_h)[i] : of_x[i] + of_h[i];
      }
    return made;
  });
}

// A state as the node has it, and as oneDNN does.
Desc state_layout(const Recurrence& s) {
  const std::int64_t n = s.batch, d = s.directions(), h = s.hidden;
  return s.batch_first ? Desc({n, d, h}, DnnlType::f32, Dims{h, n * h, 1})
                       : row_major(Dims{d, n, h}, DnnlType::f32);
}
Desc seen_state(const Recurrence& s) {
  return row_major(Dims{1, s.directions(), s.batch, s.hidden}, DnnlType::f32);
}

// Nothing where it need not be read.
std::optional<Operand> initial_state(PlanBuilder& builder, const graph::Node& node, const Recurrence& s,
                                     std::size_t index) {
  if (!is_there(builder, node, index)) return std::nullopt;
  Operand state = builder.in_layout(operand(node, index), state_layout(s));
  state.desc = seen_state(s);
  return state;
}
Operand zero_state(PlanBuilder& builder, const graph::Node& node, const Recurrence& s) {
  const graph::TensorType type{graph::DataType::f32, {s.directions(), s.batch, s.hidden}};
  const SharedTensor zeros =
      builder.derive("zeros " + std::to_string(s.batch), {builder.constant(node.inputs[Recurrence::w])},
                     [&] { return graph::Tensor(type); });
  return builder.packed(zeros, seen_state(s), seen_state(s));
}

// X as [steps, batch, width].
Operand sequence_of(PlanBuilder& builder, const graph::Node& node, const Recurrence& s) {
  const ValueId x = node.inputs[Recurrence::x];
  Operand source = builder.in_layout(x, row_major(builder.shape(x), DnnlType::f32));
  if (s.batch_first) source.desc = transposed(source.desc, std::array<std::int64_t, 3>{1, 0, 2});
  return source;
}

// Y as oneDNN writes it: the directions of a step side by side.
Desc sequence_layout(const Recurrence& s) {
  const std::int64_t t = s.steps, n = s.batch, d = s.directions(), h = s.hidden;
  return s.batch_first ? Desc({n, t, d, h}, DnnlType::f32, Dims{d * h, n * d * h, h, 1})
                       : Desc({t, d, n, h}, DnnlType::f32, Dims{n * d * h, h, d * h, 1});
}

// All that the primitives of the three kinds are made of.
struct Descs {
  Desc x, h, c;  // of the first states: zero where they are
  Desc w, r, b;
  Desc y, y_h, y_c;
};

struct AsLstm {
  using Primitive = dnnl::lstm_forward;
  static Primitive::primitive_desc make(PlanBuilder& builder, const Recurrence& s, const Descs& d) {
    return {builder.engine(),
            dnnl::prop_kind::forward_inference,
            direction_of(s),
            d.x,
            d.h,
            d.c,
            d.w,
            d.r,
            d.b,
            d.y,
            d.y_h,
            d.y_c,
            PlanBuilder::attributes(),
            true};
  }
};
// Cells with one state; `kind`: what oneDNN asks for in front of the direction, if anything.
template <typename Cell, typename... Kind>
typename Cell::primitive_desc make_with_one_state(PlanBuilder& builder, const Recurrence& s, const Descs& d,
                                                  Kind... kind) {
  return {builder.engine(),
          dnnl::prop_kind::forward_inference,
          kind...,
          direction_of(s),
          d.x,
          d.h,
          d.w,
          d.r,
          d.b,
          d.y,
          d.y_h,
          PlanBuilder::attributes(),
          true};
}
template <typename Gru>
struct AsGru {
  using Primitive = Gru;
  static typename Primitive::primitive_desc make(PlanBuilder& builder, const Recurrence& s, const Descs& d) {
    return make_with_one_state<Gru>(builder, s, d);
  }
};
struct AsRnn {
  using Primitive = dnnl::vanilla_rnn_forward;
  static Primitive::primitive_desc make(PlanBuilder& builder, const Recurrence& s, const Descs& d) {
    return make_with_one_state<Primitive>(builder, s, d, *activation_of(s));
  }
};

// A kernel of operands that are seen as these types, of which the last `written` are results.
void emit_by_length(PlanBuilder& builder, const graph::Node& node, const char* name,
                    graph::PlainKernel kernel, const std::vector<Operand>& operands,
                    const std::vector<graph::TensorType>& types, std::size_t written) {
  std::vector<const graph::TensorType*> seen;
  for (std::size_t i = 0; i < types.size(); ++i) seen.push_back(operands[i].buffer < 0 ? nullptr : &types[i]);
  const auto results = seen.end() - static_cast<std::ptrdiff_t>(written);
  auto step = std::make_unique<PlainKernelStep>(
      node, kernel, std::vector<const graph::TensorType*>(seen.begin(), results),
      std::vector<const graph::TensorType*>(results, seen.end()), std::vector<const graph::TensorType*>{});
  std::vector<std::optional<graph::Origin>> origins(types.size() - written);
  origins.back() = builder.origin(operand(node, Recurrence::sequence_lens), node);  // the last that is read
  step->take_notes(std::move(origins));
  builder.append(node.name + name, std::move(step), operands);
}

// X as marked by lengths, [steps, batch, width + 1]. Its kernel also writes the flags.
Operand marked_sequence(PlanBuilder& builder, const graph::Node& node, const Recurrence& s,
                        const std::vector<Operand>& flags) {
  const ValueId x = node.inputs[Recurrence::x], lengths = node.inputs[Recurrence::sequence_lens];
  const graph::TensorType type{graph::DataType::f32, {s.steps, s.batch, s.width + 1}};
  const Operand made = builder.temporary(row_major(type.shape, DnnlType::f32));
  std::vector<Operand> operands{builder.in_layout(x, row_major(builder.shape(x), DnnlType::f32)),
                                builder.row_major(lengths), made};
  operands.insert(operands.end(), flags.begin(), flags.end());
  std::vector<graph::TensorType> types{builder.type(x), builder.type(lengths), type};
  types.resize(types.size() + flags.size(), {graph::DataType::u8, {1}});
  emit_by_length(builder, node, " marks ends", mark_ends, operands, types, 1 + flags.size());
  return made;
}

template <typename Form>
bool lower_as(PlanBuilder& builder, const graph::Node& node, const Recurrence& s) {
  const bool is_lstm = s.cell == Cell::lstm, lengths = has_lengths(builder, node, s);
  SharedTensor w = weights_of(builder, s, builder.constant(node.inputs[Recurrence::w]));
  if (lengths) w = builder.derive("weights with lengths", {w}, [&] { return weights_with_lengths(*w, s); });
  const SharedTensor r = weights_of(builder, s, builder.constant(node.inputs[Recurrence::r]));
  const auto seen_weights = [&](std::int64_t depth) {
    const std::int64_t d = s.directions(), g = s.gates(), h = s.hidden;
    return Desc({1, d, depth, g, h}, DnnlType::f32,
                Dims{d * g * h * depth, g * h * depth, 1, h * depth, depth});
  };
  const Desc source_w = seen_weights(s.width + (lengths ? 1 : 0)), source_r = seen_weights(s.hidden);
  const auto any = [](const Desc& like) {
    return Desc(like.get_dims(), DnnlType::f32, dnnl::memory::format_tag::any);
  };

  const std::vector<std::int64_t> spans = lengths ? spans_of(s.steps) : std::vector{s.steps};
  std::vector<Operand> flags;
  for (std::size_t i = 0; lengths && i < spans.size(); ++i)
    flags.push_back(builder.temporary(row_major(Dims{1}, DnnlType::u8)));
  const Operand x = lengths ? marked_sequence(builder, node, s, flags) : sequence_of(builder, node, s);
  std::optional<Operand> h = initial_state(builder, node, s, Recurrence::initial_h), c;
  if (is_lstm) {
    c = initial_state(builder, node, s, Recurrence::initial_c);
    if (h.has_value() != c.has_value()) (h ? c : h) = zero_state(builder, node, s);
  }
  const ValueId y = result(node, 0), y_h = result(node, 1), y_c = result(node, 2);
  const bool states = y_h != graph::no_value || y_c != graph::no_value;

  Descs descs{.x = x.desc, .w = any(source_w), .r = any(source_r)};
  if (h) descs.h = h->desc;
  if (c) descs.c = c->desc;
  descs.b = row_major(Dims{1, s.directions(), biases(s), s.hidden}, DnnlType::f32);
  descs.y = row_major(Dims{s.steps, s.batch, s.directions() * s.hidden}, DnnlType::f32);
  if (states) descs.y_h = seen_state(s);
  if (states && is_lstm) descs.y_c = seen_state(s);
  auto chosen = Form::make(builder, s, descs);
  if (!chosen) return false;
  const Desc* known_w = builder.known_layout(w, source_w.get_dims(), DnnlType::f32);
  const Desc* known_r = builder.known_layout(r, source_r.get_dims(), DnnlType::f32);
  if (known_w != nullptr && known_r != nullptr) {
    descs.w = *known_w;
    descs.r = *known_r;
    const auto same = Form::make(builder, s, descs);
    if (same && std::string_view(same.impl_info_str()) == chosen.impl_info_str()) chosen = same;
  }

  PlanBuilder::Arguments arguments{
      {DNNL_ARG_SRC_LAYER, x},
      {DNNL_ARG_WEIGHTS_LAYER, builder.packed(w, source_w, chosen.weights_layer_desc())},
      {DNNL_ARG_WEIGHTS_ITER, builder.packed(r, source_r, chosen.weights_iter_desc())},
      {DNNL_ARG_BIAS, builder.packed(bias_of(builder, node, s), descs.b, descs.b)}};
  if (h) arguments.emplace_back(DNNL_ARG_SRC_ITER, *h);
  if (c) arguments.emplace_back(DNNL_ARG_SRC_ITER_C, *c);
  std::vector<Operand> results;
  const auto place = [&](ValueId id, int argument, const Desc& layout, const Desc& seen) {
    Operand to = id == graph::no_value ? builder.temporary(seen) : builder.define(id, layout);
    to.desc = seen;
    arguments.emplace_back(argument, to);
    results.push_back(to);
  };
  place(y, DNNL_ARG_DST_LAYER, sequence_layout(s), descs.y);
  if (states) place(y_h, DNNL_ARG_DST_ITER, state_layout(s), descs.y_h);
  if (states && is_lstm) place(y_c, DNNL_ARG_DST_ITER_C, state_layout(s), descs.y_c);
  // Never divided for stops: its steps wait for each other, so that more parts than threads cost at each.
  const auto emit = [&](const auto& desc) {
    builder.emit(node.name, desc, typename Form::Primitive(desc), arguments,
                 [] { return typename Form::Primitive::primitive_desc(); });
  };
  if (!lengths) {
    emit(chosen);
    return true;
  }
  descs.w = chosen.weights_layer_desc();
  descs.r = chosen.weights_iter_desc();
  for (std::size_t i = 0; i < spans.size(); ++i) {
    for (auto& [argument, operand] : arguments)
      if (Desc& desc = argument == DNNL_ARG_SRC_LAYER ? descs.x : descs.y;
          argument == DNNL_ARG_SRC_LAYER || argument == DNNL_ARG_DST_LAYER) {
        Dims dims = desc.get_dims();
        dims[0] = spans[i];
        operand.desc = desc = row_major(dims, DnnlType::f32);
      }
    const int around = builder.enter(builder.under(flags[i]));
    emit(Form::make(builder, s, descs));
    builder.enter(around);
  }
  const ValueId ends = node.inputs[Recurrence::sequence_lens];
  const graph::TensorType state{graph::DataType::f32, {s.directions(), s.batch, s.hidden}};
  std::vector<graph::TensorType> types{builder.type(ends),
                                       {graph::DataType::f32, {s.steps, s.batch, s.directions(), s.hidden}}};
  types.resize(1 + results.size(), state);
  std::vector<Operand> operands{builder.row_major(ends)};
  operands.insert(operands.end(), results.begin(), results.end());
  emit_by_length(builder, node, " cut at ends", cut_at_ends, operands, types, results.size());
  return true;
}

// W or R in panels for `numbers`, or an empty tensor.
SharedTensor lstm_panels(PlanBuilder& builder, const graph::Node& node, std::size_t operand,
                         LstmStep::Numbers numbers) {
  const SharedTensor& from = builder.constant(node.inputs[operand]);
  if (numbers == LstmStep::Numbers::floats)
    return builder.derive("panels", {from}, [&] { return LstmStep::pack(*from); });
  const auto scales =
      node.reals(operand == Recurrence::w ? graph::input_weight_scales : graph::state_weight_scales);
  return builder.derive("panels of bytes", {from}, [&] { return LstmStep::pack_bytes(*from, scales); });
}

// An LSTM by our own kernel; false: not on this processor, or not with these weights.
bool lower_own_lstm(PlanBuilder& builder, const graph::Node& node, const Recurrence& s,
                    LstmStep::Numbers numbers) {
  if (s.steps < 1 || s.batch < 1 || has_lengths(builder, node, s) ||
      !LstmStep::runs_on_this_processor(numbers))
    return false;
  const bool bytes = numbers == LstmStep::Numbers::bytes;
  if (bytes && !(node.has(graph::input_weight_scales) && node.has(graph::state_weight_scales))) return false;
  const SharedTensor w = lstm_panels(builder, node, Recurrence::w, numbers);
  const SharedTensor r = lstm_panels(builder, node, Recurrence::r, numbers);
  if (w->type().elements() == 0 || r->type().elements() == 0) return false;
  const ValueId b = operand(node, Recurrence::b);
  const SharedTensor& bias_from = builder.constant(b == graph::no_value ? node.inputs[Recurrence::w] : b);
  const SharedTensor bias = builder.derive("bias of panels", {bias_from}, [&] {
    return LstmStep::pack_bias(b == graph::no_value ? nullptr : bias_from.get(), s.directions(), s.hidden);
  });

  const LstmStep::Shape shape{.steps = s.steps,
                              .batch = s.batch,
                              .width = s.width,
                              .hidden = s.hidden,
                              .directions = s.directions(),
                              .reverse = s.direction == Recurrence::Direction::reverse,
                              .batch_first = s.batch_first,
                              .numbers = numbers};
  std::vector<Operand> operands(LstmStep::operands);
  const ValueId x = node.inputs[Recurrence::x];
  operands[LstmStep::x] = builder.in_layout(x, row_major(builder.shape(x), DnnlType::f32));
  operands[LstmStep::w] = builder.raw(w, Desc());
  operands[LstmStep::r] = builder.raw(r, Desc());
  operands[LstmStep::b] = builder.raw(bias, Desc());
  if (const auto h = initial_state(builder, node, s, Recurrence::initial_h)) operands[LstmStep::h] = *h;
  if (const auto c = initial_state(builder, node, s, Recurrence::initial_c)) operands[LstmStep::c] = *c;
  const auto place = [&](std::size_t output, LstmStep::Operand at, const Desc& layout) {
    if (const ValueId id = result(node, output); id != graph::no_value)
      operands[at] = builder.define(id, layout);
  };
  place(0, LstmStep::y, sequence_layout(s));
  place(1, LstmStep::y_h, state_layout(s));
  place(2, LstmStep::y_c, state_layout(s));
  operands[LstmStep::room_at] = builder.temporary(
      Desc({static_cast<std::int64_t>(LstmStep::room(shape))}, DnnlType::u8, dnnl::memory::format_tag::a));
  builder.append(node.name + (bytes ? " lstm:bytes" : " lstm:floats"),
                 std::make_unique<LstmStep>(shape, builder.threads()), operands);
  return true;
}

}  // namespace

bool lower_recurrent(PlanBuilder& builder, const graph::Node& node) {
  std::vector<const graph::TensorType*> types;
  for (const ValueId id : node.inputs) types.push_back(id == graph::no_value ? nullptr : &builder.type(id));
  const auto shape = graph::recurrence_of(node, types);
  if (!shape || !suits(builder, node, *shape)) return false;
  switch (shape->cell) {
    case Cell::lstm:
      return lower_own_lstm(builder, node, *shape, LstmStep::Numbers::bytes) ||
             lower_own_lstm(builder, node, *shape, LstmStep::Numbers::floats) ||
             lower_as<AsLstm>(builder, node, *shape);
    case Cell::gru:
      return shape->linear_before_reset ? lower_as<AsGru<dnnl::lbr_gru_forward>>(builder, node, *shape)
                                        : lower_as<AsGru<dnnl::gru_forward>>(builder, node, *shape);
    case Cell::rnn:
      return lower_as<AsRnn>(builder, node, *shape);
  }
  return false;
}

}  // namespace carillon::engine::cpu
