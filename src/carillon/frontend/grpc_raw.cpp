#include "carillon/frontend/grpc_raw.h"

#include <utility>

#include <google/protobuf/message_lite.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>
#include <grpcpp/support/slice.h>

#include "carillon/base/assert.h"
#include "carillon/frontend/compression.h"

namespace carillon::frontend {
namespace {

using UnaryHandler = grpc::internal::CallbackUnaryHandler<RawMessage, grpc::ByteBuffer>;
using AnswersHandler = grpc::internal::CallbackServerStreamingHandler<RawMessage, grpc::ByteBuffer>;
using StreamHandler = grpc::internal::CallbackBidiHandler<RawMessage, grpc::ByteBuffer>;

grpc::Status unreadable(const google::protobuf::MessageLite& message, std::size_t size) {
  return {grpc::StatusCode::INVALID_ARGUMENT, "the call's message of " + std::to_string(size) +
                                                  " bytes cannot be read as " + message.GetTypeName()};
}

grpc::Status unpack_status(const UnpackError& error) {
  return {error.fault == UnpackFault::damaged ? grpc::StatusCode::INVALID_ARGUMENT
                                              : grpc::StatusCode::RESOURCE_EXHAUSTED,
          error.message};
}

}  // namespace

grpc::Status read_message(RawMessage& from, std::size_t limit, Reservation* room,
                          google::protobuf::MessageLite& to) {
  if (!from.bytes.Valid()) return {grpc::StatusCode::INVALID_ARGUMENT, "the call has no message"};
  if (!from.packed) {
    grpc::ByteBuffer bytes;
    bytes.Swap(&from.bytes);
    grpc::ProtoBufferReader reader(&bytes);
    if (!reader.status().ok() || !to.ParseFromZeroCopyStream(&reader)) return unreadable(to, bytes.Length());
    return grpc::Status::OK;
  }
  grpc::Slice packed;
  if (auto one = from.bytes.DumpToSingleSlice(&packed); !one.ok()) return one;
  const auto unpacked = unpack({reinterpret_cast<const char*>(packed.begin()), packed.size()}, limit, room);
  if (!unpacked) return unpack_status(unpacked.error());
  from.bytes.Clear();
  const auto text = unpacked->text();
  if (!to.ParseFromArray(text.data(), static_cast<int>(text.size()))) return unreadable(to, text.size());
  return grpc::Status::OK;
}

void write_message(const google::protobuf::MessageLite& from, grpc::ByteBuffer& to) {
  constexpr int block = 1 << 20;
  const std::size_t size = from.ByteSizeLong();
  if (size <= GRPC_SLICE_INLINED_SIZE) {
    std::string text;
    CARILLON_ASSERT(from.SerializeToString(&text));
    const grpc::Slice slice(text);
    to = grpc::ByteBuffer(&slice, 1);
    return;
  }
  to.Clear();
  grpc::ProtoBufferWriter writer(&to, block, static_cast<int>(size));
  CARILLON_ASSERT(from.SerializeToZeroCopyStream(&writer));
}

const char* RawService::keep(std::string method) {
  return names_.emplace_back(std::move(method)).c_str();
}

void RawService::add_unary(std::string method, Unary answer) {
  AddMethod(new grpc::internal::RpcServiceMethod(keep(std::move(method)),
                                                 grpc::internal::RpcMethod::NORMAL_RPC, nullptr));
  MarkMethodRawCallback(
      methods_++,
      new UnaryHandler([answer = std::move(answer)](grpc::CallbackServerContext* context,
                                                    const RawMessage* message, grpc::ByteBuffer* response) {
        // It is the call's own, and const only in the signature.
        return answer(context, const_cast<RawMessage&>(*message), *response);
      }));
}

void RawService::add_stream(std::string method, Stream open) {
  AddMethod(new grpc::internal::RpcServiceMethod(keep(std::move(method)),
                                                 grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
  MarkMethodRawCallback(methods_++, new StreamHandler(std::move(open)));
}

void RawService::add_answers(std::string method, Answers open) {
  AddMethod(new grpc::internal::RpcServiceMethod(keep(std::move(method)),
                                                 grpc::internal::RpcMethod::SERVER_STREAMING, nullptr));
  MarkMethodRawCallback(methods_++,
                        new AnswersHandler([open = std::move(open)](grpc::CallbackServerContext* context,
                                                                    const RawMessage* message) {
                          return open(context, const_cast<RawMessage&>(*message));  // as above
                        }));
}

}  // namespace carillon::frontend
