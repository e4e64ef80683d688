#include "carillon/cli/memory_bound.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

namespace carillon::cli {
namespace {

namespace fs = std::filesystem;

std::string field(char tag, const std::string& bytes) {
  return std::string{tag, static_cast<char>(bytes.size())} + bytes;
}

// An ONNX file with a node of the operator: ModelProto.graph, GraphProto.node, NodeProto.op_type.
std::string with_node(const std::string& op) {
  return field(0x3a, field(0x0a, field(0x22, op)));
}

class KnownModelsTest : public ::testing::Test {
 protected:
  KnownModelsTest()
      : folder_(fs::path(::testing::TempDir()) / ("carillon-known-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~KnownModelsTest() override { fs::remove_all(folder_); }

  void add(const std::string& name, const std::string& bytes) {
    const fs::path file = folder_ / name;
    std::ofstream(file, std::ios::binary) << bytes;
    entries_.push_back({.name = name,
                        .folder = folder_,
                        .config = repository::ModelConfig{},
                        .versions = {{.version = 1, .file = file}}});
  }

  fs::path folder_;
  std::vector<repository::RepositoryEntry> entries_;
};

TEST_F(KnownModelsTest, AllWeightsAreKnownWhereEachFileTellsThem) {
  add("relu.onnx", with_node("Relu"));
  EXPECT_TRUE(known_models(entries_).all_weights);
  const auto before = entries_;
  add("expand.onnx", with_node("Expand"));
  EXPECT_FALSE(known_models(entries_).all_weights);
  entries_ = before;
  add("model.xml", "<net/>");
  EXPECT_FALSE(known_models(entries_).all_weights);
}

}  // namespace
}  // namespace carillon::cli
