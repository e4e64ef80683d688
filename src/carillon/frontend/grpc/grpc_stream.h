#pragma once

#include <cstddef>

#include "carillon/frontend/grpc/grpc_infer.h"
#include "carillon/frontend/grpc/grpc_raw.h"

namespace carillon::frontend {

// Requests of one stream that are open at a time, from their message until their answer is written. Beyond it
// no more are read, so that a client which does not take its answers is held up, and nobody else.
inline constexpr std::size_t stream_requests_most = 128;
inline constexpr std::size_t streams_most = 4096;
// Bytes of a stream's answers that its client has not taken, and of outputs that are on their way: beyond
// them no more requests are read (a sixteenth of what may be in flight where that is less).
inline constexpr std::size_t stream_unread_most = std::size_t{64} << 20;

inline constexpr const char* stream_path = "/inference.GRPCInferenceService/ModelStreamInfer";

// Answers one ModelStreamInfer call: each request with one message, as they finish and under their ids.
// Errors are messages too (`error_message`), and the stream goes on behind them. Every message has the
// parameter triton_final_response, true: no model here answers more than once, so there are no empty final
// responses either. A refusal has the parameter carillon-would-take-us, as the trailing metadata of a
// ModelInfer call has it. Answers of a model whose config says preserve_ordering come in the order of their
// requests. Answers count as bytes in flight until they are written, and a client that takes too long over
// one loses the stream (AnswerTimes). The call's own deadline bounds those of its requests. Where the client
// cancels or goes, all that is open is cancelled; where it only stops asking, the rest is answered first.
RawService::StreamReactor* infer_stream(InferDoor& door, grpc::CallbackServerContext& context);

}  // namespace carillon::frontend
