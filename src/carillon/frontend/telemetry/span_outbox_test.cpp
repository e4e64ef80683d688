#include "carillon/frontend/telemetry/span_outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

PostAnswer status(unsigned status, std::optional<Duration> retry_after = {}) {
  return {.status = status, .retry_after = retry_after, .body = {}};
}

SpanOutbox filled(std::size_t spans, TimePoint now = at(0s)) {
  SpanOutbox outbox({.batch = 10});
  outbox.put(std::vector<OtlpSpan>(spans), now);
  return outbox;
}

TEST(SpanOutbox, WaitsForABatchOrASecond) {
  EXPECT_EQ(filled(0).due(), TimePoint::max());
  EXPECT_EQ(filled(9, at(5s)).due(), at(6s));
  EXPECT_LE(filled(10, at(5s)).due(), at(5s));
}

TEST(SpanOutbox, SendsABatchAtATime) {
  SpanOutbox outbox = filled(13);
  EXPECT_TRUE(outbox.full());
  EXPECT_EQ(outbox.batch().size(), 10U);
  EXPECT_FALSE(outbox.answered(status(200), at(1s)));
  EXPECT_EQ(outbox.batch().size(), 3U);
  EXPECT_FALSE(outbox.answered(status(202), at(1s)));
  EXPECT_EQ(outbox.due(), TimePoint::max());
  EXPECT_EQ(outbox.counts().sent, 13U);
}

TEST(SpanOutbox, TriesAgainAfterWaitsThatDoubleThenDrops) {
  SpanOutbox outbox = filled(10);
  TimePoint now = at(0s);
  for (const Duration wait : {1s, 2s, 4s, 8s}) {
    EXPECT_EQ(outbox.answered(status(503), now).has_value(), wait == 1s);  // it is told once
    EXPECT_EQ(outbox.due(), now + wait);
    EXPECT_EQ(outbox.size(), 10U);
    now = now + wait;
  }
  EXPECT_FALSE(outbox.answered(status(0), now));
  EXPECT_EQ(outbox.size(), 0U);
  EXPECT_EQ(outbox.counts().dropped, 10U);
  // The next batch waits as well, and no longer than the longest wait.
  outbox.put(std::vector<OtlpSpan>(10), now);
  EXPECT_EQ(outbox.due(), now + 16s);
  now = now + 16s;
  EXPECT_FALSE(outbox.answered(status(503), now));
  EXPECT_EQ(outbox.due(), now + 30s);
  const auto told = outbox.answered(status(200), now);
  ASSERT_TRUE(told);
  EXPECT_THAT(*told, HasSubstr("taken again; 10 were dropped"));
  outbox.put(std::vector<OtlpSpan>(10), now);
  EXPECT_LE(outbox.due(), now);
}

TEST(SpanOutbox, HeedsWhenTheCollectorWantsThemAgain) {
  SpanOutbox outbox = filled(10);
  (void)outbox.answered(status(429, 7s), at(0s));
  EXPECT_EQ(outbox.due(), at(7s));
  (void)outbox.answered(status(429, 1h), at(7s));  // within reason
  EXPECT_EQ(outbox.due(), at(67s));
  (void)outbox.answered(status(429, 0s), at(67s));  // and not sooner than by itself
  EXPECT_EQ(outbox.due(), at(71s));
}

TEST(SpanOutbox, DropsAtOnceWhatIsRefusedForGood) {
  for (const unsigned code : {100U, 301U, 400U, 401U, 404U, 413U, 500U, 501U}) {
    SpanOutbox outbox = filled(10);
    const auto told = outbox.answered({.status = code, .retry_after = {}, .body = "no\x01"}, at(0s));
    ASSERT_TRUE(told);
    EXPECT_THAT(*told, HasSubstr("HTTP " + std::to_string(code) + "; they are dropped"));
    EXPECT_EQ(outbox.counts().dropped, 10U) << code;
    EXPECT_EQ(outbox.due(), TimePoint::max());
  }
}

TEST(SpanOutbox, TellsWhatIsWrongOnceUntilItIsRight) {
  SpanOutbox outbox = filled(3);
  const auto told = outbox.answered({.status = 0, .retry_after = {}, .body = "Connection refused"}, at(0s));
  ASSERT_TRUE(told);
  EXPECT_THAT(*told, HasSubstr("Connection refused; they are tried again"));
  EXPECT_FALSE(outbox.answered(status(400), at(1s)));
  outbox.put(std::vector<OtlpSpan>(3), at(1s));
  EXPECT_TRUE(outbox.answered(status(200), at(2s)));
  outbox.put(std::vector<OtlpSpan>(3), at(2s));
  EXPECT_FALSE(outbox.answered(status(200), at(3s)));
  outbox.put(std::vector<OtlpSpan>(3), at(3s));
  EXPECT_TRUE(outbox.answered(status(400), at(4s)));
}

TEST(SpanOutbox, CountsWhatIsRejected) {
  opentelemetry::proto::trace::v1::ExportTraceServiceResponse response;
  response.mutable_partial_success()->set_rejected_spans(4);
  response.mutable_partial_success()->set_error_message("too old");
  SpanOutbox outbox = filled(10);
  const auto told =
      outbox.answered({.status = 200, .retry_after = {}, .body = response.SerializeAsString()}, at(0s));
  ASSERT_TRUE(told);
  EXPECT_THAT(*told, HasSubstr("rejected: too old"));
  EXPECT_EQ(outbox.counts().sent, 6U);
  EXPECT_EQ(outbox.counts().rejected, 4U);
  // Nonsense rejects no more than there is, and nothing where it is none.
  response.mutable_partial_success()->set_rejected_spans(1000);
  for (const auto& [body, rejected] :
       {std::pair(response.SerializeAsString(), 10U), std::pair(std::string("\xff\xff"), 0U)}) {
    SpanOutbox other = filled(10);
    (void)other.answered({.status = 200, .retry_after = {}, .body = body}, at(0s));
    EXPECT_EQ(other.counts().rejected, rejected);
    EXPECT_EQ(other.counts().sent, 10U - rejected);
  }
}

TEST(SpanOutbox, HurriesAtTheEnd) {
  SpanOutbox outbox = filled(3);
  (void)outbox.answered(status(503), at(0s));
  outbox.hurry();
  EXPECT_EQ(outbox.due(), TimePoint::min());
  EXPECT_FALSE(outbox.answered(status(503), at(1ms)));  // once more, and no more
  EXPECT_EQ(outbox.counts().dropped, 3U);
  EXPECT_EQ(outbox.due(), TimePoint::max());
  outbox.put(std::vector<OtlpSpan>(5), at(1ms));
  outbox.drop_all();
  EXPECT_EQ(outbox.counts().dropped, 8U);
}

}  // namespace
}  // namespace carillon::frontend
