#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/controller/calls/device_timeline.h"
#include "carillon/frontend/admin/admin_page.h"
#include "carillon/frontend/admin/admin_status.h"
#include "carillon/frontend/admin/device_actions.h"
#include "carillon/frontend/http/http_routes.h"
#include "carillon/frontend/testing/http_server_fixture.h"

namespace carillon::frontend {
namespace {

using nlohmann::json;
using schedule::ActionKind;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A service whose one device does what the test says; the clock stands at 1000 s until the test moves it.
class WatchedService final : public FakeService {
 public:
  std::vector<controller::TimelinePart> timelines() const override {
    return {{.timeline = &timeline, .first_device = 0, .first_model = 0}};
  }
  TimePoint now() const override { return clock; }
  TimePoint clock{1000s};
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
  json status(const std::string& query, const Caller* caller = nullptr) {
    const auto parsed = parse_status_query("/v2/carillon/status" + query);
    if (!parsed) return parsed.error().message;
    return json::parse(status_json(watch, commons, caller, *parsed));
  }
  static std::vector<std::string> names(const json& told) {
    std::vector<std::string> out;
    for (const json& model : told["models"]) out.push_back(model["name"]);
    return out;
  }
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

TEST_F(AdminTest, StatusIsNotOfBeforeTheServerWasReady) {
  EXPECT_EQ(status()["model_counts"]["ready"], 1);
  service.all_models[1].ready = true;
  EXPECT_EQ(status()["model_counts"]["ready"], 1) << "of the last look";
  service.set_ready(false);
  EXPECT_EQ(status()["model_counts"]["ready"], 2);
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

// Four models, of which the counters grow between two looks, ten seconds apart.
class StatusOfManyTest : public AdminTest {
 protected:
  StatusOfManyTest() {
    service.all_models.clear();
    service.all_statistics.models.clear();
    for (const char* name : {"calm", "Late", "quick", "sick", "slow"}) {
      service.all_models.push_back(model_of(graph::DataType::f32, {2}, name));
      service.all_models.back().config.slo = 20ms;
      service.all_statistics.models.push_back({.name = name});
    }
    service.all_models[3].ready = false;
    service.all_statistics.devices[0].exec_busy = 3s;
    watch.look_now();
  }
  controller::ModelStatistics& counts(std::size_t place) { return service.all_statistics.models[place]; }
  void succeed(std::size_t place, std::uint64_t times, Duration latency) {
    counts(place).on_time += times;
    for (std::uint64_t i = 0; i < times; ++i) counts(place).latency.add(latency);
    counts(place).success.total += latency * static_cast<std::int64_t>(times);
  }
  void second_look() {
    service.clock += 10s;
    watch.look_now();
  }
};

TEST_F(StatusOfManyTest, SortsByNameRateAndTrouble) {
  succeed(0, 10, 1ms);
  succeed(1, 40, 2ms);
  counts(1).late = 2;
  succeed(2, 100, 3ms);
  succeed(4, 5, 19ms);
  second_look();
  EXPECT_THAT(names(status("")), ElementsAre("calm", "Late", "quick", "sick", "slow"));
  EXPECT_THAT(names(status("?sort=name")), ElementsAre("calm", "Late", "quick", "sick", "slow"));
  EXPECT_THAT(names(status("?sort=rate")), ElementsAre("quick", "Late", "calm", "slow", "sick"));
  // The order: the model that cannot be served, the model that was late, the model nearest its SLO.
  EXPECT_THAT(names(status("?sort=trouble")), ElementsAre("sick", "Late", "slow", "quick", "calm"));
  // What is still to be loaded is no trouble.
  service.all_models[3].coming = true;
  second_look();
  const json told = status("?sort=trouble");
  EXPECT_EQ(names(told).back(), "sick");
  EXPECT_EQ(told["models"].back()["state"], "coming");
}

TEST_F(StatusOfManyTest, APageOfModelsHasTheCountsOfAll) {
  succeed(0, 60, 1ms);
  succeed(2, 30, 4ms);
  counts(1).refused = 10;
  counts(1).shed = 4;
  counts(1).reasons[static_cast<std::size_t>(schedule::Reason::deadline_passed)] = 6;
  second_look();
  const json told = status("?sort=name&offset=1&limit=2");
  EXPECT_THAT(names(told), ElementsAre("Late", "quick"));
  EXPECT_EQ(told["model_counts"], (json{{"all", 5}, {"ready", 4}, {"broken", 1}, {"found", 5}}));
  const json& minute = told["last_minute"];
  EXPECT_EQ(minute["on_time"], 90);
  EXPECT_EQ(minute["refused"], 10);
  EXPECT_EQ(minute["reasons"], (json{{"deadline_passed", 6}, {"overloaded", 4}}));
  EXPECT_DOUBLE_EQ(minute["on_time_share"], 0.9);
  EXPECT_DOUBLE_EQ(minute["goodput"], 9.0);
  EXPECT_DOUBLE_EQ(minute["rate"], 10.0);
  EXPECT_DOUBLE_EQ(minute["time"]["latency_ms"], 2.0);

  EXPECT_THAT(names(status("?offset=4&limit=2")), ElementsAre("slow"));
  EXPECT_THAT(names(status("?offset=5&limit=2")), ElementsAre());
  EXPECT_THAT(names(status("?offset=18446744073709551615&limit=18446744073709551615")), ElementsAre());
  EXPECT_THAT(names(status("?limit=0")), ElementsAre());
  const json found = status("?name=L%41&limit=1");
  EXPECT_THAT(names(found), ElementsAre("Late"));
  EXPECT_EQ(found["model_counts"]["found"], 1);
  EXPECT_EQ(status("?name=%3Cimg")["model_counts"]["found"], 0);

  const Caller caller(Key{.name = "k", .models = {"q*", "L*"}, .admin = true});
  const json some = status("?limit=1&sort=rate", &caller);
  EXPECT_THAT(names(some), ElementsAre("quick"));
  EXPECT_EQ(some["model_counts"]["all"], 2);
  EXPECT_EQ(some["last_minute"]["on_time"], 30) << "nothing of the models that it may not use";
}

TEST_F(StatusOfManyTest, BadQueriesAreRefused) {
  for (const char* bad :
       {"?sort=age", "?offset=-1", "?limit=x", "?limit=1x", "?offset=18446744073709551616", "?name=%zz"})
    EXPECT_TRUE(status(bad).is_string()) << bad;
}

TEST_F(StatusOfManyTest, TellsWhereTheTimeGoes) {
  EXPECT_TRUE(status()["last_minute"]["time"]["exec_share"].is_null()) << "there was one look";
  EXPECT_TRUE(status()["last_minute"]["time"]["margin"].is_null());
  EXPECT_TRUE(status()["last_minute"]["memory"].is_null());
  succeed(0, 4, 10ms);
  counts(0).queue.total += 12ms;
  counts(0).compute_input.total += 400us;
  counts(0).compute_infer.total += 24ms;
  counts(0).compute_output.total += 800us;
  service.all_statistics.devices[0].exec_busy += 2s;
  service.all_statistics.devices[0].load_busy += 500ms;
  service.all_statistics.margin = {.dispatch = 300us, .answer = 1ms, .overrun = 0.05, .shortest = 4ms};
  second_look();
  EXPECT_EQ(status()["last_minute"]["time"],
            (json{{"exec_share", 0.2},
                  {"load_share", 0.05},
                  {"waiting_ms", 3.0},
                  {"input_ms", 0.1},
                  {"exec_ms", 6.0},
                  {"output_ms", 0.2},
                  {"latency_ms", 10.0},
                  {"margin", {{"ms", 1.6}, {"dispatch_ms", 0.3}, {"answer_ms", 1.0}, {"overrun", 0.05}}}}));
}

TEST_F(AdminTest, TellsWhatMemoryHas) {
  Watch looks(service, [](const controller::ServerStatistics&) {
    return MemoryFigures{
        .limit = gib(1), .resident = mib(300), .parts = {{"weights", mib(70)}, {"plans", mib(9)}}};
  });
  const json told = json::parse(status_json(looks, commons, nullptr));
  EXPECT_EQ(told["last_minute"]["memory"], (json{{"limit", 1U << 30},
                                                 {"resident", 300 << 20},
                                                 {"parts", {{"weights", 70 << 20}, {"plans", 9 << 20}}}}));
}

TEST_F(StatusOfManyTest, TheTrendGoesOnWhereItWasLeft) {
  const auto trend = [&](const std::string& since, const Caller* caller = nullptr) -> json {
    const auto text = trend_json(watch, since, caller);
    if (!text) return text.error().message;
    return json::parse(*text);
  };
  EXPECT_EQ(trend("")["samples"], json::array());
  succeed(0, 60, 1ms);
  counts(1).refused = 10;
  service.all_statistics.exec_busy += 2500ms;
  second_look();
  json told = trend("");
  EXPECT_EQ(told["samples"], json::array({{10.0, 10.0, 60, 0, 10, 0, 0, 0, 0.25, 0.0, 0}}));
  EXPECT_EQ(told["fields"].size(), told["samples"][0].size());
  const std::string next = told["next"];
  EXPECT_EQ(trend(next)["samples"], json::array());
  succeed(0, 1, 1ms);
  second_look();
  EXPECT_EQ(trend(next)["samples"].size(), 1U);
  EXPECT_EQ(trend(next)["samples"][0][2], 1);
  EXPECT_EQ(trend("99")["samples"].size(), 2U) << "a number of a server before this one";
  for (const char* bad : {"x", "-1", "1.", "18446744073709551616"})
    EXPECT_TRUE(trend(bad).is_string()) << bad;
  const Caller some(Key{.name = "k", .models = {"q*"}, .admin = true});
  EXPECT_EQ(trend("", &some)["samples"], json::array()) << "it is of all models";
  const Caller all(Key{.name = "k", .models = {"q*", "*"}, .admin = true});
  EXPECT_EQ(trend("", &all)["samples"].size(), 2U);
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
  EXPECT_EQ(find_route("GET", "/v2/carillon/trend?since=4")->endpoint, Endpoint::carillon_trend);
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
  for (const char* target : {"/v2/carillon/status", "/v2/carillon/timeline", "/v2/carillon/trend"}) {
    EXPECT_EQ(ask(target), 401U);
    EXPECT_EQ(ask(target, "infer-infer-infer-infer"), 403U);
    EXPECT_EQ(ask(target, "admin-admin-admin-admin"), 200U);
  }
  for (const char* target :
       {"/v2/carillon/timeline?since=no", "/v2/carillon/trend?since=no", "/v2/carillon/status?sort=no"})
    EXPECT_EQ(ask(target, "admin-admin-admin-admin"), 400U) << target;
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
