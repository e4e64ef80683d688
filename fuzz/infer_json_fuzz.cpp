#include "fuzz.h"

#include "carillon/frontend/codec/answers.h"
#include "carillon/frontend/codec/infer_codec_json.h"
#include "carillon/frontend/testing/fake_service.h"

// A body of POST .../infer. Up to the first byte 0 it is JSON, and blobs follow; without one it is all JSON.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  static const controller::ModelView models[] = {frontend::pair_model(),
                                                 frontend::model_of(graph::DataType::f16, {2, 2}),
                                                 frontend::model_of(graph::DataType::boolean, {-1, 4})};
  const auto text = fuzz::text_of(data, size);
  const std::size_t end = text.find('\0');
  std::string body(text);
  std::optional<std::size_t> json_size;
  if (end != std::string_view::npos) {
    body.erase(end, 1);
    json_size = end;
  }
  for (const auto& model : models) {
    auto request = frontend::parse_infer_json(model, frontend::PaddedBytes(body), json_size,
                                              TimePoint{std::chrono::seconds{1}});
    if (!fuzz::taken(request)) continue;
    fuzz::must(request->call->inputs.size() == model.config.inputs.size(), "a request has all inputs");
    frontend::fill_outputs(model.config, *request->call);
    fuzz::must(frontend::finish_outputs(model.config, *request, *request->call).has_value(),
               "outputs that are right can be answered");
    fuzz::must(!frontend::write_infer_json(model, *request, *request->call).json.empty(),
               "there is an answer");
  }
  return 0;
}
