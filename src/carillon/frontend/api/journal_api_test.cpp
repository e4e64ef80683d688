#include "carillon/frontend/api/journal_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/frontend/http/http_access.h"
#include "carillon/frontend/testing/http_server_fixture.h"

namespace carillon::frontend {
namespace {

using controller::CallRecord;
using controller::Journal;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A journal of three requests: 1 of team-a (on time, id "first"), 2 of team-b (refused, id "7"), 3 of team-a
// for another model (late, id "first").
class JournalApiTest : public HttpServerTest {
 protected:
  JournalApiTest() {
    service.kept = std::make_shared<Journal>(100, 1'000'000s);
    add("team-a", "pair", explain::Outcome::on_time, "first");
    add("team-b", "pair", explain::Outcome::refused, "7");
    add("team-a", "sick", explain::Outcome::late, "first");
  }
  void add(std::string_view key, std::string_view model, explain::Outcome outcome, std::string_view id) {
    CallRecord record{.number = service.kept->next_number()};
    record.arrival = service.now() - 1s;
    record.decided = record.handed = record.at_door = record.arrival + 1ms;
    record.ended = record.arrival + 9ms;
    record.deadline = record.arrival + 8ms;
    record.model = service.kept->name(model);
    record.outcome = outcome;
    if (outcome == explain::Outcome::refused) record.cause = explain::Cause::deadline_passed;
    record.say(record.id, id, 64);
    record.say(record.key, key, 64);
    service.kept->put(record);
  }
  static std::shared_ptr<Caller> caller(std::string name, bool admin,
                                        std::vector<std::string> models = {"*"}) {
    return std::make_shared<Caller>(
        Key{.name = std::move(name), .models = std::move(models), .admin = admin});
  }
  HttpReply ask(const std::string& target, std::shared_ptr<Caller> who = nullptr, std::string accept = {}) {
    auto answer = api.handle({.method = "GET",
                              .target = target,
                              .inference_header_length = {},
                              .accept = std::move(accept),
                              .body = {},
                              .room = {},
                              .caller = std::move(who)},
                             {});
    return std::move(std::get<HttpReply>(answer));
  }
  std::vector<int> listed(const std::string& query, std::shared_ptr<Caller> who = nullptr) {
    const HttpReply reply = ask("/v2/carillon/requests" + query, std::move(who));
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::vector<int> out;
    const json told = json::parse(reply.body);
    for (const auto& each : told["requests"]) out.push_back(each["number"].get<int>());
    return out;
  }
};

TEST_F(JournalApiTest, FindsByNumberAndById) {
  EXPECT_EQ(json::parse(ask("/v2/carillon/requests/2").body)["outcome"], "refused");
  EXPECT_EQ(json::parse(ask("/v2/carillon/requests/first").body)["number"], 3);
  EXPECT_EQ(json::parse(ask("/v2/carillon/requests/f%69rst").body)["number"], 3);
  // A client's id in digits, of which no request has the number, or that is asked for as such.
  EXPECT_EQ(json::parse(ask("/v2/carillon/requests/7").body)["number"], 2);
  EXPECT_EQ(ask("/v2/carillon/requests/3?by=id").status, 404);
  EXPECT_EQ(ask("/v2/carillon/requests/3?by=name").status, 400);
  EXPECT_EQ(ask("/v2/carillon/requests/4").status, 404);
  EXPECT_EQ(ask("/v2/carillon/requests/18446744073709551616").status, 404);
  EXPECT_EQ(ask("/v2/carillon/requests/").status, 200);
}

TEST_F(JournalApiTest, TellsInTextWhereThatIsAskedFor) {
  for (const HttpReply& reply :
       {ask("/v2/carillon/requests/1?format=text"), ask("/v2/carillon/requests/1", nullptr, "text/plain")}) {
    EXPECT_THAT(reply.content_type, HasSubstr("text/plain"));
    EXPECT_THAT(reply.body, HasSubstr("Request 1 (id \"first\") for model pair"));
  }
  EXPECT_THAT(ask("/v2/carillon/requests?format=text").body, HasSubstr("refused"));
}

TEST_F(JournalApiTest, ListsTheNewestFirst) {
  EXPECT_THAT(listed(""), ElementsAre(3, 2, 1));
  EXPECT_THAT(listed("?limit=2"), ElementsAre(3, 2));
  EXPECT_THAT(listed("?model=pair"), ElementsAre(2, 1));
  EXPECT_THAT(listed("?model=pa%69r&outcome=on_time"), ElementsAre(1));
  EXPECT_THAT(listed("?outcome=open"), IsEmpty());
  EXPECT_THAT(listed("?reason=deadline_passed"), ElementsAre(2));
  EXPECT_THAT(listed("?reason=shed,deadline_passed&outcome=refused"), ElementsAre(2));
  EXPECT_THAT(listed("?reason=shed,size"), IsEmpty());
  for (const char* wrong : {"?limit=0", "?limit=1001", "?limit=x", "?outcome=good", "?model=%zz",
                            "?reason=bad", "?reason=none", "?reason=shed,,size"})
    EXPECT_EQ(ask("/v2/carillon/requests" + std::string(wrong)).status, 400) << wrong;
}

TEST_F(JournalApiTest, ShowsAKeyItsOwnRequestsAlone) {
  EXPECT_THAT(listed("", caller("team-a", false)), ElementsAre(3, 1));
  EXPECT_THAT(listed("", caller("team-a", false, {"pair"})), ElementsAre(1));
  EXPECT_THAT(listed("", caller("team-c", false)), IsEmpty());
  EXPECT_THAT(listed("", caller("boss", true)), ElementsAre(3, 2, 1));
  EXPECT_THAT(listed("", caller("boss", true, {"sick"})), ElementsAre(3));
  // Nothing tells whether the other's is there.
  EXPECT_EQ(ask("/v2/carillon/requests/2", caller("team-a", false)).status, 404);
  EXPECT_EQ(ask("/v2/carillon/requests/7", caller("team-a", false)).status, 404);
  EXPECT_EQ(ask("/v2/carillon/requests/1", caller("team-a", false)).status, 200);
  EXPECT_EQ(ask("/v2/carillon/requests/2", caller("boss", true)).status, 200);
}

TEST_F(JournalApiTest, DrawsATrace) {
  const HttpReply reply = ask("/v2/carillon/trace?seconds=10");
  EXPECT_TRUE(json::parse(reply.body)["traceEvents"].is_array());
  EXPECT_THAT(reply.body, HasSubstr("pair 1 on_time"));
  EXPECT_THAT(ask("/v2/carillon/trace", caller("boss", true, {"sick"})).body, Not(HasSubstr("pair")));
  for (const char* wrong : {"?seconds=0", "?seconds=-1", "?seconds=99999999"})
    EXPECT_EQ(ask("/v2/carillon/trace" + std::string(wrong)).status, 400) << wrong;
}

TEST_F(JournalApiTest, IsOffWithoutAJournal) {
  service.kept = nullptr;
  for (const char* path : {"/v2/carillon/requests", "/v2/carillon/requests/1", "/v2/carillon/trace"}) {
    const HttpReply reply = ask(path);
    EXPECT_EQ(reply.status, 404);
    EXPECT_THAT(reply.body, HasSubstr("--journal 0"));
  }
}

TEST_F(JournalApiTest, IsGuarded) {
  for (const char* path : {"/v2/carillon/requests", "/v2/carillon/requests/1"})
    EXPECT_EQ(need_of(find_route("GET", path)->endpoint), Need::requests);
  EXPECT_EQ(need_of(find_route("GET", "/v2/carillon/trace")->endpoint), Need::admin);
  EXPECT_EQ(find_route("POST", "/v2/carillon/requests").error().status, 405);
  for (const char* path : {"/v2/carillon", "/v2/carillon/request", "/v2/carillon/requests/1/2"})
    EXPECT_EQ(find_route("GET", path).error().status, 404) << path;
}

TEST_F(JournalApiTest, AnswersNameTheirNumber) {
  start();
  const auto good = client().ask("POST", "/v2/models/pair/infer", pair_request("me"));
  EXPECT_EQ(good["carillon-request"], "4");
  EXPECT_EQ(service.last_id(), "me");
  service.fail_with(Error{ErrorCode::deadline_exceeded, "because"});
  EXPECT_EQ(client().ask("POST", "/v2/models/pair/infer", pair_request())["carillon-request"], "5");
}

}  // namespace
}  // namespace carillon::frontend
