#include "carillon/graph/onnx_tensor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>
#include <system_error>
#include <type_traits>
#include <utility>

#include <fcntl.h>
#include <onnx/onnx_pb.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/graph/known_texts.h"
#include "carillon/graph/onnx_check.h"

namespace carillon::graph {
namespace {

constexpr std::array<std::pair<std::int64_t, DataType>, 14> onnx_types{{
    {1, DataType::f32},
    {2, DataType::u8},
    {3, DataType::i8},
    {4, DataType::u16},
    {5, DataType::i16},
    {6, DataType::i32},
    {7, DataType::i64},
    {8, DataType::string},
    {9, DataType::boolean},
    {10, DataType::f16},
    {11, DataType::f64},
    {12, DataType::u32},
    {13, DataType::u64},
    {16, DataType::bf16},
}};

// From one of the protobuf's typed fields, narrowing as ONNX says (16-bit floats are their bit patterns).
template <typename To, typename Field>
Result<> copy_field(const Field& field, Tensor& tensor, std::string_view name) {
  const auto to = tensor.as<To>();
  if (static_cast<std::size_t>(field.size()) != to.size())
    return invalid(std::string(name) + " has " + std::to_string(field.size()) + " elements, but dims " +
                   to_text(tensor.type().shape) + " need " + std::to_string(to.size()));
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto value = field[static_cast<int>(i)];
    if constexpr (std::is_integral_v<To>)
      if (!std::in_range<To>(value))
        return invalid(std::string(name) + " has " + std::to_string(value) + " as element " +
                       std::to_string(i) + ", which is out of the range of its type " +
                       std::string(onnx_name(tensor.type().type)));
    to[i] = static_cast<To>(value);
  }
  return {};
}

// Any number but zero is true.
Result<> copy_booleans(const onnx::TensorProto& proto, Tensor& tensor) {
  const auto to = tensor.as<std::uint8_t>();
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = proto.int32_data(static_cast<int>(i)) != 0 ? 1 : 0;
  return {};
}

int field_size(const onnx::TensorProto& proto, DataType type) {
  switch (type) {
    case DataType::f32:
      return proto.float_data_size();
    case DataType::f64:
      return proto.double_data_size();
    case DataType::i64:
      return proto.int64_data_size();
    case DataType::u32:
    case DataType::u64:
      return proto.uint64_data_size();
    case DataType::string:
      return proto.string_data_size();
    case DataType::f16:
    case DataType::bf16:
    case DataType::i8:
    case DataType::i16:
    case DataType::i32:
    case DataType::u8:
    case DataType::u16:
    case DataType::boolean:
      return proto.int32_data_size();
  }
  return 0;
}

Result<> copy_fields(const onnx::TensorProto& proto, Tensor& tensor) {
  switch (tensor.type().type) {
    case DataType::f32:
      return copy_field<float>(proto.float_data(), tensor, "float_data");
    case DataType::f64:
      return copy_field<double>(proto.double_data(), tensor, "double_data");
    case DataType::i64:
      return copy_field<std::int64_t>(proto.int64_data(), tensor, "int64_data");
    case DataType::u32:
      return copy_field<std::uint32_t>(proto.uint64_data(), tensor, "uint64_data");
    case DataType::u64:
      return copy_field<std::uint64_t>(proto.uint64_data(), tensor, "uint64_data");
    case DataType::f16:
    case DataType::bf16:
    case DataType::u16:
      return copy_field<std::uint16_t>(proto.int32_data(), tensor, "int32_data");
    case DataType::i8:
      return copy_field<std::int8_t>(proto.int32_data(), tensor, "int32_data");
    case DataType::i16:
      return copy_field<std::int16_t>(proto.int32_data(), tensor, "int32_data");
    case DataType::i32:
      return copy_field<std::int32_t>(proto.int32_data(), tensor, "int32_data");
    case DataType::u8:
      return copy_field<std::uint8_t>(proto.int32_data(), tensor, "int32_data");
    case DataType::boolean:
      return copy_booleans(proto, tensor);
    case DataType::string: {
      const auto handles = tensor.as<TextHandle>();
      for (int i = 0; i < proto.string_data_size(); ++i) {
        const auto known = known_texts().add(proto.string_data(i));
        if (!known) return std::unexpected(known.error());
        handles[static_cast<std::size_t>(i)] = *known;
      }
      return {};
    }
  }
  return fail(ErrorCode::unsupported, "tensors of this type are not supported");
}

// Any byte but zero is true in a file; our kernels rely on 0 and 1.
void normalise_booleans(Tensor& tensor) {
  if (tensor.type().type != DataType::boolean) return;
  for (std::byte& b : tensor.bytes()) b = b == std::byte{0} ? std::byte{0} : std::byte{1};
}

Result<std::uint64_t> parse_number(const std::string& key, const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size())
    return invalid("external data: " + key + " '" + text.substr(0, 40) +
                   "' must be a whole number that is not negative");
  return value;
}

}  // namespace

Result<DataType> from_onnx_type(std::int64_t number) {
  for (const auto& [known, type] : onnx_types)
    if (known == number) return type;
  return fail(ErrorCode::unsupported, "ONNX element type " + onnx_type_name(number) + " is not supported");
}

std::int64_t to_onnx_type(DataType type) {
  for (const auto& [number, known] : onnx_types)
    if (known == type) return number;
  return 0;
}

struct TensorReader::File {
  int descriptor = -1;
  std::uint64_t size = 0;
  std::uint64_t taken = 0;
  // Tensors that share one place in the file are read once.
  std::map<std::pair<std::uint64_t, std::uint64_t>, SharedTensor> tensors;

  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

TensorReader::TensorReader(std::filesystem::path folder) : folder_(std::move(folder)) {
  if (folder_.empty()) folder_ = ".";
}

TensorReader::~TensorReader() = default;

std::uint64_t TensorReader::external_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [name, file] : files_) sum += file->size;
  return sum;
}

Result<TensorReader::File*> TensorReader::open(const std::string& location) {
  if (const auto found = files_.find(location); found != files_.end()) return found->second.get();
  const std::string what = "external data '" + location.substr(0, 200) + "'";
  const std::filesystem::path relative(location);
  if (location.empty() || location.find('\0') != std::string::npos || relative.is_absolute())
    return invalid(what + ": the location must be a path relative to the model's folder");
  for (const auto& part : relative)
    if (part == "..") return invalid(what + ": the location must not contain '..'");
  std::error_code error;
  const auto home = std::filesystem::canonical(folder_, error);
  if (error) return invalid(what + ": the model's folder cannot be read: " + error.message());
  const auto target = std::filesystem::canonical(home / relative, error);
  if (error) return fail(ErrorCode::invalid_argument, what + " beside the model: " + error.message());
  const auto [end, rest] = std::mismatch(home.begin(), home.end(), target.begin(), target.end());
  if (end != home.end() || rest == target.end())
    return invalid(what + ": it leads outside the model's folder, by a symbolic link");

  auto file = std::make_unique<File>();
  // NONBLOCK: a named pipe must not hang us; it is refused below.
  file->descriptor = ::open(target.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (file->descriptor < 0 || ::fstat(file->descriptor, &status) != 0)
    return invalid(what + ": " + std::generic_category().message(errno));
  if (!S_ISREG(status.st_mode)) return invalid(what + " is not a regular file");
  file->size = static_cast<std::uint64_t>(status.st_size);
  return files_.emplace(location, std::move(file)).first->second.get();
}

Result<> TensorReader::locate(const onnx::TensorProto& proto) {
  if (proto.data_location() != onnx::TensorProto::EXTERNAL) return {};
  std::string location;
  for (const auto& entry : proto.external_data())
    if (entry.key() == "location") {
      location = entry.value();
      // Readers differ in which of several they take.
      if (auto opened = open(location); !opened) return std::unexpected(opened.error());
    }
  if (location.empty()) return invalid("external data: no location is given");
  return {};
}

Result<SharedTensor> TensorReader::read_external(const onnx::TensorProto& proto, TensorType type) {
  std::string location;
  std::uint64_t offset = 0;
  const std::uint64_t needed = type.bytes().count;
  std::uint64_t length = needed;
  std::set<std::string> seen;
  for (const auto& entry : proto.external_data()) {
    // Readers differ in which of several they take.
    if (!seen.insert(entry.key()).second)
      return invalid("external data: " + entry.key().substr(0, 40) + " is given twice");
    if (entry.key() == "location") location = entry.value();
    if (entry.key() != "offset" && entry.key() != "length") continue;
    auto number = parse_number(entry.key(), entry.value());
    if (!number) return std::unexpected(number.error());
    (entry.key() == "offset" ? offset : length) = *number;
  }
  auto opened = open(location);
  if (!opened) return std::unexpected(opened.error());
  File& file = **opened;
  const std::string what = "external data '" + location + "'";
  if (length != needed)
    return invalid(what + ": length is " + std::to_string(length) + ", but dims " + to_text(type.shape) +
                   " of type " + std::string(onnx_name(type.type)) + " need " + std::to_string(needed));
  if (offset > file.size || length > file.size - offset)
    return invalid(what + " has " + std::to_string(file.size) + " bytes, but the tensor needs " +
                   std::to_string(length) + " from offset " + std::to_string(offset));
  const auto key = std::pair(offset, length);
  if (const auto found = file.tensors.find(key); found != file.tensors.end() && found->second->type() == type)
    return found->second;
  // Tensors that overlap would let a small file claim any amount of memory.
  if (length > file.size - file.taken)
    return invalid(what + ": its tensors together need more than the " + std::to_string(file.size) +
                   " bytes that it has");
  Tensor tensor(std::move(type));
  const auto bytes = tensor.bytes();
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        ::pread(file.descriptor, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return invalid(what + ": " + std::generic_category().message(errno));
    if (got == 0) return invalid(what + ": it became shorter while being read");
    done += static_cast<std::size_t>(got);
  }
  file.taken += length;
  normalise_booleans(tensor);
  auto shared = std::make_shared<const Tensor>(std::move(tensor));
  file.tensors.insert_or_assign(key, shared);
  return shared;
}

Result<SharedTensor> TensorReader::read(const onnx::TensorProto& proto) {
  auto data_type = from_onnx_type(proto.data_type());
  if (!data_type) return std::unexpected(data_type.error());
  if (auto ok = check_encoding(proto); !ok) return std::unexpected(ok.error());
  if (proto.dims_size() > 64) return invalid("it has " + std::to_string(proto.dims_size()) + " dimensions");
  TensorType type{*data_type, Shape(proto.dims().begin(), proto.dims().end())};
  auto count = element_count(type.shape);
  if (!count) return std::unexpected(count.error());
  if (proto.data_location() == onnx::TensorProto::EXTERNAL) {
    if (*data_type == DataType::string)
      return invalid("texts are outside the file; they belong into string_data");
    return read_external(proto, std::move(type));
  }

  const std::uint64_t needed = type.bytes().count;
  if (proto.has_raw_data()) {
    if (*data_type == DataType::string) return invalid("texts are in raw_data; they belong into string_data");
    const std::string& raw = proto.raw_data();
    if (raw.size() != needed)
      return invalid("raw_data has " + std::to_string(raw.size()) + " bytes, but dims " +
                     to_text(type.shape) + " of type " + std::string(onnx_name(type.type)) + " need " +
                     std::to_string(needed));
    Tensor tensor(std::move(type));
    std::memcpy(tensor.bytes().data(), raw.data(), raw.size());
    normalise_booleans(tensor);
    return std::make_shared<const Tensor>(std::move(tensor));
  }
  const int held = field_size(proto, *data_type);
  if (held != *count)
    return invalid("it holds " + std::to_string(held) + " elements, but dims " + to_text(type.shape) +
                   " need " + std::to_string(*count));
  Tensor tensor(std::move(type));
  if (auto ok = copy_fields(proto, tensor); !ok) return std::unexpected(ok.error());
  normalise_booleans(tensor);
  return std::make_shared<const Tensor>(std::move(tensor));
}

}  // namespace carillon::graph
