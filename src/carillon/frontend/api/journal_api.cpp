#include "carillon/frontend/api/journal_api.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <expected>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "carillon/controller/calls/journal.h"
#include "carillon/explain/story.h"
#include "carillon/frontend/http/http_routes.h"

namespace carillon::frontend {
namespace {

using explain::RequestFacts;
using explain::Story;

constexpr std::uint64_t listed_unasked = 100;
constexpr std::uint64_t most_listed = 1000;
constexpr std::uint64_t longest_trace_s = 86'400;

std::optional<std::uint64_t> whole_number(std::string_view text) {
  std::uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return n;
}

// Whether it sees others' requests, too.
bool sees_all(const Caller* caller) {
  return caller == nullptr || caller->key.admin;
}

bool may_see(const Caller* caller, const RequestFacts& request) {
  return may_use(caller, request.model) && (sees_all(caller) || request.key == caller->key.name);
}

std::string dumped(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpReply off_reply() {
  return error_reply(404, "this server keeps no journal of requests (--journal 0)");
}

bool wants_text(const HttpRequest& request) {
  const std::string_view format = query_value(request.target, "format");
  if (!format.empty()) return format == "text";
  return request.accept.starts_with("text/plain");
}

HttpReply one(const controller::Journal& journal, TimePoint now, const HttpRequest& request,
              const std::string& id) {
  const Caller* const caller = request.caller.get();
  const auto let = [&](const RequestFacts& facts) { return may_see(caller, facts); };
  std::optional<Story> story;
  const std::string_view by = query_value(request.target, "by");
  if (!by.empty() && by != "id")
    return error_reply(400, "\"by\" is '" + std::string(by.substr(0, 64)) + "'; it can only be 'id'");
  if (by.empty())
    if (const auto number = whole_number(id)) story = journal.find(*number, now, let);
  if (!story) story = journal.find_id(id, now, let);
  if (!story)
    return error_reply(404, "no request '" + id.substr(0, 64) + "' is kept: of the last " +
                                std::to_string(journal.capacity()) + " none has this number or id");
  explain::withhold(
      *story, [&](std::string_view model) { return may_use(caller, model); }, sees_all(caller));
  if (wants_text(request))
    return {.content_type = "text/plain; charset=utf-8", .body = explain::to_text(*story)};
  return {.body = dumped(explain::to_json(*story))};
}

// The causes whose names stand between commas; the error is a name that is none's.
std::expected<std::vector<explain::Cause>, std::string_view> causes_of(std::string_view names) {
  std::vector<explain::Cause> out;
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const std::size_t before = out.size();
    for (int i = 1; i <= static_cast<int>(explain::last_cause); ++i)
      if (const auto cause = static_cast<explain::Cause>(i); name == explain::name_of(cause))
        out.push_back(cause);
    if (out.size() == before) return std::unexpected(name);
  }
  return out;
}

HttpReply list(const controller::Journal& journal, TimePoint now, const HttpRequest& request) {
  const Caller* const caller = request.caller.get();
  const auto model = unescape(query_value(request.target, "model"));
  if (!model) return error_reply(400, "\"model\" has a broken % escape");
  const std::string_view outcome = query_value(request.target, "outcome");
  bool known = outcome.empty();
  for (int i = 0; i <= static_cast<int>(explain::last_outcome); ++i)
    known = known || outcome == explain::name_of(static_cast<explain::Outcome>(i));
  if (!known)
    return error_reply(400, "\"outcome\" is '" + std::string(outcome.substr(0, 64)) +
                                "'; it must be open, on_time, late, refused, cancelled or failed");
  const auto causes = causes_of(query_value(request.target, "reason"));
  if (!causes)
    return error_reply(400, "\"reason\" has '" + std::string(causes.error().substr(0, 64)) +
                                "', which is no reason that a request can have");
  std::uint64_t limit = listed_unasked;
  if (const std::string_view asked = query_value(request.target, "limit"); !asked.empty()) {
    const auto number = whole_number(asked);
    if (!number || *number == 0 || *number > most_listed)
      return error_reply(400, "\"limit\" is '" + std::string(asked.substr(0, 64)) +
                                  "'; it must be a whole number from 1 to " + std::to_string(most_listed));
    limit = *number;
  }
  const auto stories = journal.list(limit, now, [&](const RequestFacts& facts) {
    return may_see(caller, facts) && (model->empty() || facts.model == *model) &&
           (outcome.empty() || explain::name_of(facts.outcome) == outcome) &&
           (causes->empty() || std::ranges::find(*causes, facts.cause) != causes->end());
  });
  if (wants_text(request)) {
    HttpReply reply{.content_type = "text/plain; charset=utf-8"};
    for (const Story& story : stories) reply.body += explain::to_line(story);
    return reply;
  }
  nlohmann::ordered_json requests = nlohmann::ordered_json::array();
  for (const Story& story : stories) requests.push_back(explain::to_short_json(story));
  return {.body = dumped({{"capacity", journal.capacity()},
                          {"newest", journal.newest()},
                          {"requests", std::move(requests)}}),
          .may_pack = true};
}

}  // namespace

HttpReply kept_requests_reply(const controller::Service& service, const HttpRequest& request,
                              const std::string& id) {
  const controller::Journal* const journal = service.journal();
  if (journal == nullptr) return off_reply();
  HttpReply reply =
      id.empty() ? list(*journal, service.now(), request) : one(*journal, service.now(), request, id);
  reply.headers.emplace_back("Cache-Control", "no-store");
  return reply;
}

HttpReply device_trace_reply(const controller::Service& service, const HttpRequest& request) {
  const controller::Journal* const journal = service.journal();
  if (journal == nullptr) return off_reply();
  std::uint64_t seconds = 10;
  if (const std::string_view asked = query_value(request.target, "seconds"); !asked.empty()) {
    const auto number = whole_number(asked);
    if (!number || *number == 0 || *number > longest_trace_s)
      return error_reply(400, "\"seconds\" is '" + std::string(asked.substr(0, 64)) +
                                  "'; it must be a whole number from 1 to " +
                                  std::to_string(longest_trace_s));
    seconds = *number;
  }
  const TimePoint now = service.now();
  const Caller* const caller = request.caller.get();
  const auto back = std::chrono::seconds(static_cast<std::int64_t>(seconds));
  const TimePoint since = now.time_since_epoch() > back ? now - back : TimePoint{};
  return {
      .headers = {{"Cache-Control", "no-store"}},
      .body = journal->trace(since, now, [caller](std::string_view model) { return may_use(caller, model); }),
      .may_pack = true};
}

}  // namespace carillon::frontend
