#include "carillon/cli/otlp_options.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::cli {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

Environment with(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

OtlpTarget target_of(const std::string& url) {
  auto target = read_otlp({.url = url, .headers = {}, .ca = {}}, with({}));
  EXPECT_TRUE(target) << target.error().message;
  return **target;
}

TEST(Otlp, WithoutAnAddressThereIsNone) {
  const auto none = read_otlp({}, with({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318"}}));
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->has_value());
}

TEST(Otlp, PathIsTheOneGivenOrTheOneForTraces) {
  const struct {
    std::string url, host, port, path;
    bool tls;
  } rows[] = {{"http://localhost:4318", "localhost", "4318", "/v1/traces", false},
              {"http://localhost:4318/", "localhost", "4318", "/v1/traces", false},
              {"http://localhost:4318/a/b", "localhost", "4318", "/a/b", false},
              {"http://localhost:4318/a?b=c", "localhost", "4318", "/a?b=c", false},
              {"http://[::1]:4318", "::1", "4318", "/v1/traces", false},
              {"http://[::1]/x", "::1", "80", "/x", false},
              {"https://collector.example", "collector.example", "443", "/v1/traces", true}};
  for (const auto& row : rows) {
    const OtlpTarget target = target_of(row.url);
    EXPECT_EQ(target.address.host, row.host) << row.url;
    EXPECT_EQ(target.address.port, row.port) << row.url;
    EXPECT_EQ(target.path, row.path) << row.url;
    EXPECT_EQ(target.address.tls, row.tls) << row.url;
    EXPECT_EQ(target.access.tls != nullptr, row.tls) << row.url;
  }
  EXPECT_EQ(target_of("http://localhost:4318/a?token=hush").url(), "http://localhost:4318/a");
}

TEST(Otlp, VariablesGiveHeadersAndWhoThisIs) {
  const auto target =
      read_otlp({.url = "http://localhost:4318", .headers = {"b=option", "d=x=y"}, .ca = {}},
                with({{"OTEL_EXPORTER_OTLP_HEADERS", " a = 1%2C2 ,b=2,,c=3"},
                      {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "c=4"},
                      {"OTEL_RESOURCE_ATTRIBUTES", "service.name=list,service.instance.id=me"},
                      {"OTEL_SERVICE_NAME", "name"}}));
  ASSERT_TRUE(target);
  EXPECT_THAT((*target)->headers, ::testing::ElementsAre(Pair("a", "1,2"), Pair("b", "option"),
                                                         Pair("c", "4"), Pair("d", "x=y")));
  EXPECT_THAT((*target)->resource, Contains(Pair("service.name", "name")));
  EXPECT_THAT((*target)->resource, Contains(Pair("service.instance.id", "me")));
  const auto plain = target_of("http://localhost:4318").resource;
  EXPECT_THAT(plain, Contains(Pair("service.name", "carillon")));
  EXPECT_THAT(plain, Contains(Pair("host.name", Not(""))));
  EXPECT_THAT(plain,
              Contains(Pair("service.instance.id",
                            ::testing::MatchesRegex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab].*"))));
  EXPECT_NE(plain, target_of("http://localhost:4318").resource);  // another start, another instance
}

TEST(Otlp, SaysWhatIsWrongAndNoSecret) {
  const struct {
    std::string variable, value, words;
  } rows[] = {{"OTEL_EXPORTER_OTLP_HEADERS", "hush", "OTEL_EXPORTER_OTLP_HEADERS"},
              {"OTEL_EXPORTER_OTLP_HEADERS", "a=hush%", "'a' has a broken % escape"},
              {"OTEL_EXPORTER_OTLP_HEADERS", "a=hush%zz", "'a' has a broken % escape"},
              {"OTEL_EXPORTER_OTLP_HEADERS", "a=hush%0d%0ab: c", "control characters"},
              {"OTEL_EXPORTER_OTLP_HEADERS", "content-length=hush", "cannot be given"},
              {"OTEL_RESOURCE_ATTRIBUTES", "hush", "OTEL_RESOURCE_ATTRIBUTES"}};
  for (const auto& [variable, value, words] : rows) {
    const auto target =
        read_otlp({.url = "http://localhost:4318", .headers = {}, .ca = {}}, with({{variable, value}}));
    ASSERT_FALSE(target) << value;
    EXPECT_THAT(target.error().message, HasSubstr(words));
    EXPECT_THAT(target.error().message, Not(HasSubstr("hush")));
  }
}

TEST(Otlp, ReadsWhenToComeAgain) {
  EXPECT_EQ(retry_after_of("3"), 3s);
  EXPECT_EQ(retry_after_of("99999999999"), std::chrono::hours(24));
  for (const char* none : {"", "-1", "soon", "3 ", "Fri, 31 Dec 1999 23:59:59 GMT", "99999999999999999999"})
    EXPECT_EQ(retry_after_of(none), std::nullopt) << none;
}

}  // namespace
}  // namespace carillon::cli
