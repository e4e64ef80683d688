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
  int either = 0;           // passed on our own engine or the second
  std::vector<int> passed;  // a backend
};

// Of the backends: behind plain kernels and the CPU engine; and the one after it.
constexpr std::size_t second_engine = 2, cuda_engine = 3;

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
    for (Row* row : counted) ++(claimed ? row->run : row->left_out);
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

Which operators Carillon's own engine runs, how they pass ONNX's tests, and where behaviour is special.
Made by `build/<preset>/onnx_node_suite --write-docs docs/onnx-operators.md`; a test checks that it is current.

The tests are ONNX's backend node tests of Debian's `libonnx-testdata`. Each runs in four ways: node by node with plain
kernels (plain), compiled by our own engine (cpu), by [OpenVINO](engines.md) (openvino), and compiled for an NVIDIA GPU
and run on a device in this process ([cuda](cuda.md)). Results may differ from ONNX's by 1e-3 of the value plus 1e-5, bfloat16
by one unit in its last place (ONNX's data are truncated, Carillon rounds to the nearest), integers and booleans not at all.
An input that decides a shape (Reshape's shape, Slice's starts, a Loop's trip count, ...) or has no elements
becomes a constant before import. A model whose data have another shape than it declares is declared as its data are.

A test is left out by rule only: it uses an operator or a type that is not claimed, draws random numbers without a seed, or
was made by other numbers than its model has. A claimed test that fails with plain or cpu is a failure of the test suite. cuda
refuses by name what no kernel covers.

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

  const auto claims = [](const std::string& op) {
    return graph::find_operator(op) != nullptr ||
           graph::find_training_operator("ai.onnx.preview.training", op) != nullptr;
  };
  const auto table = [&] {
    text << "| operator | run |";
    for (std::size_t b = second_engine; b < backends.size(); ++b) text << " " << backends[b]->name() << " |";
    text << "\n|---|---|";
    for (std::size_t b = second_engine; b < backends.size(); ++b) text << "---|";
    text << "\n";
    for (const auto& [op, row] : rows) {
      if (!claims(op)) continue;
      text << "| " << op << " | " << row.run << " |";
      for (std::size_t b = second_engine; b < row.passed.size(); ++b) text << " " << row.passed[b] << " |";
      text << "\n";
    }
    text << "\n";
  };
  text << "## Operators that are claimed\n\nA test counts for every operator that its graph "
          "uses. Plain kernels and cpu pass all that run.\n\n";
  table();
  std::string untested;
  for (const graph::Operator& op : graph::all_operators()) {
    const std::string name(op.name);
    if (!rows.contains(name)) untested += (untested.empty() ? "" : ", ") + name;
  }
  if (!untested.empty()) {
    text << "Claimed, but in no node test of this package: " << untested << ".\n\n";
  }
  text << R"(## Control flow

A plan is one list of kernels. Kernels of a branch that the data do not take are passed over: they take no time, and bad
data that only they would read are no error. A condition known from shapes and constants leaves no trace.

- **If**: both branches give the same types. Shapes may be [unlike](dynamic-models.md#branches-of-unlike-shapes). The condition is
  one bool for a whole batch: set `max_batch_size: 0` where each request must decide for itself. A branch that does not
  fit a request's size fails requests that take it.
- **Loop** is unrolled. Its trip count is a constant of at most 256, or its condition becomes false by constants alone within
  as many iterations. All loops of a model may come to 20,000 nodes. A condition on data may end it earlier; such a
  loop with scan outputs is refused. Carried values keep their types; their shapes may change.
- **Scan** is unrolled, for at most 256 steps; states keep type and shape. Of opset 8 without lengths.
- Graphs may be nested 16 deep. An inner graph may not give a name again.
- No operator on sequences and optionals is supported, nor SequenceMap.

## Sizes that data decide

NonZero, NonMaxSuppression, Compress and Unique give tensors whose size only a run finds. Metadata say -1 for it.

- **Memory** is planned for the most: all elements, or batches x classes x the most boxes of a class. 8400 boxes and
  80 classes without a limit a class make 672,000 rows; `max_output_boxes_per_class` as a constant makes it less. More than 2^40
  elements are refused at load.
- **What may follow**: every operator of the table but Scan. Operands that decide a shape (Reshape's shape, Slice's ends, TopK's
  k, Range's limit, ...) may be computed from such sizes by Shape and arithmetic, not from other data. These operators run as
  plain kernels, undivided.
- Operands that do not fit together (100 rows asked of 7), and results larger than planned, fail the request as bad data.
- A model with such an output does not batch: `max_batch_size: 0`, or left to the file. Its classification is refused.
- On OpenVINO likewise, where it knows the most that an output can be.

## 16-bit floats

Models in float16 and bfloat16 compute in f32 on Carillon's own engines. Inputs are converted first, outputs last. Results
are rounded only at an output, a Cast, or an operator that keeps its operands' type (QuantizeLinear, IsInf), and may differ from
step-by-step rounding by a few units in the last place. Weights take the memory of f32, but for tables that Gather
reads. A model that only moves such numbers keeps them.

## Training

Losses, steps of optimizers (Adagrad, Adam, Momentum) and BatchNormalization in training mode run. A Dropout in training
mode drops by its seed with NumPy's generator, in each run the same; without a seed its ratio must be 0.

## Classical models

Of domain ai.onnx.ml (scikit-learn, XGBoost, LightGBM) import reads TreeEnsemble, TreeEnsembleClassifier and
TreeEnsembleRegressor, LinearClassifier and LinearRegressor, SVMClassifier and SVMRegressor, Scaler, Normalizer, Imputer, Binarizer,
LabelEncoder, CategoryMapper, OneHotEncoder, ArrayFeatureExtractor and FeatureVectorizer. Results are those of onnxruntime
(`tests/test_classical.py`), but for these:

- **ZipMap** gives the tensor that it takes, one row of scores in the labels' order: there are no maps here.
- A category unknown to OneHotEncoder fails its request, unless `zeros` is 1.
- A classifier's label is always one of its labels. onnxruntime says 0 or 1 where both of two classes have weights.
- NaN among LabelEncoder's keys is found in all versions, by onnxruntime from version 4 on.
- CategoryMapper, and LabelEncoder with `classes_strings`, need their input's type in the file.
- TreeEnsemble's `post_transform` is numbered as in ONNX: onnxruntime takes 1 for LOGISTIC and 2 for SOFTMAX. A feature that is no
  whole number is no member of a set of whole ones; onnxruntime cuts off the fraction.
- Not supported: a TreeEnsemble of float16, an SVMClassifier without support vectors, DictVectorizer and CastMap.

## Texts

Texts (BYTES) are served as inputs and outputs: labels of classifiers, keys and values of LabelEncoder and CategoryMapper, categories of
OneHotEncoder, words of TfIdfVectorizer, and constants. Concat, Expand, Gather, GatherElements, GatherND, Reshape and its
like, Slice, Split, Transpose and Where move them. Results are those of onnxruntime (`tests/test_texts.py`).

- In a plan a text costs 8 bytes. The process keeps each text of its models' files once, until it ends: at most 256 MiB. A
  model that names more is refused.
- No kernel looks into texts or compares them: Equal, Cast, Unique, StringConcat, StringNormalizer, StringSplit, RegexFullMatch.
- Texts are not served where data decide how many there are, as states or controls of sequences, in warm-up requests, and by
  OpenVINO or onnxruntime.

## Quantised models

- QuantizeLinear and DequantizeLinear take uint8, int8, uint16 and int16 (int32 to dequantise), by tensor, axis or block.
  Weights are converted once: a file with weights in bytes and floats between takes the memory of floats.
- Convolutions and products of two operands in bytes run in bytes with AVX2, and MatMulInteger, ConvInteger,
  QLinearMatMul and QLinearConv sum whole numbers. Sums are exact, also without VNNI, where onnxruntime's saturate for weights of eight bits.
  Where those do not saturate, answers are within one step of the result's scale of onnxruntime's.
- In floats run convolutions in groups with weights of eight bits without VNNI, weights in blocks, 16-bit types, products of
  two tensors that change (attention's) and recurrent layers.
- A model with DynamicQuantizeLinear takes no batch from its file, as the range is of a whole tensor. With `max_batch_size` each
  request [runs by itself](dynamic-models.md#rows-that-see-each-other).
- Of domain com.microsoft: QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu, QLinearSoftmax, QLinearAveragePool,
  QLinearGlobalAveragePool, QLinearConcat, QGemm, and DynamicQuantizeLSTM, whose activations stay floats without AVX-512 with VNNI.

## Dimensions

Tensors have at most 16 dimensions. A model with more is not ready, and the reason names the node and how many there are.

## GridSample

A cubic GridSample with border padding reads border pixels around a place outside the image, as torch and onnxruntime do.
onnx.reference moves the place into the image first.

## Bad data

These fail their request (HTTP 400, `INVALID_ARGUMENT`), and others in the batch get their results:

- an index outside its axis (Gather, GatherElements, GatherND, ScatterElements, ScatterND, MaxUnpool, RoiAlign, classes of
  losses), unless the result has no elements;
- a length outside the axis (ReverseSequence);
- a division of whole numbers by 0 (Div, Mod), also of padding: a model that divides whole numbers by an input of varying
  length must not be padded with zeros.

OneHot takes an index outside for none, as ONNX says. The least whole number divided by -1 is itself, with remainder 0.

)";
  text << "## Operators that are not claimed\n\n";
  std::string unclaimed;
  for (const auto& [op, row] : rows) {
    if (!claims(op)) unclaimed += (unclaimed.empty() ? "" : ", ") + op;
  }
  text << "In node tests, which are left out below: " << unclaimed << ".\n\n";
  text << "## Tests left out, by rule\n\n`(passes)` marks those that OpenVINO passes.\n\n";
  for (const auto& [reason, names] : left_out) {
    text << "- " << reason << " (" << names.size() << "):";
    for (const std::string& name : names) text << " " << name;
    text << "\n";
  }
  return text.str();
}

}  // namespace carillon::onnx_node
