#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/controller/device_timeline.h"
#include "carillon/frontend/admin_page.h"
#include "carillon/frontend/admin_status.h"
#include "carillon/frontend/device_actions.h"
#include "carillon/frontend/http_routes.h"
#include "carillon/frontend/http_server_fixture.h"

namespace carillon::frontend {
namespace {

using nlohmann::json;
using schedule::ActionKind;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A service whose one device does what the test says; the clock stands at 1000 s.
class WatchedService final : public FakeService {
 public:
  std::vector<controller::TimelinePart> timelines() const override {
    return {{.timeline = &timeline, .first_device = 0, .first_model = 0}};
  }
  controller::DeviceTimeline timeline{4096};
};

class AdminTest : public ::testing::Test {
 protected:
  AdminTest() {
    service.all_models = {pair_model(), model_of(graph::DataType::f32, {2}, "sick")};
    service.all_models[0].config.slo = 20ms;
    service.all_models[1].ready = false;
    service.all_models[1].reason = "its <file> is \"damaged\"";
    service.all_statistics.models = {{.name = "pair", .version = 2, .on_time = 9, .refused = 3, .shed = 1}};
    service.all_statistics.models[0].reasons[static_cast<std::size_t>(schedule::Reason::cannot_finish)] = 1;
    service.all_statistics.models[0].held_by = {DeviceId{0}};
    service.all_statistics.devices = {{.name = "cpu", .models = 1, .pages_total = 8, .pages_free = 5}};
    service.all_statistics.open_requests = 4;
  }

  json status(const Caller* caller = nullptr) { return json::parse(status_json(watch, commons, caller)); }
  json timeline(const std::string& since = {}, const Caller* caller = nullptr) {
    const auto text = timeline_json(watch, since, caller);
    if (!text) return text.error().message;
    return json::parse(*text);
  }
  void end(std::uint64_t id, std::uint32_t model = 0) {
    const TimePoint t{std::chrono::milliseconds(id)};
    service.timeline.end(0, {.id = {id},
                             .model = model,
                             .batch = 4,
                             .kind = ActionKind::infer,
                             .cls = Class::normal,
                             .input_begin = t,
                             .input_end = t + 10us,
                             .exec_begin = t + 20us,
                             .exec_end = t + 900us,
                             .output_begin = t + 900us,
                             .output_end = t + 900us,
                             .predicted = 800us});
  }

  WatchedService service;
  Watch watch{service};
  Commons commons{
      {.inflight = std::size_t{64} << 20,
       .max_body = std::size_t{16} << 20,
       .heavy_threads = 1,
       .facts = {.policy = "clockwork", .model_control = "explicit", .options = {{"--device", "cpu"}}}}};
};

TEST_F(AdminTest, StatusTellsWhatThereIs) {
  service.timeline.begin(0, {.id = {1},
                             .batch = 2,
                             .kind = ActionKind::infer,
                             .cls = Class::normal,
                             .exec_begin = TimePoint{999s},
                             .predicted = 3ms});
  service.timeline.begin(1, {.id = {2},
                             .batch = 1,
                             .kind = ActionKind::infer,
                             .cls = Class::normal,
                             .exec_begin = TimePoint{1001s}});
  service.timeline.begin(2, {.id = {3}, .kind = ActionKind::load, .cls = Class::normal});
  const json told = status();
  EXPECT_EQ(told["server"]["policy"], "clockwork");
  EXPECT_EQ(told["server"]["model_control"], "explicit");
  EXPECT_EQ(told["server"]["options"], (json{{"--device", "cpu"}}));
  EXPECT_EQ(told["server"]["state"], "not_ready");
  EXPECT_THAT(told["server"]["why"].get<std::string>(), HasSubstr("sick"));
  EXPECT_EQ(told["server"]["open_requests"], 4);
  ASSERT_EQ(told["devices"].size(), 1U);
  const json& device = told["devices"][0];
  EXPECT_EQ(device["pages_used"], 3);
  EXPECT_TRUE(device["busy"].is_null()) << "there was one look";
  ASSERT_EQ(device["now"].size(), 2U);
  EXPECT_EQ(device["now"][0]["executor"], "LOAD");
  EXPECT_EQ(device["now"][1], (json{{"executor", "EXEC"},
                                    {"class", "normal"},
                                    {"model", "pair"},
                                    {"version", 2},
                                    {"batch", 2},
                                    {"begun", true},
                                    {"predicted_ms", 3.0},
                                    {"waiting", 1}}));
  ASSERT_EQ(told["models"].size(), 2U);
  const json& pair = told["models"][0];
  EXPECT_EQ(pair["state"], "ready");
  EXPECT_EQ(pair["slo_ms"], 20.0);
  EXPECT_EQ(pair["engine"], "carillon");
  EXPECT_EQ(pair["loaded_on"], json::array({0}));
  EXPECT_EQ(pair["total"]["on_time"], 9);
  EXPECT_EQ(pair["total"]["reasons"],
            (json{{"cannot_finish", 1}, {"overloaded", 1}, {"no_time_to_decide", 1}}));
  EXPECT_TRUE(pair["last_minute"]["p99_ms"].is_null());
  EXPECT_EQ(told["models"][1]["state"], "not_ready");
  EXPECT_EQ(told["models"][1]["reason"], "its <file> is \"damaged\"");
  commons.draining = true;
  EXPECT_EQ(status()["server"]["state"], "draining");
}

TEST_F(AdminTest, WhoMayUseOnlySomeModelsSeesNoOthers) {
  service.timeline.begin(0, {.id = {1}, .batch = 2, .kind = ActionKind::infer});
  service.timeline.begin(1, {.id = {2}, .model = 7, .batch = 2, .kind = ActionKind::infer});
  end(3);
  const Caller caller(Key{.name = "k", .models = {"sick"}, .admin = true});
  const json told = status(&caller);
  ASSERT_EQ(told["models"].size(), 1U);
  EXPECT_EQ(told["models"][0]["name"], "sick");
  EXPECT_EQ(told["devices"][0]["now"], json::array());
  const json actions = timeline({}, &caller);
  EXPECT_EQ(actions["actions"], json::array());
  EXPECT_EQ(actions["under_way"], json::array());
  EXPECT_EQ(actions["models"], json::array());
}

TEST_F(AdminTest, TimelineGoesOnWhereItWasLeft) {
  end(1);
  end(2);
  json told = timeline();
  ASSERT_EQ(told["actions"].size(), 2U);
  EXPECT_EQ(told["actions"][0], (json{{"device", 0},
                                      {"action", 1},
                                      {"model", 0},
                                      {"batch", 4},
                                      {"class", "normal"},
                                      {"predicted_us", 800},
                                      {"status", "success"},
                                      {"input", {1000, 1010}},
                                      {"exec", {1020, 1900}}}));
  EXPECT_EQ(told["models"], json::array({{{"name", "pair"}, {"version", 2}}}));
  EXPECT_EQ(told["now_us"], 1'000'000'000);
  end(3);
  service.timeline.begin(
      5, {.id = {9}, .kind = ActionKind::load, .exec_begin = TimePoint{7ms}, .exec_end = TimePoint::max()});
  told = timeline(told["next"]);
  ASSERT_EQ(told["actions"].size(), 1U);
  EXPECT_EQ(told["actions"][0]["action"], 3);
  EXPECT_EQ(told["left_out"], 0);
  EXPECT_EQ(told["under_way"], json::array({{{"device", 0},
                                             {"action", 9},
                                             {"model", 0},
                                             {"predicted_us", 0},
                                             {"executor", "LOAD"},
                                             {"earliest_us", 7000}}}));
  EXPECT_EQ(timeline(told["next"])["actions"], json::array());
  // More than are told at once: the newest, and how many are missing.
  for (std::uint64_t i = 0; i < most_actions + 10; ++i) end(10 + i);
  told = timeline(told["next"]);
  EXPECT_EQ(told["actions"].size(), most_actions);
  EXPECT_EQ(told["actions"].back()["action"], 10 + most_actions + 9);
  EXPECT_EQ(told["left_out"], 10);
  EXPECT_EQ(timeline("99999999")["actions"].size(), most_actions) << "a cursor of a server before this one";
}

TEST_F(AdminTest, BadCursorsAreRefused) {
  for (const char* bad : {"x", "-1", "1.", "1.2", ".1", "1 ", "18446744073709551616", "1x"})
    EXPECT_THAT(timeline(bad).get<std::string>(), HasSubstr("\"next\"")) << bad;
}

TEST(Routes, OfThePage) {
  EXPECT_EQ(find_route("GET", "/")->endpoint, Endpoint::admin_page);
  EXPECT_EQ(find_route("GET", "/admin")->endpoint, Endpoint::admin_page);
  EXPECT_EQ(find_route("GET", "/v2/carillon/status")->endpoint, Endpoint::carillon_status);
  EXPECT_EQ(find_route("GET", "/v2/carillon/timeline?since=4")->endpoint, Endpoint::carillon_timeline);
  EXPECT_FALSE(find_route("GET", "/v2/carillon"));
  EXPECT_EQ(find_route("POST", "/v2/carillon/status").error().status, 405);
  EXPECT_EQ(query_value("/a?b=1&since=2.3&c", "since"), "2.3");
  EXPECT_EQ(query_value("/a?xsince=2", "since"), "");
  EXPECT_EQ(query_value("/a?since", "since"), "");
  EXPECT_EQ(query_value("/a", "since"), "");
}

TEST(AdminPage, KeepsToItself) {
  const HttpReply reply = admin_page_reply();
  const std::map<std::string, std::string> headers(reply.headers.begin(), reply.headers.end());
  EXPECT_THAT(headers.at("Content-Security-Policy"),
              AllOf(HasSubstr("default-src 'none'; script-src 'sha256-"), HasSubstr("frame-ancestors 'none'"),
                    HasSubstr("connect-src 'self'"), Not(HasSubstr("unsafe"))));
  EXPECT_EQ(headers.at("X-Frame-Options"), "DENY");
  EXPECT_EQ(headers.at("Cache-Control"), "no-store");
  EXPECT_THAT(reply.body, HasSubstr("<!doctype html>"));
  EXPECT_THAT(reply.body, Not(HasSubstr("http://"))) << "no other server's";
}

// At the admin port the page is open and what it shows is not; elsewhere there is no page.
class AdminDoorTest : public HttpServerTest {
 protected:
  void start_at(bool admin_door, const std::string& keys) {
    auto opened = Guard::open({.keys = keys, .admin_at = "127.0.0.1:9"});
    ASSERT_TRUE(opened) << opened.error().message;
    guarded = std::make_unique<Commons>(CommonsOptions{.inflight = std::size_t{64} << 20,
                                                       .max_body = std::size_t{16} << 20,
                                                       .heavy_threads = 1,
                                                       .guard = *opened});
    watch = std::make_unique<Watch>(service);
    door = std::make_unique<HttpApi>(service, *guarded, watch.get(), admin_door);
    auto started = HttpServer::start(*door, {.address = {"127.0.0.1", 0}, .commons = guarded.get()});
    ASSERT_TRUE(started) << started.error().message;
    server = std::move(*started);
  }
  ~AdminDoorTest() override {
    if (server) server->stop();
    server.reset();
  }
  unsigned ask(const std::string& target, const std::string& secret = {}, const std::string& site = {}) {
    TestClient::Headers headers;
    if (!site.empty()) headers.emplace_back("Sec-Fetch-Site", site);
    if (!secret.empty()) headers.emplace_back("x-api-key", secret);
    return client().ask("GET", target, {}, headers).result_int();
  }

  std::unique_ptr<Commons> guarded;
  std::unique_ptr<Watch> watch;
  std::unique_ptr<HttpApi> door;
};

TEST_F(AdminDoorTest, WithKeysOnlyAdministratorsSeeMoreThanThePage) {
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / "carillon_admin_keys.toml";
  std::ofstream(file) << "[[key]]\nname = \"a\"\nsecret = \"admin-admin-admin-admin\"\nroles = [\"admin\"]\n"
                         "[[key]]\nname = \"i\"\nsecret = \"infer-infer-infer-infer\"\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  start_at(true, file);
  EXPECT_EQ(ask("/"), 200U);
  EXPECT_EQ(ask("/admin"), 200U);
  for (const char* target : {"/v2/carillon/status", "/v2/carillon/timeline"}) {
    EXPECT_EQ(ask(target), 401U);
    EXPECT_EQ(ask(target, "infer-infer-infer-infer"), 403U);
    EXPECT_EQ(ask(target, "admin-admin-admin-admin"), 200U);
  }
  EXPECT_EQ(ask("/v2/carillon/timeline?since=no", "admin-admin-admin-admin"), 400U);
  std::filesystem::remove(file);
}

TEST_F(AdminDoorTest, OtherDoorsHaveNoPage) {
  start_at(false, {});
  EXPECT_EQ(ask("/"), 404U);
  EXPECT_EQ(ask("/admin"), 404U);
  EXPECT_EQ(ask("/v2/carillon/status"), 403U);
}

TEST_F(AdminDoorTest, PagesOfOtherSitesGiveNoOrders) {
  start_at(true, {});
  for (const char* target : {"/v2/carillon/status", "/v2/systemsharedmemory/status"}) {
    EXPECT_EQ(ask(target, {}, "same-origin"), 200U) << target;
    EXPECT_EQ(ask(target, {}, "none"), 200U) << target;
    EXPECT_EQ(ask(target, {}, "cross-site"), 403U) << target;
    EXPECT_EQ(ask(target, {}, "same-site"), 403U) << target;
  }
  EXPECT_EQ(client()
                .ask("POST", "/v2/repository/models/pair/unload", {}, {{"Sec-Fetch-Site", "cross-site"}})
                .result_int(),
            403U);
  EXPECT_EQ(ask("/v2/health/live", {}, "cross-site"), 200U);
}

TEST_F(HttpServerTest, WithoutAWatchThereIsNoStatus) {
  start();
  EXPECT_EQ(client().ask("GET", "/v2/carillon/status").result_int(), 501U);
}

}  // namespace
}  // namespace carillon::frontend
