#include "carillon/graph/origin.h"

#include <functional>
#include <map>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/graph/faults.h"
#include "carillon/graph/testing.h"

namespace carillon::graph {
namespace {

using testing::Onnx;

// Inputs ids [B, 4] (i64) and x [B, 3, 4] (f32); the value that the model gives out, at a batch of `batch`.
struct Traced {
  Graph graph;
  Origin origin;
};
Traced trace(const std::function<void(Onnx&)>& build, int batch = 6, DataType type = DataType::i64) {
  Onnx onnx;
  onnx.input("ids", {"B", "4"}, DataType::i64).input("x", {"B", "3", "4"});
  build(onnx);
  onnx.output("y", type);
  const auto model = onnx.import({.batched = true});
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
  if (!model) return {};
  auto graph = (*model)->specialize(batch);
  EXPECT_TRUE(graph.has_value()) << (graph ? "" : graph.error().message);
  if (!graph) return {};
  Traced out{*std::move(graph), {}};
  out.origin = origins(out.graph, batch)[out.graph.outputs[0].index()];
  return out;
}
Origin origin_of(const std::function<void(Onnx&)>& build, int batch = 6, DataType type = DataType::i64) {
  return trace(build, batch, type).origin;
}

TEST(Origin, RowOfAnElement) {
  const Origin two{.rows = 2, .input = {}};
  EXPECT_EQ(two.row_of(0, 6), 0);
  EXPECT_EQ(two.row_of(2, 6), 0);
  EXPECT_EQ(two.row_of(3, 6), 1);
  EXPECT_EQ(two.row_of(5, 6), 1);
  EXPECT_EQ(two.row_of(0, 5), Faults::unknown) << "it does not divide";
  EXPECT_EQ((Origin{.rows = 1, .input = {}}.row_of(4, 5)), 0);
  EXPECT_EQ(Origin{}.row_of(0, 6), Faults::unknown);
}

TEST(Origin, WhatKeepsRowsApart) {
  const struct {
    const char* what;
    std::function<void(Onnx&)> build;
  } rows[] = {
      {"arithmetic with a constant",
       [](Onnx& o) {
         o.i64("c", {4}, {1, 2, 3, 4}).node("Add", {"ids", "c"}, {"y"});
       }},
      {"of two operands",
       [](Onnx& o) {
         o.node("Mul", {"ids", "ids"}, {"y"});
       }},
      {"reshape to one dimension",
       [](Onnx& o) {
         o.i64("s", {1}, {-1})
             .node("Reshape", {"ids", "s"}, {"f"})
             .i64("t", {2}, {-1, 4})
             .node("Reshape", {"f", "t"}, {"y"});
       }},
      {"slice within rows",
       [](Onnx& o) {
         o.i64("from", {1}, {1}).i64("to", {1}, {3}).i64("axes", {1}, {1});
         o.node("Slice", {"ids", "from", "to", "axes"}, {"y"});
       }},
      {"gather of columns",
       [](Onnx& o) {
         o.i64("i", {2}, {2, 0}).node("Gather", {"ids", "i"}, {"y"}).set("axis", 1);
       }},
      {"gather from a table",
       [](Onnx& o) {
         o.i64("t", {3, 2}, {1, 2, 3, 4, 5, 6}).node("Gather", {"t", "ids"}, {"y"});
       }},
      {"concat beside each other",
       [](Onnx& o) {
         o.node("Concat", {"ids", "ids"}, {"y"}).set("axis", 1);
       }},
      {"sums within rows",
       [](Onnx& o) {
         o.i64("axes", {1}, {-1}).node("ReduceSum", {"ids", "axes"}, {"y"}).set("keepdims", 1);
       }},
      {"place of the largest", [](Onnx& o) { o.node("ArgMax", {"x"}, {"y"}).set("axis", -1); }},
      {"transposed within rows",
       [](Onnx& o) {
         o.node("ArgMax", {"x"}, {"a"}).set("axis", 1).set("keepdims", 1);
         o.node("Transpose", {"a"}, {"y"}).set("perm", std::vector<std::int64_t>{0, 2, 1});
       }},
      {"there and back",
       [](Onnx& o) {
         o.node("Transpose", {"ids"}, {"t"}).set("perm", std::vector<std::int64_t>{1, 0});
         o.node("Neg", {"t"}, {"n"});
         o.node("Transpose", {"n"}, {"y"}).set("perm", std::vector<std::int64_t>{1, 0});
       }},
      {"recurrence with the batch in front",
       [](Onnx& o) {
         o.random("w", {1, 15, 4}).random("r", {1, 15, 5}).node("GRU", {"x", "w", "r"}, {"g"});
         o.set("layout", 1).node("ArgMax", {"g"}, {"y"}).set("axis", -1);
       }},
  };
  for (const auto& [what, build] : rows) EXPECT_EQ(origin_of(build).rows, 6) << what;
}

TEST(Origin, WhatDoesNot) {
  const struct {
    const char* what;
    std::function<void(Onnx&)> build;
  } rows[] = {
      {"rows in reverse",
       [](Onnx& o) {
         o.i64("from", {1}, {-1}).i64("to", {1}, {-1000}).i64("axes", {1}, {0}).i64("step", {1}, {-1});
         o.node("Slice", {"ids", "from", "to", "axes", "step"}, {"y"});
       }},
      {"the first row, for all",
       [](Onnx& o) {
         o.i64("i", {1}, {0}).node("Gather", {"ids", "i"}, {"f"}).set("axis", 0);
         o.node("Sub", {"ids", "f"}, {"y"});
       }},
      {"running over rows",
       [](Onnx& o) {
         o.i64("axis", {}, {0}).node("CumSum", {"ids", "axis"}, {"y"});
       }},
      {"recurrence over the first dimension",
       [](Onnx& o) {
         o.random("w", {1, 15, 4}).random("r", {1, 15, 5}).node("GRU", {"x", "w", "r"}, {"g"});
         o.node("ArgMax", {"g"}, {"y"}).set("axis", -1);
       }},
  };
  for (const auto& [what, build] : rows) {
    EXPECT_EQ(origin_of(build).rows, 0) << what;
    EXPECT_EQ(origin_of(build, 1).rows, 1) << what << ": one row is one row";
  }
}

TEST(Origin, TheInputIsNamedWhereThereIsOne) {
  const auto mixed = [](Onnx& o) {
    o.node("ArgMax", {"x"}, {"a"}).set("axis", 1).set("keepdims", 0);
    o.node("Add", {"ids", "a"}, {"y"});
  };
  EXPECT_EQ(origin_of(mixed).input, "");
  EXPECT_EQ(origin_of(mixed).rows, 6);
  EXPECT_EQ(origin_of([](Onnx& o) { o.node("ArgMax", {"x"}, {"y"}).set("axis", 1); }).input, "x");
  EXPECT_EQ(origin_of([](Onnx& o) { o.node("Neg", {"ids"}, {"y"}); }).input, "ids");
}

// The promise itself, by brute force: where a value is said to fall into rows, changing one row of the inputs
// changes nothing outside that row's part, whatever operators made it.
TEST(Origin, PartsAreOfTheirRowsAlone) {
  constexpr int batch = 6;
  const std::function<void(Onnx&, const std::string&, const std::string&)> steps[] = {
      [](Onnx& o, const std::string& x, const std::string& y) { o.node("Neg", {x}, {y}); },
      [](Onnx& o, const std::string& x, const std::string& y) {
        o.node("Transpose", {x}, {y}).set("perm", std::vector<std::int64_t>{1, 0});
      },
      [](Onnx& o, const std::string& x, const std::string& y) {
        o.i64(y + "s", {2}, {-1, 2}).node("Reshape", {x, y + "s"}, {y});
      },
      [](Onnx& o, const std::string& x, const std::string& y) {
        o.i64(y + "s", {2}, {4, -1}).node("Reshape", {x, y + "s"}, {y});
      },
      [](Onnx& o, const std::string& x, const std::string& y) {
        o.i64(y + "a", {}, {y.size() % 2 == 0 ? 0 : 1}).node("CumSum", {x, y + "a"}, {y});
      },
      [](Onnx& o, const std::string& x, const std::string& y) {
        o.i64(y + "a", {1}, {1}).node("ReduceSum", {x, y + "a"}, {y}).set("keepdims", 1);
      },
      [](Onnx& o, const std::string& x, const std::string& y) {
        o.node("Concat", {x, x}, {y}).set("axis", static_cast<int>(y.size() % 2));
      },
      [](Onnx& o, const std::string& x, const std::string& y) {
        o.node("Add", {x, x}, {y});
      },
      [](Onnx& o, const std::string& x, const std::string& y) {
        o.i64(y + "f", {1}, {0}).i64(y + "t", {1}, {2}).i64(y + "a", {1}, {static_cast<int>(y.size() % 2)});
        o.node("Slice", {x, y + "f", y + "t", y + "a"}, {y});
      },
  };
  int kept = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Onnx onnx;
    onnx.input("ids", {std::to_string(batch), "4"}, DataType::i64);
    std::string last = "ids";
    for (std::uint64_t i = 0, n = 1 + random.below(4); i < n; ++i) {
      const std::string next = last + std::string(1 + random.below(2), 'v');
      steps[random.below(std::size(steps))](onnx, last, next);
      last = next;
    }
    onnx.output(last, DataType::i64);
    const auto model = onnx.import({.batched = false});
    if (!model) continue;  // a reshape that does not divide
    const auto graph = (*model)->specialize(1);
    ASSERT_TRUE(graph.has_value());
    const Origin origin = origins(*graph, batch)[graph->outputs[0].index()];
    if (origin.rows == 0) continue;
    ++kept;
    ASSERT_EQ(origin.rows, batch);
    const auto run = [&](int changed) {
      Tensor ids({DataType::i64, {batch, 4}});
      for (int i = 0; i < 4 * batch; ++i)
        ids.as<std::int64_t>()[static_cast<std::size_t>(i)] = i + (i / 4 == changed ? 1000 : 0);
      const auto out = testing::run_plainly(*graph, {std::make_shared<const Tensor>(std::move(ids))});
      EXPECT_TRUE(out.has_value());
      return out->front();
    };
    const SharedTensor before = run(-1);
    const auto elements = before->type().elements();
    for (int row = 0; row < batch; ++row) {
      const SharedTensor after = run(row);
      for (std::int64_t i = 0; i < elements; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (after->as<std::int64_t>()[at] == before->as<std::int64_t>()[at]) continue;
        EXPECT_EQ(origin.row_of(i, elements), row) << "element " << i << "\n" << to_text(*graph);
      }
    }
  }
  EXPECT_GT(kept, 50) << "or nothing was tested";
}

}  // namespace
}  // namespace carillon::graph
