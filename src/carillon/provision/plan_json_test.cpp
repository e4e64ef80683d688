#include "carillon/provision/plan_json.h"

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/provision/strategies.h"
#include "carillon/provision/testing/sets.h"

namespace carillon::provision {
namespace {

const std::vector<DeviceType> v100s{testing::v100()};

TEST(PlanJson, ReadsWorkloads) {
  const auto read = read_workloads(CARILLON_SOURCE_DIR "/profiles/igniter/table3.json", v100s);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, testing::table3());
}

TEST(PlanJson, SaysWhatIsWrongWithWorkloads) {
  const auto with = [](const std::string& entry) { return "{\"workloads\": [" + entry + "]}"; };
  const struct {
    std::string text;
    const char* words;
  } rows[] = {
      {"", "w.json: not a JSON document"},
      {"[]", "w.json: document: is array, but should be an object"},
      {"{}", "has no \"workloads\""},
      {R"({"workloads": 3})", "document.workloads: is number, but should be an array"},
      {with(""), "workloads: is empty"},
      {with("3"), "workloads[0]: is number, but should be an object"},
      {with(R"({"model": "ssd", "slo_ms": 10, "rate_rps": 1})"), "workloads[0]: has no \"id\""},
      {with(R"({"id": "", "model": "ssd", "slo_ms": 10, "rate_rps": 1})"), "workloads[0].id: is empty"},
      {with(R"({"id": "a", "model": "bert", "slo_ms": 10, "rate_rps": 1})"),
       "workloads[0].model: is 'bert', but there are coefficients only of alexnet, resnet50, ssd, vgg19"},
      {with(R"({"id": "a", "model": "ssd", "slo_ms": 0, "rate_rps": 1})"),
       "workloads[0].slo_ms: is 0, but should be milliseconds in 0.001..1e+07"},
      {with(R"({"id": "a", "model": "ssd", "slo_ms": "10", "rate_rps": 1})"),
       "workloads[0].slo_ms: is \"10\""},
      {with(R"({"id": "a", "model": "ssd", "slo_ms": 10, "rate_rps": -1})"), "workloads[0].rate_rps: is -1"},
      {with(R"({"id": "a", "model": "ssd", "slo_ms": 10, "rate_rps": 1e400})"), "w.json: "},
      {with(R"({"id": "a", "model": "ssd", "slo_ms": 10, "rate_rps": 1},
              {"id": "a", "model": "ssd", "slo_ms": 10, "rate_rps": 1})"),
       "workloads[1].id: is 'a' like that of workloads[0], but ids should differ"},
  };
  for (const auto& [text, words] : rows) {
    const auto read = parse_workloads(text, "w.json", v100s);
    ASSERT_FALSE(read) << words;
    EXPECT_NE(read.error().message.find(words), std::string::npos) << read.error().message;
    EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
  }
}

TEST(PlanJson, ReadsBackWhatItPrinted) {
  const auto workloads = testing::table3();
  const BestPlan best = plan_best(workloads, v100s);
  const std::string text = to_json(best.plan, workloads, v100s, {.strategy = "best", .best = &best});
  std::size_t removed = 7;
  const auto read = parse_existing(text, "p.json", workloads, v100s, removed);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(removed, 0u);
  ASSERT_EQ(read->devices.size(), best.plan.devices.size());
  for (std::size_t d = 0; d < read->devices.size(); ++d) {
    EXPECT_EQ(read->devices[d].number, best.plan.devices[d].number);
    ASSERT_EQ(read->devices[d].placements.size(), best.plan.devices[d].placements.size());
    for (std::size_t i = 0; i < read->devices[d].placements.size(); ++i)
      EXPECT_EQ(read->devices[d].placements[i].workload, best.plan.devices[d].placements[i].workload);
  }
  const std::vector<Workload> fewer(workloads.begin(), workloads.begin() + 10);
  ASSERT_TRUE(parse_existing(text, "p.json", fewer, v100s, removed));
  EXPECT_EQ(removed, 2u);
}

TEST(PlanJson, SaysWhatIsWrongWithAnExistingPlan) {
  const std::string device =
      R"json({"device": 1, "type": "NVIDIA V100 (EC2 p3.2xlarge)", "workloads": [{"id": "W1"}]})json";
  const auto with = [](const std::string& entry) { return "{\"devices\": [" + entry + "]}"; };
  const struct {
    std::string text;
    const char* words;
  } rows[] = {
      {"{}", "has no \"devices\""},
      {with("1"), "devices[0]: is number"},
      {with(R"({"device": 1, "type": "T4", "workloads": []})"),
       "devices[0].type: is 'T4', but the types given by --hardware are 'NVIDIA V100"},
      {with(R"({"device": 0, "type": "T4", "workloads": []})"), "devices[0].device: is 0"},
      {with(R"({"device": 1.5, "type": "T4", "workloads": []})"),
       "devices[0].device: should be a whole number"},
      {with(device + "," + device), "devices[1].device: is 1 for the second time"},
      {with(R"json({"device": 1, "type": "NVIDIA V100 (EC2 p3.2xlarge)", "workloads": [{}]})json"),
       "devices[0].workloads[0]: has no \"id\""},
  };
  std::size_t removed = 0;
  for (const auto& [text, words] : rows) {
    const auto read = parse_existing(text, "p.json", testing::table3(), v100s, removed);
    ASSERT_FALSE(read) << words;
    EXPECT_NE(read.error().message.find(words), std::string::npos) << read.error().message;
  }
}

TEST(PlanJson, IsShownToPeople) {
  std::vector<Workload> workloads = testing::table3();
  workloads[0].id = "<W&1>";
  const Plan plan = plan_ffd(workloads, v100s);
  const PlanReport report{.strategy = "ffd+"};
  const std::string table = to_table(plan, workloads, v100s, report);
  EXPECT_NE(
      table.find("5 devices, 15.30 $/h (ffd+): 5 x NVIDIA V100 (EC2 p3.2xlarge) at 3.06 $/h; 9 predicted "
                 "violations"),
      std::string::npos)
      << table;
  const std::string svg = to_svg(plan, workloads, v100s, report);
  EXPECT_NE(svg.find("&lt;W&amp;1&gt;"), std::string::npos);
  EXPECT_EQ(svg.find("<W&1>"), std::string::npos);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

TEST(PlanJson, SaysWhatAPlanForArrivalsExpects) {
  const std::vector<Workload> workloads = {{"a", "resnet50", 40, 60}, {"b", "alexnet", 20, 200}};
  const auto part = [](std::size_t workload, double rate, double on_time) {
    return Placement{.workload = workload,
                     .units = 20,
                     .batch = 2,
                     .rate_rps = rate,
                     .expected = Expected{.on_time = on_time, .kept = on_time > 0.99}};
  };
  Plan plan;
  plan.devices = {{.number = 1, .placements = {part(0, 20, 0.998), part(1, 200, 0.9899)}},
                  {.number = 2, .placements = {part(0, 40, 0.992)}}};
  const QueueRule rule{
      .arrivals = {.text = "gamma:0.5", .times = {}}, .percentile = 0.99, .model_error = 0.05};
  const PlanReport report{.strategy = "best", .queue = &rule};
  const auto told = nlohmann::json::parse(to_json(plan, workloads, v100s, report));
  EXPECT_EQ(told["arrivals"], "gamma:0.5");
  EXPECT_EQ(told["percentile"], 99);
  EXPECT_EQ(told["model_error_pct"], 5);
  EXPECT_EQ(told["predicted_violations"], 1) << "the promise counts, not half the SLO";
  EXPECT_EQ(told["devices"][0]["workloads"][1]["expected_on_time"], 0.9899);
  EXPECT_EQ(told["devices"][0]["workloads"][1]["violated"], true);
  EXPECT_FALSE(told["devices"][1]["workloads"][0].contains("violated"));
  ASSERT_EQ(told["expected"].size(), 2u);
  EXPECT_EQ(told["expected"][0]["id"], "a");
  EXPECT_EQ(told["expected"][0]["slo_ms"], 40);
  EXPECT_NEAR(told["expected"][0]["on_time"].get<double>(), 0.994, 1e-12) << "by the parts' rates";
  const std::string table = to_table(plan, workloads, v100s, report);
  for (const char* words :
       {"of rate   on time\n", "   99.80%\n", "   98.99%  violated\n", "a on 2 devices: 99.40% on time\n",
        "planned for gamma:0.5 arrivals: P99 within the SLO over 30 s, in 99.5% of cases; model error 5%\n"})
    EXPECT_NE(table.find(words), std::string::npos) << words << "\n" << table;
}

// Whatever a file is turned into, it is read or refused, and what is read can be planned with.
TEST(PlanJson, SurvivesMutation) {
  const std::string folder = CARILLON_SOURCE_DIR "/profiles/igniter/";
  const auto text_of = [&](const char* name) {
    std::ifstream in(folder + name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string hardware = text_of("v100.json"), models = text_of("workloads.json"),
                    workloads = text_of("table3.json");
  const BestPlan best = plan_best(testing::table3(), v100s);
  const std::string plan = to_json(best.plan, testing::table3(), v100s, {.strategy = "best", .best = &best});
  Random random(41);
  const std::string bytes = "0123456789.-+eE\"{}[],:nul \xff";
  const auto mutated = [&](std::string text) {
    const auto edits = 1 + random.below(4);
    for (std::uint64_t i = 0; i < edits && !text.empty(); ++i) {
      const auto at = random.below(text.size());
      switch (random.below(3)) {
        case 0:
          text[at] = bytes[random.below(bytes.size())];
          break;
        case 1:
          text.erase(at, 1 + random.below(3));
          break;
        default:
          text.insert(at, 1, bytes[random.below(bytes.size())]);
      }
    }
    return text;
  };
  int planned = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto which = random.below(4);
    const auto type = profile::parse_hardware(which == 0 ? mutated(hardware) : hardware, "h");
    const auto set = profile::parse_coefficients(which == 1 ? mutated(models) : models, "c");
    if (!type || !set) {
      ++refused;
      continue;
    }
    const std::vector<DeviceType> types{{.hardware = *type, .models = *set}};
    const auto read = parse_workloads(which == 2 ? mutated(workloads) : workloads, "w", types);
    if (!read) {
      ++refused;
      continue;
    }
    std::size_t removed = 0;
    const auto existing = parse_existing(which == 3 ? mutated(plan) : plan, "p", *read, types, removed);
    BestOptions options;
    options.effort = round % 8 == 0 ? 0.5 : 0;
    if (existing) options.existing = &*existing;
    const BestPlan made = plan_best(*read, types, options);
    EXPECT_EQ(predicted_violations(made.plan, *read, types), 0u) << "round " << round;
    ++planned;
  }
  EXPECT_GT(planned, 300);
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace carillon::provision
