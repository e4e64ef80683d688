#include "carillon/graph/onnx_sizes.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>
#include <unistd.h>

namespace carillon::graph {
namespace {

namespace fs = std::filesystem;

class OnnxSizes : public ::testing::Test {
 protected:
  OnnxSizes() : folder_(fs::path(::testing::TempDir()) / ("carillon-sizes-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~OnnxSizes() override { fs::remove_all(folder_); }

  onnx::TensorProto& add(const std::string& name, int type, std::initializer_list<std::int64_t> dims,
                         std::size_t bytes) {
    onnx::TensorProto& tensor = *model_.mutable_graph()->add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(type);
    for (const std::int64_t extent : dims) tensor.add_dims(extent);
    tensor.set_raw_data(std::string(bytes, '\1'));
    return tensor;
  }
  onnx::NodeProto& add_node(const std::string& op, const std::string& input, const std::string& output) {
    onnx::NodeProto& node = *model_.mutable_graph()->add_node();
    node.set_op_type(op);
    node.add_input(input);
    node.add_output(output);
    return node;
  }
  std::optional<ConstantSizes> sizes() { return sizes_of(model_.SerializeAsString()); }
  std::optional<ConstantSizes> sizes_of(const std::string& bytes) {
    std::ofstream(folder_ / "model.onnx", std::ios::binary) << bytes;
    return constant_sizes(folder_ / "model.onnx");
  }

  fs::path folder_;
  onnx::ModelProto model_;
};

TEST_F(OnnxSizes, CountsWhatKernelsWant) {
  add("f32", onnx::TensorProto::FLOAT, {1000, 10}, 40'000);
  add("f16", onnx::TensorProto::FLOAT16, {1000, 10}, 20'000);
  add("bytes", onnx::TensorProto::INT8, {1000, 10}, 10'000);
  add("weights", onnx::TensorProto::INT8, {1000, 10}, 10'000);
  add_node("DequantizeLinear", "weights", "w");
  add_node("MatMul", "x", "y");
  const auto found = sizes();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->file.count, model_.ByteSizeLong());
  EXPECT_EQ(found->held, Bytes{80'000});
  EXPECT_EQ(found->widened, Bytes{80'000});  // f16, and what is dequantised
  EXPECT_EQ(found->packed, Bytes{40'000 * 3 + 10'000});
  EXPECT_EQ(found->nodes, 2U);
  EXPECT_EQ(found->to_make(), Bytes{80'000 + 80'000 + 130'000});
  add_node("BatchNormalization", "y", "z");
  EXPECT_EQ(sizes()->widened, Bytes{80'000 + 40'000});
}

TEST_F(OnnxSizes, SeesConstantsInNodesAndInGraphsInThem) {
  onnx::NodeProto& constant = add_node("Constant", "", "c");
  onnx::AttributeProto& value = *constant.add_attribute();
  value.set_name("value");
  value.mutable_t()->set_data_type(onnx::TensorProto::FLOAT);
  value.mutable_t()->add_dims(500);
  value.mutable_t()->set_raw_data(std::string(2000, '\1'));
  onnx::AttributeProto& body = *add_node("If", "c", "y").add_attribute();
  onnx::TensorProto& inside = *body.mutable_g()->add_initializer();
  inside.set_data_type(onnx::TensorProto::FLOAT);
  inside.add_dims(250);
  inside.set_raw_data(std::string(1000, '\1'));
  body.mutable_g()->add_node()->set_op_type("Relu");
  const auto found = sizes();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->held, Bytes{3000});
  EXPECT_EQ(found->nodes, 3U);
}

TEST_F(OnnxSizes, ExternalDataCountsAsFarAsItIsThere) {
  add("w", onnx::TensorProto::FLOAT, {1 << 20, 1 << 20}, 0).set_data_location(onnx::TensorProto::EXTERNAL);
  std::ofstream(folder_ / "model.onnx.data") << std::string(100'000, '\1');
  const auto found = sizes();
  ASSERT_TRUE(found);
  EXPECT_GE(found->held, Bytes{99'000});
  EXPECT_LE(found->held, Bytes{101'000});
}

TEST_F(OnnxSizes, ExternalDataIsFoundByARelativeName) {
  add("w", onnx::TensorProto::FLOAT, {25'000}, 0).set_data_location(onnx::TensorProto::EXTERNAL);
  std::ofstream(folder_ / "model.onnx.data") << std::string(100'000, '\1');
  ASSERT_TRUE(sizes());
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  const auto found = constant_sizes("model.onnx");
  fs::current_path(before);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->held, Bytes{100'000});
}

TEST_F(OnnxSizes, ExternalDataIsFoundInFoldersBesideTheFile) {
  add("w", onnx::TensorProto::FLOAT, {25'000}, 0).set_data_location(onnx::TensorProto::EXTERNAL);
  fs::create_directories(folder_ / "weights" / "all");
  std::ofstream(folder_ / "weights" / "all" / "w.bin") << std::string(100'000, '\1');
  const auto found = sizes();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->held, Bytes{100'000});
}

TEST_F(OnnxSizes, ExtentsWhoseProductWrapsAreMany) {
  const std::int64_t large = std::int64_t{1} << 32;
  add("w", onnx::TensorProto::FLOAT, {large, large}, 0).set_data_location(onnx::TensorProto::EXTERNAL);
  std::ofstream(folder_ / "model.onnx.data") << std::string(100'000, '\1');
  const auto found = sizes();
  ASSERT_TRUE(found);
  EXPECT_GE(found->held, Bytes{99'000});
}

TEST_F(OnnxSizes, SumsStopAtALimit) {
  const std::int64_t large = std::int64_t{1} << 39;
  for (int i = 0; i < 3000; ++i)
    add("", onnx::TensorProto::INT64, {large}, 0).set_data_location(onnx::TensorProto::EXTERNAL);
  // Without data, of any size.
  std::ofstream(folder_ / "model.onnx.data").close();
  std::error_code none;
  for (std::uint64_t size = std::uint64_t{1} << 52; size > 0; size /= 2) {
    fs::resize_file(folder_ / "model.onnx.data", size, none);
    if (!none) break;
  }
  const auto found = sizes();
  ASSERT_TRUE(found);
  EXPECT_GT(found->held, gib(1));
  EXPECT_LE(found->held, Bytes{std::uint64_t{1} << 50});
  EXPECT_LE(found->to_make(), Bytes{std::uint64_t{3} << 50});
}

TEST_F(OnnxSizes, ManyEmptyTensorsTakeNoMemory) {
  for (int i = 0; i < 200'000; ++i) model_.mutable_graph()->add_initializer();
  const std::string bytes = model_.SerializeAsString();
  ASSERT_TRUE(sizes_of(bytes));
  const auto peak = [] {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("VmHWM:")) return kib(std::stoull(line.substr(6)));
    return Bytes{};
  };
  if (!(std::ofstream("/proc/self/clear_refs") << "5" << std::flush)) GTEST_SKIP() << "the peak is not told";
  const Bytes before = peak();
  const auto found = constant_sizes(folder_ / "model.onnx");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->held, Bytes{});
  EXPECT_LT(peak(), before + mib(4));
}

TEST_F(OnnxSizes, WhereThereAreTooManyNamesBytesCountAsWidened) {
  for (int i = 0; i < 150'000; ++i) add("w" + std::to_string(i), onnx::TensorProto::INT8, {1}, 1);
  const auto tensors = sizes();
  ASSERT_TRUE(tensors);
  EXPECT_EQ(tensors->held, Bytes{150'000});
  EXPECT_EQ(tensors->widened, Bytes{std::uint64_t{50'000} * 4});
  EXPECT_EQ(tensors->packed, Bytes{100'000 + 50'000 * 4});
  model_.Clear();
  add("weights", onnx::TensorProto::INT8, {1000}, 1000);
  for (int i = 0; i < 100'000; ++i) add_node("DequantizeLinear", "w" + std::to_string(i), "y");
  EXPECT_EQ(sizes()->widened, Bytes{});
  add_node("DequantizeLinear", "w100000", "y");
  EXPECT_EQ(sizes()->widened, Bytes{4000});
}

TEST_F(OnnxSizes, TellsWhereConstantsMayGrow) {
  add("w", onnx::TensorProto::FLOAT, {10}, 40);
  add_node("Relu", "x", "y");
  EXPECT_FALSE(sizes()->may_grow);
  for (const char* op : {"ConstantOfShape", "Expand", "Range", "Tile"}) {
    model_.mutable_graph()->mutable_node(0)->set_op_type(op);
    EXPECT_TRUE(sizes()->may_grow) << op;
  }
  model_.mutable_graph()->mutable_node(0)->set_op_type("Relu");
  model_.add_functions()->set_name("f");
  EXPECT_TRUE(sizes()->may_grow);
}

TEST_F(OnnxSizes, WhatIsClaimedAloneIsNotThere) {
  add("w", onnx::TensorProto::FLOAT, {1 << 20, 1 << 20, 1 << 20}, 16);
  const auto found = sizes();
  ASSERT_TRUE(found);
  EXPECT_LT(found->held, Bytes{1000});
}

TEST_F(OnnxSizes, OtherFilesHaveNone) {
  EXPECT_FALSE(sizes_of(""));
  EXPECT_FALSE(sizes_of("<xml>this is none</xml>"));
  EXPECT_FALSE(constant_sizes(folder_ / "missing.onnx"));
  EXPECT_FALSE(constant_sizes(folder_));
}

TEST_F(OnnxSizes, AFileThatIsCutOffHasNoMoreThanTheWhole) {
  model_.set_producer_name("test");
  add("w", onnx::TensorProto::FLOAT, {100}, 400);
  add("h", onnx::TensorProto::FLOAT16, {100}, 200);
  add("q", onnx::TensorProto::INT8, {100}, 100);
  add_node("DequantizeLinear", "q", "d");
  add_node("BatchNormalization", "d", "y");
  // The last field is the data of a tensor: passing over it goes beyond the end.
  add_node("Constant", "", "c").add_attribute()->mutable_t()->set_raw_data(std::string(1000, '\1'));
  const std::string bytes = model_.SerializeAsString();
  const auto whole = sizes_of(bytes);
  ASSERT_TRUE(whole);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto cut = sizes_of(bytes.substr(0, length));
    if (!cut) continue;
    EXPECT_LE(cut->file, whole->file) << length;
    EXPECT_LE(cut->held, whole->held) << length;
    EXPECT_LE(cut->widened, whole->widened) << length;
    EXPECT_LE(cut->packed, whole->packed) << length;
    EXPECT_LE(cut->nodes, whole->nodes) << length;
  }
  // Of the graph nothing is believed before all of it is there.
  EXPECT_FALSE(sizes_of(bytes.substr(0, bytes.size() - 1)));
}

}  // namespace
}  // namespace carillon::graph
