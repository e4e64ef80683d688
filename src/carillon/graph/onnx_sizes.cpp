#include "carillon/graph/onnx_sizes.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
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
constexpr std::size_t most_names = 100'000;
constexpr std::size_t most_entries = 10'000;  // of the file's folder

constexpr std::uint64_t most_elements = std::uint64_t{1} << 40;  // of a tensor
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 50;     // of a sum

// Sums that stop at `most_bytes`. What is added is at most 8 bytes an element.
constexpr void add(std::uint64_t& sum, std::uint64_t more) {
  sum = std::min(sum + more, most_bytes);
}

// Folding such a node makes a constant of a size that its inputs' values say.
bool makes_more(std::string_view op) {
  constexpr std::array<std::string_view, 4> ops{"ConstantOfShape", "Expand", "Range", "Tile"};
  return std::ranges::find(ops, op) != ops.end();
}

class Walker {
 public:
  Walker(CodedInputStream& in, std::uint64_t file) : in_(in), file_(file) {}

  bool model() {
    bool graph_seen = false;
    const bool whole = fields([&](std::uint32_t field, std::uint64_t) {
      may_grow_ = may_grow_ || field == onnx::ModelProto::kFunctionsFieldNumber;
      if (field != onnx::ModelProto::kGraphFieldNumber) return pass();
      graph_seen = true;
      return graph(0);
    });
    return whole && graph_seen;
  }

  bool has_external() const { return outside_.held > 0; }

  // Of what was seen; `most_external` bounds what tensors in other files can have.
  void finish(Bytes most_external, ConstantSizes& out) {
    for (const Named& tensor : named_) {
      Sums& sums = tensor.external ? outside_ : inside_;
      const bool widens = too_many_dequantised_ || dequantised_.contains(tensor.name);
      if (widens) add(sums.widened, tensor.elements * 4);
      add(sums.packed, tensor.elements * (widens ? 4 : 1));
    }
    named_.clear();
    if (normalises_)
      for (Sums* sums : {&inside_, &outside_}) add(sums->widened, std::exchange(sums->real, 0));
    const double share = outside_.held > most_external.count
                             ? static_cast<double>(most_external.count) / static_cast<double>(outside_.held)
                             : 1.0;
    const auto of_both = [&](std::uint64_t inside, std::uint64_t outside) {
      add(inside, static_cast<std::uint64_t>(static_cast<double>(outside) * share));
      return Bytes{inside};
    };
    out.held = of_both(inside_.held, outside_.held);
    out.widened = of_both(inside_.widened, outside_.widened);
    out.packed = of_both(inside_.packed, outside_.packed);
    out.nodes = nodes_;
    out.may_grow = may_grow_;
  }

 private:
  // In bytes. A file of a few bytes a tensor can have millions of tensors, so that none is kept.
  struct Sums {
    std::uint64_t held = 0, widened = 0, packed = 0;
    std::uint64_t real = 0;  // 32-bit floats, which a normalisation makes others of
  };
  // A tensor of bytes. What becomes of it the nodes say, which may come later.
  struct Named {
    std::size_t name = 0;  // its hash: what has the same may count as widened
    std::uint64_t elements = 0;
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
      // Passing over data that is not there may succeed: the file is only moved in.
      if (static_cast<std::uint64_t>(in_.CurrentPosition()) + left > file_) return false;
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
    may_grow_ = may_grow_ || makes_more(op);
    if (op == "DequantizeLinear") dequantises(first);
    return whole;
  }

  void dequantises(const std::string& name) {
    const std::size_t hash = std::hash<std::string>{}(name);
    if (dequantised_.size() < most_names)
      dequantised_.insert(hash);
    else
      too_many_dequantised_ = too_many_dequantised_ || !dequantised_.contains(hash);
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
    std::uint64_t type = onnx::TensorProto::FLOAT, elements = 1;
    bool external = false;
    const auto dimension = [&](std::uint64_t extent) {
      // The import of the file tells what is wrong with the extent.
      const bool too_many = extent > 0 && elements > most_elements / extent;
      elements = too_many ? most_elements : elements * extent;
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
          external = value == onnx::TensorProto::EXTERNAL;
          return true;
        case onnx::TensorProto::kNameFieldNumber:
          return name.empty() ? text(left, name) : pass();
        default:
          return pass();
      }
    });
    // An element in the file itself has a byte there at least.
    if (!external) elements = std::min(elements, bytes);
    if (elements > 0) count(static_cast<int>(std::min<std::uint64_t>(type, 255)), elements, external, name);
    return whole;
  }

  void count(int type, std::uint64_t elements, bool external, const std::string& name) {
    Sums& sums = external ? outside_ : inside_;
    const auto plain = [&](std::uint64_t width) {
      add(sums.held, elements * width);
      add(sums.packed, elements * width);
    };
    switch (type) {
      case onnx::TensorProto::FLOAT:
        add(sums.real, elements * 4);
        return plain(4);
      case onnx::TensorProto::FLOAT16:
      case onnx::TensorProto::BFLOAT16:
        add(sums.held, elements * 2);
        add(sums.widened, elements * 4);
        add(sums.packed, elements * 4);
        return;
      case onnx::TensorProto::INT16:
      case onnx::TensorProto::UINT16:
        return plain(2);
      case onnx::TensorProto::INT8:
      case onnx::TensorProto::UINT8:
      case onnx::TensorProto::BOOL:
        add(sums.held, elements);
        if (named_.size() < most_names) {
          named_.push_back(
              {.name = std::hash<std::string>{}(name), .elements = elements, .external = external});
        } else {
          add(sums.widened, elements * 4);
          add(sums.packed, elements * 4);
        }
        return;
      case onnx::TensorProto::DOUBLE:
      case onnx::TensorProto::INT64:
      case onnx::TensorProto::UINT64:
      case onnx::TensorProto::STRING:
        return plain(8);
      default:
        return plain(4);
    }
  }

  CodedInputStream& in_;
  const std::uint64_t file_;  // its size
  Wire wire_ = varint;        // of the field that is being read
  Sums inside_, outside_;     // of the file itself; of others
  std::vector<Named> named_;
  std::unordered_set<std::size_t> dequantised_;  // hashes of names
  bool too_many_dequantised_ = false;
  bool normalises_ = false;  // its scales go into the weights before it
  bool may_grow_ = false;
  std::size_t nodes_ = 0;
};

// Of the files beside it and in folders beside it: a tensor's `location` may lead there.
Bytes beside(const std::filesystem::path& file) {
  namespace fs = std::filesystem;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::uint64_t sum = 0;
  std::size_t seen = 0;
  std::error_code failure, none;
  for (fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, failure),
       end;
       !failure && at != end && seen < most_entries; at.increment(failure), ++seen)
    if (at->is_regular_file(none))
      if (const auto size = at->file_size(none); !none) add(sum, std::min<std::uint64_t>(size, most_bytes));
  return Bytes{sum};
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
  Walker walker(in, static_cast<std::uint64_t>(status.st_size));
  if (!walker.model()) return std::nullopt;
  ConstantSizes out;
  out.file = Bytes{static_cast<std::uint64_t>(status.st_size)};
  walker.finish(walker.has_external() ? beside(path) : Bytes{}, out);
  return out;
}

}  // namespace carillon::graph
