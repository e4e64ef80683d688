#include "carillon/transport/codec.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

#include "hosts.pb.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/transport/testing/samples.h"

namespace carillon::transport {
namespace {

using testing::at;
using ::testing::HasSubstr;
using testing::samples;

// What must come through, by kind.
auto fields(const Application& m) {
  return std::tuple(m.app, m.name, m.alike ? m.alike->model : ModelId{}, m.alike ? m.alike->length : 0,
                    m.alike.has_value());
}
auto fields(const Offer& m) {
  return std::tuple(m.row, m.more, m.key, m.tensor_bytes, m.trace);
}
auto fields(const Withdraw& m) {
  return std::tuple(m.row, m.model);
}
auto fields(const Sent& m) {
  return std::tuple(m.rows, m.device);
}
auto fields(const CameBack& m) {
  return m.rows;
}
auto fields(const Keep& m) {
  return m.rows;
}
auto fields(const Forget& m) {
  return m.rows;
}
auto fields(const TurnedDown& m) {
  return std::tuple(m.row, m.error);
}
auto fields(const Lost& m) {
  return std::tuple(m.rows, m.why);
}
auto fields(const wire::Verdict& m) {
  const wire::Prospect& p = m.prospect;
  return std::tuple(m.refusal, std::tuple(p.exec, p.batch, p.devices, p.holding, p.loading, p.device, p.holds,
                                          p.runs, p.busy));
}
auto fields(const Infer& m) {
  return std::tuple(m.order, m.rows);
}
auto fields(const Profile& m) {
  return std::tuple(m.order, m.row);
}
auto fields(const Retire& m) {
  return std::tuple(m.device, m.life);
}
auto fields(const Probe& m) {
  return m.device;
}
auto fields(const DeviceState& m) {
  return std::tuple(m.device, m.pages, m.best_effort, m.credit.infers, m.credit.loads, m.left, m.order);
}
auto fields(const Adopt& m) {
  return std::tuple(m.device, m.life);
}
auto fields(const wire::ProbeReport& m) {
  return std::tuple(m.found.has_value() ? Error{} : m.found.error(), m.found.has_value(), m.life, m.device);
}
auto fields(const wire::Report& m) {
  const wire::ActionTimes& t = m.times;
  std::vector<std::pair<int, Error>> bad;
  for (const wire::BadRow& row : m.bad_rows) bad.emplace_back(row.row, row.error);
  return std::tuple(
      std::tuple(m.id, m.status, m.error, m.device_lost, m.life, m.device, bad, m.odd_time, m.delivers),
      std::tuple(t.received, t.input_start, t.input_end, t.exec_start, t.exec_end, t.output_start,
                 t.output_end),
      std::tuple(t.paused, t.preemptions, t.lost, t.padded, t.threads, t.preempts));
}
auto fields(const Ended& m) {
  return std::tuple(m.rows, fields(m.report));
}
auto fields(const Delivered& m) {
  return std::tuple(m.action, m.took);
}
auto fields(const RowsAt& m) {
  return m.address;
}
auto fields(const DeviceCount& m) {
  return std::tuple(m.alive, m.known);
}
auto fields(const OfferCredit& m) {
  return std::tuple(m.taken, m.most);
}
auto fields(const FrontendAt& m) {
  return std::tuple(m.frontend, m.address);
}
auto fields(const Leads&) {
  return 0;
}
auto fields(const Drain& m) {
  return m.undo;
}
auto fields(const ModelOrder& m) {
  return std::tuple(m.order, m.model, m.unload);
}
auto fields(const ModelOrdered& m) {
  return std::tuple(m.order, m.result.has_value(), m.result ? Error{} : m.result.error());
}
auto fields(const Drains& m) {
  return m.actions;
}
auto fields(const ModelComes& m) {
  const ledger::ModelInfo& info = m.model.info;
  return std::tuple(
      std::tuple(info.id, info.name, info.pages, info.load, info.batches, info.solos, info.time_varies,
                 info.cls, info.cost ? std::optional(std::pair(info.cost->c0, info.cost->c1)) : std::nullopt),
      std::tuple(m.model.version, m.model.hash, m.model.config, m.model.inputs, m.model.outputs,
                 m.model.lengths));
}
auto fields(const ModelGoes& m) {
  return std::tuple(m.model, m.for_now);
}
auto fields(const ModelTimes& m) {
  return std::tuple(m.model, m.batches);
}
const auto& fields(const auto& order) {
  return order;
}  // of the ledger: has ==

bool same(const Message& a, const Message& b) {
  return a.index() == b.index() &&
         std::visit(
             [&](const auto& m) { return fields(m) == fields(std::get<std::decay_t<decltype(m)>>(b)); }, a);
}

std::string encoded(const Frame& frame, const FrameLimits& limits = {}) {
  std::string bytes;
  encode(frame, bytes, limits);
  return bytes;
}

TEST(Codec, EachKindOfMessageComesThroughWhole) {
  ASSERT_EQ(samples().size(), std::variant_size_v<Message>);
  std::set<std::size_t> kinds;
  for (const auto& [name, message] : samples()) {
    kinds.insert(message.index());
    const auto frame = decode(encoded({.epoch = 7, .messages = {message}}));
    ASSERT_TRUE(frame.has_value()) << name << ": " << frame.error().message;
    ASSERT_EQ(frame->messages.size(), 1U) << name;
    EXPECT_TRUE(same(frame->messages[0], message)) << name;
    EXPECT_EQ(frame->epoch, 7U);
    EXPECT_FALSE(frame->hello.has_value());
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Message>) << "a kind has no sample";
}

TEST(Codec, MessagesKeepTheirOrder) {
  Frame frame{.epoch = 1};
  for (const auto& sample : samples()) frame.messages.push_back(sample.second);
  const auto back = decode(encoded(frame));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  ASSERT_EQ(back->messages.size(), frame.messages.size());
  for (std::size_t i = 0; i < frame.messages.size(); ++i)
    EXPECT_TRUE(same(back->messages[i], frame.messages[i])) << i;
}

TEST(Codec, WhatIsAbsentStaysOpen) {
  const Message offer = Offer{.row = {.id = RequestId{1}, .deadline = TimePoint::max()}};
  const Message load = ledger::Load{.id = ActionId{1}, .window = {TimePoint::min(), TimePoint::max()}};
  const Message refused = wire::Verdict{{.would_finish = TimePoint::max()}, {}};
  const Message well = wire::ProbeReport{};
  const Message unlimited = DeviceState{};
  const Message app = Application{AppId{1}, "", std::nullopt};
  for (const Message& message : {offer, load, refused, well, unlimited, app}) {
    const auto frame = decode(encoded({.messages = {message}}));
    ASSERT_TRUE(frame.has_value()) << frame.error().message;
    EXPECT_TRUE(same(frame->messages.at(0), message)) << message.index();
  }
}

TEST(Codec, AHelloComesThrough) {
  for (const Role role : {Role::frontend, Role::scheduler, Role::worker}) {
    const Hello hello{"box", "host-1", role, 0xabcdef0123456789};
    const auto frame = decode(encoded({.epoch = 3, .hello = hello}));
    ASSERT_TRUE(frame.has_value()) << frame.error().message;
    EXPECT_EQ(frame->hello, hello);
  }
}

TEST(Codec, TextsAreCutWhereTheyAreWritten) {
  const auto frame = decode(
      encoded({.messages = {TurnedDown{RequestId{1}, {ErrorCode::internal, std::string(5000, 'x')}}}}));
  ASSERT_TRUE(frame.has_value()) << frame.error().message;
  EXPECT_EQ(std::get<TurnedDown>(frame->messages.at(0)).error.message, std::string(FrameLimits{}.text, 'x'));
}

TEST(Codec, TheLargestMessageIsLessThanHalfAFrame) {
  wire::Report report = testing::sample_report();
  report.error = std::string(100'000, 'x');
  report.bad_rows.clear();
  for (std::size_t i = 0; i < FrameLimits{}.rows; ++i)
    report.bad_rows.push_back(
        {static_cast<int>(i), {ErrorCode::invalid_argument, std::string(100'000, 'y')}});
  Ended ended{std::vector<RequestId>(FrameLimits{}.rows), report};
  const std::string bytes = encoded({.messages = {ended}});
  EXPECT_LT(bytes.size(), FrameLimits{}.bytes / 2);
  const auto read = decode(bytes);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(std::get<Ended>(read->messages.at(0)).report.bad_rows.back().error.message,
            std::string(256, 'y'));
}

TEST(Codec, AHelloTellsWhatItsSpeakerSpeaks) {
  const Hello hello{.cluster = "box",
                    .id = "a",
                    .role = Role::worker,
                    .incarnation = 1,
                    .protocols = {3, 4},
                    .build = "0.4.0"};
  const std::string bytes = encoded({.hello = hello, .messages = {Leads{}}, .protocol = 3});
  // Whoever speaks other versions reads who it is, and no messages.
  for (const Protocols& speaks : {Protocols{1, 1}, Protocols{2, 3}, Protocols{5, 6}}) {
    const auto frame = decode(bytes, {}, speaks);
    ASSERT_TRUE(frame) << frame.error().message;
    EXPECT_EQ(frame->hello, hello);
    EXPECT_EQ(frame->protocol, 3U);
    EXPECT_EQ(frame->messages.size(), speaks.has(3) ? 1U : 0U);
  }
  // A build that tells nothing speaks what it writes.
  hosts::Frame old;
  old.set_protocol(2);
  old.mutable_hello()->set_cluster("box");
  old.mutable_hello()->set_id("a");
  old.mutable_hello()->set_role(hosts::ROLE_WORKER);
  EXPECT_EQ(decode(old.SerializeAsString())->hello->protocols, (Protocols{2, 2}));
}

std::string why_not(const hosts::Frame& frame, const FrameLimits& limits = {}) {
  const auto read = decode(frame.SerializeAsString(), limits);
  if (read) return "it was read";
  EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
  return read.error().message;
}
hosts::Frame frame_of(int messages = 1) {
  hosts::Frame frame;
  frame.set_protocol(cluster::own_protocols.newest);
  for (int i = 0; i < messages; ++i) frame.add_messages();
  return frame;
}

TEST(Codec, WhatIsWrongIsNamed) {
  const auto says = [](auto change) {
    hosts::Frame frame = frame_of(2);
    change(*frame.mutable_messages(1));
    return why_not(frame);
  };
  EXPECT_EQ(says([](auto& m) { m.mutable_sent(); }), "messages[1]: rows: none, at least 1");
  EXPECT_EQ(says([](auto& m) {
              for (int i = 0; i < 4097; ++i) m.mutable_keep()->add_rows(1);
            }),
            "messages[1]: rows: 4097, at most 4096");
  EXPECT_EQ(says([](auto& m) { m.mutable_infer(); }), "messages[1]: rows: none, at least 1");
  EXPECT_EQ(says([](auto& m) { m.mutable_offer()->set_class_(static_cast<hosts::Class>(9)); }),
            "messages[1]: class: 9 is none of 0 to 2");
  EXPECT_EQ(says([](auto& m) { m.mutable_refused()->set_reason(6); }),
            "messages[1]: refused.reason: 6 is none of 0 to 5");
  EXPECT_EQ(says([](auto& m) { m.mutable_report()->set_status(6); }),
            "messages[1]: status: 6 is none of 0 to 5");
  EXPECT_EQ(says([](auto& m) { m.mutable_report(); }), "messages[1]: later_ns: 0 times, not 6");
  EXPECT_EQ(says([](auto& m) { m.mutable_slowness()->set_lane(4); }),
            "messages[1]: slowness.lane: 4 is none of 0 to 3");
  EXPECT_EQ(says([](auto& m) { m.mutable_slowness()->set_starved_ns(-1); }),
            "messages[1]: slowness.starved_ns: -1 ns, at least 0");
  EXPECT_EQ(says([](auto& m) { m.mutable_load()->set_expected_ns(-5); }),
            "messages[1]: expected_ns: -5 ns, at least 0");
  EXPECT_EQ(says([](auto& m) { m.mutable_turned_down()->mutable_error()->set_code(8); }),
            "messages[1]: error.code: 8 is none of 0 to 7");
  EXPECT_EQ(says([](auto& m) { m.mutable_application()->set_name(std::string(4097, 'x')); }),
            "messages[1]: application.name: 4097 bytes of text, at most 4096");
  EXPECT_EQ(says([](auto& m) { m.mutable_device_state()->set_best_effort(-1); }),
            "messages[1]: device_state.best_effort: -1, at least 0");
  for (const std::uint32_t oldest : {0U, 3U})
    EXPECT_EQ(says([&](auto& m) {
                m.mutable_frontend_at()->set_oldest_protocol(oldest);
                m.mutable_frontend_at()->set_newest_protocol(2);
              }),
              "messages[1]: frontend_at: protocols " + std::to_string(oldest) + " to 2 are no range");
  EXPECT_EQ(says([](auto& m) { m.mutable_device_state()->mutable_left()->add_runs()->set_ago_ns(-1); }),
            "messages[1]: left.ago_ns: -1 ns, at least 0");
  EXPECT_EQ(says([](auto& m) {
              for (int i = 0; i < 4097; ++i) m.mutable_device_state()->mutable_left()->add_held(1);
            }),
            "messages[1]: left.held: 4097, at most 4096");
}

TEST(Codec, WhatIsWrongWithAModelIsNamed) {
  const auto says = [](auto change) {
    std::string bytes = encoded({.messages = {ModelComes{{.info = {.name = "m", .batches = {{1, 1ms}}}}}}});
    hosts::Frame frame;
    EXPECT_TRUE(frame.ParseFromString(bytes));
    change(*frame.mutable_messages(0)->mutable_model_comes());
    return why_not(frame, {.rows = 4, .config = 8});
  };
  EXPECT_EQ(says([](auto&) {}), "it was read");
  EXPECT_EQ(says([](auto& m) { m.clear_name(); }), "messages[0]: model.name: empty");
  EXPECT_EQ(says([](auto& m) { m.set_version(0); }), "messages[0]: model.version: 0, at least 1");
  EXPECT_EQ(says([](auto& m) { m.set_config("123456789"); }),
            "messages[0]: model.config: 9 bytes, at most 8");
  EXPECT_EQ(says([](auto& m) { m.clear_batches(); }), "messages[0]: batches: none, at least 1");
  EXPECT_EQ(says([](auto& m) { m.mutable_batches(0)->set_batch(0); }), "messages[0]: batches: 0, at least 1");
  EXPECT_EQ(says([](auto& m) { m.add_batches()->set_batch(1); }), "messages[0]: batches: 1, at least 2");
  EXPECT_EQ(says([](auto& m) { m.mutable_batches(0)->set_exec_ns(-1); }),
            "messages[0]: batches.exec_ns: -1 ns, at least 0");
  EXPECT_EQ(says([](auto& m) {
              for (int i = 0; i < 5; ++i) m.add_inputs();
            }),
            "messages[0]: model.inputs: 5, at most 4");
  EXPECT_EQ(says([](auto& m) { m.add_inputs()->set_type(14); }),
            "messages[0]: tensor.type: 14 is none of 0 to 13");
  EXPECT_EQ(says([](auto& m) { m.add_outputs()->add_shape(-3); }),
            "messages[0]: tensor.shape: extent -3, at least 0, or -1 or -2");
  EXPECT_EQ(says([](auto& m) {
              m.add_lengths(4);
              m.add_lengths(4);
            }),
            "messages[0]: model.lengths: 4, at least 5");
  EXPECT_EQ(says([](auto& m) { m.add_solos_ns(0); }), "messages[0]: model.solos_ns: 0, above 0");
  EXPECT_EQ(says([](auto& m) { m.mutable_cost()->set_c1(std::nan("")); }),
            "messages[0]: model.cost.c1: nan, 0 to 1e6");
}

TEST(Codec, FramesOfOthersAreRefused) {
  hosts::Frame older = frame_of();
  older.set_protocol(0);
  EXPECT_EQ(why_not(older), "a frame of protocol 0, and this member speaks protocol 1");
  EXPECT_EQ(why_not(frame_of(3), {.messages = 2}), "a frame of 3 messages, at most 2");
  EXPECT_THAT(why_not(frame_of(30), {.bytes = 20}), HasSubstr("bytes, at most 20"));
  EXPECT_EQ(decode("\x07garbage").error().message, "not a frame of hosts.proto");
  hosts::Frame nobody = frame_of();
  nobody.mutable_hello()->set_cluster("box");
  EXPECT_THAT(why_not(nobody), HasSubstr("hello: the host's id is not 1 to 64 letters"));
  nobody.mutable_hello()->set_id("a");
  nobody.mutable_hello()->set_newest_protocol(2);
  EXPECT_EQ(why_not(nobody), "hello: protocols 0 to 2 are no range");
  nobody.mutable_hello()->set_oldest_protocol(3);
  EXPECT_EQ(why_not(nobody), "hello: protocols 3 to 2 are no range");
  nobody.mutable_hello()->set_oldest_protocol(1);
  nobody.mutable_hello()->set_build("\n");
  EXPECT_EQ(why_not(nobody), "hello: the build is not up to 64 printable characters");
  nobody.mutable_hello()->set_build("0.1.0");
  EXPECT_EQ(why_not(nobody), "hello: role 0 is none of 1 to 3");
  for (const std::string& name :
       {std::string(65, 'a'), std::string("a b"), std::string("a\xff"), std::string()}) {
    nobody.mutable_hello()->set_cluster(name);
    EXPECT_THAT(why_not(nobody), HasSubstr("hello: the cluster's name is not 1 to 64 letters")) << name;
  }
}

TEST(Codec, MessagesOfALaterVersionAreLeftOut) {
  hosts::Frame frame = frame_of(3);
  frame.mutable_messages(0)->mutable_probe()->set_device(1);
  auto* const set = frame.mutable_messages(1);
  set->GetReflection()->MutableUnknownFields(set)->AddVarint(900, 1);
  frame.mutable_messages(2)->mutable_probe()->set_device(2);
  const auto read = decode(frame.SerializeAsString());
  ASSERT_TRUE(read.has_value()) << read.error().message;
  ASSERT_EQ(read->messages.size(), 2U);
  EXPECT_EQ(std::get<Probe>(read->messages[1]).device, DeviceId{2});
}

TEST(Codec, ReportsOfAnyTimesArePassedOn) {
  wire::Report report;
  report.times.received = TimePoint::max();
  report.times.input_start = TimePoint::min();
  const auto once = decode(encoded({.messages = {report}}));
  ASSERT_TRUE(once.has_value()) << once.error().message;
  EXPECT_TRUE(decode(encoded({.messages = once->messages})).has_value());
}

TEST(Codec, BytesThatWereChangedCrashNothing) {
  Random random(17);
  Frame frame{.epoch = 1, .hello = Hello{"box", "a", Role::worker, 1}};
  for (const auto& sample : samples()) frame.messages.push_back(sample.second);
  const std::string whole = encoded(frame);
  int read = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = whole;
    for (std::uint64_t n = 1 + random.below(3); n > 0; --n)
      bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
    if (random.below(4) == 0) bytes.resize(random.below(bytes.size()));
    const auto back = decode(bytes);
    ++(back ? read : refused);
    if (back)
      EXPECT_LE(back->messages.size(), bytes.size());
    else
      EXPECT_FALSE(back.error().message.empty());
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 100);
}

// Frames as earlier versions wrote them: what was said once is understood for good. CARILLON_RECORD_WIRE=1
// writes those of this protocol number anew.
TEST(Codec, RecordedFramesAreRead) {
  const std::filesystem::path folder = std::filesystem::path(CARILLON_SOURCE_DIR) / "tests/wire" /
                                       std::to_string(cluster::own_protocols.oldest);
  const bool record = std::getenv("CARILLON_RECORD_WIRE") != nullptr;
  for (const auto& [name, message] : samples()) {
    const std::string now =
        encoded({.epoch = 7, .hello = Hello{"box", "host-1", Role::worker, 42}, .messages = {message}});
    const auto file = folder / (name + ".bin");
    if (record) {
      std::filesystem::create_directories(folder);
      std::ofstream(file, std::ios::binary) << now;
    }
    std::ifstream in(file, std::ios::binary);
    ASSERT_TRUE(in) << file << ": CARILLON_RECORD_WIRE=1 writes it";
    std::ostringstream bytes;
    bytes << in.rdbuf();
    const auto frame = decode(bytes.str());
    ASSERT_TRUE(frame.has_value()) << file << ": " << frame.error().message;
    EXPECT_EQ(frame->epoch, 7U);
    EXPECT_EQ(frame->hello, (Hello{"box", "host-1", Role::worker, 42}));
    ASSERT_EQ(frame->messages.size(), 1U);
    EXPECT_TRUE(same(frame->messages[0], message)) << file;
    EXPECT_EQ(bytes.str(), now) << file << ": an older version would read something else";
  }
}

// Frames from before a field was added: it is as if not told. Rows without a trace are written as before.
TEST(Codec, FramesFromBeforeAFieldAreRead) {
  const std::filesystem::path folder = std::filesystem::path(CARILLON_SOURCE_DIR) / "tests/wire/1/before";
  int read = 0;
  for (const auto& [name, message] : samples()) {
    Message wanted = message;
    bool as_before = false;
    if (auto* const state = std::get_if<DeviceState>(&wanted)) {
      state->order.reset();
    } else if (auto* const goes = std::get_if<ModelGoes>(&wanted)) {
      goes->for_now = false;
    } else if (auto* const comes = std::get_if<ModelComes>(&wanted)) {
      comes->model.info.miss_rate = 0;
    } else if (auto* const offer = std::get_if<Offer>(&wanted)) {
      offer->trace.reset();
      as_before = true;
    } else if (auto* const infer = std::get_if<Infer>(&wanted)) {
      for (RowReference& row : infer->rows) row.trace.reset();
      as_before = true;
    } else if (auto* const profile = std::get_if<Profile>(&wanted)) {
      profile->row.trace.reset();
      as_before = true;
    } else {
      continue;
    }
    ++read;
    std::ifstream in(folder / (name + ".bin"), std::ios::binary);
    ASSERT_TRUE(in) << name;
    std::ostringstream bytes;
    bytes << in.rdbuf();
    const auto frame = decode(bytes.str());
    ASSERT_TRUE(frame.has_value()) << name << ": " << frame.error().message;
    EXPECT_TRUE(same(frame->messages.at(0), wanted)) << name;
    if (as_before) {
      EXPECT_EQ(
          encoded({.epoch = 7, .hello = Hello{"box", "host-1", Role::worker, 42}, .messages = {wanted}}),
          bytes.str())
          << name;
    }
  }
  EXPECT_EQ(read, 6);
}

}  // namespace
}  // namespace carillon::transport
