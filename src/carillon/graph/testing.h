#pragma once

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include "carillon/base/random.h"
#include "carillon/base/testing/folder.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/guards.h"
#include "carillon/graph/kernel.h"
#include "carillon/graph/model.h"
#include "carillon/graph/onnx_tensor.h"

// For tests of this layer: ONNX models built by hand, and graphs run by plain kernels.
namespace carillon::graph::testing {

using carillon::testing::Folder;

using Dims = std::vector<std::string>;  // numbers, or symbols

// Writes an ONNX model step by step.
class Onnx {
 public:
  explicit Onnx(int opset = 17, std::uint64_t seed = 7) : random_(seed) {
    proto.set_ir_version(8);
    proto.add_opset_import()->set_version(opset);
    proto.mutable_graph()->set_name("test");
  }

  Onnx& input(const std::string& name, const Dims& dims, DataType type = DataType::f32) {
    describe(*proto.mutable_graph()->add_input(), name, dims, type);
    return *this;
  }
  Onnx& output(const std::string& name, DataType type = DataType::f32) {
    auto* info = proto.mutable_graph()->add_output();
    info->set_name(name);
    info->mutable_type()->mutable_tensor_type()->set_elem_type(static_cast<int>(to_onnx_type(type)));
    return *this;
  }
  // The node stays valid until the next one is added; give it attributes with set().
  Onnx& node(const std::string& op, const std::vector<std::string>& inputs,
             const std::vector<std::string>& outputs, const std::string& name = "") {
    auto* node = proto.mutable_graph()->add_node();
    node->set_op_type(op);
    node->set_name(name);
    for (const auto& i : inputs) node->add_input(i);
    for (const auto& o : outputs) node->add_output(o);
    return *this;
  }
  Onnx& set(const std::string& name, std::int64_t value) {
    auto& a = attribute(name, onnx::AttributeProto::INT);
    a.set_i(value);
    return *this;
  }
  Onnx& set(const std::string& name, int value) { return set(name, std::int64_t{value}); }
  Onnx& set(const std::string& name, float value) {
    attribute(name, onnx::AttributeProto::FLOAT).set_f(value);
    return *this;
  }
  Onnx& set(const std::string& name, const char* value) {
    attribute(name, onnx::AttributeProto::STRING).set_s(value);
    return *this;
  }
  Onnx& set(const std::string& name, const std::vector<std::int64_t>& values) {
    auto& a = attribute(name, onnx::AttributeProto::INTS);
    for (const auto v : values) a.add_ints(v);
    return *this;
  }
  Onnx& texts(const std::string& name, const std::vector<std::string>& values) {
    auto& a = attribute(name, onnx::AttributeProto::STRINGS);
    for (const auto& v : values) a.add_strings(v);
    return *this;
  }
  // The graph of `other` as an attribute: a branch, a loop's body.
  Onnx& set(const std::string& name, const Onnx& other) {
    *attribute(name, onnx::AttributeProto::GRAPH).mutable_g() = other.proto.graph();
    return *this;
  }
  Onnx& f32(const std::string& name, const Shape& dims, const std::vector<float>& values) {
    auto* t = tensor(name, dims, DataType::f32);
    t->set_raw_data(values.data(), values.size() * sizeof(float));
    return *this;
  }
  Onnx& i64(const std::string& name, const Shape& dims, const std::vector<std::int64_t>& values) {
    auto* t = tensor(name, dims, DataType::i64);
    for (const auto v : values) t->add_int64_data(v);
    return *this;
  }
  // Reproducible numbers in [-1, 1), or in [0.5, 1.5) where `positive`.
  Onnx& random(const std::string& name, const Shape& dims, bool positive = false) {
    const auto count = static_cast<std::size_t>(TensorType{DataType::f32, dims}.elements());
    std::vector<float> values(count);
    for (float& v : values)
      v = static_cast<float>(positive ? random_.uniform() + 0.5 : random_.uniform() * 2 - 1);
    return f32(name, dims, values);
  }
  onnx::TensorProto* tensor(const std::string& name, const Shape& dims, DataType type) {
    auto* t = proto.mutable_graph()->add_initializer();
    t->set_name(name);
    t->set_data_type(static_cast<int>(to_onnx_type(type)));
    for (const auto d : dims) t->add_dims(d);
    return t;
  }

  std::string bytes() const { return proto.SerializeAsString(); }

  Result<std::shared_ptr<const Model>> import(const ImportOptions& options = {}) const {
    const Folder folder;
    return import_onnx(folder.write("model.onnx", bytes()), options);
  }

  onnx::ModelProto proto;

 private:
  static void describe(onnx::ValueInfoProto& info, const std::string& name, const Dims& dims, DataType type) {
    info.set_name(name);
    auto* tensor = info.mutable_type()->mutable_tensor_type();
    tensor->set_elem_type(static_cast<int>(to_onnx_type(type)));
    tensor->mutable_shape();
    for (const auto& d : dims) {
      auto* dim = tensor->mutable_shape()->add_dim();
      if (!d.empty() && (std::isdigit(d[0]) != 0 || d[0] == '-'))
        dim->set_dim_value(std::stoll(d));
      else
        dim->set_dim_param(d);
    }
  }
  onnx::AttributeProto& attribute(const std::string& name, onnx::AttributeProto::AttributeType type) {
    auto* a = proto.mutable_graph()->mutable_node(proto.graph().node_size() - 1)->add_attribute();
    a->set_name(name);
    a->set_type(type);
    return *a;
  }

  Random random_;
};

// Runs every node whose guard holds by its plain kernel, post-ops included. What the others make is filled
// with ones, so that who reads it shows. `ran`, where not null, gets the names of the nodes that ran.
inline Result<std::vector<SharedTensor>> run_plainly(const Graph& graph,
                                                     const std::vector<SharedTensor>& inputs,
                                                     std::vector<std::string>* ran = nullptr) {
  std::vector<SharedTensor> values(graph.values.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i) values[i] = graph.values[i].constant;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) values[graph.inputs[i].index()] = inputs[i];
  const auto is_true = [&](ValueId id) { return values[id.index()]->bytes()[0] != std::byte{0}; };
  for (const Node& node : graph.nodes) {
    if (!holds(graph.guards, node.guard, is_true)) {
      for (const ValueId id : node.outputs) {
        if (id == no_value) continue;
        auto unmade = std::make_shared<Tensor>(graph.value(id).type);
        std::ranges::fill(unmade->bytes(), std::byte{0xff});
        values[id.index()] = unmade;
      }
      continue;
    }
    if (ran != nullptr) ran->push_back(node.name);
    if (node.op == bounded_node) {
      BoundedNode late(graph, node);
      std::vector<ConstView> from;
      for (const ValueId id : node.inputs)
        from.push_back(id == no_value
                           ? ConstView{}
                           : ConstView{&values[id.index()]->type(), values[id.index()]->bytes().data()});
      std::vector<std::shared_ptr<Tensor>> room;
      std::vector<std::byte*> to;
      for (const ValueId id : node.outputs) {
        room.push_back(id == no_value ? nullptr : std::make_shared<Tensor>(graph.value(id).type));
        to.push_back(id == no_value ? nullptr : room.back()->bytes().data());
      }
      if (auto ok = late.run(from, to); !ok) return std::unexpected(ok.error());
      for (std::size_t i = 0; i < to.size(); ++i) {
        if (to[i] == nullptr) continue;
        auto found = std::make_shared<Tensor>(late.results()[i]);
        std::ranges::copy(room[i]->bytes().first(found->bytes().size()), found->bytes().begin());
        values[node.outputs[i].index()] = std::move(found);
      }
      continue;
    }
    std::vector<const TensorType*> types;
    std::vector<ConstView> from;
    for (const ValueId id : node.inputs) {
      const bool there = id != no_value;
      types.push_back(there ? &graph.value(id).type : nullptr);
      from.push_back(there ? ConstView{types.back(), values[id.index()]->bytes().data()} : ConstView{});
    }
    std::vector<std::shared_ptr<Tensor>> made;
    std::vector<MutableView> to;
    for (const ValueId id : node.outputs) {
      made.push_back(id == no_value ? nullptr : std::make_shared<Tensor>(graph.value(id).type));
      to.push_back(id == no_value ? MutableView{}
                                  : MutableView{&made.back()->type(), made.back()->bytes().data()});
    }
    const PlainKernel kernel = find_plain_kernel(node, types);
    if (kernel == nullptr)
      return fail(ErrorCode::unsupported, "no plain kernel for node '" + node.name + "' (" + node.op + ")");
    if (auto ok = kernel(node, from, to); !ok) return std::unexpected(ok.error());
    if (!node.post_ops.empty()) {
      std::vector<ConstView> operands;
      for (const PostOp& post : node.post_ops)
        operands.push_back(
            post.operand == no_value
                ? ConstView{}
                : ConstView{&graph.value(post.operand).type, values[post.operand.index()]->bytes().data()});
      apply_post_ops(node, operands, to[0]);
    }
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i] != no_value) values[node.outputs[i].index()] = made[i];
  }
  std::vector<SharedTensor> outputs;
  for (const ValueId id : graph.outputs) outputs.push_back(values[id.index()]);
  return outputs;
}

// Reproducible contents: floats in [-2, 2), small whole numbers of the other types.
inline SharedTensor random_tensor(const TensorType& type, Random& random) {
  Tensor tensor(type);
  if (type.type == DataType::f32)
    for (float& v : tensor.as<float>()) v = static_cast<float>(random.uniform() * 4 - 2);
  else if (type.type == DataType::i64)
    for (std::int64_t& v : tensor.as<std::int64_t>()) v = static_cast<std::int64_t>(random.below(8));
  else
    for (std::byte& b : tensor.bytes()) b = std::byte{static_cast<unsigned char>(random.below(2))};
  return std::make_shared<const Tensor>(std::move(tensor));
}

inline std::vector<std::string> operators(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) names.push_back(node.op);
  return names;
}

inline std::vector<PostOp::Kind> kinds(const Node& node) {
  std::vector<PostOp::Kind> out;
  for (const PostOp& post : node.post_ops) out.push_back(post.kind);
  return out;
}

}  // namespace carillon::graph::testing
