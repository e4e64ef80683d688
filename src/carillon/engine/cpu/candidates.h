#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"

// Which of several ways that are equally right a kernel takes: what was measured once is kept.
namespace carillon::engine::cpu {

// Names of ways, by what decides how long they take: operator, shapes, types, layouts, attributes, what is
// fused, number of parts. Of one machine; shared by all models of a process, and with a file by all processes
// that name it. A choice only says which of the right ways is taken, so a wrong one costs time and nothing
// else. From any thread.
class KernelChoices {
 public:
  static constexpr std::size_t most = 16384;  // any more are measured and not kept
  static constexpr std::size_t longest_key = 1024, longest_name = 64;
  static constexpr std::uintmax_t largest_file = 8 << 20;

  // In memory alone.
  KernelChoices() = default;
  // What `file` has; it need not exist. Nothing of one that is damaged, too large or another machine's, which
  // `problem` then says; save() replaces it.
  explicit KernelChoices(std::filesystem::path file, std::string* problem = nullptr);

  std::optional<std::string> find(const std::string& key) const;
  void keep(const std::string& key, const std::string& name);
  std::size_t size() const;
  // How many were kept since the object was made: each is one that was measured.
  std::uint64_t measured() const;
  // Writes the file anew, where there is one and something was kept since; whole or not at all.
  Result<> save();

  // What a file must begin with: format, processor, instruction set, oneDNN.
  static std::string header();

 private:
  Result<> read();

  std::filesystem::path file_;
  std::mutex saving_;         // held while the file is written
  mutable std::mutex mutex_;  // of what follows
  std::map<std::string, std::string> names_;
  std::uint64_t measured_ = 0, saved_ = 0;
};

// One way to run a kernel.
struct Candidate {
  std::string name;  // without spaces at its ends, tabs or line ends
  // Finds memory; what it gives back runs once. May throw dnnl::error or std::bad_alloc: then it is none.
  std::function<std::function<void()>()> prepare;
};

// The index of the candidate to take. The first is the rule's: another must take clearly less, twice. They
// run in turns, for about `slice`, but at least three times each; the least times count.
//
// "Clearly" is by a twentieth: least times of the same kernel in turns differ by up to 3% on a machine that
// does other things too, so noise does not pass both rounds; and what is gained by less is not worth another
// layout of the weights.
constexpr double clearly = 1.05;
std::size_t fastest(std::span<const Candidate> candidates, Duration slice, const Clock& clock);

// Chooses for the kernels of one model while it is compiled: as was kept, or, where it may, as it measures. A
// choice stays for as long as the chooser, so that a plan that is made again is the same.
class Chooser {
 public:
  Chooser(KernelChoices& kept, const Clock& clock) : kept_(kept), clock_(clock) {}

  // From now on, until freeze(), kernels of these nodes may be measured, each for about so long, and all for
  // `budget`; of others what is kept is heeded.
  void allow(std::map<std::string, Duration> slices, Duration budget);
  // Ends measuring: what has no choice yet has the rule's for good.
  void freeze();

  // The name of the candidate to take; empty: the rule's, whatever that is called. `candidates` is only asked
  // for to measure, the rule's first.
  std::string choose(const std::string& node, const std::string& key,
                     const std::function<std::vector<Candidate>()>& candidates);

  KernelChoices& kept() { return kept_; }
  const Clock& clock() const { return clock_; }
  // Whether any choice was another than the rule's.
  bool differs() const { return differs_; }

 private:
  KernelChoices& kept_;
  const Clock& clock_;
  std::map<std::string, Duration> slices_;
  Duration left_{0};
  std::map<std::string, std::string> made_;
  bool frozen_ = false;
  bool differs_ = false;
};

}  // namespace carillon::engine::cpu
