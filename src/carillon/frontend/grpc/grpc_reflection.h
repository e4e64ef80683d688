#pragma once

#include <string>
#include <vector>

#include "carillon/frontend/grpc/grpc_infer.h"
#include "carillon/frontend/grpc/grpc_raw.h"

namespace carillon::frontend {

// Says what services and messages the server has, for tools such as grpcurl: gRPC's server reflection, v1 and
// v1alpha. gRPC's own library keeps a thread for each such stream, however many there are, and asks for no
// key.
class ReflectionService final : public RawService {
 public:
  // `services`: the names that are listed, beside the reflection's own.
  ReflectionService(InferDoor& door, std::vector<std::string> services);

 private:
  std::vector<std::string> services_;
};

}  // namespace carillon::frontend
