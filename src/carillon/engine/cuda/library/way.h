#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/library/library.h"

namespace carillon::engine::cuda {

// One way in which a library computes something. `key` tells it from the others of the same work and is the
// same for the same version and device, so a choice can be kept in a file.
struct Way {
  std::string key;
  std::function<Result<std::shared_ptr<const Call>>()> make;
  // make() compiles, which takes a second or so, where the code is not kept.
  bool compiles = false;
  // Of another library than the rest: cuBLASLt's, of a convolution of one pixel by one.
  bool other = false;
};

// Who knows ways, its best guess first; all give the same bytes each time. unsupported: it has none, and why.
class Ways {
 public:
  virtual ~Ways() = default;
  virtual Result<std::vector<Way>> of(const Convolution& spec) = 0;
  virtual Result<std::vector<Way>> of(const Product& spec) = 0;
  virtual std::string_view version() const = 0;  // "cuDNN 9.19.0", for caches and people
};

}  // namespace carillon::engine::cuda
