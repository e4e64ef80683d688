#include "carillon/frontend/codec/status.h"

#include <grpcpp/support/status_code_enum.h>

namespace carillon::frontend {

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return 400;
    case ErrorCode::not_found:
      return 404;
    case ErrorCode::unsupported:
      return 501;
    case ErrorCode::resource_exhausted:
    case ErrorCode::unavailable:
      return 503;
    case ErrorCode::deadline_exceeded:
      return 504;
    case ErrorCode::cancelled:
      return 499;
    case ErrorCode::internal:
      return 500;
  }
  return 500;
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Unknown";
  }
}

int grpc_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case ErrorCode::not_found:
      return grpc::StatusCode::NOT_FOUND;
    case ErrorCode::unsupported:
      return grpc::StatusCode::UNIMPLEMENTED;
    case ErrorCode::resource_exhausted:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case ErrorCode::unavailable:
      return grpc::StatusCode::UNAVAILABLE;
    case ErrorCode::deadline_exceeded:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case ErrorCode::cancelled:
      return grpc::StatusCode::CANCELLED;
    case ErrorCode::internal:
      return grpc::StatusCode::INTERNAL;
  }
  return grpc::StatusCode::INTERNAL;
}

}  // namespace carillon::frontend
