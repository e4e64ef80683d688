#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/engine/cpu/test_support.h"
#include "carillon/engine/zero_operands.h"
#include "carillon/graph/operators.h"
#include "carillon/graph/testing.h"

// Every operator of ONNX that is known, at all extents of 0, 1, 2 and 5 of its open dimensions: plans against
// plain kernels. Where an operator takes no such extents, it says so; no plan has an operand without a place.
namespace carillon::engine {
namespace {

using namespace testing;
using graph::DataType;
using graph::Extents;
using graph::testing::Onnx;
using List = std::vector<std::int64_t>;

// One model around an operator. Its open dimensions are called a, b and c, in this order where they are met.
struct Row {
  std::string_view op;
  std::function<void(Onnx&)> make;  // makes "y", and what else is an output
  // By open dimension: the least extent that the operator takes. Empty: none is too small.
  Extents least = {};
};

Onnx& number_output(Onnx& m, DataType type = DataType::f32) {
  return m.output("y", type);
}

Row unary(std::string_view op, DataType result = DataType::f32) {
  return {op, [op, result](Onnx& m) {
            m.input("x", {"a", "b"}).node(std::string(op), {"x"}, {"y"});
            number_output(m, result);
          }};
}
Row binary(std::string_view op, DataType result = DataType::f32) {
  return {op, [op, result](Onnx& m) {
            m.input("x", {"a", "b"}).input("z", {"1", "b"}).node(std::string(op), {"x", "z"}, {"y"});
            number_output(m, result);
          }};
}
Row logical(std::string_view op) {
  return {op, [op](Onnx& m) {
            m.input("x", {"a", "b"}).input("z", {"1", "b"});
            m.node("Greater", {"x", "z"}, {"p"}).node("Less", {"x", "z"}, {"q"});
            m.node(std::string(op), {"p", "q"}, {"y"});
            number_output(m, DataType::boolean);
          }};
}
// Of whole numbers that casts make; `one` operand or two.
Row integral(std::string_view op, bool one = false, const char* direction = nullptr) {
  return {op, [=](Onnx& m) {
            m.input("x", {"a", "b"}).input("z", {"1", "b"});
            m.node("Cast", {"x"}, {"i"}).set("to", 12).node("Cast", {"z"}, {"j"}).set("to", 12);
            m.node(std::string(op), one ? std::vector<std::string>{"i"} : std::vector<std::string>{"i", "j"},
                   {"y"});
            if (direction != nullptr) m.set("direction", direction);
            number_output(m, DataType::u32);
            if (one) m.node("Identity", {"j"}, {"w"}).output("w", DataType::u32);
          }};
}
Row reduce(std::string_view op) {
  return {op, [op](Onnx& m) {
            m.input("x", {"a", "b"}).i64("axis", {1}, {1}).node(std::string(op), {"x", "axis"}, {"y"});
            number_output(m);
          }};
}
// A pool of windows of 2 over images whose number and channels are open.
Row pool(std::string_view op) {
  return {op, [op](Onnx& m) {
            m.input("x", {"a", "b", "4", "4"}).node(std::string(op), {"x"}, {"y"});
            m.set("kernel_shape", List{2, 2});
            number_output(m);
          }};
}
Row window(std::string_view op) {
  return {op, [op](Onnx& m) {
            m.input("x", {"a"}).i64("size", {}, {5}).node(std::string(op), {"size"}, {"w"});
            m.node("Cast", {"w"}, {"v"}).set("to", 1).i64("one", {1}, {1});
            m.node("Reshape", {"v", "shape"}, {"r"}).i64("shape", {2}, {5, 1});
            m.node("Mul", {"r", "x"}, {"y"});
            number_output(m);
          }};
}
Row recurrent(std::string_view op, std::int64_t gates) {
  return {op, [op, gates](Onnx& m) {
            m.input("x", {"a", "b", "4"}).random("w", {1, gates * 3, 4}).random("r", {1, gates * 3, 3});
            m.node(std::string(op), {"x", "w", "r"}, {"y", "last"}).set("hidden_size", 3);
            m.output("last");
            number_output(m);
          }};
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const std::string_view op : {"Abs",
                                    "Acos",
                                    "Acosh",
                                    "Asin",
                                    "Asinh",
                                    "Atan",
                                    "Atanh",
                                    "Ceil",
                                    "Celu",
                                    "Cos",
                                    "Cosh",
                                    "Elu",
                                    "Erf",
                                    "Exp",
                                    "Floor",
                                    "Gelu",
                                    "Hardmax",
                                    "HardSigmoid",
                                    "HardSwish",
                                    "Identity",
                                    "LeakyRelu",
                                    "Log",
                                    "LogSoftmax",
                                    "Mish",
                                    "Neg",
                                    "Reciprocal",
                                    "Relu",
                                    "Round",
                                    "Selu",
                                    "Shrink",
                                    "Sigmoid",
                                    "Sign",
                                    "Sin",
                                    "Sinh",
                                    "Softmax",
                                    "Softplus",
                                    "Softsign",
                                    "Sqrt",
                                    "Tan",
                                    "Tanh",
                                    "ThresholdedRelu",
                                    "LpNormalization",
                                    "Dropout",
                                    "Flatten",
                                    "Transpose",
                                    "Trilu",
                                    "EyeLike"})
    all.push_back(unary(op));
  for (const std::string_view op : {"IsInf", "IsNaN"}) all.push_back(unary(op, DataType::boolean));
  for (const std::string_view op : {"Shape", "Size", "NonZero"}) all.push_back(unary(op, DataType::i64));
  for (const std::string_view op :
       {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "PRelu", "CastLike"})
    all.push_back(binary(op));
  for (const std::string_view op : {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
    all.push_back(binary(op, DataType::boolean));
  for (const std::string_view op : {"And", "Or", "Xor"}) all.push_back(logical(op));
  for (const std::string_view op : {"BitwiseAnd", "BitwiseOr", "BitwiseXor"}) all.push_back(integral(op));
  all.push_back(integral("BitwiseNot", true));
  all.push_back(integral("BitShift", false, "LEFT"));
  for (const std::string_view op : {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
                                    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"})
    all.push_back(reduce(op));
  for (const std::string_view op : {"AveragePool", "LpPool", "MaxPool"}) all.push_back(pool(op));
  for (const std::string_view op : {"BlackmanWindow", "HammingWindow", "HannWindow"})
    all.push_back(window(op));
  all.push_back(recurrent("LSTM", 4));
  all.push_back(recurrent("GRU", 3));
  all.push_back(recurrent("RNN", 1));
  for (const std::string_view op : {"ArgMax", "ArgMin"})
    all.push_back({op,
                   [op](Onnx& m) {
                     m.input("x", {"a", "b"}).node(std::string(op), {"x"}, {"y"}).set("axis", 1);
                     number_output(m, DataType::i64);
                   },
                   {0, 1}});  // of nothing there is no largest
  for (const std::string_view op : {"GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"})
    all.push_back({op,
                   [op](Onnx& m) {
                     m.input("x", {"a", "b", "c"}).node(std::string(op), {"x"}, {"y"});
                     number_output(m);
                   },
                   {0, 0, 1}});
  all.insert(
      all.end(),
      {
          {"BatchNormalization",
           [](Onnx& m) {
             m.input("x", {"a", "4", "b"}).random("s", {4}, true);
             m.node("BatchNormalization", {"x", "s", "s", "s", "s"}, {"y"});
             number_output(m);
           }},
          {"Cast",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).node("Cast", {"x"}, {"y"}).set("to", 6);
             number_output(m, DataType::i32);
           }},
          {"Clip",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).f32("low", {}, {-1}).f32("high", {}, {1});
             m.node("Clip", {"x", "low", "high"}, {"y"});
             number_output(m);
           }},
          {"Compress",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).f32("zero", {}, {0}).i64("flat", {1}, {-1});
             m.node("Reshape", {"x", "flat"}, {"f"}).node("Greater", {"f", "zero"}, {"c"});
             m.node("Compress", {"f", "c"}, {"y"}).set("axis", 0);
             number_output(m);
           }},
          {"Concat",
           [](Onnx& m) {
             m.input("x", {"a", "3"}).input("z", {"b", "3"}).node("Concat", {"x", "z"}, {"y"}).set("axis", 0);
             number_output(m);
           }},
          {"ConstantOfShape",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).node("Shape", {"x"}, {"s"}).node("ConstantOfShape", {"s"}, {"o"});
             m.node("Add", {"x", "o"}, {"y"});
             number_output(m);
           }},
          {"Conv",
           [](Onnx& m) {
             m.input("x", {"a", "2", "6", "6"}).random("w", {3, 2, 3, 3}).random("b", {3});
             m.node("Conv", {"x", "w", "b"}, {"c"}).node("Relu", {"c"}, {"y"});
             number_output(m);
           }},
          {"ConvInteger",
           [](Onnx& m) {
             m.input("x", {"a", "2", "6", "6"}).random("w", {3, 2, 3, 3});
             m.node("DynamicQuantizeLinear", {"x"}, {"q", "s", "o"});
             m.node("DynamicQuantizeLinear", {"w"}, {"v", "t", "p"});
             m.node("ConvInteger", {"q", "v", "o", "p"}, {"y"});
             number_output(m, DataType::i32);
           }},
          {"ConvTranspose",
           [](Onnx& m) {
             m.input("x", {"a", "2", "6", "6"}).random("w", {2, 3, 3, 3}).random("b", {3});
             m.node("ConvTranspose", {"x", "w", "b"}, {"y"});
             number_output(m);
           }},
          {"CumSum",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).i64("axis", {}, {0}).node("CumSum", {"x", "axis"}, {"y"});
             number_output(m);
           }},
          {"DFT",
           [](Onnx& m) {
             m.input("x", {"a", "8", "1"}).i64("axis", {}, {1}).node("DFT", {"x", "", "axis"}, {"y"});
             number_output(m);
           }},
          {"DepthToSpace",
           [](Onnx& m) {
             m.input("x", {"a", "4", "b", "c"}).node("DepthToSpace", {"x"}, {"y"}).set("blocksize", 2);
             number_output(m);
           }},
          {"DequantizeLinear",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).f32("s", {}, {0.1F}).node("QuantizeLinear", {"x", "s"}, {"q"});
             m.node("DequantizeLinear", {"q", "s"}, {"y"});
             number_output(m);
           }},
          {"Det",
           [](Onnx& m) {
             m.input("x", {"a", "b", "b"}).node("Det", {"x"}, {"y"});
             number_output(m);
           }},
          {"DynamicQuantizeLinear",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).node("DynamicQuantizeLinear", {"x"}, {"y", "s", "o"});
             m.output("s").output("o", DataType::u8);
             number_output(m, DataType::u8);
           }},
          {"Einsum",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).input("z", {"b", "c"}).node("Einsum", {"x", "z"}, {"y"});
             m.set("equation", "ij,jk->ki");
             number_output(m);
           }},
          {"Expand",
           [](Onnx& m) {
             m.input("x", {"a", "1"}).input("z", {"a", "b"}).node("Shape", {"z"}, {"s"});
             m.node("Expand", {"x", "s"}, {"y"});
             number_output(m);
           }},
          {"Gather",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).i64("i", {0}, {}).node("Gather", {"x", "i"}, {"g"});
             m.node("Concat", {"x", "g"}, {"y"}).set("axis", 0);
             number_output(m);
           }},
          {"GatherElements",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).f32("zero", {}, {0}).node("Mul", {"x", "zero"}, {"f"});
             m.node("Cast", {"f"}, {"i"}).set("to", 7).node("GatherElements", {"x", "i"}, {"y"});
             number_output(m);
           }},
          {"GatherND",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).i64("i", {0, 1}, {}).node("GatherND", {"x", "i"}, {"g"});
             m.node("Concat", {"g", "x"}, {"y"}).set("axis", 0);
             number_output(m);
           }},
          {"Gemm",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).input("z", {"b", "3"}).random("c", {3});
             m.node("Gemm", {"x", "z", "c"}, {"y"}).set("alpha", 2.0F);
             number_output(m);
           }},
          {"GridSample",
           [](Onnx& m) {
             m.input("x", {"a", "b", "3", "3"}).input("g", {"a", "c", "2", "2"});
             m.node("GridSample", {"x", "g"}, {"y"});
             number_output(m);
           }},
          {"GroupNormalization",
           [](Onnx& m) {
             m.input("x", {"a", "4", "b"})
                 .random("s", {2})
                 .node("GroupNormalization", {"x", "s", "s"}, {"y"});
             m.set("num_groups", 2);
             number_output(m);
           }},
          {"InstanceNormalization",
           [](Onnx& m) {
             m.input("x", {"a", "4", "b"}).random("s", {4});
             m.node("InstanceNormalization", {"x", "s", "s"}, {"y"});
             number_output(m);
           }},
          {"LRN",
           [](Onnx& m) {
             m.input("x", {"a", "b", "c"}).node("LRN", {"x"}, {"y"}).set("size", 3);
             number_output(m);
           }},
          {"LayerNormalization",
           [](Onnx& m) {
             m.input("x", {"a", "b"})
                 .f32("one", {1}, {1})
                 .node("LayerNormalization", {"x", "one"}, {"y", "mean"});
             m.output("mean");
             number_output(m);
           }},
          {"MatMul",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).input("z", {"b", "c"}).node("MatMul", {"x", "z"}, {"y"});
             number_output(m);
           }},
          {"MatMulInteger",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).input("z", {"b", "c"}).f32("s", {}, {0.1F});
             m.node("QuantizeLinear", {"x", "s"}, {"p"}).node("QuantizeLinear", {"z", "s"}, {"q"});
             m.node("MatMulInteger", {"p", "q"}, {"y"});
             number_output(m, DataType::i32);
           }},
          {"MaxUnpool",
           [](Onnx& m) {
             m.input("x", {"a", "b", "4", "4"});
             m.node("MaxPool", {"x"}, {"p", "i"}).set("kernel_shape", List{2, 2}).set("strides", List{2, 2});
             m.node("MaxUnpool", {"p", "i"}, {"y"})
                 .set("kernel_shape", List{2, 2})
                 .set("strides", List{2, 2});
             number_output(m);
           }},
          {"MeanVarianceNormalization",
           [](Onnx& m) {
             m.input("x", {"a", "2", "b", "c"}).node("MeanVarianceNormalization", {"x"}, {"y"});
             number_output(m);
           }},
          {"MelWeightMatrix",
           [](Onnx& m) {
             m.input("x", {"a", "5"}).i64("bins", {}, {3}).i64("dft", {}, {8}).i64("rate", {}, {16000});
             m.f32("low", {}, {0}).f32("high", {}, {8000});
             m.node("MelWeightMatrix", {"bins", "dft", "rate", "low", "high"}, {"w"});
             m.node("MatMul", {"x", "w"}, {"y"});
             number_output(m);
           }},
          {"Mod",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).input("z", {"1", "b"}).node("Mod", {"x", "z"}, {"y"}).set("fmod", 1);
             number_output(m);
           }},
          {"NegativeLogLikelihoodLoss",
           [](Onnx& m) {
             m.input("x", {"a", "3"}).i64("zero", {}, {0}).i64("first", {1}, {1}).node("Shape", {"x"}, {"s"});
             m.set("end", 1).node("Expand", {"zero", "s"}, {"t"});
             m.node("NegativeLogLikelihoodLoss", {"x", "t"}, {"y"}).set("reduction", "none");
             number_output(m);
           }},
          {"NonMaxSuppression",
           [](Onnx& m) {
             m.input("x", {"1", "a", "4"}).input("z", {"1", "2", "a"}).i64("most", {1}, {3});
             m.node("NonMaxSuppression", {"x", "z", "most"}, {"y"});
             number_output(m, DataType::i64);
           }},
          {"Not",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).node("IsNaN", {"x"}, {"n"}).node("Not", {"n"}, {"y"});
             number_output(m, DataType::boolean);
           }},
          {"OneHot",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).i64("depth", {}, {3}).f32("v", {2}, {0, 1});
             m.node("Cast", {"x"}, {"i"}).set("to", 7).node("OneHot", {"i", "depth", "v"}, {"y"});
             number_output(m);
           }},
          {"Pad",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).i64("pads", {4}, {1, 0, 2, 1}).f32("v", {}, {7});
             m.node("Pad", {"x", "pads", "v"}, {"y"});
             number_output(m);
           }},
          {"QLinearConv",
           [](Onnx& m) {
             m.input("x", {"a", "2", "6", "6"}).random("w", {3, 2, 3, 3}).f32("s", {}, {0.1F});
             m.node("DynamicQuantizeLinear", {"w"}, {"v", "t", "p"})
                 .node("QuantizeLinear", {"x", "s", "p"}, {"q"});
             m.node("QLinearConv", {"q", "s", "p", "v", "t", "p", "s", "p"}, {"y"});
             number_output(m, DataType::u8);
           }},
          {"QLinearMatMul",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).input("z", {"b", "c"}).f32("s", {}, {0.1F});
             m.tensor("o", {}, DataType::u8)->add_int32_data(3);
             m.node("QuantizeLinear", {"x", "s", "o"}, {"p"}).node("QuantizeLinear", {"z", "s", "o"}, {"q"});
             m.node("QLinearMatMul", {"p", "s", "o", "q", "s", "o", "s", "o"}, {"y"});
             number_output(m, DataType::u8);
           }},
          {"QuantizeLinear",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).f32("s", {}, {0.1F}).node("QuantizeLinear", {"x", "s"}, {"y"});
             number_output(m, DataType::u8);
           }},
          {"Range",
           [](Onnx& m) {
             m.input("x", {"a"}).i64("zero", {}, {0}).i64("one", {}, {1}).node("Size", {"x"}, {"n"});
             m.node("Range", {"zero", "n", "one"}, {"r"}).node("Cast", {"r"}, {"f"}).set("to", 1);
             m.node("Add", {"f", "x"}, {"y"});
             number_output(m);
           }},
          {"Reshape",
           [](Onnx& m) {
             m.input("x", {"a", "6"}).i64("shape", {2}, {-1, 2}).node("Reshape", {"x", "shape"}, {"y"});
             number_output(m);
           }},
          {"Resize",
           [](Onnx& m) {
             m.input("x", {"a", "b", "3", "3"}).f32("scales", {4}, {1, 1, 2, 2}).f32("roi", {0}, {});
             m.node("Resize", {"x", "roi", "scales"}, {"y"});
             number_output(m);
           }},
          {"ReverseSequence",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).i64("one", {}, {1}).node("Shape", {"x"}, {"s"}).set("start", 1);
             m.node("Expand", {"zero", "s"}, {"l"}).i64("zero", {}, {0});
             m.node("ReverseSequence", {"x", "l"}, {"y"}).set("time_axis", 0).set("batch_axis", 1);
             number_output(m);
           }},
          {"RoiAlign",
           [](Onnx& m) {
             m.input("x", {"1", "a", "4", "4"}).input("r", {"b", "4"}).i64("zero", {}, {0});
             m.node("Shape", {"r"}, {"s"}).set("end", 1).node("Expand", {"zero", "s"}, {"i"});
             m.node("RoiAlign", {"x", "r", "i"}, {"y"});
             number_output(m);
           }},
          {"STFT",
           [](Onnx& m) {
             m.input("x", {"a", "16", "1"}).i64("step", {}, {4}).i64("length", {}, {8});
             m.node("STFT", {"x", "step", "", "length"}, {"y"});
             number_output(m);
           }},
          {"ScatterElements",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).i64("i", {0, 0}, {}).f32("u", {0, 0}, {});
             m.node("ScatterElements", {"x", "i", "u"}, {"y"});
             number_output(m);
           }},
          {"ScatterND",
           [](Onnx& m) {
             m.input("x", {"a", "3"}).i64("i", {0, 1}, {}).f32("u", {0, 3}, {});
             m.node("ScatterND", {"x", "i", "u"}, {"y"});
             number_output(m);
           }},
          {"Slice",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).i64("from", {1}, {3}).i64("to", {1}, {5}).i64("axis", {1}, {1});
             m.node("Slice", {"x", "from", "to", "axis"}, {"s"}).node("Transpose", {"s"}, {"t"});
             m.node("MatMul", {"s", "t"}, {"y"});
             number_output(m);
           }},
          {"SoftmaxCrossEntropyLoss",
           [](Onnx& m) {
             m.input("x", {"a", "3"}).i64("zero", {}, {0}).node("Shape", {"x"}, {"s"});
             m.set("end", 1).node("Expand", {"zero", "s"}, {"t"});
             m.node("SoftmaxCrossEntropyLoss", {"x", "t"}, {"y"}).set("reduction", "sum");
             number_output(m);
           }},
          {"SpaceToDepth",
           [](Onnx& m) {
             m.input("x", {"a", "b", "4", "4"}).node("SpaceToDepth", {"x"}, {"y"}).set("blocksize", 2);
             number_output(m);
           }},
          {"Split",
           [](Onnx& m) {
             m.input("x", {"a", "5"}).i64("parts", {2}, {0, 5});
             m.node("Split", {"x", "parts"}, {"y", "z"}).set("axis", 1).output("z");
             number_output(m);
           }},
          {"Squeeze",
           [](Onnx& m) {
             m.input("x", {"a", "1", "b"}).i64("axis", {1}, {1}).node("Squeeze", {"x", "axis"}, {"y"});
             number_output(m);
           }},
          {"TfIdfVectorizer",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).node("Cast", {"x"}, {"i"}).set("to", 7);
             m.node("TfIdfVectorizer", {"i"}, {"y"}).set("mode", "TF").set("min_gram_length", 1);
             m.set("max_gram_length", 1).set("max_skip_count", 0).set("ngram_counts", List{0});
             m.set("ngram_indexes", List{0, 1}).set("pool_int64s", List{1, 2});
             number_output(m);
           }},
          {"Tile",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).i64("times", {2}, {1, 0}).node("Tile", {"x", "times"}, {"t"});
             m.node("Concat", {"t", "x"}, {"y"}).set("axis", 1);
             number_output(m);
           }},
          {"TopK",
           [](Onnx& m) {
             m.input("x", {"a", "5"}).i64("k", {1}, {0}).node("TopK", {"x", "k"}, {"y", "i"});
             m.output("i", DataType::i64);
             number_output(m);
           }},
          {"Unique",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).node("Unique", {"x"}, {"y"});
             number_output(m);
           }},
          {"Unsqueeze",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).i64("axis", {1}, {1}).node("Unsqueeze", {"x", "axis"}, {"y"});
             number_output(m);
           }},
          {"Where",
           [](Onnx& m) {
             m.input("x", {"a", "b"}).input("z", {"1", "b"}).node("Greater", {"x", "z"}, {"c"});
             m.node("Where", {"c", "x", "z"}, {"y"});
             number_output(m);
           }},
      });
  return all;
}

// Operators without a row, and why.
const std::set<std::string_view> others{
    "Constant", "If",       "Loop", "Scan",  // are none of a plan's
    "Scatter",  "Upsample",                  // of old opsets: the newer operators' forms
};

// A run's memories, outputs of bounded extents among them; where there are no weights, none are given.
class Room {
 public:
  Room(const CompiledModel& model, const Plan& plan, const Buffers& inputs)
      : plan_(plan),
        state_(plan.make_state()),
        weights_(zero_block(model.weights())),
        workspace_(zero_block(plan.workspace())),
        has_weights_(model.weights().count > 0) {
    EXPECT_TRUE(model.write_weights(0, weights_.bytes().first(model.weights().count)).has_value());
    std::ranges::fill(workspace_.bytes(), std::byte{0xff});
    for (const auto& input : inputs) from_.push_back(input->bytes().data());
    for (const auto& spec : plan.outputs()) {
      outputs_.push_back(zero_block(graph::memory_of(spec.type, spec.shape)));
      std::ranges::fill(outputs_.back().bytes(), std::byte{0xff});
      to_.push_back(outputs_.back().bytes().data());
    }
  }
  Binding binding() {
    Binding made{.inputs = from_, .outputs = to_, .workspace = workspace_.bytes().data()};
    if (has_weights_) made.weights = weights_.bytes().data();
    made.state = state_.get();
    return made;
  }
  Result<> run() { return plan_.run({0, plan_.kernels()}, binding(), {}); }
  // Output `i`, of the extents that the run gave it.
  Result<graph::Tensor> output(std::size_t i) const {
    const auto& spec = plan_.outputs()[i];
    const auto memory = outputs_[i].bytes().first(graph::memory_of(spec.type, spec.shape).count);
    auto shape = graph::shape_in(spec.type, spec.shape, memory);
    if (!shape) return std::unexpected(shape.error());
    graph::Tensor out(TensorType{spec.type, *std::move(shape)});
    std::ranges::copy(memory.first(out.bytes().size()), out.bytes().begin());
    return out;
  }

 private:
  const Plan& plan_;
  std::unique_ptr<RunState> state_;
  graph::Tensor weights_, workspace_;
  bool has_weights_;
  std::vector<graph::Tensor> outputs_;
  std::vector<const std::byte*> from_;
  std::vector<std::byte*> to_;
};

bool is_same(const graph::Tensor& got, const graph::Tensor& want) {
  if (got.type() != want.type()) return false;
  // Rounded from sums in another order.
  if (got.type().type == DataType::u8)
    return std::ranges::equal(got.as<std::uint8_t>(), want.as<std::uint8_t>(),
                              [](int a, int b) { return std::abs(a - b) <= 1; });
  if (got.type().type != DataType::f32) return std::ranges::equal(got.bytes(), want.bytes());
  return std::ranges::equal(got.as<float>(), want.as<float>(), [](float a, float b) {
    return (std::isnan(a) && std::isnan(b)) || a == b || std::abs(a - b) <= 1e-5F * (1 + std::abs(b));
  });
}

void expect_same(const Row& row, const CompiledModel& model, const graph::Model& source,
                 const Extents& extents) {
  SCOPED_TRACE(std::string(row.op) + " at " + graph::to_text(extents));
  bool taken = true;
  for (std::size_t i = 0; i < extents.size(); ++i)
    taken = taken && (row.least.empty() || extents[i] >= row.least[i]);
  const auto plans = model.make_plans(extents, std::array{1}, nullptr);
  if (!taken) {
    ASSERT_FALSE(plans.has_value());
    EXPECT_EQ(plans.error().code, ErrorCode::invalid_argument) << plans.error().message;
    EXPECT_NE(plans.error().message.find(std::string(row.op)), std::string::npos) << plans.error().message;
    return;
  }
  ASSERT_TRUE(plans.has_value()) << plans.error().message;
  const Plan& plan = *plans->front();
  const auto graph = source.specialize_at(1, extents);
  ASSERT_TRUE(graph.has_value());
  const Buffers inputs = random_inputs(*graph, 3);
  const auto want = graph::testing::run_plainly(*graph, {inputs.begin(), inputs.end()});
  ASSERT_TRUE(want.has_value()) << want.error().message;
  Room room(model, plan, inputs);
  const auto ran = room.run();
  ASSERT_TRUE(ran.has_value()) << ran.error().message;
  for (std::size_t i = 0; i < want->size(); ++i) {
    const auto got = room.output(i);
    ASSERT_TRUE(got.has_value()) << got.error().message;
    EXPECT_EQ(got->type().shape, (*want)[i]->type().shape) << "output " << i;
    EXPECT_TRUE(is_same(*got, *(*want)[i])) << "output " << i;
  }
}

TEST(Empty, EveryOperatorAtExtentsOfNothingAndLittle) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.op);
    Onnx onnx(20);
    row.make(onnx);
    const auto source = onnx.import({.open = true, .batched = false});
    ASSERT_TRUE(source.has_value()) << source.error().message;
    const auto model =
        make_cpu_engine({.threads = 2, .choose_for = Duration{0}})->compile(**source, {.batch_sizes = {1}});
    ASSERT_TRUE(model.has_value()) << model.error().message;
    const std::size_t open = (*source)->free_dimensions().size();
    constexpr std::array<std::int64_t, 4> sizes{0, 1, 2, 5};
    std::size_t all = 1;
    for (std::size_t i = 0; i < open; ++i) all *= sizes.size();
    for (std::size_t number = 0; number < all; ++number) {
      Extents extents;
      for (std::size_t i = 0, rest = number; i < open; ++i, rest /= sizes.size())
        extents.push_back(sizes[rest % sizes.size()]);
      expect_same(row, **model, **source, extents);
    }
  }
}

TEST(Empty, NoOperatorIsLeftOut) {
  std::set<std::string_view> there(others);
  for (const Row& row : rows()) EXPECT_TRUE(there.insert(row.op).second) << row.op << " has two rows";
  for (const graph::Operator& op : graph::all_operators()) EXPECT_TRUE(there.contains(op.name)) << op.name;
}

// A model that has no weights at all, whose plans at other extents do.
TEST(Empty, ConstantsOfLaterPlansHaveAPlaceBesideNoWeights) {
  Onnx onnx(17);
  onnx.input("x", {"m", "k"}).input("z", {"k", "l"}).node("MatMul", {"x", "z"}, {"y"}).output("y");
  const auto source = onnx.import({.open = true, .batched = false});
  ASSERT_TRUE(source.has_value()) << source.error().message;
  const auto model = make_cpu_engine({.threads = 1})->compile(**source, {.batch_sizes = {1}});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ((*model)->weights().count, 0U);
  const auto plans = (*model)->make_plans(Extents{3, 0, 2}, std::array{1}, nullptr);
  ASSERT_TRUE(plans.has_value()) << plans.error().message;
  const Plan& plan = *plans->front();
  Room room(**model, plan,
            {std::make_shared<graph::Tensor>(TensorType{DataType::f32, {3, 0}}),
             std::make_shared<graph::Tensor>(TensorType{DataType::f32, {0, 2}})});
  ASSERT_TRUE(room.run().has_value());
  const auto got = room.output(0);
  ASSERT_TRUE(got.has_value()) << got.error().message;
  for (const float x : got->as<float>()) EXPECT_EQ(x, 0);
}

// A run without one of its memories is an error, whatever the plan.
TEST(Empty, ARunNamesTheMemoryThatIsMissing) {
  Onnx onnx(17);
  onnx.input("x", {"m", "4"}).random("w", {4, 4}).node("MatMul", {"x", "w"}, {"y"}).output("y");
  const auto source = onnx.import({.open = true, .batched = false});
  ASSERT_TRUE(source.has_value()) << source.error().message;
  const auto model = make_cpu_engine({.threads = 1})->compile(**source, {.batch_sizes = {1}});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const auto plans = (*model)->make_plans(Extents{3}, std::array{1}, nullptr);
  ASSERT_TRUE(plans.has_value()) << plans.error().message;
  const Plan& plan = *plans->front();
  Room room(**model, plan, {std::make_shared<graph::Tensor>(TensorType{DataType::f32, {3, 4}})});
  const auto said = [&](const Binding& binding) {
    const auto ran = plan.run({0, plan.kernels()}, binding, {});
    return ran ? std::string("it ran") : ran.error().message;
  };
  EXPECT_EQ(said(room.binding()), "it ran");
  Binding binding = room.binding();
  binding.weights = nullptr;
  EXPECT_EQ(said(binding), "a run is given no memory for the weights");
  binding = room.binding();
  const std::array<const std::byte*, 1> no_input{};
  binding.inputs = no_input;
  EXPECT_EQ(said(binding), "a run is given no memory for input 'x'");
  binding = room.binding();
  const std::array<std::byte*, 1> no_output{};
  binding.outputs = no_output;
  EXPECT_EQ(said(binding), "a run is given no memory for output 'y'");
}

}  // namespace
}  // namespace carillon::engine
