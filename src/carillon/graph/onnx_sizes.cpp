#include "carillon/graph/onnx_sizes.h"

#include <algorithm>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <onnx/onnx_pb.h>
#include <sys/stat.h>

#include "carillon/base/descriptor.h"

namespace carillon::graph {
namespace {

using google::protobuf::io::CodedInputStream;

// Fields' numbers are those of the classes; their parsers would take the data in.
constexpr std::uint32_t field_of(std::uint32_t tag) {
  return tag >> 3;
}
enum Wire : std::uint8_t { varint = 0, eight_bytes = 1, counted = 2, four_bytes = 5 };
constexpr Wire wire_of(std::uint32_t tag) {
  return static_cast<Wire>(tag & 7);
}

constexpr int deepest = 32;              // graphs inside graphs
constexpr std::uint64_t longest = 1024;  // of a name that matters

class Walker {
 public:
  explicit Walker(CodedInputStream& in) : in_(in) {}

  bool model() {
    bool graph_seen = false;
    const bool whole = fields([&](std::uint32_t field, std::uint64_t) {
      if (field != onnx::ModelProto::kGraphFieldNumber) return pass();
      graph_seen = true;
      return graph(0);
    });
    return whole && graph_seen;
  }

  // Of what was seen; `most_external` bounds what tensors in other files can have.
  void finish(Bytes most_external, ConstantSizes& out) {
    const double share = external_ > most_external.count
                             ? static_cast<double>(most_external.count) / static_cast<double>(external_)
                             : 1.0;
    for (const Tensor& tensor : tensors_) {
      const double here = tensor.external ? share : 1.0;
      const auto elements = static_cast<std::uint64_t>(static_cast<double>(tensor.elements) * here);
      out.held.count += elements * tensor.width;
      const bool widens = tensor.narrow || (tensor.width == 1 && dequantised_.contains(tensor.name));
      if (widens || (tensor.real && normalises_)) out.widened.count += elements * 4;
      out.packed.count += elements * (widens ? 4 : tensor.width);
    }
    out.nodes = nodes_;
  }

 private:
  struct Tensor {
    std::string name;  // of bytes; else empty
    std::uint64_t elements = 0;
    std::uint64_t width = 4;  // bytes of an element
    bool narrow = false;      // 16-bit floats
    bool real = false;        // 32-bit ones
    bool external = false;
  };

  // Calls `read` for each field of a message up to the limit that is set, `left` its bytes where it has a
  // count. It reads the field, or passes over it.
  template <typename Read>
  bool fields(const Read& read) {
    for (;;) {
      const std::uint32_t tag = in_.ReadTag();
      if (tag == 0) return in_.ConsumedEntireMessage();
      wire_ = wire_of(tag);
      std::uint32_t left = 0;
      if (wire_ == counted && !in_.ReadVarint32(&left)) return false;
      if (wire_ != counted) {
        if (!read(field_of(tag), 0)) return false;
        continue;
      }
      const auto limit = in_.PushLimit(static_cast<int>(left));
      if (in_.BytesUntilLimit() < static_cast<int>(left) || !read(field_of(tag), left)) return false;
      if (const int rest = in_.BytesUntilLimit(); rest > 0 && !in_.Skip(rest)) return false;
      in_.PopLimit(limit);
    }
  }
  // Over a field that nobody wants.
  bool pass() {
    std::uint64_t ignored = 0;
    std::uint32_t small = 0;
    switch (wire_) {
      case varint:
        return in_.ReadVarint64(&ignored);
      case eight_bytes:
        return in_.ReadLittleEndian64(&ignored);
      case four_bytes:
        return in_.ReadLittleEndian32(&small);
      case counted:
        return true;  // fields() passes over what is left
    }
    return false;
  }
  bool number(std::uint64_t& into) { return wire_ == varint && in_.ReadVarint64(&into); }
  bool text(std::uint64_t left, std::string& into) {
    if (wire_ != counted || left > longest) return wire_ == counted;
    return in_.ReadString(&into, static_cast<int>(left));
  }

  bool graph(int depth) {
    if (depth > deepest) return false;
    return wire_ == counted && fields([&](std::uint32_t field, std::uint64_t left) {
             if (field == onnx::GraphProto::kInitializerFieldNumber && wire_ == counted)
               return tensor(left, {});
             if (field == onnx::GraphProto::kNodeFieldNumber && wire_ == counted) return node(depth);
             return pass();
           });
  }

  bool node(int depth) {
    ++nodes_;
    std::string op, first, output;
    const bool whole = fields([&](std::uint32_t field, std::uint64_t left) {
      switch (field) {
        case onnx::NodeProto::kOpTypeFieldNumber:
          return text(left, op);
        case onnx::NodeProto::kInputFieldNumber:
          return first.empty() ? text(left, first) : pass();
        case onnx::NodeProto::kOutputFieldNumber:
          return output.empty() ? text(left, output) : pass();
        case onnx::NodeProto::kAttributeFieldNumber:
          return wire_ == counted ? attribute(depth, output) : pass();
        default:
          return pass();
      }
    });
    normalises_ = normalises_ || op == "BatchNormalization";
    if (op == "DequantizeLinear") dequantised_.insert(std::move(first));
    return whole;
  }

  bool attribute(int depth, const std::string& output) {
    return fields([&](std::uint32_t field, std::uint64_t left) {
      if (wire_ != counted) return pass();
      switch (field) {
        case onnx::AttributeProto::kTFieldNumber:
        case onnx::AttributeProto::kTensorsFieldNumber:
          return tensor(left, output);
        case onnx::AttributeProto::kGFieldNumber:
        case onnx::AttributeProto::kGraphsFieldNumber:
          return graph(depth + 1);
        default:
          return pass();
      }
    });
  }

  bool tensor(std::uint64_t bytes, std::string name) {
    Tensor out{.name = std::move(name), .elements = 1};
    std::uint64_t type = onnx::TensorProto::FLOAT;
    const auto dimension = [&](std::uint64_t extent) {
      // Whoever reads it says what is wrong with it.
      constexpr std::uint64_t most = std::uint64_t{1} << 40;
      out.elements = extent > most || out.elements * std::max<std::uint64_t>(1, extent) > most
                         ? most
                         : out.elements * extent;
    };
    const bool whole = fields([&](std::uint32_t field, std::uint64_t left) {
      std::uint64_t value = 0;
      switch (field) {
        case onnx::TensorProto::kDimsFieldNumber:
          if (wire_ == varint) {
            if (!number(value)) return false;
            dimension(value);
            return true;
          }
          if (wire_ != counted) return pass();
          while (in_.BytesUntilLimit() > 0) {
            if (!in_.ReadVarint64(&value)) return false;
            dimension(value);
          }
          return true;
        case onnx::TensorProto::kDataTypeFieldNumber:
          return number(type);
        case onnx::TensorProto::kDataLocationFieldNumber:
          if (!number(value)) return false;
          out.external = value == onnx::TensorProto::EXTERNAL;
          return true;
        case onnx::TensorProto::kNameFieldNumber:
          return out.name.empty() ? text(left, out.name) : pass();
        default:
          return pass();
      }
    });
    switch (type) {
      case onnx::TensorProto::FLOAT:
        out.real = true;
        break;
      case onnx::TensorProto::FLOAT16:
      case onnx::TensorProto::BFLOAT16:
        out.narrow = true;
        [[fallthrough]];
      case onnx::TensorProto::INT16:
      case onnx::TensorProto::UINT16:
        out.width = 2;
        break;
      case onnx::TensorProto::INT8:
      case onnx::TensorProto::UINT8:
      case onnx::TensorProto::BOOL:
        out.width = 1;
        break;
      case onnx::TensorProto::DOUBLE:
      case onnx::TensorProto::INT64:
      case onnx::TensorProto::UINT64:
      case onnx::TensorProto::STRING:
        out.width = 8;
        break;
      default:
        break;
    }
    if (out.width != 1) out.name.clear();
    // An element in the file itself has a byte there at least.
    if (out.external)
      external_ += out.elements * out.width;
    else
      out.elements = std::min(out.elements, bytes);
    tensors_.push_back(std::move(out));
    return whole;
  }

  CodedInputStream& in_;
  Wire wire_ = varint;  // of the field that is being read
  std::vector<Tensor> tensors_;
  std::set<std::string> dequantised_;
  bool normalises_ = false;  // its scales go into the weights before it
  std::uint64_t external_ = 0;
  std::size_t nodes_ = 0;
};

// Of the files beside it.
Bytes beside(const std::filesystem::path& file) {
  Bytes sum;
  std::error_code failure, none;
  for (std::filesystem::directory_iterator at(file.parent_path(), failure), end; !failure && at != end;
       at.increment(failure))
    if (at->is_regular_file(none))
      if (const auto size = at->file_size(none); !none) sum.count += size;
  return sum;
}

}  // namespace

Bytes ConstantSizes::to_make() const {
  // Parsed, with the tensors that are made of it; then these, what they become, and all packed.
  return std::max(file + held, held + widened + packed);
}

std::optional<ConstantSizes> constant_sizes(const std::filesystem::path& path) {
  const carillon::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file.open() || ::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  constexpr int piece = 4096;  // data that is passed over is not read
  google::protobuf::io::FileInputStream stream(file.number(), piece);
  CodedInputStream in(&stream);
  Walker walker(in);
  if (!walker.model()) return std::nullopt;
  ConstantSizes out;
  out.file = Bytes{static_cast<std::uint64_t>(status.st_size)};
  walker.finish(beside(path), out);
  return out;
}

}  // namespace carillon::graph
