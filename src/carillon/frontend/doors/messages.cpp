#include "carillon/frontend/doors/messages.h"

#include <map>
#include <utility>
#include <variant>

#include "grpc_service.pb.h"
#include "model_config.pb.h"
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <nlohmann/json.hpp>

#include "carillon/frontend/codec/answers.h"
#include "carillon/frontend/codec/shared_memory.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/doors/settings.h"

namespace carillon::frontend {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

Json to_value(const Message& message);

// Value `i` of a repeated field; of a single one where i < 0.
Json field_value(const Message& message, const FieldDescriptor& field, int i) {
  const Reflection& r = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return i < 0 ? r.GetInt32(message, &field) : r.GetRepeatedInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return i < 0 ? r.GetInt64(message, &field) : r.GetRepeatedInt64(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return i < 0 ? r.GetUInt32(message, &field) : r.GetRepeatedUInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return i < 0 ? r.GetUInt64(message, &field) : r.GetRepeatedUInt64(message, &field, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return i < 0 ? r.GetDouble(message, &field) : r.GetRepeatedDouble(message, &field, i);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return i < 0 ? r.GetFloat(message, &field) : r.GetRepeatedFloat(message, &field, i);
    case FieldDescriptor::CPPTYPE_BOOL:
      return i < 0 ? r.GetBool(message, &field) : r.GetRepeatedBool(message, &field, i);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = i < 0 ? r.GetEnumValue(message, &field) : r.GetRepeatedEnumValue(message, &field, i);
      const auto* value = field.enum_type()->FindValueByNumber(number);
      if (value == nullptr) return number;
      return value->name();
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return i < 0 ? r.GetString(message, &field) : r.GetRepeatedString(message, &field, i);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return to_value(i < 0 ? r.GetMessage(message, &field) : r.GetRepeatedMessage(message, &field, i));
  }
  return nullptr;
}

std::string map_key(const Json& key) {
  return key.is_string() ? key.get<std::string>() : key.dump();
}

Json to_value(const Message& message) {
  Json object = Json::object();
  const auto& descriptor = *message.GetDescriptor();
  const Reflection& r = *message.GetReflection();
  for (int f = 0; f < descriptor.field_count(); ++f) {
    const FieldDescriptor& field = *descriptor.field(f);
    if (field.is_map()) {
      Json map = Json::object();
      for (int i = 0; i < r.FieldSize(message, &field); ++i) {
        const Message& entry = r.GetRepeatedMessage(message, &field, i);
        map[map_key(field_value(entry, *field.message_type()->map_key(), -1))] =
            field_value(entry, *field.message_type()->map_value(), -1);
      }
      object[field.name()] = std::move(map);
    } else if (field.is_repeated()) {
      Json array = Json::array();
      for (int i = 0; i < r.FieldSize(message, &field); ++i) array.push_back(field_value(message, field, i));
      object[field.name()] = std::move(array);
    } else if (!field.has_presence() || r.HasField(message, &field)) {
      object[field.name()] = field_value(message, field, -1);
    }
  }
  return object;
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void add_tensors(const std::vector<graph::TensorSpec>& specs, auto* out) {
  for (const auto& spec : specs) {
    auto& tensor = *out->Add();
    tensor.set_name(spec.name);
    tensor.set_datatype(std::string(graph::kserve_name(spec.type)));
    for (const auto extent : spec.open_shape()) tensor.add_shape(extent);
  }
}

void set_step(const controller::StepStatistics& step, inference::StatisticDuration* out) {
  out->set_count(step.count);
  out->set_ns(static_cast<std::uint64_t>(step.total.count()));
}

void add_statistics(const controller::ModelStatistics& model, inference::ModelStatistics& out) {
  out.set_name(model.name);
  out.set_version(std::to_string(model.version));
  out.set_last_inference(model.last_inference_ms);
  out.set_inference_count(model.inference_count);
  out.set_execution_count(model.execution_count);
  auto& stats = *out.mutable_inference_stats();
  set_step(model.success, stats.mutable_success());
  set_step(model.fail, stats.mutable_fail());
  set_step(model.queue, stats.mutable_queue());
  set_step(model.compute_input, stats.mutable_compute_input());
  set_step(model.compute_infer, stats.mutable_compute_infer());
  set_step(model.compute_output, stats.mutable_compute_output());
  // We cache no answers, but clients read these without asking whether they are there.
  set_step({}, stats.mutable_cache_hit());
  set_step({}, stats.mutable_cache_miss());
  for (const auto& batch : model.batches) {
    auto& one = *out.add_batch_stats();
    one.set_batch_size(static_cast<std::uint64_t>(batch.size));
    set_step(batch.input, one.mutable_compute_input());
    set_step(batch.infer, one.mutable_compute_infer());
    set_step(batch.output, one.mutable_compute_output());
  }
}

// A map's messages as an array, in the order of their names.
Json by_name(const auto& messages) {
  std::map<std::string, Json> sorted;
  for (const auto& [name, message] : messages) sorted.emplace(name, to_value(message));
  Json array = Json::array();
  for (auto& [name, message] : sorted) array.push_back(std::move(message));
  return array;
}

}  // namespace

inference::ServerMetadataResponse server_metadata(const Commons& commons) {
  inference::ServerMetadataResponse response;
  response.set_name("carillon");
  response.set_version(CARILLON_VERSION);
  for (const char* extension : {"binary_tensor_data", "model_configuration", "model_repository",
                                "model_repository(unload_dependents)", "parameters", "schedule_policy",
                                "statistics", "system_shared_memory"})
    response.add_extensions(extension);
  if (commons.regions.has_devices()) response.add_extensions("cuda_shared_memory");
  if (commons.log_settings.there()) response.add_extensions("logging");
  return response;
}

Result<inference::ModelConfig> model_config(const controller::Service& service, std::string_view model,
                                            std::string_view version) {
  const auto view = service.find(model, version);
  if (!view) return std::unexpected(view.error());
  inference::ModelConfig config;
  if (!config.ParseFromString((*view)->config.serialized))
    return fail(ErrorCode::internal, "the configuration of model '" + std::string(model) + "' is damaged");
  return config;
}

Result<inference::ModelMetadataResponse> model_metadata(const controller::Service& service,
                                                        std::string_view model, std::string_view version) {
  const auto view = ready_model(service, model, version);
  if (!view) return std::unexpected(view.error());
  inference::ModelMetadataResponse response;
  response.set_name((*view)->name);
  for (const auto& each : service.models())
    if (each.name == (*view)->name && (version.empty() || each.version == (*view)->version))
      response.add_versions(std::to_string(each.version));
  inference::ModelConfig config;
  if (config.ParseFromString((*view)->config.serialized))
    response.set_platform(config.platform().empty() ? config.backend() : config.platform());
  add_tensors((*view)->config.inputs, response.mutable_inputs());
  add_tensors((*view)->config.outputs, response.mutable_outputs());
  return response;
}

Result<inference::ModelStatisticsResponse> model_statistics(const controller::Service& service,
                                                            std::string_view model, std::string_view version,
                                                            const Caller* caller) {
  if (!model.empty())
    if (const auto view = service.find(model, version); !view) return std::unexpected(view.error());
  inference::ModelStatisticsResponse response;
  for (const auto& each : service.statistics().models)
    if (may_use(caller, each.name) && (model.empty() || each.name == model) &&
        (version.empty() || std::to_string(each.version) == version))
      add_statistics(each, *response.add_model_stats());
  return response;
}

inference::RepositoryIndexResponse repository_index(const controller::Service& service, bool only_ready,
                                                    const Caller* caller) {
  inference::RepositoryIndexResponse response;
  for (const auto& model : service.models()) {
    if ((only_ready && !model.ready) || !may_use(caller, model.name)) continue;
    auto& entry = *response.add_models();
    entry.set_name(model.name);
    entry.set_version(std::to_string(model.version));
    entry.set_state(model.ready ? "READY" : "UNAVAILABLE");
    entry.set_reason(model.reason);
  }
  return response;
}

Result<inference::SystemSharedMemoryStatusResponse> shared_memory_status(const SharedMemory& regions,
                                                                         std::string_view name) {
  const auto found = regions.status(name);
  if (!found) return std::unexpected(found.error());
  inference::SystemSharedMemoryStatusResponse response;
  for (const RegionInfo& region : *found) {
    auto& status = (*response.mutable_regions())[region.name];
    status.set_name(region.name);
    status.set_key(region.key);
    status.set_offset(region.offset);
    status.set_byte_size(region.byte_size);
  }
  return response;
}

Result<inference::CudaSharedMemoryStatusResponse> device_memory_status(const SharedMemory& regions,
                                                                       std::string_view name) {
  const auto found = regions.device_status(name);
  if (!found) return std::unexpected(found.error());
  inference::CudaSharedMemoryStatusResponse response;
  for (const DeviceRegionInfo& region : *found) {
    auto& status = (*response.mutable_regions())[region.name];
    status.set_name(region.name);
    status.set_device_id(static_cast<std::uint64_t>(region.device));
    status.set_byte_size(region.byte_size);
  }
  return response;
}

Result<inference::LogSettingsResponse> log_settings(LogSettings& settings,
                                                    const inference::LogSettingsRequest& request) {
  using Asked = inference::LogSettingsRequest::SettingValue;
  LogSettings::Values changes;
  for (const auto& [name, value] : request.settings()) {
    auto& change = changes[name];
    switch (value.parameter_choice_case()) {
      case Asked::kBoolParam:
        change = value.bool_param();
        break;
      case Asked::kUint32Param:
        change = std::uint64_t{value.uint32_param()};
        break;
      case Asked::kStringParam:
        change = value.string_param();
        break;
      case Asked::PARAMETER_CHOICE_NOT_SET:
        return invalid("log setting '" + name.substr(0, 64) + "' has no value");
    }
  }
  if (!changes.empty())
    if (auto changed = settings.change(changes); !changed) return std::unexpected(std::move(changed.error()));
  const auto all = settings.all();
  if (!all) return std::unexpected(all.error());
  inference::LogSettingsResponse response;
  for (const auto& [name, value] : *all) {
    auto& setting = (*response.mutable_settings())[name];
    if (const auto* on = std::get_if<bool>(&value)) setting.set_bool_param(*on);
    if (const auto* n = std::get_if<std::uint64_t>(&value))
      setting.set_uint32_param(static_cast<std::uint32_t>(*n));
    if (const auto* text = std::get_if<std::string>(&value)) setting.set_string_param(*text);
  }
  return response;
}

Result<inference::TraceSettingResponse> trace_settings(const controller::Service& service,
                                                       TraceSettings& settings,
                                                       const inference::TraceSettingRequest& request) {
  const std::string& model = request.model_name();
  if (!model.empty())
    if (const auto view = service.find(model, ""); !view) return std::unexpected(view.error());
  TraceSettings::Values changes;
  for (const auto& [name, value] : request.settings())
    changes.emplace(name, std::vector<std::string>(value.value().begin(), value.value().end()));
  if (!changes.empty())
    if (auto changed = settings.change(model, changes); !changed)
      return std::unexpected(std::move(changed.error()));
  inference::TraceSettingResponse response;
  for (const auto& [name, value] : settings.all(model))
    for (const std::string& each : value) (*response.mutable_settings())[name].add_value(each);
  return response;
}

Error no_loading(std::string_view what) {
  return {ErrorCode::unsupported,
          "this server does not implement " + std::string(what) +
              ": it serves the models that its repository had when it started; start it with "
              "--model-control-mode poll or explicit to change them while it runs"};
}

std::string to_json(const Message& message) {
  return dump(to_value(message));
}

std::string to_json(const inference::RepositoryIndexResponse& index) {
  return dump(to_value(index)["models"]);
}

std::string to_json(const inference::SystemSharedMemoryStatusResponse& regions) {
  return dump(by_name(regions.regions()));
}

std::string to_json(const inference::CudaSharedMemoryStatusResponse& regions) {
  return dump(by_name(regions.regions()));
}

}  // namespace carillon::frontend
