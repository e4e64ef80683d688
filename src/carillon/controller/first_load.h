#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/controller.h"
#include "carillon/controller/model_loader.h"
#include "carillon/controller/stamps.h"
#include "carillon/repository/repository.h"

namespace carillon::controller {

struct LoaderOptions {
  SeedOptions seeds;
  // Which models, by name; the others become views that are not loaded. Empty: all.
  std::function<bool(const std::string& model)> wanted;
  LoadObserver progress;  // from several threads, one at a time
  repository::ReadOptions reading;
  int makers = 1;  // threads that read and compile models; >= 1
  // Gets each of LoadReport::notes as it comes, on the thread of run().
  std::function<void(const std::string&)> note;
};

struct LoadReport {
  std::size_t ready = 0;
  std::size_t not_ready = 0;
  // A line each: models that are not ready and why, what configs say that is not heeded, what did not fit.
  std::vector<std::string> notes;
  Stamps stamps;  // of the files as they were before they were read
};

// Brings all models of a repository into the workers and the controller, once. With SeedOptions::aside the
// controller may run: each model is served as soon as it is ready.
//
// Several threads make models, the most wanted first; one, which is the caller of run(), registers, measures
// and adds them. Once a model is served the makers have a low priority. Models whose kernels are measured
// while they are compiled are made while nothing else is.
class FirstLoad {
 public:
  // `targets` (one, at least) and `controller`, which gets the targets' workers afterwards or has them,
  // outlive it.
  FirstLoad(std::filesystem::path directory, std::span<const LoadTarget> targets, Controller& controller,
            LoaderOptions options);
  ~FirstLoad();  // end()s, and waits for what is just being made
  FirstLoad(const FirstLoad&) = delete;
  FirstLoad& operator=(const FirstLoad&) = delete;

  // Puts a view of every model into the controller. The only error is a repository that cannot be read.
  // Before run(), from its thread.
  Result<> look();
  // Until all models are through, or end(). Where targets differ, the slowest one's times are the seeds. A
  // model that cannot be served becomes a view that is not ready, with the reason.
  LoadReport run();
  // This model, or the models of this ensemble, go before others that nobody asked for. Any thread; an
  // unknown name means nothing.
  void want(std::string_view model);
  // Models that are not made yet are left. Any thread, again and again.
  void end();

 private:
  struct Item {
    const repository::RepositoryEntry* entry = nullptr;
    std::size_t version = 0;  // its place in the entry
    bool taken = false;
    bool asked = false;
  };
  struct Made {
    std::size_t item = 0;
    TimePoint began;
    Result<PreparedModel> model = PreparedModel{};
  };

  void make();
  Made make_one(std::size_t item);
  std::optional<Made> next_made(std::size_t left);
  void take_in(Made made);
  void give_up(const std::string& model, ModelView view, const Error& error);
  void count_ensembles();
  void tell(const std::string& model, std::string doing, bool failed = false);
  void note(std::string text);
  bool wanted(const repository::RepositoryEntry& entry) const { return names_.contains(entry.name); }

  const std::filesystem::path directory_;
  const std::vector<LoadTarget> targets_;
  Controller& controller_;
  const LoaderOptions options_;
  std::vector<repository::RepositoryEntry> entries_;
  std::set<std::string> names_;                // that are wanted
  std::map<std::string, EntryStamps> stamps_;  // of these
  LoadReport report_;                          // of run()'s thread
  std::atomic<bool> some_served_{false};
  std::shared_mutex alone_;  // shared by those who make, but who measures is alone

  std::mutex telling_;  // of what follows
  LoadProgress progress_;

  std::mutex mutex_;  // of what follows; not taken with the other but in look()
  std::condition_variable made_one_, took_one_;
  std::vector<Item> items_;
  std::deque<std::size_t> asked_;  // of items_, the first asked first
  std::size_t next_ = 0;           // of items_: none before it is left
  std::deque<Made> made_;
  bool ended_ = false;
  std::vector<std::thread> makers_;
};

// The same at once, with one maker.
Result<LoadReport> load_models(const std::filesystem::path& directory, std::span<const LoadTarget> targets,
                               Controller& controller, const LoaderOptions& options);

}  // namespace carillon::controller
