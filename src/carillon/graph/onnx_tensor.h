#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "carillon/base/result.h"
#include "carillon/graph/tensor.h"

namespace onnx {
class TensorProto;
}

namespace carillon::graph {

// ONNX's number for an element type, and back; unsupported where we have no such type.
Result<DataType> from_onnx_type(std::int64_t number);
std::int64_t to_onnx_type(DataType type);

// Reads tensors of one ONNX file: their own bytes, or files beside it ("external data"). Such a file must be
// named by a relative path that stays inside the ONNX file's folder, symbolic links followed; offset and
// length must lie within it. Keeps the files open while it lives. Not for several threads.
class TensorReader {
 public:
  explicit TensorReader(std::filesystem::path folder);
  ~TensorReader();
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  // The tensor; its type and dims are checked against the bytes that are there before memory is taken.
  // Errors do not name the tensor: the caller knows what it is.
  Result<SharedTensor> read(const onnx::TensorProto& proto);

  // That the tensor's data, where they are external, are in a file that may be read. What is in the tensor is
  // not looked at.
  Result<> locate(const onnx::TensorProto& proto);

  // Bytes of the external files opened so far.
  std::uint64_t external_bytes() const;

 private:
  struct File;
  Result<File*> open(const std::string& location);
  Result<SharedTensor> read_external(const onnx::TensorProto& proto, TensorType type);

  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<File>, std::less<>> files_;
};

}  // namespace carillon::graph
