#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/codec/infer_request.h"
#include "carillon/frontend/codec/padded_bytes.h"

namespace carillon::frontend {

// The JSON of a request is parsed in memory; this bounds what that can cost. Large tensors go as blobs.
inline constexpr std::size_t longest_json = std::size_t{64} << 20;

// Reads the body of a KServe v2 infer request: JSON, then the inputs' blobs in order.
//
// `json_size` is the header Inference-Header-Content-Length; without it all of the body is JSON. JSON data
// may be flat or nested as the shape says; numbers must fit the datatype (NaN, Infinity and -Infinity are
// taken, as Triton takes them), FP16 too, which Triton refuses; BF16 comes as blobs only. Nothing of `body`
// is referred to afterwards: each blob was copied once, and so were inputs in shared memory. Safe from any
// thread; cost linear in the body and what it refers to. Errors (invalid_argument; unsupported: BYTES;
// resource_exhausted: no room for inputs in shared memory) name the tensor, what was given and what would be
// right.
Result<InferRequest> parse_infer_json(const controller::ModelView& model, const PaddedBytes& body,
                                      std::optional<std::size_t> json_size, TimePoint arrival,
                                      const Surroundings& around = {});

// The deadline that the request names for itself, read without its model: TimePoint::max() for none. Nothing:
// the JSON is no request's, or so large that reading it twice would cost too much.
std::optional<TimePoint> deadline_in_json(const PaddedBytes& body, std::optional<std::size_t> json_size,
                                          TimePoint arrival);

// The answer's body, in pieces: the JSON, then views of the blobs inside `call`.
struct InferResponseBody {
  std::string json;
  std::vector<std::span<const std::byte>> blobs;  // any: the JSON's length goes into the header
  bool binary = false;                            // an output is a blob (perhaps an empty one)
};

// Requires outputs that passed check_outputs() and finish_outputs(); of those in shared memory there is no
// data here, and nothing says that they are there, as Triton has it. NaN and the infinities are written NaN,
// Infinity and -Infinity, which JSON proper does not have but most parsers read.
InferResponseBody write_infer_json(const controller::ModelView& model, const InferRequest& request,
                                   const controller::InferCall& call);

// {"error":"..."}, and what else is known: {"error":"...","would_take_us":31200,"retry_after_ms":12}
struct ErrorNumbers {
  std::optional<std::int64_t> would_take_us, retry_after_ms;
};
std::string error_json(std::string_view message, const ErrorNumbers& numbers = {});

}  // namespace carillon::frontend
