// Regions of shared memory that lie on a device: an emulated one, on which memory is planted that another
// process might have lent.
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpc_service.grpc.pb.h"
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>
#include <pthread.h>

#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/memory/ipc_memory.h"
#include "carillon/frontend/api/http_api.h"
#include "carillon/frontend/codec/infer_codec_json.h"
#include "carillon/frontend/codec/shared_memory.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/grpc/grpc_server.h"
#include "carillon/frontend/http/http_server.h"
#include "carillon/frontend/testing/fake_service.h"
#include "carillon/frontend/testing/grpc_pair.h"
#include "carillon/frontend/testing/lent_object.h"
#include "carillon/frontend/testing/test_client.h"

namespace carillon::frontend {
namespace {

namespace cuda = engine::cuda;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// Memory of a client on the device.
class Loan {
 public:
  explicit Loan(std::size_t bytes) : bytes_(bytes), memory_(bytes) {}

  std::span<const std::byte> handle() const { return std::as_bytes(std::span(memory_.handle().bytes)); }
  std::string raw() const { return {memory_.handle().bytes, sizeof memory_.handle().bytes}; }
  std::string base64() const {
    std::string text(89, '\0');
    const std::string from = raw();
    text.resize(static_cast<std::size_t>(EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                                         reinterpret_cast<const unsigned char*>(from.data()),
                                                         static_cast<int>(from.size()))));
    return text;
  }
  void put(std::size_t at, std::string_view bytes) {
    ASSERT_LE(at + bytes.size(), bytes_);
    std::memcpy(memory_.data() + at, bytes.data(), bytes.size());
  }
  std::string get(std::size_t at, std::size_t size) const {
    return {reinterpret_cast<const char*>(memory_.data()) + at, size};
  }

 private:
  std::size_t bytes_;
  cuda::EmulatedLoan memory_;
};

// What stands before an importer: it notes on which threads a device is waited for, and may let them wait.
class Watch : public std::enable_shared_from_this<Watch> {
 public:
  std::shared_ptr<engine::MemoryImporter> before(std::shared_ptr<engine::MemoryImporter> importer) {
    return std::make_shared<Importer>(shared_from_this(), std::move(importer));
  }
  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  // Until so many copies have come to wait since the start.
  void wait_for(int copies) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return copies_ >= copies; });
  }
  std::set<std::string> threads() const {
    const std::lock_guard lock(mutex_);
    return threads_;
  }

 private:
  class Importer final : public engine::MemoryImporter {
   public:
    Importer(std::shared_ptr<Watch> watch, std::shared_ptr<engine::MemoryImporter> of)
        : watch_(std::move(watch)), of_(std::move(of)) {}
    Result<std::unique_ptr<const engine::ImportedMemory>> open(const engine::MemoryHandle& handle) override {
      watch_->note();
      auto memory = of_->open(handle);
      if (!memory) return std::unexpected(memory.error());
      return std::make_unique<const Memory>(watch_, std::move(*memory));
    }

   private:
    std::shared_ptr<Watch> watch_;
    std::shared_ptr<engine::MemoryImporter> of_;
  };
  class Memory final : public engine::ImportedMemory {
   public:
    Memory(std::shared_ptr<Watch> watch, std::unique_ptr<const engine::ImportedMemory> of)
        : watch_(std::move(watch)), of_(std::move(of)) {}
    ~Memory() override { watch_->note(); }
    std::uint64_t bytes() const override { return of_->bytes(); }
    Result<> read(std::uint64_t offset, std::span<std::byte> to) const override {
      watch_->copy();
      return of_->read(offset, to);
    }
    Result<> write(std::uint64_t offset, std::span<const std::byte> from) const override {
      watch_->copy();
      return of_->write(offset, from);
    }

   private:
    std::shared_ptr<Watch> watch_;
    std::unique_ptr<const engine::ImportedMemory> of_;
  };

  void note() {
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    const std::lock_guard lock(mutex_);
    threads_.emplace(name.data());
  }
  void copy() {
    note();
    std::unique_lock lock(mutex_);
    ++copies_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_; });
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> threads_;
  bool held_ = false;
  int copies_ = 0;
};

// The device, its driver and what opens memory there.
class OnDevice : public ::testing::Test {
 protected:
  explicit OnDevice(cuda::EmulatedOptions options = {}) : device(std::move(options)) {}

  std::shared_ptr<engine::MemoryImporter> importer() const {
    return cuda::make_importer(std::make_shared<const cuda::Driver>(cuda::Emulated::table()), 0);
  }
  void expect_closed() const {
    EXPECT_THAT(device.violations(), IsEmpty());
    EXPECT_THAT(device.left_behind(), Not(HasSubstr("loan")));
  }

  cuda::Emulated device;
};

TEST_F(OnDevice, ReadsAndWritesPartsOfARegion) {
  Loan loan(64);
  loan.put(0, "abcdefgh");
  {
    SharedMemory memory(4, {{0, importer()}});
    EXPECT_TRUE(memory.has_devices());
    const auto added = memory.add_on_device({.name = "r", .device = 0, .byte_size = 32}, loan.handle());
    ASSERT_TRUE(added) << added.error().message;
    EXPECT_THAT(*memory.device_status(""),
                ElementsAre(DeviceRegionInfo{.name = "r", .device = 0, .byte_size = 32}));
    const auto part = memory.part("r", 2, 4);
    ASSERT_TRUE(part) << part.error().message;
    std::array<std::byte, 4> read{};
    ASSERT_TRUE(part->read(read));
    EXPECT_EQ(std::memcmp(read.data(), "cdef", 4), 0);
    ASSERT_TRUE(memory.part("r", 30, 2)->write(std::as_bytes(std::span("zz", 2))));
    EXPECT_EQ(loan.get(29, 4), std::string("\0zz\0", 4));
    EXPECT_THAT(memory.part("r", 30, 3).error().message, HasSubstr("of 32 bytes"));
  }
  expect_closed();
}

TEST_F(OnDevice, RefusesWithAReason) {
  Loan loan(64);
  const auto good = std::string(loan.raw());
  std::string garbage = good;
  garbage[20] ^= 1;
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  const struct {
    DeviceRegionInfo region;
    std::string handle, wanted;
  } rows[] = {
      {{"", 0, 8}, good, "has 0 bytes; it must have 1"},
      {{std::string(257, 'a'), 0, 8}, good, "has 257 bytes"},
      {{"\xff", 0, 8}, good, "UTF-8"},
      {{"s", 0, 8}, "", "a raw_handle of 0 bytes; a cudaIpcMemHandle_t has 64"},
      {{"s", 0, 8}, good.substr(1), "a raw_handle of 63 bytes"},
      {{"s", 0, 8}, good + "x", "a raw_handle of 65 bytes"},
      {{"s", 0, 8}, garbage, "CUDA_ERROR_INVALID_VALUE"},
      {{"s", 0, 8}, std::string(64, '\0'), "CUDA_ERROR_INVALID_VALUE"},
      {{"s", 1, 8}, good, "device_id 1 is no CUDA device of this server; it has 0, 2 and 7"},
      {{"s", -1, 8}, good, "device_id -1 is no CUDA device"},
      {{"s", least, 8}, good, "is no CUDA device"},
      {{"s", 0, 0}, good, "byte size 0"},
      {{"s", 0, 65}, good, "byte size 65; the memory that its handle opens has 64 bytes"},
      {{"s", 0, most}, good, "the memory that its handle opens has 64 bytes"},
      {{"r", 2, 64}, good, "registered already"},
  };
  {
    SharedMemory memory(2, {{7, importer()}, {0, importer()}, {2, importer()}});
    ASSERT_TRUE(memory.add_on_device({.name = "r", .device = 7, .byte_size = 64}, loan.handle()));
    for (const auto& [region, handle, wanted] : rows) {
      const auto added = memory.add_on_device(region, std::as_bytes(std::span(handle)));
      ASSERT_FALSE(added) << wanted;
      EXPECT_EQ(added.error().code, ErrorCode::invalid_argument);
      EXPECT_THAT(added.error().message, HasSubstr(wanted));
    }
    ASSERT_TRUE(memory.add_on_device({.name = "s", .device = 0, .byte_size = 64}, loan.handle()));
    EXPECT_EQ(memory.add_on_device({.name = "t", .device = 0, .byte_size = 1}, loan.handle()).error().code,
              ErrorCode::resource_exhausted);
  }
  expect_closed();
  SharedMemory none(1);
  EXPECT_FALSE(none.has_devices());
  EXPECT_EQ(none.add_on_device({.name = "s", .device = 0, .byte_size = 1}, loan.handle()).error().code,
            ErrorCode::unsupported);
}

TEST_F(OnDevice, ANameIsOfOneKind) {
  Loan loan(8);
  LentObject object(8);
  {
    SharedMemory memory(4, {{0, importer()}});
    ASSERT_TRUE(memory.add({.name = "s", .key = object.key(), .byte_size = 8}));
    ASSERT_TRUE(memory.add_on_device({.name = "d", .byte_size = 8}, loan.handle()));
    EXPECT_THAT(memory.add_on_device({.name = "s", .byte_size = 8}, loan.handle()).error().message,
                HasSubstr("registered already"));
    EXPECT_THAT(memory.add({.name = "d", .key = object.key(), .byte_size = 8}).error().message,
                HasSubstr("registered already"));
    EXPECT_EQ(memory.status("d").error().code, ErrorCode::not_found);
    EXPECT_EQ(memory.device_status("s").error().code, ErrorCode::not_found);
    memory.remove("d");
    memory.remove("s", RegionKind::device);
    EXPECT_TRUE(memory.part("s", 0, 8) && memory.part("d", 0, 8));
    memory.remove_all(RegionKind::device);
    EXPECT_TRUE(memory.part("s", 0, 8));
    EXPECT_FALSE(memory.part("d", 0, 8));
    expect_closed();
    ASSERT_TRUE(memory.add_on_device({.name = "d", .byte_size = 8}, loan.handle()));
    memory.remove_all();
    EXPECT_FALSE(memory.part("s", 0, 8));
    EXPECT_TRUE(memory.part("d", 0, 8));
    memory.remove("d", RegionKind::device);
    EXPECT_THAT(*memory.device_status(""), IsEmpty());
  }
  expect_closed();
}

TEST_F(OnDevice, WithKeysARegionIsForWhomItWasRegistered) {
  Loan loan(8);
  SharedMemory memory(2, {{0, importer()}});
  ASSERT_TRUE(memory.add_on_device({.name = "cam-1", .byte_size = 8, .owner = "a"}, loan.handle()));
  const auto named = [&](const Key& key) { return memory.part("cam-1", 0, 8, &key).has_value(); };
  EXPECT_TRUE(named({.name = "a"}));
  EXPECT_TRUE(named({.name = "b", .regions = {"cam-*"}}));
  EXPECT_TRUE(named({.name = "b", .admin = true}));
  EXPECT_FALSE(named({.name = "b", .regions = {"other"}}));
}

TEST_F(OnDevice, ARegionThatIsUnregisteredStaysForThoseWhoUseIt) {
  SharedMemory memory(2, {{0, importer()}});
  std::optional<Loan> loan(std::in_place, 4);
  loan->put(0, "abcd");
  ASSERT_TRUE(memory.add_on_device({.name = "r", .byte_size = 4}, loan->handle()));
  auto part = memory.part("r", 0, 4);
  memory.remove("r", RegionKind::device);
  loan.reset();
  EXPECT_THAT(device.left_behind(), HasSubstr("1 open loan"));
  std::array<std::byte, 4> read{};
  ASSERT_TRUE(part->read(read));
  EXPECT_EQ(std::memcmp(read.data(), "abcd", 4), 0);
  part->region.reset();
  expect_closed();
}

// Whoever parses a request notes what is to be brought, and touches no device.
TEST_F(OnDevice, InputsAreBroughtBehindTheParser) {
  Loan loan(64);
  loan.put(4, std::string("\0\2\0\1", 4));
  SharedMemory memory(2, {{0, importer()}});
  ASSERT_TRUE(memory.add_on_device({.name = "r", .byte_size = 64}, loan.handle()));
  const auto budget = std::make_shared<ByteBudget>(100, 100);
  Reservation room(budget);
  const auto parse = [&](const controller::ModelView& model, const char* type, int extent, int bytes,
                         int offset) {
    const json body{{"inputs",
                     {{{"name", "x"},
                       {"datatype", type},
                       {"shape", {extent}},
                       {"parameters",
                        {{"shared_memory_region", "r"},
                         {"shared_memory_byte_size", bytes},
                         {"shared_memory_offset", offset}}}}}}};
    return parse_infer_json(model, PaddedBytes(body.dump()), {}, TimePoint{100s},
                            {.regions = &memory, .room = &room});
  };
  const auto flags = model_of(graph::DataType::boolean, {4});
  auto request = parse(flags, "BOOL", 4, 4, 4);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(device.launched(), 0U);
  EXPECT_EQ(request->fetches.size(), 1U);
  EXPECT_EQ(room.bytes(), 4U);
  ASSERT_TRUE(fetch_inputs(flags.config, *request));
  EXPECT_THAT(request->fetches, IsEmpty()) << "the region is let go";
  EXPECT_THAT(request->call->inputs[0], ElementsAre(std::byte{0}, std::byte{1}, std::byte{0}, std::byte{1}));
  EXPECT_THAT(parse(flags, "BOOL", 4, 5, 0).error().message, HasSubstr("takes 4"));
  EXPECT_THAT(parse(flags, "BOOL", 4, 4, 61).error().message, HasSubstr("lead out of"));

  // Texts are looked at once they are there.
  const auto texts = model_of(graph::DataType::string, {2});
  loan.put(0, std::string("\1\0\0\0a\2\0\0\0bc", 11));
  request = parse(texts, "BYTES", 2, 11, 0);
  ASSERT_TRUE(request && fetch_inputs(texts.config, *request));
  request = parse(texts, "BYTES", 2, 10, 0);
  ASSERT_TRUE(request);
  EXPECT_EQ(fetch_inputs(texts.config, *request).error().code, ErrorCode::invalid_argument);
  Reservation other(budget);
  ASSERT_TRUE(other.grow(70));
  EXPECT_EQ(parse(texts, "BYTES", 2, 11, 0).error().code, ErrorCode::resource_exhausted);
}

// Both doors in front of a device.
class DeviceDoors : public OnDevice {
 protected:
  explicit DeviceDoors(cuda::EmulatedOptions options = {}, std::size_t queue = 1 << 16)
      : OnDevice(std::move(options)),
        commons({.inflight = std::size_t{64} << 20,
                 .max_body = std::size_t{16} << 20,
                 .strict_readiness = false,
                 .copies_queue = queue,
                 .importers = {{0, watch->before(importer())}}}) {
    service.all_models = {pair_model()};
    auto over_http = HttpServer::start(api, {.address = {"127.0.0.1", 0}, .commons = &commons});
    EXPECT_TRUE(over_http) << over_http.error().message;
    http = std::move(*over_http);
    auto over_grpc = GrpcServer::start(service, {.address = {"127.0.0.1", 0}, .commons = &commons});
    EXPECT_TRUE(over_grpc) << over_grpc.error().message;
    grpc = std::move(*over_grpc);
    stub = inference::GRPCInferenceService::NewStub(::grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(grpc->port()), ::grpc::InsecureChannelCredentials()));
  }
  ~DeviceDoors() override {
    watch->hold(false);
    service.hold(false);
    service.release();
    grpc->stop();
    http->stop();
  }

  static json order(const Loan& loan, std::uint64_t bytes, int id = 0) {
    return {{"raw_handle", {{"b64", loan.base64()}}}, {"device_id", id}, {"byte_size", bytes}};
  }
  static std::string at(const std::string& what, const std::string& region = "r") {
    return "/v2/cudasharedmemory/region/" + region + "/" + what;
  }
  void lend(const Loan& loan, std::uint64_t bytes) {
    const auto response = TestClient(http->port()).ask("POST", at("register"), order(loan, bytes).dump());
    ASSERT_EQ(response.result_int(), 200U) << response.body();
  }

  // A request of "pair" with x of 12 bytes at `in` of region r, and y of 12 bytes at `out`.
  static std::string over_http(int in, int out) {
    const auto in_memory = [](int offset) {
      return json{
          {"shared_memory_region", "r"}, {"shared_memory_byte_size", 12}, {"shared_memory_offset", offset}};
    };
    return json{{"inputs",
                 {{{"name", "x"}, {"datatype", "FP32"}, {"shape", {1, 3}}, {"parameters", in_memory(in)}},
                  {{"name", "n"}, {"datatype", "INT32"}, {"shape", {1, 2}}, {"data", {1, 2}}}}},
                {"outputs", json::array({{{"name", "y"}, {"parameters", in_memory(out)}}})}}
        .dump();
  }
  static inference::ModelInferRequest over_grpc(int in, int out) {
    auto request = pair_request();
    const auto in_memory = [](auto& tensor, int offset) {
      (*tensor.mutable_parameters())["shared_memory_region"].set_string_param("r");
      (*tensor.mutable_parameters())["shared_memory_byte_size"].set_int64_param(12);
      (*tensor.mutable_parameters())["shared_memory_offset"].set_int64_param(offset);
    };
    in_memory(*request.mutable_inputs(0), in);
    request.mutable_raw_input_contents()->DeleteSubrange(0, 1);  // x is there, and not in the request
    auto& y = *request.add_outputs();
    y.set_name("y");
    in_memory(y, out);
    return request;
  }
  ::grpc::Status infer(const inference::ModelInferRequest& request) {
    inference::ModelInferResponse response;
    return call(&inference::GRPCInferenceService::Stub::ModelInfer, request, response);
  }
  unsigned infer(const std::string& request, std::string* said = nullptr) {
    const auto response = TestClient(http->port()).ask("POST", "/v2/models/pair/infer", request);
    if (said != nullptr) *said = response.body();
    return response.result_int();
  }
  template <typename Request, typename Response>
  ::grpc::Status call(StubMethod<Request, Response> method, const Request& request, Response& response) {
    return call_stub(*stub, method, request, response);
  }
  // What a service that answers at once, or one that held the call, has written.
  static std::string written() {
    std::string out(12, '\0');
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(i);
    return out;
  }

  std::shared_ptr<Watch> watch = std::make_shared<Watch>();
  FakeService service;
  Commons commons;
  HttpApi api{service, commons};
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<GrpcServer> grpc;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub;
};
using Stub = inference::GRPCInferenceService::Stub;

TEST_F(DeviceDoors, OverHttp) {
  Loan loan(100);
  TestClient c(http->port());
  auto lent = order(loan, 90);
  lent["raw_handle"]["b64"] = loan.base64().insert(72, "\n") + "\n";  // as libb64 writes it
  EXPECT_EQ(c.ask("POST", at("register"), lent.dump()).result_int(), 200U);
  const std::string all = R"([{"name":"r","device_id":0,"byte_size":90}])";
  EXPECT_EQ(c.ask("GET", "/v2/cudasharedmemory/status").body(), all);
  EXPECT_EQ(c.ask("GET", at("status")).body(), all);
  EXPECT_EQ(c.ask("GET", at("status", "q")).result_int(), 404U);
  EXPECT_EQ(c.ask("GET", "/v2/systemsharedmemory/status").body(), "[]");
  EXPECT_THAT(c.ask("GET", "/v2").body(), HasSubstr("\"cuda_shared_memory\""));
  EXPECT_EQ(infer(over_http(0, 78)), 200U);
  EXPECT_EQ(loan.get(78, 13), written() + '\0');
  EXPECT_EQ(infer(over_http(79, 0)), 400U);
  EXPECT_EQ(infer(over_http(0, 79)), 400U);
  EXPECT_EQ(c.ask("POST", at("unregister")).result_int(), 200U);
  expect_closed();
  EXPECT_EQ(c.ask("POST", at("unregister")).result_int(), 200U) << "be it there or not";
  EXPECT_EQ(infer(over_http(0, 12)), 400U);
  lend(loan, 100);
  EXPECT_EQ(c.ask("POST", "/v2/systemsharedmemory/unregister").result_int(), 200U);
  EXPECT_NE(c.ask("GET", "/v2/cudasharedmemory/status").body(), "[]");
  EXPECT_EQ(c.ask("POST", "/v2/cudasharedmemory/unregister").result_int(), 200U);
  EXPECT_EQ(c.ask("GET", "/v2/cudasharedmemory/status").body(), "[]");
  expect_closed();
  EXPECT_THAT(watch->threads(), UnorderedElementsAre("carillon-copy"));
}

TEST_F(DeviceDoors, WhatIsWrongOverHttp) {
  Loan loan(64);
  const auto changed = [&](const char* path, const json& value) {
    auto body = order(loan, 64);
    body[json::json_pointer(path)] = value;
    return body.dump();
  };
  auto absent = order(loan, 64);
  absent.erase("device_id");
  const std::string good = loan.base64();
  const struct {
    std::string body, says;
  } rows[] = {
      {"", "raw_handle"},
      {"[]", "JSON object"},
      {"{", "JSON"},
      {"{}", "raw_handle"},
      {changed("/raw_handle", good), "raw_handle"},
      {changed("/raw_handle", json::object()), "b64"},
      {changed("/raw_handle/b64", 7), "b64"},
      {changed("/raw_handle/b64", ""), "raw_handle of 0 bytes"},
      {changed("/raw_handle/b64", good.substr(4)), "raw_handle of 61 bytes"},
      {changed("/raw_handle/b64", good.substr(1)), "base64"},
      {changed("/raw_handle/b64", good.substr(0, 86)), "base64"},
      {changed("/raw_handle/b64", good.substr(0, 84) + "===="), "base64"},
      {changed("/raw_handle/b64", "====" + good.substr(4)), "base64"},
      {changed("/raw_handle/b64", good.substr(0, 84) + "----"), "base64"},
      {changed("/raw_handle/b64", good.substr(0, 80) + "A*==" + good.substr(84)), "base64"},
      {changed("/raw_handle/b64", good + good), "base64"},
      {changed("/raw_handle/b64", std::string(100'000, 'A')), "base64"},
      {changed("/raw_handle/b64", std::string(86, 'A') + "=="), "CUDA_ERROR_INVALID_VALUE"},
      {absent.dump(), "device_id"},
      {changed("/device_id", "0"), "device_id"},
      {changed("/device_id", 0.5), "device_id"},
      {changed("/device_id", -1), "device_id -1"},
      {changed("/device_id", 1), "it has 0"},
      {changed("/device_id", std::numeric_limits<std::uint64_t>::max()), "device_id"},
      {changed("/byte_size", 0), "byte size 0"},
      {changed("/byte_size", -1), "byte_size"},
      {changed("/byte_size", "64"), "byte_size"},
      {changed("/byte_size", 65), "has 64 bytes"},
      {changed("/byte_size", std::numeric_limits<std::uint64_t>::max()), "has 64 bytes"},
  };
  TestClient c(http->port());
  for (const auto& [body, says] : rows) {
    const auto response = c.ask("POST", at("register"), body);
    EXPECT_EQ(response.result_int(), 400U) << body;
    EXPECT_THAT(response.body(), HasSubstr(says)) << body;
  }
  expect_closed();
  EXPECT_EQ(c.ask("GET", "/v2/cudasharedmemory/status").body(), "[]");
}

TEST_F(DeviceDoors, OverGrpc) {
  Loan loan(64);
  inference::CudaSharedMemoryRegisterRequest order;
  inference::CudaSharedMemoryRegisterResponse registered;
  order.set_name("r");
  order.set_byte_size(64);
  for (const auto& [handle, id, says] :
       {std::tuple(loan.raw(), -1, "device_id -1"), std::tuple(loan.raw() + "x", 0, "65 bytes"),
        std::tuple(std::string(64, 'x'), 0, "CUDA_ERROR_INVALID_VALUE")}) {
    order.set_raw_handle(handle);
    order.set_device_id(id);
    const auto status = call(&Stub::CudaSharedMemoryRegister, order, registered);
    EXPECT_EQ(status.error_code(), ::grpc::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(says));
  }
  order.set_raw_handle(loan.raw());
  order.set_device_id(0);
  auto status = call(&Stub::CudaSharedMemoryRegister, order, registered);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(call(&Stub::CudaSharedMemoryRegister, order, registered).error_code(), ::grpc::INVALID_ARGUMENT);
  inference::CudaSharedMemoryStatusRequest which;
  inference::CudaSharedMemoryStatusResponse regions;
  which.set_name("r");
  ASSERT_TRUE(call(&Stub::CudaSharedMemoryStatus, which, regions).ok());
  EXPECT_EQ(regions.regions().at("r").byte_size(), 64U);
  EXPECT_EQ(regions.regions().at("r").device_id(), 0U);
  EXPECT_EQ(infer(over_grpc(53, 0)).error_code(), ::grpc::INVALID_ARGUMENT);

  // It goes while a request is open, which it is kept for.
  service.hold(true);
  std::thread caller([&] { status = infer(over_grpc(52, 32)); });
  service.wait_for_held(1);
  inference::CudaSharedMemoryUnregisterRequest gone;
  inference::CudaSharedMemoryUnregisterResponse done;
  gone.set_name("r");
  EXPECT_TRUE(call(&Stub::CudaSharedMemoryUnregister, gone, done).ok());
  EXPECT_THAT(device.left_behind(), HasSubstr("1 open loan"));
  service.hold(false);
  service.release();
  caller.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(loan.get(32, 12), written());
  EXPECT_EQ(infer(over_grpc(0, 32)).error_code(), ::grpc::INVALID_ARGUMENT);
  EXPECT_EQ(call(&Stub::CudaSharedMemoryStatus, which, regions).error_code(), ::grpc::NOT_FOUND);
  gone.clear_name();
  EXPECT_TRUE(call(&Stub::CudaSharedMemoryUnregister, gone, done).ok());
  grpc->stop();
  expect_closed();
  EXPECT_THAT(watch->threads(), UnorderedElementsAre("carillon-copy"));
}

// Requests of a stream whose inputs lie on a device, and others, in the order in which they came.
TEST_F(DeviceDoors, OverAStream) {
  Loan loan(64);
  lend(loan, 64);
  ::grpc::ClientContext context;
  const auto stream = stub->ModelStreamInfer(&context);
  for (int i = 0; i < 20; ++i) {
    auto request = over_grpc(i == 7 ? 60 : i, 64 - 12);
    request.set_id(std::to_string(i));
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  std::set<std::string> good, bad;
  inference::ModelStreamInferResponse response;
  while (stream->Read(&response))
    (response.error_message().empty() ? good : bad).insert(response.infer_response().id());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(good.size(), 19U);
  EXPECT_THAT(bad, ElementsAre("7"));
  EXPECT_EQ(loan.get(52, 12), written());
}

TEST_F(DeviceDoors, ManySideBySideGetWhatIsTheirs) {
  // Each has a part of its own of one region; what it is given must be what it put there.
  constexpr int clients = 6, rounds = 40, row = 24;
  Loan loan(clients * row);
  lend(loan, clients * row);
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds; ++round) {
        loan.put(static_cast<std::size_t>(i * row + 12), std::string(12, '.'));
        if (i % 2 == 0)
          EXPECT_EQ(infer(over_http(i * row, i * row + 12)), 200U);
        else
          EXPECT_TRUE(infer(over_grpc(i * row, i * row + 12)).ok());
        EXPECT_EQ(loan.get(static_cast<std::size_t>(i * row + 12), 12), written());
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(device.violations(), IsEmpty());
}

TEST_F(DeviceDoors, AClientThatGoesIsNotWaitedFor) {
  Loan loan(64);
  lend(loan, 64);
  watch->hold(true);
  {
    TestClient c(http->port());
    c.send("POST", "/v2/models/pair/infer", over_http(0, 12));
    watch->wait_for(1);
  }
  service.hold(true);
  watch->hold(false);
  // It is cancelled, before or after it is the service's, and its region let go.
  EXPECT_EQ(TestClient(http->port()).ask("POST", at("unregister")).result_int(), 200U);
  service.wait_for_cancelled(1);
  while (http->connections() > 0) std::this_thread::yield();
  while (commons.bodies->used() > 0) std::this_thread::yield();
  while (device.left_behind().find("loan") != std::string::npos) std::this_thread::yield();
  EXPECT_EQ(loan.get(12, 12), std::string(12, '\0'));
}

// One that goes before its copy has begun is not brought at all.
TEST_F(DeviceDoors, AClientThatGoesBeforeItsCopy) {
  Loan loan(64);
  lend(loan, 64);
  watch->hold(true);
  std::vector<std::thread> callers;
  for (int i = 1; i <= 2; ++i) {
    callers.emplace_back([&] { EXPECT_EQ(infer(over_http(0, 12)), 200U); });
    watch->wait_for(i);
  }
  const auto before = http->connections();
  {
    TestClient c(http->port());
    c.send("POST", "/v2/models/pair/infer", over_http(0, 12));
    while (commons.bodies->used() == 0) std::this_thread::yield();
  }
  watch->hold(false);
  for (auto& each : callers) each.join();
  EXPECT_GE(before, 2U);
  while (http->connections() > 0) std::this_thread::yield();
  while (commons.bodies->used() > 0) std::this_thread::yield();
  EXPECT_EQ(service.held(), 0U);
}

TEST_F(DeviceDoors, StopsWhileCopiesAreUnderWay) {
  Loan loan(64);
  lend(loan, 64);
  watch->hold(true);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&, i] {
      if (i % 2 == 0)
        (void)infer(over_http(0, 12));
      else
        (void)infer(over_grpc(0, 12));
    });
  watch->wait_for(2);
  std::thread ends([&] {
    http->stop();
    grpc->stop();
  });
  watch->hold(false);
  ends.join();
  for (auto& each : callers) each.join();
}

class FewCopies : public DeviceDoors {
 protected:
  FewCopies() : DeviceDoors({}, 1) {}
};

TEST_F(FewCopies, WhatFindsNoPlaceIsRefused) {
  Loan loan(64);
  lend(loan, 64);
  watch->hold(true);
  std::vector<std::thread> callers;
  for (int i = 1; i <= 2; ++i) {  // one for each thread
    callers.emplace_back([&] {
      const unsigned status = infer(over_http(0, 12));
      EXPECT_TRUE(status == 200U || status == 503U) << "its answer wants a place, too";
    });
    watch->wait_for(i);
  }
  // A third waits in the queue; it is there once one more finds no place.
  callers.emplace_back([&] { (void)infer(over_grpc(0, 12)); });
  ::grpc::Status status;
  while ((status =
              [&] {
                ::grpc::ClientContext context;
                context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
                inference::ModelInferResponse response;
                return stub->ModelInfer(&context, over_grpc(0, 12), &response);
              }())
             .error_code() != ::grpc::RESOURCE_EXHAUSTED)
    std::this_thread::yield();
  EXPECT_THAT(status.error_message(), HasSubstr("too many requests wait for copies"));
  std::string said;
  EXPECT_EQ(infer(over_http(0, 12), &said), 503U) << said;
  EXPECT_EQ(TestClient(http->port()).ask("POST", at("unregister")).result_int(), 503U);
  watch->hold(false);
  for (auto& each : callers) each.join();
}

// The device is lost after so many copies: whoever comes after gets one answer that says so.
class LostDevice : public DeviceDoors {
 protected:
  LostDevice() : DeviceDoors({.lose_after = 1}) {}
};

TEST_F(LostDevice, IsAnErrorOfTheRequest) {
  Loan loan(64);
  lend(loan, 64);
  std::string said;
  EXPECT_EQ(infer(over_http(0, 12), &said), 503U) << "the input was copied, the output was not";
  EXPECT_THAT(said,
              HasSubstr("region 'r' on CUDA device 0: the CUDA device does not copy to a client's memory: "
                        "CUDA_ERROR_ECC_UNCORRECTABLE"));
  const auto status = infer(over_grpc(0, 12));
  EXPECT_EQ(status.error_code(), ::grpc::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("copy from a client's memory: CUDA_ERROR_ECC_UNCORRECTABLE"));
  TestClient c(http->port());
  EXPECT_EQ(c.ask("POST", at("register", "s"), order(loan, 64).dump()).result_int(), 503U);
  EXPECT_THAT(c.ask("GET", "/v2/cudasharedmemory/status").body(), HasSubstr("\"r\""));
  EXPECT_EQ(c.ask("POST", at("unregister")).result_int(), 200U);
  expect_closed();
}

}  // namespace
}  // namespace carillon::frontend
