#include "carillon/engine/cpu/candidates.h"

#include <algorithm>
#include <fstream>
#include <new>
#include <sstream>
#include <system_error>
#include <utility>

#include <dnnl.hpp>
#include <unistd.h>

#include "carillon/base/assert.h"

namespace carillon::engine::cpu {

namespace {

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, out;
  // Of the first core alone, which an empty line ends.
  for (int lines = 0; lines < 64 && std::getline(info, line) && !line.empty(); ++lines)
    for (const std::string_view field : {"model name", "cpu family", "model\t", "stepping", "cache size"})
      if (line.starts_with(field)) out += line.substr(std::min(line.size(), line.find(':') + 1));
  return out;
}

}  // namespace

std::string choices_header() {
  const dnnl_version_t* version = dnnl::version();
  std::ostringstream out;
  out << "carillon kernel choices 1;" << processor() << "; isa "
      << static_cast<int>(dnnl::get_effective_cpu_isa()) << "; oneDNN " << version->major << '.'
      << version->minor << '.' << version->patch;
  return out.str();
}

std::size_t fastest(std::span<const Candidate> candidates, Duration slice, const Clock& clock) {
  CARILLON_ASSERT(!candidates.empty());
  struct Ready {
    std::size_t index;
    std::function<void()> run;
    Duration least;
  };
  std::vector<Ready> ready;
  const TimePoint start = clock.now();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    try {
      std::function<void()> run = candidates[i].prepare();
      run();  // makes what is made at first, touches its memory
      ready.push_back({i, std::move(run), Duration::max()});
    } catch (const dnnl::error&) {     // NOLINT(bugprone-empty-catch): then it is none
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): likewise
    }
    // Without the rule's there is nothing to compare with.
    if (ready.empty()) return 0;
    // A candidate may be hopeless: others still deserve their turn, but not for ever.
    if (clock.now() - start > 4 * slice && i + 1 < candidates.size()) break;
  }
  constexpr int least_rounds = 3, most_rounds = 40;
  const auto compare = [&](Duration time) {
    const TimePoint begin = clock.now();
    for (Ready& each : ready) each.least = Duration::max();
    for (int round = 0; round < most_rounds; ++round) {
      if (round >= least_rounds && clock.now() - begin >= time) break;
      for (Ready& each : ready) {
        const TimePoint before = clock.now();
        each.run();
        each.least = std::min(each.least, clock.now() - before);
      }
    }
    const auto best = std::ranges::min_element(ready, {}, &Ready::least);
    const double gain = static_cast<double>(ready.front().least.count()) /
                        static_cast<double>(std::max<Duration::rep>(best->least.count(), 1));
    return gain >= clearly ? static_cast<std::size_t>(best - ready.begin()) : 0;
  };
  const std::size_t first = compare(slice / 2);
  if (first == 0) return 0;
  // Once more against the rule's alone: of many that are equally fast one always looks faster.
  std::swap(ready[1], ready[first]);
  ready.resize(2);
  return compare(slice / 2) == 0 ? 0 : ready[1].index;
}

void Chooser::allow(std::map<std::string, Duration> slices, Duration budget) {
  slices_ = std::move(slices);
  left_ = budget;
  frozen_ = false;
}

void Chooser::freeze() {
  slices_.clear();
  frozen_ = true;
}

std::string Chooser::choose(const std::string& node, const std::string& key,
                            const std::function<std::vector<Candidate>()>& candidates) {
  if (const auto made = made_.find(key); made != made_.end()) return made->second;
  std::string name;
  if (const auto kept = frozen_ ? std::nullopt : kept_.find(key)) {
    name = *kept;
  } else if (const auto slice = slices_.find(node); slice != slices_.end() && left_ > Duration{0}) {
    const TimePoint start = clock_.now();
    const std::vector<Candidate> all = candidates();
    if (all.empty()) return {};
    const std::size_t chosen = all.size() == 1 ? 0 : fastest(all, std::min(slice->second, left_), clock_);
    name = chosen == 0 ? "rule" : all[chosen].name;
    kept_.keep(key, name);
    left_ -= clock_.now() - start;
  } else {
    if (frozen_) made_[key].clear();
    return {};  // else it may be measured yet
  }
  if (name == "rule") name.clear();
  differs_ = differs_ || !name.empty();
  made_[key] = name;
  return name;
}

}  // namespace carillon::engine::cpu
