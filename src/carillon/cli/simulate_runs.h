#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include "carillon/base/result.h"

// What `carillon simulate` does alike with files of jobs and with files of studies. A Run has a `report`.
namespace carillon::cli {

// `read(file, seed)` for each seed; without seeds once, with the file's own. Error: the first of `read`.
template <typename Read>
auto read_seeds(const std::string& file, const std::vector<std::uint64_t>& seeds, const Read& read) {
  using One = typename decltype(read(file, std::optional<std::uint64_t>()))::value_type;
  std::vector<std::optional<std::uint64_t>> wanted(seeds.begin(), seeds.end());
  if (wanted.empty()) wanted.emplace_back();
  std::vector<One> all;
  for (const auto& seed : wanted) {
    auto one = read(file, seed);
    if (!one) return Result<std::vector<One>>(std::unexpected(std::move(one.error())));
    all.push_back(std::move(*one));
  }
  return Result<std::vector<One>>(std::move(all));
}

// Says, on a terminal, how many runs are done and what else there is to say of one. False: it is to end.
using TellRun = std::function<bool(const std::string& more)>;

// `run_one(run, tell)` for each, `at_a_time` of them beside each other, while `go_on()`. Errors: one of
// `run_one`, after which no more begin on its thread; `cancelled`, where go_on() said no.
template <typename Run, typename RunOne>
Result<> run_each(std::vector<Run>& runs, int at_a_time, bool (*go_on)(), const RunOne& run_one) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  std::mutex mutex;
  std::optional<Error> error;
  std::atomic<std::size_t> next{0}, done{0};
  const TellRun tell = [&](const std::string& more) {
    if (terminal) {
      const std::lock_guard lock(mutex);
      fmt::print(stderr, "\r{} of {} runs done{}   ", done.load(), runs.size(), more);
    }
    return go_on();
  };
  const auto work = [&] {
    for (std::size_t i = next++; i < runs.size() && go_on(); i = next++) {
      if (const Result<> ran = run_one(runs[i], tell); !ran) {
        const std::lock_guard lock(mutex);
        error = ran.error();
        return;
      }
      ++done;
    }
  };
  std::vector<std::thread> threads;
  const auto workers = std::min<std::size_t>(static_cast<std::size_t>(at_a_time), runs.size());
  for (std::size_t i = 1; i < workers; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (terminal) fmt::print(stderr, "\r{:<60}\r", "");
  if (error) return std::unexpected(std::move(*error));
  if (!go_on())
    return fail(ErrorCode::cancelled,
                fmt::format("interrupted; {} of {} runs were done", done.load(), runs.size()));
  return {};
}

// One object, or {"runs": [...]}. `each`: the report's parts, too.
template <typename Run>
std::string runs_as_json(const std::vector<Run>& runs, bool each) {
  if (runs.size() == 1) return to_json(runs.front().report, each).dump(2) + "\n";
  nlohmann::ordered_json all;
  all["runs"] = nlohmann::ordered_json::array();
  for (const Run& run : runs) all["runs"].push_back(to_json(run.report, each));
  return all.dump(2) + "\n";
}

// A table for those in a row that have one name, `name_of(run)`.
template <typename Run, typename NameOf>
std::string runs_as_tables(const std::vector<Run>& runs, const NameOf& name_of) {
  std::string text;
  for (std::size_t first = 0; first < runs.size();) {
    std::vector<decltype(Run::report)> of_one;
    std::size_t last = first;
    while (last < runs.size() && name_of(runs[last]) == name_of(runs[first]))
      of_one.push_back(runs[last++].report);
    text += to_table(of_one);
    first = last;
  }
  return text;
}

}  // namespace carillon::cli
