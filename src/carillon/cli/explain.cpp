#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/base/files.h"
#include "carillon/cli/access_options.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/load/address.h"
#include "carillon/cli/load/http_get.h"
#include "carillon/explain/decisions.h"
#include "carillon/explain/story.h"
#include "carillon/explain/trace.h"
#include "carillon/schedule/log/reader.h"
#include "carillon/schedule/registry.h"
#include "carillon/simulate/counterfactual.h"
#include "carillon/simulate/from_log.h"

namespace carillon::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ExplainArguments {
  std::string target;  // a log, or a server's address
  std::string request;
  std::vector<std::string> policies;
  std::string perfetto;
  AccessArguments access;
  std::string key_file;
  int seconds = 60;
  bool by_id = false;
  bool json = false;
};

int fail_explain(const Error& error, int status = exit_failure) {
  fmt::print(stderr, "carillon explain: {}\n", error.message);
  return status;
}

Result<> write_trace(const std::string& file, const std::string& text) {
  if (auto written = write_file(file, text); !written) return in_context("--perfetto", written.error());
  return {};
}

// --- A table of many requests, from short records

struct Counts {
  std::uint64_t requests = 0;
  std::map<std::string, std::uint64_t> outcomes;
  std::int64_t worst_us = 0;
  std::uint64_t worst = 0;  // its number
};

// So many of those that were refused, or failed, are told with their numbers.
constexpr std::size_t most_listed = 20;

// The last of them, the newest first: who wants to know why one of them got no result asks by its number.
Json without_result(const std::vector<Json>& records) {
  std::vector<const Json*> found;
  for (const Json& record : records)
    if (const auto outcome = record.at("outcome").get<std::string>();
        outcome == "refused" || outcome == "failed")
      found.push_back(&record);
  std::ranges::sort(found, std::greater{},
                    [](const Json* record) { return record->at("number").get<std::uint64_t>(); });
  if (found.size() > most_listed) found.resize(most_listed);
  Json out = Json::array();
  for (const Json* record : found) {
    Json row;
    for (const char* field : {"number", "id", "model", "outcome", "reason", "arrived_unix_us", "arrived_us",
                              "deadline_us", "would_take_us"})
      if (record->contains(field)) row[field] = record->at(field);
    out.push_back(std::move(row));
  }
  return out;
}

// `others` are records without a result that may be older than those.
Json summary_of(const std::vector<Json>& records, const std::vector<Json>& others) {
  std::map<std::string, Counts> models;
  std::map<std::pair<std::string, std::string>, std::uint64_t> reasons;
  for (const Json& record : records) {
    Counts& counts = models[record.at("model").get<std::string>()];
    ++counts.requests;
    const auto outcome = record.at("outcome").get<std::string>();
    ++counts.outcomes[outcome];
    const auto reason = record.at("reason").get<std::string>();
    if (!reason.empty()) ++reasons[{outcome, reason}];
    if (outcome != "late" || !record.at("deadline_us").is_number() || !record.at("took_us").is_number())
      continue;
    const std::int64_t late =
        record.at("took_us").get<std::int64_t>() - record.at("deadline_us").get<std::int64_t>();
    if (late < counts.worst_us) continue;
    counts.worst_us = late;
    counts.worst = record.at("number").get<std::uint64_t>();
  }
  Json out;
  out["requests"] = records.size();
  out["models"] = Json::array();
  for (const auto& [name, counts] : models) {
    Json row{{"model", name}, {"requests", counts.requests}};
    for (int i = 0; i <= static_cast<int>(explain::last_outcome); ++i) {
      const std::string outcome(explain::name_of(static_cast<explain::Outcome>(i)));
      const auto found = counts.outcomes.find(outcome);
      row[outcome] = found == counts.outcomes.end() ? 0 : found->second;
    }
    row["worst_late_us"] = counts.worst == 0 && counts.worst_us == 0 ? Json(nullptr) : Json(counts.worst_us);
    row["worst_late_number"] = row["worst_late_us"].is_null() ? Json(nullptr) : Json(counts.worst);
    out["models"].push_back(std::move(row));
  }
  out["reasons"] = Json::array();
  for (const auto& [what, count] : reasons)
    out["reasons"].push_back({{"outcome", what.first}, {"reason", what.second}, {"requests", count}});
  out["without_result"] = without_result(others);
  return out;
}

// Of a server the time of day; of a log since its first request.
std::string when_text(const Json& row) {
  if (row.contains("arrived_us")) return fmt::format("{:.3f} s", row["arrived_us"].get<double>() / 1e6);
  return explain::utc(row["arrived_unix_us"].get<std::int64_t>());
}

void print_without_result(const Json& rows) {
  if (rows.empty()) return;
  const auto ms = [](const Json& us) {
    return us.is_null() ? std::string("-") : fmt::format("{:.3f}", us.get<double>() / 1000);
  };
  fmt::print("\n{:<10}  {:<32}{:<24}{:<9}{:<20}{:>12}{:>15}  {}\n", "request", "came at", "model", "outcome",
             "reason", "deadline ms", "would take ms", "id");
  for (const Json& row : rows)
    fmt::print("{:<10}  {:<32}{:<24}{:<9}{:<20}{:>12}{:>15}  {}\n", row["number"].get<std::uint64_t>(),
               when_text(row), row["model"].get<std::string>(), row["outcome"].get<std::string>(),
               row["reason"].get<std::string>(), ms(row["deadline_us"]), ms(row["would_take_us"]),
               row["id"].get<std::string>());
  fmt::print("--request NUMBER tells the story of one.\n");
}

void print_summary(const Json& summary) {
  fmt::print("{:<24}{:>9}{:>9}{:>7}{:>9}{:>10}{:>8}{:>6}{:>14}{:>10}\n", "model", "requests", "on time",
             "late", "refused", "cancelled", "failed", "open", "worst late ms", "request");
  for (const Json& row : summary["models"]) {
    const auto count = [&](const char* name) { return row[name].get<std::uint64_t>(); };
    fmt::print(
        "{:<24}{:>9}{:>9}{:>7}{:>9}{:>10}{:>8}{:>6}{:>14}{:>10}\n", row["model"].get<std::string>(),
        count("requests"), count("on_time"), count("late"), count("refused"), count("cancelled"),
        count("failed"), count("open"),
        row["worst_late_us"].is_null() ? "-"
                                       : fmt::format("{:.3f}", row["worst_late_us"].get<double>() / 1000),
        row["worst_late_number"].is_null() ? "-"
                                           : std::to_string(row["worst_late_number"].get<std::uint64_t>()));
  }
  if (summary["reasons"].empty()) return;
  fmt::print("\n{:<24}{:<20}{:>9}\n", "without a result", "reason", "requests");
  for (const Json& row : summary["reasons"])
    fmt::print("{:<24}{:<20}{:>9}\n", row["outcome"].get<std::string>(), row["reason"].get<std::string>(),
               row["requests"].get<std::uint64_t>());
  print_without_result(summary["without_result"]);
}

// --- From a log

struct Log {
  std::string scheduler;
  schedule::Environment environment;
  explain::Decisions decisions;
  bool complete = false;
};

template <typename Look>
Result<> each_decision(const std::string& file, std::string& scheduler, schedule::Environment& environment,
                       bool& complete, Look look) {
  auto reader = schedule::log::LogReader::open(file);
  if (!reader) return std::unexpected(reader.error());
  scheduler = reader->scheduler();
  environment = reader->environment();
  while (true) {
    auto next = reader->next();
    if (!next) return std::unexpected(next.error());
    if (!*next) break;
    look(**next, reader->environment());
  }
  complete = reader->complete();
  return {};
}

Result<std::unique_ptr<Log>> read_log(const std::string& file) {
  auto log = std::make_unique<Log>();
  auto done = each_decision(file, log->scheduler, log->environment, log->complete,
                            [&](const schedule::log::LoggedDecision& decision, const auto&) {
                              log->decisions.add(decision.event, decision.now, decision.actions);
                            });
  if (!done) return std::unexpected(done.error());
  return log;
}

// What each policy would have done with the request, the recorded one first.
Result<std::vector<simulate::Fate>> fates_of(const ExplainArguments& arguments, const Log& log,
                                             const explain::RequestFacts& request) {
  TimePoint over = request.ended != explain::never ? request.ended : log.decisions.last();
  if (request.deadline != TimePoint::max()) over = std::max(over, request.deadline);
  std::optional<simulate::FromLog> rebuilt;
  simulate::RequestPlace place;
  bool found = false;
  std::string scheduler;
  schedule::Environment environment;
  bool complete = false;
  const auto read =
      each_decision(arguments.target, scheduler, environment, complete,
                    [&](const schedule::log::LoggedDecision& decision, const schedule::Environment& told) {
                      if (!rebuilt) rebuilt.emplace(arguments.target, told, over);
                      rebuilt->add(decision.event, decision.now, decision.actions);
                      const auto* arrived = std::get_if<schedule::RequestArrived>(&decision.event);
                      if (arrived == nullptr || found) return;
                      if (arrived->request.id.value == request.number) {
                        place.model = arrived->request.model;
                        found = true;
                      }
                    });
  if (!read) return std::unexpected(read.error());
  // Its place among its model's.
  for (const explain::RequestFacts& other : log.decisions.requests()) {
    if (other.number == request.number) break;
    place.place += other.model == request.model ? 1 : 0;
  }
  std::vector<std::string> policies = arguments.policies;
  if (policies.empty()) policies = schedule::scheduler_names();
  std::erase(policies, log.scheduler);
  policies.insert(policies.begin(), log.scheduler);
  const workload::Scenario scenario = rebuilt->scenario();
  std::vector<simulate::Fate> out;
  for (const std::string& policy : policies) {
    auto fate = simulate::simulate_fate(scenario, rebuilt->environment(scenario), policy, place);
    if (!fate) return std::unexpected(fate.error());
    out.push_back(*std::move(fate));
  }
  return out;
}

// What the recorded policy went by when the request came, and when it was sent or refused: of the policy as
// the log's events leave it, so its decisions must be those of the log.
struct Thoughts {
  struct At {
    const char* when;
    TimePoint now;
    schedule::Terms terms;
  };
  std::vector<At> told;
  bool differs = false;  // this build decides otherwise than the one that wrote the log
};

bool names(const schedule::Action& action, RequestId id) {
  if (const auto* infer = std::get_if<schedule::Infer>(&action))
    return std::ranges::find(infer->requests, id) != infer->requests.end();
  const auto* refuse = std::get_if<schedule::Refuse>(&action);
  return refuse != nullptr && refuse->request == id;
}

Result<Thoughts> thoughts_of(const std::string& file, std::uint64_t number) {
  auto reader = schedule::log::LogReader::open(file);
  if (!reader) return std::unexpected(reader.error());
  auto core = schedule::make_scheduler(reader->scheduler(), reader->environment());
  if (!core) return in_context("the log's scheduler", core.error());
  Thoughts out;
  const RequestId id{number};
  std::optional<Request> request;
  while (!out.differs) {
    auto next = reader->next();
    if (!next) return std::unexpected(next.error());
    if (!*next || !(*next)->whole) break;
    const schedule::log::LoggedDecision& decision = **next;
    const auto* arrival = std::get_if<schedule::RequestArrived>(&decision.event);
    const bool comes = arrival != nullptr && arrival->request.id == id;
    if (comes) request = arrival->request;
    const auto decided = std::ranges::find_if(
        decision.actions, [&](const schedule::Action& action) { return request && names(action, id); });
    if (decided != decision.actions.end()) {
      const bool sent = std::holds_alternative<schedule::Infer>(*decided);
      out.told.push_back(
          {comes ? (sent ? "before it came, and was sent at once" : "before it came, and was refused")
                 : (sent ? "before it was sent" : "before it was refused"),
           decision.now, (*core)->terms(request->model, request->cls, decision.now)});
    }
    schedule::Actions actions;
    (*core)->decide(decision.event, decision.now, actions);
    out.differs = actions != decision.actions;
    if (decided != decision.actions.end()) break;
    if (comes)
      out.told.push_back(
          {"when it had come", decision.now, (*core)->terms(request->model, request->cls, decision.now)});
  }
  std::erase_if(out.told, [](const Thoughts::At& at) { return at.terms.empty(); });
  return out;
}

Json thoughts_json(const Thoughts& thoughts, TimePoint arrival) {
  Json out = Json::array();
  for (const Thoughts::At& at : thoughts.told) {
    Json terms;
    for (const auto& [name, value] : at.terms) terms[name] = value;
    out.push_back(
        {{"when", at.when}, {"at_us", (at.now - arrival) / std::chrono::microseconds{1}}, {"terms", terms}});
  }
  return out;
}

void print_thoughts(const Json& told, const std::string& policy, bool differs) {
  for (const Json& at : told) {
    fmt::print("\nWhat {} went by {} ({:.3f} ms after the arrival):\n", policy, at["when"].get<std::string>(),
               at["at_us"].get<double>() / 1000);
    for (const auto& [name, value] : at["terms"].items())
      fmt::print("  {:<42}{}\n", name, value.get<std::string>());
  }
  if (differs)
    fmt::print(
        "\nThis build decides otherwise than the one that wrote the log, so what its policy went by "
        "is told only until then.\n");
}

constexpr const char* caveats =
    "Simulated, not replayed: each policy meets the log's arrivals from its beginning until this request was "
    "over, and\n"
    "a run takes the mean of what the log measured for its model and batch size (what the policy was told, "
    "where it\n"
    "never ran). The log's own results follow from what was done then, and are not given to others. This "
    "cannot know\n"
    "what a run would have taken at that very moment, or how clients would have acted on other answers; it "
    "leaves out\n"
    "cancellations, devices that went, and the ways to and from them. How far it reaches shows in the first "
    "line: the\n"
    "recorded policy, simulated, beside what was recorded.\n";

Json fate_json(const simulate::Fate& fate, bool recorded) {
  Json out{{"policy", fate.policy}, {"recorded", recorded}, {"admitted", nullptr}, {"outcome", nullptr},
           {"reason", ""},          {"start_us", nullptr},  {"took_us", nullptr},  {"would_take_us", nullptr},
           {"device", nullptr},     {"batch", nullptr},     {"ahead", fate.ahead}};
  if (!fate.story) return out;
  const Json told = explain::to_json(*fate.story);
  const auto& request = fate.story->request;
  out["admitted"] =
      request.outcome != explain::Outcome::refused && request.outcome != explain::Outcome::failed;
  for (const char* same : {"outcome", "reason", "took_us", "would_take_us"}) out[same] = told[same];
  const auto& steps = fate.story->steps;
  const auto exec = std::ranges::find(steps, explain::Step::What::exec, &explain::Step::what);
  if (exec == steps.end()) return out;
  out["start_us"] = exec->begin / std::chrono::microseconds{1};
  out["device"] = told["device"];
  out["batch"] = told["batch"];
  return out;
}

void print_fates(const Json& fates) {
  fmt::print("\nWhat other policies would have done with it:\n{:<28}{:<11}{:>10}{:>10}{:>8}{:>7}{:>15}  {}\n",
             "policy", "outcome", "start ms", "took ms", "device", "batch", "would take ms", "reason");
  const auto ms = [](const Json& us) {
    return us.is_null() ? std::string("-") : fmt::format("{:.3f}", us.get<double>() / 1000);
  };
  const auto whole = [](const Json& number) {
    return number.is_null() ? std::string("-") : std::to_string(number.get<std::int64_t>());
  };
  for (const Json& fate : fates)
    fmt::print("{:<28}{:<11}{:>10}{:>10}{:>8}{:>7}{:>15}  {}\n",
               fate["policy"].get<std::string>() + (fate["recorded"].get<bool>() ? " (as recorded)" : ""),
               fate["outcome"].is_null() ? "unknown" : fate["outcome"].get<std::string>(),
               ms(fate["start_us"]), ms(fate["took_us"]), whole(fate["device"]), whole(fate["batch"]),
               ms(fate["would_take_us"]), fate["reason"].get<std::string>());
  fmt::print("\n{}", caveats);
}

std::optional<std::uint64_t> number_of(const std::string& text) {
  std::uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return n;
}

int explain_log(const ExplainArguments& arguments) {
  for (const std::string& policy : arguments.policies)
    if (const auto made = schedule::make_scheduler(policy); !made)
      return fail_explain(in_context("--policies", made.error()).error(), exit_usage);
  auto log = read_log(arguments.target);
  if (!log) return fail_explain(log.error());
  const explain::Decisions& decisions = (*log)->decisions;
  if (!(*log)->complete)
    fmt::print(stderr, "carillon explain: the log has no end: the process was killed, or still runs\n");
  if (!arguments.perfetto.empty()) {
    const std::string trace = explain::to_trace({.requests = decisions.requests(),
                                                 .actions = decisions.actions(),
                                                 .device_names = {},
                                                 .now = decisions.last()});
    if (auto written = write_trace(arguments.perfetto, trace); !written) return fail_explain(written.error());
  }
  if (arguments.request.empty()) {
    std::vector<Json> records;
    for (const explain::RequestFacts& request : decisions.requests()) {
      records.push_back(
          explain::to_short_json(explain::Story{.request = request, .device_name = {}, .last = {}}));
      records.back()["arrived_us"] =
          (request.arrival - decisions.requests().front().arrival) / std::chrono::microseconds{1};
    }
    Json summary{{"log", arguments.target}, {"scheduler", (*log)->scheduler}};
    summary.update(summary_of(records, records));
    if (arguments.json) {
      fmt::print("{}\n", summary.dump(2));
    } else {
      fmt::print("{}: {} requests under {}\n", arguments.target, records.size(), (*log)->scheduler);
      print_summary(summary);
    }
    return exit_success;
  }
  const auto number = number_of(arguments.request);
  if (!number || arguments.by_id)
    return fail_explain(
        {ErrorCode::invalid_argument,
         "--request '" + arguments.request +
             "': a log knows requests by its own numbers alone (log_request of a server's record)"},
        exit_usage);
  const explain::RequestFacts* const request = decisions.find(*number);
  if (request == nullptr)
    return fail_explain({ErrorCode::not_found, "the log has no request " + arguments.request + "; it has " +
                                                   std::to_string(decisions.requests().size())});
  const explain::Story story = decisions.story(*request);
  const auto fates = fates_of(arguments, **log, *request);
  if (!fates) return fail_explain(fates.error());
  Json told = Json::array();
  const auto thoughts = thoughts_of(arguments.target, request->number);
  if (!thoughts) return fail_explain(thoughts.error());
  const Json went_by = thoughts_json(*thoughts, request->arrival);
  for (const simulate::Fate& fate : *fates) told.push_back(fate_json(fate, fate.policy == (*log)->scheduler));
  if (arguments.json) {
    fmt::print("{}\n", Json{{"log", arguments.target},
                            {"scheduler", (*log)->scheduler},
                            {"request", explain::to_json(story)},
                            {"went_by", went_by},
                            {"policies", told},
                            {"note", caveats}}
                           .dump(2));
  } else {
    fmt::print("{}", explain::to_text(story));
    print_thoughts(went_by, (*log)->scheduler, thoughts->differs);
    print_fates(told);
  }
  return exit_success;
}

// --- From a server

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

int explain_server(const ExplainArguments& arguments) {
  if (!arguments.policies.empty())
    return fail_explain({ErrorCode::invalid_argument,
                         "--policies needs a log: what others would have done is simulated from all arrivals "
                         "('carillon serve --record')"},
                        exit_usage);
  AccessArguments access = arguments.access;
  if (!arguments.key_file.empty()) access.key = "@" + arguments.key_file;
  const auto get = [&](const std::string& url) { return http_get(url, access); };
  const auto failed = [](const Error& error) {
    return fail_explain(error, error.code == ErrorCode::invalid_argument ? exit_usage : exit_failure);
  };
  std::string base = arguments.target;
  while (base.ends_with('/')) base.pop_back();
  base += "/v2/carillon/";
  if (!arguments.perfetto.empty()) {
    const auto trace = get(base + "trace?seconds=" + std::to_string(arguments.seconds));
    if (!trace) return failed(trace.error());
    if (auto written = write_trace(arguments.perfetto, *trace); !written)
      return fail_explain(written.error());
  }
  if (!arguments.request.empty()) {
    const std::string query =
        fmt::format("?{}{}", arguments.by_id ? "by=id&" : "", arguments.json ? "format=json" : "format=text");
    const auto told = get(base + "requests/" + escaped(arguments.request) + query);
    if (!told) return failed(told.error());
    fmt::print("{}{}", *told, told->ends_with('\n') ? "" : "\n");
    return exit_success;
  }
  const auto listed = get(base + "requests?limit=1000");
  if (!listed) return failed(listed.error());
  try {
    const Json list = Json::parse(*listed);
    // Where most requests are answered, the last of these are older than the last of all.
    std::vector<Json> others;
    for (const char* outcome : {"refused", "failed"}) {
      const auto more = get(fmt::format("{}requests?outcome={}&limit={}", base, outcome, most_listed));
      if (!more) return failed(more.error());
      const Json last = Json::parse(*more);
      for (const Json& record : last.at("requests")) others.push_back(record);
    }
    const Json summary = summary_of(list.at("requests").get<std::vector<Json>>(), others);
    if (arguments.json) {
      fmt::print("{}\n", summary.dump(2));
    } else {
      fmt::print("the last {} of {} requests\n", list.at("requests").size(),
                 list.at("newest").get<std::uint64_t>());
      print_summary(summary);
    }
  } catch (const nlohmann::json::exception& wrong) {
    return fail_explain({ErrorCode::internal, "the server's list is not one: " + std::string(wrong.what())});
  }
  return exit_success;
}

// What a target that is no file looks like: an address without its scheme, or with one of gRPC. Empty:
// neither.
std::string meant_for_server(const std::string& target) {
  const auto scheme = target.find("://");
  const std::string rest = scheme == std::string::npos ? target : target.substr(scheme + 3);
  const auto address = parse_address(rest.substr(0, rest.find('/')));
  if (!address) return {};
  if (scheme != std::string::npos) return "a server is asked over HTTP, at http:// or https://";
  return rest.contains(':') ? "a server's address begins with http:// or https://, such as http://" + rest
                            : "";
}

int run_explain(const ExplainArguments& arguments) {
  if (arguments.target.starts_with("http://") || arguments.target.starts_with("https://"))
    return explain_server(arguments);
  std::error_code unknown;
  if (const std::string meant = meant_for_server(arguments.target);
      !meant.empty() && !std::filesystem::exists(arguments.target, unknown))
    return fail_explain({ErrorCode::invalid_argument, "there is no log '" + arguments.target + "'; " + meant},
                        exit_usage);
  return explain_log(arguments);
}

}  // namespace

void add_explain(CLI::App& program, int& status) {
  auto arguments = std::make_shared<ExplainArguments>();
  CLI::App& command = *program.add_subcommand(
      "explain",
      "Why a request was late, refused, or took what it took, and what other policies would have done");
  command
      .add_option("TARGET", arguments->target,
                  "A log of 'serve --record' or 'simulate --record', or a server: http://HOST:PORT or "
                  "https://HOST:PORT")
      ->required();
  command.add_option(
      "--request", arguments->request,
      "Of a log: the scheduler's number of the request; of a server: its number there, or the "
      "client's id. Without it: a table of all, and the numbers of the last 20 without a result");
  command.add_flag("--by-id", arguments->by_id,
                   "Of a server: --request is the client's id, although in digits");
  command
      .add_option("--policies", arguments->policies,
                  "Of a log: what these would have done with the request; without it, all of them do")
      ->delimiter(',');
  command.add_option("--perfetto", arguments->perfetto,
                     "Write what devices did to this file, for ui.perfetto.dev (Chrome trace events)");
  command.add_option("--seconds", arguments->seconds, "Of a server: how far back --perfetto goes")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  add_access_options(command, arguments->access);
  command.add_option("--key-file", arguments->key_file, "The same as --key @FILE")
      ->excludes(command.get_option("--key"));
  command.add_flag("--json", arguments->json, "Print one JSON object");
  command.footer(
      "What other policies would have done is simulated from the log's arrivals and measured times: "
      "docs/explain.md\n"
      "says what that can and cannot know.\n"
      "Examples:\n"
      "  carillon explain run.log\n"
      "  carillon explain run.log --request 4711 --policies clockwork,symphony,fcfs\n"
      "  carillon explain run.log --perfetto run.json\n"
      "  carillon explain http://localhost:8000 --request 4711\n"
      "  carillon explain https://host:8003 --ca ca.pem --key @secret --request 4711");
  command.callback([arguments, &status] { status = run_explain(*arguments); });
}

}  // namespace carillon::cli
