// Attention in plans: found where it is, and the same by calls and by one kernel.
#include "carillon/engine/cuda/plan/attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/cuda/testing/networks.h"
#include "carillon/engine/cuda/testing/on_emulated.h"
#include "carillon/graph/fold.h"
#include "carillon/graph/passes/passes.h"

namespace carillon::engine::cuda {
namespace {

using engine::testing::MadeModel;
using engine::testing::random_inputs;
using engine::testing::reference;
using graph::DataType;
using graph::PostOp;
using graph::ValueId;
using ::testing::HasSubstr;
using testing::OnEmulated;
using namespace testing::networks;

// What makes one attention of many; each field a way in which exporters, or faults, differ.
struct Form {
  std::int64_t heads = 2, queries = 5, keys = 7, head = 16;
  enum class Layout { projected, joined, as_they_come, grouped } layout = Layout::projected;
  enum class Scale { none, linear, mul_left, mul_right, div, post_mul } scale = Scale::linear;
  enum class Mask { none, add, add_left, post_op, where_hides, where_shows } mask = Mask::none;
  V mask_shape;               // of [batch, heads, queries, keys]: 1, or the extent; as many as it has
  bool constant_mask = true;  // else an input, of f32, that is added
  bool hide_all = false;      // whole rows, too: with `guarded` alone
  bool guarded = false;       // Where(IsNaN(weights), 0, weights)
  bool turned = true;         // [batch, queries, heads * head] at the end
  std::vector<PostOp> after;  // of the product with the values
  // And what makes it none that one kernel could compute.
  enum class Fault {
    none,
    weights_used,
    weights_read,
    scores_used,
    other_axis,
    mask_scaled,
    two_masks,
    weak_fill
  } fault{};
};

class AttentionNet : public Net {
 public:
  AttentionNet(const Form& form, std::uint64_t seed, std::int64_t batch) : Net(seed), f_(form), b_(batch) {}

  engine::testing::Graph make() {
    const float root = 1 / std::sqrt(static_cast<float>(f_.head));
    const bool grouped = f_.layout == Form::Layout::grouped;
    const V lead = f_.layout == Form::Layout::joined ? V{b_ * f_.heads}
                   : grouped                         ? V{b_, 2, f_.heads}
                                                     : V{b_, f_.heads};
    const V shared_lead = grouped ? V{b_, 2, 1} : lead;
    ValueId q = operand(lead, f_.queries, false), k = operand(shared_lead, f_.keys, true),
            v = operand(shared_lead, f_.keys, false);
    V shape = lead;
    shape.insert(shape.end(), {f_.queries, f_.keys});
    std::vector<PostOp> post;
    if (f_.scale == Form::Scale::linear) post.push_back({.kind = PostOp::Kind::linear, .alpha = root});
    if (f_.scale == Form::Scale::post_mul)
      post.push_back({.kind = PostOp::Kind::mul, .operand = number(root)});
    if (f_.mask == Form::Mask::post_op) post.push_back(add(mask()));
    ValueId scores = node("MatMul", {q, k}, shape, {}, post);
    if (f_.fault == Form::Fault::scores_used) extra_.push_back(scores);
    if (f_.scale == Form::Scale::mul_left) scores = node("Mul", {number(root), scores}, shape);
    if (f_.scale == Form::Scale::mul_right) scores = node("Mul", {scores, number(root)}, shape);
    if (f_.scale == Form::Scale::div) scores = node("Div", {scores, number(1 / root)}, shape);
    if (f_.mask == Form::Mask::add) scores = node("Add", {scores, mask()}, shape);
    if (f_.mask == Form::Mask::add_left) scores = node("Add", {mask(), scores}, shape);
    const float fill = f_.fault == Form::Fault::weak_fill ? -20.0F : f_.hide_all ? -INFINITY : -1e30F;
    if (f_.mask == Form::Mask::where_hides)
      scores = node("Where", {truth("Less"), number(fill), scores}, shape);
    if (f_.mask == Form::Mask::where_shows)
      scores = node("Where", {truth("GreaterOrEqual"), scores, number(fill)}, shape);
    if (f_.fault == Form::Fault::mask_scaled) scores = node("Mul", {scores, number(0.5F)}, shape);
    if (f_.fault == Form::Fault::two_masks) scores = node("Add", {scores, mask()}, shape);
    const std::int64_t axis = f_.fault == Form::Fault::other_axis ? -2 : -1;
    ValueId weights = same("Softmax", {scores}, {{"axis", axis}});
    if (f_.fault == Form::Fault::weights_used) extra_.push_back(weights);
    if (f_.fault == Form::Fault::weights_read) extra_.push_back(same("Tanh", {weights}));
    if (f_.guarded) {
      const ValueId is_nan = node("IsNaN", {weights}, shape);
      g.value(is_nan).type.type = DataType::boolean;
      weights = node("Where", {is_nan, number(0), weights}, shape);
    }
    shape.back() = f_.head;
    ValueId out = node("MatMul", {weights, v}, shape, {}, f_.after);
    if (f_.layout == Form::Layout::projected && f_.turned)
      out = node("Reshape", {transpose(out, {0, 2, 1, 3})}, {b_, f_.queries, f_.heads * f_.head});
    if (f_.layout == Form::Layout::joined) out = node("Reshape", {out}, {b_, f_.heads, f_.queries, f_.head});
    std::vector<ValueId> outputs{out};
    // Outputs have a batch in front.
    outputs.insert(outputs.end(), extra_.begin(), extra_.end());
    return finish(outputs);
  }

 private:
  // [lead.., positions, head], or of keys [lead.., head, positions].
  ValueId operand(const V& lead, std::int64_t positions, bool keys) {
    if (f_.layout == Form::Layout::projected) {
      const auto split = node("Reshape", {projected(positions)}, {b_, positions, f_.heads, f_.head});
      return transpose(split, keys ? V{0, 2, 3, 1} : V{0, 2, 1, 3});
    }
    if (f_.layout == Form::Layout::joined) {
      const auto split = node("Reshape", {projected(positions)}, {b_, positions, f_.heads, f_.head});
      const auto whole = node("Reshape", {transpose(split, {0, 2, 1, 3})}, {lead[0], positions, f_.head});
      return keys ? transpose(whole, {0, 2, 1}) : whole;
    }
    V shape = lead;
    shape.insert(shape.end(), {keys ? f_.head : positions, keys ? positions : f_.head});
    return input(shape);
  }
  ValueId projected(std::int64_t positions) {
    const std::int64_t width = f_.heads * f_.head;
    return node("MatMul", {input({b_, positions, 6}), random_constant({6, width}, 0.4F)},
                {b_, positions, width});
  }
  ValueId number(float value) {
    auto tensor = std::make_shared<graph::Tensor>(graph::TensorType{DataType::f32, {}});
    tensor->as<float>()[0] = value;
    return constant(std::move(tensor));
  }
  ValueId mask() {
    if (!f_.constant_mask) {
      V shape = f_.mask_shape;
      shape[0] = b_;
      return input(shape);
    }
    return random_constant(f_.mask_shape);
  }
  // Booleans, of which some of each row show: all of them where key 0 does not.
  ValueId truth(const char* op) {
    auto shown = random_tensor(f_.mask_shape, random());
    auto values = const_cast<graph::Tensor&>(*shown).as<float>();
    const auto row = static_cast<std::size_t>(f_.mask_shape.back());
    for (std::size_t i = 0; i < values.size(); i += row) {
      if (!f_.hide_all) values[i] = 1;
      if (f_.hide_all && i / row % 2 == 0)
        std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(i), row, -1.0F);
    }
    const ValueId out = node(op, {constant(shown), number(0)}, f_.mask_shape);
    g.value(out).type.type = DataType::boolean;
    return out;
  }

  Form f_;
  std::int64_t b_;
  std::vector<ValueId> extra_;
};

Form random_form(std::uint64_t seed) {
  Random random(seed * 7919 + 1);
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random.below(n)); };
  Form f;
  f.heads = 1 + below(4);
  f.queries = 1 + below(below(4) == 0 ? 40 : 12);
  f.keys = below(3) == 0 ? f.queries : 1 + below(below(4) == 0 ? 70 : 20);
  f.head = below(4) == 0 ? 1 + below(20) : 8 * (1 + below(below(4) == 0 ? 16 : 4));
  f.layout = static_cast<Form::Layout>(below(4));
  f.scale = static_cast<Form::Scale>(below(6));
  f.mask = static_cast<Form::Mask>(below(6));
  // Scores beyond some tens are too coarse in bf16 for calls, which round them.
  if (f.scale == Form::Scale::none && f.head > 4) f.scale = Form::Scale::linear;
  // A node's factor would be the mask's, too.
  if (f.mask == Form::Mask::post_op && f.scale > Form::Scale::linear) f.scale = Form::Scale::post_mul;
  const bool is_where = f.mask == Form::Mask::where_hides || f.mask == Form::Mask::where_shows;
  f.guarded = below(4) == 0;
  f.hide_all = is_where && f.guarded && below(2) == 0;
  if (f.layout == Form::Layout::joined || f.layout == Form::Layout::grouped)
    f.mask_shape = {f.queries, f.keys};
  else
    f.mask_shape = {1, f.heads, f.queries, f.keys};
  for (std::size_t i = 0; i + 1 < f.mask_shape.size(); ++i)
    if (below(2) == 0) f.mask_shape[i] = 1;
  if (!is_where && below(5) == 0) f.mask_shape.back() = 1;
  for (std::int64_t less = below(3); less > 0 && f.mask_shape.size() > 1 && f.mask_shape[0] == 1; --less)
    f.mask_shape.erase(f.mask_shape.begin());
  f.constant_mask =
      is_where || f.mask_shape.size() != 4 || f.layout == Form::Layout::grouped || below(2) == 0;
  f.turned = below(3) != 0;
  if (below(4) == 0) f.after = {relu};
  return f;
}

struct Way {
  AttentionWay attention;
  int longest;
};
// How far the plan's outputs are from those of plain kernels; and how many of its steps are kernels for
// attention.
struct Outcome {
  double apart = 0;
  int kernels = 0;
};
Outcome run_form(OnEmulated& on, const Make& make, Number number, int batch, const Way& way) {
  Outcome out;
  const auto engine =
      on.engine({.number = number, .longest_segment = way.longest, .attention = way.attention});
  EXPECT_TRUE(engine) << engine.error().message;
  const auto model = (*engine)->compile(MadeModel(make), {.batch_sizes = {batch}});
  EXPECT_TRUE(model) << model.error().message;
  if (!model) return out;
  const auto graph = make(batch);
  const auto inputs = random_inputs(graph, 11);
  const auto values = reference(graph, inputs);
  std::vector<std::span<const std::byte>> bytes;
  for (const auto& input : inputs) bytes.emplace_back(input->bytes());
  const Plan& plan = *(*model)->plan(batch);
  const auto got = on.run(**model, plan, bytes, way.longest > 0);
  EXPECT_TRUE(got) << got.error().message;
  if (!got) return out;
  for (std::size_t i = 0; i < got->size(); ++i) out.apart = std::max(out.apart, apart(*values[i], (*got)[i]));
  if (way.longest == 1)
    for (int i = 0; i < plan.kernels(); ++i)
      out.kernels += plan.kernel_name(i).find("carillon_attention") != std::string_view::npos ? 1 : 0;
  return out;
}

TEST(CudaAttention, RandomFormsGiveTheSameBothWays) {
  OnEmulated on;
  int by_kernel = 0;
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Form form = random_form(seed);
    SCOPED_TRACE(
        fmt::format("seed {} heads {} queries {} keys {} head {} layout {} scale {} mask {} guarded {}", seed,
                    form.heads, form.queries, form.keys, form.head, static_cast<int>(form.layout),
                    static_cast<int>(form.scale), static_cast<int>(form.mask), form.guarded));
    const bool is_where = form.mask == Form::Mask::where_hides || form.mask == Form::Mask::where_shows;
    const Make make = [&](std::int64_t batch) {
      auto made = AttentionNet(form, seed, batch).make();
      if (is_where && seed % 4 > 0) {  // as the import leaves it
        graph::ConstantStore store;
        graph::mask_by_bounds(made, store);
        if (seed % 4 > 1) graph::fuse_post_ops(made);
      }
      return made;
    };
    const Number number = seed % 3 == 0 ? Number::f32 : seed % 3 == 1 ? Number::f16 : Number::bf16;
    const int batch = 1 + static_cast<int>(seed % 2);
    EXPECT_EQ(find_attention(make(batch)).size(), 1U);
    for (const AttentionWay way : {AttentionWay::calls, AttentionWay::kernel})
      for (const int longest : {0, 1}) {
        const auto outcome = run_form(on, make, number, batch, {way, longest});
        EXPECT_LE(outcome.apart, allowed(number)) << static_cast<int>(way) << " " << longest;
        if (longest == 0) continue;
        EXPECT_EQ(outcome.kernels, way == AttentionWay::kernel ? 1 : 0);
        if (way == AttentionWay::kernel) {
          ++by_kernel;
          if (number == Number::f16) worst = std::max(worst, outcome.apart);
        }
      }
    if (HasFailure()) break;
  }
  EXPECT_EQ(by_kernel, 300);
  EXPECT_LE(worst, 5e-3) << "f16, by the kernel: sums are f32 throughout";
  EXPECT_EQ(on.device().left_behind(), "");
}

TEST(CudaAttention, WhatIsNoneIsLeftAlone) {
  using Fault = Form::Fault;
  OnEmulated on;
  for (const Fault fault : {Fault::none, Fault::weights_used, Fault::weights_read, Fault::scores_used,
                            Fault::other_axis, Fault::mask_scaled, Fault::two_masks, Fault::weak_fill}) {
    SCOPED_TRACE(static_cast<int>(fault));
    Form form;
    form.mask = fault == Fault::weak_fill ? Form::Mask::where_hides : Form::Mask::add;
    form.mask_shape = {1, 1, 5, 7};
    form.fault = fault;
    const Make make = [&](std::int64_t batch) { return AttentionNet(form, 3, batch).make(); };
    EXPECT_EQ(find_attention(make(2)).size(), fault == Fault::none ? 1U : 0U);
    const auto outcome = run_form(on, make, Number::f32, 2, {AttentionWay::kernel, 1});
    EXPECT_LE(outcome.apart, 1e-4);
    EXPECT_EQ(outcome.kernels, fault == Fault::none ? 1 : 0);
  }
  // And where nothing of ours could compute it: more keys than f32 has room for, heads of other sizes.
  for (const auto& [keys, head] : {std::pair(513, 16), std::pair(7, 136)}) {
    Form form;
    form.keys = keys, form.head = head;
    const Make make = [&](std::int64_t batch) { return AttentionNet(form, 3, batch).make(); };
    EXPECT_EQ(find_attention(make(1)).size(), 1U);
    const auto outcome = run_form(on, make, Number::f32, 1, {AttentionWay::kernel, 1});
    EXPECT_LE(outcome.apart, 1e-4);
    EXPECT_EQ(outcome.kernels, 0);
  }
}

// The product that ends the one makes the scores of the other.
TEST(CudaAttention, OfTwoThatShareANodeTheFirstIsTaken) {
  OnEmulated on;
  const Make make = [](std::int64_t batch) {
    Net m(8);
    const auto q = m.input({batch, 5, 16}), k = m.input({batch, 16, 16}), v = m.input({batch, 16, 16}),
               w = m.input({batch, 16, 16});
    const auto first = m.same("Softmax", {m.node("MatMul", {q, k}, {batch, 5, 16})});
    const auto second = m.same("Softmax", {m.node("MatMul", {first, v}, {batch, 5, 16})});
    return m.finish({m.node("MatMul", {second, w}, {batch, 5, 16})});
  };
  const auto found = find_attention(make(2));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].nodes, ::testing::ElementsAre(0, 1, 2));
  const auto outcome = run_form(on, make, Number::f32, 2, {AttentionWay::kernel, 1});
  EXPECT_LE(outcome.apart, 1e-4);
  EXPECT_EQ(outcome.kernels, 1);
}

// Keys that lie innermost are moved first, and the move is the attention's.
TEST(CudaAttention, KeysThatLieOtherwiseAreMoved) {
  OnEmulated on;
  Form form;
  form.layout = Form::Layout::as_they_come;
  form.turned = false;
  const Make make = [&](std::int64_t batch) { return AttentionNet(form, 3, batch).make(); };
  const auto engine =
      on.engine({.number = Number::f16, .longest_segment = 1, .attention = AttentionWay::kernel});
  const auto model = (*engine)->compile(MadeModel(make), {.batch_sizes = {1}});
  ASSERT_TRUE(model);
  std::string names;
  for (int i = 0; i < (*model)->plan(1)->kernels(); ++i)
    names += std::string((*model)->plan(1)->kernel_name(i)) + ";";
  EXPECT_THAT(names, HasSubstr("carillon_move_2;MatMul_2 carillon_attention_32_f16;"));
}

TEST(CudaAttention, OfTwoWaysTheFasterIsTakenAndKept) {
  Form form;
  form.mask = Form::Mask::add;
  form.mask_shape = {1, 1, 1, 7};
  const Make make = [&](std::int64_t batch) { return AttentionNet(form, 3, batch).make(); };
  const auto kernels = [](const CompiledModel& model) {
    int found = 0;
    for (int i = 0; i < model.plan(2)->kernels(); ++i)
      found += model.plan(2)->kernel_name(i).find("carillon_attention") != std::string_view::npos ? 1 : 0;
    return found;
  };
  OnEmulated on({.kernel = std::chrono::microseconds{3}, .enqueue = Duration{0}});
  const auto choices = std::make_shared<KernelChoices>();
  std::vector<AttentionTimes> told;
  const CudaOptions options{.longest_segment = 1,
                            .choices = choices,
                            .told = [&](const AttentionTimes& times) { told.push_back(times); }};
  const auto engine = on.engine(options);
  auto model = (*engine)->compile(MadeModel(make), {.batch_sizes = {1, 2}});
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_EQ(told.size(), 2U);
  EXPECT_THAT(told[0].key, HasSubstr("attention f32 1x1x2 queries 5 keys 7 head 16"));
  EXPECT_THAT(told[1].key, HasSubstr("attention f32 1x2x2 "));
  for (const AttentionTimes& each : told) {
    EXPECT_EQ(each.kernel, std::chrono::microseconds{3});
    EXPECT_GE(each.calls, std::chrono::microseconds{14}) << "two products, scale, mask, softmax";
    EXPECT_EQ(choices->find(each.key), "kernel");
  }
  EXPECT_EQ(kernels(**model), 1);
  // By another engine, as kept; measured anew where what was kept is no name of a way.
  const auto again = on.engine(options);
  model = (*again)->compile(MadeModel(make), {.batch_sizes = {2}});
  EXPECT_EQ(told.size(), 2U);
  EXPECT_EQ(kernels(**model), 1);
  choices->keep(told[1].key, "calls");
  model = (*again)->compile(MadeModel(make), {.batch_sizes = {2}});
  EXPECT_EQ(told.size(), 2U);
  EXPECT_EQ(kernels(**model), 0);
  choices->keep(told[1].key, "forged");
  model = (*again)->compile(MadeModel(make), {.batch_sizes = {2}});
  EXPECT_EQ(told.size(), 3U);
  EXPECT_EQ(kernels(**model), 1);
  EXPECT_THAT(on.device().violations(), ::testing::IsEmpty());
}

TEST(CudaAttention, WithoutMemoryToMeasureInItIsCalls) {
  OnEmulated on({.fail_create = 2});  // the first is the trial's of parts
  const auto choices = std::make_shared<KernelChoices>();
  const auto engine = on.engine({.longest_segment = 1, .choices = choices});
  const Make make = [](std::int64_t batch) { return AttentionNet(Form{}, 3, batch).make(); };
  const auto model = (*engine)->compile(MadeModel(make), {.batch_sizes = {1}});
  ASSERT_TRUE(model) << model.error().message;
  for (int i = 0; i < (*model)->plan(1)->kernels(); ++i)
    EXPECT_EQ((*model)->plan(1)->kernel_name(i).find("carillon_attention"), std::string_view::npos);
  EXPECT_EQ(choices->size(), 0U);
}

}  // namespace
}  // namespace carillon::engine::cuda
