#include "carillon/frontend/codec/answers.h"

#include "carillon/frontend/codec/classification.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/frontend/codec/text_elements.h"

namespace carillon::frontend {

Result<std::shared_ptr<const controller::ModelView>> ready_model(const controller::Service& service,
                                                                 std::string_view model,
                                                                 std::string_view version) {
  auto view = service.find(model, version);
  if (!view) return view;
  if (!(*view)->ready)
    return fail((*view)->returns ? ErrorCode::resource_exhausted : ErrorCode::unavailable,
                "model '" + (*view)->name + "' version " + std::to_string((*view)->version) +
                    " is not ready" + ((*view)->reason.empty() ? "" : ": " + (*view)->reason));
  return view;
}

Result<> answers_once(const controller::ModelView& model, std::string_view door) {
  if (!model.config.decoupled) return {};
  return fail(ErrorCode::unsupported,
              std::string(door) + " doesn't support models with decoupled transaction policy: ask model '" +
                  model.name + "' over ModelStreamInfer");
}

Result<> check_answer(const controller::ModelView& model, const controller::InferAnswer& answer) {
  if (!answer.status) return answer.status;
  if (!answer.call)
    return fail(ErrorCode::internal, "model '" + model.name + "' gave an answer without outputs");
  return check_outputs(model.config, *answer.call);
}

Result<> finish_outputs(const repository::ModelConfig& config, const InferRequest& request,
                        controller::InferCall& call) {
  for (const OutputChoice& choice : request.outputs)
    if (choice.classes > 0 && is_bounded_output(config, choice.index, call))
      return fail(ErrorCode::unsupported, "output '" + config.outputs[choice.index].name + "' of model '" +
                                              config.name +
                                              "' has no classes: its data decide how long it is");
  classify_outputs(config, request, call);
  if (auto spelt = spell_outputs(config, request, call); !spelt) return spelt;
  return share_outputs(config, request, call);
}

}  // namespace carillon::frontend
