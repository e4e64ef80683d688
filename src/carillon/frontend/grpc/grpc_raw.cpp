#include "carillon/frontend/grpc/grpc_raw.h"

#include <utility>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>
#include <grpcpp/support/slice.h>

#include "carillon/base/assert.h"
#include "carillon/frontend/grpc/message_cost.h"
#include "carillon/frontend/http/compression.h"

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

// Room for `to`, beside `room`, in which its bytes lie.
grpc::Status take_reading(const google::protobuf::Message& to, google::protobuf::io::CodedInputStream& in,
                          const Reservation* room, std::size_t size, Reservation& reading) {
  if (room == nullptr) return grpc::Status::OK;
  reading = room->beside();
  const std::size_t most = reading.most_beside(room->bytes());
  const std::size_t cost = message_cost(*to.GetDescriptor(), in, most);
  // Raw tensors are read as they are: such a message may be as large as everything that may be in flight.
  const bool as_it_is = cost <= size + size / 4;
  if (cost > most && !as_it_is)
    return {grpc::StatusCode::INVALID_ARGUMENT,
            "reading this message of " + std::to_string(size) + " bytes would take more than " +
                std::to_string(most) +
                " bytes, the most that there can be beside it (--inflight-limit); send large tensors in "
                "raw_input_contents"};
  if (as_it_is ? reading.grow_within(cost, room->bytes()) : reading.grow(cost)) return grpc::Status::OK;
  return {grpc::StatusCode::RESOURCE_EXHAUSTED,
          "there is no room now for the " + std::to_string(cost) + " bytes that reading a message of " +
              std::to_string(size) + " bytes takes: too many are in flight"};
}

}  // namespace

grpc::Status read_message(RawMessage& from, std::size_t limit, Reservation* room,
                          google::protobuf::Message& to, Reservation* reading) {
  if (!from.bytes.Valid()) return {grpc::StatusCode::INVALID_ARGUMENT, "the call has no message"};
  if (!from.packed) {
    const std::size_t size = from.bytes.Length();
    if (size > limit)
      return {grpc::StatusCode::INVALID_ARGUMENT, "the message has " + std::to_string(size) +
                                                      " bytes; at most " + std::to_string(limit) +
                                                      " are allowed here"};
    grpc::ByteBuffer bytes(from.bytes);  // the same slices
    if (reading != nullptr && size > ByteBudget::small) {
      grpc::ProtoBufferReader reader(&bytes);
      google::protobuf::io::CodedInputStream in(&reader);
      if (auto found = take_reading(to, in, room, size, *reading); !found.ok()) return found;
    }
    from.bytes.Clear();
    grpc::ProtoBufferReader reader(&bytes);
    if (!reader.status().ok() || !to.ParseFromZeroCopyStream(&reader)) return unreadable(to, size);
    return grpc::Status::OK;
  }
  grpc::Slice packed;
  if (auto one = from.bytes.DumpToSingleSlice(&packed); !one.ok()) return one;
  const auto unpacked = unpack({reinterpret_cast<const char*>(packed.begin()), packed.size()}, limit, room);
  if (!unpacked) return unpack_status(unpacked.error());
  const auto text = unpacked->text();
  const int size = static_cast<int>(text.size());
  if (reading != nullptr && text.size() > ByteBudget::small) {
    google::protobuf::io::CodedInputStream in(reinterpret_cast<const std::uint8_t*>(text.data()), size);
    if (auto found = take_reading(to, in, room, text.size(), *reading); !found.ok()) return found;
  }
  from.bytes.Clear();
  if (!to.ParseFromArray(text.data(), size)) return unreadable(to, text.size());
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
