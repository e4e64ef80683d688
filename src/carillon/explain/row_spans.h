#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/wire/row_trace.h"

namespace carillon::explain {

// What one process of a cluster did for a row of a sampled request: a span below the request's, and its
// parts. All times are on this process's clock.
struct RowSpans {
  struct Part {
    std::string_view name;  // a literal
    TimePoint begin;
    TimePoint end = TimePoint::max();  // max(): it goes on
    std::string failed = {};           // why it came to nothing; empty: it did not
  };
  static constexpr std::size_t most_parts = 32;  // those after them are left out

  wire::RowTrace of;
  std::string_view name;  // a literal
  bool remote = false;    // the request is another process's
  std::string model;
  TimePoint begin;
  TimePoint end = TimePoint::max();  // as of a part
  std::vector<Part> parts = {};
  std::string failed = {};  // as of a part
  // Attributes; their names are literals.
  std::vector<std::pair<std::string_view, std::int64_t>> numbers = {};
  std::vector<std::pair<std::string_view, std::string>> texts = {};

  void say(std::string_view attribute, std::int64_t value) { set(numbers, attribute, value); }
  void say(std::string_view attribute, std::string_view value) { set(texts, attribute, std::string(value)); }

  // Ends the part that goes on, if one does, and begins the next.
  void begin_part(std::string_view part, TimePoint now) {
    end_part(now);
    if (parts.size() < most_parts) parts.push_back({.name = part, .begin = now});
  }
  void end_part(TimePoint now, std::string_view why = {}) {
    if (parts.empty() || parts.back().end != TimePoint::max()) return;
    parts.back().end = now;
    parts.back().failed = why;
  }
  void finish(TimePoint now) {
    end_part(now);
    end = std::min(end, now);
  }
  void add_part(std::string_view part, TimePoint from, TimePoint until) {
    if (until > from && parts.size() < most_parts)
      parts.push_back({.name = part, .begin = from, .end = until});
  }

 private:
  template <typename Value>
  static void set(std::vector<std::pair<std::string_view, Value>>& to, std::string_view attribute,
                  Value value) {
    const auto found = std::ranges::find(to, attribute, &std::pair<std::string_view, Value>::first);
    if (found != to.end())
      found->second = std::move(value);
    else
      to.emplace_back(attribute, std::move(value));
  }
};

// Takes what is complete. Any thread; must not wait. Empty: nobody wants spans.
using RowSpansSink = std::function<void(std::shared_ptr<const RowSpans>)>;

}  // namespace carillon::explain
