#include "carillon/simulate/tuners.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"

namespace carillon::simulate {
namespace {

using workload::Study;
using workload::StudyAlgorithm;
using Orders = std::vector<TunerOrder>;
using Kind = TunerOrder::Kind;

// Results that must be in before a model is better than chance: of as many trials as one has parameters, and
// two (BOHB's N_min is d + 1; Table 3.3's tasks have up to 10 parameters).
constexpr std::size_t model_needs = 12;
// What a model that is right more often than not does: it draws so many settings and takes the best. A
// stand-in: recorded curves have no parameters to model.
constexpr std::uint32_t model_guesses = 3;

constexpr std::uint32_t most_at_a_time = 100'000;

double worth(double score) {
  return std::isnan(score) ? -std::numeric_limits<double>::infinity() : score;
}

// All at once, each to its end.
class Grid final : public StudyTuner {
 public:
  explicit Grid(const Study& study) : study_(study) {}
  void begin(std::size_t, Orders& out) override {
    std::vector<std::uint32_t> all(study_.trials);
    std::iota(all.begin(), all.end(), 0U);
    out.push_back({.kind = Kind::group, .trials = std::move(all), .epochs = study_.epochs});
  }
  void reached(std::uint32_t trial, std::uint32_t, double, std::size_t, Orders& out) override {
    out.push_back({.kind = Kind::end, .trials = {trial}});
  }

 private:
  const Study& study_;
};

struct Bracket {
  std::vector<workload::Rung> rungs;
};

// Brackets of successive halving, one after the other: each rung waits for all of its trials.
class Halving final : public StudyTuner {
 public:
  Halving(std::vector<Bracket> brackets, bool models) : brackets_(std::move(brackets)), models_(models) {}
  void begin(std::size_t, Orders& out) override { open(out); }
  void reached(std::uint32_t trial, std::uint32_t, double score, std::size_t, Orders& out) override {
    out.push_back({.kind = Kind::pause, .trials = {trial}});
    ++results_;
    scores_.push_back({worth(score), trial});
    if (scores_.size() < waited_) return;
    // The best first; of equals the older.
    std::ranges::stable_sort(scores_, [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    const Bracket& bracket = brackets_[at_];
    ++rung_;
    const std::size_t keeps =
        rung_ < bracket.rungs.size() ? std::min<std::size_t>(bracket.rungs[rung_].trials, scores_.size()) : 0;
    std::vector<std::uint32_t> kept;
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      if (i < keeps)
        kept.push_back(scores_[i].second);
      else
        out.push_back({.kind = Kind::end, .trials = {scores_[i].second}});
    }
    scores_.clear();
    if (keeps > 0) {
      waited_ = keeps;
      std::ranges::sort(kept);
      out.push_back({.kind = Kind::group, .trials = std::move(kept), .epochs = bracket.rungs[rung_].epochs});
    } else if (++at_ < brackets_.size()) {
      open(out);
    }
  }
  std::uint32_t guesses() const override { return models_ && results_ >= model_needs ? model_guesses : 1; }

 private:
  void open(Orders& out) {
    rung_ = 0;
    const workload::Rung& first = brackets_[at_].rungs.front();
    std::vector<std::uint32_t> all(first.trials);
    std::iota(all.begin(), all.end(), made_);
    made_ += first.trials;
    waited_ = all.size();
    out.push_back({.kind = Kind::group, .trials = std::move(all), .epochs = first.epochs});
  }

  std::vector<Bracket> brackets_;
  bool models_;
  std::size_t at_ = 0, rung_ = 0, waited_ = 0, results_ = 0;
  std::uint32_t made_ = 0;
  std::vector<std::pair<double, std::uint32_t>> scores_;
};

// Hyperband's brackets for `epochs` at most (Li et al., Algorithm 1), the widest first, `rounds` times.
std::vector<Bracket> hyperband(const Study& study) {
  int most = 0;
  for (std::uint64_t r = study.eta; r <= study.epochs; r *= study.eta) ++most;
  std::vector<Bracket> brackets;
  for (std::uint32_t round = 0; round < study.rounds; ++round)
    for (int s = most; s >= 0; --s) {
      const double eta = study.eta;
      const double n = std::ceil((most + 1.0) / (s + 1) * std::pow(eta, s));
      Bracket bracket;
      std::uint32_t had = 0;
      for (int i = 0; i <= s; ++i) {
        const auto trials =
            static_cast<std::uint32_t>(std::max(1.0, std::floor(n * std::pow(eta, -i) + 1e-9)));
        const auto epochs =
            static_cast<std::uint32_t>(std::max(1.0, std::round(study.epochs * std::pow(eta, i - s))));
        if (epochs <= had) continue;  // rounding made two rungs of one
        bracket.rungs.push_back({trials, epochs - had});
        had = epochs;
      }
      brackets.push_back(std::move(bracket));
    }
  return brackets;
}

// Epochs of the rungs of an asynchronous tuner: grace, times eta, ... and `epochs` last.
std::vector<std::uint32_t> rungs_of(const Study& study) {
  std::vector<std::uint32_t> rungs;
  for (std::uint64_t r = study.grace; r < study.epochs; r *= study.eta)
    rungs.push_back(static_cast<std::uint32_t>(r));
  rungs.push_back(study.epochs);
  return rungs;
}

// What asynchronous tuners have in common: they keep as many trials as are wanted, each a group of its own.
class Asynchronous : public StudyTuner {
 public:
  explicit Asynchronous(const Study& study)
      : study_(study), rungs_(rungs_of(study)), scores_(rungs_.size()) {}
  void begin(std::size_t appetite, Orders& out) final {
    // The first wave is one group.
    std::vector<std::uint32_t> wave;
    while (going_ < wanted(appetite) && made_ < study_.trials) {
      wave.push_back(made_++);
      ++going_;
    }
    if (!wave.empty()) out.push_back({.kind = Kind::group, .trials = std::move(wave), .epochs = rungs_[0]});
  }

 protected:
  std::size_t wanted(std::size_t appetite) const {
    return std::max<std::size_t>(
        1, std::min<std::size_t>(appetite, study_.concurrency.value_or(most_at_a_time)));
  }
  std::size_t rung_at(std::uint32_t epochs) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(rungs_, epochs) - rungs_.begin());
  }
  void start(std::size_t appetite, Orders& out) {
    while (going_ < wanted(appetite) && made_ < study_.trials) {
      out.push_back({.kind = Kind::group, .trials = {made_++}, .epochs = rungs_[0]});
      ++going_;
    }
  }

  const Study& study_;
  std::vector<std::uint32_t> rungs_;
  std::vector<std::vector<double>> scores_;  // by rung
  std::size_t going_ = 0;
  std::uint32_t made_ = 0;
};

// ASHA as Ray Tune has it: a trial that is not among the best of those at its rung so far is stopped; none is
// ever paused.
class Asha final : public Asynchronous {
 public:
  using Asynchronous::Asynchronous;
  void reached(std::uint32_t trial, std::uint32_t epochs, double score, std::size_t appetite,
               Orders& out) override {
    const std::size_t rung = rung_at(epochs);
    std::vector<double>& known = scores_[rung];
    bool goes_on = rung + 1 < rungs_.size();
    if (!known.empty()) {
      // The (1 - 1/eta) quantile, between two values where it falls there.
      std::vector<double> sorted = known;
      std::ranges::sort(sorted);
      const double at = (1 - 1.0 / study_.eta) * static_cast<double>(sorted.size() - 1);
      const auto low = static_cast<std::size_t>(at);
      const double high = sorted[std::min(low + 1, sorted.size() - 1)];
      const double part = at - static_cast<double>(low);
      const double cutoff = part > 0 ? sorted[low] + part * (high - sorted[low]) : sorted[low];
      goes_on = goes_on && !(worth(score) < cutoff);
    }
    known.push_back(worth(score));
    if (goes_on) {
      out.push_back({.kind = Kind::go_on, .trials = {trial}, .epochs = rungs_[rung + 1] - epochs});
      return;
    }
    out.push_back({.kind = Kind::end, .trials = {trial}});
    --going_;
    start(appetite, out);
  }
};

// BOHB, asynchronous: a trial is paused at its rung, and goes on once it is among the best 1/eta of it; else
// a new one begins, which a model has guessed.
class Bohb final : public Asynchronous {
 public:
  using Asynchronous::Asynchronous;
  void reached(std::uint32_t trial, std::uint32_t epochs, double score, std::size_t appetite,
               Orders& out) override {
    const std::size_t rung = rung_at(epochs);
    ++results_;
    if (at_rung_.size() < rungs_.size()) at_rung_.resize(rungs_.size());
    at_rung_[rung].push_back({worth(score), trial, false});
    if (rung + 1 == rungs_.size())
      out.push_back({.kind = Kind::end, .trials = {trial}});
    else
      out.push_back({.kind = Kind::pause, .trials = {trial}});
    --going_;
    while (going_ < wanted(appetite)) {
      if (!promote(out)) {
        if (made_ >= study_.trials) break;
        out.push_back({.kind = Kind::group, .trials = {made_++}, .epochs = rungs_[0]});
      }
      ++going_;
    }
    // When no more can come, what still waits at its rung never will go on.
    if (going_ > 0 || made_ < study_.trials) return;
    for (auto& list : at_rung_)
      for (Waiting& w : list)
        if (!w.gone) {
          w.gone = true;
          if (&list != &at_rung_.back()) out.push_back({.kind = Kind::end, .trials = {w.trial}});
        }
  }
  std::uint32_t guesses() const override { return results_ >= model_needs ? model_guesses : 1; }

 private:
  struct Waiting {
    double score = 0;
    std::uint32_t trial = 0;
    bool gone = false;  // promoted
  };

  // The best of the highest rung that is among the best 1/eta there and was not promoted before.
  bool promote(Orders& out) {
    for (std::size_t rung = rungs_.size() - 1; rung-- > 0;) {
      auto& list = at_rung_[rung];
      std::ranges::stable_sort(list, [](const Waiting& a, const Waiting& b) { return a.score > b.score; });
      const std::size_t best = list.size() / study_.eta;
      for (std::size_t i = 0; i < best; ++i) {
        if (list[i].gone) continue;
        list[i].gone = true;
        out.push_back(
            {.kind = Kind::group, .trials = {list[i].trial}, .epochs = rungs_[rung + 1] - rungs_[rung]});
        return true;
      }
    }
    return false;
  }

  std::vector<std::vector<Waiting>> at_rung_;
  std::size_t results_ = 0;
};

// PBT: after each `grace` epochs a trial that is in the lowest quarter goes on from the weights of one of the
// highest quarter, three times of four with a setting near that one's.
class Pbt final : public StudyTuner {
 public:
  explicit Pbt(const Study& study)
      : study_(study), random_(study.seed ^ 0x706274ULL), scores_(study.trials), seen_(study.trials) {}
  void begin(std::size_t, Orders& out) override {
    std::vector<std::uint32_t> all(study_.trials);
    std::iota(all.begin(), all.end(), 0U);
    out.push_back(
        {.kind = Kind::group, .trials = std::move(all), .epochs = std::min(study_.grace, study_.epochs)});
  }
  void reached(std::uint32_t trial, std::uint32_t epochs, double score, std::size_t, Orders& out) override {
    scores_[trial] = worth(score);
    seen_[trial] = true;
    if (epochs >= study_.epochs) {
      out.push_back({.kind = Kind::end, .trials = {trial}});
      return;
    }
    std::vector<std::uint32_t> ranked;
    for (std::uint32_t t = 0; t < study_.trials; ++t)
      if (seen_[t]) ranked.push_back(t);
    std::ranges::stable_sort(ranked,
                             [&](std::uint32_t a, std::uint32_t b) { return scores_[a] > scores_[b]; });
    // Quantile and chance as Ray Tune has them where nobody says.
    const std::size_t quarter = ranked.size() / 4;
    const auto place = static_cast<std::size_t>(std::ranges::find(ranked, trial) - ranked.begin());
    const std::uint64_t which = random_.bits();
    const bool anew = random_.uniform() < 0.25;
    if (quarter > 0 && place >= ranked.size() - quarter)
      out.push_back(
          {.kind = Kind::becomes, .trials = {trial}, .source = ranked[which % quarter], .anew = anew});
    // Others may wait for the device: it is paused, and wanted again at once.
    out.push_back({.kind = Kind::pause, .trials = {trial}});
    out.push_back(
        {.kind = Kind::group, .trials = {trial}, .epochs = std::min(study_.grace, study_.epochs - epochs)});
  }

 private:
  const Study& study_;
  Random random_;
  std::vector<double> scores_;
  std::vector<bool> seen_;
};

}  // namespace

std::unique_ptr<StudyTuner> make_tuner(const Study& study) {
  if (!study.seconds.empty()) return std::make_unique<Grid>(study);
  switch (study.algorithm) {
    case StudyAlgorithm::grid:
      return std::make_unique<Grid>(study);
    case StudyAlgorithm::halving:
      return std::make_unique<Halving>(std::vector{Bracket{study.rungs}}, false);
    case StudyAlgorithm::hyperband:
      return std::make_unique<Halving>(hyperband(study), false);
    case StudyAlgorithm::syncbohb:
      return std::make_unique<Halving>(hyperband(study), true);
    case StudyAlgorithm::asha:
      return std::make_unique<Asha>(study);
    case StudyAlgorithm::bohb:
      return std::make_unique<Bohb>(study);
    case StudyAlgorithm::pbt:
      return std::make_unique<Pbt>(study);
  }
  CARILLON_ASSERT(false);
}

}  // namespace carillon::simulate
