#include "carillon/frontend/grpc/grpc_health.h"

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "health.pb.h"
#include <grpcpp/alarm.h>

#include "carillon/frontend/grpc/grpc_access.h"
#include "carillon/frontend/grpc/grpc_stream.h"

namespace carillon::frontend {
namespace {

using grpc::health::v1::HealthCheckResponse;
using Health = HealthCheckResponse::ServingStatus;

constexpr auto look_every = std::chrono::milliseconds(100);
constexpr std::size_t longest_request = std::size_t{4} << 10;
constexpr std::size_t watches_most = 256;

class RefusedWatch final : public RawService::WriteReactor {
 public:
  explicit RefusedWatch(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Either a message is being written or the alarm is set, never both: what happens to one comes after the
// other, and none of it needs a lock.
class HealthWatch final : public RawService::WriteReactor {
 public:
  // `metadata`: of the call.
  HealthWatch(InferDoor& door, SideRoom metadata, bool known)
      : door_(door), metadata_(std::move(metadata)), known_(known) {
    tell(now());
  }
  ~HealthWatch() override { door_.watches.fetch_sub(1); }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish({grpc::StatusCode::CANCELLED, "the client has gone"});
    look();
  }
  // Seen at the next look: an alarm cannot be set and taken back at once.
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { delete this; }

 private:
  Health now() const {
    if (!known_) return HealthCheckResponse::SERVICE_UNKNOWN;
    return server_ready(door_.service, door_.commons) ? HealthCheckResponse::SERVING
                                                      : HealthCheckResponse::NOT_SERVING;
  }

  void tell(Health health) {
    told_ = health;
    HealthCheckResponse response;
    response.set_status(health);
    write_message(response, answer_);
    StartWrite(&answer_);
  }

  void look() {
    if (cancelled_) return Finish({grpc::StatusCode::CANCELLED, "the client has gone"});
    if (const Health health = now(); health != told_) return tell(health);
    if (door_.ending) return Finish({grpc::StatusCode::UNAVAILABLE, "the server is going away"});
    alarm_.Set(std::chrono::system_clock::now() + look_every, [this](bool) { look(); });
  }

  InferDoor& door_;
  const SideRoom metadata_;
  const bool known_;
  Health told_ = HealthCheckResponse::UNKNOWN;
  grpc::ByteBuffer answer_;
  grpc::Alarm alarm_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace

bool has_health(std::string_view service) {
  return service.empty() || service == "inference.GRPCInferenceService";
}

RawService::WriteReactor* watch_health(InferDoor& door, grpc::CallbackServerContext& context,
                                       RawMessage& message) {
  const TraceContext trace = join_trace(context, door.commons.options.trace_share);
  auto record =
      begin_record(door.commons, context, "/grpc.health.v1.Health/Watch", message.bytes.Length(), trace);
  grpc::health::v1::HealthCheckRequest request;
  grpc::Status status = read_message(message, longest_request, nullptr, request);
  SideRoom metadata(door.commons.side);
  if (status.ok() && !metadata.hold(metadata_cost(context)))
    status = refuse_full(context, "there is no room now for the call's metadata of " +
                                      std::to_string(metadata_cost(context)) + " bytes");
  if (status.ok() && door.watches.fetch_add(1) >= watches_most) {
    door.watches.fetch_sub(1);
    status = refuse_full(
        context, "there are as many watches of health as there may be: " + std::to_string(watches_most));
  }
  // Of one that goes on, the beginning.
  end_record(door.commons, std::move(record), status.error_code(), 0);
  if (!status.ok()) return new RefusedWatch(status);
  return new HealthWatch(door, std::move(metadata), has_health(request.service()));
}

}  // namespace carillon::frontend
