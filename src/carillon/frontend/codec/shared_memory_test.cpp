#include "carillon/frontend/codec/shared_memory.h"

#include <array>
#include <cstring>
#include <limits>
#include <memory>

#include "infer.pb.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "carillon/frontend/codec/infer_codec_grpc.h"
#include "carillon/frontend/codec/infer_codec_json.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/frontend/testing/fake_service.h"
#include "carillon/frontend/testing/lent_object.h"

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;

std::string text_of_bytes(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(SharedMemory, ReadsAndWritesPartsOfARegion) {
  LentObject object(64);
  object.put(16, "abcdefgh");
  SharedMemory memory(4);
  ASSERT_TRUE(memory.add({.name = "r", .key = object.key(), .offset = 16, .byte_size = 32}));
  const auto part = memory.part("r", 2, 4);
  ASSERT_TRUE(part) << part.error().message;
  std::array<std::byte, 4> read{};
  ASSERT_TRUE(part->read(read));
  EXPECT_EQ(std::memcmp(read.data(), "cdef", 4), 0);
  ASSERT_TRUE(memory.part("r", 30, 2)->write(std::as_bytes(std::span("zz", 2))));
  EXPECT_EQ(object.get(46, 2), "zz");
}

TEST(SharedMemory, TakesKeysWithAndWithoutASlash) {
  LentObject object(8);
  SharedMemory memory(4);
  EXPECT_TRUE(memory.add({.name = "a", .key = object.key(), .byte_size = 8}));
  EXPECT_TRUE(memory.add({.name = "b", .key = object.key().substr(1), .offset = 7, .byte_size = 1}));
  const auto all = memory.status("");
  ASSERT_EQ(all->size(), 2U);
  EXPECT_EQ((*all)[0], (RegionInfo{.name = "a", .key = object.key(), .offset = 0, .byte_size = 8}));
  EXPECT_EQ(memory.status("b")->at(0).offset, 7U);
  EXPECT_EQ(memory.status("c").error().code, ErrorCode::not_found);
  memory.remove("c");
  memory.remove("a");
  EXPECT_EQ(memory.status("")->size(), 1U);
  memory.remove_all();
  EXPECT_TRUE(memory.status("")->empty());
}

TEST(SharedMemory, RefusesWithAReason) {
  LentObject object(64);
  const std::string link = "/dev/shm" + object.key() + "_link";
  const std::string pipe = "/dev/shm" + object.key() + "_pipe";
  ASSERT_EQ(symlink("/etc/passwd", link.c_str()), 0);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  const struct {
    RegionInfo region;
    std::string wanted;
  } rows[] = {
      {{"", object.key(), 0, 8}, "has 0 bytes; it must have 1"},
      {{std::string(257, 'a'), object.key(), 0, 8}, "has 257 bytes"},
      {{"\xff", object.key(), 0, 8}, "UTF-8"},
      {{"r", "", 0, 8}, "is not a name in /dev/shm"},
      {{"r", "/", 0, 8}, "is not a name in /dev/shm"},
      {{"r", ".", 0, 8}, "is not a name in /dev/shm"},
      {{"r", "/..", 0, 8}, "is not a name in /dev/shm"},
      {{"r", "/../etc/passwd", 0, 8}, "is not a name in /dev/shm"},
      {{"r", "/" + object.key(), 0, 8}, "is not a name in /dev/shm"},
      {{"r", "/a/b", 0, 8}, "is not a name in /dev/shm"},
      {{"r", object.key() + std::string("\0x", 2), 0, 8}, "is not a name in /dev/shm"},
      {{"r", std::string(300, 'k'), 0, 8}, "is not a name in /dev/shm"},
      {{"r", "/carillon_test_nobody", 0, 8}, "cannot be opened"},
      {{"r", object.key() + "_link", 0, 8}, "cannot be opened"},
      {{"r", object.key() + "_pipe", 0, 8}, "another file"},
      {{"r", object.key(), 0, 0}, "the object has 64 bytes"},
      {{"r", object.key(), 0, 65}, "the object has 64 bytes"},
      {{"r", object.key(), 64, 1}, "the object has 64 bytes"},
      {{"r", object.key(), most, 8}, "the object has 64 bytes"},
      {{"r", object.key(), 8, most}, "the object has 64 bytes"},
  };
  SharedMemory memory(1);
  for (const auto& [region, wanted] : rows) {
    const auto added = memory.add(region);
    ASSERT_FALSE(added) << wanted << " " << region.key;
    EXPECT_THAT(added.error().message, HasSubstr(wanted));
  }
  unlink(link.c_str());
  unlink(pipe.c_str());

  ASSERT_TRUE(memory.add({.name = "r", .key = object.key(), .byte_size = 64}));
  EXPECT_THAT(memory.add({.name = "r", .key = object.key(), .byte_size = 64}).error().message,
              HasSubstr("registered already"));
  const auto full = memory.add({.name = "s", .key = object.key(), .byte_size = 64});
  EXPECT_EQ(full.error().code, ErrorCode::resource_exhausted);
  EXPECT_THAT(memory.part("q", 0, 1).error().message, HasSubstr("'q'"));
  EXPECT_THAT(memory.part("r", 60, 5).error().message, HasSubstr("lead out of"));
  EXPECT_THAT(memory.part("r", most, 2).error().message, HasSubstr("lead out of"));
  EXPECT_THAT(memory.part("r", 2, most).error().message, HasSubstr("lead out of"));
}

TEST(SharedMemory, WithKeysARegionIsForWhomItWasRegistered) {
  LentObject object(8);
  SharedMemory memory(2);
  ASSERT_TRUE(memory.add({.name = "cam-1", .key = object.key(), .byte_size = 8, .owner = "a"}));
  const auto named = [&](const Key& key) { return memory.part("cam-1", 0, 8, &key); };
  EXPECT_TRUE(named({.name = "a"}));
  EXPECT_TRUE(named({.name = "b", .regions = {"cam-*"}}));
  EXPECT_TRUE(named({.name = "b", .admin = true}));
  EXPECT_TRUE(memory.part("cam-1", 0, 8));
  // Told as if there were none.
  const auto refused = named({.name = "b", .regions = {"other"}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "no shared memory region 'cam-1' is registered that key 'b' may name");
  const Key b{.name = "b"};
  EXPECT_EQ(memory.part("cam-2", 0, 8, &b).error().message,
            "no shared memory region 'cam-2' is registered that key 'b' may name");
}

TEST(SharedMemory, AnObjectThatIsCutIsAnErrorAndIsNotMadeLongerAgain) {
  LentObject object(8192);
  SharedMemory memory(1);
  ASSERT_TRUE(memory.add({.name = "r", .key = object.key(), .byte_size = 8192}));
  const auto part = memory.part("r", 0, 8192);
  object.cut(100);
  std::vector<std::byte> bytes(8192);
  EXPECT_THAT(part->read(bytes).error().message, HasSubstr("has become shorter"));
  EXPECT_THAT(part->write(bytes).error().message, HasSubstr("has become shorter"));
  object.cut(100);
  EXPECT_TRUE(memory.part("r", 0, 100)->read(std::span(bytes).first(100)));
}

TEST(SharedMemory, ARegionThatIsUnregisteredLivesOnForThoseWhoUseIt) {
  std::optional<SharedPart> part;
  {
    LentObject object(4);
    object.put(0, "abcd");
    SharedMemory memory(1);
    ASSERT_TRUE(memory.add({.name = "r", .key = object.key(), .byte_size = 4}));
    part = *memory.part("r", 0, 4);
    memory.remove_all();
  }
  std::array<std::byte, 4> read{};
  ASSERT_TRUE(part->read(read));
  EXPECT_EQ(std::memcmp(read.data(), "abcd", 4), 0);
}

// Requests of the model "pair": x is 12 bytes, n 8, y 12, s 8.
class SharedTensors : public ::testing::Test {
 protected:
  SharedTensors() {
    object.put(0, "abcdefghijkl");
    EXPECT_TRUE(memory.add({.name = "r", .key = object.key(), .byte_size = 64}));
  }

  Result<InferRequest> parse(const std::string& x, const std::string& outputs = "[]") {
    const std::string json = R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],)" + x +
                             R"(},{"name":"n","datatype":"INT32","shape":[1,2],"data":[1,2]}],"outputs":)" +
                             outputs + "}";
    return parse_infer_json(pair_model(), PaddedBytes(json), {}, TimePoint{100s},
                            {.regions = &memory, .room = &room});
  }

  static std::string in_memory(std::uint64_t bytes, std::uint64_t offset = 0) {
    return R"("parameters":{"shared_memory_region":"r","shared_memory_byte_size":)" + std::to_string(bytes) +
           R"(,"shared_memory_offset":)" + std::to_string(offset) + "}";
  }

  LentObject object{64};
  SharedMemory memory{4};
  std::shared_ptr<ByteBudget> budget = std::make_shared<ByteBudget>(100, 100);
  Reservation room{budget};
};

TEST_F(SharedTensors, InputsAreCopiedAndCounted) {
  const auto request = parse(in_memory(12));
  ASSERT_TRUE(request) << request.error().message;
  object.put(0, "............");
  EXPECT_EQ(text_of_bytes(request->call->inputs[0]), "abcdefghijkl");
  EXPECT_TRUE(request->unheeded.empty());
  EXPECT_EQ(room.bytes(), 12U);

  Reservation other(budget);
  ASSERT_TRUE(other.grow(80));
  EXPECT_EQ(parse(in_memory(12)).error().code, ErrorCode::resource_exhausted);
}

TEST_F(SharedTensors, OutputsAreCopiedIntoTheirPartAndNotIntoTheAnswer) {
  const std::string wanted = R"([{"name":"s"},{"name":"y",)" + in_memory(20, 32) + "}]";
  const auto request = parse(in_memory(12), wanted);
  ASSERT_TRUE(request) << request.error().message;
  controller::InferCall call = std::move(*request->call);
  fill_outputs(pair_model().config, call);
  ASSERT_TRUE(share_outputs(pair_model().config, *request, call));
  EXPECT_EQ(object.get(32, 12), text_of_bytes(call.outputs[0]));
  EXPECT_EQ(object.get(44, 8), std::string(8, '\0'));
  const auto body = write_infer_json(pair_model(), *request, call);
  EXPECT_THAT(body.json, HasSubstr(R"({"name":"y","datatype":"FP32","shape":[1,3]}])"));
  EXPECT_FALSE(body.binary);

  inference::ModelInferResponse response;
  ASSERT_TRUE(write_infer_grpc(pair_model(), *request, call, response));
  ASSERT_EQ(response.raw_output_contents_size(), 2);
  EXPECT_EQ(response.raw_output_contents(0).size(), 8U);
  EXPECT_EQ(response.raw_output_contents(1), "");

  object.cut(40);
  EXPECT_THAT(share_outputs(pair_model().config, *request, call).error().message,
              HasSubstr("has become shorter"));
}

TEST_F(SharedTensors, RefusedWithAReason) {
  const auto output = [](const std::string& parameters) {
    return R"([{"name":"y","parameters":{)" + parameters + "}}]";
  };
  const struct {
    std::string x, outputs, wanted;
  } rows[] = {
      {in_memory(11), "[]", "'x' of model 'pair' has 11 bytes; shape [1,3] of FP32 takes 12"},
      {in_memory(65), "[]", "lead out of"},
      {in_memory(12, 53), "[]", "lead out of"},
      {R"("parameters":{"shared_memory_region":"q","shared_memory_byte_size":12})", "[]", "region 'q'"},
      {R"("parameters":{"shared_memory_region":7,"shared_memory_byte_size":12})", "[]", "must be text"},
      {R"("parameters":{"shared_memory_region":"r"})", "[]", "without shared_memory_byte_size"},
      {R"("parameters":{"shared_memory_byte_size":12})", "[]", "without shared_memory_region"},
      {R"("parameters":{"shared_memory_region":"r","shared_memory_byte_size":-1})", "[]", "-1"},
      {in_memory(12) + R"(,"data":[1,2,3])", "[]", "both shared_memory_region and \"data\""},
      {R"("parameters":{"shared_memory_region":"r","shared_memory_byte_size":12,"binary_data_size":12})",
       "[]", "both shared_memory_region and binary_data_size"},
      {in_memory(12), output(R"("shared_memory_region":"r","shared_memory_byte_size":11)"),
       "'y' of model 'pair' has 12 bytes; shared_memory_byte_size gives it only 11"},
      {in_memory(12), output(R"("shared_memory_region":"q","shared_memory_byte_size":12)"), "region 'q'"},
      {in_memory(12), output(R"("shared_memory_offset":12)"), "without shared_memory_region"},
  };
  for (const auto& [x, outputs, wanted] : rows) {
    const auto request = parse(x, outputs);
    ASSERT_FALSE(request) << wanted;
    EXPECT_EQ(request.error().code, ErrorCode::invalid_argument) << wanted;
    EXPECT_THAT(request.error().message, HasSubstr(wanted));
  }
  object.cut(5);
  EXPECT_THAT(parse(in_memory(12)).error().message, HasSubstr("has become shorter"));
}

// In gRPC's messages raw contents are those of the inputs that are not in shared memory.
TEST_F(SharedTensors, BesideRawContents) {
  inference::ModelInferRequest message;
  auto& x = *message.add_inputs();
  x.set_name("x");
  x.set_datatype("FP32");
  x.add_shape(1);
  x.add_shape(3);
  (*x.mutable_parameters())["shared_memory_region"].set_string_param("r");
  (*x.mutable_parameters())["shared_memory_byte_size"].set_int64_param(12);
  auto& n = *message.add_inputs();
  n.set_name("n");
  n.set_datatype("INT32");
  n.add_shape(1);
  n.add_shape(2);
  message.add_raw_input_contents("12345678");
  auto& y = *message.add_outputs();
  y.set_name("y");
  (*y.mutable_parameters())["shared_memory_region"].set_string_param("r");
  (*y.mutable_parameters())["shared_memory_byte_size"].set_int64_param(12);
  const auto parse_message = [&] {
    return parse_infer_grpc(pair_model(), message, TimePoint{100s}, TimePoint::max(),
                            {.regions = &memory, .room = &room});
  };
  const auto request = parse_message();
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(text_of_bytes(request->call->inputs[0]), "abcdefghijkl");
  EXPECT_EQ(text_of_bytes(request->call->inputs[1]), "12345678");
  ASSERT_EQ(request->outputs.size(), 1U);
  EXPECT_TRUE(request->outputs[0].shared);
  EXPECT_TRUE(request->unheeded.empty());

  message.add_raw_input_contents("12345678");
  EXPECT_THAT(parse_message().error().message, HasSubstr("2 entries for 2 inputs"));
  message.mutable_raw_input_contents()->RemoveLast();
  x.mutable_contents()->add_fp32_contents(1);
  EXPECT_THAT(parse_message().error().message, HasSubstr("typed contents beside shared_memory_region"));
}

// Of an open model's input only the memory says how much there can be.
TEST(SharedOpenTensors, TheRegionsPartBoundsTheElements) {
  LentObject object(4000);
  SharedMemory memory(1);
  ASSERT_TRUE(memory.add({.name = "r", .key = object.key(), .byte_size = 4000}));
  const auto model = model_of(graph::DataType::f32, {graph::free_dimension(0)});
  const auto parse = [&](const std::string& extent, const std::string& bytes) {
    return parse_infer_json(model,
                            PaddedBytes(R"({"inputs":[{"name":"x","datatype":"FP32","shape":[)" + extent +
                                        R"(],"parameters":{"shared_memory_region":"r",)" +
                                        R"("shared_memory_byte_size":)" + bytes + "}}]}"),
                            {}, TimePoint{100s}, {.regions = &memory});
  };
  const auto request = parse("1000", "4000");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->call->inputs[0].size(), 4000U);
  EXPECT_THAT(parse("4611686018427387905", "4").error().message, HasSubstr("more elements"));
  EXPECT_THAT(parse("1001", "4000").error().message, HasSubstr("takes 4004"));
}

}  // namespace
}  // namespace carillon::frontend
