#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include "carillon/base/files.h"
#include "carillon/cli/access_options.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/load/run.h"
#include "carillon/cli/seed_option.h"
#include "carillon/workload/clients.h"
#include "carillon/workload/scenario.h"

namespace carillon::cli {
namespace {

struct LoadArguments {
  std::string url;
  AccessArguments access;
  std::vector<std::string> models;
  std::string scenario;
  double rate = 10;
  double deadline_ms = 0;
  std::string process = "poisson";
  double duration_s = 10;
  double drain_s = 10;
  double warmup_s = 0;
  double slack_ms = 0;
  std::uint64_t seed = 1;
  int rows = 1;
  std::string length;
  int connections = 256;
  bool no_timeout = false;
  bool allow_failures = false;
  bool json = false;
  std::string csv;
};

volatile std::sig_atomic_t load_interrupted = 0;

// Extents of what varies in a model's inputs: at most this many in a stream's requests, each with inputs of
// its own in memory.
constexpr std::int64_t most_lengths = 64;
constexpr std::int64_t longest = 1 << 20;

// "L", or "A-B": up to most_lengths even steps from A to B.
Result<std::vector<std::int64_t>> parse_lengths(const std::string& text) {
  std::int64_t first = 0, last = 0;
  const char* const end = text.data() + text.size();
  auto read = std::from_chars(text.data(), end, first);
  last = first;
  if (read.ec == std::errc{} && read.ptr != end && *read.ptr == '-')
    read = std::from_chars(read.ptr + 1, end, last);
  if (read.ec != std::errc{} || read.ptr != end || first < 1 || last < first || last > longest)
    return invalid("length '" + text + "' is not understood; write L or A-B, from 1 to " +
                   std::to_string(longest));
  const std::int64_t steps = std::min(last - first + 1, most_lengths);
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < steps; ++i)
    out.push_back(steps == 1 ? first : first + (last - first) * i / (steps - 1));
  return out;
}

// "NAME", "NAME,rate=R,deadline=MS": what one stream sends, where the command line's own values are the
// default.
Result<Stream> parse_stream(const std::string& text, const LoadArguments& arguments) {
  const auto wrong = [&](const std::string& part) {
    return invalid("--model " + text + ": '" + part +
                   "' is not understood; write NAME, NAME,rate=R, or more " +
                   "of rate=R, deadline=MS, priority=P, app=APPLICATION and length=L or length=A-B");
  };
  Stream stream;
  std::string name, application, length = arguments.length;
  stream.rate = arguments.rate;
  double deadline_ms = arguments.deadline_ms;
  std::uint32_t priority = 0;
  std::size_t begin = 0;
  for (std::size_t part = 0; begin <= text.size(); ++part) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    if (part == 0) {
      name = item;
      continue;
    }
    const auto equals = item.find('=');
    if (equals == std::string::npos) return wrong(item);
    if (item.starts_with("app=") && item.size() > 4) {
      application = item.substr(4);
      continue;
    }
    if (item.starts_with("length=")) {
      length = item.substr(7);
      continue;
    }
    if (item.starts_with("priority=")) {
      const char* const last = item.data() + item.size();
      const auto read = std::from_chars(item.data() + 9, last, priority);
      if (read.ec != std::errc{} || read.ptr != last) return wrong(item);
      continue;
    }
    char* rest = nullptr;
    const std::string value = item.substr(equals + 1);
    const double number = std::strtod(value.c_str(), &rest);
    if (value.empty() || *rest != '\0' || !(number >= 0)) return wrong(item);
    if (item.starts_with("rate="))
      stream.rate = number;
    else if (item.starts_with("deadline="))
      deadline_ms = number;
    else
      return wrong(item);
  }
  if (name.empty()) return wrong("");
  stream.name = application.empty() ? name : name + "/" + application;
  std::vector<std::int64_t> lengths{0};
  if (!length.empty()) {
    auto parsed = parse_lengths(length);
    if (!parsed) return in_context("--model " + text, parsed.error());
    lengths = std::move(*parsed);
  }
  for (const std::int64_t each : lengths)
    stream.whats.push_back(
        {.model = name, .application = application, .priority = priority, .length = each, .inputs = {}});
  const auto arrivals = workload::parse_arrivals(arguments.process);
  if (!arrivals) return in_context("--process", arrivals.error());
  stream.arrivals = *arrivals;
  if (stream.arrivals.kind != workload::ArrivalKind::closed && !(stream.rate > 0 && stream.rate <= 1e6))
    return invalid("--model " + text + ": a rate is above 0 and at most 1000000 requests a second");
  if (!(deadline_ms >= 0 && deadline_ms <= 86'400'000))
    return invalid("--model " + text + ": a deadline is from 0 (none) to 86400000 ms");
  stream.deadline = from_ms(deadline_ms);
  return stream;
}

// The streams and arrivals of a scenario, the very ones that it gives in the simulator.
Result<std::vector<Stream>> streams_of(LoadArguments& arguments, RunOptions& options) {
  const auto scenario = workload::read_scenario(arguments.scenario);
  if (!scenario) return std::unexpected(scenario.error());
  std::vector<Stream> streams;
  for (const workload::ScenarioModel& model : scenario->models) {
    if (model.process.value_or(scenario->process).kind == workload::ArrivalKind::closed)
      return invalid("--scenario " + arguments.scenario + ": the clients of '" + model.name +
                     "' wait for answers, so its arrivals are not known beforehand; send it with --model " +
                     model.name + " --process closed:N");
    if (model.cls != Class::normal)
      return invalid("--scenario " + arguments.scenario + ": model '" + model.name +
                     "' has a class, which cannot be sent yet");
    if (!model.slos.empty())
      return invalid("--scenario " + arguments.scenario + ": model '" + model.name +
                     "' has several SLOs, which cannot be sent yet");
    if (streams.size() == 10'000)
      return invalid("--scenario " + arguments.scenario + ": more than 10000 models");
    Stream stream;
    stream.name = model.name;
    stream.whats.push_back({.model = model.name, .application = {}, .length = 0, .inputs = {}});
    stream.deadline = model.slo == Duration::max() ? Duration{0} : model.slo;
    streams.push_back(std::move(stream));
  }
  arguments.duration_s = to_seconds(scenario->duration);
  arguments.warmup_s = to_seconds(scenario->warmup);
  arguments.process = "scenario";
  arguments.seed = scenario->seed;
  workload::Clients clients(*scenario);
  while (clients.next_at() != TimePoint::max()) {
    const Duration at = clients.next_at().time_since_epoch();
    options.planned.emplace_back(at, clients.take());
    if (options.planned.size() > 50'000'000)
      return invalid("--scenario " + arguments.scenario + ": more than 50 million requests");
  }
  if (options.planned.empty()) return invalid("--scenario " + arguments.scenario + ": no request comes");
  return streams;
}

// `what` names its model and length, and gets inputs for them.
Result<> fill_template(const Metadata& metadata, int rows, std::uint64_t seed, Template& what) {
  const std::string& model = what.model;
  for (const auto& input : metadata.inputs) {
    InputSpec spec{input.name, input.datatype, input.shape, {}};
    std::int64_t elements = 1;
    for (std::size_t i = 0; i < spec.shape.size(); ++i) {
      if (spec.shape[i] < 0 && i > 0 && what.length == 0)
        return invalid("input '" + spec.name + "' of model '" + model +
                       "' varies in length; say which to send with --length L or A-B");
      if (spec.shape[i] < 0) spec.shape[i] = i == 0 ? rows : what.length;
      elements *= spec.shape[i];
      if (elements < 0 || elements > (std::int64_t{1} << 30))
        return invalid("input '" + spec.name + "' of model '" + model + "' is too large to make data for");
    }
    auto data = make_data(spec.datatype, elements, seed++);
    if (!data) return in_context("input '" + spec.name + "' of model '" + model + "'", data.error());
    spec.data = std::move(*data);
    what.inputs.push_back(std::move(spec));
  }
  return {};
}

std::vector<Summary> summarize(const RunResult& run, const std::vector<Stream>& streams, Duration warmup) {
  std::vector<Summary> summaries(streams.size() + 1);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    summaries[i].name = streams[i].name;
    summaries[i].deadline = streams[i].deadline;
    summaries[i].first_error = run.first_errors[i];
  }
  Summary& all = summaries.back();
  all.name = "all";
  for (const Answered& answer : run.answers) {
    if (answer.planned < warmup) continue;
    summaries[answer.model].add(answer);
    all.deadline = streams[answer.model].deadline;  // refusals are judged by their own stream's deadline
    all.add(answer);
  }
  return summaries;
}

// Whose deadline a stream's requests had, for people. `told`: the server was.
std::string deadline_text(const Stream& stream, bool told, const LoadArguments& arguments) {
  const Duration deadline = stream.deadline;
  if (deadline <= Duration{0})
    return (stream.slo_ms
                ? fmt::format("{:g} ms, the model's own (slo_ms of its config)", *stream.slo_ms)
                : std::string("the server's --default-deadline, where it has one: the model has none")) +
           "; answers count as on time whenever they come";
  const std::string whose = arguments.scenario.empty() ? "this command line" : arguments.scenario;
  return fmt::format("{:g} ms, of {}{}", to_ms(deadline), whose,
                     told ? "" : "; the server was not told, and went by its own");
}

nlohmann::ordered_json summary_json(Summary& summary, double seconds) {
  const auto at = [](std::vector<Duration>& values, double q) { return to_ms(percentile(values, q)); };
  nlohmann::ordered_json json;
  json["name"] = summary.name;
  json["deadline_ms"] = to_ms(summary.deadline);
  json["sent"] = summary.sent;
  json["on_time"] = summary.on_time;
  json["late"] = summary.late;
  json["refused"] = summary.refused;
  json["refused_before_deadline"] = summary.refused_in_time;
  json["failed"] = summary.failed;
  json["unanswered"] = summary.unanswered;
  json["offered_rps"] = static_cast<double>(summary.sent) / seconds;
  json["goodput_rps"] = static_cast<double>(summary.on_time) / seconds;
  json["on_time_rate"] =
      summary.sent == 0 ? 0.0 : static_cast<double>(summary.on_time) / static_cast<double>(summary.sent);
  json["p50_ms"] = at(summary.latencies, 0.5);
  json["p90_ms"] = at(summary.latencies, 0.9);
  json["p99_ms"] = at(summary.latencies, 0.99);
  json["p999_ms"] = at(summary.latencies, 0.999);
  json["max_ms"] = at(summary.latencies, 1);
  json["refusal_p50_ms"] = at(summary.refusal_latencies, 0.5);
  json["refusal_p99_ms"] = at(summary.refusal_latencies, 0.99);
  if (!summary.first_error.empty()) json["first_error"] = summary.first_error;
  return json;
}

void print_summaries(std::vector<Summary>& summaries, const std::vector<Stream>& streams, double seconds,
                     const LoadArguments& arguments) {
  fmt::print("{:<24}{:>9}{:>9}{:>7}{:>9}{:>8}{:>11}{:>10}{:>10}{:>10}\n", "model", "sent", "on time", "late",
             "refused", "failed", "goodput/s", "p50 ms", "p99 ms", "max ms");
  for (Summary& s : summaries) {
    if (&s == &summaries.back() && summaries.size() == 2) break;  // one model is all
    fmt::print("{:<24}{:>9}{:>9}{:>7}{:>9}{:>8}{:>11.1f}{:>10.2f}{:>10.2f}{:>10.2f}\n", s.name, s.sent,
               s.on_time, s.late, s.refused, s.failed + s.unanswered,
               static_cast<double>(s.on_time) / seconds, to_ms(percentile(s.latencies, 0.5)),
               to_ms(percentile(s.latencies, 0.99)), to_ms(percentile(s.latencies, 1)));
  }
  for (const Summary& s : summaries)
    if (&s != &summaries.back())
      fmt::print("deadline of {}: {}\n", s.name,
                 deadline_text(streams[static_cast<std::size_t>(&s - summaries.data())],
                               !arguments.no_timeout, arguments));
  for (const Summary& s : summaries)
    if (!s.first_error.empty()) fmt::print("first failure of {}: {}\n", s.name, s.first_error);
}

Result<> write_answers(const std::string& file, const RunResult& run, const std::vector<Stream>& streams) {
  static constexpr const char* names[] = {"on_time", "late", "refused", "failed", "unanswered"};
  std::string out = "model,outcome,planned_ms,sent_ms,answered_ms\n";
  for (const Answered& a : run.answers)
    out +=
        fmt::format("{},{},{:.4f},{:.4f},{:.4f}\n", streams[a.model].name, names[static_cast<int>(a.outcome)],
                    to_ms(a.planned), to_ms(a.sent), to_ms(a.answered));
  if (auto written = write_file(file, out); !written) return in_context("--csv", written.error());
  return {};
}

int fail_load(const Error& error) {
  fmt::print(stderr, "carillon load: {}\n", error.message);
  return error.code == ErrorCode::invalid_argument ? exit_usage : exit_failure;
}

int run_load(LoadArguments arguments) {
  RunOptions options;
  std::vector<Stream> streams;
  if (!arguments.scenario.empty()) {
    auto from_scenario = streams_of(arguments, options);
    if (!from_scenario) return fail_load(from_scenario.error());
    streams = std::move(*from_scenario);
  } else if (arguments.models.empty()) {
    return fail_load({ErrorCode::invalid_argument, "--model or --scenario must say what to send"});
  }
  if (arguments.warmup_s >= arguments.duration_s)
    return fail_load({ErrorCode::invalid_argument,
                      "--warmup must be shorter than --duration: nothing would be left to tell"});
  const auto address = parse_address(arguments.url);
  if (!address) return fail_load(address.error());
  const auto access = read_access(arguments.access, *address);
  if (!access) return fail_load(access.error());
  const auto client = address->protocol == Protocol::http
                          ? make_http_client(*address, *access, arguments.connections)
                          : make_grpc_client(*address, *access);
  for (const std::string& text : arguments.models) {
    auto stream = parse_stream(text, arguments);
    if (!stream) return fail_load(stream.error());
    streams.push_back(std::move(*stream));
  }
  for (Stream& stream : streams) {
    const std::string& model = stream.whats.front().model;
    const auto metadata = client->metadata(model);
    Result<> filled;
    if (metadata) stream.slo_ms = metadata->slo_ms;
    if (!metadata) filled = in_context("model '" + model + "'", metadata.error());
    for (Template& what : stream.whats)
      if (filled) filled = fill_template(*metadata, arguments.rows, arguments.seed, what);
    if (!filled) {
      fail_load(filled.error());
      return exit_failure;
    }
  }
  options.duration = from_seconds(arguments.duration_s);
  options.drain = from_seconds(arguments.drain_s);
  options.seed = arguments.seed;
  options.send_deadline = !arguments.no_timeout;
  options.slack = from_ms(arguments.slack_ms);
  const bool terminal = isatty(STDERR_FILENO) != 0;
  std::signal(SIGINT, [](int) { load_interrupted = 1; });
  Duration last_line{-1h};
  const auto progress = [&](const Progress& p) {
    // A terminal gets a live line; a log gets one every five seconds.
    if (terminal || p.elapsed - last_line >= 5s) {
      last_line = p.elapsed;
      fmt::print(stderr, "{}{:6.1f} s  sent {}  on time {}  late {}  refused {}  failed {}{}",
                 terminal ? "\r" : "", to_seconds(p.elapsed), p.sent, p.on_time, p.late, p.refused, p.failed,
                 terminal ? "   " : "\n");
      std::fflush(stderr);
    }
    return load_interrupted == 0;
  };
  const RunResult result = run_load(*client, streams, options, progress);
  if (terminal) fmt::print(stderr, "\r{:<90}\r", "");

  const double sent_for = result.interrupted && !result.answers.empty()
                              ? to_seconds(result.answers.back().planned)
                              : arguments.duration_s;
  const double seconds = std::max(1e-9, sent_for - arguments.warmup_s);
  if (!arguments.csv.empty())
    if (auto written = write_answers(arguments.csv, result, streams); !written)
      return fail_load(written.error());
  auto summaries = summarize(result, streams, from_seconds(arguments.warmup_s));
  if (arguments.json) {
    Summary& all = summaries.back();
    nlohmann::ordered_json json = summary_json(all, seconds);
    json.erase("name");
    json.erase("deadline_ms");
    json["url"] = arguments.url;
    json["process"] = arguments.process;
    json["seed"] = arguments.seed;
    json["duration_s"] = arguments.duration_s;
    json["warmup_s"] = arguments.warmup_s;
    json["models"] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < streams.size(); ++i)
      json["models"].push_back(summary_json(summaries[i], seconds));
    for (std::size_t i = 0; i < streams.size(); ++i)
      json["models"][i]["deadline_is"] = deadline_text(streams[i], !arguments.no_timeout, arguments);
    fmt::print("{}\n", json.dump(2));
  } else {
    print_summaries(summaries, streams, seconds, arguments);
  }
  // Refusals are answers; where there was none at all, whoever started this is to notice.
  const Summary& all = summaries.back();
  if (all.sent == 0 || all.failed + all.unanswered < all.sent) return exit_success;
  fmt::print(stderr, "carillon load: all {} requests failed{}\n", all.sent,
             all.failed == 0 ? ": none was answered" : "");
  return arguments.allow_failures ? exit_success : exit_failure;
}

}  // namespace

void add_load(CLI::App& program, int& status) {
  auto arguments = std::make_shared<LoadArguments>();
  CLI::App& command =
      *program.add_subcommand("load", "Sends load to a live server and tells how it was answered");
  command.add_option("URL", arguments->url, "http://HOST:PORT or grpc://HOST:PORT; https and grpcs over TLS")
      ->required();
  add_access_options(command, arguments->access);
  command.add_option(
      "--model", arguments->models,
      "Model to send to; repeat for a mixture. NAME,rate=R,deadline=MS,length=A-B overrides these for one; "
      "NAME,app=APPLICATION names the application that its requests come from, NAME,priority=P their "
      "priority "
      "(1: real-time, where the model's config or the key allows it)");
  auto* scenario = command.add_option(
      "--scenario", arguments->scenario,
      "Sends what a scenario file says: the same arrivals, deadlines and times as 'carillon simulate'");
  command.add_option("--rate", arguments->rate, "Requests a second, for each model")->capture_default_str();
  command
      .add_option("--deadline", arguments->deadline_ms,
                  "Milliseconds from the planned send time by which an answer is worth having; 0: none")
      ->capture_default_str();
  command.add_option("--process", arguments->process, "poisson, gamma:SHAPE, uniform or closed:CLIENTS")
      ->capture_default_str();
  command.add_option("--duration", arguments->duration_s, "Seconds to send for")
      ->check(CLI::Range(0.01, 86400.0))
      ->capture_default_str();
  command.add_option("--drain", arguments->drain_s, "Seconds to wait for answers afterwards")
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
  command
      .add_option("--warmup", arguments->warmup_s,
                  "Seconds at the start whose requests are left out of the figures")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command
      .add_option("--slack", arguments->slack_ms,
                  "Milliseconds kept back from the time-out that the server is told")
      ->check(CLI::Range(0.0, 60000.0))
      ->capture_default_str();
  command.add_option("--seed", arguments->seed, "Of the arrivals and the inputs")
      ->check(check_seed)
      ->capture_default_str();
  command.add_option("--rows", arguments->rows, "Rows of a request (its batch dimension)")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--length", arguments->length,
                     "L, or A-B for lengths drawn evenly between the two, of inputs that vary");
  command.add_option("--connections", arguments->connections, "The most HTTP connections")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command.add_flag("--no-timeout", arguments->no_timeout,
                   "Judge answers by the deadline without telling the server");
  command.add_flag("--allow-failures", arguments->allow_failures,
                   "End with status 0 although every request failed");
  for (const char* own : {"--model", "--rate", "--deadline", "--process", "--duration", "--warmup", "--seed"})
    scenario->excludes(command.get_option(own));
  command.add_flag("--json", arguments->json, "Print one JSON object");
  command.add_option("--csv", arguments->csv, "Write a line for every request to this file");
  command.footer(
      "Open-loop arrivals do not wait for answers, and latency counts from the planned send time.\n"
      "Ends with status 1 where every request failed (refusals are answers), unless --allow-failures is "
      "given.\n"
      "Examples:\n"
      "  carillon load http://127.0.0.1:8000 --model resnet50 --rate 20 --deadline 200\n"
      "  carillon load grpc://127.0.0.1:8001 --model tiny_mlp --process closed:64 --duration 5 --json\n"
      "  carillon load http://127.0.0.1:8000 --model resnet50,rate=10,deadline=300 --model "
      "mobilenetv2,rate=80\n"
      "  carillon load http://127.0.0.1:8000 --model varlen_encoder,app=chat,length=8-32,rate=80 --model "
      "varlen_encoder,app=mail,length=128-256,rate=20 --deadline 30\n"
      "  carillon load grpc://127.0.0.1:8001 --model mobilenetv2,priority=1,rate=10 --process uniform\n"
      "  carillon load http://127.0.0.1:8000 --scenario day.toml --json\n"
      "  carillon load grpcs://host:8001 --ca ca.pem --cert client.pem --cert-key client.key --key @secret "
      "--model "
      "resnet50");
  command.callback([arguments, &status] { status = run_load(*arguments); });
}

}  // namespace carillon::cli
