#pragma once

#include <cstddef>
#include <deque>
#include <expected>
#include <functional>
#include <string>

#include <grpc/impl/codegen/grpc_types.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include "carillon/frontend/memory/byte_budget.h"

namespace google::protobuf {
class Message;
class MessageLite;
}  // namespace google::protobuf

namespace carillon::frontend {

// A message as it came: not read, and perhaps packed.
struct RawMessage {
  grpc::ByteBuffer bytes;  // none: the call has no message
  bool packed = false;     // with gzip or deflate
};

// Reads `from` into `to`, and lets its bytes go. It may have `limit` bytes of content, for which, where it is
// packed, `room` (may be null) grows. The status says what is wrong with it. RESOURCE_EXHAUSTED leaves the
// bytes as they were: a packed one has more content, or there is no room for it.
//
// `reading`: takes room for what `to` takes of memory, and is to be kept as long as `to`; where there is none
// the status is RESOURCE_EXHAUSTED, too. Null: for messages that are small. Small ones are read without.
grpc::Status read_message(RawMessage& from, std::size_t limit, Reservation* room,
                          google::protobuf::Message& to, Reservation* reading = nullptr);
void write_message(const google::protobuf::MessageLite& from, grpc::ByteBuffer& to);

// A gRPC service whose methods get bytes. Generated services read messages before their methods are called,
// answer those that they cannot read without a word, keep them as long as the call, and unpack whatever size.
class RawService : public grpc::Service {
 public:
  // Answers a call: as grpc's callback API has it. `message` and `answer` live as long as the call.
  using Unary = std::function<grpc::ServerUnaryReactor*(grpc::CallbackServerContext*, RawMessage& message,
                                                        grpc::ByteBuffer& answer)>;

  // `method` is a name such as "/package.Service/Method".
  void add_unary(std::string method, Unary answer);
  // A method with a stream of messages either way. The reactor is its caller's, and lives until OnDone().
  using StreamReactor = grpc::ServerBidiReactor<RawMessage, grpc::ByteBuffer>;
  using Stream = std::function<StreamReactor*(grpc::CallbackServerContext*)>;
  void add_stream(std::string method, Stream open);
  // A method whose one message is answered with a stream of them; likewise.
  using WriteReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;
  using Answers = std::function<WriteReactor*(grpc::CallbackServerContext*, RawMessage& message)>;
  void add_answers(std::string method, Answers open);

 private:
  const char* keep(std::string method);

  std::deque<std::string> names_;  // gRPC keeps pointers to them
  int methods_ = 0;
};

}  // namespace carillon::frontend

// Whether a message is packed stands in the C structure alone, which gRPC shows to its own templates only; a
// specialization of one of them is such a friend.
template <>
class grpc::internal::DeserializeFuncType<carillon::frontend::RawMessage> {
 public:
  static bool packed(const ByteBuffer& from) {
    const grpc_byte_buffer* const buffer = from.buffer_;
    return buffer != nullptr && buffer->type == GRPC_BB_RAW &&
           buffer->data.raw.compression != GRPC_COMPRESS_NONE;
  }
};

// How gRPC hands a RawMessage over.
template <>
class grpc::SerializationTraits<carillon::frontend::RawMessage, void> {
 public:
  static Status Deserialize(ByteBuffer* from, carillon::frontend::RawMessage* to) {
    to->packed = internal::DeserializeFuncType<carillon::frontend::RawMessage>::packed(*from);
    to->bytes.Swap(from);
    return Status::OK;
  }
};
