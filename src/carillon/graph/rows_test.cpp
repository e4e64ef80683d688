#include "carillon/graph/rows.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/graph/operators.h"
#include "carillon/graph/row_rules.h"
#include "carillon/graph/testing.h"

namespace carillon::graph {
namespace {

using testing::Onnx;
using Wholes = std::vector<std::int64_t>;
using Build = std::function<void(Onnx&)>;

// A file with inputs x [B,3,4], v [B,4], s [B,5,8], m [B,2,6,6] and i [B,3] (whole numbers), of which `build`
// uses some, and output y. Others are left out.
Onnx file_of(const Build& build, DataType type = DataType::f32) {
  Onnx nodes;
  build(nodes);
  const auto reads = [&](const std::string& name) {
    const auto looks = [&](auto& self, const onnx::GraphProto& graph) -> bool {
      return std::ranges::any_of(graph.node(), [&](const onnx::NodeProto& node) {
        return std::ranges::find(node.input(), name) != node.input().end() ||
               std::ranges::any_of(node.attribute(), [&](const onnx::AttributeProto& attribute) {
                 return attribute.has_g() && self(self, attribute.g());
               });
      });
    };
    return looks(looks, nodes.proto.graph());
  };
  const struct {
    const char* name;
    testing::Dims dims;
    DataType type;
  } inputs[] = {{"x", {"B", "3", "4"}, DataType::f32},
                {"v", {"B", "4"}, DataType::f32},
                {"s", {"B", "5", "8"}, DataType::f32},
                {"m", {"B", "2", "6", "6"}, DataType::f32},
                {"i", {"B", "3"}, DataType::i64}};
  for (const auto& input : inputs)
    if (reads(input.name)) nodes.input(input.name, input.dims, input.type);
  nodes.output("y", type);
  return nodes;
}

void transpose(Onnx& o, const std::string& from, const std::string& to, const Wholes& perm,
               const std::string& name = "") {
  o.node("Transpose", {from}, {to}, name).set("perm", perm);
}

// The extent of dimension 0 of `from`, as a tensor of one number.
void batch_size(Onnx& o, const std::string& from, const std::string& to) {
  o.i64(to + "_0", {1}, {0}).node("Shape", {from}, {to + "_s"}).node("Gather", {to + "_s", to + "_0"}, {to});
}

void lstm(Onnx& o, const std::string& x, std::int64_t width, const std::string& y,
          const std::vector<std::string>& states = {}) {
  o.random(y + "w", {1, 12, width}).random(y + "r", {1, 12, 3});
  std::vector<std::string> inputs{x, y + "w", y + "r"};
  if (!states.empty()) inputs.insert(inputs.end(), {"", ""});
  inputs.insert(inputs.end(), states.begin(), states.end());
  o.node("LSTM", inputs, {y}, "cell").set("hidden_size", 3);
}

struct Row {
  const char* what;
  Build build;
  const char* culprit = "";  // name of the node that is in the way; empty: it is proven
  DataType type = DataType::f32;
};

const Row proven[] = {
    {"arithmetic, weights and scalars",
     [](Onnx& o) {
       o.random("c", {4}).node("Add", {"x", "c"}, {"a"}).node("Mul", {"a", "x"}, {"y"});
     }},
    {"a dense layer",
     [](Onnx& o) {
       o.random("w", {4, 2}).random("c", {2}).node("Gemm", {"v", "w", "c"}, {"h"}).node("Relu", {"h"}, {"y"});
     }},
    {"reshape by the batch size",
     [](Onnx& o) {
       batch_size(o, "x", "n");
       o.i64("rest", {1}, {12}).node("Concat", {"n", "rest"}, {"to"}).set("axis", 0);
       o.node("Reshape", {"x", "to"}, {"y"});
     }},
    {"all rows' words as one list, and back",
     [](Onnx& o) {
       o.i64("flat", {2}, {-1, 4}).node("Reshape", {"x", "flat"}, {"f"}).random("w", {4, 4});
       o.node("MatMul", {"f", "w"}, {"g"}).node("Softmax", {"g"}, {"p"});
       o.i64("back", {3}, {-1, 3, 4}).node("Reshape", {"p", "back"}, {"y"});
     }},
    {"sequence-first recurrence between two transposes",
     [](Onnx& o) {
       transpose(o, "s", "t", {1, 0, 2});
       lstm(o, "t", 8, "h");
       transpose(o, "h", "b", {2, 0, 1, 3});
       o.i64("to", {3}, {0, 5, 3}).node("Reshape", {"b", "to"}, {"y"});
     }},
    {"its states made of the batch size",
     [](Onnx& o) {
       batch_size(o, "s", "n");
       o.i64("d", {1}, {1}).i64("h", {1}, {3}).node("Concat", {"d", "n", "h"}, {"to"}).set("axis", 0);
       o.node("ConstantOfShape", {"to"}, {"zero"});
       transpose(o, "s", "t", {1, 0, 2});
       lstm(o, "t", 8, "g", {"zero", "zero"});
       transpose(o, "g", "b", {2, 0, 1, 3});
       o.i64("shape", {3}, {0, 5, 3}).node("Reshape", {"b", "shape"}, {"y"});
     }},
    {"attention, head by head",
     [](Onnx& o) {
       o.i64("heads", {4}, {0, 0, 2, 4}).node("Reshape", {"s", "heads"}, {"h"});
       transpose(o, "h", "q", {0, 2, 1, 3});
       transpose(o, "h", "k", {0, 2, 3, 1});
       o.node("MatMul", {"q", "k"}, {"scores"}).node("Softmax", {"scores"}, {"p"});
       o.node("MatMul", {"p", "q"}, {"c"});
       transpose(o, "c", "t", {0, 2, 1, 3});
       o.i64("whole", {3}, {0, 0, 8}).node("Reshape", {"t", "whole"}, {"y"});
     }},
    {"attention with rows and heads in one dimension, sequence first",
     [](Onnx& o) {
       batch_size(o, "s", "n");
       transpose(o, "s", "t", {1, 0, 2});
       o.i64("two", {1}, {2}).node("Mul", {"n", "two"}, {"nh"}).i64("five", {1}, {5}).i64("four", {1}, {4});
       o.node("Concat", {"five", "nh", "four"}, {"split"}).set("axis", 0);
       o.node("Reshape", {"t", "split"}, {"h"});
       transpose(o, "h", "q", {1, 0, 2});
       transpose(o, "h", "k", {1, 2, 0});
       o.node("MatMul", {"q", "k"}, {"scores"}).node("Softmax", {"scores"}, {"p"});
       o.node("MatMul", {"p", "q"}, {"c"});
       transpose(o, "c", "b", {1, 0, 2});
       o.i64("eight", {1}, {8}).node("Concat", {"five", "n", "eight"}, {"join"}).set("axis", 0);
       o.node("Reshape", {"b", "join"}, {"j"});
       transpose(o, "j", "y", {1, 0, 2});
     }},
    {"position embeddings, one for each word",
     [](Onnx& o) {
       o.i64("one", {}, {1}).i64("zero", {}, {0}).node("Shape", {"s"}, {"shape"});
       o.node("Gather", {"shape", "one"}, {"length"}).node("Range", {"zero", "length", "one"}, {"at"});
       o.random("table", {9, 8}).node("Gather", {"table", "at"}, {"p"}).node("Add", {"s", "p"}, {"y"});
     }},
    {"a token that is put before each row",
     [](Onnx& o) {
       batch_size(o, "s", "n");
       o.i64("d", {2}, {1, 8}).node("Concat", {"n", "d"}, {"to"}).set("axis", 0);
       o.random("token", {1, 1, 8}).node("Expand", {"token", "to"}, {"t"});
       o.node("Concat", {"t", "s"}, {"y"}).set("axis", 1);
     }},
    {"convolution, pooling and normalisation",
     [](Onnx& o) {
       o.random("w", {4, 2, 3, 3}).node("Conv", {"m", "w"}, {"c"});
       o.random("scale", {4})
           .random("bias", {4})
           .node("InstanceNormalization", {"c", "scale", "bias"}, {"n"});
       o.node("MaxPool", {"n"}, {"p"}).set("kernel_shape", Wholes{2, 2});
       o.node("GlobalAveragePool", {"p"}, {"g"}).node("Flatten", {"g"}, {"y"});
     }},
    {"resized within rows",
     [](Onnx& o) {
       o.f32("scales", {4}, {1, 1, 2, 2}).node("Resize", {"m", "", "scales"}, {"y"}).set("mode", "linear");
     }},
    {"resized to sizes that name the batch",
     [](Onnx& o) {
       batch_size(o, "m", "n");
       o.i64("rest", {3}, {2, 9, 9}).node("Concat", {"n", "rest"}, {"sizes"}).set("axis", 0);
       o.node("Resize", {"m", "", "", "sizes"}, {"y"}).set("mode", "nearest");
     }},
    {"padded within rows",
     [](Onnx& o) {
       o.i64("pads", {6}, {0, 1, 0, 0, 0, 2}).node("Pad", {"x", "pads"}, {"y"});
     }},
    {"a Slice to the end of all rows",
     [](Onnx& o) {
       o.i64("from", {2}, {0, 1}).i64("to", {2}, {9223372036854775807, 3}).i64("axes", {2}, {0, 1});
       o.node("Slice", {"x", "from", "to", "axes"}, {"y"});
     }},
    {"reversed within rows",
     [](Onnx& o) {
       o.i64("from", {1}, {-1}).i64("to", {1}, {-100}).i64("axes", {1}, {1}).i64("step", {1}, {-1});
       o.node("Slice", {"x", "from", "to", "axes", "step"}, {"y"});
     }},
    {"looked up in a table",
     [](Onnx& o) {
       o.random("t", {8, 2}).node("Gather", {"t", "i"}, {"y"});
     }},
    {"an element of each row by its own index",
     [](Onnx& o) {
       o.i64("axes", {1}, {2}).node("Unsqueeze", {"i", "axes"}, {"u"});
       o.node("GatherElements", {"x", "u"}, {"y"}).set("axis", 2);
     }},
    {"matrices of rows as Einsum has them",
     [](Onnx& o) {
       o.node("Einsum", {"x", "x"}, {"e"}).set("equation", "bij,bkj->bik");
       o.random("w", {3, 5}).node("Einsum", {"e", "w"}, {"y"}).set("equation", "...k,kl->...l");
     }},
    {"rows in the middle of an Einsum's result, and back",
     [](Onnx& o) {
       o.node("Einsum", {"x"}, {"e"}).set("equation", "bij->ibj");
       transpose(o, "e", "y", {1, 0, 2});
     }},
    {"reductions within rows",
     [](Onnx& o) {
       o.i64("axes", {1}, {-1}).node("ReduceMax", {"x", "axes"}, {"r"}).node("Sub", {"x", "r"}, {"d"});
       o.i64("two", {2}, {1, 2}).node("ReduceMean", {"d", "two"}, {"y"}).set("keepdims", 0);
     }},
    {"the largest, and where they are",
     [](Onnx& o) {
       o.i64("k", {1}, {2}).node("TopK", {"x", "k"}, {"t", "at"}).node("ArgMax", {"x"}, {"a"}).set("axis", 1);
       o.node("Gather", {"a", "zero"}, {"b"}).set("axis", 1).i64("zero", {1}, {0});
       o.node("Mul", {"at", "at"}, {"z"})
           .node("Cast", {"z"}, {"f"})
           .set("to", 1)
           .node("Add", {"t", "f"}, {"y"});
     }},
    {"split, and put together again",
     [](Onnx& o) {
       o.node("Split", {"s"}, {"a", "b"}).set("axis", 2);
       o.node("Concat", {"b", "a"}, {"y"}).set("axis", 2);
     }},
    {"two batches above each other, and taken apart",
     [](Onnx& o) {
       o.node("Neg", {"x"}, {"n"}).node("Concat", {"x", "n"}, {"c"}).set("axis", 0);
       o.node("Softmax", {"c"}, {"p"}).node("Split", {"p"}, {"a", "b"}).set("axis", 0);
       o.node("Mul", {"a", "b"}, {"y"});
     }},
    {"a scan along the words of each row",
     [](Onnx& o) {
       Onnx body;
       body.input("h", {"B", "8"}).input("e", {"B", "8"});
       body.node("Add", {"h", "e"}, {"h2"}).node("Tanh", {"h2"}, {"o"}).output("h2").output("o");
       batch_size(o, "s", "n");
       o.i64("d", {1}, {8}).node("Concat", {"n", "d"}, {"to"}).set("axis", 0);
       o.node("ConstantOfShape", {"to"}, {"zero"});
       o.node("Scan", {"zero", "s"}, {"last", "y"}).set("num_scan_inputs", 1).set("body", body);
       o.set("scan_input_axes", Wholes{1}).set("scan_output_axes", Wholes{1});
     }},
    {"a loop of known length",
     [](Onnx& o) {
       Onnx body;
       body.input("k", {}, DataType::i64).input("go", {}, DataType::boolean).input("h", {"B", "4"});
       body.node("Identity", {"go"}, {"on"}).node("Tanh", {"h"}, {"h2"});
       body.output("on", DataType::boolean).output("h2");
       o.i64("times", {}, {3}).node("Loop", {"times", "", "v"}, {"y"}).set("body", body);
     }},
    {"a mask of each row, with the heads of all",
     [](Onnx& o) {
       transpose(o, "x", "t", {0, 2, 1});
       o.node("MatMul", {"x", "t"}, {"q"});
       o.i64("axes", {1}, {1})
           .node("Unsqueeze", {"i", "axes"}, {"u"})
           .node("Cast", {"u"}, {"f"})
           .set("to", 1);
       o.node("Add", {"q", "f"}, {"y"});
     }},
    {"places within rows, in one list of all rows",
     [](Onnx& o) {
       o.i64("zero", {}, {0}).i64("one", {}, {1}).i64("flat", {1}, {-1}).i64("axes", {1}, {1});
       o.node("Shape", {"x"}, {"shape"}).node("Gather", {"shape", "zero"}, {"n"});
       o.node("Range", {"zero", "n", "one"}, {"r"}).node("Unsqueeze", {"r", "axes"}, {"u"});
       o.i64("length", {}, {12}).node("Mul", {"u", "length"}, {"from"}).i64("places", {3}, {1, 4, 10});
       o.node("Add", {"from", "places"}, {"at"}).node("Reshape", {"x", "flat"}, {"all"});
       o.node("Gather", {"all", "at"}, {"y"});
     }},
    {"one place of each row set, by coordinates",
     [](Onnx& o) {
       o.i64("zero", {}, {0}).i64("one", {}, {1}).i64("axes", {1}, {1});
       o.node("Shape", {"v"}, {"shape"}).node("Gather", {"shape", "zero"}, {"n"});
       o.node("Range", {"zero", "n", "one"}, {"r"}).node("Unsqueeze", {"r", "axes"}, {"row"});
       o.node("Mul", {"row", "zero"}, {"none"}).i64("two", {}, {2}).node("Add", {"none", "two"}, {"column"});
       o.node("Concat", {"row", "column"}, {"at"}).set("axis", 1);
       o.node("GatherND", {"v", "at"}, {"old"}).node("Neg", {"old"}, {"new"});
       o.node("ScatterND", {"v", "at", "new"}, {"y"});
     }},
    {"what has no elements, in other shapes",
     [](Onnx& o) {
       o.i64("from", {1}, {0}).i64("to", {1}, {0}).i64("axes", {1}, {1});
       o.node("Slice", {"x", "from", "to", "axes"}, {"none"}).i64("halves", {4}, {0, 0, 2, 2});
       o.node("Reshape", {"none", "halves"}, {"h"}).i64("whole", {3}, {0, 0, 4});
       o.node("Reshape", {"h", "whole"}, {"past"}).node("Concat", {"past", "x"}, {"y"}).set("axis", 1);
     }},
    {"what is mixed, but not answered",
     [](Onnx& o) { o.node("ReduceSum", {"x"}, {"unused"}, "sum").node("Neg", {"x"}, {"y"}); }},
};

const Row mixing[] = {
    {"reverse",
     [](Onnx& o) {
       o.i64("from", {1}, {-1})
           .i64("to", {1}, {-9223372036854775807})
           .i64("axes", {1}, {0})
           .i64("step", {1}, {-1});
       o.node("Slice", {"x", "from", "to", "axes", "step"}, {"y"}, "reverse");
     },
     "reverse"},
    {"roll",
     [](Onnx& o) {
       o.i64("zero", {1}, {0}).i64("last", {1}, {-1}).i64("end", {1}, {9223372036854775807});
       o.node("Slice", {"x", "last", "end", "zero"}, {"a"}, "tail");
       o.node("Slice", {"x", "zero", "last", "zero"}, {"b"}, "head");
       o.node("Concat", {"a", "b"}, {"y"}).set("axis", 0);
     },
     "head"},
    {"differences to the row before",
     [](Onnx& o) {
       o.i64("zero", {1}, {0})
           .i64("last", {1}, {-1})
           .i64("end", {1}, {9223372036854775807})
           .i64("one", {1}, {1});
       o.node("Slice", {"x", "zero", "one", "zero"}, {"first"}, "first");
       o.node("Slice", {"x", "zero", "last", "zero"}, {"all but last"}, "rest");
       o.node("Concat", {"first", "all but last"}, {"before"})
           .set("axis", 0)
           .node("Sub", {"x", "before"}, {"y"});
     },
     "rest"},
    {"the first row, for all",
     [](Onnx& o) {
       o.i64("at", {1}, {0}).node("Gather", {"x", "at"}, {"f"}, "pick").node("Sub", {"x", "f"}, {"y"});
     },
     "pick"},
    {"the last row, for all",
     [](Onnx& o) {
       o.i64("at", {1}, {-1}).node("Gather", {"x", "at"}, {"f"}, "pick").node("Sub", {"x", "f"}, {"y"});
     },
     "pick"},
    {"rows as the steps of a recurrence",
     [](Onnx& o) {
       lstm(o, "s", 8, "h");
       o.i64("to", {3}, {0, 5, 3}).node("Reshape", {"h", "to"}, {"y"});
     },
     "cell"},
    {"a scan over the rows",
     [](Onnx& o) {
       Onnx body;
       body.input("h", {"4"}).input("e", {"4"});
       body.node("Add", {"h", "e"}, {"h2"}, "step").node("Identity", {"h2"}, {"o"}).output("h2").output("o");
       o.f32("zero", {4}, {0, 0, 0, 0}).node("Scan", {"zero", "v"}, {"last", "y"}, "scan");
       o.set("num_scan_inputs", 1).set("body", body);
     },
     "scan"},
    {"as many rounds as there are rows",
     [](Onnx& o) {
       Onnx body;
       body.input("k", {}, DataType::i64).input("go", {}, DataType::boolean).input("h", {"B", "4"});
       body.node("Identity", {"go"}, {"on"}).node("Tanh", {"h"}, {"h2"}, "round");
       body.output("on", DataType::boolean).output("h2");
       batch_size(o, "v", "n");
       o.node("Loop", {"n", "", "v"}, {"y"}, "loop").set("body", body);
     },
     "round"},
    {"a branch that looks at all rows",
     [](Onnx& o) {
       Onnx yes, no;
       yes.node("Neg", {"v"}, {"a"}, "yes").output("a");
       no.node("Abs", {"v"}, {"b"}, "no").output("b");
       o.f32("zero", {}, {0}).node("ReduceSum", {"v"}, {"sum"}, "sum").set("keepdims", 0);
       o.node("Greater", {"sum", "zero"}, {"c"}).node("If", {"c"}, {"y"}, "if");
       o.set("then_branch", yes).set("else_branch", no);
     },
     "sum"},
    {"attention of an unbatched sequence",
     [](Onnx& o) {
       transpose(o, "v", "k", {1, 0}, "turn");
       o.node("MatMul", {"v", "k"}, {"q"}, "scores")
           .node("Softmax", {"q"}, {"p"})
           .node("MatMul", {"p", "v"}, {"y"});
     },
     "scores"},
    {"a convolution along an unbatched signal",
     [](Onnx& o) {
       transpose(o, "v", "t", {1, 0});
       o.i64("axes", {1}, {0}).node("Unsqueeze", {"t", "axes"}, {"u"}).random("w", {4, 4, 3});
       o.node("Conv", {"u", "w"}, {"c"}, "conv")
           .set("pads", Wholes{1, 1})
           .node("Squeeze", {"c", "axes"}, {"q"});
       transpose(o, "q", "y", {1, 0});
     },
     "conv"},
    {"a pool over rows behind a transpose",
     [](Onnx& o) {
       transpose(o, "x", "t", {1, 2, 0});
       o.node("AveragePool", {"t"}, {"p"}, "pool").set("kernel_shape", Wholes{3}).set("pads", Wholes{1, 1});
       transpose(o, "p", "y", {2, 0, 1});
     },
     "pool"},
    {"a normalisation over rows behind a transpose",
     [](Onnx& o) {
       transpose(o, "x", "t", {1, 2, 0});
       o.random("scale", {4}).random("bias", {4});
       o.node("InstanceNormalization", {"t", "scale", "bias"}, {"n"}, "norm");
       transpose(o, "n", "y", {2, 0, 1});
     },
     "norm"},
    {"shares of rows behind a transpose",
     [](Onnx& o) {
       transpose(o, "x", "t", {1, 2, 0});
       o.node("Softmax", {"t"}, {"p"}, "shares");
       transpose(o, "p", "y", {2, 0, 1});
     },
     "shares"},
    {"a position for each row",
     [](Onnx& o) {
       o.i64("one", {}, {1}).i64("zero", {}, {0}).node("Shape", {"v"}, {"shape"});
       o.node("Gather", {"shape", "zero"}, {"length"}).node("Range", {"zero", "length", "one"}, {"at"});
       o.random("table", {600, 4})
           .node("Gather", {"table", "at"}, {"p"})
           .node("Add", {"v", "p"}, {"y"}, "add");
     },
     "add"},
    {"divided by the number of rows",
     [](Onnx& o) {
       batch_size(o, "v", "n");
       o.node("Cast", {"n"}, {"f"}).set("to", 1).node("Div", {"v", "f"}, {"y"}, "mean");
     },
     "mean"},
    {"divided by the number of elements",
     [](Onnx& o) {
       o.node("Size", {"v"}, {"n"}).node("Cast", {"n"}, {"f"}).set("to", 1);
       o.node("Div", {"v", "f"}, {"y"}, "mean");
     },
     "mean"},
    {"another node at three rows and more",
     [](Onnx& o) {
       Onnx yes, no;
       yes.node("Neg", {"v"}, {"a"}, "many").output("a");
       no.node("Abs", {"v"}, {"b"}, "few").output("b");
       batch_size(o, "v", "n");
       o.i64("two", {1}, {2}).node("Greater", {"n", "two"}, {"c"}).node("If", {"c"}, {"y"}, "if");
       o.set("then_branch", yes).set("else_branch", no);
     },
     "many"},
    {"rows summed by Einsum",
     [](Onnx& o) {
       o.node("Einsum", {"v", "v"}, {"e"}, "product").set("equation", "bi,bj->ij");
       o.node("MatMul", {"v", "e"}, {"y"});
     },
     "product"},
    {"rows with rows by Einsum",
     [](Onnx& o) {
       o.node("Einsum", {"v", "v"}, {"e"}, "product").set("equation", "bi,ci->bc");
       o.node("MatMul", {"e", "v"}, {"y"});
     },
     "product"},
    {"pairs of rows by broadcasting",
     [](Onnx& o) {
       o.i64("axes", {1}, {1})
           .node("Unsqueeze", {"v", "axes"}, {"u"})
           .node("Sub", {"u", "v"}, {"d"}, "pairs");
       o.i64("sum", {1}, {1}).node("ReduceSum", {"d", "sum"}, {"y"}).set("keepdims", 0);
     },
     "pairs"},
    {"rows interpolated",
     [](Onnx& o) {
       o.i64("axes", {2}, {0, 1}).node("Unsqueeze", {"v", "axes"}, {"u"}).f32("scales", {4}, {1, 1, 2, 1});
       o.node("Resize", {"u", "", "scales"}, {"r"}, "resize").set("mode", "linear");
       o.node("Squeeze", {"r", "axes"}, {"q"}).i64("to", {2}, {-1, 8}).node("Reshape", {"q", "to"}, {"y"});
     },
     "resize"},
    {"all rows as one of a batch of one",
     [](Onnx& o) {
       o.i64("one", {3}, {1, -1, 4})
           .node("Reshape", {"v", "one"}, {"u"})
           .node("Softmax", {"u"}, {"p"}, "shares");
       o.set("axis", 1).i64("back", {2}, {-1, 4}).node("Reshape", {"p", "back"}, {"y"});
     },
     "shares"},
    {"a running sum over rows",
     [](Onnx& o) {
       o.i64("axis", {}, {0}).node("CumSum", {"x", "axis"}, {"y"}, "sums");
     },
     "sums"},
    {"a range of all rows",
     [](Onnx& o) {
       o.node("DynamicQuantizeLinear", {"v"}, {"q", "scale", "zero"}, "range");
       o.node("DequantizeLinear", {"q", "scale", "zero"}, {"y"});
     },
     "range"},
    {"rows turned into columns",
     [](Onnx& o) {
       transpose(o, "x", "t", {1, 0, 2});
       o.node("Shape", {"x"}, {"shape"}).node("Reshape", {"t", "shape"}, {"y"}, "wrong way back");
     },
     "wrong way back"},
    {"the rows of a batch in pairs",
     [](Onnx& o) {
       o.node("Concat", {"x", "x"}, {"c"}).set("axis", 0).i64("to", {3}, {-1, 6, 4});
       o.node("Reshape", {"c", "to"}, {"y"}, "pairs");
     },
     "pairs"},
    {"an index into all rows",
     [](Onnx& o) {
       o.i64("flat", {2}, {-1, 4})
           .node("Reshape", {"x", "flat"}, {"f"})
           .node("Gather", {"f", "i"}, {"y"}, "pick");
     },
     "pick"},
    {"places within the next row, in one list of all rows",
     [](Onnx& o) {
       o.i64("zero", {}, {0}).i64("one", {}, {1}).i64("flat", {1}, {-1}).i64("axes", {1}, {1});
       o.node("Shape", {"x"}, {"shape"}).node("Gather", {"shape", "zero"}, {"n"});
       o.node("Range", {"zero", "n", "one"}, {"r"}).node("Add", {"r", "one"}, {"next"});
       o.node("Mod", {"next", "n"}, {"mod"})
           .node("Unsqueeze", {"mod", "axes"}, {"u"})
           .i64("length", {}, {12});
       o.node("Mul", {"u", "length"}, {"from"}).i64("places", {3}, {1, 4, 10});
       o.node("Add", {"from", "places"}, {"at"}).node("Reshape", {"x", "flat"}, {"all"});
       o.node("Gather", {"all", "at"}, {"y"}, "pick");
     },
     "pick"},
    {"the mean of rows, by a product",
     [](Onnx& o) {
       batch_size(o, "v", "n");
       o.node("Concat", {"n", "n"}, {"to"}).set("axis", 0).node("ConstantOfShape", {"to"}, {"ones"});
       o.node("MatMul", {"ones", "v"}, {"y"}, "mean");
     },
     "mean"},
    {"the identity of as many rows",
     [](Onnx& o) {
       batch_size(o, "v", "n");
       o.i64("four", {1}, {4}).node("Concat", {"n", "four"}, {"to"}).set("axis", 0);
       o.node("ConstantOfShape", {"to"}, {"z"})
           .node("EyeLike", {"z"}, {"e"})
           .node("Add", {"v", "e"}, {"y"}, "add");
     },
     "add"},
    {"rows counted",
     [](Onnx& o) {
       o.node("MaxPool", {"m"}, {"p", "at"}, "pool")
           .set("kernel_shape", Wholes{2, 2})
           .node("Neg", {"at"}, {"y"});
     },
     "pool", DataType::i64},
};

std::string name_in(const std::string& culprit) {
  return "'" + culprit;  // loops put which round it is behind a node's name
}

TEST(Rows, WhatIsProven) {
  for (const Row& row : proven) {
    SCOPED_TRACE(row.what);
    const auto model = file_of(row.build, row.type).import({.open = true, .batch_from_file = true});
    ASSERT_TRUE(model.has_value()) << model.error().message;
    EXPECT_TRUE((*model)->batched()) << (*model)->unproven();
    EXPECT_EQ((*model)->unproven(), "");
  }
}

TEST(Rows, WhatIsNotAndWhichNodeIsInTheWay) {
  for (const Row& row : mixing) {
    SCOPED_TRACE(row.what);
    const auto model = file_of(row.build, row.type).import({.open = true, .batch_from_file = true});
    ASSERT_TRUE(model.has_value()) << model.error().message;
    EXPECT_FALSE((*model)->batched());
    EXPECT_NE((*model)->unproven().find(name_in(row.culprit)), std::string_view::npos)
        << (*model)->unproven();
  }
}

// A config that asks for batches gets whole requests, or is told.
TEST(Rows, WithAConfig) {
  for (const Row& row : mixing) {
    SCOPED_TRACE(row.what);
    const Onnx file = file_of(row.build, row.type);
    const auto whole = file.import({.open = true, .batched = true, .proven_at = {2, 3, 8}, .whole = true});
    ASSERT_TRUE(whole.has_value()) << whole.error().message;
    EXPECT_TRUE((*whole)->whole());
    EXPECT_FALSE((*whole)->batched());
    for (const TensorSpec& input : (*whole)->inputs()) EXPECT_EQ(input.shape[0], free_dimension(0));
    EXPECT_TRUE(std::ranges::equal((*whole)->reference(), Extents{1})) << "one row is the commonest";
    EXPECT_TRUE((*whole)->specialize_at(1, Extents{5}).has_value());

    const auto told = file.import({.open = true, .batched = true, .proven_at = {2, 3, 8}});
    ASSERT_TRUE(told.has_value()) << told.error().message;
    EXPECT_TRUE((*told)->batched());
    EXPECT_NE((*told)->unproven(), "");
  }
  const auto fine =
      file_of(proven[0].build).import({.open = true, .batched = true, .proven_at = {2}, .whole = true});
  ASSERT_TRUE(fine.has_value());
  EXPECT_TRUE((*fine)->batched());
  EXPECT_FALSE((*fine)->whole());
}

// What a file makes of five rows alone is found at five.
TEST(Rows, AreProvenAtTheSizesThatAreAskedFor) {
  const auto build = [](Onnx& o) {
    Onnx yes, no;
    yes.node("ReduceMax", {"v"}, {"a"}, "many").node("Sub", {"v", "a"}, {"b"}).output("b");
    no.node("Abs", {"v"}, {"c"}, "few").output("c");
    batch_size(o, "v", "n");
    o.i64("four", {1}, {4}).node("Greater", {"n", "four"}, {"more"}).node("If", {"more"}, {"y"}, "if");
    o.set("then_branch", yes).set("else_branch", no);
  };
  const auto few = file_of(build).import({.batched = true, .proven_at = {2, 3, 4}});
  ASSERT_TRUE(few.has_value()) << few.error().message;
  EXPECT_EQ((*few)->unproven(), "");
  const auto more = file_of(build).import({.batched = true, .proven_at = {2, 3, 4, 5}});
  ASSERT_TRUE(more.has_value());
  EXPECT_NE((*more)->unproven().find("'many'"), std::string_view::npos) << (*more)->unproven();
}

// Who adds an operator says how rows go through it, or here that they do not.
TEST(Rows, EveryOperatorIsInTheTableOrHere) {
  const std::set<std::string_view> none{"Bounded",
                                        "Compress",
                                        "Constant",
                                        "ConstantOfShape",
                                        "Dropout",
                                        "DynamicQuantizeLinear",
                                        "EyeLike",
                                        "BlackmanWindow",
                                        "HammingWindow",
                                        "HannWindow",
                                        "MelWeightMatrix",
                                        "Range",
                                        "Shape",
                                        "Size",  // of sizes
                                        "CastLike",
                                        "Flatten",
                                        "Squeeze",
                                        "Unsqueeze",
                                        "Scatter",
                                        "Upsample",  // become others
                                        "If",
                                        "Loop",
                                        "Scan",
                                        "MaxUnpool",
                                        "NonMaxSuppression",
                                        "NonZero",
                                        "RoiAlign",
                                        "Unique"};
  for (const Operator& op : all_operators())
    EXPECT_NE(find_row_rule(op.name) != nullptr, none.contains(op.name)) << op.name;
}

}  // namespace
}  // namespace carillon::graph
