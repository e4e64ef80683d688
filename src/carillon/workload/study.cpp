#include "carillon/workload/study.h"

#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

#include <toml++/toml.h>

#include "carillon/base/assert.h"
#include "carillon/base/files.h"
#include "carillon/workload/scenario_files.h"
#include "carillon/workload/section.h"

namespace carillon::workload {
namespace {

constexpr std::int64_t most_trials = 100'000, most_devices = 10'000, most_epochs = 100'000;
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 50;

constexpr std::array<std::pair<std::string_view, StudyAlgorithm>, 7> algorithms{
    {{"grid", StudyAlgorithm::grid},
     {"halving", StudyAlgorithm::halving},
     {"hyperband", StudyAlgorithm::hyperband},
     {"syncbohb", StudyAlgorithm::syncbohb},
     {"asha", StudyAlgorithm::asha},
     {"bohb", StudyAlgorithm::bohb},
     {"pbt", StudyAlgorithm::pbt}}};

std::uint32_t count_of(Section& section, const char* key, std::int64_t otherwise, std::int64_t most) {
  return static_cast<std::uint32_t>(section.whole(key, otherwise, 1, most));
}

// Curves in the order in which their trials first stand in the file.
std::vector<LearningCurve> read_curves(const std::filesystem::path& file) {
  std::ifstream in = open_or_throw("the curves", file);
  std::string line;
  if (!std::getline(in, line) ||
      csv_cells(line) != std::vector<std::string>{"trial", "epoch", "seconds", "metric"})
    throw Problem{file.string() + ":1: curves must have the columns trial,epoch,seconds,metric"};
  std::vector<LearningCurve> curves;
  std::map<std::string, std::size_t> place;
  for (std::size_t n = 2; std::getline(in, line); ++n) {
    if (line.empty()) continue;
    const auto at = [&] { return file.string() + ":" + std::to_string(n) + ": "; };
    const auto cells = csv_cells(line);
    if (cells.size() != 4)
      throw Problem{at() + std::to_string(cells.size()) + " cells, but the header has 4"};
    const auto [entry, fresh] = place.try_emplace(cells[0], curves.size());
    if (fresh) {
      if (curves.size() == static_cast<std::size_t>(most_trials))
        throw Problem{at() + "more than 100000 trials"};
      curves.push_back({.name = cells[0], .epoch = {}, .metric = {}});
    }
    LearningCurve& curve = curves[entry->second];
    const double epoch = csv_number(cells[1], file, n), seconds = csv_number(cells[2], file, n);
    if (epoch != static_cast<double>(curve.epoch.size() + 1))
      throw Problem{at() + "trial '" + cells[0] + "' has epoch " + cells[1] + " where " +
                    std::to_string(curve.epoch.size() + 1) + " is next"};
    if (!(seconds >= 1e-6)) throw Problem{at() + "seconds must be from 1e-06 to 1e+09, but is " + cells[2]};
    double metric = std::numeric_limits<double>::quiet_NaN();
    if (!cells[3].empty() && cells[3] != "nan" && cells[3] != "NaN") {
      std::istringstream text(cells[3]);
      if (!(text >> metric) || !text.eof() || !std::isfinite(metric))
        throw Problem{at() + "metric is '" + cells[3] + "', but must be a number, nan or empty"};
    }
    curve.epoch.push_back(from_seconds(seconds));
    curve.metric.push_back(metric);
  }
  if (curves.empty()) throw Problem{file.string() + ": the curves have no rows"};
  return curves;
}

std::vector<SupplyStep> read_supply(Section& section) {
  std::vector<SupplyStep> steps;
  const toml::node* node = section.find("supply");
  if (node == nullptr) return steps;
  const std::string right = section.describe("supply") +
                            " must be a list of [at_s, share], ascending in time, shares from 0 to 1; or the "
                            "name of a CSV file with columns at_s,share";
  const auto add = [&](double at, double share) {
    if (!(at >= 0 && at <= 1e9) || !(share >= 0 && share <= 1)) return false;
    const TimePoint when = TimePoint{} + from_seconds(at);
    if (!steps.empty() && when <= steps.back().at) return false;
    steps.push_back({when, share});
    return true;
  };
  if (const auto name = node->value_exact<std::string>()) {
    const auto file = beside(section.file(), *name);
    std::ifstream in = open_or_throw("the supply", file);
    std::string line;
    if (!std::getline(in, line) || csv_cells(line) != std::vector<std::string>{"at_s", "share"})
      throw Problem{file.string() + ":1: a supply must have the columns at_s,share"};
    for (std::size_t n = 2; std::getline(in, line); ++n) {
      if (line.empty()) continue;
      const auto cells = csv_cells(line);
      if (cells.size() != 2 || !add(csv_number(cells[0], file, n), csv_number(cells[1], file, n)))
        throw Problem{file.string() + ":" + std::to_string(n) +
                      ": must be at_s,share, ascending in time, shares from 0 to 1"};
    }
    return steps;
  }
  if (!node->is_array() || node->as_array()->size() > 1'000'000) section.wrong(node, right);
  for (const toml::node& step : *node->as_array()) {
    const toml::array* pair = step.as_array();
    const bool two = pair != nullptr && pair->size() == 2;
    const auto at = two ? (*pair)[0].value<double>() : std::nullopt;
    const auto share = two ? (*pair)[1].value<double>() : std::nullopt;
    if (!at || !share || !add(*at, *share)) section.wrong(&step, right);
  }
  return steps;
}

void read_devices(Section& top, Study& study) {
  const toml::node* tables = top.find("devices");
  if (tables != nullptr) {
    if (top.has("cluster")) top.wrong(tables, "a study has [cluster] or [[devices]], not both");
    if (!tables->is_array_of_tables()) top.wrong(tables, "devices must be [[devices]]");
    for (const toml::node& table : *tables->as_array()) {
      Section device(*table.as_table(), "devices", top.file());
      device.knows({"count", "speed", "memory", "supply"});
      StudyDevice one{.speed = device.number("speed", 1, 1e-3, 1e3)};
      one.memory = device.bytes("memory").value_or(Bytes{most_bytes});
      one.supply = read_supply(device);
      const auto count = count_of(device, "count", 1, most_devices);
      if (study.devices.size() + count > static_cast<std::size_t>(most_devices))
        device.wrong(&table, "more than 10000 devices");
      study.devices.insert(study.devices.end(), count, one);
      device.done();
    }
    return;
  }
  if (!top.has("cluster")) top.wrong(nullptr, "a study needs [cluster] with its devices, or [[devices]]");
  Section cluster = top.section("cluster");
  cluster.knows({"devices", "memory", "supply"});
  if (!cluster.has("devices")) cluster.wrong(nullptr, "cluster.devices must say how many there are");
  StudyDevice one;
  one.memory = cluster.bytes("memory").value_or(Bytes{most_bytes});
  one.supply = read_supply(cluster);
  study.devices.assign(count_of(cluster, "devices", 1, most_devices), one);
  cluster.done();
}

void read_rungs(Section& section, Study& study) {
  const toml::node* node = section.find("rungs");
  const std::string right =
      "study.rungs must be a list of [trials, epochs more], trials not rising, such as [[81, 1], [27, 2]]";
  if (node == nullptr || !node->is_array() || node->as_array()->empty() || node->as_array()->size() > 100)
    section.wrong(node, right);
  for (const toml::node& rung : *node->as_array()) {
    const toml::array* pair = rung.as_array();
    const bool two = pair != nullptr && pair->size() == 2;
    const auto trials = two ? (*pair)[0].value_exact<std::int64_t>() : std::nullopt;
    const auto epochs = two ? (*pair)[1].value_exact<std::int64_t>() : std::nullopt;
    if (!trials || !epochs || *trials < 1 || *trials > most_trials || *epochs < 1 || *epochs > most_epochs ||
        (!study.rungs.empty() && *trials > study.rungs.back().trials))
      section.wrong(&rung, right);
    study.rungs.push_back({static_cast<std::uint32_t>(*trials), static_cast<std::uint32_t>(*epochs)});
  }
  study.trials = study.rungs.front().trials;
  study.epochs = 0;
  for (const Rung& rung : study.rungs) study.epochs += rung.epochs;
}

void read_algorithm(Section section, Study& study) {
  section.knows(
      {"algorithm", "trials", "rungs", "epochs", "grace", "eta", "rounds", "concurrency", "target", "mode"});
  const toml::node* trials = section.find("trials");
  if (trials != nullptr && trials->is_array()) {
    for (const char* key :
         {"algorithm", "rungs", "epochs", "grace", "eta", "rounds", "concurrency", "target"})
      if (section.has(key))
        section.wrong(section.find(key), std::string(key) + " does not go with trials as a list of seconds");
    if (trials->as_array()->empty()) section.wrong(trials, "study.trials is empty: there is no trial to run");
    if (trials->as_array()->size() > static_cast<std::size_t>(most_trials))
      section.wrong(trials, "more than 100000 trials");
    for (const toml::node& node : *trials->as_array()) {
      const auto value = node.value<double>();
      if (!node.is_number() || !value || !(*value >= 1e-6 && *value <= 1e9))
        section.wrong(&node, "study.trials as a list must have seconds from 1e-06 to 1e+09");
      study.seconds.push_back(*value);
    }
    study.trials = static_cast<std::uint32_t>(study.seconds.size());
    section.done();
    return;
  }
  const std::string name = section.text("algorithm", "");
  const auto* known = std::ranges::find(algorithms, name, &decltype(algorithms)::value_type::first);
  if (known == algorithms.end())
    section.wrong(section.find("algorithm"),
                  "study.algorithm is '" + name +
                      "'; there are grid, halving, hyperband, syncbohb, asha, bohb and pbt (or trials = "
                      "[seconds, ...])");
  study.algorithm = known->second;
  using enum StudyAlgorithm;
  const auto is = [&](auto... which) { return ((study.algorithm == which) || ...); };
  const bool halves = is(halving);
  const auto only = [&](const char* key, bool here) {
    if (section.has(key) && !here)
      section.wrong(section.find(key), std::string(key) + " does not go with algorithm = \"" + name + "\"");
  };
  only("rungs", halves);
  only("trials", is(grid, asha, bohb, pbt));
  only("epochs", !halves);
  only("grace", is(asha, bohb, pbt));
  only("eta", is(hyperband, syncbohb, asha, bohb));
  only("rounds", is(hyperband, syncbohb));
  only("concurrency", is(asha, bohb));
  if (halves) read_rungs(section, study);
  if (!halves) {
    if (!section.has("epochs")) section.wrong(nullptr, "study.epochs must say how many a trial has at most");
    study.epochs = count_of(section, "epochs", 1, most_epochs);
  }
  if (is(grid, asha, bohb, pbt)) {
    if (!section.has("trials")) section.wrong(nullptr, "study.trials must say how many there are");
    study.trials = count_of(section, "trials", 1, most_trials);
  }
  study.grace = count_of(section, "grace", 1, most_epochs);
  study.eta = static_cast<std::uint32_t>(section.whole("eta", 3, 2, 100));
  study.rounds = count_of(section, "rounds", 1, 1000);
  if (section.has("concurrency")) study.concurrency = count_of(section, "concurrency", 1, most_trials);
  if (section.has("target")) study.target = section.number("target", 0, -1e300, 1e300);
  const std::string mode = section.text("mode", "max");
  if (mode != "max" && mode != "min")
    section.wrong(section.find("mode"), "study.mode must be \"max\" or \"min\"");
  study.larger_is_better = mode == "max";
  section.done();
}

void read_told(Section& trial, Study& study) {
  const toml::node* node = trial.find("told");
  if (node == nullptr) return;
  study.tells_seconds = study.tells_overheads = study.tells_move = false;
  const std::string right = "trial.told must be a list of \"seconds\", \"overheads\" and \"move\"";
  if (!node->is_array()) trial.wrong(node, right);
  for (const toml::node& what : *node->as_array()) {
    const auto text = what.value_exact<std::string>();
    if (text == "seconds")
      study.tells_seconds = true;
    else if (text == "overheads")
      study.tells_overheads = true;
    else if (text == "move")
      study.tells_move = true;
    else
      trial.wrong(&what, right);
  }
}

void read_trial(Section trial, Study& study) {
  trial.knows({"epoch_s", "sigma", "curves", "noise", "iterations", "alpha", "beta", "c", "d", "threshold",
               "move_s", "memory", "ephemeral", "told"});
  const bool listed = !study.seconds.empty();
  if (trial.has("curves")) {
    for (const char* key : {"epoch_s", "sigma"})
      if (trial.has(key)) trial.wrong(trial.find(key), std::string(key) + " does not go with curves");
    if (listed) trial.wrong(trial.find("curves"), "curves do not go with trials as a list of seconds");
    study.curves = read_curves(beside(trial.file(), trial.text("curves", "")));
    const std::size_t all = study.curves.size();
    // Under PBT a trial changes curves, and stays at the end of one.
    const std::uint32_t asked = study.algorithm == StudyAlgorithm::pbt ? 1 : study.epochs;
    std::erase_if(study.curves, [&](const LearningCurve& c) { return c.epoch.size() < asked; });
    if (study.curves.empty())
      trial.wrong(trial.find("curves"), "none of the " + std::to_string(all) + " curves has the " +
                                            std::to_string(asked) + " epochs that the study may ask for");
  } else {
    if (listed && trial.has("epoch_s"))
      trial.wrong(trial.find("epoch_s"), "epoch_s does not go with trials as a list of seconds");
    if (!listed && !trial.has("epoch_s")) trial.wrong(nullptr, "trial needs epoch_s, or curves");
    study.epoch = from_seconds(trial.number("epoch_s", 1, 1e-6, 1e9));
    study.sigma = trial.number("sigma", 0, 0, 10);
  }
  if (study.target && study.curves.empty())
    trial.wrong(nullptr, "study.target needs trial.curves: without them there is no metric");
  study.noise = trial.number("noise", 0, 0, 10);
  study.iterations = static_cast<std::uint32_t>(trial.whole("iterations", 20, 0, 1'000'000));
  const double infinite = std::numeric_limits<double>::infinity();
  if (trial.has("c")) study.c = static_cast<int>(trial.whole("c", 1, 1, 64));
  if (trial.has("d")) study.d = static_cast<int>(trial.whole("d", 1, 1, most_devices));
  study.alpha = trial.number("alpha", 1, -infinite, infinite);
  study.beta = trial.number("beta", 1, -infinite, infinite);
  const auto range = [&](const char* key, double value, double below, const std::string& why) {
    if (value >= 1 && value < below && value <= 100) return;
    std::ostringstream text;
    text << "trial." << key << " is " << value << ", but must be at least 1 and below "
         << std::min(below, 100.0) << why;
    trial.wrong(trial.find(key), text.str());
  };
  range("alpha", study.alpha,
        study.c && *study.c > 1 ? static_cast<double>(*study.c) / (*study.c - 1) : infinite,
        study.c && *study.c > 1 ? " = c/(c-1), as else one trial fewer on a device is faster" : "");
  range("beta", study.beta, study.d && *study.d > 1 ? 1 + 1.0 / *study.d : infinite,
        study.d && *study.d > 1 ? " = 1 + 1/d, as else one device fewer is faster" : "");
  study.threshold = trial.number("threshold", 0, 0, 0.99);
  study.move = from_seconds(trial.number("move_s", 0, 0, 1e6));
  study.persistent = trial.bytes("memory").value_or(Bytes{});
  study.ephemeral = trial.bytes("ephemeral").value_or(Bytes{});
  read_told(trial, study);
  const Bytes whole = study.persistent + study.ephemeral;
  if (std::ranges::none_of(study.devices, [&](const StudyDevice& d) { return whole <= d.memory; }))
    trial.wrong(trial.find("memory"), "a trial needs " + to_text(whole) + ", which no device has");
  trial.done();
}

Study build_study(const toml::table& root, const std::filesystem::path& file,
                  std::optional<std::uint64_t> seed) {
  Study study;
  Section top(root, "", file);
  top.knows({"name", "seed", "scheduler", "cluster", "devices", "study", "trial"});
  study.name = top.text("name", file.stem().string());
  study.seed = static_cast<std::uint64_t>(top.whole("seed", 1, 0, std::numeric_limits<std::int64_t>::max()));
  if (seed) study.seed = *seed;
  study.scheduler = top.text("scheduler", "best");
  read_devices(top, study);
  if (!top.has("study")) top.wrong(nullptr, "a study needs [study]");
  read_algorithm(top.section("study"), study);
  read_trial(top.section("trial"), study);
  top.done();
  return study;
}

}  // namespace

std::string_view name_of(StudyAlgorithm algorithm) {
  for (const auto& [name, known] : algorithms)
    if (known == algorithm) return name;
  CARILLON_ASSERT(false);
}

bool has_study(const std::filesystem::path& file) {
  const auto text = read_file("the file", file);
  if (!text) return false;
  try {
    return toml::parse(*text).contains("study");
  } catch (const toml::parse_error&) {
    return false;
  }
}

Result<Study> parse_study(std::string_view text, const std::filesystem::path& where,
                          std::optional<std::uint64_t> seed) {
  try {
    return build_study(toml::parse(text, where.string()), where, seed);
  } catch (const toml::parse_error& error) {
    return invalid(place_of(where, error.source()) + ": " + std::string(error.description()));
  } catch (const Problem& problem) {
    return invalid(problem.message);
  }
}

Result<Study> read_study(const std::filesystem::path& file, std::optional<std::uint64_t> seed) {
  const auto text = read_file("the study", file);
  if (!text) return std::unexpected(text.error());
  return parse_study(*text, file, seed);
}

}  // namespace carillon::workload
