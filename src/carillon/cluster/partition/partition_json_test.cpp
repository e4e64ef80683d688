#include "carillon/cluster/partition/partition_json.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace carillon::cluster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* four = R"({"memory_bytes": 1e3, "max_rate_rps": 50, "models": [
  {"name": "a", "rate_rps": 30.5, "static_bytes": 400, "dynamic_bytes": 10},
  {"name": "b", "rate_rps": 20.5, "static_bytes": 300},
  {"name": "c", "rate_rps": 10, "static_bytes": 200},
  {"name": "d", "rate_rps": 0, "static_bytes": 100, "dynamic_bytes": 70}]})";

TEST(ParseProblem, ReadsModelsAndDefaults) {
  const auto problem = parse_problem(four, "f", 2);
  ASSERT_TRUE(problem) << problem.error().message;
  EXPECT_EQ(problem->groups, 2);
  EXPECT_EQ(problem->memory_bytes, 1000);
  EXPECT_EQ(problem->max_micro_rps, 50 * micro_per_unit);
  ASSERT_EQ(problem->models.size(), 4u);
  EXPECT_EQ(problem->models[0].micro_rps, 30'500'000);
  EXPECT_EQ(problem->models[1].dynamic_bytes, 0);
  EXPECT_EQ(problem->models[1].move_cost, 300);
  EXPECT_FALSE(
      parse_problem(R"({"memory_bytes": 1, "models": [{"name": "a", "rate_rps": 1, "static_bytes": 1}]})",
                    "f", 1)
          ->max_micro_rps);
}

TEST(ParseProblem, SaysWhatIsWrong) {
  const auto of = [](const std::string& models) {
    return R"({"memory_bytes": 10, "models": [)" + models + "]}";
  };
  const struct {
    std::string text;
    std::int64_t groups;
    const char* words;
  } rows[] = {
      {"{", 1, "f: not a JSON document"},
      {"[]", 1, "f: document: is array, but should be an object"},
      {"{}", 1, "has no \"memory_bytes\""},
      {R"({"memory_bytes": 10})", 1, "f: document: has no \"models\""},
      {R"({"memory_bytes": 0, "models": []})", 1,
       "f: document.memory_bytes: is 0, but should be a whole number of bytes in 1.."},
      {R"({"memory_bytes": 1.5, "models": []})", 1,
       "f: document.memory_bytes: is 1.5, but should be a whole number"},
      {R"({"memory_bytes": 1, "max_rate": 1, "models": []})", 1, "f: document: has \"max_rate\""},
      {R"({"memory_bytes": 1, "max_rate_rps": 0, "models": []})", 1, "f: document.max_rate_rps: is 0"},
      {of(""), 1, "f: models: is empty"},
      {of("1"), 1, "f: models[0]: is number"},
      {of(R"({"name": "", "rate_rps": 1, "static_bytes": 1})"), 1, "f: models[0].name: is empty"},
      {of(R"({"name": "a", "static_bytes": 1})"), 1, "f: models[0]: has no \"rate_rps\""},
      {of(R"({"name": "a", "rate_rps": -1, "static_bytes": 1})"), 1,
       "f: models[0].rate_rps: is -1, but should be requests per second in 0..1e+07"},
      {of(R"({"name": "a", "rate_rps": NaN, "static_bytes": 1})"), 1, "f: not a JSON document"},
      {of(R"({"name": "a", "rate_rps": 1e999, "static_bytes": 1})"), 1, "f: not a JSON document"},
      {of(R"({"name": "a", "rate_rps": null, "static_bytes": 1})"), 1, "f: models[0].rate_rps: is null"},
      {of(R"({"name": "a", "rate_rps": 1e8, "static_bytes": 1})"), 1,
       "f: models[0].rate_rps: is 100000000.0"},
      {of(R"({"name": "a", "rate_rps": 1, "static_bytes": -1})"), 1, "f: models[0].static_bytes: is -1"},
      {of(R"({"name": "a", "rate_rps": 1, "static_bytes": 1e14})"), 1,
       "f: models[0].static_bytes: is 100000000000000.0"},
      {of(R"({"name": "a", "rate_rps": 1, "static_bytes": 1, "move_cost": 0.5})"), 1,
       "f: models[0].move_cost: is 0.5, but should be a whole number"},
      {of(R"({"name": "a", "rate_rps": 1, "static_bytes": 1, "dynamic": 1})"), 1,
       "f: models[0]: has \"dynamic\""},
      {of(R"({"name": "a", "rate_rps": 1, "static_bytes": 1}, {"name": "a", "rate_rps": 1, "static_bytes": 1})"),
       1, "f: models[1].name: is 'a' like that of models[0]"},
      {of(R"({"name": "a", "rate_rps": 1, "static_bytes": 1}, {"name": "b", "rate_rps": 1, "static_bytes": 1, "move_cost": 1})"),
       1, "f: models[1]: has a \"move_cost\", but earlier models have none"},
      {of(R"({"name": "a", "rate_rps": 1, "static_bytes": 1, "move_cost": 1}, {"name": "b", "rate_rps": 1, "static_bytes": 1})"),
       1, "f: models[1]: has no \"move_cost\", but earlier models have"},
      {four, 0, "--groups is 0, but should be in 1..10000"},
      {four, 10'001, "--groups is 10001, but should be in 1..10000"},
      {four, 5, "--groups is 5, but f has 4 models"},
  };
  for (const auto& [text, groups, words] : rows) {
    const auto problem = parse_problem(text, "f", groups);
    ASSERT_FALSE(problem) << text;
    EXPECT_THAT(problem.error().message, HasSubstr(words));
  }
}

TEST(ParseProblem, BoundsTheNumberOfModels) {
  json document = {{"memory_bytes", 1}, {"models", json::array()}};
  const json model = {{"name", "a"}, {"rate_rps", 1}, {"static_bytes", 1}};
  document["models"].get_ref<json::array_t&>().assign(most_models + 1, model);
  const auto problem = parse_problem(document.dump(), "f", 1);
  ASSERT_FALSE(problem);
  EXPECT_THAT(problem.error().message,
              HasSubstr("f: models: has 100001 entries, but should have at most 100000"));
}

TEST(ParseCurrent, ReadsWhatToJsonWrites) {
  Problem problem = *parse_problem(four, "f", 2);
  const auto first = partition(problem, {});
  ASSERT_TRUE(first) << first.error().message;
  const auto changes = parse_current(to_json(problem, *first, {}), "c", problem);
  ASSERT_TRUE(changes) << changes.error().message;
  EXPECT_EQ(problem.current, first->division);
  EXPECT_EQ(changes->added + changes->removed, 0u);
  problem.max_move = 0;
  const auto second = partition(problem, {});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->division, first->division);
  EXPECT_FALSE(json::parse(to_json(problem, *first, {})).at("changes").contains("x"));
  EXPECT_EQ(json::parse(to_json(problem, *second, *changes)).at("changes"),
            json({{"moved", 0}, {"added", 0}, {"removed", 0}}));
}

TEST(ParseCurrent, KnowsModelsThatCameAndWent) {
  Problem problem = *parse_problem(four, "f", 2);
  const auto changes = parse_current(
      R"({"groups": [{"models": ["b", "old"]}, {"models": []}, {"models": ["a"]}]})", "c", problem);
  ASSERT_TRUE(changes) << changes.error().message;
  EXPECT_EQ(problem.current, (std::vector{2, 0, no_group, no_group}));
  EXPECT_EQ(changes->added, 2u);
  EXPECT_EQ(changes->removed, 1u);
}

TEST(ParseGroupNames, ReadsWhatToJsonWrites) {
  const Problem problem = *parse_problem(four, "f", 2);
  const auto found = partition(problem, {});
  ASSERT_TRUE(found) << found.error().message;
  const auto groups = parse_group_names(to_json(problem, *found, {}), "g");
  ASSERT_TRUE(groups) << groups.error().message;
  ASSERT_EQ(groups->size(), 2u);
  EXPECT_EQ((*groups)[0].size() + (*groups)[1].size(), problem.models.size());
  for (std::size_t g = 0; g < 2; ++g)
    for (const std::string& name : (*groups)[g])
      EXPECT_EQ(found->division[static_cast<std::size_t>(
                    std::ranges::find(problem.models, name, &Model::name) - problem.models.begin())],
                static_cast<int>(g));
}

TEST(ParseGroupNames, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> rows[] = {
      {"{", "g: not a JSON document"},
      {"{}", "g: document: has no \"groups\""},
      {R"({"groups": []})", "g: groups: is empty, but should hold at least one group"},
      {R"({"groups": [{}]})", "g: groups[0]: has no \"models\""},
      {R"({"groups": [{"models": [""]}]})", "g: groups[0].models[0]: is \"\", but should be the name"},
      {R"({"groups": [{"models": [7]}]})", "g: groups[0].models[0]: is 7, but should be the name of a model"},
      {R"({"groups": [{"models": ["a"]}, {"models": ["b", "a"]}]})",
       "g: groups[1].models[1]: is \"a\", which is in groups[0] already"},
  };
  for (const auto& [text, words] : rows) {
    const auto groups = parse_group_names(text, "g");
    ASSERT_FALSE(groups) << text;
    EXPECT_THAT(groups.error().message, HasSubstr(words));
  }
}

TEST(ParseCurrent, SaysWhatIsWrong) {
  const struct {
    const char* text;
    const char* words;
  } rows[] = {
      {"{", "c: not a JSON document"},
      {"{}", "c: document: has no \"groups\""},
      {R"({"groups": [{}]})", "c: groups[0]: has no \"models\""},
      {R"({"groups": [{"models": [7]}]})", "c: groups[0].models[0]: is 7, but should be the name of a model"},
      {R"({"groups": [{"models": ["a"]}, {"models": ["b", "a"]}]})",
       "c: groups[1].models[1]: is \"a\", which is in groups[0] already"},
      {R"({"groups": [{"models": ["x", "y"]}]})", "c: groups: name none of the models to divide"},
  };
  for (const auto& [text, words] : rows) {
    Problem problem = *parse_problem(four, "f", 2);
    const auto changes = parse_current(text, "c", problem);
    ASSERT_FALSE(changes) << text;
    EXPECT_THAT(changes.error().message, HasSubstr(words));
    EXPECT_TRUE(problem.current.empty());
  }
}

}  // namespace
}  // namespace carillon::cluster
