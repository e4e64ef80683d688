#include "carillon/transport/rows.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "carillon/base/random.h"
#include "carillon/transport/row_client.h"
#include "carillon/transport/row_frames.h"

namespace carillon::transport::rows {
namespace {

using boost::asio::ip::tcp;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::size_t size, std::uint64_t seed) {
  Random random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.bits());
  return bytes;
}
bool all(const Bytes& bytes, std::byte value) {
  return std::ranges::all_of(bytes, [&](std::byte byte) { return byte == value; });
}

struct Frontend {
  struct Told {
    RequestId row;
    std::uint64_t epoch = 0;
    std::string report;
  };
  explicit Frontend(RowLimits limits = {}, int port = 0) {
    auto opened = RowServer::open(fmt::format("127.0.0.1:{}", port), {.cluster = "box", .limits = limits},
                                  store, [this](RequestId row, std::uint64_t epoch, std::string report) {
                                    const std::lock_guard lock(mutex);
                                    told.push_back({row, epoch, std::move(report)});
                                  });
    EXPECT_TRUE(opened) << opened.error().message;
    server = std::move(*opened);
  }
  std::string address() const { return fmt::format("127.0.0.1:{}", server->port()); }
  std::vector<Told> all_told() {
    const std::lock_guard lock(mutex);
    return told;
  }

  const std::shared_ptr<RowStore> kept = std::make_shared<RowStore>();
  RowStore& store = *kept;
  std::mutex mutex;
  std::vector<Told> told;
  std::unique_ptr<RowServer> server;  // the first to go
};

// A row of a frontend, with its memory. It is closed before its memory goes: the frontend may still be
// sending what a worker has refused.
class Opened {
 public:
  Opened() = default;
  Opened(const Opened&) {}  // a copy of a row is open nowhere
  Opened& operator=(const Opened&) = delete;
  ~Opened() {
    for (const auto& [store, key] : keys_)
      if (const auto alive = store.lock()) alive->close(key);
  }
  void add(std::weak_ptr<RowStore> store, std::uint64_t key) { keys_.emplace_back(std::move(store), key); }

 private:
  std::vector<std::pair<std::weak_ptr<RowStore>, std::uint64_t>> keys_;
};
struct OneRow {
  std::vector<Bytes> inputs, outputs;
  Opened opened = {};  // the first to go

  std::uint64_t open(Frontend& frontend, RequestId id, std::int64_t length = 0,
                     std::vector<std::size_t> unwanted = {}) {
    RowTensors all;
    all.inputs.assign(inputs.begin(), inputs.end());
    all.outputs.assign(outputs.begin(), outputs.end());
    all.length = length;
    all.unwanted = std::move(unwanted);
    const std::uint64_t key = frontend.store.open(id, std::move(all));
    opened.add(frontend.kept, key);
    return key;
  }
};

// A worker whose tests wait for each answer.
struct Worker {
  std::unique_ptr<RowClient> client =
      RowClient::make({.cluster = "box", .connect_within = std::chrono::seconds{60}});

  template <typename Value>
  static auto promised(std::future<Result<Value>>& answer) {
    std::promise<Result<Value>> promise;
    answer = promise.get_future();
    return
        [promise = std::move(promise)](Result<Value> value) mutable { promise.set_value(std::move(value)); };
  }
  std::future<Result<std::int64_t>> pull(const std::string& address, std::uint64_t key,
                                         std::vector<Bytes>& into, std::uint64_t* ticket = nullptr) {
    std::future<Result<std::int64_t>> answer;
    const auto number = client->pull({.address = address,
                                      .key = key,
                                      .urgency = {},
                                      .room = RowClient::room_of({into.begin(), into.end()})},
                                     promised(answer));
    if (ticket != nullptr) *ticket = number;
    client->flush();
    return answer;
  }
  std::future<Result<bool>> push(const std::string& address, std::uint64_t key,
                                 const std::vector<Bytes>& outputs, std::uint64_t epoch = 1,
                                 std::string report = "done", std::uint64_t* ticket = nullptr) {
    std::future<Result<bool>> answer;
    const auto number = client->push({.address = address,
                                      .key = key,
                                      .epoch = epoch,
                                      .report = std::move(report),
                                      .outputs = {outputs.begin(), outputs.end()}},
                                     promised(answer));
    if (ticket != nullptr) *ticket = number;
    client->flush();
    return answer;
  }
};

// A socket that says what a test wants.
class Raw {
 public:
  explicit Raw(const Frontend& frontend, bool greets = true) {
    socket.connect(
        {boost::asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(frontend.server->port())});
    if (!greets) return;
    std::string hello;
    put(hello, hello_of("box"));
    send(hello);
  }
  // False: the peer has hung up.
  bool send(const std::string& bytes) {
    boost::system::error_code error;
    boost::asio::write(socket, boost::asio::buffer(bytes), error);
    return !error;
  }
  struct Heard {
    Header header;
    std::string body;
  };
  // None: the peer has hung up.
  std::optional<Heard> hear() {
    Heard heard;
    boost::system::error_code error;
    boost::asio::read(socket, boost::asio::buffer(&heard.header, sizeof(Header)), error);
    if (error) return std::nullopt;
    heard.body.resize(heard.header.size);
    boost::asio::read(socket, boost::asio::buffer(heard.body), error);
    if (error) return std::nullopt;
    return heard;
  }
  // All that comes until the peer hangs up: the last is the reason.
  std::string why() {
    std::string last;
    while (const auto heard = hear())
      last = heard->header.kind == Kind::refused && heard->header.tag == 0 ? heard->body.substr(4) : "";
    return last;
  }

  boost::asio::io_context context;
  tcp::socket socket{context};
};

std::string pull_frame(std::uint64_t tag, std::uint64_t key, std::int64_t urgency = 0) {
  std::string out;
  put(out, Header{Kind::pull, sizeof(PullBody), tag});
  put(out, PullBody{key, urgency});
  return out;
}
// With the outputs in it, as far as they are given.
std::string push_frame(std::uint64_t tag, std::uint64_t key, const std::vector<std::uint64_t>& sizes,
                       const std::string& outputs = "") {
  std::string out;
  put(out, Header{Kind::push,
                  static_cast<std::uint32_t>(sizeof(PushBody) + 8 * sizes.size() + outputs.size()), tag});
  put(out, PushBody{key, 1, static_cast<std::uint32_t>(sizes.size()), 0});
  for (const std::uint64_t size : sizes) put(out, size);
  return out + outputs;
}
std::string data_frame(std::uint64_t tag, std::size_t size) {
  std::string out;
  put(out, Header{Kind::data, static_cast<std::uint32_t>(size), tag});
  return out + std::string(size, 'x');
}

TEST(Rows, GoThereAndBack) {
  Frontend frontend;
  Worker worker;
  // One of each kind: in one chunk with others, of many chunks, empty.
  OneRow row{.inputs = {bytes_of(10, 1), bytes_of(602'112, 2), {}, bytes_of(3, 3)},
             .outputs = {Bytes(4000), Bytes(), Bytes(200'001)}};
  const auto key = row.open(frontend, RequestId{7}, 17);
  EXPECT_NE(key, 0U);
  std::vector<Bytes> got{Bytes(10), Bytes(602'112), {}, Bytes(3)};
  const auto pulled = worker.pull(frontend.address(), key, got).get();
  ASSERT_TRUE(pulled) << pulled.error().message;
  EXPECT_EQ(*pulled, 17);
  EXPECT_EQ(got, row.inputs);
  const std::vector<Bytes> results{bytes_of(4000, 4), {}, bytes_of(200'001, 5)};
  const auto pushed = worker.push(frontend.address(), key, results, 9, "a report").get();
  ASSERT_TRUE(pushed) << pushed.error().message;
  EXPECT_TRUE(*pushed);
  EXPECT_EQ(row.outputs, results);
  const auto told = frontend.all_told();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].row, RequestId{7});
  EXPECT_EQ(told[0].epoch, 9U);
  EXPECT_EQ(told[0].report, "a report");
  frontend.store.close(key);
}

TEST(Rows, WithoutBytesGoThereAndBack) {
  Frontend frontend;
  Worker worker;
  OneRow row;
  const auto key = row.open(frontend, RequestId{1}, 3);
  std::vector<Bytes> none;
  EXPECT_EQ(worker.pull(frontend.address(), key, none).get(), 3);
  EXPECT_EQ(worker.push(frontend.address(), key, none).get(), true);
}

TEST(Rows, AnOutputThatNobodyWantsIsTakenAndDropped) {
  Frontend frontend;
  Worker worker;
  for (const std::size_t size : {3UL, 300'000UL}) {
    OneRow row{.outputs = {Bytes(5), Bytes(), Bytes(7)}};
    const auto key = row.open(frontend, RequestId{1}, 0, {0, size});
    EXPECT_FALSE(worker.push(frontend.address(), key, {bytes_of(5, 1), {}, bytes_of(7, 3)}).get()) << size;
    EXPECT_EQ(worker.push(frontend.address(), key, {bytes_of(5, 1), bytes_of(size, 2), bytes_of(7, 3)}).get(),
              true);
    EXPECT_EQ(row.outputs, (std::vector<Bytes>{bytes_of(5, 1), {}, bytes_of(7, 3)}));
    frontend.store.close(key);
  }
}

TEST(Rows, AreTakenFromOneWorkerAlone) {
  Frontend frontend;
  Worker first, second;
  for (const std::size_t size : {4000UL, 1'000'000UL}) {
    OneRow row{.outputs = {Bytes(size)}};
    const auto key = row.open(frontend, RequestId{1});
    const std::vector<Bytes> a{bytes_of(size, 1)}, b{bytes_of(size, 2)};
    auto of_first = first.push(frontend.address(), key, a);
    auto of_second = second.push(frontend.address(), key, b);
    const auto one = of_first.get(), other = of_second.get();
    ASSERT_TRUE(one && other);
    EXPECT_NE(*one, *other) << size;
    EXPECT_EQ(row.outputs, *one ? a : b) << size;
    frontend.store.close(key);
  }
  EXPECT_EQ(frontend.all_told().size(), 2U);
  EXPECT_EQ(frontend.server->doubled(), 2U);
}

TEST(Rows, TwoPushesUnderWayAtOnceWriteOneAlone) {
  Frontend frontend;
  OneRow row{.outputs = {Bytes(100'000)}};
  const auto key = row.open(frontend, RequestId{1});
  Raw raw(frontend);
  raw.send(push_frame(1, key, {100'000}) + push_frame(2, key, {100'000}) + data_frame(1, 60'000) +
           data_frame(2, 60'000) + data_frame(2, 40'000) + data_frame(1, 40'000));
  const auto first = raw.hear(), second = raw.hear();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->header.kind, Kind::taken);
  EXPECT_EQ(first->header.tag, 2U);
  EXPECT_EQ(second->header.kind, Kind::gone);
  EXPECT_EQ(second->header.tag, 1U);
  EXPECT_TRUE(all(row.outputs[0], std::byte{'x'}));
  EXPECT_EQ(frontend.server->doubled(), 1U);
  frontend.store.close(key);
  EXPECT_EQ(Worker().push(frontend.address(), key, {Bytes(100'000)}).get(), false);
  EXPECT_EQ(frontend.server->doubled(), 2U) << "also once the row is closed";
}

TEST(Rows, StayAsTheyWereWhereAWorkerBreaksOff) {
  Frontend frontend;
  OneRow row{.outputs = {Bytes(100'000)}};
  const auto key = row.open(frontend, RequestId{1});
  {
    Raw raw(frontend);
    // The answer to the second shows that the first has come as far.
    raw.send(push_frame(1, key, {100'000}) + data_frame(1, 60'000) + pull_frame(2, key + 1));
    ASSERT_TRUE(raw.hear());
    EXPECT_TRUE(all(row.outputs[0], std::byte{0}));
    raw.send(data_frame(1, 40'000).substr(0, 30'000));
  }
  EXPECT_TRUE(all(row.outputs[0], std::byte{0}));
  Worker worker;
  const std::vector<Bytes> results{bytes_of(100'000, 1)};
  EXPECT_EQ(worker.push(frontend.address(), key, results).get(), true) << "nothing was taken";
  EXPECT_EQ(row.outputs, results);
  EXPECT_EQ(frontend.all_told().size(), 1U);
}

TEST(Rows, AreNotReadOnceClosed) {
  Frontend frontend;
  auto row = std::make_unique<OneRow>(OneRow{.inputs = {bytes_of(64UL << 20, 1)}});
  const auto key = row->open(frontend, RequestId{1});
  Raw raw(frontend);
  raw.send(pull_frame(1, key));
  const auto first = raw.hear();  // and reads no more until the row is closed
  ASSERT_TRUE(first);
  EXPECT_EQ(first->header.kind, Kind::sizes);
  frontend.store.close(key);
  const Bytes was = row->inputs[0];
  row.reset();  // AddressSanitizer sees who reads it
  std::size_t read = 0;
  for (;;) {
    const auto heard = raw.hear();
    ASSERT_TRUE(heard);
    if (heard->header.kind == Kind::gone) break;
    ASSERT_EQ(heard->header.kind, Kind::data);
    ASSERT_EQ(std::memcmp(heard->body.data(), was.data() + read, heard->body.size()), 0);
    read += heard->body.size();
  }
  EXPECT_LT(read, was.size());
}

TEST(Rows, ThatAreClosedAreGone) {
  Frontend frontend;
  Worker worker;
  OneRow row{.inputs = {bytes_of(8, 1)}, .outputs = {Bytes(8)}};
  const auto key = row.open(frontend, RequestId{1});
  frontend.store.close(key);
  frontend.store.close(key);
  for (const std::uint64_t wrong : {key, key ^ 1, std::uint64_t{0}}) {
    std::vector<Bytes> got{Bytes(8)};
    const auto pulled = worker.pull(frontend.address(), wrong, got).get();
    ASSERT_FALSE(pulled);
    EXPECT_EQ(pulled.error().code, ErrorCode::not_found);
    EXPECT_THAT(pulled.error().message, HasSubstr(frontend.address()));
    EXPECT_EQ(worker.push(frontend.address(), wrong, got).get(), false);
  }
  const std::vector<Bytes> large{Bytes(1'000'000)};
  EXPECT_EQ(worker.push(frontend.address(), key, large).get(), false);
  EXPECT_TRUE(all(row.outputs[0], std::byte{0}));
  EXPECT_TRUE(frontend.all_told().empty());
  EXPECT_EQ(frontend.server->doubled(), 0U) << "none of them had outputs";
}

TEST(Rows, OfAnotherKeyAreOthers) {
  Frontend frontend;
  Worker worker;
  OneRow one{.inputs = {bytes_of(8, 1)}, .outputs = {Bytes(8)}};
  OneRow other{.inputs = {bytes_of(8, 2)}, .outputs = {Bytes(8)}};
  const auto of_one = one.open(frontend, RequestId{1});
  const auto of_other = other.open(frontend, RequestId{2});
  EXPECT_NE(of_one, of_other);
  std::vector<Bytes> got{Bytes(8)};
  EXPECT_TRUE(worker.pull(frontend.address(), of_other, got).get());
  EXPECT_EQ(got, other.inputs);
  EXPECT_EQ(worker.push(frontend.address(), of_other, got).get(), true);
  EXPECT_EQ(other.outputs, got);
  EXPECT_TRUE(all(one.outputs[0], std::byte{0}));
}

TEST(Rows, OfOtherSizesAreRefused) {
  Frontend frontend;
  Worker worker;
  OneRow row{.inputs = {bytes_of(8, 1), bytes_of(9, 1)}, .outputs = {Bytes(8), Bytes(9)}};
  const auto key = row.open(frontend, RequestId{1});
  for (const std::vector<std::size_t>& sizes :
       {std::vector<std::size_t>{8}, {9, 8}, {8, 9, 0}, {17}, {8, 8}, {8, 10}, {}, {8, 1'000'000}}) {
    std::vector<Bytes> wrong;
    for (const std::size_t size : sizes) wrong.emplace_back(size);
    const auto pulled = worker.pull(frontend.address(), key, wrong).get();
    ASSERT_FALSE(pulled);
    EXPECT_EQ(pulled.error().code, ErrorCode::invalid_argument);
    const auto pushed = worker.push(frontend.address(), key, wrong).get();
    ASSERT_FALSE(pushed);
    EXPECT_EQ(pushed.error().code, ErrorCode::invalid_argument);
    for (const Bytes& bytes : wrong) EXPECT_TRUE(all(bytes, std::byte{0}));
  }
  EXPECT_TRUE(all(row.outputs[0], std::byte{0}) && all(row.outputs[1], std::byte{0}));
  std::vector<Bytes> right{Bytes(8), Bytes(9)};
  EXPECT_TRUE(worker.pull(frontend.address(), key, right).get()) << "the connection goes on";
}

TEST(Rows, ACallerMayAskForRoomWhenItKnowsTheSizes) {
  Frontend frontend;
  Worker worker;
  OneRow row{.inputs = {bytes_of(300'000, 1), bytes_of(5, 2)}};
  const auto key = row.open(frontend, RequestId{1}, 12);
  std::vector<Bytes> got;
  std::future<Result<std::int64_t>> answer;
  worker.client->pull(
      {.address = frontend.address(),
       .key = key,
       .urgency = {},
       .room = [&](std::int64_t length,
                   std::span<const std::uint64_t> bytes) -> Result<std::vector<std::span<std::byte>>> {
         EXPECT_EQ(length, 12);
         for (const std::uint64_t size : bytes) got.emplace_back(size);
         return std::vector<std::span<std::byte>>{got.begin(), got.end()};
       }},
      Worker::promised(answer));
  worker.client->flush();
  EXPECT_EQ(answer.get(), 12);
  EXPECT_EQ(got, row.inputs);
  worker.client->pull(
      {.address = frontend.address(),
       .key = key,
       .urgency = {},
       .room = [](std::int64_t, std::span<const std::uint64_t>) -> Result<std::vector<std::span<std::byte>>> {
         return fail(ErrorCode::resource_exhausted, "no slot");
       }},
      Worker::promised(answer));
  worker.client->flush();
  const auto refused = answer.get();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::resource_exhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("no slot"));
}

TEST(Rows, OfUrgentPullsComeFirst) {
  Frontend frontend;
  OneRow big{.inputs = {Bytes(64UL << 20)}}, small{.inputs = {bytes_of(3000, 1)}};
  const auto big_key = big.open(frontend, RequestId{1});
  const auto small_key = small.open(frontend, RequestId{2});
  Raw raw(frontend);
  raw.send(pull_frame(1, big_key, 100));
  ASSERT_EQ(raw.hear()->header.tag, 1U);  // it has begun
  raw.send(pull_frame(2, small_key, 50));
  std::size_t of_big = 0;
  for (bool answered = false; !answered;) {
    const auto heard = raw.hear();
    ASSERT_TRUE(heard);
    if (heard->header.tag == 1) of_big += heard->body.size();
    answered = heard->header.tag == 2 && heard->header.kind == Kind::data;
  }
  EXPECT_LT(of_big, big.inputs[0].size());
  while (of_big < big.inputs[0].size()) of_big += raw.hear()->body.size();
}

TEST(Rows, ACancelledPullWritesNothingMore) {
  Frontend frontend;
  Worker worker;
  OneRow row{.inputs = {Bytes(32UL << 20, std::byte{1})}, .outputs = {Bytes(8)}};
  const auto key = row.open(frontend, RequestId{1});
  for (int i = 0; i < 20; ++i) {
    auto into = std::make_unique<Bytes>(32UL << 20);
    std::promise<void> sized;
    std::future<Result<std::int64_t>> answer;
    const auto ticket = worker.client->pull(
        {.address = frontend.address(),
         .key = key,
         .urgency = {},
         .room = [&](std::int64_t,
                     std::span<const std::uint64_t>) -> Result<std::vector<std::span<std::byte>>> {
           sized.set_value();
           return std::vector<std::span<std::byte>>{*into};
         }},
        Worker::promised(answer));
    worker.client->flush();
    if (i % 2 == 1) sized.get_future().wait();  // the bytes are on their way
    worker.client->cancel(ticket);
    worker.client->flush();
    const auto ended = answer.get();
    EXPECT_TRUE(ended || ended.error().code == ErrorCode::cancelled);
    into.reset();  // AddressSanitizer sees who writes
    worker.client->cancel(ticket);
    worker.client->flush();
  }
  const std::vector<Bytes> results{bytes_of(8, 1)};
  EXPECT_EQ(worker.push(frontend.address(), key, results).get(), true) << "the connection goes on";
}

TEST(Rows, ACancelledPushWritesAllOrNothing) {
  Frontend frontend;
  Worker worker;
  for (int i = 0; i < 20; ++i) {
    OneRow row{.outputs = {Bytes(8UL << 20)}};
    const auto key = row.open(frontend, RequestId{1});
    std::vector<Bytes> results{Bytes(8UL << 20, std::byte{1})};
    std::uint64_t ticket = 0;
    auto answer = worker.push(frontend.address(), key, results, 1, "", &ticket);
    worker.client->cancel(ticket);
    worker.client->flush();
    const auto ended = answer.get();
    EXPECT_TRUE(ended || ended.error().code == ErrorCode::cancelled);
    results.clear();
    std::vector<Bytes> none;
    EXPECT_TRUE(worker.pull(frontend.address(), key, none).get()) << "the connection goes on";
    frontend.store.close(key);
    EXPECT_TRUE(all(row.outputs[0], std::byte{0}) || all(row.outputs[0], std::byte{1}));
  }
}

TEST(Rows, HandlersMayAskForMore) {
  Frontend frontend;
  OneRow row{.inputs = {bytes_of(3000, 1)}, .outputs = {Bytes(3000)}};
  const auto key = row.open(frontend, RequestId{1});
  std::vector<Bytes> got{Bytes(3000)};
  Worker worker;
  std::future<Result<bool>> pushed;
  auto tell = Worker::promised(pushed);
  worker.client->pull(
      {frontend.address(), key, {}, RowClient::room_of({got.begin(), got.end()})},
      [&](Result<std::int64_t> pulled) {
        EXPECT_TRUE(pulled);
        const auto ticket = worker.client->pull({frontend.address(), key ^ 1, {}, RowClient::room_of({})},
                                                [](const Result<std::int64_t>& gone) { EXPECT_FALSE(gone); });
        worker.client->cancel(ticket);
        worker.client->flush();
        worker.client->push({frontend.address(), key, 1, "", {got.begin(), got.end()}}, std::move(tell));
      });
  worker.client->flush();
  EXPECT_EQ(pushed.get(), true);
  EXPECT_EQ(row.outputs, row.inputs);
}

TEST(Rows, HandlersThatAreDueHearOfTheEnd) {
  Frontend frontend;
  OneRow row{.inputs = {Bytes(64UL << 20)}};
  const auto key = row.open(frontend, RequestId{1});
  std::vector<std::vector<Bytes>> into(4, {Bytes(64UL << 20)});
  std::vector<std::future<Result<std::int64_t>>> answers;
  {
    Worker worker;
    for (auto& each : into) answers.push_back(worker.pull(frontend.address(), key, each));
  }
  for (auto& answer : answers) {
    const auto ended = answer.get();
    EXPECT_TRUE(ended || ended.error().code == ErrorCode::cancelled);
  }
}

TEST(Rows, GoBetweenNeighbouringProtocols) {
  for (const auto& [settled, speaks] :
       {std::pair{1U, cluster::Protocols{1, 2}}, std::pair{2U, cluster::Protocols{1, 2}},
        std::pair{2U, cluster::Protocols{2, 3}}}) {
    RowStore store;
    auto server = RowServer::open("127.0.0.1:0", {.cluster = "box", .limits = {}, .speaks = speaks}, store,
                                  [](RequestId, std::uint64_t, const std::string&) {});
    ASSERT_TRUE(server) << server.error().message;
    const Bytes input = bytes_of(9, 1);
    const auto key = store.open(RequestId{1}, {.inputs = {input}, .outputs = {}});
    const auto client = RowClient::make({.cluster = "box"});
    Bytes got(9);
    std::future<Result<std::int64_t>> answer;
    const std::string address = fmt::format("127.0.0.1:{}", (*server)->port());
    client->connect(address, settled);
    client->pull({address, key, {}, RowClient::room_of({got})}, Worker::promised(answer));
    client->flush();
    const auto pulled = answer.get();
    EXPECT_TRUE(pulled) << settled << ", " << to_text(speaks) << ": " << pulled.error().message;
    EXPECT_EQ(got, input);
    store.close(key);
  }
}

TEST(Rows, OfAnotherClusterOrProtocolAreRefused) {
  Frontend frontend;
  auto stranger = RowClient::make({.cluster = "other"});
  std::future<Result<std::int64_t>> answer;
  stranger->pull({frontend.address(), 1, {}, RowClient::room_of({})}, Worker::promised(answer));
  stranger->flush();
  const auto refused = answer.get();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("a worker of another cluster"));

  Hello later = hello_of("box");
  later.protocol = 2;
  std::string bytes;
  put(bytes, later);
  Raw raw(frontend, false);
  raw.send(bytes + std::string(100'000, 'x'));
  EXPECT_EQ(raw.why(),
            "the worker speaks protocol 2, and the frontend speaks protocol 1: upgrade the frontend to a "
            "build that "
            "speaks protocol 2");
  Raw web(frontend, false);
  web.send("GET / HTTP/1.1\r\nHost: frontend\r\n\r\n");
  EXPECT_THAT(web.why(), HasSubstr("no worker of Carillon"));
}

TEST(Rows, FramesThatAreWrongEndTheConnection) {
  Frontend frontend;
  OneRow row{.outputs = {Bytes(100'000)}};
  const auto key = row.open(frontend, RequestId{1});
  const auto header = [](Kind kind, std::uint32_t size) {
    std::string out;
    put(out, Header{kind, size, 1});
    return out;
  };
  const std::string push = push_frame(1, key, {100'000});
  std::string many = header(Kind::push, sizeof(PushBody));
  put(many, PushBody{key, 1, 1'000'000'000, 0});
  std::string report = header(Kind::push, sizeof(PushBody) + 8);
  put(report, PushBody{key, 1, 0, 8'000});
  report += std::string(8, 'x');
  const struct {
    std::string bytes, why;
  } rows[] = {
      {header(static_cast<Kind>(99), 0), "unknown kind 99"},
      {header(Kind::pull, 4'000'000'000), "a frame of 4000000000 bytes"},
      {header(Kind::pull, 15) + std::string(15, 'x'), "a pull of a wrong size"},
      {header(Kind::push, 3) + "abc", "a push of a wrong size"},
      {many, "a push of a wrong size"},
      {report, "a push of a wrong size"},
      {push_frame(1, key, {100'000}, "abc"), "a push of a wrong size"},
      {push_frame(1, key, {1ULL << 63, 1ULL << 63}), "more bytes than can be counted"},
      {push + push, "two pushes of one tag"},
      {push + data_frame(1, 60'000) + data_frame(1, 40'001), "more bytes than it said"},
      {header(Kind::data, 0), "a chunk without bytes"},
      {header(Kind::cancel, 1) + "x", "a cancel with a body"},
      {header(Kind::taken, 0), "only frontends send"},
  };
  for (const auto& [bytes, why] : rows) {
    Raw raw(frontend);
    raw.send(bytes);
    EXPECT_THAT(raw.why(), HasSubstr(why));
  }
  EXPECT_TRUE(all(row.outputs[0], std::byte{0}));
}

TEST(Rows, APeerThatSaysNothingIsHungUpOn) {
  Frontend frontend({.greeting = 500ms});
  Raw slow(frontend, false);
  slow.send("CRLR");
  Raw silent(frontend, false);
  EXPECT_THAT(silent.why(), HasSubstr("nothing was said in time"));
  EXPECT_THAT(slow.why(), HasSubstr("nothing was said in time"));
}

TEST(Rows, APeerThatReadsNothingBlocksNobody) {
  Frontend frontend({.waiting = 100});
  OneRow big{.inputs = {Bytes(64UL << 20)}}, small{.inputs = {bytes_of(3000, 1)}};
  const auto key = big.open(frontend, RequestId{1});
  const auto small_key = small.open(frontend, RequestId{2});
  Raw raw(frontend);
  for (std::uint64_t tag = 1; tag <= 50; ++tag) raw.send(pull_frame(tag, key));
  Worker worker;
  std::vector<Bytes> got{Bytes(3000)};
  EXPECT_TRUE(worker.pull(frontend.address(), small_key, got).get());
  EXPECT_EQ(got, small.inputs);
  Raw greedy(frontend);
  for (std::uint64_t tag = 1; tag <= 102; ++tag) greedy.send(pull_frame(tag, key));
  EXPECT_THAT(greedy.why(), HasSubstr("more than 100 requests wait"));
}

TEST(Rows, PushesHaveBoundedMemory) {
  Frontend frontend({.push_bytes = 250'000, .all_push_bytes = 450'000, .push_stalls = 60s});
  OneRow row{.outputs = {Bytes(100'000)}}, other{.outputs = {Bytes(100'000)}};
  const auto key = row.open(frontend, RequestId{1});
  const auto others = other.open(frontend, RequestId{2});
  const std::string push[] = {push_frame(1, key, {100'000}), push_frame(2, key, {100'000}),
                              push_frame(3, key, {100'000})};
  const auto refused = [](Raw& raw, std::uint64_t tag) {
    const auto heard = raw.hear();
    EXPECT_TRUE(heard && heard->header.kind == Kind::refused && heard->header.tag == tag);
  };
  auto first = std::make_unique<Raw>(frontend);
  first->send(push[0] + push[1] + push[2]);
  refused(*first, 3);
  Raw second(frontend);
  second.send(push[0] + push[1] + push[2]);
  refused(second, 3);
  auto third = std::make_unique<Raw>(frontend);
  third->send(push[0] + push[1] + pull_frame(7, key));
  refused(*third, 2);  // the first is beyond the bounds, and the only one of the connection
  ASSERT_EQ(third->hear().value_or(Raw::Heard{}).header.kind, Kind::sizes);
  Raw fourth(frontend);
  fourth.send(push[0]);
  refused(fourth, 1);  // the row has one beyond the bounds
  fourth.send(push_frame(1, others, {100'000}) + data_frame(1, 60'000) + data_frame(1, 40'000));
  ASSERT_EQ(fourth.hear().value_or(Raw::Heard{}).header.kind, Kind::taken);
  third.reset();  // its memory is free once the server has seen that
  for (bool taken = false; !taken;) {
    fourth.send(push[0] + data_frame(1, 60'000) + data_frame(1, 40'000));
    const auto heard = fourth.hear();
    ASSERT_TRUE(heard);
    taken = heard->header.kind == Kind::taken;
  }
}

// However large they are, and however many a worker has to give.
TEST(Rows, BeyondTheMemoryOfPushesGoOneAfterAnother) {
  Frontend frontend({.push_bytes = 100'000, .all_push_bytes = 100'000});
  constexpr std::size_t size = 3'000'000;
  std::vector<OneRow> rows(8, {.outputs = {Bytes(size)}});
  std::vector<std::uint64_t> keys;
  for (OneRow& row : rows) keys.push_back(row.open(frontend, RequestId{keys.size()}));
  const std::vector<Bytes> results{bytes_of(size, 1)};
  Worker workers[2];
  std::vector<std::future<Result<bool>>> answers;
  for (std::size_t i = 0; i < rows.size(); ++i)
    answers.push_back(workers[i % 2].push(frontend.address(), keys[i], results));
  for (auto& answer : answers) EXPECT_EQ(answer.get(), true);
  for (const OneRow& row : rows) EXPECT_EQ(row.outputs, results);
}

TEST(Rows, APushThatHangsHoldsNoMemory) {
  Frontend frontend({.push_bytes = 100'000, .all_push_bytes = 100'000, .push_pause = 200ms});
  OneRow row{.outputs = {Bytes(100'000)}};
  const auto key = row.open(frontend, RequestId{1});
  Raw hanging(frontend);
  hanging.send(push_frame(1, key, {100'000}) + data_frame(1, 60'000));
  EXPECT_EQ(hanging.why(), "the rest of a row's outputs has not come in time");
  Raw other(frontend);
  other.send(push_frame(1, key, {100'000}) + data_frame(1, 60'000) + data_frame(1, 40'000));
  const auto heard = other.hear();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->header.kind, Kind::taken);
}

// It would have its memory until all of it has come.
TEST(Rows, APushOfAClosedRowEnds) {
  Frontend frontend({.push_pause = 200ms});
  OneRow row{.outputs = {Bytes(100'000)}};
  for (const bool goes_on : {true, false}) {
    const auto key = row.open(frontend, RequestId{1});
    Raw raw(frontend);
    raw.send(push_frame(1, key, {100'000}) + data_frame(1, 60'000) + pull_frame(2, key));
    ASSERT_EQ(raw.hear().value_or(Raw::Heard{}).header.kind, Kind::sizes);
    frontend.store.close(key);
    if (goes_on) raw.send(data_frame(1, 10'000) + pull_frame(3, key));
    const auto heard = raw.hear();
    ASSERT_TRUE(heard);
    EXPECT_EQ(heard->header.kind, Kind::gone);
    EXPECT_EQ(heard->header.tag, 1U);
    raw.send(pull_frame(4, key));  // the connection goes on
    if (goes_on) {
      EXPECT_EQ(raw.hear().value_or(Raw::Heard{}).header.tag, 3U);
    }
    EXPECT_EQ(raw.hear().value_or(Raw::Heard{}).header.tag, 4U);
  }
  EXPECT_TRUE(all(row.outputs[0], std::byte{0}));
}

TEST(Rows, AllThatAreBeyondTheMemoryOfPushesHaveBoundedMemory) {
  Frontend frontend({.push_bytes = 50'000, .all_push_bytes = 50'000, .beyond_bytes = 250'000});
  std::vector<OneRow> rows(3, {.outputs = {Bytes(100'000)}});
  OneRow large{.outputs = {Bytes(1'000'000)}};
  std::vector<std::uint64_t> keys;
  for (OneRow& row : rows) keys.push_back(row.open(frontend, RequestId{keys.size()}));
  {
    Raw raws[] = {Raw(frontend), Raw(frontend), Raw(frontend)};
    for (std::size_t i = 0; i < 3; ++i) {
      raws[i].send(push_frame(1, keys[i], {100'000}) + pull_frame(2, keys[i]));
      const auto heard = raws[i].hear();
      ASSERT_TRUE(heard);
      if (i < 2) {
        EXPECT_EQ(heard->header.kind, Kind::sizes);
        continue;
      }
      ASSERT_EQ(heard->header.kind, Kind::refused);
      EXPECT_EQ(
          heard->body.substr(4),
          "no memory for outputs: 200000 bytes are under way beyond the bounds, and these have 100000; at "
          "most 250000 may be");
    }
  }
  // A single one may have more, once those have gone.
  const auto key = large.open(frontend, RequestId{9});
  Worker worker;
  const std::vector<Bytes> results{bytes_of(1'000'000, 1)};
  while (worker.push(frontend.address(), key, results).get() != true) std::this_thread::yield();
  EXPECT_EQ(large.outputs, results);
}

// A worker is cut off within its push, and the row has run elsewhere.
TEST(Rows, APushThatStallsMakesWayForAnotherOfItsRow) {
  Frontend frontend({.push_bytes = 50'000, .all_push_bytes = 50'000, .push_pause = 60s, .push_stalls = 20ms});
  OneRow row{.outputs = {Bytes(100'000)}};
  const auto key = row.open(frontend, RequestId{1});
  Raw first(frontend);
  first.send(push_frame(1, key, {100'000}) + data_frame(1, 60'000) + pull_frame(2, key));
  ASSERT_EQ(first.hear().value_or(Raw::Heard{}).header.kind, Kind::sizes);
  Worker second;
  const std::vector<Bytes> results{bytes_of(100'000, 1)};
  Result<bool> taken = false;
  while (taken != true) {
    taken = second.push(frontend.address(), key, results).get();
    if (!taken) {
      EXPECT_THAT(taken.error().message, HasSubstr("others of the row are under way"));
    }
  }
  EXPECT_EQ(row.outputs, results);
  const auto heard = first.hear();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->header.kind, Kind::refused);
  EXPECT_EQ(heard->header.tag, 1U);
  EXPECT_THAT(heard->body, HasSubstr("the outputs stalled"));
}

// Keepalive says nothing while a push waits for its acknowledgement.
TEST(Rows, AConnectionThatIsCutWithinAPushEnds) {
  boost::asio::io_context context;
  tcp::socket socket(context, tcp::v4());
  prepare(socket);
  int wait = 0;
  socklen_t size = sizeof(wait);
  ASSERT_EQ(getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &wait, &size), 0);
  EXPECT_GE(wait, 1000);
  EXPECT_LE(wait, 5000);
}

TEST(Rows, ManyAtOnce) {
  Frontend frontends[2];
  constexpr int threads = 4, rounds = 150;
  Worker workers[2];
  std::atomic<int> done = 0;
  std::vector<std::thread> crowd;
  for (int t = 0; t < threads; ++t)
    crowd.emplace_back([&, t] {
      Random random(static_cast<std::uint64_t>(t) + 1);
      for (int i = 0; i < rounds; ++i) {
        Frontend& frontend = frontends[random.below(2)];
        Worker& worker = workers[random.below(2)];
        struct Call {
          OneRow row;
          std::uint64_t key = 0;
          std::vector<Bytes> got;
          std::future<Result<std::int64_t>> pulled;
          std::future<Result<bool>> pushed;
        };
        std::vector<Call> calls(1 + random.below(8));
        for (Call& call : calls) {
          for (auto n = random.below(4); n > 0; --n) {
            const std::size_t size = random.below(random.below(4) == 0 ? 300'000 : 5'000);
            call.row.inputs.push_back(bytes_of(size, random.bits()));
            call.row.outputs.emplace_back(size);
            call.got.emplace_back(size);
          }
          call.key = call.row.open(frontend, RequestId{random.bits()}, i);
        }
        for (Call& call : calls) call.pulled = worker.pull(frontend.address(), call.key, call.got);
        for (Call& call : calls) {
          EXPECT_EQ(call.pulled.get(), i);
          EXPECT_EQ(call.got, call.row.inputs);
          call.pushed = worker.push(frontend.address(), call.key, call.got);
        }
        for (Call& call : calls) {
          EXPECT_EQ(call.pushed.get(), true);
          frontend.store.close(call.key);
          EXPECT_EQ(call.row.outputs, call.row.inputs);
          ++done;
        }
      }
    });
  for (std::thread& thread : crowd) thread.join();
  EXPECT_EQ(frontends[0].all_told().size() + frontends[1].all_told().size(), static_cast<std::size_t>(done));
}

TEST(Rows, CloseMayComeAtAnyTime) {
  Frontend frontend;
  Worker worker;
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    const std::size_t size = random.below(2) == 0 ? 3'000 : 400'000;
    auto row = std::make_unique<OneRow>(OneRow{.inputs = {bytes_of(size, 1)}, .outputs = {Bytes(size)}});
    const std::vector<Bytes> results{row->inputs[0]};
    const Bytes& was = results[0];
    const auto key = row->open(frontend, RequestId{1});
    std::vector<Bytes> got{Bytes(size)};
    auto pulled = worker.pull(frontend.address(), key, got);
    auto pushed = worker.push(frontend.address(), key, results);
    if (random.below(4) == 0) pulled.wait();
    frontend.store.close(key);
    const bool whole = row->outputs[0] == was, none = all(row->outputs[0], std::byte{0});
    row.reset();  // AddressSanitizer sees who uses it
    EXPECT_TRUE(whole || none);
    EXPECT_EQ(pushed.get(), whole);
    EXPECT_TRUE(!pulled.get() || got[0] == was);
  }
}

TEST(Rows, AConnectionMayBeOpenedAheadOfNeed) {
  Frontend first;
  OneRow row{{bytes_of(9, 1)}, {}};
  const auto key = row.open(first, RequestId{1});
  boost::asio::io_context context;
  tcp::acceptor acceptor(context, {boost::asio::ip::make_address("127.0.0.1"), 0});
  Worker worker;
  worker.client->connect(fmt::format("127.0.0.1:{}", acceptor.local_endpoint().port()));
  worker.client->connect(first.address());
  worker.client->flush();
  tcp::socket socket = acceptor.accept();
  std::string hello;
  put(hello, hello_of("box"));
  std::string heard(hello.size(), 0);
  boost::asio::read(socket, boost::asio::buffer(heard));
  EXPECT_EQ(heard, hello);
  std::vector<Bytes> into{Bytes(9)};
  EXPECT_TRUE(worker.pull(first.address(), key, into).get());
  EXPECT_EQ(into, row.inputs);
}

TEST(Rows, AFrontendThatIsBackIsFoundAgain) {
  auto frontend = std::make_unique<Frontend>();
  const int port = frontend->server->port();
  const std::string address = frontend->address();
  const auto client = RowClient::make({.cluster = "box", .first_pause = 1ms, .longest_pause = 2ms});
  OneRow row{.inputs = {bytes_of(3000, 1)}};
  const auto pull = [&](std::uint64_t key) {
    std::vector<Bytes> got{Bytes(3000)};
    std::future<Result<std::int64_t>> answer;
    client->pull({address, key, {}, RowClient::room_of({got.begin(), got.end()})}, Worker::promised(answer));
    client->flush();
    auto pulled = answer.get();
    EXPECT_TRUE(!pulled || got == row.inputs);
    return pulled;
  };
  EXPECT_TRUE(pull(row.open(*frontend, RequestId{1})));
  frontend.reset();
  for (int i = 0; i < 10; ++i) {
    const auto gone = pull(1);
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().code, ErrorCode::unavailable);
    EXPECT_THAT(gone.error().message, HasSubstr(address));
  }
  frontend = std::make_unique<Frontend>(RowLimits{}, port);
  const auto key = row.open(*frontend, RequestId{1});
  while (!pull(key)) std::this_thread::yield();
}

// A frontend that says whatever a test wants to the first that connects.
class Liar {
 public:
  explicit Liar(std::string says) : says_(std::move(says)) {
    thread_ = std::thread([this] {
      tcp::socket socket(context_);
      acceptor_.accept(socket);
      std::array<char, sizeof(Hello) + sizeof(Header) + sizeof(PullBody)> heard{};
      boost::system::error_code error;
      boost::asio::read(socket, boost::asio::buffer(heard), error);
      boost::asio::write(socket, boost::asio::buffer(says_), error);
    });
  }
  ~Liar() { thread_.join(); }
  std::string address() const { return fmt::format("127.0.0.1:{}", acceptor_.local_endpoint().port()); }

 private:
  const std::string says_;
  boost::asio::io_context context_;
  tcp::acceptor acceptor_{context_, {boost::asio::ip::make_address("127.0.0.1"), 0}};
  std::thread thread_;
};

TEST(Rows, AWorkerTrustsNoFrontend) {
  const auto sizes = [](std::uint64_t tag, std::uint64_t inputs, const std::vector<std::uint64_t>& bytes) {
    std::string out;
    put(out, Header{Kind::sizes, static_cast<std::uint32_t>(sizeof(SizesBody) + 8 * bytes.size()), tag});
    put(out, SizesBody{0, inputs});
    for (const std::uint64_t size : bytes) put(out, size);
    return out;
  };
  std::string unknown;
  put(unknown, Header{Kind::refused, 4, 1});
  put(unknown, std::uint32_t{77});
  std::string taken;
  put(taken, Header{Kind::taken, 0, 1});
  const std::string cases[] = {
      data_frame(1, 8),                          // before the sizes
      sizes(1, 1, {8}) + data_frame(1, 9),       // more than that
      sizes(1, 1, {8}) + sizes(1, 1, {8}),       // twice
      sizes(1, 2, {8}),                          // less than it says
      sizes(1, 1ULL << 61, {8}),                 // which overflows
      sizes(1, 2, {1ULL << 63, 1ULL << 63}),     //
      sizes(1, 1, {8}) + data_frame(1, 4),       // and hangs up
      sizes(1, 1, {1ULL << 40}),                 // of another size
      data_frame(2, 60'000) + sizes(3, 1, {8}),  // of what was not asked for, and hangs up
      unknown,
      taken,
      std::string(100, 'x'),
      "",
  };
  for (const std::string& says : cases) {
    const Liar liar(says);
    Worker worker;
    std::vector<Bytes> got{Bytes(8)};
    const auto pulled = worker.pull(liar.address(), 1, got).get();
    ASSERT_FALSE(pulled);
    EXPECT_THAT(pulled.error().message, HasSubstr(liar.address()));
  }
}

TEST(Rows, RandomBytesDoNoHarm) {
  Frontend frontend;
  OneRow row{.inputs = {bytes_of(3000, 1)}, .outputs = {Bytes(100'000)}};
  const auto key = row.open(frontend, RequestId{1});
  Random random(11);
  for (int i = 0; i < 3000; ++i) {
    Raw raw(frontend);
    std::string bytes;
    // Frames that are almost right get further than noise.
    for (auto n = random.below(6); n > 0; --n) {
      const std::uint64_t tag = random.below(3);
      switch (random.below(6)) {
        case 0:
          bytes += pull_frame(tag, key);
          break;
        case 1:
          bytes += push_frame(tag, key, {random.below(2) == 0 ? 100'000 : random.bits()});
          break;
        case 2:
          bytes += data_frame(tag, 1 + random.below(70'000));
          break;
        case 3:
          put(bytes, Header{Kind::cancel, 0, tag});
          break;
        case 4:
          put(bytes,
              Header{static_cast<Kind>(random.below(10)), static_cast<std::uint32_t>(random.below(80)), tag});
          break;
        default:
          for (auto left = random.below(200); left > 0; --left)
            bytes.push_back(static_cast<char>(random.bits()));
      }
    }
    if (!bytes.empty() && random.below(2) == 0)
      for (auto flips = random.below(4); flips > 0; --flips)
        bytes[random.below(bytes.size())] = static_cast<char>(random.bits());
    raw.send(bytes.substr(0, random.below(bytes.size() + 1)));
    boost::system::error_code error;
    raw.socket.shutdown(tcp::socket::shutdown_send, error);
    while (raw.hear()) {
    }
  }
  Worker worker;
  std::vector<Bytes> got{Bytes(3000)};
  EXPECT_TRUE(worker.pull(frontend.address(), key, got).get());
  EXPECT_EQ(got, row.inputs);
}

}  // namespace
}  // namespace carillon::transport::rows
