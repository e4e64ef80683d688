#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/controller.h"
#include "carillon/controller/models/model_loader.h"
#include "carillon/controller/models/stamps.h"
#include "carillon/repository/repository.h"

namespace carillon::controller {

struct LoaderOptions {
  SeedOptions seeds;
  // Which models, by name; the others become views that are not loaded. Empty: all.
  std::function<bool(const std::string& model)> wanted;
  LoadObserver progress;  // from several threads, one at a time
  repository::ReadOptions reading;
  // Threads that read and compile models; >= 1. While a model is measured one fewer begins to.
  int makers = 1;
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
// and adds them. Makers have a low priority, so that they slow neither what serves nor what is measured.
// Models whose kernels are measured while they are compiled are made while nothing else is made or measured.
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
  // Until all models are through; after end() until those are that are just being made. Where targets differ,
  // the slowest one's times are the seeds. A model that cannot be served becomes a view that is not ready,
  // with the reason.
  LoadReport run();
  // This model, or the models of this ensemble, go before others that nobody asked for. Any thread; an
  // unknown name means nothing.
  void want(std::string_view model);
  // Models that are not made yet are left. Any thread, again and again.
  void end();

 private:
  // Whose turn it is: those who make and measure beside each other, or one alone. Where somebody waits to be
  // alone, no other maker begins. A maker is alone once all that is made is measured: to make a model alone
  // may take a minute, and models that are made are to be served before.
  class Turn {
   public:
    enum class Kind : std::uint8_t { making, measuring, making_alone, measuring_alone };
    Turn(FirstLoad& load, Kind kind);
    // `lock` holds the mutex of `load` before and after; it is free while this waits.
    Turn(FirstLoad& load, Kind kind, std::unique_lock<std::mutex>& lock);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turn(FirstLoad& load, Kind kind, std::unique_lock<std::mutex>&& lock) : Turn(load, kind, lock) {}
    static bool is_alone(Kind kind) { return kind == Kind::making_alone || kind == Kind::measuring_alone; }

    FirstLoad& load_;
    Kind kind_;
  };
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

  bool ended();
  void make();
  Turn::Kind first_turn(std::size_t item) const;
  Made make_one(std::size_t item, std::optional<Turn>& turn);
  std::optional<Made> next_made(std::size_t left);
  const repository::ModelVersion& version_of(std::size_t item) const {
    return items_[item].entry->versions[items_[item].version];
  }
  std::string label(std::size_t item) const;
  Result<PreparedModel> prepare(std::size_t item);
  void take_in(Made made);
  void give_up(const std::string& model, ModelView view, const Error& error);
  void count_ensembles();
  void tell(const std::string& model, std::string doing);
  void note(std::string text);
  bool wanted(const repository::RepositoryEntry& entry) const { return names_.contains(entry.name); }

  const std::filesystem::path directory_;
  const std::vector<LoadTarget> targets_;
  Controller& controller_;
  const LoaderOptions options_;
  std::vector<repository::RepositoryEntry> entries_;
  std::map<std::string, const repository::RepositoryEntry*, std::less<>> ensembles_;  // by name
  std::set<std::string> names_;                                                       // that are wanted
  std::map<std::string, EntryStamps> stamps_;                                         // of these
  LoadReport report_;                                                                 // of run()'s thread

  std::mutex telling_;  // of what follows
  LoadProgress progress_;

  std::mutex mutex_;  // of what follows; not taken with the other but in look()
  std::condition_variable made_one_, took_one_, turn_ended_;
  int beside_ = 0;         // who make and measure now
  int waiting_alone_ = 0;  // before whom nobody else begins
  bool one_alone_ = false;
  std::vector<Item> items_;
  std::map<std::string, std::vector<std::size_t>, std::less<>> items_of_;  // by model; fixed after look()
  std::deque<std::size_t> asked_;                                          // of items_, the first asked first
  std::size_t next_ = 0;  // of items_: none before it is left
  std::deque<Made> made_;
  std::size_t unmeasured_ = 0;  // those of made_, and the one that is taken in
  bool ended_ = false;
  std::vector<std::thread> makers_;
};

// The same at once, with one maker.
Result<LoadReport> load_models(const std::filesystem::path& directory, std::span<const LoadTarget> targets,
                               Controller& controller, const LoaderOptions& options);

}  // namespace carillon::controller
