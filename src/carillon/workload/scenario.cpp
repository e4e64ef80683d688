#include "carillon/workload/scenario.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <toml++/toml.h>

#include "carillon/base/files.h"
#include "carillon/workload/scenario_files.h"
#include "carillon/workload/section.h"

namespace carillon::workload {
namespace {

constexpr std::size_t most_models = 100'000;

LatencyMode read_mode(const toml::node& node, const std::filesystem::path& file) {
  if (!node.is_table())
    throw Problem{place_of(file, node.source()) + ": a mode is a table {mean_ms, std_ms, weight}"};
  Section section(*node.as_table(), "modes", file);
  LatencyMode mode;
  mode.mean = from_ms(section.number("mean_ms", 0, 1e-6, 1e9));
  if (!section.has("mean_ms")) section.wrong(&node, "a mode needs mean_ms");
  mode.deviation = from_ms(section.number("std_ms", 0, 0, 1e9));
  mode.weight = section.number("weight", 1, 1e-9, 1e9);
  mode.app = section.text("app", "");
  section.done();
  return mode;
}

// `latency = {...}` of a model; the row's other columns where it names a CSV file.
ProfileRow read_latency(Section& model) {
  const toml::node* node = model.find("latency");
  if (node == nullptr || !node->is_table())
    model.wrong(
        node,
        "a model needs latency = { alpha_ms, beta_ms }, { table_ms }, { csv, row } or { c0_ms, c1, modes }");
  Section section(*node->as_table(), "latency", model.file());
  section.knows({"alpha_ms", "beta_ms", "table_ms", "csv", "row", "c0_ms", "c1", "modes", "sized"});
  ProfileRow row;
  // Each key with those of its kind.
  constexpr std::pair<const char*, std::string_view> kinds[] = {
      {"csv", "csv"},           {"row", "csv"},         {"modes", "modes"},
      {"c0_ms", "modes"},       {"c1", "modes"},        {"sized", "modes"},
      {"table_ms", "table_ms"}, {"alpha_ms", "linear"}, {"beta_ms", "linear"}};
  const std::pair<const char*, std::string_view>* first = nullptr;
  for (const auto& kind : kinds) {
    if (!section.has(kind.first)) continue;
    if (first == nullptr) first = &kind;
    if (kind.second != first->second)
      section.wrong(node,
                    "latency: " + std::string(first->first) + " and " + std::string(kind.first) +
                        " do not go together; it is { alpha_ms, beta_ms }, { table_ms }, { csv, row } or "
                        "{ c0_ms, c1, modes }");
  }
  if (section.has("csv")) {
    const std::string name = section.text("csv", ""), wanted = section.text("row", "");
    section.done();
    if (wanted.empty()) section.wrong(node, "latency = { csv, row } needs the row's name");
    const auto rows = read_profile_csv(beside(model.file(), name));
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](const ProfileRow& r) { return r.name == wanted; });
    if (found == rows.end()) section.wrong(node, "'" + name + "' has no row '" + wanted + "'");
    return *found;
  }
  if (section.has("modes")) {
    const toml::node* modes = section.find("modes");
    if (!modes->is_array() || modes->as_array()->empty() || modes->as_array()->size() > 1000)
      section.wrong(modes, "latency.modes must be a list of 1 to 1000 tables");
    for (const toml::node& mode : *modes->as_array())
      row.latency.modes.push_back(read_mode(mode, model.file()));
    row.latency.c0 = from_ms(section.number("c0_ms", 0, 0, 1e9));
    row.latency.c1 = section.number("c1", 1, 1e-9, 1e9);
    row.latency.sized = section.yes("sized");
  } else if (section.has("table_ms")) {
    const toml::node* table = section.find("table_ms");
    if (!table->is_table() || table->as_table()->empty())
      section.wrong(table, "latency.table_ms must be a table such as { 1 = 2.61, 2 = 3.78 }");
    for (const auto& [key, value] : *table->as_table()) {
      int batch = 0;
      const std::string_view text = key.str();
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), batch);
      const auto ms = value.value<double>();
      if (error != std::errc{} || end != text.data() + text.size() || batch < 1 || batch > 100000 || !ms ||
          !(*ms > 0 && *ms < 1e9))
        section.wrong(&value, "latency.table_ms maps batch sizes from 1 to milliseconds above 0");
      row.latency.table.emplace_back(batch, from_ms(*ms));
    }
    std::sort(row.latency.table.begin(), row.latency.table.end());
    for (std::size_t i = 1; i < row.latency.table.size(); ++i)
      if (row.latency.table[i].first == row.latency.table[i - 1].first)
        section.wrong(table, "latency.table_ms has the batch size " +
                                 std::to_string(row.latency.table[i].first) + " twice");
  } else {
    row.latency.linear = true;
    row.latency.alpha = from_ms(section.number("alpha_ms", 0, 0, 1e9));
    row.latency.beta = from_ms(section.number("beta_ms", 0, 0, 1e9));
    if (row.latency.alpha + row.latency.beta <= Duration{0})
      section.wrong(node, "latency: alpha_ms + beta_ms must be above 0");
  }
  section.done();
  return row;
}

ArrivalSpec read_process(Section& section, const std::string& text) {
  auto parsed = parse_arrivals(text);
  if (!parsed)
    section.wrong(section.find("process"), section.describe("process") + ": " + parsed.error().message);
  return *parsed;
}

// Copies that become active one after another and share one rate: what copy `c` of `copies` gets. Rates
// change with every newcomer up to the fiftieth, then with every fiftieth part more, for all copies at once.
std::vector<RateStep> rates_of_copy(double all, std::int64_t c, std::int64_t copies, double start,
                                    double every) {
  std::vector<RateStep> steps;
  const auto at = [&](std::int64_t active) {
    return from_seconds(std::min(1e9, start + every * static_cast<double>(active - 1)));
  };
  if (at(c + 1) > Duration{0}) steps.push_back({Duration{0}, 0});
  std::int64_t counted = 1;  // active copies that the rates reckon with
  for (std::int64_t n = 1;; n = std::min(copies, std::max(n + 1, n + n / 50))) {
    if (n > c + 1) {
      if (steps.empty() || steps.back().at < at(c + 1))
        steps.push_back({at(c + 1), all / static_cast<double>(counted)});
      steps.push_back({at(n), all / static_cast<double>(n)});
    }
    counted = n;
    if (n == copies) break;
  }
  if (steps.empty() || steps.back().at < at(c + 1))
    steps.push_back({at(c + 1), all / static_cast<double>(counted)});
  return steps;
}

constexpr double least_miss_rate = 1e-6, most_miss_rate = 0.5;

Outliers read_outliers(Section& model) {
  if (!model.has("outliers")) return {};
  Section section = model.section("outliers");
  section.knows({"share", "factor"});
  const Outliers outliers{.share = section.number("share", 0, 0, 1),
                          .factor = section.number("factor", 1, 1e-3, 1e6)};
  for (const char* key : {"share", "factor"})
    if (!section.has(key)) section.wrong(nullptr, "outliers = { share, factor } needs " + std::string(key));
  section.done();
  return outliers;
}

std::vector<double> read_speeds(Section& cluster, int devices) {
  std::vector<double> speeds;
  const toml::node* node = cluster.find("speeds");
  if (node == nullptr) return speeds;
  if (node->is_array())
    for (const toml::node& each : *node->as_array())
      if (const auto speed = each.value<double>();
          each.is_number() && speed && *speed >= 1e-3 && *speed <= 1e3)
        speeds.push_back(*speed);
  if (!node->is_array() || speeds.size() != node->as_array()->size() ||
      speeds.size() != static_cast<std::size_t>(devices))
    cluster.wrong(node, "cluster.speeds must be a list of one number for each of " + std::to_string(devices) +
                            " devices, from 0.001 to 1000");
  return speeds;
}

std::vector<DeviceFault> read_device_faults(Section& top, int devices) {
  std::vector<DeviceFault> faults;
  const toml::node* node = top.find("faults");
  if (node == nullptr) return faults;
  if (!node->is_array_of_tables()) top.wrong(node, "faults must be tables, written [[faults]]");
  for (const toml::node& each : *node->as_array()) {
    Section section(*each.as_table(), "faults", top.file());
    section.knows({"device", "at_s", "kind", "for_s", "factor"});
    for (const char* key : {"device", "at_s", "kind"})
      if (!section.has(key)) section.wrong(&each, "[[faults]] needs " + std::string(key));
    DeviceFault fault{.device = static_cast<int>(section.whole("device", 0, 0, devices - 1)),
                      .at = from_seconds(section.number("at_s", 0, 0, 1e9)),
                      .length = Duration::max()};
    const std::string kind = section.text("kind", "");
    if (kind == "hang")
      fault.kind = DeviceFault::Kind::hangs;
    else if (kind == "slow")
      fault.kind = DeviceFault::Kind::slow;
    else if (kind != "die")
      section.wrong(section.find("kind"), "faults.kind must be \"die\", \"hang\" or \"slow\"");
    const bool slow = fault.kind == DeviceFault::Kind::slow;
    if (section.has("for_s")) fault.length = from_seconds(section.number("for_s", 0, 1e-6, 1e9));
    if (slow != section.has("factor"))
      section.wrong(&each, "[[faults]] of kind \"slow\", and no other, need factor");
    if (slow) fault.factor = section.number("factor", 1, 1e-3, 1e6);
    section.done();
    faults.push_back(fault);
  }
  std::ranges::stable_sort(faults, {}, &DeviceFault::at);
  return faults;
}

void read_models(Section model, const Overrides& overrides, Scenario& scenario) {
  model.knows({"name",      "copies",      "slo_ms",    "slo_p99",          "class",
               "max_batch", "batch_sizes", "weights",   "load_ms",          "latency",
               "outliers",  "csv",         "min_ratio", "max_ratio",        "process",
               "rate",      "start_s",     "end_s",     "activate_every_s", "steps",
               "miss_rate"});
  ScenarioModel base;
  const bool many = model.has("csv");
  for (const char* key : {"rate", "start_s", "end_s", "activate_every_s"})
    if (model.has("steps") && model.has(key))
      model.wrong(model.find(key), std::string("a model has steps or ") + key + ", not both");
  for (const char* key : {"min_ratio", "max_ratio"})
    if (!many && model.has(key)) model.wrong(model.find(key), std::string(key) + " needs csv");
  for (const char* key : {"name", "latency"})
    if (many && model.has(key))
      model.wrong(model.find(key), std::string("a model has csv or ") + key + ", not both");
  std::vector<ProfileRow> rows;
  if (many) {
    rows = read_profile_csv(beside(model.file(), model.text("csv", "")));
    const double low = model.number("min_ratio", 0, 0, 1e12);
    const double high = model.number("max_ratio", 1e12, 0, 1e12);
    if (model.has("min_ratio") || model.has("max_ratio"))
      for (const ProfileRow& r : rows)
        if (!r.latency.linear)
          model.wrong(model.find("csv"), "min_ratio and max_ratio need a profile with alpha_ms and beta_ms");
    std::erase_if(rows, [&](const ProfileRow& r) {
      if (!r.latency.linear) return false;
      const double ratio = static_cast<double>(r.latency.beta.count()) /
                           std::max(1.0, static_cast<double>(r.latency.alpha.count()));
      return ratio < low || ratio >= high;
    });
    if (rows.empty()) model.wrong(model.find("csv"), "no row of the file is between min_ratio and max_ratio");
  } else {
    rows.push_back(read_latency(model));
    rows.front().name = model.text("name", "");
    if (rows.front().name.empty()) model.wrong(nullptr, "a model needs a name");
  }
  const auto copies = model.whole("copies", 1, 1, static_cast<std::int64_t>(most_models));
  const auto* slo_node = model.find("slo_ms");
  const bool no_slo =
      slo_node != nullptr && slo_node->value_exact<double>() == std::numeric_limits<double>::infinity();
  const bool many_slos = slo_node != nullptr && slo_node->is_array();
  if (many_slos) base.slos = model.milliseconds("slo_ms", 1e-3, 1e9);
  const double slo = no_slo || many_slos ? 0 : model.number("slo_ms", 0, 1e-3, 1e9);
  double slo_p99 = model.number("slo_p99", 0, 1e-6, 1e6);
  if (slo_p99 > 0 && slo_node != nullptr)
    model.wrong(model.find("slo_p99"), "a model has slo_ms or slo_p99, not both");
  if (slo_p99 > 0) slo_p99 = overrides.slo_p99.value_or(slo_p99);
  const std::string cls = model.text("class", "normal");
  if (cls == "real-time")
    base.cls = Class::real_time;
  else if (cls == "best-effort")
    base.cls = Class::best_effort;
  else if (cls != "normal")
    model.wrong(model.find("class"), "class must be \"real-time\", \"normal\" or \"best-effort\"");
  base.outliers = read_outliers(model);
  if (model.has("miss_rate")) base.miss_rate = model.number("miss_rate", 0, least_miss_rate, most_miss_rate);
  const double every = model.number("activate_every_s", 0, 1e-6, 1e9);
  base.max_batch = static_cast<int>(model.whole("max_batch", 64, 1, 100000));
  if (const toml::node* sizes = model.find("batch_sizes")) {
    if (model.has("max_batch")) model.wrong(sizes, "a model has max_batch or batch_sizes, not both");
    if (!sizes->is_array()) model.wrong(sizes, "batch_sizes must be a list such as [1, 2, 4, 8]");
    for (const toml::node& size : *sizes->as_array()) {
      const auto value = size.value<std::int64_t>();
      if (!value || *value > 100000 || *value <= (base.batch_sizes.empty() ? 0 : base.batch_sizes.back()))
        model.wrong(&size, "batch_sizes must ascend, from 1 to 100000");
      base.batch_sizes.push_back(static_cast<int>(*value));
    }
    if (base.batch_sizes.empty() || base.batch_sizes.front() != 1)
      model.wrong(sizes, "batch_sizes must begin with 1");
    base.max_batch = base.batch_sizes.back();
  }
  const auto weights = model.bytes("weights");
  const bool has_load = model.has("load_ms");
  const double load_ms = model.number("load_ms", 0, 0, 1e9);
  if (model.has("process")) base.process = read_process(model, model.text("process", ""));
  const double start = model.number("start_s", 0, 0, 1e9), end = model.number("end_s", 1e9, 0, 1e9);
  if (const toml::node* steps = model.find("steps")) {
    if (!steps->is_array() || steps->as_array()->empty())
      model.wrong(steps, "steps must be a list of [at_s, requests_per_s]");
    for (const toml::node& step : *steps->as_array()) {
      const toml::array* pair = step.as_array();
      const auto at = pair != nullptr && pair->size() == 2 ? (*pair)[0].value<double>() : std::nullopt;
      const auto rate = pair != nullptr && pair->size() == 2 ? (*pair)[1].value<double>() : std::nullopt;
      if (!at || !rate || !(*at >= 0 && *at <= 1e9) || !(*rate >= 0 && *rate <= 1e9))
        model.wrong(&step, "steps must be a list of [at_s, requests_per_s], each from 0 to 1e9");
      if (!base.rate.empty() && from_seconds(*at) <= base.rate.back().at)
        model.wrong(&step, "steps must ascend in time");
      base.rate.push_back({from_seconds(*at), *rate});
    }
    if (!base.rate.empty() && base.rate.front().at > Duration{0})
      base.rate.insert(base.rate.begin(), {Duration{0}, 0});
  } else if (every > 0) {
    if (!model.has("rate") || end < 1e9 || (base.process && base.process->kind == ArrivalKind::closed))
      model.wrong(model.find("activate_every_s"),
                  "activate_every_s needs rate (of all copies together), no end_s and no closed loop");
    base.rate.push_back({Duration{0}, model.number("rate", 0, 0, 1e9)});
  } else if (model.has("rate")) {
    const double rate = model.number("rate", 0, 0, 1e9);
    if (start > 0) base.rate.push_back({Duration{0}, 0});
    base.rate.push_back({from_seconds(start), rate});
    if (end < 1e9) base.rate.push_back({from_seconds(end), 0});
  } else if (base.process && base.process->kind == ArrivalKind::closed && start > 0 && end >= 1e9) {
    base.rate.push_back({from_seconds(start), 0});
  } else if (start > 0 || end < 1e9) {
    model.wrong(nullptr, "start_s and end_s need the model's own rate (a closed loop may have start_s)");
  }
  model.done();
  for (const ProfileRow& row : rows) {
    if (slo <= 0 && slo_p99 <= 0 && !row.slo && !no_slo && !many_slos)
      model.wrong(nullptr, "model '" + row.name + "' needs slo_ms, or slo_p99");
    for (std::int64_t c = 0; c < copies; ++c) {
      if (scenario.models.size() == most_models)
        model.wrong(nullptr, "more than " + std::to_string(most_models) + " models");
      ScenarioModel m = base;
      m.name = copies == 1 ? row.name : row.name + "-" + std::to_string(c);
      m.latency = row.latency;
      if (no_slo)
        m.slo = Duration::max();
      else if (many_slos)
        m.slo = *std::min_element(m.slos.begin(), m.slos.end());
      else if (slo_p99 > 0)
        m.slo = from_ms(std::clamp(slo_p99 * to_ms(row.latency.p99_of_one()), 1e-3, 1e9));
      else
        m.slo = slo > 0 ? from_ms(slo) : *row.slo;
      if (every > 0) m.rate = rates_of_copy(base.rate.back().requests_per_s, c, copies, start, every);
      m.weights = weights.value_or(row.weights.value_or(Bytes{}));
      m.load = has_load ? std::optional(from_ms(load_ms)) : row.load;
      scenario.models.push_back(std::move(m));
    }
  }
}

Scenario build(const toml::table& root, const std::filesystem::path& file, const Overrides& overrides) {
  Scenario s;
  Section top(root, "", file);
  s.name = top.text("name", file.stem().string());
  s.seed = static_cast<std::uint64_t>(top.whole("seed", 1, 0, std::numeric_limits<std::int64_t>::max()));
  s.duration = from_seconds(top.number("duration_s", 60, 1e-3, 1e7));
  s.warmup = from_seconds(top.number("warmup_s", 0, 0, 1e7));
  if (overrides.seed) s.seed = *overrides.seed;
  if (overrides.duration) {
    s.duration = *overrides.duration;
    if (s.warmup >= s.duration)
      throw Problem{file.string() + ": a duration of " + std::to_string(to_seconds(s.duration)) +
                    " s must be longer than the file's warmup_s, " + std::to_string(to_seconds(s.warmup)) +
                    " s"};
  }
  if (s.warmup >= s.duration) top.wrong(root.get("warmup_s"), "warmup_s must be shorter than duration_s");
  s.scheduler = top.text("scheduler", "symphony");

  top.knows({"name", "seed", "duration_s", "warmup_s", "scheduler", "miss_rate", "cluster", "faults", "load",
             "models"});
  if (top.has("miss_rate")) s.miss_rate = top.number("miss_rate", 0, least_miss_rate, most_miss_rate);
  Section cluster = top.section("cluster");
  cluster.knows({"devices", "memory", "pcie", "network_delay_us", "fetch_us", "speeds", "allowance"});
  s.devices = static_cast<int>(cluster.whole("devices", 1, 1, 100000));
  s.memory = cluster.bytes("memory");
  if (const auto pcie = cluster.bytes("pcie", "/s")) {
    if (pcie->count == 0) cluster.wrong(cluster.find("pcie"), "cluster.pcie must be above 0");
    s.pcie_bytes_per_s = static_cast<double>(pcie->count);
  }
  s.network_delay = from_ns(cluster.number("network_delay_us", 0, 0, 1e9) * 1e3);
  if (cluster.has("fetch_us")) s.fetch = from_ns(cluster.number("fetch_us", 0, 0, 1e9) * 1e3);
  if (cluster.has("allowance")) {
    Section allowance = cluster.section("allowance");
    s.allowance = Allowance{.dispatch = from_ns(allowance.number("dispatch_us", 0, 0, 1e9) * 1e3),
                            .answer = from_ns(allowance.number("answer_us", 0, 0, 1e9) * 1e3),
                            .overrun = allowance.number("overrun", 0, 0, 100)};
    allowance.done();
  }
  s.speeds = read_speeds(cluster, s.devices);
  cluster.done();
  s.faults = read_device_faults(top, s.devices);

  Section load = top.section("load");
  load.knows({"rate", "process", "popularity", "popular_last", "functions_per_model", "spread_hottest",
              "function_skew"});
  s.rate = load.number("rate", 0, 0, 1e9);
  const std::string process = load.text("process", "poisson");
  const auto functions_per_model = static_cast<int>(load.whole("functions_per_model", 1, 1, 1000));
  const auto spread_hottest = static_cast<int>(load.whole("spread_hottest", 1, 1, 100000));
  const double function_skew = load.number("function_skew", 0, 0, 100);
  if (process.starts_with("trace:")) {
    if (process == "trace:") load.wrong(load.find("process"), "load.process = \"trace:FILE\" needs the file");
    s.trace = beside(file, process.substr(6));
  } else {
    for (const char* key : {"functions_per_model", "spread_hottest", "function_skew"})
      if (load.has(key)) load.wrong(load.find(key), load.describe(key) + " needs process = \"trace:FILE\"");
    s.process = read_process(load, process);
  }
  const std::string popularity = load.text("popularity", "equal");
  if (popularity.starts_with("zipf:")) {
    s.popularity = Popularity::zipf;
    const std::string shape = popularity.substr(5);
    const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), s.zipf);
    if (error != std::errc{} || end != shape.data() + shape.size() || !(s.zipf >= 0 && s.zipf <= 100))
      load.wrong(load.find("popularity"),
                 "load.popularity: the shape of zipf must be a number from 0 to 100");
  } else if (popularity != "equal") {
    load.wrong(load.find("popularity"), "load.popularity must be \"equal\" or \"zipf:SHAPE\"");
  }
  s.popular_last = load.yes("popular_last");
  if (load.has("popular_last") && s.popularity != Popularity::zipf)
    load.wrong(load.find("popular_last"), "load.popular_last needs popularity = \"zipf:SHAPE\"");
  load.done();

  const toml::node* models = top.find("models");
  if (models == nullptr || !models->is_array_of_tables())
    top.wrong(models, std::string("a scenario needs at least one [[models]]") +
                          (root.contains("jobs") ? "; files of [[jobs]] are for 'carillon simulate'" : ""));
  for (const toml::node& model : *models->as_array())
    read_models(Section(*model.as_table(), "models", file), overrides, s);
  top.done();
  if (overrides.slo_p99 && std::none_of(models->as_array()->begin(), models->as_array()->end(),
                                        [](const auto& m) { return m.as_table()->contains("slo_p99"); }))
    throw Problem{file.string() + ": no model has slo_p99, so there is none to set"};
  std::set<std::string_view> names;
  for (const ScenarioModel& m : s.models)
    if (!names.insert(m.name).second) top.wrong(models, "two models are named '" + m.name + "'");
  if (s.memory)
    for (const ScenarioModel& m : s.models)
      if (m.weights > *s.memory)
        top.wrong(models, "model '" + m.name + "' (" + to_text(m.weights) +
                              ") does not fit into a device's " + to_text(*s.memory));
  const bool own = std::all_of(s.models.begin(), s.models.end(), [&](const ScenarioModel& m) {
    return !m.rate.empty() || m.process.value_or(s.process).kind == ArrivalKind::closed;
  });
  if (s.rate <= 0 && !own && s.trace.empty())
    top.wrong(root.get("load"), "load.rate (requests a second over all models) must be above 0");
  for (const ScenarioModel& m : s.models)
    if (!m.rate.empty() && m.rate.size() > 1 && !m.process && s.process.kind == ArrivalKind::closed)
      top.wrong(models,
                "model '" + m.name + "' has a rate that changes, but its clients wait for their answers");
  if (!s.trace.empty())
    for (const ScenarioModel& m : s.models)
      if (!m.rate.empty() || m.process)
        top.wrong(models, "model '" + m.name +
                              "' has a rate or process of its own, but the trace says when its "
                              "requests come");
  if (!s.trace.empty()) deal_trace(s, functions_per_model, spread_hottest, function_skew);
  return s;
}

}  // namespace

Result<Scenario> parse_scenario(std::string_view text, const std::filesystem::path& where,
                                const Overrides& overrides) {
  try {
    return build(toml::parse(text, where.string()), where, overrides);
  } catch (const toml::parse_error& error) {
    return invalid(place_of(where, error.source()) + ": " + std::string(error.description()));
  } catch (const Problem& problem) {
    return invalid(problem.message);
  }
}

Result<Scenario> read_scenario(const std::filesystem::path& file, const Overrides& overrides) {
  const auto text = read_file("the scenario", file);
  if (!text) return std::unexpected(text.error());
  return parse_scenario(*text, file, overrides);
}

std::vector<double> model_rates(const Scenario& scenario) {
  std::vector<double> rates(scenario.models.size());
  double weights = 0;
  const auto closed = [&](const ScenarioModel& m) {
    return m.process.value_or(scenario.process).kind == ArrivalKind::closed;
  };
  std::vector<std::size_t> sharing;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const ScenarioModel& m = scenario.models[i];
    if (m.rate.empty() && !closed(m) && m.per_minute.empty()) sharing.push_back(i);
  }
  if (scenario.popular_last) std::reverse(sharing.begin(), sharing.end());
  for (std::size_t rank = 0; rank < sharing.size(); ++rank) {
    double& rate = rates[sharing[rank]];
    rate = scenario.popularity == Popularity::equal ? 1
                                                    : std::pow(static_cast<double>(rank + 1), -scenario.zipf);
    weights += rate;
  }
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const ScenarioModel& m = scenario.models[i];
    if (!m.per_minute.empty()) {
      double sum = 0;
      for (const std::uint32_t c : m.per_minute) sum += c;
      rates[i] = sum / to_seconds(scenario.duration);
    } else if (!m.rate.empty()) {
      double sum = 0;
      for (std::size_t k = 0; k < m.rate.size(); ++k) {
        const Duration from = std::min(m.rate[k].at, scenario.duration);
        const Duration to =
            k + 1 < m.rate.size() ? std::min(m.rate[k + 1].at, scenario.duration) : scenario.duration;
        sum += m.rate[k].requests_per_s * to_seconds(to - from);
      }
      rates[i] = sum / to_seconds(scenario.duration);
    } else if (weights > 0) {
      rates[i] *= scenario.rate / weights;
    }
  }
  return rates;
}

std::size_t scaling_models(const Scenario& scenario) {
  return static_cast<std::size_t>(
      std::count_if(scenario.models.begin(), scenario.models.end(), [&](const ScenarioModel& m) {
        return !m.per_minute.empty() ||
               (m.rate.empty() && m.process.value_or(scenario.process).kind != ArrivalKind::closed);
      }));
}

void set_rate(Scenario& scenario, double requests_per_s) {
  double traced = 0;
  for (const ScenarioModel& m : scenario.models)
    for (const std::uint32_t c : m.per_minute) traced += c;
  scenario.rate = requests_per_s;
  if (traced <= 0) return;
  const double scale = requests_per_s * to_seconds(scenario.duration) / traced;
  double carry = 0.5;  // fractions add up over models and minutes
  for (ScenarioModel& m : scenario.models)
    for (std::uint32_t& c : m.per_minute) {
      const double exact = c * scale + carry;
      c = static_cast<std::uint32_t>(std::min(4e9, std::floor(exact)));
      carry = exact - c;
    }
}

}  // namespace carillon::workload
