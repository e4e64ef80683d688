#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/controller/models/model_loader.h"
#include "carillon/engine/weight_files.h"
#include "carillon/profile/profile.h"

namespace carillon::controller {

// What a server measured of its models before, so that the next start need not: a note of the store for each.
// From any thread.
class KeptTimes {
 public:
  // `machine`: processor, instructions, libraries and program, as far as times depend on them; UTF-8.
  KeptTimes(std::shared_ptr<engine::WeightFiles> store, std::string machine);

  // The note's name: a digest of the machine, the model's file, its plans and their threads. Nothing where
  // nobody knows what its file held.
  std::optional<std::string> name_of(const PreparedModel& model, int threads) const;
  // Nothing where there is none, or it is no profile.
  std::optional<profile::ModelProfile> find(const std::string& name) const;
  // Left out where the store does not take it.
  void keep(const std::string& name, profile::ModelProfile measured, int threads) const;

 private:
  std::shared_ptr<engine::WeightFiles> store_;
  std::string machine_;
};

// Answers from what is kept of a model, and asks another stopwatch for the rest.
class KeptWatch final : public Stopwatch {
 public:
  // All outlive it. `threads` >= 1: what runs have by `other`.
  KeptWatch(Stopwatch& other, const KeptTimes& kept, const PreparedModel& model, int threads);

  // Of what is kept, the least of the times that were measured, again and again.
  Result<std::vector<Duration>> exec(int batch, int repeats, std::int64_t length,
                                     std::string* refused) override;
  Result<std::vector<Duration>> load(int repeats) override;
  // Keeps what was measured since; not where a run was refused.
  void keep();

 private:
  profile::BatchTimes* times_of(int batch, std::int64_t length);
  void note(int batch, std::int64_t length, const profile::Times& exec);

  Stopwatch& other_;
  const KeptTimes& kept_;
  int threads_;
  std::optional<std::string> name_;
  profile::ModelProfile times_;  // load.n is 0 where it is not known
  bool changed_ = false, refused_ = false;
};

}  // namespace carillon::controller
