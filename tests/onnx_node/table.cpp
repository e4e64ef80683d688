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
  text << R"(# ONNX's node tests

[docs/onnx-operators.md](../../docs/onnx-operators.md) says what the operators do here.
Made by `build/<preset>/onnx_node_suite --write-docs bench/measured/onnx-operators.md`; a test checks that it is current.

The tests are ONNX's backend node tests of Debian's `libonnx-testdata`. Each runs in four ways: node by node with plain
kernels (plain), compiled by our own engine (cpu), by [OpenVINO](../../docs/engines.md) (openvino), and compiled for an
NVIDIA GPU and run on a device in this process ([cuda](../../docs/cuda.md)). Results may differ from ONNX's by 1e-3 of the
value plus 1e-5, bfloat16 by one unit in its last place (ONNX's data are truncated, Carillon rounds to the nearest),
integers and booleans not at all. An input that decides a shape (Reshape's shape, Slice's starts, a Loop's trip count, ...)
or has no elements becomes a constant before import. A model whose data have another shape than it declares is declared as
its data are.

A test is left out by rule only: it uses an operator or a type that is not claimed, draws random numbers without a seed, or
was made by other numbers than its model has. A claimed test that fails with plain or cpu is a failure of the test suite.
cuda refuses by name what no kernel covers.

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
