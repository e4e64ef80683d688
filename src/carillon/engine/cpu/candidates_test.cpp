#include "carillon/engine/cpu/candidates.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"

namespace carillon::engine {
namespace {

using namespace std::chrono_literals;
using cpu::Candidate;
using cpu::Chooser;
using cpu::choices_header;
using testing::Buffers;
using testing::GraphMaker;
using testing::MadeModel;

// A candidate whose runs take what it is told, one after the other, and the last for ever.
Candidate planted(std::string name, ManualClock& clock, std::vector<Duration> took, int* runs = nullptr) {
  return {std::move(name), [&clock, took, runs] {
            return [&clock, took, runs, i = std::size_t{0}]() mutable {
              clock.advance(took[std::min(i++, took.size() - 1)]);
              if (runs != nullptr) ++*runs;
            };
          }};
}

TEST(Candidates, OneThatIsClearlyFasterWins) {
  const struct {
    std::vector<Duration> rule, other;
    std::size_t want;
  } rows[] = {
      {{100us}, {200us}, 0},
      {{100us}, {100us}, 0},
      {{100us}, {96us}, 0},                     // not clearly
      {{100us}, {90us}, 1},                     //
      {{900us, 900us, 100us}, {100us}, 0},      // the least counts, however bad the first were
      {{100us}, {900us, 300us, 300us, 80us}, 1},
      // Fast while the first comparison lasts (one run before, then 3), slow afterwards.
      {{100us}, {50us, 50us, 50us, 50us, 200us}, 0},
  };
  for (const auto& [rule, other, want] : rows) {
    ManualClock clock;
    const std::vector<Candidate> all{planted("rule", clock, rule), planted("other", clock, other)};
    EXPECT_EQ(cpu::fastest(all, 100us, clock), want) << to_us(rule.back()) << " " << to_us(other.back());
  }
}

TEST(Candidates, OneThatCannotBeMadeIsNone) {
  ManualClock clock;
  const Candidate none{"none", []() -> std::function<void()> { throw std::bad_alloc(); }};
  EXPECT_EQ(cpu::fastest(std::vector{planted("rule", clock, {100us}), none, planted("quick", clock, {10us})}, 1ms,
                         clock),
            2U);
  EXPECT_EQ(cpu::fastest(std::vector{none, planted("quick", clock, {10us})}, 1ms, clock), 0U);
}

TEST(Candidates, ChoicesAreMeasuredOnceAndStay) {
  ManualClock clock;
  KernelChoices kept;
  int runs = 0;
  const auto all = [&] {
    return std::vector{planted("rule", clock, {100us}, &runs), planted("quick", clock, {10us}, &runs)};
  };
  Chooser first(kept, clock);
  EXPECT_EQ(first.choose("node", "key", all), "");  // not allowed
  EXPECT_EQ(runs, 0);
  first.allow({{"node", 1ms}}, 10ms);
  EXPECT_EQ(first.choose("other", "key", all), "");
  EXPECT_EQ(first.choose("node", "key", all), "quick");
  EXPECT_TRUE(first.differs());
  EXPECT_GT(runs, 0);
  EXPECT_EQ(kept.measured(), 1U);
  const int before = runs;
  EXPECT_EQ(first.choose("other", "key", all), "quick");
  Chooser second(kept, clock);
  second.allow({{"node", 1ms}}, 10ms);
  EXPECT_EQ(second.choose("node", "key", all), "quick");
  EXPECT_EQ(runs, before);
  // Frozen, what was not chosen is the rule's, whatever others keep meanwhile.
  second.freeze();
  EXPECT_EQ(second.choose("node", "new", all), "");
  kept.keep("new", "quick");
  EXPECT_EQ(second.choose("node", "new", all), "");
  EXPECT_EQ(runs, before);
}

TEST(Candidates, ABudgetEnds) {
  ManualClock clock;
  KernelChoices kept;
  Chooser chooser(kept, clock);
  int runs = 0;
  chooser.allow({{"node", 1ms}}, 3ms);
  for (int i = 0; i < 100; ++i)
    (void)chooser.choose("node", std::to_string(i), [&] {
      return std::vector{planted("rule", clock, {100us}, &runs), planted("same", clock, {100us}, &runs)};
    });
  EXPECT_LT(clock.now() - TimePoint{}, 6ms);
  EXPECT_GE(kept.measured(), 1U);
}

class ChoicesFile : public ::testing::Test {
 protected:
  ChoicesFile() { std::filesystem::remove(file_); }
  ~ChoicesFile() override { std::filesystem::remove(file_); }
  void write(const std::string& text) { std::ofstream(file_, std::ios::binary) << text; }
  std::string read() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / ("carillon_choices_" + std::to_string(::getpid()));
};

TEST_F(ChoicesFile, IsReadAsItWasWritten) {
  std::string problem;
  KernelChoices one(file_, choices_header(), &problem);
  EXPECT_EQ(problem, "");
  one.keep("a b", "x:y");
  one.keep("c", "rule");
  ASSERT_TRUE(one.save());
  KernelChoices two(file_, choices_header(), &problem);
  EXPECT_EQ(problem, "");
  EXPECT_EQ(two.size(), 2U);
  EXPECT_EQ(two.find("a b"), "x:y");
  EXPECT_EQ(two.find("c"), "rule");
  EXPECT_EQ(two.find("a"), std::nullopt);
  EXPECT_EQ(two.measured(), 0U);
}

TEST_F(ChoicesFile, ThatIsDamagedSaysNothing) {
  const std::string head = choices_header() + "\n";
  std::string many = head;
  for (std::size_t i = 0; i <= KernelChoices::most; ++i) many += std::to_string(i) + "\trule\n";
  const struct {
    std::string text, problem;
  } rows[] = {
      {"", "another machine's"},
      {"\x7f" "ELF\n", "another machine's"},
      {"carillon kernel choices 1; another; isa 1; oneDNN 3.2.0\na\tb\n", "another machine's"},
      {head + "a\tb\nc", "line 3 is cut off"},
      {head + "a\tb\nc\td", "line 3 is cut off"},
      {head + "a\n", "line 2 is cut off"},
      {head + "a\tb\tc\n", "line 2 is not a key"},
      {head + "\tb\n", "line 2 is not a key"},
      {head + "a\t\n", "line 2 is not a key"},
      {head + "a\x01\tb\n", "line 2 is not a key"},
      {head + std::string(KernelChoices::longest_key + 1, 'k') + "\tb\n", "line 2 is not a key"},
      {head + "a\t" + std::string(KernelChoices::longest_name + 1, 'n') + "\n", "line 2 is not a key"},
      {head + "a\tb\na\tc\n", "a second time"},
      {many, "beyond the"},
      {head + std::string(KernelChoices::largest_file, '\n'), "bytes; at most"},
  };
  for (const auto& [text, want] : rows) {
    write(text);
    std::string problem;
    KernelChoices choices(file_, choices_header(), &problem);
    EXPECT_EQ(choices.size(), 0U) << want;
    EXPECT_NE(problem.find(want), std::string::npos) << problem;
    EXPECT_NE(problem.find(file_.string()), std::string::npos) << problem;
    // What it had is replaced, and only then.
    EXPECT_EQ(read(), text);
    choices.keep("a", "b");
    ASSERT_TRUE(choices.save());
    EXPECT_EQ(read(), head + "a\tb\n");
  }
}

// Convolutions and products whose candidates differ: wide and narrow, with few rows and many.
graph::Graph make_network(std::int64_t batch) {
  Random random(1);
  GraphMaker m;
  const auto image = m.input({batch, 3, 24, 24});
  const auto convolve = [&](graph::ValueId x, std::int64_t out, std::int64_t kernel, std::int64_t groups) {
    const graph::Shape& s = m.shape(x);
    auto attributes = testing::window(kernel, 1, kernel / 2);
    attributes["group"] = groups;
    return m.node("Conv",
                  {x, m.constant(testing::random_tensor({out, s[1] / groups, kernel, kernel}, random, 0.2F)),
                   m.constant(testing::random_tensor({out}, random))},
                  {batch, out, s[2], s[3]}, attributes, {{.kind = graph::PostOp::Kind::relu}});
  };
  graph::ValueId x = convolve(image, 32, 3, 1);
  x = convolve(x, 24, 1, 1);  // fills no whole block
  x = convolve(x, 64, 1, 1);
  x = convolve(x, 64, 3, 64);
  const auto skipped = x;
  x = convolve(x, 64, 1, 1);
  x = m.node("Add", {x, skipped}, m.shape(x));
  x = m.node("GlobalAveragePool", {x}, {batch, 64, 1, 1});
  x = m.node("Reshape", {x, m.constant([] {
                std::shared_ptr<graph::Tensor> shape =
                    std::make_shared<graph::Tensor>(graph::TensorType{graph::DataType::i64, {2}});
                shape->as<std::int64_t>()[0] = 0;
                shape->as<std::int64_t>()[1] = -1;
                return shape;
              }())},
             {batch, 64});
  x = m.node("MatMul", {x, m.constant(testing::random_tensor({64, 192}, random, 0.2F))}, {batch, 192});
  x = m.node("Gemm",
             {x, m.constant(testing::random_tensor({100, 192}, random, 0.2F)),
              m.constant(testing::random_tensor({100}, random))},
             {batch, 100}, {{"transB", std::int64_t{1}}});
  m.g.outputs = {x};
  return m.g;
}

std::string listed_kernels(const CompiledModel& model) {
  std::string names;
  for (const int batch : model.batch_sizes())
    for (int k = 0; k < model.plan(batch)->kernels(); ++k)
      names += std::string(model.plan(batch)->kernel_name(k)) + "\n";
  return names;
}

TEST(Candidates, OfAModelAreMeasuredOnce) {
  const MadeModel model(make_network);
  const CompileOptions sizes{.batch_sizes = {1, 2, 8}};
  auto choices = std::make_shared<KernelChoices>();
  const auto engine = [&](Duration budget) {
    return make_cpu_engine({.threads = 2, .choose_for = budget, .choices = choices});
  };
  const auto rules = make_cpu_engine({.threads = 2})->compile(model, sizes);
  ASSERT_TRUE(rules) << rules.error().message;
  const auto without = engine(0s)->compile(model, sizes);
  ASSERT_TRUE(without);
  EXPECT_EQ(choices->measured(), 0U);
  EXPECT_EQ(listed_kernels(**without), listed_kernels(**rules));

  const auto first = engine(200ms)->compile(model, sizes);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_GT(choices->measured(), 0U);
  const std::uint64_t measured = choices->measured();
  for (int again = 0; again < 2; ++again) {
    const auto second = engine(200ms)->compile(model, sizes);
    ASSERT_TRUE(second);
    EXPECT_EQ(choices->measured(), measured);
    EXPECT_EQ(listed_kernels(**second), listed_kernels(**first));
  }
  // Rules stay rules.
  const auto still = engine(0s)->compile(model, sizes);
  ASSERT_TRUE(still);
  EXPECT_EQ(listed_kernels(**still), listed_kernels(**rules));
}

// Every way that a file could name, whether or not any is fast here: names are planted by hand.
TEST(Candidates, AreAllRight) {
  const MadeModel model(make_network);
  // Keys of this model: what a compilation asks about.
  const auto file = std::filesystem::temp_directory_path() / ("carillon_asked_" + std::to_string(::getpid()));
  const std::vector<std::string> names{"brgconv_1x1:avx512_core",
                                       "jit_1x1:avx512_core",
                                       "jit:avx512_core",
                                       "brgconv:avx512_core",
                                       "jit_dw:avx512_core",
                                       "brdgmm_dw:avx512_core",
                                       "convolution jit_1x1:avx512_core",
                                       "convolution brgconv_1x1:avx512_core",
                                       "product brg:avx512_core",
                                       "no such kernel"};
  std::set<std::string> seen;
  // First the keys that are asked for.
  std::filesystem::remove(file);
  const auto asked = std::make_shared<KernelChoices>(file, choices_header());
  ASSERT_TRUE(make_cpu_engine({.threads = 1, .choose_for = 2s, .choices = asked})
                  ->compile(model, {.batch_sizes = {1, 3}}));
  ASSERT_TRUE(asked->save());
  std::ifstream kept(file);
  const std::string keys{std::istreambuf_iterator<char>(kept), {}};
  for (const std::string way : {"chosen", "blocked"}) {
    for (const std::string& name : names) {
      std::istringstream in(keys);
      std::string line, text;
      for (int number = 0; std::getline(in, line); ++number) {
        if (number > 0)
          line = line.substr(0, line.find('\t') + 1) + (line.starts_with("plan") ? way : name);
        text += line + "\n";
      }
      std::ofstream(file) << text;
      const auto choices = std::make_shared<KernelChoices>(file, choices_header());
      EXPECT_GT(choices->size(), 3U);
      const auto compiled = make_cpu_engine({.threads = 1, .choose_for = 1us, .choices = choices})
                                ->compile(model, {.batch_sizes = {1, 3}});
      ASSERT_TRUE(compiled) << compiled.error().message;
      for (const int batch : {1, 3}) {
        const graph::Graph g = make_network(batch);
        const Buffers inputs = testing::random_inputs(g, 7);
        const Buffers want = testing::reference(g, inputs);
        const Plan& plan = *(*compiled)->plan(batch);
        const testing::Bound bound(**compiled, plan, inputs);
        ASSERT_TRUE(plan.run({0, plan.kernels()}, bound.binding(), {}));
        EXPECT_LT(testing::relative_error(*bound.outputs()[0], *want[0]), 1e-5)
            << way << " " << name << " at " << batch << "\n"
            << listed_kernels(**compiled);
        // Again, kernel by kernel, each twice: bit for bit.
        const testing::Bound other(**compiled, plan, inputs);
        for (int k = 0; k < plan.kernels(); ++k)
          for (int twice = 0; twice < 2; ++twice) ASSERT_TRUE(plan.run({k, k + 1}, other.binding(), {}));
        EXPECT_TRUE(std::ranges::equal(bound.outputs()[0]->bytes(), other.outputs()[0]->bytes())) << name;
        // NaN in the first request stays there.
        const Buffers bad = testing::random_inputs(g, 7);
        bad[0]->as<float>()[5] = std::numeric_limits<float>::quiet_NaN();
        const Buffers hurt = testing::reference(g, bad);
        const testing::Bound third(**compiled, plan, bad);
        ASSERT_TRUE(plan.run({0, plan.kernels()}, third.binding(), {}));
        for (std::size_t i = 0; i < hurt[0]->as<float>().size(); ++i) {
          const float x = third.outputs()[0]->as<float>()[i], y = hurt[0]->as<float>()[i];
          EXPECT_EQ(std::isnan(x), std::isnan(y)) << way << " " << name << " at " << batch << ": " << i;
          if (i >= 100) {
            EXPECT_EQ(x, bound.outputs()[0]->as<float>()[i]) << way << " " << name << ": " << i;
          }
        }
        for (int k = 0; k < plan.kernels(); ++k) {
          const std::string kernel(plan.kernel_name(k));
          seen.insert(kernel.substr(kernel.find(' ') + 1));
        }
      }
    }
  }
  std::filesystem::remove(file);
  // The test is one only where it saw more than the rules' own.
  if (__builtin_cpu_supports("avx512bw")) {
    EXPECT_TRUE(seen.contains("jit_1x1:avx512_core"));
    EXPECT_TRUE(seen.contains("jit_dw:avx512_core"));
  }
}

// Divided for stops: plans are made again and again, and must be the same but for their parts.
TEST(Candidates, OfAPlanThatIsDividedStay) {
  const MadeModel model(make_network);
  const auto compiled = make_cpu_engine({.threads = 1, .choose_for = 200ms})
                            ->compile(model, {.batch_sizes = {2}, .stop_cost = 1, .least_part = 1us});
  ASSERT_TRUE(compiled) << compiled.error().message;
  const graph::Graph g = make_network(2);
  const Buffers inputs = testing::random_inputs(g, 7);
  const Plan& plan = *(*compiled)->plan(2);
  const testing::Bound bound(**compiled, plan, inputs);
  ASSERT_TRUE(plan.run({0, plan.kernels()}, bound.binding(), {}));
  EXPECT_LT(testing::relative_error(*bound.outputs()[0], *testing::reference(g, inputs)[0]), 1e-5);
}

}  // namespace
}  // namespace carillon::engine
