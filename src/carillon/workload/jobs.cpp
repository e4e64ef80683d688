#include "carillon/workload/jobs.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>
#include <utility>

#include <toml++/toml.h>

#include "carillon/base/files.h"
#include "carillon/base/random.h"
#include "carillon/workload/scenario_files.h"
#include "carillon/workload/section.h"

namespace carillon::workload {
namespace {

constexpr std::size_t most_jobs = 100'000;
constexpr std::uint64_t most_iterations = 1'000'000'000;  // of all jobs: what a run can take is bounded

// What a row of a CSV file says: of a profile of workloads, or of a trace of jobs.
struct JobRow {
  std::string name, model, row;
  std::optional<double> batch, iteration_ms, startup_s, peak_mb, persistent_mb, ephemeral_mb, utilization;
  std::optional<double> arrival_s, duration_s, iterations, weight;
};

constexpr std::array<std::pair<std::string_view, std::string JobRow::*>, 3> text_columns{
    {{"name", &JobRow::name}, {"model", &JobRow::model}, {"row", &JobRow::row}}};
constexpr std::array<std::pair<std::string_view, std::optional<double> JobRow::*>, 11> number_columns{
    {{"batch", &JobRow::batch},
     {"iteration_ms", &JobRow::iteration_ms},
     {"startup_s", &JobRow::startup_s},
     {"peak_mb", &JobRow::peak_mb},
     {"persistent_mb", &JobRow::persistent_mb},
     {"ephemeral_mb", &JobRow::ephemeral_mb},
     {"utilization", &JobRow::utilization},
     {"arrival_s", &JobRow::arrival_s},
     {"duration_s", &JobRow::duration_s},
     {"iterations", &JobRow::iterations},
     {"weight", &JobRow::weight}}};

// Which column of `header` is what; a Problem for one that is not known, or there twice.
void check_columns(const std::vector<std::string>& header, const std::filesystem::path& file) {
  std::string all;
  std::set<std::string_view> known;
  for (const auto& [name, member] : text_columns) known.insert(name);
  for (const auto& [name, member] : number_columns) known.insert(name);
  for (const std::string_view name : known) all += (all.empty() ? "" : ", ") + std::string(name);
  for (const std::string& column : header)
    if (known.erase(column) == 0)
      throw Problem{file.string() + ":1: '" + column + "' is no column of jobs, or there twice; there are " +
                    all};
}

// Rows are named by `name`, else by model and batch ("resnet50_50"), or by the model alone.
std::vector<JobRow> read_job_csv(const std::filesystem::path& file, const char* what) {
  std::ifstream in = open_or_throw("the " + std::string(what), file);
  std::string line;
  if (!std::getline(in, line))
    throw Problem{"cannot read the " + std::string(what) + " '" + file.string() +
                  "': it has no first line with columns"};
  const auto header = csv_cells(line);
  check_columns(header, file);
  std::vector<JobRow> rows;
  for (std::size_t n = 2; std::getline(in, line); ++n) {
    if (line.empty()) continue;
    const auto cells = csv_cells(line);
    const auto at = [&] { return file.string() + ":" + std::to_string(n) + ": "; };
    if (cells.size() != header.size())
      throw Problem{at() + std::to_string(cells.size()) + " cells, but the header has " +
                    std::to_string(header.size())};
    if (rows.size() == most_jobs) throw Problem{at() + "more than " + std::to_string(most_jobs) + " rows"};
    JobRow row;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (cells[i].empty()) continue;  // not known
      for (const auto& [name, member] : text_columns)
        if (header[i] == name) row.*member = cells[i];
      for (const auto& [name, member] : number_columns)
        if (header[i] == name) row.*member = csv_number(cells[i], file, n);
    }
    if (row.name.empty() && !row.model.empty() && row.batch) {
      std::ostringstream text;
      text << row.model << '_' << *row.batch;
      row.name = text.str();
    } else if (row.name.empty()) {
      row.name = row.model;
    }
    rows.push_back(std::move(row));
  }
  if (in.bad())
    throw Problem{"cannot read the " + std::string(what) + " '" + file.string() +
                  "': " + std::generic_category().message(errno)};
  if (rows.empty()) throw Problem{file.string() + ": the " + what + " has no rows"};
  return rows;
}

// A value of a job: of its own key, else of its row in a trace, else in a profile.
struct Sources {
  const JobRow* traced = nullptr;
  const JobRow* profiled = nullptr;

  std::optional<double> get(std::optional<double> JobRow::*member) const {
    if (traced != nullptr && (traced->*member)) return traced->*member;
    if (profiled != nullptr && (profiled->*member)) return profiled->*member;
    return std::nullopt;
  }
};

std::optional<double> optional_number(Section& section, const char* key, double low, double high) {
  if (!section.has(key)) return std::nullopt;
  return section.number(key, 0, low, high);
}

std::uint64_t whole_number(Section& section, const char* key, std::int64_t low) {
  return static_cast<std::uint64_t>(section.whole(key, low, low, static_cast<std::int64_t>(most_iterations)));
}

// How long the copies of a [[jobs]] run.
struct Durations {
  enum class Kind : std::uint8_t { none, iterations, fixed, lognormal } kind{};
  std::uint64_t iterations = 1;
  double seconds = 0;  // fixed; of lognormal: the median, or the sum of all
  double sigma = 0;
  bool total = false;
};

Durations read_durations(Section& job) {
  Durations d;
  if (job.has("iterations")) {
    if (job.has("duration_s"))
      job.wrong(job.find("iterations"), "a job has iterations or duration_s, not both");
    d.kind = Durations::Kind::iterations;
    d.iterations = whole_number(job, "iterations", 1);
  } else if (const toml::node* node = job.find("duration_s"); node != nullptr && node->is_table()) {
    Section drawn(*node->as_table(), "duration_s", job.file());
    drawn.knows({"median", "total", "sigma"});
    d.kind = Durations::Kind::lognormal;
    d.total = drawn.has("total");
    if (d.total == drawn.has("median"))
      drawn.wrong(node, "duration_s as a table is { median, sigma } or { total, sigma } (lognormal)");
    d.seconds = drawn.number(d.total ? "total" : "median", 1, 1e-6, 1e9);
    d.sigma = drawn.number("sigma", 1, 0, 10);
    drawn.done();
  } else if (node != nullptr) {
    d.kind = Durations::Kind::fixed;
    d.seconds = job.number("duration_s", 1, 1e-6, 1e9);
  }
  return d;
}

std::vector<double> draw_durations(const Durations& d, std::size_t count, Random random) {
  std::vector<double> seconds(count, d.seconds);
  if (d.kind != Durations::Kind::lognormal) return seconds;
  double sum = 0;
  for (double& s : seconds) sum += s = std::exp(d.sigma * random.normal());
  const double scale = d.total ? d.seconds / sum : d.seconds;
  for (double& s : seconds) s *= scale;
  return seconds;
}

// When the copies of a [[jobs]] come, ascending but for a list.
std::vector<Duration> read_arrivals(Section& job, std::size_t count, Random random) {
  std::vector<Duration> at;
  const toml::node* list = job.find("arrival_s");
  if (list != nullptr && list->is_array()) {
    if (job.has("arrivals")) job.wrong(list, "arrival_s as a list and arrivals do not go together");
    for (const toml::node& node : *list->as_array()) {
      const auto value = node.value<double>();
      if (!node.is_number() || !value || !(*value >= 0 && *value <= 1e9))
        job.wrong(&node, job.describe("arrival_s") + " as a list must have numbers from 0 to 1e+09");
      at.push_back(from_seconds(*value));
    }
    if (at.size() != count)
      job.wrong(list, job.describe("arrival_s") + " has " + std::to_string(at.size()) + " times for " +
                          std::to_string(count) + " jobs; it needs one for each copy");
    return at;
  }
  const Duration first = from_seconds(job.number("arrival_s", 0, 0, 1e9));
  const toml::node* node = job.find("arrivals");
  if (node == nullptr) return std::vector<Duration>(count, first);
  if (!node->is_table()) job.wrong(node, "arrivals must be { over_s } or { process, rate } (jobs a second)");
  Section arrivals(*node->as_table(), "arrivals", job.file());
  arrivals.knows({"over_s", "process", "rate"});
  if (arrivals.has("over_s")) {
    if (arrivals.has("process") || arrivals.has("rate"))
      arrivals.wrong(node, "arrivals: over_s does not go with process and rate");
    const double over = arrivals.number("over_s", 0, 0, 1e9);
    for (std::size_t i = 0; i < count; ++i) at.push_back(first + from_seconds(over * random.uniform()));
    std::sort(at.begin(), at.end());
  } else {
    if (!arrivals.has("rate")) arrivals.wrong(node, "arrivals must be { over_s } or { process, rate }");
    const auto spec = parse_arrivals(arrivals.text("process", "poisson"));
    if (!spec) arrivals.wrong(arrivals.find("process"), "arrivals.process: " + spec.error().message);
    if (spec->kind == ArrivalKind::closed)
      arrivals.wrong(arrivals.find("process"),
                     "jobs do not come in a closed loop; write poisson, gamma:SHAPE "
                     "or uniform");
    ArrivalProcess process(*spec, arrivals.number("rate", 1, 1e-6, 1e6), random.bits());
    Duration when = first;
    for (std::size_t i = 0; i < count; ++i) at.push_back(when += process.next_gap());
  }
  arrivals.done();
  return at;
}

void read_known(Section& job, Job& base) {
  const toml::node* node = job.find("known");
  if (node == nullptr) return;
  base.tells_remaining = base.tells_memory = false;
  const std::string right = job.describe("known") + " must be a list of \"remaining\" and \"memory\"";
  if (!node->is_array()) job.wrong(node, right);
  for (const toml::node& what : *node->as_array()) {
    const auto text = what.value_exact<std::string>();
    if (text == "remaining")
      base.tells_remaining = true;
    else if (text == "memory")
      base.tells_memory = true;
    else
      job.wrong(&what, right);
  }
}

void read_drift(Section& job, Job& base) {
  const toml::node* node = job.find("drift");
  if (node == nullptr) return;
  const std::string right = job.describe("drift") +
                            " must be a list of [iteration, factor], ascending, "
                            "factors from 0.001 to 1000";
  if (!node->is_array() || node->as_array()->empty() || node->as_array()->size() > 1000)
    job.wrong(node, right);
  for (const toml::node& step : *node->as_array()) {
    const toml::array* pair = step.as_array();
    const bool two = pair != nullptr && pair->size() == 2;
    const auto after = two ? (*pair)[0].value_exact<std::int64_t>() : std::nullopt;
    const auto factor = two ? (*pair)[1].value<double>() : std::nullopt;
    if (!after || *after < 0 || !factor || !(*factor >= 1e-3 && *factor <= 1e3)) job.wrong(&step, right);
    const auto from = static_cast<std::uint64_t>(*after);
    if (!base.drift.empty() && from <= base.drift.back().after) job.wrong(&step, right);
    base.drift.push_back({from, *factor});
  }
}

// What goes wrong with it, and what it waits for.
void read_faults(Section& job, Job& base) {
  if (job.has("dies_after")) base.dies_after = whole_number(job, "dies_after", 0);
  if (job.has("hangs_after")) base.hangs_after = whole_number(job, "hangs_after", 0);
  if (const toml::node* node = job.find("grows")) {
    if (!node->is_table()) job.wrong(node, "grows must be { after, times }");
    Section grows(*node->as_table(), "grows", job.file());
    base.grows = JobGrowth{whole_number(grows, "after", 0), grows.number("times", 10, 0, 1e6)};
    grows.done();
  }
  if (const toml::node* node = job.find("requests")) {
    if (!node->is_table()) job.wrong(node, "requests must be { per_s, process }");
    Section requests(*node->as_table(), "requests", job.file());
    const auto spec = parse_arrivals(requests.text("process", "poisson"));
    if (!spec) requests.wrong(requests.find("process"), "requests.process: " + spec.error().message);
    if (spec->kind == ArrivalKind::closed)
      requests.wrong(requests.find("process"), "requests.process must be poisson, gamma:SHAPE or uniform");
    base.requests = JobRequests{*spec, requests.number("per_s", 1, 1e-6, 1e6)};
    requests.done();
  }
}

Bytes from_mb(double mb) {
  return Bytes{static_cast<std::uint64_t>(std::round(mb * 1e6))};
}

// The memory of a job by its keys and rows.
void set_memory(Section& table, const Sources& from, Job& job) {
  const auto mb = [&](std::optional<double> JobRow::*member) -> std::optional<Bytes> {
    const auto value = from.get(member);
    return value ? std::optional(from_mb(*value)) : std::nullopt;
  };
  if (table.has("ephemeral") && table.has("peak"))
    table.wrong(table.find("peak"), "a job has ephemeral or peak (persistent and ephemeral), not both");
  const auto own = table.bytes("persistent");
  const auto persistent = own ? own : mb(&JobRow::persistent_mb);
  auto ephemeral = table.bytes("ephemeral");
  auto peak = table.bytes("peak");
  if (!ephemeral && !peak) {
    ephemeral = mb(&JobRow::ephemeral_mb);
    if (!ephemeral) peak = mb(&JobRow::peak_mb);
  }
  if (!persistent || (!ephemeral && !peak))
    table.wrong(nullptr, "job '" + job.name +
                             "' needs persistent, and ephemeral or peak, such as \"200 MB\" (or a row of csv "
                             "that has them)");
  if (!ephemeral && *peak < *persistent)
    table.wrong(table.find("peak"), "job '" + job.name + "': its peak (" + to_text(*peak) +
                                        ") is below what stays (" + to_text(*persistent) + ")");
  job.persistent = *persistent;
  job.ephemeral = ephemeral ? *ephemeral : *peak - *persistent;
}

struct RowChoice {
  std::vector<JobRow> rows;
  const JobRow* fixed = nullptr;

  const JobRow* find(const std::string& name) const {
    const auto found = std::ranges::find(rows, name, &JobRow::name);
    return found == rows.end() ? nullptr : &*found;
  }
};

// One [[jobs]].
void read_table(Section table, Random random, Jobs& jobs) {
  Random for_rows = random.split(), for_durations = random.split(), for_arrivals = random.split();
  table.knows({"name",       "model",      "copies",           "csv",
               "row",        "trace",      "arrival_s",        "arrivals",
               "iterations", "duration_s", "iteration_ms",     "startup_s",
               "starts",     "persistent", "ephemeral",        "peak",
               "weight",     "known",      "remaining_factor", "utilization",
               "noise",      "drift",      "dies_after",       "hangs_after",
               "grows",      "requests"});
  Job base;
  RowChoice choice;
  if (table.has("csv")) {
    const std::string name = table.text("csv", "");
    choice.rows = read_job_csv(beside(table.file(), name), "profile");
    if (table.has("row")) {
      const std::string wanted = table.text("row", "");
      choice.fixed = choice.find(wanted);
      if (choice.fixed == nullptr)
        table.wrong(table.find("row"), "'" + name + "' has no row '" + wanted + "'");
    }
  } else if (table.has("row")) {
    table.wrong(table.find("row"), "row needs csv");
  }
  std::vector<JobRow> trace;
  if (table.has("trace")) {
    for (const char* key : {"copies", "arrival_s", "arrivals", "iterations", "duration_s", "row"})
      if (table.has(key)) table.wrong(table.find(key), std::string(key) + " does not go with trace");
    trace = read_job_csv(beside(table.file(), table.text("trace", "")), "trace");
  }
  const auto copies =
      table.has("trace")
          ? trace.size()
          : static_cast<std::size_t>(table.whole("copies", 1, 1, static_cast<std::int64_t>(most_jobs)));
  if (jobs.jobs.size() + copies > most_jobs)
    table.wrong(nullptr, "more than " + std::to_string(most_jobs) + " jobs");
  const std::string name = table.text("name", table.has("trace") ? "job" : "");
  if (name.empty()) table.wrong(nullptr, "a job needs a name");
  const std::string model = table.text("model", "");
  const Durations lasting = read_durations(table);
  const auto seconds = draw_durations(lasting, copies, for_durations);
  const auto arrivals =
      table.has("trace") ? std::vector<Duration>(copies) : read_arrivals(table, copies, for_arrivals);
  const auto iteration_ms = optional_number(table, "iteration_ms", 1e-3, 1e7);
  const auto startup_s = optional_number(table, "startup_s", 0, 1e9);
  const auto weight = optional_number(table, "weight", 1e-6, 1000);
  const auto utilization = optional_number(table, "utilization", 1e-6, 1);
  const std::string starts = table.text("starts", "arrived");
  if (starts != "arrived" && starts != "admitted")
    table.wrong(table.find("starts"), "jobs.starts must be \"arrived\" or \"admitted\"");
  base.starts_admitted = starts == "admitted";
  base.noise = table.number("noise", 0, 0, 10);
  base.remaining_factor = table.number("remaining_factor", 1, 1e-6, 1e6);
  read_known(table, base);
  read_drift(table, base);
  read_faults(table, base);
  for (std::size_t c = 0; c < copies; ++c) {
    Job job = base;
    job.name = copies == 1 ? name : name + "-" + std::to_string(c);
    Sources from;
    if (!trace.empty()) {
      from.traced = &trace[c];
      if (!trace[c].row.empty()) {
        from.profiled = choice.find(trace[c].row);
        if (from.profiled == nullptr)
          table.wrong(table.find("trace"), "the trace's row " + std::to_string(c + 2) + " has '" +
                                               trace[c].row + "', which no row of csv is called");
      }
      if (!trace[c].name.empty()) job.name = trace[c].name;
    }
    if (from.profiled == nullptr && !choice.rows.empty())
      from.profiled =
          choice.fixed != nullptr ? choice.fixed : &choice.rows[for_rows.below(choice.rows.size())];
    job.model = model;
    if (job.model.empty()) {
      if (from.traced != nullptr && !from.traced->model.empty())
        job.model = from.traced->model;
      else
        job.model = from.profiled != nullptr ? from.profiled->name : name;
    }
    const auto within = [&](const char* key, std::optional<double> own, std::optional<double> JobRow::*member,
                            std::optional<double> otherwise, double low, double high) {
      const auto value = own ? own : from.get(member) ? from.get(member) : otherwise;
      if (!value) table.wrong(nullptr, "job '" + job.name + "' needs " + key);
      if (!(*value >= low && *value <= high)) {
        std::ostringstream text;
        text << "job '" << job.name << "': " << key << " is " << *value << ", but must be from " << low
             << " to " << high;
        table.wrong(nullptr, text.str());
      }
      return *value;
    };
    job.iteration =
        from_ms(within("iteration_ms", iteration_ms, &JobRow::iteration_ms, std::nullopt, 1e-3, 1e7));
    job.startup = from_seconds(within("startup_s", startup_s, &JobRow::startup_s, 0, 0, 1e9));
    job.weight = within("weight", weight, &JobRow::weight, 1, 1e-6, 1000);
    job.utilization = within("utilization", utilization, &JobRow::utilization, 1, 1e-6, 1);
    const Duration at =
        from.traced != nullptr
            ? from_seconds(within("arrival_s", std::nullopt, &JobRow::arrival_s, std::nullopt, 0, 1e9))
            : arrivals[c];
    job.arrival = TimePoint{} + at;
    const auto of_time = [&](double s) {
      return std::max(1.0, std::round(s * 1e9 / static_cast<double>(job.iteration.count())));
    };
    std::optional<double> count;
    if (lasting.kind == Durations::Kind::iterations)
      count = static_cast<double>(lasting.iterations);
    else if (lasting.kind != Durations::Kind::none)
      count = of_time(seconds[c]);
    else if (const auto n = from.get(&JobRow::iterations))
      count = std::max(1.0, std::round(*n));
    else if (const auto s = from.get(&JobRow::duration_s))
      count = of_time(*s);
    if (!count) table.wrong(nullptr, "job '" + job.name + "' needs iterations or duration_s");
    if (*count > static_cast<double>(most_iterations))
      table.wrong(nullptr, "job '" + job.name + "' has more than a billion iterations");
    job.iterations = static_cast<std::uint64_t>(*count);
    set_memory(table, from, job);
    jobs.jobs.push_back(std::move(job));
  }
  table.done();
}

void read_device(Section device, JobsDevice& to) {
  device.knows({"memory", "capacity", "wanted", "foretold", "switch_us"});
  const auto memory = device.bytes("memory");
  if (!memory || memory->count == 0)
    device.wrong(device.find("memory"),
                 "device.memory must say how much memory jobs share, above 0, such as "
                 "\"16 GB\"");
  to.memory = *memory;
  if (const toml::node* node = device.find("capacity")) {
    const std::string right = "device.capacity must be a list of [at_s, \"SIZE\"], ascending in time";
    if (!node->is_array() || node->as_array()->size() > 10'000) device.wrong(node, right);
    for (const toml::node& step : *node->as_array()) {
      const toml::array* pair = step.as_array();
      const bool two = pair != nullptr && pair->size() == 2;
      const auto at = two ? (*pair)[0].value<double>() : std::nullopt;
      const auto text = two ? (*pair)[1].value_exact<std::string>() : std::nullopt;
      if (!at || !text || !(*at >= 0 && *at <= 1e9)) device.wrong(&step, right);
      const auto size = parse_bytes(*text);
      if (!size) device.wrong(&step, "device.capacity: " + size.error().message);
      const TimePoint when = TimePoint{} + from_seconds(*at);
      if (!to.capacity.empty() && when <= to.capacity.back().at) device.wrong(&step, right);
      to.capacity.push_back({when, *size});
    }
  }
  if (const toml::node* node = device.find("wanted")) {
    const std::string right =
        "device.wanted must be a list of [from_s, until_s], ascending and apart, or { gap_s, use_s, regular "
        "}";
    if (node->is_table()) {
      Section busy(*node->as_table(), "wanted", device.file());
      busy.knows({"gap_s", "use_s", "regular"});
      if (!busy.has("gap_s") || !busy.has("use_s")) busy.wrong(node, right);
      to.busy = WantedProcess{from_seconds(busy.number("gap_s", 1, 1e-3, 1e9)),
                              from_seconds(busy.number("use_s", 1, 1e-3, 1e9)), busy.yes("regular")};
      busy.done();
    } else {
      if (!node->is_array() || node->as_array()->size() > 1'000'000) device.wrong(node, right);
      for (const toml::node& interval : *node->as_array()) {
        const toml::array* pair = interval.as_array();
        const bool two = pair != nullptr && pair->size() == 2;
        const auto from = two ? (*pair)[0].value<double>() : std::nullopt;
        const auto until = two ? (*pair)[1].value<double>() : std::nullopt;
        if (!from || !until || !(*from >= 0) || !(*until <= 1e9)) device.wrong(&interval, right);
        const WantedInterval w{TimePoint{} + from_seconds(*from), TimePoint{} + from_seconds(*until)};
        if (w.from >= w.until || (!to.wanted.empty() && w.from <= to.wanted.back().until))
          device.wrong(&interval, right);
        to.wanted.push_back(w);
      }
    }
  }
  to.foretold = device.yes("foretold");
  to.switching = from_ns(1e3 * device.number("switch_us", 3, 0, 1e9));
  device.done();
}

JobPolicyOptions read_policy(Section policy) {
  JobPolicyOptions options;
  policy.knows({"quantum_ms", "longest_wait_s", "catch_up", "packs", "hang_after_s", "evict_hanging",
                "assumed_persistent", "assumed_ephemeral"});
  if (const auto ms = optional_number(policy, "quantum_ms", 1, 3.6e6)) options.quantum = from_ms(*ms);
  if (const auto s = optional_number(policy, "longest_wait_s", 1e-3, 1e9))
    options.longest_wait = from_seconds(*s);
  if (const auto s = optional_number(policy, "hang_after_s", 1e-3, 86400))
    options.hang_after = from_seconds(*s);
  if (policy.has("catch_up")) options.catch_up = static_cast<int>(policy.whole("catch_up", 1, 1, 1'000'000));
  if (policy.has("packs")) options.packs = policy.yes("packs");
  if (policy.has("evict_hanging")) options.evict_hanging = policy.yes("evict_hanging");
  options.assumed_persistent = policy.bytes("assumed_persistent");
  options.assumed_ephemeral = policy.bytes("assumed_ephemeral");
  policy.done();
  return options;
}

Jobs build_jobs(const toml::table& root, const std::filesystem::path& file,
                std::optional<std::uint64_t> seed) {
  Jobs jobs;
  Section top(root, "", file);
  top.knows({"name", "seed", "scheduler", "length_s", "device", "policy", "jobs"});
  jobs.name = top.text("name", file.stem().string());
  jobs.seed = static_cast<std::uint64_t>(top.whole("seed", 1, 0, std::numeric_limits<std::int64_t>::max()));
  if (seed) jobs.seed = *seed;
  jobs.scheduler = top.text("scheduler", "best");
  if (const auto s = optional_number(top, "length_s", 1e-3, 1e9)) jobs.length = from_seconds(*s);
  if (!top.has("device")) top.wrong(nullptr, "jobs need a [device] with its memory");
  read_device(top.section("device"), jobs.device);
  jobs.policy = read_policy(top.section("policy"));
  const toml::node* tables = top.find("jobs");
  if (tables == nullptr || !tables->is_array_of_tables() || tables->as_array()->empty())
    top.wrong(tables, "there must be at least one [[jobs]]");
  Random random(jobs.seed);
  for (const toml::node& table : *tables->as_array())
    read_table(Section(*table.as_table(), "jobs", file), random.split(), jobs);
  top.done();
  std::set<std::string_view> names;
  std::uint64_t iterations = 0;
  for (const Job& job : jobs.jobs) {
    if (!names.insert(job.name).second) top.wrong(tables, "two jobs are named '" + job.name + "'");
    iterations += job.iterations;
  }
  if (iterations > most_iterations)
    top.wrong(tables, "the jobs have " + std::to_string(iterations) +
                          " iterations in all; a run takes a billion at most");
  std::ranges::stable_sort(jobs.jobs, {}, &Job::arrival);
  return jobs;
}

}  // namespace

bool has_jobs(const std::filesystem::path& file) {
  const auto text = read_file("the file", file);
  if (!text) return false;
  try {
    const toml::table root = toml::parse(*text);
    return root.contains("jobs");
  } catch (const toml::parse_error&) {
    return false;
  }
}

Result<Jobs> parse_jobs(std::string_view text, const std::filesystem::path& where,
                        std::optional<std::uint64_t> seed) {
  try {
    return build_jobs(toml::parse(text, where.string()), where, seed);
  } catch (const toml::parse_error& error) {
    return invalid(place_of(where, error.source()) + ": " + std::string(error.description()));
  } catch (const Problem& problem) {
    return invalid(problem.message);
  }
}

Result<Jobs> read_jobs(const std::filesystem::path& file, std::optional<std::uint64_t> seed) {
  const auto text = read_file("the jobs", file);
  if (!text) return std::unexpected(text.error());
  return parse_jobs(*text, file, seed);
}

}  // namespace carillon::workload
