#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/kernel_choices.h"

// Which of several ways that are equally right a kernel takes: what was measured once is kept.
namespace carillon::engine::cpu {

// What begins a file of choices of the CPU's kernels: format, processor, instruction set, oneDNN.
std::string choices_header();

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
