#include "carillon/base/trace_context.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace carillon {
namespace {

// The example of W3C Trace Context, section 3.2.5.
const std::string sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContext, ReadsWhatACallerSays) {
  const auto trace = parse_traceparent(sampled);
  ASSERT_TRUE(trace);
  EXPECT_TRUE(trace->there());
  EXPECT_TRUE(trace->sampled());
  EXPECT_EQ(trace->trace_id[0], 0x4b);
  EXPECT_EQ(trace->trace_id[15], 0x36);
  EXPECT_EQ(trace->parent_id[7], 0xb7);
  EXPECT_EQ(trace->span_id, decltype(trace->span_id){});
  EXPECT_FALSE(TraceContext().there());
}

TEST(TraceContext, IsWrittenWithOurSpan) {
  auto trace = *parse_traceparent(sampled);
  trace.span_id = {0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31};
  EXPECT_EQ(traceparent_text(trace), "00-4bf92f3577b34da6a3ce929d0e0e4736-b7ad6b7169203331-01");
}

TEST(TraceContext, OthersFlagsAndLaterVersionsAreReadAsFarAsTheyAreKnown) {
  const std::string ids = "-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-";
  const struct {
    std::string text;
    bool good;
    bool sampled;
  } rows[] = {
      {"00" + ids + "00", true, false},       {"00" + ids + "ff", true, true},
      {"00" + ids + "02", true, false},       {"01" + ids + "01", true, true},
      {"cc" + ids + "01-more", true, true},   {"cc" + ids + "01more", false, false},
      {"00" + ids + "01-more", false, false}, {"00" + ids + "01 ", false, false},
      {"ff" + ids + "01", false, false},
  };
  for (const auto& [text, good, is_sampled] : rows) {
    const auto trace = parse_traceparent(text);
    EXPECT_EQ(trace.has_value(), good) << text;
    if (trace && good) {
      EXPECT_EQ(trace->sampled(), is_sampled) << text;
    }
  }
}

TEST(TraceContext, WhatIsNotWellFormedIsNotRead) {
  for (const char* wrong : {
           "",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",    // too short
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",   // upper case
           "00-00000000000000000000000000000000-00f067aa0ba902b7-01",   // no trace
           "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",   // no span
           "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",   // no digit
           "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",   // no dash
           "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",   // no version
           "00-4bf92f3577b34da6a3ce929d0e0e47-36-00f067aa0ba902b7-01",  // a dash inside
       })
    EXPECT_FALSE(parse_traceparent(wrong)) << wrong;
}

// Every text that differs from a good one in a byte is read as what it says, or not at all.
TEST(TraceContext, NoByteIsLost) {
  for (std::size_t i = 0; i < sampled.size(); ++i)
    for (int c = 0; c < 256; ++c) {
      std::string text = sampled;
      text[i] = static_cast<char>(c);
      auto trace = parse_traceparent(text);
      if (!trace) continue;
      trace->span_id = trace->parent_id;
      const std::string again = traceparent_text(*trace);
      EXPECT_EQ(again.substr(3, 50), text.substr(3, 50));
    }
}

TEST(Tracestate, IsHeldToItsGrammar) {
  std::string most;
  for (int i = 0; i < 32; ++i) most += (i > 0 ? ",k" : "k") + std::to_string(i) + "=v";
  for (const std::string& good :
       {std::string("rojo=00f067aa0ba902b7"), std::string("rojo=1 , congo=t61rcWkgMzE"),
        std::string("1tenant@vendor=a:b c"), std::string("a=1,,b=2,"), most})
    EXPECT_TRUE(is_tracestate(good)) << good;
  for (const std::string& wrong :
       {std::string(), std::string(", ,"), std::string("Rojo=1"), std::string("rojo"), std::string("rojo="),
        std::string("=1"), std::string("a=1,a=2"), std::string("a=b=c"), std::string("a=\x01"),
        std::string("1a=1"), std::string("a@=1"), std::string("@a=1"), std::string("a=\xc3\xa9"),
        most + ",x=1", "a=" + std::string(257, 'x'), std::string(257, 'a') + "=1",
        "a=" + std::string(600, 'x')})
    EXPECT_FALSE(is_tracestate(wrong)) << wrong;
}

TEST(TraceIds, AreNeverZeroAndDoNotRepeat) {
  TraceIds ids(7);
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const TraceContext trace = ids.begin();
    EXPECT_TRUE(parse_traceparent(traceparent_text(trace)));
    EXPECT_TRUE(trace.sampled());
    EXPECT_TRUE(seen.insert(traceparent_text(trace)).second);
  }
}

TEST(TraceIds, ChooseAsManyAsTheyShould) {
  TraceIds ids(7);
  int chosen = 0;
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_FALSE(ids.chosen(0));
    EXPECT_TRUE(ids.chosen(1));
    chosen += ids.chosen(0.1) ? 1 : 0;
  }
  EXPECT_NEAR(chosen, 1000, 150);
}

}  // namespace
}  // namespace carillon
