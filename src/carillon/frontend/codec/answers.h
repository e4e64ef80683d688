#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/codec/infer_request.h"
#include "carillon/frontend/telemetry/whole_us.h"
#include "carillon/repository/config.h"

namespace carillon::frontend {

// The model a request is for, if it can take requests. Errors as Service::find's; unavailable: it is not
// ready, and why.
Result<std::shared_ptr<const controller::ModelView>> ready_model(const controller::Service& service,
                                                                 std::string_view model,
                                                                 std::string_view version);

// Whether the model may be asked at `door`, where a request has one answer. Error (unsupported, in Triton's
// words): its config has model_transaction_policy { decoupled: true }.
Result<> answers_once(const controller::ModelView& model, std::string_view door);

// What stands in the way of sending `answer` as a success: its own failure, or outputs that are not what the
// model promises.
Result<> check_answer(const controller::ModelView& model, const controller::InferAnswer& answer);

// Makes of outputs that passed check_answer() what the client asked for: classes, texts, and copies in
// shared memory. Errors: see spell_outputs() and share_outputs(); unsupported: classes of an output whose
// extents its data decide. Once.
Result<> finish_outputs(const repository::ModelConfig& config, const InferRequest& request,
                        controller::InferCall& call);

// Header (HTTP) and trailing metadata (gRPC) of a refusal: whole microseconds from arrival to the predicted
// end.
inline constexpr const char* would_take_key = "carillon-would-take-us";
// The same of every answer: the request's number in the journal (docs/explain.md).
inline constexpr const char* number_key = "carillon-request";
// Of refusals that waiting helps: whole milliseconds after which the same request would fit its deadline.
// Over HTTP and in streams; gRPC has a name of its own.
inline constexpr const char* retry_key = "retry-after-ms";
inline constexpr const char* retry_metadata = "grpc-retry-pushback-ms";

inline std::int64_t retry_ms(Duration d) {
  return std::max<std::int64_t>(1, std::chrono::ceil<std::chrono::milliseconds>(d).count());
}

}  // namespace carillon::frontend
