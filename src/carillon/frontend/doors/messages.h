#pragma once

#include <string>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/controller/calls/service.h"

namespace google::protobuf {
class Message;
}
namespace inference {
class LogSettingsRequest;
class LogSettingsResponse;
class CudaSharedMemoryStatusResponse;
class ModelConfig;
class ModelMetadataResponse;
class ModelStatisticsResponse;
class RepositoryIndexResponse;
class ServerMetadataResponse;
class SystemSharedMemoryStatusResponse;
class TraceSettingRequest;
class TraceSettingResponse;
}  // namespace inference

namespace carillon::frontend {

class Caller;
class LogSettings;
class SharedMemory;
class TraceSettings;
struct Commons;

// What the service knows, as the protocol's messages; both frontends send these. Errors as Service::find's.
inference::ServerMetadataResponse server_metadata(const Commons& commons);
Result<inference::ModelMetadataResponse> model_metadata(const controller::Service& service,
                                                        std::string_view model, std::string_view version);
Result<inference::ModelConfig> model_config(const controller::Service& service, std::string_view model,
                                            std::string_view version);
// model empty: every model that the caller may use (null: all). version empty: every version of the model.
Result<inference::ModelStatisticsResponse> model_statistics(const controller::Service& service,
                                                            std::string_view model, std::string_view version,
                                                            const Caller* caller = nullptr);
inference::RepositoryIndexResponse repository_index(const controller::Service& service, bool only_ready,
                                                    const Caller* caller = nullptr);
// name empty: every region. Error (not_found): no such region.
Result<inference::SystemSharedMemoryStatusResponse> shared_memory_status(const SharedMemory& regions,
                                                                         std::string_view name);
Result<inference::CudaSharedMemoryStatusResponse> device_memory_status(const SharedMemory& regions,
                                                                       std::string_view name);
// Make the changes that are asked for, and tell all settings. Errors as LogSettings' and TraceSettings';
// not_found: no such model.
Result<inference::LogSettingsResponse> log_settings(LogSettings& settings,
                                                    const inference::LogSettingsRequest& request);
Result<inference::TraceSettingResponse> trace_settings(const controller::Service& service,
                                                       TraceSettings& settings,
                                                       const inference::TraceSettingRequest& request);

// What is said to those who ask for models to be loaded or unloaded (unsupported). `what` names the request.
Error no_loading(std::string_view what);

// The message as JSON under its proto names: numbers as numbers (64-bit ones too), enumerators by name,
// fields that are not messages always there, messages and members of a oneof where set. Text that is not
// UTF-8 is mended.
std::string to_json(const google::protobuf::Message& message);
// The index, which over HTTP is a bare array.
std::string to_json(const inference::RepositoryIndexResponse& index);
// The regions, likewise, in name order.
std::string to_json(const inference::SystemSharedMemoryStatusResponse& regions);
std::string to_json(const inference::CudaSharedMemoryStatusResponse& regions);

}  // namespace carillon::frontend
