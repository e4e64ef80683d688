#include "fuzz.h"
#include "infer.pb.h"
#include <google/protobuf/stubs/logging.h>

#include "carillon/frontend/codec/answers.h"
#include "carillon/frontend/codec/infer_codec_grpc.h"
#include "carillon/frontend/testing/fake_service.h"

// A ModelInferRequest as it comes over the wire.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  static const google::protobuf::LogSilencer quiet;
  static const controller::ModelView models[] = {frontend::pair_model(),
                                                 frontend::model_of(graph::DataType::f16, {2, 2}),
                                                 frontend::model_of(graph::DataType::boolean, {-1, 4})};
  inference::ModelInferRequest message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return 0;
  for (const auto& model : models) {
    auto request =
        frontend::parse_infer_grpc(model, message, TimePoint{std::chrono::seconds{1}}, TimePoint::max());
    if (!fuzz::taken(request)) continue;
    fuzz::must(request->call->inputs.size() == model.config.inputs.size(), "a request has all inputs");
    frontend::fill_outputs(model.config, *request->call);
    fuzz::must(frontend::finish_outputs(model.config, *request, *request->call).has_value(),
               "outputs that are right can be answered");
    inference::ModelInferResponse response;
    frontend::write_infer_grpc(model, *request, *request->call, response);
  }
  return 0;
}
