#include "carillon/graph/onnx_sizes.h"

#include <fstream>
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
  add("w", onnx::TensorProto::FLOAT, {1000}, 4000);
  const std::string whole = model_.SerializeAsString();
  for (std::size_t length = 0; length < 64; ++length) (void)sizes_of(whole.substr(0, length));
}

}  // namespace
}  // namespace carillon::graph
