#include "carillon/repository/warmup.h"

#include <string>

#include <gtest/gtest.h>

#include "carillon/repository/config.h"

namespace carillon::repository {
namespace {

Result<ConfigFile> with_warmup(const std::string& warmup, int most = 4) {
  return parse_config(
      "max_batch_size: " + std::to_string(most) +
          " input { name: \"x\" data_type: TYPE_FP32 dims: [ 3 ] } model_warmup { name: \"w\" " + warmup +
          " }",
      "m");
}

std::string input_of(const std::string& says) {
  return "inputs { key: \"x\" value { " + says + " } }";
}

TEST(ReadWarmup, ReadsRequests) {
  const auto config = with_warmup("batch_size: 3 count: 5 " +
                                  input_of("data_type: TYPE_FP32 dims: [ 3 ] input_data_file: \"first\""));
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_TRUE(config->config.ignored.empty());
  ASSERT_NE(config->config.warmup, nullptr);
  const Warmup& warmup = config->config.warmup->front();
  EXPECT_EQ(warmup.name, "w");
  EXPECT_EQ(warmup.rows, 3);
  EXPECT_EQ(warmup.runs, 5);
  ASSERT_EQ(warmup.inputs.size(), 1U);
  EXPECT_EQ(warmup.inputs[0].data, Warmup::Input::Data::file);
  EXPECT_EQ(warmup.inputs[0].file, "first");
  EXPECT_EQ(with_warmup("")->config.warmup->front().runs, 1) << "once, and of one row";
}

TEST(ReadWarmup, ErrorsSayWhatWouldBeRight) {
  const struct {
    std::string warmup;
    const char* message;
  } rows[] = {
      {"batch_size: 5", "model_warmup 'w': batch_size is 5; it is at most max_batch_size, here 4"},
      {"count: 2000", "model_warmup 'w': count is 2000; at most 1000"},
      {input_of("dims: [ 3 ]"), "model_warmup 'w': input 'x': data_type is missing"},
      {input_of("data_type: TYPE_FP32 dims: [ -1 ] zero_data: true"),
       "model_warmup 'w': input 'x': dims has -1; each is what it is in this request"},
      {input_of("data_type: TYPE_FP32 dims: [ 3 ]"),
       "model_warmup 'w': input 'x': it says none of zero_data"},
      {input_of("data_type: TYPE_STRING dims: [ 3 ] zero_data: true"),
       "model_warmup 'w': input 'x': TYPE_STRING"},
      {input_of("data_type: TYPE_FP32 dims: [ 3 ] input_data_file: \"../x\""),
       "model_warmup 'w': input 'x': input_data_file is '../x'; it is the name of a file"},
  };
  for (const auto& row : rows) {
    const auto config = with_warmup(row.warmup);
    ASSERT_FALSE(config.has_value()) << row.warmup;
    EXPECT_EQ(config.error().message.substr(0, std::string_view(row.message).size()), row.message);
  }
  EXPECT_EQ(with_warmup("batch_size: 2", 0).error().message.substr(0, 40),
            "model_warmup 'w': batch_size is 2; it is");
}

}  // namespace
}  // namespace carillon::repository
