#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/controller/service.h"
#include "carillon/frontend/infer_request.h"
#include "carillon/repository/config.h"

namespace carillon::frontend {

// The model a request is for, if it can take requests. Errors as Service::find's; unavailable: it is not
// ready, and why.
Result<std::shared_ptr<const controller::ModelView>> ready_model(const controller::Service& service,
                                                                 std::string_view model,
                                                                 std::string_view version);

// What stands in the way of sending `answer` as a success: its own failure, or outputs that are not what the
// model promises.
Result<> check_answer(const controller::ModelView& model, const controller::InferAnswer& answer);

// Makes of outputs that passed check_answer() what the client asked for: classes, and copies in shared
// memory. Errors: see share_outputs(). Once.
Result<> finish_outputs(const repository::ModelConfig& config, const InferRequest& request,
                        controller::InferCall& call);

// Header (HTTP) and trailing metadata (gRPC) of a refusal: whole microseconds from arrival to the predicted
// end.
inline constexpr const char* would_take_key = "carillon-would-take-us";

}  // namespace carillon::frontend
