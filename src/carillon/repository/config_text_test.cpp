#include "carillon/repository/config_text.h"

#include <string>

#include <gtest/gtest.h>

namespace carillon::repository {
namespace {

TEST(ConfigText, FieldsThatAreNotKnownAreErrorsThatSayWhatMayBeMeant) {
  const struct {
    const char* text;
    const char* message;  // its beginning
  } rows[] = {
      {"max_batchsize: 8",
       "line 1, column 1: ModelConfig has no field 'max_batchsize'; the nearest is 'max_batch_size'"},
      {"name: \"m\"\n  inputs { name: \"x\" }",
       "line 2, column 3: ModelConfig has no field 'inputs'; the nearest is 'input'"},
      {"input [ { name: \"x\" dim: [ 1 ] } ]",
       "line 1, column 21: ModelInput has no field 'dim'; the nearest is 'dims'"},
      {"dynamic_batching { max_queue_delay_microsecond : 1 }",
       "line 1, column 20: ModelDynamicBatching has no field 'max_queue_delay_microsecond'; the nearest is "
       "'max_queue_delay_microseconds'"},
      {"version_policy { all { } }\ncolour: \"red\"",
       "line 2, column 1: ModelConfig has no field 'colour'; it has name, "},
      {"max_batch_size 8", "line 1, column 16: "},
  };
  for (const auto& row : rows) {
    const auto read = message_of(row.text);
    ASSERT_FALSE(read.has_value()) << row.text;
    EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(read.error().message.substr(0, std::string_view(row.message).size()), row.message);
  }
  EXPECT_TRUE(message_of("").has_value());
  EXPECT_FALSE(message_of(std::string(100'000, 'x') + ": 1").has_value());
}

TEST(ConfigText, TheSameConfigHasTheSameBytes) {
  std::string text;
  for (int i = 0; i < 50; ++i)
    text += "parameters { key: \"p" + std::to_string(i) + "\" value { string_value: \"v\" } }\n";
  const std::string bytes = bytes_of(message_of(text).value());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(bytes_of(message_of(text).value()), bytes);
}

}  // namespace
}  // namespace carillon::repository
