#pragma once

#include <cstddef>

namespace google::protobuf {
class Descriptor;
namespace io {
class CodedInputStream;
}
}  // namespace google::protobuf

namespace carillon::frontend {

// At least the memory that protobuf takes for a message of type `type` when it reads it from `in`: a field of
// two bytes may become an object of 200. Stops at the first byte that it cannot read, where protobuf fails,
// and where the sum is more than `most`. Linear in the message, but for the bytes of texts.
std::size_t message_cost(const google::protobuf::Descriptor& type, google::protobuf::io::CodedInputStream& in,
                         std::size_t most);

}  // namespace carillon::frontend
