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

bool is_text(std::string_view text, std::size_t longest) {
  return !text.empty() && text.size() <= longest &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

std::string KernelChoices::header() {
  const dnnl_version_t* version = dnnl::version();
  std::ostringstream out;
  out << "carillon kernel choices 1;" << processor() << "; isa "
      << static_cast<int>(dnnl::get_effective_cpu_isa()) << "; oneDNN " << version->major << '.'
      << version->minor << '.' << version->patch;
  return out.str();
}

KernelChoices::KernelChoices(std::filesystem::path file, std::string* problem) : file_(std::move(file)) {
  if (auto done = read(); !done) {
    names_.clear();
    if (problem != nullptr) *problem = done.error().message;
  }
}

Result<> KernelChoices::read() {
  const std::string where = "kernel choices " + file_.string() + ": ";
  std::error_code error;
  const auto status = std::filesystem::status(file_, error);
  if (status.type() == std::filesystem::file_type::not_found) return {};
  if (!std::filesystem::is_regular_file(status)) return invalid(where + "is not a file");
  const std::uintmax_t size = std::filesystem::file_size(file_, error);
  if (error) return invalid(where + error.message());
  if (size > largest_file)
    return invalid(where + std::to_string(size) + " bytes; at most " + std::to_string(largest_file) +
                   " are read");
  std::string all(static_cast<std::size_t>(size), '\0');
  std::ifstream in(file_, std::ios::binary);
  in.read(all.data(), static_cast<std::streamsize>(all.size()));
  if (!in) return invalid(where + "cannot be read");
  std::istringstream lines(all);
  std::string line;
  if (!std::getline(lines, line) || line != header())
    return invalid(where + "is another machine's or version's, or no such file; it should begin with \"" +
                   header() + "\"");
  for (int number = 2; std::getline(lines, line); ++number) {
    const std::string at = where + "line " + std::to_string(number) + " ";
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos || lines.eof()) return invalid(at + "is cut off");
    const std::string_view key = std::string_view(line).substr(0, tab),
                           name = std::string_view(line).substr(tab + 1);
    if (!is_text(key, longest_key) || !is_text(name, longest_name))
      return invalid(at + "is not a key, a tab and a name");
    if (names_.size() == most) return invalid(at + "is beyond the " + std::to_string(most) + " that are kept");
    if (!names_.emplace(key, name).second) return invalid(at + "says something a second time");
  }
  return {};
}

std::optional<std::string> KernelChoices::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(key);
  return found == names_.end() ? std::nullopt : std::optional(found->second);
}

void KernelChoices::keep(const std::string& key, const std::string& name) {
  if (!is_text(key, longest_key) || !is_text(name, longest_name)) return;
  const std::lock_guard lock(mutex_);
  ++measured_;
  if (names_.size() < most || names_.contains(key)) names_[key] = name;
}

std::size_t KernelChoices::size() const {
  const std::lock_guard lock(mutex_);
  return names_.size();
}

std::uint64_t KernelChoices::measured() const {
  const std::lock_guard lock(mutex_);
  return measured_;
}

Result<> KernelChoices::save() {
  const std::lock_guard saving(saving_);
  std::string text = header() + "\n";
  std::uint64_t now = 0;
  {
    const std::lock_guard lock(mutex_);
    if (file_.empty() || measured_ == saved_) return {};
    now = measured_;
    for (const auto& [key, name] : names_) text.append(key).append("\t").append(name).append("\n");
  }
  std::filesystem::path partial = file_;
  partial += ".partial." + std::to_string(::getpid());
  std::error_code error;
  {
    std::ofstream out(partial, std::ios::binary | std::ios::trunc);
    out << text;
    out.close();
    if (!out) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) std::filesystem::rename(partial, file_, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    return fail(ErrorCode::unavailable,
                "kernel choices " + file_.string() + ": cannot be written: " + error.message());
  }
  const std::lock_guard lock(mutex_);
  saved_ = now;
  return {};
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
    } catch (const dnnl::error&) {
    } catch (const std::bad_alloc&) {
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
    const double gain =
        static_cast<double>(ready.front().least.count()) /
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
