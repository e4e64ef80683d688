// The conformance suite: every ONNX backend node test with every backend. The case's name is printed before
// it runs, so a crash shows which one it was.
//
//   onnx_node_suite [--gtest_filter=plain/*]        runs the tests
//   onnx_node_suite --write-docs FILE               runs them and writes the table of operators

#include <fstream>
#include <iostream>
#include <regex>
#include <set>
#include <sstream>

#include "onnx_node/suite.h"
#include "onnx_node/table.h"
#include <gtest/gtest.h>
#include <stdlib.h>

#include "carillon/graph/operators.h"

namespace carillon::onnx_node {
namespace {

// A folder of this process that goes away with it.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "carillon-onnx-node-XXXXXX").string();
    path_ = ::mkdtemp(name.data()) != nullptr ? name : std::filesystem::temp_directory_path().string();
    owned_ = path_ == name;
  }
  ~Scratch() {
    std::error_code ignored;
    if (owned_) std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool owned_ = false;
};
const std::filesystem::path& scratch() {
  static const Scratch folder;
  return folder.path();
}

// All that the table has columns for. Error: the build has no second engine.
Result<std::vector<std::unique_ptr<Backend>>> all_backends() {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(make_plain_backend());
  backends.push_back(make_cpu_backend());
  backends.push_back(make_openvino_backend());
  if (backends.back() == nullptr)
    return fail(ErrorCode::unavailable, "OpenVINO is not there; tools/setup installs it");
  backends.push_back(make_cuda_backend());
  return backends;
}

std::vector<Case> cases_or_none() {
  auto cases = find_cases(default_folder());
  return cases ? std::move(*cases) : std::vector<Case>{};
}

class NodeTest : public testing::TestWithParam<Case> {
 protected:
  void check(Backend& backend) {
    const auto prepared = prepare(GetParam(), scratch());
    ASSERT_TRUE(prepared) << prepared.error().message;
    if (!prepared->left_out.empty()) GTEST_SKIP() << prepared->left_out;
    const auto ran = run_prepared(*prepared, backend);
    EXPECT_TRUE(ran) << ran.error().message;
  }
};
class PlainNodeTest : public NodeTest {};
class CpuNodeTest : public NodeTest {};
class CudaNodeTest : public NodeTest {
 protected:
  // How many of the tests the CUDA engine has to cover: fewer would be kernels that were lost.
  static constexpr int least_covered = 399;
  static inline int tried = 0, covered = 0;
  static void TearDownTestSuite() {
    if (tried != static_cast<int>(cases_or_none().size())) return;  // some were filtered out
    EXPECT_GE(covered, least_covered);
    std::cout << "the CUDA engine covers " << covered << " of " << tried << " tests\n";
  }
};

TEST_P(PlainNodeTest, Agrees) {
  static const auto backend = make_plain_backend();
  check(*backend);
}
TEST_P(CpuNodeTest, Agrees) {
  static const auto backend = make_cpu_backend();
  check(*backend);
}

TEST_P(CudaNodeTest, Agrees) {
  ++tried;
  static const auto backend = make_cuda_backend();
  const auto prepared = prepare(GetParam(), scratch());
  ASSERT_TRUE(prepared) << prepared.error().message;
  if (!prepared->left_out.empty()) GTEST_SKIP() << prepared->left_out;
  const auto ran = run_prepared(*prepared, *backend);
  if (!ran && ran.error().code == ErrorCode::unsupported) GTEST_SKIP() << ran.error().message;
  EXPECT_TRUE(ran) << ran.error().message;
  covered += ran ? 1 : 0;
}

const auto case_name = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(plain, PlainNodeTest, testing::ValuesIn(cases_or_none()), case_name);
INSTANTIATE_TEST_SUITE_P(cuda, CudaNodeTest, testing::ValuesIn(cases_or_none()), case_name);
INSTANTIATE_TEST_SUITE_P(cpu, CpuNodeTest, testing::ValuesIn(cases_or_none()), case_name);

TEST(NodeSuite, IsInstalled) {
  const auto cases = find_cases(default_folder());
  ASSERT_TRUE(cases) << cases.error().message;
  EXPECT_GT(cases->size(), 900U);
}

TEST(NodeSuite, ComparisonSeesDifferences) {
  using graph::Tensor;
  const Tensor one = Tensor::of_f32({2}, std::vector<float>{1, 2});
  EXPECT_TRUE(compare(0, one, Tensor::of_f32({2}, std::vector<float>{1, 2.001F})));
  EXPECT_FALSE(compare(0, one, Tensor::of_f32({2}, std::vector<float>{1, 2.01F})));
  EXPECT_FALSE(compare(0, one, Tensor::of_f32({2, 1}, std::vector<float>{1, 2})));
  EXPECT_FALSE(compare(0, one, Tensor::of_i64({2}, std::vector<std::int64_t>{1, 2})));
}

// Answers zeros of the right types.
class Forgetful : public Backend {
 public:
  std::string_view name() const override { return "forgetful"; }
  Result<std::vector<graph::Tensor>> run(const Prepared& test) override {
    const auto model = import_test(test);
    if (!model) return std::unexpected(model.error());
    std::vector<graph::Tensor> outputs;
    for (const auto& spec : (*model)->outputs())
      outputs.emplace_back(graph::TensorType{spec.type, spec.shape_at(1)});
    return outputs;
  }
};
TEST(NodeSuite, AWrongAnswerIsAFailure) {
  const auto prepared = prepare({"test_add", default_folder() / "test_add"}, scratch());
  ASSERT_TRUE(prepared) << prepared.error().message;
  Forgetful backend;
  const auto ran = run_prepared(*prepared, backend);
  ASSERT_FALSE(ran);
  EXPECT_NE(ran.error().message.find("element 0 is 0"), std::string::npos) << ran.error().message;
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

TEST(NodeSuite, ThePageNamesAllOperators) {
  const std::string page = text_of(std::filesystem::path(CARILLON_SOURCE_DIR) / "docs/onnx-operators.md");
  const std::size_t begin = page.find("<!-- operators -->"), end = page.find("<!-- end of operators -->");
  ASSERT_LT(begin, end);
  std::set<std::string> named, known;
  for (const char* step : {"Adagrad", "Adam", "Momentum"})
    if (graph::find_training_operator("ai.onnx.preview.training", step) != nullptr) known.emplace(step);
  const std::regex name("[A-Z][A-Za-z0-9]*");
  const std::string list = page.substr(begin, end - begin);
  for (auto i = std::sregex_iterator(list.begin(), list.end(), name); i != std::sregex_iterator(); ++i)
    named.insert(i->str());
  for (const graph::Operator& op : graph::all_operators()) known.emplace(op.name);
  EXPECT_EQ(named, known);
}

TEST(NodeSuite, TableOfOperatorsIsCurrent) {
  const std::filesystem::path file =
      std::filesystem::path(CARILLON_SOURCE_DIR) / "bench/measured/onnx-operators.md";
  const std::string committed = text_of(file);
  const auto backends = all_backends();
  if (!backends) GTEST_SKIP() << backends.error().message;
  const auto table = make_table(cases_or_none(), *backends, scratch());
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_TRUE(*table == committed)
      << file << " is not what the tests say now: run onnx_node_suite --write-docs on it";
}

int write_docs(const char* file) {
  const auto cases = find_cases(default_folder());
  if (!cases) {
    std::cerr << cases.error().message << "\n";
    return 1;
  }
  const auto backends = all_backends();
  if (!backends) {
    std::cerr << backends.error().message << "\n";
    return 1;
  }
  const auto table = make_table(*cases, *backends, scratch());
  if (!table) {
    std::cerr << table.error().message << "\n";
    return 1;
  }
  std::ofstream stream(file);
  stream << *table;
  if (!stream.flush()) {
    std::cerr << file << " cannot be written\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace carillon::onnx_node

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--write-docs")
    return carillon::onnx_node::write_docs(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) {
    std::cerr << "unknown option " << argv[1] << "\nusage: " << argv[0]
              << " [--write-docs FILE | GoogleTest's options]\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}
