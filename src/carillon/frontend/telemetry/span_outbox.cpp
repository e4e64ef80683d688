#include "carillon/frontend/telemetry/span_outbox.h"

#include <algorithm>
#include <utility>

#include "carillon/graph/text.h"

namespace carillon::frontend {
namespace {

namespace otlp = opentelemetry::proto::trace::v1;

bool is_success(const PostAnswer& answer) {
  return answer.status >= 200 && answer.status < 300;
}

bool may_come_again(const PostAnswer& answer) {
  return answer.status == 0 || answer.status == 429 || answer.status == 502 || answer.status == 503 ||
         answer.status == 504;
}

std::string why(const PostAnswer& answer) {
  constexpr std::size_t longest = 200;
  if (answer.status == 0) return graph::printable(answer.body, longest);
  std::string text = "the collector answers HTTP " + std::to_string(answer.status);
  if (is_success(answer)) text += ", and rejects some";
  // Of errors most send texts, some OTLP's status in protobuf.
  const bool plain = std::ranges::all_of(answer.body, [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
  if (!answer.body.empty() && plain) text += ": " + graph::printable(answer.body, longest);
  return text;
}

// What of a post that was taken the collector did not take, with its words for it.
std::pair<std::uint64_t, std::string> rejected_in(const PostAnswer& answer) {
  otlp::ExportTraceServiceResponse response;
  if (!response.ParseFromString(answer.body)) return {0, {}};
  const auto& partial = response.partial_success();
  return {static_cast<std::uint64_t>(std::max<std::int64_t>(0, partial.rejected_spans())),
          partial.error_message()};
}

}  // namespace

void SpanOutbox::put(std::vector<OtlpSpan> spans, TimePoint now) {
  for (OtlpSpan& span : spans) spans_.push_back({std::move(span), now});
}

TimePoint SpanOutbox::due() const {
  if (spans_.empty()) return TimePoint::max();
  if (hurry_) return TimePoint::min();
  const TimePoint filled =
      full() || tried_ > 0 ? TimePoint::min() : saturating_add(spans_.front().since, options_.linger);
  return std::max(filled, not_before_);
}

void SpanOutbox::hurry() {
  hurry_ = true;
}

std::vector<const OtlpSpan*> SpanOutbox::batch() const {
  std::vector<const OtlpSpan*> out;
  for (std::size_t i = 0; i < std::min(spans_.size(), options_.batch); ++i) out.push_back(&spans_[i].span);
  return out;
}

void SpanOutbox::take_out(std::size_t count) {
  spans_.erase(spans_.begin(), spans_.begin() + static_cast<std::ptrdiff_t>(count));
  tried_ = 0;
}

std::optional<std::string> SpanOutbox::answered(const PostAnswer& answer, TimePoint now) {
  const std::size_t count = std::min(spans_.size(), options_.batch);
  if (is_success(answer)) {
    const auto [rejected, words] = rejected_in(answer);
    counts_.rejected += std::min<std::uint64_t>(rejected, count);
    counts_.sent += count - std::min<std::uint64_t>(rejected, count);
    failures_ = 0;
    not_before_ = TimePoint::min();
    take_out(count);
    if (rejected > 0) {
      if (complained_at_) return std::nullopt;
      complained_at_ = counts_.dropped;
      return "spans are rejected: " + (words.empty() ? why(answer) : graph::printable(words, 200));
    }
    if (!complained_at_) return std::nullopt;
    const std::uint64_t lost = counts_.dropped - *complained_at_;
    complained_at_.reset();
    return "spans are taken again; " + std::to_string(lost) + " were dropped meanwhile";
  }
  ++failures_;
  ++tried_;
  const bool again = may_come_again(answer) && tried_ < options_.tries && !hurry_;
  const bool told = complained_at_.has_value();
  if (!told) complained_at_ = counts_.dropped;
  if (!again) {
    counts_.dropped += count;
    take_out(count);
  }
  if (may_come_again(answer)) {
    Duration wait = options_.longest_wait;
    if (failures_ < 16) wait = std::min(wait, options_.first_wait * (std::int64_t{1} << (failures_ - 1)));
    if (answer.retry_after) wait = std::clamp(*answer.retry_after, wait, 2 * options_.longest_wait);
    not_before_ = saturating_add(now, wait);
  }
  if (told) return std::nullopt;
  return "spans are not taken: " + why(answer) +
         (may_come_again(answer) ? "; they are tried again, and in the end dropped" : "; they are dropped");
}

void SpanOutbox::drop_all() {
  counts_.dropped += spans_.size();
  take_out(spans_.size());
}

}  // namespace carillon::frontend
