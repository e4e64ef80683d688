#include "carillon/repository/ensemble.h"

#include <string>

#include <gtest/gtest.h>

#include "carillon/repository/config.h"

namespace carillon::repository {
namespace {

std::string step(const std::string& model, const std::string& inputs, const std::string& outputs) {
  const auto map = [](const std::string& name, const std::string& pairs) {
    std::string out;
    for (std::size_t at = 0; at < pairs.size();) {
      const std::size_t end = std::min(pairs.find(' ', at), pairs.size());
      const std::string pair = pairs.substr(at, end - at);
      const std::size_t middle = pair.find('=');
      out +=
          name + " { key: \"" + pair.substr(0, middle) + "\" value: \"" + pair.substr(middle + 1) + "\" } ";
      at = end + 1;
    }
    return out;
  };
  return "step { model_name: \"" + model + "\" model_version: -1 " + map("input_map", inputs) +
         map("output_map", outputs) + "} ";
}

// An ensemble from "image" to "class", with these steps.
Result<ConfigFile> with_steps(const std::string& steps, const std::string& more = "") {
  return parse_config(R"(platform: "ensemble" max_batch_size: 4
                         input { name: "image" data_type: TYPE_FP32 dims: [ 3 ] }
                         output { name: "class" data_type: TYPE_FP32 dims: [ 2 ] }
)" + more + "ensemble_scheduling { " +
                          steps + "}",
                      "e");
}

TEST(ReadSteps, PutsStepsBehindThoseThatTheyReadFrom) {
  const auto config =
      with_steps(step("last", "a=x b=y", "out=class") + step("first", "in=image", "a=x b=z c=y") +
                 step("between", "in=z", "out=class2") + step("user", "in=class2", "out=w") +
                 step("end", "in=w", "out=v") + step("sink", "v=v", "o=u") + step("all", "u=u", "o=t"));
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().message,
            "ensemble_scheduling: step 7 ('all'): tensor 't' is neither read by a step nor an output of the "
            "ensemble; leave it out of output_map");
  const auto good = with_steps(step("last", "a=x b=y", "out=class") + step("first", "in=image", "a=x c=y"));
  ASSERT_TRUE(good.has_value()) << good.error().message;
  ASSERT_EQ(good->config.steps.size(), 2U);
  EXPECT_EQ(good->config.steps[0].model, "first");
  EXPECT_EQ(good->config.steps[0].version, 0);
  EXPECT_EQ(good->config.steps[1].inputs, (EnsembleStep::Map{{"a", "x"}, {"b", "y"}}));
  EXPECT_EQ(good->config.steps[1].outputs, (EnsembleStep::Map{{"out", "class"}}));
  EXPECT_TRUE(good->config.ignored.empty());
}

TEST(ReadSteps, ErrorsSayWhatWouldBeRight) {
  const std::string good = step("a", "x=image", "y=class");
  const struct {
    std::string steps;
    std::string more;
    const char* message;  // its beginning
  } rows[] = {
      {"", "", "ensemble_scheduling: no step;"},
      {"step { input_map { key: \"x\" value: \"image\" } }", "",
       "ensemble_scheduling: step 1: model_name is missing"},
      {step("a", "", "y=class"), "",
       "ensemble_scheduling: step 1 ('a'): input_map is missing; it is { key: "},
      {step("a", "x=image", ""), "", "ensemble_scheduling: step 1 ('a'): output_map is missing"},
      {"step { model_name: \"a\" model_version: 0 }", "",
       "ensemble_scheduling: step 1 ('a'): model_version is 0; it is"},
      {"step { model_name: \"a\" model_version: 1 model_namespace: \"n\" }", "",
       "ensemble_scheduling: step 1 ('a'): model_namespace is 'n'"},
      {step("a", "x=imag", "y=class"), "",
       "ensemble_scheduling: step 1 ('a'): input_map gives input 'x' the tensor 'imag', which is neither an "
       "input "
       "of the ensemble nor in any step's output_map; there is 'class', 'image'"},
      {step("a", "x=image", "y=clas"), "",
       "ensemble_scheduling: output 'class' of the ensemble is in no step's output_map; there is 'clas', "
       "'image'"},
      {good + step("b", "x=image", "y=class"), "",
       "ensemble_scheduling: step 2 ('b'): output_map makes tensor 'class', which is made by step 1 ('a') "
       "already"},
      {good + step("b", "x=class", "y=image"), "",
       "ensemble_scheduling: step 2 ('b'): output_map makes tensor 'image', which is an input of the "
       "ensemble"},
      {step("a", "x=image b=t", "y=s") + step("b", "x=s", "y=t z=class"), "",
       "ensemble_scheduling: the steps 1 ('a'), 2 ('b') wait for each other's tensors"},
      {step("a", "x=x", "y=class") + step("b", "i=image", "o=x p=q"), "",
       "ensemble_scheduling: step 2 ('b'): tensor 'q' is neither read"},
      {step("a", "x=image", "y=class"), "input { name: \"spare\" data_type: TYPE_FP32 dims: [ 1 ] }\n",
       "ensemble_scheduling: input 'spare' of the ensemble is in no step's input_map"},
      {good, "instance_group { count: 1 }\n", "instance_group: an ensemble has no instances"},
      {good, "backend: \"onnxruntime\"\n", "backend is 'onnxruntime', but ensembles have none"},
      {good, "dynamic_batching { }\n", "line 5, column "},  // a config has one scheduler
  };
  for (const auto& row : rows) {
    const auto config = with_steps(row.steps, row.more);
    ASSERT_FALSE(config.has_value()) << row.message;
    EXPECT_EQ(config.error().message.substr(0, std::string_view(row.message).size()), row.message);
  }
  const auto alone = parse_config("platform: \"ensemble\"", "e");
  ASSERT_FALSE(alone.has_value());
  EXPECT_EQ(alone.error().message,
            "platform is 'ensemble', but ensemble_scheduling, which says its steps, is missing");
  std::string many;
  for (std::size_t i = 0; i <= most_steps; ++i) many += "step { } ";
  EXPECT_EQ(with_steps(many).error().message, "ensemble_scheduling: 65 steps; at most 64");
}

}  // namespace
}  // namespace carillon::repository
