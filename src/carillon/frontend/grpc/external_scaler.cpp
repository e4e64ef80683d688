#include "carillon/frontend/grpc/external_scaler.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <expected>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "externalscaler.grpc.pb.h"
#include <fmt/format.h>
#include <grpcpp/alarm.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "carillon/frontend/grpc/grpc_credentials.h"
#include "carillon/frontend/net/address.h"
#include "carillon/frontend/net/descriptor.h"
#include "carillon/frontend/net/listener.h"

namespace carillon::frontend {
namespace {

namespace keda = ::externalscaler;

constexpr const char* metric_name = "carillon_devices_wanted";
constexpr std::int64_t most_devices_per_worker = 4096;
// A ScaledObject's metadata are a few lines.
constexpr int longest_scaler_request = 64 << 10;
constexpr std::size_t buffers_of_scaler = std::size_t{32} << 20;
constexpr int calls_of_connection = 128;
constexpr int scaler_handshake_ms = 15'000, scaler_idle_ms = 600'000;  // KEDA asks some times a minute
constexpr auto stream_looks_every = std::chrono::milliseconds(200);

grpc::Status bad_metadata(std::string text) {
  return {grpc::StatusCode::INVALID_ARGUMENT, std::move(text)};
}

// Of text that a peer sent.
std::string cut_text(std::string_view text) {
  return "'" + std::string(text.substr(0, 64)) + "'";
}

bool same_but_for_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

// What the metadata of a trigger ask for.
struct Asked {
  std::string_view group;  // empty: the only one
  std::int64_t devices_per_worker = 1;
};
std::expected<Asked, grpc::Status> asked_of(const keda::ScaledObjectRef& object) {
  Asked out;
  for (const auto& [key, value] : object.scalermetadata()) {
    if (key == "subcluster") {
      if (value.empty())
        return std::unexpected(bad_metadata("metadata: subcluster is empty; leave it out, or name one"));
      out.group = value;
    } else if (key == "devicesPerWorker") {
      const auto [end, error] =
          std::from_chars(value.data(), value.data() + value.size(), out.devices_per_worker);
      if (error != std::errc() || end != value.data() + value.size() || out.devices_per_worker < 1 ||
          out.devices_per_worker > most_devices_per_worker)
        return std::unexpected(
            bad_metadata(fmt::format("metadata: devicesPerWorker is {}: it must be a number from 1 to {}",
                                     cut_text(value), most_devices_per_worker)));
    } else {
      for (const std::string_view ours : {"subcluster", "devicesPerWorker"})
        if (same_but_for_case(key, ours))
          return std::unexpected(bad_metadata(fmt::format("metadata: {} is called {}", cut_text(key), ours)));
    }
  }
  return out;
}

std::expected<int, grpc::Status> wanted_of(const Asked& asked, const LookAtWanted& look) {
  const auto groups = look();
  if (!groups) return std::unexpected(grpc::Status(grpc::StatusCode::UNAVAILABLE, groups.error().message));
  if (groups->empty())
    return std::unexpected(grpc::Status(grpc::StatusCode::UNAVAILABLE, "no number of devices is known yet"));
  if (asked.group.empty() && groups->size() == 1) return groups->front().wanted;
  constexpr std::size_t most_named = 20;
  std::string names;
  for (std::size_t i = 0; i < groups->size(); ++i) {
    if ((*groups)[i].group == asked.group) return (*groups)[i].wanted;
    if (i < most_named) names += (i == 0 ? "" : ", ") + (*groups)[i].group;
  }
  if (groups->size() > most_named) names += ", ...";
  return std::unexpected(bad_metadata(
      asked.group.empty()
          ? fmt::format("metadata: subcluster must name one of several: {}", names)
          : fmt::format("metadata: there is no subcluster {}; there is: {}", cut_text(asked.group), names)));
}

// The service's part of a stream. Either a message is being written or the alarm is set, never both.
class ActiveStream final : public grpc::ServerWriteReactor<keda::IsActiveResponse> {
 public:
  ActiveStream(std::atomic<std::size_t>& streams, const std::atomic<bool>& ending)
      : streams_(streams), ending_(ending) {
    answer_.set_result(true);
    StartWrite(&answer_);
  }
  ~ActiveStream() override { streams_.fetch_sub(1); }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish({grpc::StatusCode::CANCELLED, "the client has gone"});
    look();
  }
  // Seen at the next look: an alarm cannot be set and taken back at once.
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { delete this; }

 private:
  void look() {
    if (cancelled_) return Finish({grpc::StatusCode::CANCELLED, "the client has gone"});
    if (ending_) return Finish({grpc::StatusCode::UNAVAILABLE, "this process is going away"});
    alarm_.Set(std::chrono::system_clock::now() + stream_looks_every, [this](bool) { look(); });
  }

  std::atomic<std::size_t>& streams_;
  const std::atomic<bool>& ending_;
  keda::IsActiveResponse answer_;
  grpc::Alarm alarm_;
  std::atomic<bool> cancelled_ = false;
};

class RefusedActive final : public grpc::ServerWriteReactor<keda::IsActiveResponse> {
 public:
  explicit RefusedActive(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class ScalerService final : public keda::ExternalScaler::CallbackService {
 public:
  ScalerService(LookAtWanted look, std::size_t most_streams)
      : look_(std::move(look)), most_streams_(most_streams) {}

  void end() { ending_ = true; }

  grpc::ServerUnaryReactor* IsActive(grpc::CallbackServerContext* context,
                                     const keda::ScaledObjectRef* object,
                                     keda::IsActiveResponse* answer) override {
    const auto wanted = number(*object);
    answer->set_result(wanted.has_value());
    return finish(context, wanted ? grpc::Status::OK : wanted.error());
  }

  grpc::ServerWriteReactor<keda::IsActiveResponse>* StreamIsActive(
      grpc::CallbackServerContext*, const keda::ScaledObjectRef* object) override {
    if (const auto wanted = number(*object); !wanted) return new RefusedActive(wanted.error());
    if (streams_.fetch_add(1) >= most_streams_) {
      streams_.fetch_sub(1);
      return new RefusedActive({grpc::StatusCode::RESOURCE_EXHAUSTED,
                                fmt::format("there are as many streams as there may be: {}", most_streams_)});
    }
    return new ActiveStream(streams_, ending_);
  }

  grpc::ServerUnaryReactor* GetMetricSpec(grpc::CallbackServerContext* context,
                                          const keda::ScaledObjectRef* object,
                                          keda::GetMetricSpecResponse* answer) override {
    // Without a number the autoscaler is told of its metric all the same: KEDA makes it of this answer.
    const auto asked = asked_of(*object);
    if (!asked) return finish(context, asked.error());
    if (const auto wanted = wanted_of(*asked, look_);
        !wanted && wanted.error().error_code() != grpc::StatusCode::UNAVAILABLE)
      return finish(context, wanted.error());
    keda::MetricSpec& spec = *answer->add_metricspecs();
    spec.set_metricname(metric_name);
    spec.set_targetsize(asked->devices_per_worker);
    spec.set_targetsizefloat(static_cast<double>(asked->devices_per_worker));
    return finish(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* GetMetrics(grpc::CallbackServerContext* context,
                                       const keda::GetMetricsRequest* request,
                                       keda::GetMetricsResponse* answer) override {
    if (request->metricname() != metric_name)
      return finish(context, bad_metadata(fmt::format("there is no metric {}; there is: {}",
                                                      cut_text(request->metricname()), metric_name)));
    const auto wanted = number(request->scaledobjectref());
    if (!wanted) return finish(context, wanted.error());
    keda::MetricValue& value = *answer->add_metricvalues();
    value.set_metricname(metric_name);
    value.set_metricvalue(*wanted);
    value.set_metricvaluefloat(*wanted);
    return finish(context, grpc::Status::OK);
  }

 private:
  std::expected<int, grpc::Status> number(const keda::ScaledObjectRef& object) const {
    const auto asked = asked_of(object);
    if (!asked) return std::unexpected(asked.error());
    return wanted_of(*asked, look_);
  }
  static grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext* context, const grpc::Status& status) {
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }

  const LookAtWanted look_;
  const std::size_t most_streams_;
  std::atomic<std::size_t> streams_ = 0;
  std::atomic<bool> ending_ = false;
};

class LiveScaler final : public ScalerServer {
 public:
  LiveScaler(LookAtWanted look, ScalerOptions options)
      : options_(std::move(options)), service_(std::move(look), options_.most_streams) {}
  ~LiveScaler() override {
    if (listener_ != nullptr) listener_->close();
    service_.end();
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    server_->Wait();
  }

  Result<> listen() {
    auto address = parse_address(options_.address);
    if (!address) return in_context(options_.option, address.error());
    auto listener = Listener::open(
        {.address = *address,
         .option = options_.option,
         .highest_descriptor = std::min(options_.highest_descriptor, raise_descriptor_limit() / 2),
         .log = options_.log});
    if (!listener) return std::unexpected(std::move(listener.error()));
    const auto credentials = options_.tls ? tls_credentials(options_.tls) : grpc::InsecureServerCredentials();
    grpc::ServerBuilder builder;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    grpc::ResourceQuota quota("carillon-scaler");
    quota.Resize(buffers_of_scaler);
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(longest_scaler_request);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, calls_of_connection);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, scaler_handshake_ms);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, scaler_idle_ms);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (!server_) return fail(ErrorCode::unavailable, options_.option + ": gRPC does not start");
    listener_ = std::move(*listener);
    listener_->start(
        {.on_connection =
             [this](Descriptor connection) {
               grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
               parameters.listener_fd = listener_->descriptor();
               parameters.fd = connection.release();
               acceptor_->HandleNewConnection(&parameters);
             },
         .refuse = {},
         .make_room = {}});
    return {};
  }

  std::uint16_t port() const override { return listener_->port(); }

 private:
  const ScalerOptions options_;
  ScalerService service_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace

LookAtWanted look_once_a_second(const controller::Service& service) {
  struct Last {
    std::mutex mutex;
    std::optional<TimePoint> at;
    std::vector<provision::WantedFigures> figures;
  };
  return [&service, last = std::make_shared<Last>()]() -> Result<std::vector<provision::WantedFigures>> {
    const std::lock_guard lock(last->mutex);
    if (const TimePoint now = service.now(); !last->at || now - *last->at >= std::chrono::seconds{1}) {
      last->figures = service.statistics().wanted;
      last->at = now;
    }
    if (last->figures.empty())
      return fail(ErrorCode::unavailable, "the server is starting, and has no number of devices yet");
    return last->figures;
  };
}

Result<std::unique_ptr<ScalerServer>> ScalerServer::start(LookAtWanted look, ScalerOptions options) {
  auto made = std::make_unique<LiveScaler>(std::move(look), std::move(options));
  if (auto listening = made->listen(); !listening) return std::unexpected(std::move(listening.error()));
  return made;
}

}  // namespace carillon::frontend
