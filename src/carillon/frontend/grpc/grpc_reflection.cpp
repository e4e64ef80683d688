#include "carillon/frontend/grpc/grpc_reflection.h"

#include <cstddef>
#include <set>
#include <utility>

#include "reflection_v1.pb.h"
#include "reflection_v1alpha.pb.h"
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include "carillon/frontend/grpc/grpc_access.h"
#include "carillon/frontend/grpc/grpc_stream.h"

namespace carillon::frontend {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;

constexpr std::size_t longest_question = std::size_t{16} << 10;
constexpr const char* v1_name = "grpc.reflection.v1.ServerReflection";
constexpr const char* v1alpha_name = "grpc.reflection.v1alpha.ServerReflection";

// A file, and before it those that it imports: whoever gets them need not ask again.
template <typename Files>
void add_file(const FileDescriptor& file, std::set<const FileDescriptor*>& seen, Files& to) {
  if (!seen.insert(&file).second) return;
  for (int i = 0; i < file.dependency_count(); ++i) add_file(*file.dependency(i), seen, to);
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  proto.SerializeToString(to.Add());
}

template <typename Response>
void set_file(const FileDescriptor* file, const std::string& what, Response& response) {
  if (file == nullptr) {
    response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
    response.mutable_error_response()->set_error_message("there is no " + what.substr(0, 256) + " here");
    return;
  }
  std::set<const FileDescriptor*> seen;
  add_file(*file, seen, *response.mutable_file_descriptor_response()->mutable_file_descriptor_proto());
}

template <typename Request, typename Response>
void answer(const Request& request, const std::vector<std::string>& services, Response& response) {
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      return set_file(pool.FindFileByName(request.file_by_filename()), "file " + request.file_by_filename(),
                      response);
    case Request::kFileContainingSymbol:
      return set_file(pool.FindFileContainingSymbol(request.file_containing_symbol()),
                      "symbol " + request.file_containing_symbol(), response);
    case Request::kFileContainingExtension:
    case Request::kAllExtensionNumbersOfType:
      return set_file(nullptr, "extension", response);  // proto3 has none
    case Request::kListServices:
      for (const std::string& name : services)
        response.mutable_list_services_response()->add_service()->set_name(name);
      return;
    case Request::MESSAGE_REQUEST_NOT_SET:
      break;
  }
  response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
  response.mutable_error_response()->set_error_message("the request asks for nothing that is known here");
}

// One stream: a question is read, answered, and then the next.
template <typename Request, typename Response>
class ReflectionStream final : public RawService::StreamReactor {
 public:
  ReflectionStream(InferDoor& door, grpc::CallbackServerContext& context,
                   const std::vector<std::string>& services)
      : door_(door),
        context_(context),
        services_(services),
        connection_(door.side_shares.of(context.peer())),
        room_(door.commons.side, connection_.share()),
        metadata_(metadata_cost(context)) {
    if (room_.hold(metadata_))
      StartRead(&message_);
    else
      Finish(no_room("call's metadata", metadata_));
  }
  ~ReflectionStream() override { door_.streams.fetch_sub(1); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    Request request;
    if (const auto read = read_message(message_, longest_question, nullptr, request); !read.ok())
      return Finish(read);
    Response response;
    answer(request, services_, response);
    const std::size_t size = response.ByteSizeLong();
    if (!room_.hold(metadata_ + size)) return Finish(no_room("answer", size));
    write_message(response, answer_);
    taking_ = door_.times.begin(context_.c_call(), answer_.Length());
    StartWrite(&answer_);
  }
  void OnWriteDone(bool ok) override {
    taking_ = {};
    room_.shrink_to(metadata_);
    if (!ok) return Finish({grpc::StatusCode::CANCELLED, "the client has gone"});
    message_ = {};
    StartRead(&message_);
  }
  void OnDone() override { delete this; }

 private:
  grpc::Status no_room(const std::string& what, std::size_t bytes) {
    return refuse_full(context_,
                       "there is no room now for the " + what + " of " + std::to_string(bytes) + " bytes");
  }

  InferDoor& door_;
  grpc::CallbackServerContext& context_;
  const std::vector<std::string>& services_;
  RawMessage message_;
  grpc::ByteBuffer answer_;
  const CallOfConnection connection_;
  SideRoom room_;  // for it, and what follows
  const std::size_t metadata_;
  AnswerTimes::Ticket taking_;
};

class RefusedReflection final : public RawService::StreamReactor {
 public:
  explicit RefusedReflection(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

template <typename Request, typename Response>
RawService::StreamReactor* open_reflection(InferDoor& door, grpc::CallbackServerContext& context,
                                           const char* name, const std::vector<std::string>& services) {
  const TraceContext trace = join_trace(context, door.commons.options.trace_share);
  auto record =
      begin_record(door.commons, context, "/" + std::string(name) + "/ServerReflectionInfo", 0, trace);
  grpc::Status status;
  const auto caller = admit_grpc(*door.commons.guard, context, Need::reading, door.service.now());
  if (!caller) {
    status = refuse_call(context, caller.error());
  } else if (door.streams.fetch_add(1) >= streams_most) {
    door.streams.fetch_sub(1);
    status = refuse_full(context, "there are as many streams as there may be");
  }
  if (record && caller && *caller) record->key = (*caller)->key.name;
  end_record(door.commons, std::move(record), status.error_code(), 0);
  if (!status.ok()) return new RefusedReflection(status);
  return new ReflectionStream<Request, Response>(door, context, services);
}

}  // namespace

ReflectionService::ReflectionService(InferDoor& door, std::vector<std::string> services)
    : services_(std::move(services)) {
  services_.insert(services_.end(), {v1_name, v1alpha_name});
  add_stream("/" + std::string(v1_name) + "/ServerReflectionInfo",
             [&door, this](grpc::CallbackServerContext* context) {
               using namespace grpc::reflection::v1;
               return open_reflection<ServerReflectionRequest, ServerReflectionResponse>(door, *context,
                                                                                         v1_name, services_);
             });
  add_stream("/" + std::string(v1alpha_name) + "/ServerReflectionInfo",
             [&door, this](grpc::CallbackServerContext* context) {
               using namespace grpc::reflection::v1alpha;
               return open_reflection<ServerReflectionRequest, ServerReflectionResponse>(
                   door, *context, v1alpha_name, services_);
             });
}

}  // namespace carillon::frontend
