#include "carillon/frontend/grpc/message_cost.h"

#include <string>

#include "grpc_service.pb.h"
#include <google/protobuf/io/coded_stream.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::frontend {
namespace {

using inference::ModelInferRequest;

std::size_t cost_of(const std::string& bytes, std::size_t most = std::size_t{1} << 40) {
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                            static_cast<int>(bytes.size()));
  return message_cost(*ModelInferRequest::descriptor(), in, most);
}

// What protobuf says that a message takes, once it is read.
std::size_t taken_by(const std::string& bytes) {
  ModelInferRequest message;
  EXPECT_TRUE(message.ParseFromString(bytes));
  return message.SpaceUsedLong();
}

std::string repeated(const std::string& field, std::size_t times) {
  std::string bytes;
  for (std::size_t i = 0; i < times; ++i) bytes += field;
  return bytes;
}

TEST(MessageCost, IsAtLeastWhatTheMessageTakes) {
  ModelInferRequest typed;
  auto& input = *typed.add_inputs();
  for (int i = 0; i < 5000; ++i) input.mutable_contents()->add_int64_contents(i % 3);
  for (int i = 0; i < 5000; ++i) input.mutable_contents()->add_bytes_contents("");
  for (int i = 0; i < 500; ++i) input.add_shape(1);
  for (int i = 0; i < 100; ++i) (*typed.mutable_parameters())["p" + std::to_string(i)].set_int64_param(i);
  const std::string messages[] = {
      typed.SerializeAsString(),
      repeated(std::string("\x2a\x00", 2), 10'000),          // empty inputs
      repeated(std::string("\x3a\x00", 2), 10'000),          // empty raw contents
      repeated(std::string("\x78\x01", 2), 10'000),          // a field that nobody knows
      repeated(std::string("\x7a\x00", 2), 10'000),          // an empty one
      repeated(std::string("\x2a\x02\x2a\x00", 4), 10'000),  // contents without anything
      repeated(std::string("\x7b\x7c", 2), 1000),            // groups
      "",
  };
  for (const std::string& bytes : messages) EXPECT_GE(cost_of(bytes), taken_by(bytes)) << bytes.size();
}

TEST(MessageCost, OfRawTensorsIsHardlyMoreThanTheirBytes) {
  ModelInferRequest raw;
  raw.add_raw_input_contents(std::string(1 << 20, 'x'));
  const std::size_t size = raw.ByteSizeLong();
  EXPECT_LE(cost_of(raw.SerializeAsString()), size + 4096);
}

TEST(MessageCost, StopsWhereItIsTooMuch) {
  const std::string bytes = repeated(std::string("\x2a\x00", 2), 1'000'000);
  const std::size_t cost = cost_of(bytes, 100'000);
  EXPECT_GT(cost, 100'000U);
  EXPECT_LT(cost, 110'000U);
}

// Any bytes: what protobuf reads takes no more, and what it does not read ends.
TEST(MessageCost, HoldsForWhateverComes) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed);
    std::string bytes(random.below(65), '\0');
    for (char& c : bytes) c = static_cast<char>(random.below(4) == 0 ? random.below(256) : 0x2a);
    const std::size_t cost = cost_of(bytes);
    ModelInferRequest message;
    if (!message.ParseFromString(bytes)) continue;
    EXPECT_GE(cost, message.SpaceUsedLong()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace carillon::frontend
