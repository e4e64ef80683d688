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
  EXPECT_TRUE(known_models(entries_, {}).all_weights);
  const auto before = entries_;
  add("expand.onnx", with_node("Expand"));
  EXPECT_FALSE(known_models(entries_, {}).all_weights);
  entries_ = before;
  add("model.xml", "<net/>");
  EXPECT_FALSE(known_models(entries_, {}).all_weights);
}

// ModelProto.graph, GraphProto.initializer of so many floats: TensorProto's dims, data_type and raw_data.
std::string with_weights(std::size_t floats) {
  const auto varint = [](std::size_t n) {
    std::string out;
    for (; n > 127; n /= 128) out += static_cast<char>(n % 128 + 128);
    return out + static_cast<char>(n);
  };
  const auto long_field = [&](char tag, const std::string& bytes) {
    return tag + varint(bytes.size()) + bytes;
  };
  const std::string tensor = std::string("\x08") + varint(floats) + "\x10\x01" + long_field(0x42, "w") +
                             long_field(0x4a, std::string(floats * 4, '\0'));
  return long_field(0x3a, long_field(0x2a, tensor));
}

TEST_F(KnownModelsTest, WithoutAStoreWeightsStayBesideThoseThatAreLoaded) {
  add("one.onnx", with_weights(100'000));
  add("two.onnx", with_weights(200'000));
  const KnownModels stored = known_models(entries_, {}), stay = known_models(entries_, {.stay = true});
  ASSERT_GE(stored.largest_weights, Bytes{800'000});
  EXPECT_EQ(stay.largest_weights, stored.largest_weights);
  EXPECT_GE(stay.memory, stored.memory + Bytes{400'000}) << "those of one, while the other is made";
  EXPECT_LT(stay.memory, stored.memory + Bytes{800'000}) << "which counts once";
  EXPECT_GE(stay.measured, stay.largest_weights + Bytes{1'200'000});
  EXPECT_EQ(stored.measured, stored.largest_weights) << "and no nodes";
}

TEST_F(KnownModelsTest, ModelsThatComeWithOnePlanWantLess) {
  add("relu.onnx", with_node("Relu"));
  const Bytes all = known_models(entries_, {}).memory;
  const Bytes one = known_models(entries_, {.later = true}).memory;
  EXPECT_LT(one, all);
  EXPECT_GE(one, kib(32)) << "a kernel";
  // Those that have all plans before they serve want as much as ever.
  entries_.front().config->real_time_requests = true;
  EXPECT_EQ(known_models(entries_, {.later = true}).memory, all);
}

}  // namespace
}  // namespace carillon::cli
