#include "carillon/workload/disb.h"

#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::workload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Arrivals = DisbClient::Arrivals;

std::vector<Duration> phases(const DisbWorkload& workload) {
  std::vector<Duration> all;
  for (const DisbClient& client : workload.clients)
    if (client.arrivals == Arrivals::periodic) all.push_back(client.phase);
  return all;
}

// Table 2 of REEF's paper; B, and the trace, as the benchmark's repository has them.
TEST(Disb, TheSevenWorkloads) {
  const struct {
    const char* name;
    std::size_t real_time, best_effort;
    Arrivals arrivals;  // of the real-time clients
    double rate;
    Duration length;
  } rows[] = {
      {"A", 1, 1, Arrivals::periodic, 100, 60s},    {"B", 1, 1, Arrivals::closed_loop, 0, 60s},
      {"B220", 1, 1, Arrivals::periodic, 220, 60s}, {"C", 1, 5, Arrivals::periodic, 100, 60s},
      {"D", 5, 5, Arrivals::periodic, 20, 60s},     {"E", 5, 5, Arrivals::poisson, 20, 60s},
      {"REAL", 5, 5, Arrivals::trace, 0, 38s},
  };
  for (const auto& row : rows) {
    const auto own = disb_workload(row.name);
    ASSERT_TRUE(own) << own.error().message;
    const auto file = read_disb(CARILLON_SOURCE_DIR "/scenarios/disb/" + std::string(row.name) + ".json");
    ASSERT_TRUE(file) << file.error().message;
    for (const DisbWorkload* workload : {&*own, &*file}) {
      EXPECT_EQ(workload->name, row.name);
      EXPECT_EQ(workload->length, row.length);
      std::map<Class, std::size_t> clients;
      for (const DisbClient& client : workload->clients) {
        ++clients[client.cls];
        const bool real_time = client.cls == Class::real_time;
        EXPECT_EQ(client.arrivals, real_time ? row.arrivals : Arrivals::closed_loop) << client.name;
        EXPECT_EQ(client.rate, real_time ? row.rate : 0) << client.name;
        EXPECT_EQ(client.trace.empty(), client.arrivals != Arrivals::trace) << client.name;
      }
      EXPECT_EQ(clients[Class::real_time], row.real_time) << row.name;
      EXPECT_EQ(clients[Class::best_effort], row.best_effort) << row.name;
    }
  }
  EXPECT_EQ(disb_workload("b220")->name, "B220");
  EXPECT_EQ(disb_workload("real")->clients.size(), 10u);
  EXPECT_EQ(disb_workload("A")->clients[0].model, "vgg19-imagenet");
  const auto none = disb_workload("F");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::not_found);
  EXPECT_EQ(none.error().message, "there is no workload 'F'; there are A, B, B220, C, D, E, REAL");
}

TEST(Disb, ATraceEndsWithItsWorkload) {
  // The file has 375, 202, 560, 374 and 173 arrivals, of which 8, 5, 0, 7 and 4 are at 38 s or later.
  DisbWorkload real = *disb_workload("REAL");
  std::vector<std::size_t> arrivals;
  for (const DisbClient& client : real.clients) {
    if (client.cls != Class::real_time) continue;
    arrivals.push_back(client.trace.size());
    EXPECT_TRUE(std::ranges::is_sorted(client.trace)) << client.name;
    EXPECT_LT(client.trace.back(), 38s) << client.name;
  }
  EXPECT_THAT(arrivals, ElementsAre(367, 197, 560, 367, 169));
  EXPECT_EQ(real.clients[2].trace.front(), 9ms);
  EXPECT_EQ(real.clients[2].trace.back(), 29'259ms);
  set_length(real, 258ms);
  EXPECT_EQ(real.length, 258ms);
  EXPECT_THAT(real.clients[0].trace, ElementsAre(0ms, 150ms)) << "and not the one at 258 ms";
  EXPECT_THAT(real.clients[1].trace, ElementsAre(120ms));
}

TEST(Disb, ClientsOfOneRateStartApart) {
  DisbWorkload d = *disb_workload("D");
  EXPECT_THAT(phases(d), ElementsAre(0ms, 10ms, 20ms, 30ms, 40ms));
  stagger(d, [](std::string_view model) { return model == "vgg19-imagenet" ? 5ms : 7ms; });
  EXPECT_THAT(phases(d), ElementsAre(0ms, 7ms, 14ms, 19ms, 26ms)) << "as the benchmark does";

  const auto client = [](const char* id, double rate, const char* more) {
    return std::string("{\"id\": \"") + id +
           "\", \"load\": {\"type\": \"periodic\", \"frequency\": " + std::to_string(rate) + more +
           "}, \"client\": {\"model_name\": \"m\"}}";
  };
  auto mixed = parse_disb(std::string("{\"time\": 1, \"tasks\": [") + client("a_rt", 10, "") + "," +
                              client("b_be", 10, ", \"priority\": 0") + "," + client("c_rt", 20, "") + "," +
                              client("d_rt", 10, ", \"priority\": 1") + "]}",
                          "mixed");
  ASSERT_TRUE(mixed) << mixed.error().message;
  EXPECT_THAT(phases(*mixed), ElementsAre(0ms, 50ms, 0ms, 0ms));
  stagger(*mixed, [](std::string_view) { return 3ms; });
  EXPECT_THAT(phases(*mixed), ElementsAre(0ms, 3ms, 0ms, 0ms));
}

TEST(Disb, RatesAreScaled) {
  DisbWorkload d = *disb_workload("D");
  scale_rates(d, 0.5);
  EXPECT_EQ(d.length, 120s);
  EXPECT_EQ(d.clients[1].rate, 10);
  EXPECT_EQ(d.clients[1].phase, 20ms);
  EXPECT_EQ(d.clients[9].rate, 0) << "a closed loop has none";
  DisbWorkload real = *disb_workload("REAL");
  scale_rates(real, 4);
  EXPECT_EQ(real.length, 9'500ms);
  EXPECT_EQ(real.clients[0].trace[1], 37'500us);
  EXPECT_EQ(real.clients[0].trace.size(), 367u);
}

constexpr const char* whole = R"({"time": 60, "tasks": [
  {"id": "a_rt", "load": {"type": "periodic", "priority": 0, "frequency": 100},
   "client": {"model_name": "ma", "batch_size": 1}},
  {"id": "b_be", "load": {"type": "continuous"}, "client": {"model_name": "mb", "batch_size": 1}},
  {"id": "c", "class": "real_time", "load": {"type": "trace", "trace": [5, 2.5, 7000000, 2.5]},
   "client": {"model_name": "mc"}}]})";

TEST(Disb, IsRead) {
  const auto workload = parse_disb(whole, "w");
  ASSERT_TRUE(workload) << workload.error().message;
  EXPECT_EQ(workload->name, "w");
  ASSERT_EQ(workload->clients.size(), 3u);
  EXPECT_EQ(workload->clients[1].name, "b_be");
  EXPECT_EQ(workload->clients[1].model, "mb");
  EXPECT_EQ(workload->clients[2].cls, Class::real_time);
  EXPECT_THAT(workload->clients[2].trace, ElementsAre(2'500us, 2'500us, 5ms));
  EXPECT_FALSE(workload->clients[2].staggered);
}

TEST(Disb, SaysWhatIsWrongAndWhere) {
  const struct {
    const char *old, *now, *words;
  } rows[] = {
      {"\"time\": 60, ", "", "document: has no \"time\""},
      {"60", "0", "time: is 0, but should be seconds in 0.001..86400"},
      {"60", "-1", "time: is -1"},
      {"60", "86401", "time: is 86401"},
      {"60", "\"60\"", "time: is \"60\""},
      {"60", "1e999", "number overflow"},
      {"60", "NaN", "not a JSON document"},
      {"60", "60, \"time\": 30", "has \"time\" twice in one object"},
      {"\"tasks\"", "\"task\"", "document: has no \"tasks\""},
      {"\"tasks\": [", "\"tasks\": [], \"more\": [", "tasks: has 0 tasks, but should have 1..1000"},
      {"\"tasks\": [", "\"tasks\": [3, ", "tasks[0]: is number, but should be an object"},
      {"\"tasks\": [", "\"tasks\": {}, \"more\": [", "tasks: is object, but should be an array"},
      {"\"id\": \"a_rt\", ", "", "tasks[0]: has no \"id\""},
      {"\"a_rt\"", "7", "tasks[0].id: is 7, but should be a string"},
      {"\"a_rt\"", "\"\"", "tasks[0].id: is a name of 0 bytes, but should have 1..200"},
      {"\"a_rt\"", "\"a\"", "tasks[0].id: is 'a', but should end in _rt or _be"},
      {"\"b_be\"", "\"a_rt\"", "tasks[1].id: is 'a_rt' like that of a task before, but ids should differ"},
      {"\"real_time\"", "\"rt\"", "tasks[2].class: is 'rt', but should be 'real_time' or 'best_effort'"},
      {"\"real_time\"", "1", "tasks[2].class: is 1"},
      {"\"load\": {\"type\": \"continuous\"}, ", "", "tasks[1]: has no \"load\""},
      {"{\"type\": \"continuous\"}", "{}", "tasks[1].load: has no \"type\""},
      {"{\"type\": \"continuous\"}", "[]", "tasks[1].load: is array"},
      {"\"continuous\"", "\"bursts\"",
       "tasks[1].load.type: is 'bursts', but should be 'periodic', 'poisson', 'continuous' or 'trace'"},
      {"\"continuous\"", "\"dependent\"", "requests that depend on others' answers are not supported"},
      {", \"frequency\": 100", "", "tasks[0].load: has no \"frequency\""},
      {"100", "0", "tasks[0].load.frequency: is 0, but should be requests a second in 0.001..100000"},
      {"100", "-5", "tasks[0].load.frequency: is -5"},
      {"100", "1e6", "tasks[0].load.frequency: is 1000000.0"},
      {"\"priority\": 0", "\"priority\": -1", "tasks[0].load.priority: is -1"},
      {"\"priority\": 0", "\"priority\": 0.5", "tasks[0].load.priority: is 0.5"},
      {", \"trace\": [5, 2.5, 7000000, 2.5]", "", "tasks[2].load: has no \"trace\""},
      {"[5, 2.5, 7000000, 2.5]", "[]", "tasks[2].load.trace: is empty"},
      {"[5, 2.5, 7000000, 2.5]", "5", "tasks[2].load.trace: is number"},
      {"2.5", "-1", "tasks[2].load.trace[1]: is -1, but should be milliseconds from the start in 0..1e+12"},
      {"7000000", "1e13", "tasks[2].load.trace[2]: is 10000000000000.0"},
      {"7000000", "null", "tasks[2].load.trace[2]: is null"},
      {"\"client\": {\"model_name\": \"mc\"}", "\"model_name\": \"mc\"", "tasks[2]: has no \"client\""},
      {"\"model_name\": \"mc\"", "", "tasks[2].client: has no \"model_name\""},
      {"\"mc\"", "\"\"", "tasks[2].client.model_name: is a name of 0 bytes"},
      {"\"batch_size\": 1", "\"batch_size\": 4",
       "tasks[0].client.batch_size: is 4, but should be a whole number in 1..1"},
      {"\"batch_size\": 1", "\"batch_size\": \"1\"", "tasks[0].client.batch_size: is \"1\""},
  };
  for (const auto& [old, now, words] : rows) {
    std::string text = whole;
    const auto at = text.find(old);
    ASSERT_NE(at, std::string::npos) << old;
    text.replace(at, std::string(old).size(), now);
    const auto workload = parse_disb(text, "w.json");
    ASSERT_FALSE(workload) << old << " -> " << now;
    EXPECT_EQ(workload.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(workload.error().message, AllOf(StartsWith("w.json: "), HasSubstr(words)));
  }
  for (const char* text : {"", "[]", "{}", "3"}) EXPECT_FALSE(parse_disb(text, "w.json")) << text;
}

TEST(Disb, ASizeIsNotTrusted) {
  std::string tasks;
  const auto task = [](int i) {
    return std::string("{\"id\": \"") + std::to_string(i) +
           "_be\", \"load\": {\"type\": \"continuous\"}, \"client\": {\"model_name\": \"m\"}}";
  };
  for (int i = 0; i < 1000; ++i) {
    if (i > 0) tasks += ',';
    tasks += task(i);
  }
  EXPECT_TRUE(parse_disb(std::string("{\"time\": 1, \"tasks\": [") + tasks + "]}", "w"));
  EXPECT_THAT(parse_disb(std::string("{\"time\": 1, \"tasks\": [") + tasks + "," + task(1000) + "]}", "w")
                  .error()
                  .message,
              HasSubstr("tasks: has 1001 tasks, but should have 1..1000"));
  EXPECT_THAT(parse_disb(std::string(1'000'000, '['), "w").error().message, HasSubstr("more than 16 deep"));
  std::string long_id = whole;
  long_id.replace(long_id.find("a_rt"), 4, std::string(100'000, 'x') + "_rt");
  EXPECT_THAT(parse_disb(long_id, "w").error().message, HasSubstr("tasks[0].id: is a name of 100003 bytes"));
}

TEST(Disb, Files) {
  const auto none = read_disb("/nowhere/w.json");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::not_found);
  EXPECT_THAT(none.error().message, HasSubstr("/nowhere/w.json: no such file"));
  const std::string file = testing::TempDir() + "mine.json";
  std::ofstream(file) << "{}";
  EXPECT_THAT(read_disb(file).error().message, StartsWith(file + ": document: has no \"time\""));
  std::ofstream(file) << whole;
  EXPECT_EQ(read_disb(file)->name, "mine");
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace carillon::workload
