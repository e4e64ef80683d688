#include "carillon/frontend/grpc/message_cost.h"

#include <algorithm>
#include <cstdint>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

namespace carillon::frontend {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

// With what the allocator and the list of them take.
constexpr std::size_t of_message = 256;
constexpr std::size_t of_text = 80;
constexpr std::size_t of_unknown = 80;
constexpr std::size_t of_number = 24;  // in a list that doubles
constexpr int deepest_message = 100;   // protobuf reads no deeper

class Counter {
 public:
  Counter(google::protobuf::io::CodedInputStream& in, std::size_t most) : in_(in), most_(most) {}

  // False: there is nothing more to count.
  bool count(const google::protobuf::Descriptor* type, int depth) {
    while (const std::uint32_t tag = in_.ReadTag()) {
      const FieldDescriptor* const field =
          type != nullptr ? type->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag)) : nullptr;
      if (!count_field(tag, field, depth) || cost_ > most_) return false;
    }
    return true;
  }
  std::size_t cost() const { return cost_; }

 private:
  bool count_field(std::uint32_t tag, const FieldDescriptor* field, int depth) {
    switch (WireFormatLite::GetTagWireType(tag)) {
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        return count_length(field, depth);
      case WireFormatLite::WIRETYPE_START_GROUP:
      case WireFormatLite::WIRETYPE_END_GROUP:
        cost_ += of_unknown;
        return true;
      case WireFormatLite::WIRETYPE_VARINT:
      case WireFormatLite::WIRETYPE_FIXED32:
      case WireFormatLite::WIRETYPE_FIXED64:
        if (field == nullptr)
          cost_ += of_unknown;
        else if (field->is_repeated())
          cost_ += of_number;
        return WireFormatLite::SkipField(&in_, tag);
    }
    return false;
  }

  bool count_length(const FieldDescriptor* field, int depth) {
    std::uint32_t length = 0;
    if (!in_.ReadVarint32(&length) || length > INT32_MAX) return false;
    const int size = static_cast<int>(length);
    if (field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      cost_ += of_message;
      if (depth == deepest_message) return false;
      const auto limit = in_.PushLimit(size);
      const bool whole = count(field->message_type(), depth + 1) && in_.BytesUntilLimit() == 0;
      in_.PopLimit(limit);
      return whole;
    }
    if (field != nullptr && field->cpp_type() != FieldDescriptor::CPPTYPE_STRING)
      return count_packed(*field, size);
    cost_ += (field != nullptr ? of_text : of_unknown) + length;
    return in_.Skip(size);
  }

  // Numbers in a list, which doubles: for a moment there are an old and a new one.
  bool count_packed(const FieldDescriptor& field, int size) {
    std::size_t bytes = static_cast<std::size_t>(size);
    const bool wide = field.cpp_type() == FieldDescriptor::CPPTYPE_INT64 ||
                      field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
    const bool narrow = field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
    switch (field.type()) {
      case FieldDescriptor::TYPE_FIXED32:
      case FieldDescriptor::TYPE_FIXED64:
      case FieldDescriptor::TYPE_SFIXED32:
      case FieldDescriptor::TYPE_SFIXED64:
      case FieldDescriptor::TYPE_FLOAT:
      case FieldDescriptor::TYPE_DOUBLE:
        cost_ += 2 * bytes;
        return in_.Skip(size);
      default:
        break;
    }
    // Of varints each ends with a byte below 128.
    std::size_t numbers = 0;
    for (int left = size; left > 0;) {
      const void* data = nullptr;
      int there = 0;
      if (!in_.GetDirectBufferPointer(&data, &there) || there == 0) return false;
      there = std::min(there, left);
      const auto* const first = static_cast<const std::uint8_t*>(data);
      numbers += static_cast<std::size_t>(
          std::count_if(first, first + there, [](std::uint8_t b) { return b < 128; }));
      left -= there;
      if (!in_.Skip(there)) return false;
    }
    cost_ += 2 * numbers * (wide ? 8 : narrow ? 1 : 4);
    return true;
  }

  google::protobuf::io::CodedInputStream& in_;
  const std::size_t most_;
  std::size_t cost_ = of_message;
};

}  // namespace

std::size_t message_cost(const google::protobuf::Descriptor& type, google::protobuf::io::CodedInputStream& in,
                         std::size_t most) {
  Counter counter(in, most);
  (void)counter.count(&type, 0);
  return counter.cost();
}

}  // namespace carillon::frontend
