#include "carillon/frontend/doors/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;

class LogSettingsTest : public ::testing::Test {
 protected:
  LogLevels levels;
  int told = 0;
  LogSettings settings{{.levels = [this] { return levels; },
                        .set =
                            [this](const LogLevels& now) {
                              levels = now;
                              ++told;
                            }}};
};

TEST_F(LogSettingsTest, AreToldAsTheyAre) {
  levels = {.error = true, .warning = true, .info = false, .verbose = 0};
  const auto all = settings.all();
  ASSERT_TRUE(all);
  EXPECT_EQ(all->size(), 6U);
  EXPECT_EQ(all->at("log_info"), LogSettings::Value(false));
  EXPECT_EQ(all->at("log_warning"), LogSettings::Value(true));
  EXPECT_EQ(all->at("log_verbose_level"), LogSettings::Value(std::uint64_t{0}));
  EXPECT_EQ(all->at("log_file"), LogSettings::Value(std::string()));
  EXPECT_EQ(all->at("log_format"), LogSettings::Value(std::string("default")));
}

TEST_F(LogSettingsTest, ChangeTheLevels) {
  ASSERT_TRUE(settings.change({{"log_info", false}}));
  EXPECT_EQ(levels, (LogLevels{.info = false}));
  ASSERT_TRUE(settings.change({{"log_warning", false}, {"log_error", false}}));
  EXPECT_EQ(levels, (LogLevels{.error = false, .warning = false, .info = false}));
  ASSERT_TRUE(settings.change({{"log_error", true},
                               {"log_warning", true},
                               {"log_info", true},
                               {"log_verbose_level", std::uint64_t{2}},
                               {"log_file", std::string()},
                               {"log_format", std::string("default")}}));
  EXPECT_EQ(levels, (LogLevels{.verbose = 2}));
  EXPECT_EQ(told, 3);
  ASSERT_TRUE(settings.change({}));
  EXPECT_EQ(told, 3);
}

TEST_F(LogSettingsTest, ChangeAllOrNothing) {
  const struct {
    LogSettings::Values changes;
    ErrorCode code;
    std::string wanted;
  } rows[] = {
      {{{"log_level", true}}, ErrorCode::invalid_argument, "no log setting 'log_level'; there are log_error"},
      {{{"log_info", std::uint64_t{1}}}, ErrorCode::invalid_argument, "true or false"},
      {{{"log_verbose_level", true}}, ErrorCode::invalid_argument, "whole number"},
      {{{"log_verbose_level", std::uint64_t{1} << 40}}, ErrorCode::invalid_argument, "whole number"},
      {{{"log_file", true}}, ErrorCode::invalid_argument, "must be text"},
      {{{"log_file", std::string("/etc/x")}}, ErrorCode::unsupported, "cannot be changed"},
      {{{"log_format", std::string("ISO8601")}}, ErrorCode::unsupported, "'ISO8601'"},
      {{{"log_error", false}}, ErrorCode::invalid_argument, "includes those before it"},
      {{{"log_warning", false}}, ErrorCode::invalid_argument, "includes those before it"},
      {{{"log_info", false}, {"log_verbose_level", std::uint64_t{1}}},
       ErrorCode::invalid_argument,
       "includes those before it"},
      {{{"log_info", false}, {"zzz", true}}, ErrorCode::invalid_argument, "'zzz'"},
  };
  for (const auto& [changes, code, wanted] : rows) {
    const auto changed = settings.change(changes);
    ASSERT_FALSE(changed) << wanted;
    EXPECT_EQ(changed.error().code, code) << wanted;
    EXPECT_THAT(changed.error().message, HasSubstr(wanted));
    EXPECT_EQ(levels, LogLevels{});
  }
  LogSettings none{{}};
  EXPECT_EQ(none.all().error().code, ErrorCode::unsupported);
  EXPECT_EQ(none.change({}).error().code, ErrorCode::unsupported);
}

TEST(TraceSettingsTest, AModelHasTheServersWhereItHasNoneOfItsOwn) {
  TraceSettings settings;
  EXPECT_EQ(settings.all("").at("trace_level"), std::vector<std::string>{"OFF"});
  EXPECT_EQ(settings.all("m"), settings.all(""));
  ASSERT_TRUE(settings.change("", {{"trace_rate", {"7"}}, {"trace_count", {"-1"}}}));
  ASSERT_TRUE(settings.change("m", {{"trace_rate", {"9"}}, {"trace_level", {"OFF", "OFF"}}}));
  EXPECT_EQ(settings.all("").at("trace_rate"), std::vector<std::string>{"7"});
  EXPECT_EQ(settings.all("m").at("trace_rate"), std::vector<std::string>{"9"});
  EXPECT_EQ(settings.all("m").at("trace_level"), std::vector<std::string>{"OFF"});
  EXPECT_EQ(settings.all("n").at("trace_rate"), std::vector<std::string>{"7"});
  ASSERT_TRUE(settings.change("m", {{"trace_rate", {}}}));
  EXPECT_EQ(settings.all("m").at("trace_rate"), std::vector<std::string>{"7"});
  ASSERT_TRUE(settings.change("", {{"trace_rate", {}}}));
  EXPECT_EQ(settings.all("m").at("trace_rate"), std::vector<std::string>{"1000"});
}

TEST(TraceSettingsTest, ChangeAllOrNothing) {
  TraceSettings settings;
  const auto before = settings.all("");
  const struct {
    TraceSettings::Values changes;
    ErrorCode code;
    std::string wanted;
  } rows[] = {
      {{{"zzz", {"1"}}}, ErrorCode::invalid_argument, "no trace setting 'zzz'; there are log_frequency"},
      {{{"trace_level", {"TIMESTAMPS"}}}, ErrorCode::unsupported, "records no traces"},
      {{{"trace_level", {"OFF", "TENSORS"}}}, ErrorCode::unsupported, "records no traces"},
      {{{"trace_rate", {"x"}}}, ErrorCode::invalid_argument, "'x'"},
      {{{"trace_rate", {"-1"}}}, ErrorCode::invalid_argument, "at least 0"},
      {{{"trace_rate", {""}}}, ErrorCode::invalid_argument, "whole number"},
      {{{"trace_count", {"-2"}}}, ErrorCode::invalid_argument, "at least -1"},
      {{{"trace_count", {"1", "2"}}}, ErrorCode::invalid_argument, "has 2 values"},
      {{{"trace_file", {"/etc/x"}}}, ErrorCode::unsupported, "cannot be set"},
      {{{"trace_mode", {"opentelemetry"}}}, ErrorCode::unsupported, "'opentelemetry'"},
      {{{"log_frequency", {"5"}}, {"trace_rate", {"x"}}}, ErrorCode::invalid_argument, "'x'"},
  };
  for (const auto& [changes, code, wanted] : rows) {
    const auto changed = settings.change("", changes);
    ASSERT_FALSE(changed) << wanted;
    EXPECT_EQ(changed.error().code, code) << wanted;
    EXPECT_THAT(changed.error().message, HasSubstr(wanted));
    EXPECT_EQ(settings.all(""), before);
  }
}

}  // namespace
}  // namespace carillon::frontend
