#include "onnx_node/table.h"

#include <map>
#include <set>
#include <sstream>

#include "carillon/graph/operators.h"

namespace carillon::onnx_node {
namespace {

struct Row {
  int left_out = 0;  // by our own engine
  int run = 0;
  int either = 0;                  // passed on our own engine or the second
  std::vector<int> passed;         // a backend
  std::map<std::string, int> why;  // reason: tests
};

// Of the backends: behind plain kernels and the CPU engine; and the one after it.
constexpr std::size_t second_engine = 2, cuda_engine = 3;

std::string reasons(const Row& row) {
  std::string text;
  for (const auto& [reason, count] : row.why) {
    text += (text.empty() ? "" : "; ") + reason + " (" + std::to_string(count) + ")";
  }
  return text;
}

}  // namespace

Result<std::string> make_table(const std::vector<Case>& cases,
                               const std::vector<std::unique_ptr<Backend>>& backends,
                               const std::filesystem::path& scratch) {
  std::map<std::string, Row> rows;
  Row total;
  total.passed.resize(backends.size());
  std::vector<std::string> failures;
  std::map<std::string, std::vector<std::string>> left_out;
  for (const Case& test : cases) {
    const auto prepared = prepare(test, scratch);
    if (!prepared) return in_context(test.name, prepared.error());
    std::vector<Row*> counted{&total};
    for (const std::string& op : prepared->operators) {
      Row& row = rows[op];
      row.passed.resize(backends.size());
      counted.push_back(&row);
    }
    const bool claimed = prepared->left_out.empty();
    for (Row* row : counted) {
      ++(claimed ? row->run : row->left_out);
      if (!claimed) ++row->why[prepared->left_out];
    }
    bool passed = false;
    for (std::size_t b = 0; b < backends.size() && !prepared->model.empty(); ++b) {
      const bool second = b == second_engine;
      if (!claimed && !second) continue;
      const auto ran = run_prepared(*prepared, *backends[b]);
      // What no CUDA kernel covers is refused.
      const bool refused = b == cuda_engine && !ran && ran.error().code == ErrorCode::unsupported;
      if (!ran && !second && !refused)
        failures.push_back("- `" + test.name + "` (" + std::string(backends[b]->name()) + ")");
      if (!ran) continue;
      for (Row* row : counted) ++row->passed[b];
      passed = passed || (b > 0 && b != cuda_engine);
    }
    for (Row* row : counted) row->either += passed ? 1 : 0;
    if (!claimed) left_out[prepared->left_out].push_back(test.name + (passed ? " (passes)" : ""));
  }

  std::ostringstream text;
  text << R"(# ONNX operators and their conformance

Made by `build/<preset>/onnx_node_suite --write-docs docs/onnx-operators.md`; a test checks that it is current.

The tests are ONNX's backend node tests as Debian's `libonnx-testdata` has them. Each runs in four ways: node by
node with the plain kernels (plain), compiled by our own engine (cpu), by the second engine, OpenVINO
(openvino), which a model goes to that ours cannot hold (docs/engines.md), and compiled for an NVIDIA GPU and run on a
device in this process (cuda), which refuses by name what no kernel covers (docs/cuda.md). Results may differ from ONNX's by 1e-3
of the value plus 1e-5; bfloat16 by one unit in its last place (ONNX's data was made by truncation, Carillon rounds
to the nearest); integers and booleans not at all. Where a test feeds an operand that decides a shape as an input
(Reshape's shape, Slice's starts, a Loop's trip count, ...), or an input has no elements, it becomes a constant
before import; where its data are not of the shape that its model declares, the model is declared as they are.

A test is left out of what our own engine is held to by rule only: it uses an operator or an element type that is
not claimed, draws random numbers without a seed, or was made by other numbers than its model has. A claimed test
that fails is a failure of the test suite; the second engine is not held to any.

)";
  text << "| tests | left out | run |";
  for (const auto& backend : backends) text << " pass (" << backend->name() << ") |";
  text << " pass (cpu or openvino) |\n|---|---|---|";
  for (std::size_t b = 0; b < backends.size(); ++b) text << "---|";
  text << "---|\n| " << cases.size() << " | " << total.left_out << " | " << total.run << " |";
  for (const int passed : total.passed) text << " " << passed << " |";
  text << " " << total.either << " |\n\n";
  if (!failures.empty()) {
    text << "## Failures\n\n";
    for (const std::string& failure : failures) text << failure << "\n";
    text << "\n";
  }

  const auto table = [&](bool claimed) {
    text << "| operator | tests | left out | run |";
    for (const auto& backend : backends) text << " pass (" << backend->name() << ") |";
    text << " why left out |\n|---|---|---|---|";
    for (std::size_t b = 0; b < backends.size(); ++b) text << "---|";
    text << "---|\n";
    for (const auto& [op, row] : rows) {
      const bool ours = graph::find_operator(op) != nullptr ||
                        graph::find_training_operator("ai.onnx.preview.training", op) != nullptr;
      if (ours != claimed) continue;
      text << "| " << op << " | " << row.left_out + row.run << " | " << row.left_out << " | " << row.run
           << " |";
      for (const int passed : row.passed) text << " " << passed << " |";
      text << " " << reasons(row) << " |\n";
    }
    text << "\n";
  };
  text << "## Operators that are claimed\n\nA test counts for every operator that its graph uses.\n\n";
  table(true);
  std::string untested;
  for (const graph::Operator& op : graph::all_operators()) {
    const std::string name(op.name);
    if (!rows.contains(name)) untested += (untested.empty() ? "" : ", ") + name;
  }
  if (!untested.empty()) {
    text << "Claimed, but in no node test of this package: " << untested << ".\n\n";
  }
  text << R"(## Control flow

A plan is one list of kernels, known in advance. So a branch's nodes stand in the list too, and at run time the
kernels of a branch that the data does not take are passed over; they take no time, and bad data that only they would
read is no error. A condition that is known from shapes and constants leaves no trace, nor does the other branch.

- **If**: both branches must give the same types. Their shapes may be unlike, also where the condition depends on data
  ([dynamic-models.md](dynamic-models.md#branches-of-unlike-shapes)). The condition is one
  bool for a whole batch: rows that are served together take one branch. Where rows must decide for themselves, set
  `max_batch_size: 0`. A branch whose shapes do not fit together at a request's size is left out, and the request
  fails where it would be taken.
- **Loop** is unrolled. Its trip count must be a constant of at most 256, or its condition must become false, by
  constants alone, within as many iterations. All loops of a model may come to 20,000 nodes. A condition that depends
  on data may end it earlier: then it cannot have scan outputs, whose length nobody would know. The values that it
  carries keep their types; their shapes may change.
- Graphs may be nested 16 deep. A name may not be given again in a graph inside.
- **Scan** is unrolled as Loop is, for at most 256 steps; its states keep type and shape. Of opset 8 without lengths.
- SequenceMap is not supported, and no operator on sequences and optionals.

## Sizes that data decide

NonZero, NonMaxSuppression, Compress and Unique give tensors whose size only a run finds. At load they have the most
that it can be (all elements; batches x classes x the most boxes of a class), and so has what is made of them: memory is
planned by that. A run computes with what is there, and an answer has the size that was found, which may be no
elements. Metadata say -1 for such a dimension.

- **What may follow**: every operator of the table below but Scan.
  Operands that decide a shape (Reshape's shape, Slice's ends, TopK's k, Range's limit, ...) may be computed from such
  sizes by Shape and arithmetic, too; not from other data. These operators run as plain kernels, undivided.
- **Memory** is that of the most: an input of 8400 boxes and 80 classes without a limit a class is planned with 672,000
  rows. `max_output_boxes_per_class` as a constant makes it less. More than 2^40 elements are refused at load.
- Data with which operands do not fit together (100 rows asked of 7), or a result is larger than it could be with the
  most of everything, fail the request as bad data do.
- A model with such an output does not batch: set `max_batch_size: 0`, where the config does not leave it to the file.
  Classification of such an output is refused.
- On the second engine likewise, where OpenVINO knows the most that an output can be.

## 16-bit floats

Models in float16 and bfloat16 compute in f32 on every engine of ours. Inputs are converted first, outputs last. Results
are rounded to 16 bits only at an output, a Cast, or an operator that keeps its operands' type (QuantizeLinear, IsInf), so
they may differ from step-by-step rounding by a few units in the last place. Weights take the memory of f32, but for tables
that Gather reads. A model that only moves such numbers keeps them.

## Training

Losses (NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss), steps of optimizers (Adagrad, Adam, Momentum) and
BatchNormalization in training mode are functions of their inputs like others, and run. A Dropout in training mode drops
what its seed says, by NumPy's generator, in each run the same; without one its ratio must be 0.

## Classical models

Of domain ai.onnx.ml, which scikit-learn's, XGBoost's and LightGBM's models are exported in, import
puts these as standard operators and few of its own: TreeEnsemble, TreeEnsembleClassifier and TreeEnsembleRegressor,
LinearClassifier and LinearRegressor, SVMClassifier and SVMRegressor, Scaler, Normalizer, Imputer, Binarizer,
LabelEncoder, CategoryMapper, OneHotEncoder, ArrayFeatureExtractor and FeatureVectorizer. Results are those of onnxruntime
(`tests/test_classical.py`).

- **ZipMap** gives the tensor that it takes, one row of scores in the labels' order: there are no maps here.
- A category that OneHotEncoder does not know fails its request, as an index out of range does, unless `zeros` is 1.
- A classifier's label is always one of its labels. onnxruntime says 0 or 1 where both of two classes have weights.
- NaN among LabelEncoder's keys is found in all versions. onnxruntime finds it from version 4 on.
- CategoryMapper, and LabelEncoder with `classes_strings`, need their input's type in the file: it says which way they go.
- TreeEnsemble's `post_transform` is numbered as ONNX has it: onnxruntime takes 1 for LOGISTIC and 2 for SOFTMAX. A
  feature that is no whole number is no member of a set of whole ones; onnxruntime looks at what is before the point.
- Not supported: a TreeEnsemble of float16, an SVMClassifier without support vectors, DictVectorizer and CastMap.

## Texts

Texts are served both ways (BYTES): labels of classifiers, keys and values of LabelEncoder and
CategoryMapper, categories of OneHotEncoder, words of TfIdfVectorizer, and constants. Between, Concat, Expand, Gather,
GatherElements, GatherND, Reshape and its like, Slice, Split, Transpose and Where move them. Results are those of
onnxruntime (`tests/test_texts.py`).

In a plan a text is a number of 8 bytes that stands for it, so it costs what an int64 does. The process keeps each text of
its models' files once, until it ends: at most 256 MiB, and a model that names more is refused. A request's texts that no
model names are keys of no table; where an output may give them, they are kept with the request until its answer. So

- operators that look into texts or compare them have no kernel: Equal, Cast, Unique, StringConcat, StringNormalizer,
  StringSplit, RegexFullMatch;
- texts are not served where data decide how many there are, as states or controls of sequences, in warm-up requests, and
  by the second engine.

## Quantised models

QuantizeLinear and DequantizeLinear take uint8, int8, uint16 and int16 (int32 to dequantise), by tensor, axis or block.
What they make of weights is computed once, so a file of weights in bytes and floats between runs as one of floats,
and takes their memory. MatMulInteger, ConvInteger, QLinearMatMul and QLinearConv sum whole numbers.

Convolutions and products whose operands both are bytes, by DequantizeLinear or in operators of whole numbers, run in
bytes on processors with AVX2. Their sums are exact, also without VNNI, where onnxruntime's saturate for weights of
eight bits. Where onnxruntime's do not saturate, answers are within one step of the result's scale of onnxruntime's.
Convolutions in groups with weights of eight bits run in floats without VNNI. Weights in blocks, 16-bit types, products of two tensors
that change (attention's) and recurrent layers run in floats.

A model with DynamicQuantizeLinear takes no batch from its file: the range is of a whole tensor, so another's rows in the
batch would change the answer. With `max_batch_size` in its config each request runs by itself (docs/dynamic-models.md).

Of onnxruntime's own operators (domain com.microsoft) those that its quantisers write are read as standard ones:
QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu, QLinearSoftmax, QLinearAveragePool,
QLinearGlobalAveragePool, QLinearConcat, QGemm, and DynamicQuantizeLSTM, whose activations stay floats where the
processor has no AVX-512 with VNNI.

## Dimensions

Tensors have at most 16 dimensions. A model with more is not ready, and the reason names the node and how many there are.

## GridSample

A cubic GridSample whose padding is the border reads border pixels around a place outside the image, as torch and
onnxruntime do. onnx.reference moves the place into the image first.

## Bad data

An index outside its axis (Gather, GatherElements, GatherND, ScatterElements, ScatterND, MaxUnpool, RoiAlign, the
classes of losses), a length outside the axis (ReverseSequence) and a division of whole numbers by 0 (Div, Mod) fail the
request that asks for it, with HTTP 400 or `INVALID_ARGUMENT`; others in its batch get their results. Where the result has no elements nothing is looked up, and no index refused. OneHot takes an index outside for none, as ONNX says. The
least whole number divided by -1 is itself, and leaves nothing over. Divisions look at what a request is filled up with,
too: a model that divides whole numbers by an input that varies in length must not be padded with zeros.

)";
  text << "## Operators that are not\n\n";
  table(false);
  text << "## Tests left out, by rule\n\nThose marked pass with the second engine.\n\n";
  for (const auto& [reason, names] : left_out) {
    text << "- " << reason << " (" << names.size() << "):";
    for (const std::string& name : names) text << " " << name;
    text << "\n";
  }
  return text.str();
}

}  // namespace carillon::onnx_node
