#include "carillon/engine/cuda/library/library.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/engine/cuda/library/cublaslt.h"
#include "carillon/engine/cuda/library/cudnn.h"
#include "carillon/engine/cuda/library/cudnn_api.h"
#include "carillon/engine/cuda/library/measured.h"
#include "carillon/engine/cuda/testing/fake_libraries.h"
#include "carillon/engine/cuda/testing/on_emulated.h"

namespace carillon::engine::cuda {
namespace {

using testing::fake_blas;

TEST(CublasLt, SeesOurProductsByColumns) {
  auto made = make_cublaslt(fake_blas());
  ASSERT_TRUE(made);
  EXPECT_EQ((*made)->version(), "cuBLASLt 13.1.0");
  Random random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const auto upto = [&](std::int64_t most) {
      return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most)));
    };
    Product p{.batch = 1 + upto(3), .rows = 1 + upto(6), .columns = 1 + upto(6), .depth = 1 + upto(6)};
    const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
      Product::Matrix m{.turned = upto(2) == 1};
      m.pitch = (m.turned ? rows : columns) + upto(3);
      m.step = upto(4) == 0 ? 0 : (m.turned ? columns : rows) * m.pitch + upto(3);
      return m;
    };
    p.a = matrix(p.rows, p.depth);
    p.b = matrix(p.depth, p.columns);
    p.scale = upto(2) == 1 ? 0.5F : 1;
    p.bias = upto(2) == 1;
    p.epilogue =
        std::array{Epilogue::none, Epilogue::relu, Epilogue::gelu_tanh}[static_cast<std::size_t>(upto(3))];
    if (p.batch == 1 && upto(2) == 1) p.out_pitch = p.columns + 1 + upto(3);
    if (p.batch == 1 && upto(2) == 1) p.residual_pitch = p.columns + upto(3);
    p.alignment = 4;
    SCOPED_TRACE(identity(p));
    const CallBytes bytes = bytes_of(p);
    const auto filled = [&](std::uint64_t count) {
      std::vector<float> out(count / sizeof(float));
      for (float& each : out) each = static_cast<float>(random.below(2000)) / 1000.0F - 1;
      return out;
    };
    const auto a = filled(bytes.a), b = filled(bytes.b), bias = filled(bytes.bias),
               residual = filled(bytes.residual);
    const std::int64_t pitch = p.out_pitch == 0 ? p.columns : p.out_pitch;
    std::vector<float> out(bytes.out / sizeof(float), NAN);
    const auto ways = (*made)->of(p);
    ASSERT_TRUE(ways);
    ASSERT_EQ(ways->size(), 2U);
    EXPECT_NE((*ways)[0].key, (*ways)[1].key);
    const auto call = (*ways)[0].make();
    ASSERT_TRUE(call);
    const auto at = [](const std::vector<float>& values) { return reinterpret_cast<Address>(values.data()); };
    ASSERT_TRUE((*call)->enqueue(
        nullptr, {.a = at(a), .b = at(b), .out = at(out), .bias = at(bias), .residual = at(residual)}));
    EXPECT_EQ(testing::preferred().at(blas::alignment_a), 4U);
    EXPECT_EQ(testing::preferred().at(blas::reductions), 2U) << "sums in place come in any order";
    for (std::int64_t i = 0; i < p.batch; ++i)
      for (std::int64_t r = 0; r < p.rows; ++r)
        for (std::int64_t c = 0; c < p.columns; ++c) {
          double sum = 0;
          for (std::int64_t k = 0; k < p.depth; ++k)
            sum += double{a[static_cast<std::size_t>(i * p.a.step +
                                                     (p.a.turned ? k * p.a.pitch + r : r * p.a.pitch + k))]} *
                   b[static_cast<std::size_t>(i * p.b.step +
                                              (p.b.turned ? c * p.b.pitch + k : k * p.b.pitch + c))];
          sum = sum * p.scale + (p.bias ? bias[static_cast<std::size_t>(c)] : 0);
          if (p.residual_pitch != 0) sum += residual[static_cast<std::size_t>(r * p.residual_pitch + c)];
          if (p.epilogue == Epilogue::relu) sum = std::max(sum, 0.0);
          if (p.epilogue == Epilogue::gelu_tanh)
            sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
          ASSERT_NEAR(out[static_cast<std::size_t>((i * p.rows + r) * pitch + c)], sum, 1e-5);
        }
  }
  made->reset();
  EXPECT_TRUE(testing::alive().empty()) << "descriptors are left";
}

TEST(CublasLt, SaysWhatItCannot) {
  auto api = fake_blas();
  api.create = [](blas::Handle*) { return 1; };
  const auto dead = make_cublaslt(api);
  ASSERT_FALSE(dead);
  EXPECT_EQ(dead.error().code, ErrorCode::unavailable);
  EXPECT_EQ(dead.error().message, "cuBLASLt does not start: cuBLASLt: CUBLAS_STATUS_NOT_INITIALIZED");
  api = fake_blas();
  api.heuristic = [](blas::Handle, blas::Operation, blas::Layout, blas::Layout, blas::Layout, blas::Layout,
                     blas::Preference, int, blas::Found*, int* count) { return *count = 0, 0; };
  auto made = make_cublaslt(api);
  ASSERT_TRUE(made);
  const Product some{.rows = 2, .columns = 3, .depth = 4, .a = {.pitch = 4}, .b = {.pitch = 3}};
  EXPECT_NE((*made)->of(some).error().message.find("no algorithm"), std::string::npos);
  Product erf = some;
  erf.epilogue = Epilogue::gelu_erf;
  EXPECT_NE((*made)->of(erf).error().message.find("no GELU by erf"), std::string::npos);
  EXPECT_EQ((*made)->of(Convolution{}).error().code, ErrorCode::unsupported);
  Product narrow = some;
  narrow.a.pitch = 1;  // less than a row
  EXPECT_NE((*made)->of(narrow).error().message.find("CUBLAS_STATUS_INVALID_VALUE"), std::string::npos);
  made->reset();
  EXPECT_TRUE(testing::alive().empty());
}

// --- which way is taken

class NamedCall final : public Call {
 public:
  explicit NamedCall(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  std::uint64_t workspace() const override { return 0; }
  Result<> enqueue(Stream, const CallPlaces&) const override { return {}; }

 private:
  std::string name_;
};

// Ways by name; "-" before one: it cannot be made ready.
class NamedWays final : public Ways {
 public:
  explicit NamedWays(std::vector<std::string> names) : names_(std::move(names)) {}
  std::string_view version() const override { return "a library"; }
  Result<std::vector<Way>> of(const Convolution&) override { return ways(); }
  Result<std::vector<Way>> of(const Product&) override { return ways(); }

 private:
  Result<std::vector<Way>> ways() const {
    if (names_.empty()) return fail(ErrorCode::unsupported, "nothing");
    std::vector<Way> out;
    for (const std::string& name : names_)
      out.push_back({name, [name]() -> Result<std::shared_ptr<const Call>> {
                       if (name.starts_with('-'))
                         return fail(ErrorCode::unsupported, name + " cannot be made");
                       return std::make_shared<NamedCall>(name);
                     }});
    return out;
  }
  std::vector<std::string> names_;
};

struct Choice {
  std::string what;
  std::vector<std::string> ways;
  std::map<std::string, int> times;  // microseconds; -1: the timer fails, -2: the device is lost
  std::string kept;                  // before
  std::string chosen, kept_after;
};

TEST(MeasuredLibrary, TakesTheFastestAndKeepsIt) {
  const Choice rows[] = {
      {"the fastest", {"a", "b", "c"}, {{"a", 3}, {"b", 1}, {"c", 2}}, "", "b", "b"},
      {"the first of equals", {"a", "b"}, {{"a", 1}, {"b", 1}}, "", "a", "a"},
      {"what was kept, unmeasured", {"a", "b"}, {{"a", -2}, {"b", -2}}, "b", "b", "b"},
      {"what is no way any more is measured anew", {"a", "b"}, {{"a", 2}, {"b", 1}}, "gone", "b", "b"},
      {"kept, but its first launch fails", {"a", "b!"}, {{"a", 2}, {"b!", 3}}, "b!", "a", "a"},
      {"kept, and there is no memory to try it in", {"a", "full"}, {{"a", 2}}, "full", "full", "full"},
      {"kept, but the device is lost", {"a", "lost"}, {{"a", 2}}, "lost", "error: lost", "lost"},
      {"kept, but it cannot be made", {"a", "-b"}, {{"a", 2}}, "-b", "a", "a"},
      {"none can be measured: the first, which is not kept",
       {"-a", "b", "c"},
       {{"b", -1}, {"c", -1}},
       "",
       "b",
       ""},
      {"one can be measured", {"a", "b"}, {{"a", -1}, {"b", 5}}, "", "b", "b"},
      {"no more than three are measured",
       {"a", "b", "c", "d"},
       {{"a", 3}, {"b", 2}, {"c", 2}, {"d", 1}},
       "",
       "b",
       "b"},
      {"none can be made", {"-a", "-b"}, {}, "", "error: -b cannot be made", ""},
      {"there are none", {}, {}, "", "error: nothing", ""},
      {"the device is lost", {"a", "b"}, {{"a", 1}, {"b", -2}}, "", "error: lost", ""},
  };
  const Convolution spec{.channels = 3, .filters = 5, .kernel_h = 3};
  for (const Choice& row : rows) {
    SCOPED_TRACE(row.what);
    auto choices = std::make_shared<KernelChoices>();
    if (!row.kept.empty()) choices->keep(identity(spec), row.kept);
    int asked = 0;
    const auto library = make_measured_library(
        std::make_unique<NamedWays>(row.ways), std::make_unique<NamedWays>(row.ways), choices,
        {.most_measured = 3,
         .timer = [&](const Call& call, const CallBytes&) -> Result<Duration> {
           ++asked;
           const int time = row.times.at(std::string(call.name()));
           if (time == -2) return fail(ErrorCode::unavailable, "lost");
           if (time < 0) return fail(ErrorCode::internal, "no room");
           return std::chrono::microseconds(time);
         },
         .first_launch = [](const Call& call, const CallBytes&) -> Result<> {
           if (call.name() == "lost") return fail(ErrorCode::unavailable, "lost");
           if (call.name() == "full") return fail(ErrorCode::resource_exhausted, "no memory");
           if (call.name().ends_with('!')) return fail(ErrorCode::internal, "it cannot be launched");
           return {};
         }});
    const auto call = library->convolution(spec);
    EXPECT_EQ(call ? std::string((*call)->name()) : "error: " + call.error().message, row.chosen);
    EXPECT_EQ(choices->find(identity(spec)).value_or(""), row.kept_after);
    const int before = asked;
    const auto again = library->convolution(spec);
    EXPECT_EQ(asked, before) << "it is asked for once";
    if (call) {
      ASSERT_TRUE(again);
      EXPECT_EQ(call->get(), again->get());
    }
    EXPECT_EQ(library->fuses(spec),
              std::ranges::any_of(row.ways, [](const std::string& way) { return way[0] != '-'; }));
  }
}

// Ways that compile, each in 20 ms, and one that does not: "+" before the former.
class CompiledWays final : public Ways {
 public:
  CompiledWays(std::vector<std::string> names, int& compiled)
      : names_(std::move(names)), compiled_(compiled) {}
  std::string_view version() const override { return "a library"; }
  Result<std::vector<Way>> of(const Product&) override { return fail(ErrorCode::unsupported, "nothing"); }
  Result<std::vector<Way>> of(const Convolution&) override {
    std::vector<Way> out;
    for (const std::string& name : names_) {
      const bool compiles = name.starts_with('+');
      out.push_back({.key = name,
                     .make = [name, compiles, this]() -> Result<std::shared_ptr<const Call>> {
                       if (compiles) {
                         ++compiled_;
                         std::this_thread::sleep_for(std::chrono::milliseconds{20});
                       }
                       return std::make_shared<NamedCall>(name);
                     },
                     .compiles = compiles});
    }
    return out;
  }

 private:
  std::vector<std::string> names_;
  int& compiled_;
};

TEST(MeasuredLibrary, WhatCompilesCompetesForALimitedTime) {
  const struct {
    std::vector<std::string> ways;
    int milliseconds;  // of compiling, at most
    std::string chosen;
    int compiled;
  } rows[] = {
      {{"a", "+b"}, 1000, "+b", 1},
      {{"+a", "+b", "+z", "d"}, 30, "d", 2},  // two take longer than that
      {{"+a", "+b", "+y", "+z", "d"}, 1000, "+y", 3},
      {{"a", "a", "a", "b", "+z"}, 1000, "+z", 1},  // beside the first three of others
      {{"+a", "+b", "a"}, 1000, "+b", 2},
      {{"a", "+b"}, 0, "a", 0},
  };
  for (const auto& row : rows) {
    int compiled = 0;
    const auto choices = std::make_shared<KernelChoices>();
    const auto make = [&] {
      return make_measured_library(
          std::make_unique<CompiledWays>(row.ways, compiled), std::make_unique<NamedWays>(row.ways), choices,
          {.most_measured = 3,
           .most_compiled = 3,
           .longest_compiling = std::chrono::milliseconds{row.milliseconds},
           .timer = [](const Call& call, const CallBytes&) -> Result<Duration> {
             return std::chrono::microseconds{1000 - call.name().back()};  // the last of them is the fastest
           }});
    };
    const Convolution spec{.channels = 3, .filters = 5, .kernel_h = 3};
    auto library = make();
    EXPECT_TRUE(library->fuses(spec));
    const int to_know = compiled;
    EXPECT_EQ(to_know, 0) << "others do, which compile nothing";
    const auto call = library->convolution(spec);
    ASSERT_TRUE(call);
    EXPECT_EQ((*call)->name(), row.chosen);
    EXPECT_EQ(compiled, row.compiled);
    library = make();  // with that choice kept, only that is compiled
    compiled = 0;
    const auto again = library->convolution(spec);
    ASSERT_TRUE(again);
    EXPECT_EQ((*again)->name(), (*call)->name());
    EXPECT_EQ(compiled, (*call)->name().starts_with('+') ? 1 : 0);
  }
}

// One way for each work, by its text.
class OneWay final : public Ways {
 public:
  std::string_view version() const override { return "a library"; }
  Result<std::vector<Way>> of(const Convolution& spec) override { return ways(to_text(spec)); }
  Result<std::vector<Way>> of(const Product& spec) override { return ways(to_text(spec)); }

 private:
  static Result<std::vector<Way>> ways(const std::string& text) {
    return std::vector<Way>{{.key = "one", .make = [text]() -> Result<std::shared_ptr<const Call>> {
                               return std::make_shared<NamedCall>(text);
                             }}};
  }
};

// What is a product of its pixels and weights, and nothing else.
TEST(MeasuredLibrary, ConvolutionsOfOnePixelAreProducts) {
  const Convolution one{.batch = 2,
                        .channels = 8,
                        .height = 6,
                        .width = 5,
                        .filters = 4,
                        .out_height = 6,
                        .out_width = 5,
                        .in_pitch = 9,
                        .out_pitch = 12,
                        .residual_pitch = 7,
                        .bias = true,
                        .relu = true,
                        .alignment = 2};
  const auto product = as_product(one);
  ASSERT_TRUE(product);
  EXPECT_EQ(
      identity(*product),
      "product f32 1x [60x8] [8x4 turned] residual bias relu scale 1 pitches 9 8 steps 0 0 aligned 2 rows "
      "12 7");
  for (const auto field :
       {&Convolution::kernel_h, &Convolution::kernel_w, &Convolution::stride_h, &Convolution::stride_w,
        &Convolution::groups, &Convolution::pad_top, &Convolution::pad_left, &Convolution::pad_bottom,
        &Convolution::pad_right, &Convolution::out_height, &Convolution::out_width}) {
    Convolution other = one;
    other.*field += 1;
    EXPECT_FALSE(as_product(other)) << identity(other);
  }
  // They compete beside the others, and the faster is taken and found again.
  const auto choices = std::make_shared<KernelChoices>();
  for (const int round : {0, 1}) {
    int asked = 0;
    const auto library = make_measured_library(
        std::make_unique<NamedWays>(std::vector<std::string>{"a", "b", "c"}),
        std::make_unique<NamedWays>(std::vector<std::string>{"v", "w", "x by x", "y"}), choices,
        {.most_measured = 2,
         .most_others = 3,
         .timer = [&](const Call& call, const CallBytes&) -> Result<Duration> {
           ++asked;
           return std::chrono::microseconds{1000 - call.name().back()};
         }});
    const auto call = library->convolution(one);
    ASSERT_TRUE(call);
    EXPECT_EQ((*call)->name(), to_text(one) + " by x");
    EXPECT_EQ(choices->find(identity(one)), "product, x by x");
    EXPECT_EQ(asked, round == 0 ? 5 : 0);
    Convolution wide = one;
    wide.kernel_h = 3;
    const auto other = library->convolution(wide);
    ASSERT_TRUE(other);
    EXPECT_EQ((*other)->name(), "b");
  }
}

// A fused form competes with the same without the last of it, and a kernel that does the rest.
TEST(MeasuredLibrary, FusedFormsAreTakenWhereTheyPay) {
  std::map<std::string, int> times;  // microseconds, by what a call's name ends with
  int asked = 0;
  auto choices = std::make_shared<KernelChoices>();
  const auto make = [&] {
    return make_measured_library(
        std::make_unique<OneWay>(), std::make_unique<OneWay>(), choices,
        {.timer = [&](const Call& call, const CallBytes&) -> Result<Duration> {
           ++asked;
           for (const auto& [end, time] : times)
             if (call.name().ends_with(end)) return std::chrono::microseconds{time};
           return fail(ErrorCode::internal, "no time");
         },
         .copy_timer = [&](std::uint64_t) -> Result<Duration> { return std::chrono::microseconds{3}; }});
  };
  const auto fuses = [&](auto spec) {
    const bool at_first = make()->fuses(spec);
    const int before = asked;
    EXPECT_EQ(make()->fuses(spec), at_first);
    EXPECT_EQ(asked, before) << "that is kept";
    choices = std::make_shared<KernelChoices>();
    return at_first;
  };
  const Convolution plain{.channels = 3, .filters = 5, .out_pitch = 5};
  Convolution with = plain;
  with.relu = true;
  Product product{.rows = 2, .columns = 3, .depth = 4};
  times = {{"-> 5", 10}, {"-> 5 relu", 13}};
  EXPECT_TRUE(fuses(plain));
  EXPECT_TRUE(fuses(with)) << "as long as both";
  times["-> 5 relu"] = 14;
  EXPECT_FALSE(fuses(with));
  with.bias = true;
  times["-> 5 bias relu"] = 14;
  times["-> 5 bias"] = 11;
  EXPECT_TRUE(fuses(with));
  with.relu = false;
  times["-> 5 bias"] = 20;
  EXPECT_FALSE(fuses(with));
  with.residual_pitch = 5;
  times["-> 5 residual bias"] = 24;
  EXPECT_FALSE(fuses(with)) << "beside 20 and 3";
  times = {{"[4x3]", 10}, {"[4x3] relu", 20}};
  product.epilogue = Epilogue::relu;
  EXPECT_FALSE(fuses(product));
  times = {{"[4x3]", 10}};
  EXPECT_TRUE(make()->fuses(product)) << "what cannot be measured is taken";
}

// Zeros in channels that are added compete with the convolution as it is.
TEST(MeasuredLibrary, ImagesArePaddedWhereThatPays) {
  std::map<std::string, int> times;  // microseconds, by what a call's name has
  int asked = 0;
  const auto choices = std::make_shared<KernelChoices>();
  const auto make = [&](const std::shared_ptr<KernelChoices>& kept) {
    return make_measured_library(std::make_unique<OneWay>(), std::make_unique<OneWay>(), kept,
                                 {.timer = [&](const Call& call, const CallBytes&) -> Result<Duration> {
                                    ++asked;
                                    for (const auto& [part, time] : times)
                                      if (call.name().find(part) != std::string_view::npos)
                                        return std::chrono::microseconds{time};
                                    return fail(ErrorCode::internal, "no time");
                                  },
                                  // Of 6x5 pixels of 16 bits.
                                  .copy_timer = [&](std::uint64_t bytes) -> Result<Duration> {
                                    return std::chrono::microseconds{bytes / 60};
                                  }});
  };
  Convolution spec{.number = Number::f16,
                   .channels = 3,
                   .height = 6,
                   .width = 5,
                   .filters = 5,
                   .kernel_h = 3,
                   .out_height = 4,
                   .out_width = 5,
                   .in_pitch = 3,
                   .out_pitch = 5};
  const auto now = [&] { return make(std::make_shared<KernelChoices>())->channels_for(spec); };
  times = {{"1x3x6x5", 30}, {"1x4x6x5", 26}, {"1x8x6x5", 22}};
  EXPECT_EQ(now(), 3) << "26 and 4, 22 and 8";
  times["1x4x6x5"] = 25;
  EXPECT_EQ(now(), 4);
  times["1x8x6x5"] = 20;
  EXPECT_EQ(now(), 8);
  EXPECT_EQ(make(choices)->channels_for(spec), 8);
  const int before = asked;
  EXPECT_EQ(make(choices)->channels_for(spec), 8);
  EXPECT_EQ(asked, before) << "that is kept";
  times.erase("1x8x6x5");
  EXPECT_EQ(now(), 4) << "what cannot be measured is not taken";
  times.erase("1x3x6x5");
  EXPECT_EQ(now(), 3);
  times = {{"conv", 1}, {"1x3x6x5", 90}};
  for (const auto& change : std::vector<std::function<void(Convolution&)>>{
           [](Convolution& c) { c.number = Number::f32; }, [](Convolution& c) { c.number = Number::tf32; },
           [](Convolution& c) { c.groups = 3; }}) {
    const Convolution was = spec;
    change(spec);
    EXPECT_EQ(now(), 3);
    spec = was;
  }
  spec.channels = 8;
  EXPECT_EQ(now(), 8);
}

// By the stand-in: mode B is asked where A has few, and what was compiled is kept and found again.
TEST(Cudnn, EnginesThatCompileAreWaysAndAreKept) {
  char pattern[] = "/tmp/carillon-plans-XXXXXX";
  const std::filesystem::path folder = mkdtemp(pattern);
  const auto cache = [&] { return std::make_shared<CodeCache>(folder / "plans", "a header"); };
  const Convolution spec{.number = Number::f16,
                         .channels = 3,
                         .height = 4,
                         .width = 4,
                         .filters = 5,
                         .out_height = 4,
                         .out_width = 4,
                         .in_pitch = 3,
                         .out_pitch = 5};
  const auto make_all = [&](const std::shared_ptr<CodeCache>& kept) {
    testing::times_compiled() = 0;
    auto made = make_cudnn(testing::fake_dnn(), kept);
    const auto ways = (*made)->of(spec);
    std::vector<std::string> keys;
    for (const Way& way : *ways) {
      keys.push_back(way.key + (way.compiles ? " compiles" : ""));
      EXPECT_TRUE(way.make()) << way.key;
    }
    EXPECT_EQ(keys, (std::vector<std::string>{"engine 0 () compiles", "engine 2 (7=5)", "engine 3 ()",
                                              "engine 4 ()"}));
    return testing::times_compiled();
  };
  EXPECT_EQ(make_all(nullptr), 1);
  EXPECT_EQ(make_all(cache()), 1);
  EXPECT_EQ(make_all(cache()), 0) << "as it was kept";
  {
    auto made = make_cudnn(testing::fake_dnn(), cache());
    const auto ways = (*made)->of(spec);
    const auto call = ways->front().make();
    ASSERT_TRUE(call);
    testing::times_compiled() = 0;
    (*call)->size_for(8);
    EXPECT_EQ(testing::times_compiled(), 1) << "of another size it is another";
  }
  auto other = make_cudnn(testing::fake_dnn(), cache());
  const auto sized = (*(*other)->of(spec)).front().make();
  ASSERT_TRUE(sized);
  testing::times_compiled() = 0;
  (*sized)->size_for(8);
  EXPECT_EQ(testing::times_compiled(), 0);
  // What cuDNN does not take is compiled anew.
  cache()->keep(identity(spec) + " by engine 0 ()", std::as_bytes(std::span("{}", 2)));
  EXPECT_EQ(make_all(cache()), 1);
  EXPECT_EQ(make_all(cache()), 0);
  std::filesystem::remove_all(folder);
}

TEST(MeasuredLibrary, TellsWhatIsUnlikeApart) {
  std::set<std::string> known;
  const Convolution some{.batch = 2, .channels = 8, .height = 6, .width = 5, .filters = 4};
  const auto one_more = [&](auto change) {
    Convolution other = some;
    change(other);
    EXPECT_TRUE(known.insert(identity(other)).second) << identity(other);
  };
  one_more([](auto&) {});
  for (const auto field :
       {&Convolution::batch, &Convolution::channels, &Convolution::height, &Convolution::width,
        &Convolution::filters, &Convolution::kernel_h, &Convolution::kernel_w, &Convolution::out_height,
        &Convolution::out_width, &Convolution::stride_h, &Convolution::stride_w, &Convolution::dilation_h,
        &Convolution::dilation_w, &Convolution::groups, &Convolution::pad_top, &Convolution::pad_left,
        &Convolution::pad_bottom, &Convolution::pad_right, &Convolution::alignment})
    one_more([&](auto& c) { c.*field += 7; });
  for (const auto field : {&Convolution::in_pitch, &Convolution::out_pitch, &Convolution::residual_pitch})
    one_more([&](auto& c) { c.*field += 7; });
  one_more([](auto& c) { c.bias = true; });
  one_more([](auto& c) { c.relu = true; });
  one_more([](auto& c) { c.number = Number::tf32; });
  const auto product = [&](auto change) {
    Product other{.rows = 3};
    change(other);
    EXPECT_TRUE(known.insert(identity(other)).second) << identity(other);
  };
  product([](auto&) {});
  for (const auto field : {&Product::batch, &Product::rows, &Product::columns, &Product::depth})
    product([&](auto& p) { p.*field += 7; });
  for (const auto matrix : {&Product::a, &Product::b}) {
    product([&](auto& p) { (p.*matrix).turned = true; });
    product([&](auto& p) { (p.*matrix).pitch = 9; });
    product([&](auto& p) { (p.*matrix).step = 9; });
  }
  product([](auto& p) { p.bias = true; });
  product([](auto& p) { p.alignment = 2; });
  product([](auto& p) { p.out_pitch = 9; });
  product([](auto& p) { p.residual_pitch = 9; });
  product([](auto& p) { p.scale = 0.125F; });
  product([](auto& p) { p.number = Number::bf16; });
  for (const Epilogue each : {Epilogue::relu, Epilogue::gelu_erf, Epilogue::gelu_tanh})
    product([&](auto& p) { p.epilogue = each; });
}

TEST(MeasuredLibrary, TimesOnTheDevice) {
  testing::OnEmulated on({.memory = std::uint64_t{64} << 20});
  const std::shared_ptr<const Driver> driver(std::shared_ptr<void>(), &on.driver());
  Context context = nullptr;
  ASSERT_EQ(driver->context_retain(&context, 0), done);
  ASSERT_EQ(driver->context_push(context), done);
  {
    auto library = make_plain_library(driver);
    ASSERT_TRUE(library);
    const Convolution spec{.channels = 4,
                           .height = 5,
                           .width = 5,
                           .filters = 3,
                           .kernel_h = 3,
                           .kernel_w = 3,
                           .out_height = 3,
                           .out_width = 3,
                           .in_pitch = 4,
                           .out_pitch = 3,
                           .bias = true};
    const auto call = (*library)->convolution(spec);
    ASSERT_TRUE(call);
    const CallTimer timer = time_on(driver, 0);
    const auto took = timer(**call, bytes_of(spec));
    ASSERT_TRUE(took) << took.error().message;
    EXPECT_GT(*took, Duration{0});
    EXPECT_TRUE(on.device().violations().empty()) << on.device().violations().front();
    CallBytes much = bytes_of(spec);
    much.a = std::uint64_t{1} << 30;
    const auto full = timer(**call, much);
    ASSERT_FALSE(full);
    EXPECT_EQ(full.error().code, ErrorCode::resource_exhausted);
    EXPECT_NE(full.error().message.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos)
        << full.error().message;
  }
  Context popped = nullptr;
  EXPECT_EQ(driver->context_pop(&popped), done);
  EXPECT_EQ(driver->context_release(0), done);
  EXPECT_EQ(on.device().left_behind(), "");
}

// A kernel that needs more processors than the device has, all at once.
class Spinning final : public Call {
 public:
  explicit Spinning(std::shared_ptr<const Call> of) : of_(std::move(of)) {}
  std::string_view name() const override { return "a kernel that spins"; }
  std::uint64_t workspace() const override { return of_->workspace(); }
  Result<> enqueue(Stream stream, const CallPlaces& places) const override {
    Emulated::next_needs(133);
    return of_->enqueue(stream, places);
  }

 private:
  std::shared_ptr<const Call> of_;
};

TEST(MeasuredLibrary, ATrialThatDoesNotEndIsNamedWithinTheBound) {
  testing::OnEmulated on({.memory = std::uint64_t{64} << 20});
  const std::shared_ptr<const Driver> driver(std::shared_ptr<void>(), &on.driver());
  Context context = nullptr;
  ASSERT_EQ(driver->context_retain(&context, 0), done);
  ASSERT_EQ(driver->context_push(context), done);
  const auto library = make_plain_library(driver);
  ASSERT_TRUE(library);
  const Product spec{.rows = 2, .columns = 3, .depth = 4, .a = {.pitch = 4}, .b = {.pitch = 3}};
  const auto call = (*library)->product(spec);
  ASSERT_TRUE(call);
  constexpr Duration bound = std::chrono::milliseconds{30};
  const Spinning spins(*call);
  const auto took = time_on(driver, 0, bound)(spins, bytes_of(spec));
  const auto launched = first_launch_on(driver, 0, bound)(spins, bytes_of(spec));
  ASSERT_FALSE(took);
  ASSERT_FALSE(launched);
  EXPECT_EQ(took.error().code, ErrorCode::unavailable);
  EXPECT_TRUE(took.error().message.starts_with("a kernel that spins has not ended within 0.03 s"))
      << took.error().message;
  EXPECT_EQ(launched.error().code, ErrorCode::unavailable);
  EXPECT_TRUE(launched.error().message.starts_with("what the device did before a kernel that spins has not"))
      << launched.error().message;
  EXPECT_TRUE(on.device().violations().empty()) << on.device().violations().front();
}

// --- cuDNN, where it is

std::vector<std::filesystem::path> site_packages() {
  auto sites = known_site_packages();
  sites.emplace_back(CARILLON_CUDA_PACKAGES);
  return sites;
}

// A sanitizer stands before dlopen, and cuDNN then does not find its other libraries, and aborts.
#if defined(CARILLON_SANITIZED)
constexpr bool cudnn_can_load = false;
#else
constexpr bool cudnn_can_load = true;
#endif

#define CARILLON_NEEDS_CUDNN(api)                                                                 \
  if (!cudnn_can_load) GTEST_SKIP() << "cuDNN does not load beneath a sanitizer";                 \
  const auto opened = open_library(cudnn, {}, site_packages());                                   \
  if (!opened) GTEST_SKIP() << "tools/setup --with-cuda installs it: " << opened.error().message; \
  const auto api = dnn::find_api(*opened);                                                        \
  ASSERT_TRUE(api) << api.error().message

Convolution of_resnet(Number number, bool residual, bool bias, bool relu) {
  return {.number = number,
          .batch = 8,
          .channels = 64,
          .height = 56,
          .width = 56,
          .filters = 64,
          .kernel_h = 3,
          .kernel_w = 3,
          .out_height = 56,
          .out_width = 56,
          .pad_top = 1,
          .pad_left = 1,
          .pad_bottom = 1,
          .pad_right = 1,
          .in_pitch = 64,
          .out_pitch = 64,
          .residual_pitch = residual ? 64 : 0,
          .bias = bias,
          .relu = relu};
}

TEST(Cudnn, PlansForADeviceThatIsOnlyDescribed) {
  CARILLON_NEEDS_CUDNN(api);
  auto ways = make_described_cudnn(*api, h100_description());
  ASSERT_TRUE(ways) << ways.error().message;
  EXPECT_TRUE((*ways)->version().starts_with("cuDNN 9.")) << (*ways)->version();
  std::map<Number, std::size_t> known;
  for (const Number number : {Number::f32, Number::tf32, Number::f16, Number::bf16})
    for (const int fused : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const Convolution spec = of_resnet(number, (fused & 1) != 0, (fused & 2) != 0, (fused & 4) != 0);
      SCOPED_TRACE(identity(spec));
      const auto found = (*ways)->of(spec), again = (*ways)->of(spec);
      // It knows residual and ReLU only beside a bias; the planner asks for less then.
      if (!found && fused != 0 && !spec.bias) continue;
      ASSERT_TRUE(found) << found.error().message;
      ASSERT_TRUE(again);
      std::set<std::string> keys;
      for (std::size_t i = 0; i < found->size(); ++i) {
        EXPECT_TRUE(keys.insert((*found)[i].key).second) << "twice: " << (*found)[i].key;
        EXPECT_EQ((*found)[i].key, (*again)[i].key);
      }
      const auto call = found->front().make();
      ASSERT_TRUE(call) << call.error().message;
      EXPECT_EQ((*call)->enqueue(nullptr, {}).error().code, ErrorCode::internal) << "there is no such device";
      known[number] += found->size();
    }
  EXPECT_LT(known[Number::f32], known[Number::tf32]) << "tensor cores round f32 to tf32";
}

TEST(Cudnn, PlansForOddShapes) {
  CARILLON_NEEDS_CUDNN(api);
  auto ways = make_described_cudnn(*api, h100_description());
  ASSERT_TRUE(ways);
  const auto changed = [](auto change) {
    Convolution c = of_resnet(Number::f16, false, true, true);
    change(c);
    return c;
  };
  const std::pair<const char*, Convolution> rows[] = {
      {"a slice of a wider image", changed([](auto& c) { c.out_pitch = 256, c.in_pitch = 96; })},
      {"at two bytes", changed([](auto& c) { c.alignment = 2; })},
      {"three channels", changed([](auto& c) { c.channels = 3, c.in_pitch = 3; })},
      {"padded on one side",
       changed([](auto& c) { c.pad_top = c.pad_left = 0, c.out_height = c.out_width = 55; })},
      {"strided", changed([](auto& c) { c.stride_h = c.stride_w = 2, c.out_height = c.out_width = 28; })},
      {"dilated", changed([](auto& c) { c.dilation_h = c.dilation_w = 2, c.out_height = c.out_width = 54; })},
      {"in groups", changed([](auto& c) { c.groups = 4; })},
      {"one pixel", changed([](auto& c) {
         c.height = c.width = c.kernel_h = c.kernel_w = c.out_height = c.out_width = 1,
         c.pad_top = c.pad_left = c.pad_bottom = c.pad_right = 0;
       })},
  };
  for (const auto& [what, spec] : rows) {
    SCOPED_TRACE(what);
    const auto found = (*ways)->of(spec);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_TRUE(std::ranges::any_of(*found, [](const Way& way) { return way.make().has_value(); }));
  }
}

TEST(Cudnn, RefusesWhatIsNoDeviceOrNoConvolution) {
  CARILLON_NEEDS_CUDNN(api);
  for (const std::string text : {"", "{}", "not json", "[1,2]"}) {
    const auto ways = make_described_cudnn(*api, text);
    ASSERT_FALSE(ways) << text;
    EXPECT_EQ(ways.error().code, ErrorCode::invalid_argument);
  }
  auto ways = make_described_cudnn(*api, h100_description());
  ASSERT_TRUE(ways);
  Convolution wrong = of_resnet(Number::f16, false, false, false);
  wrong.out_height = 57;  // the image has 56 lines
  const auto found = (*ways)->of(wrong);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::unsupported);
  EXPECT_NE(found.error().message.find("conv f16 8x64x56x56"), std::string::npos) << found.error().message;
}

TEST(Cudnn, ALibraryThatIsAnotherIsNamed) {
  const auto stub = open_library({"libcarillon_cuda_stub_whole.so", ""}, CARILLON_CUDA_STUBS, {});
  ASSERT_TRUE(stub) << stub.error().message;
  for (const Error& error : {dnn::find_api(*stub).error(), blas::find_api(*stub).error()}) {
    EXPECT_EQ(error.code, ErrorCode::unavailable);
    EXPECT_NE(error.message.find("libcarillon_cuda_stub_whole.so"), std::string::npos) << error.message;
  }
  EXPECT_NE(dnn::find_api(*stub).error().message.find("cudnnBackendExecute"), std::string::npos);
  EXPECT_NE(blas::find_api(*stub).error().message.find("cublasLtMatmul"), std::string::npos);
}

}  // namespace
}  // namespace carillon::engine::cuda
