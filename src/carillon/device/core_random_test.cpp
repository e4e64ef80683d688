// The core against an account of its own commands: random actions, completions in random order, evictions,
// stops, failures and lives; what must hold is checked after every step.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/device/core.h"

namespace carillon::device {
namespace {

using Kind = Command::Kind;

class World {
 public:
  explicit World(std::uint64_t seed)
      : seed_(seed),
        random_(seed),
        limits_{.pages = 2 + random_.below(12),
                .io = kib(4 * (2 + random_.below(30))),
                .workspace = kib(4 * (4 + random_.below(20))),
                .queue = 1 + random_.below(24),
                .reserved = 4,
                .streams = static_cast<std::uint8_t>(1 + random_.below(4)),
                .places = places(),
                .gathers = random_.below(3),
                .scatters = random_.below(3)},
        core_(limits_) {
    const auto models = static_cast<std::uint32_t>(1 + random_.below(5));
    for (std::uint32_t i = 0; i < models; ++i) {
      pages_.push_back(random_.below(limits_.pages + 2));
      core_.add_model(ModelId{i}, pages_.back());
    }
  }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      now_ += Duration(random_.below(3) * 100);
      step();
    }
    // Whatever is open ends once nothing more comes.
    for (int i = 0; i < 100000 && core_.open() > 0 && !::testing::Test::HasFatalFailure(); ++i) {
      now_ += 1us;
      if (in_hand_.empty())
        turns();
      else
        complete(random_.below(in_hand_.size()));
    }
    EXPECT_EQ(core_.open(), 0U) << "seed " << seed_ << ": something never ends";
    EXPECT_TRUE(core_.at_rest());
    EXPECT_EQ(core_.free_io(), limits_.io) << "seed " << seed_;
    for (int s = 0; s < limits_.streams; ++s)
      EXPECT_EQ(core_.free_workspace(static_cast<Executor>(first_stream + s)), limits_.workspace)
          << "seed " << seed_;
  }

  std::uint64_t resumed() const { return resumed_; }
  std::uint64_t stopped() const { return stopped_; }
  std::uint64_t parked() const { return parked_; }
  std::uint64_t in_the_way() const { return in_the_way_; }
  std::uint64_t own_gathers() const { return own_gathers_; }
  std::uint64_t ahead() const { return ahead_; }

 private:
  struct Told {
    ActionKind kind{};
    ModelId model;
    Window window;
    std::uint8_t stream = 0;
    std::uint64_t units = 0;
    int kernels = 1;
    int next = 0;  // its kernels ran up to here
    bool started = false, begun = false, done = false;
    bool dropped = false, evicting = false;
    std::uint32_t life = 0;
    std::uint64_t workspace = 0;
    bool behind = false;  // launched behind another run, which has not ended
    bool committed = false;
  };
  struct InHand {
    Command command;
    std::uint64_t id = 0;
    std::uint32_t life = 0;
    TimePoint since;
  };

  void step() {
    switch (random_.below(17)) {
      case 0:
      case 1:
      case 2:
      case 12:
        submit_infer();
        break;
      case 3:
      case 4: {
        const std::uint64_t id = next_++;
        const ModelId model = any_model();
        const Window window = any_window();
        told_[id] = {.kind = ActionKind::load, .model = model, .window = window, .life = life_};
        if (core_.submit(LoadAction{{id}, model, window}, now_, out_) == no_slot) told_.erase(id);
        break;
      }
      case 5: {
        const std::uint64_t id = next_++;
        const ModelId model = any_model();
        told_[id] = {.kind = ActionKind::unload, .model = model, .window = open_, .life = life_};
        const bool used = running_of(model) > 0;
        const bool discard = random_.below(3) == 0;
        if (discard)
          for (auto& [other, told] : told_)
            if (told.kind == ActionKind::infer && told.model == model && told.begun && told.life == life_)
              told.dropped = true;
        if (core_.submit(UnloadAction{{id}, model, discard}, now_, out_) == no_slot) {
          told_.erase(id);
          break;
        }
        parked_ += used ? 1 : 0;
        if (pages_[model.index()] > 0 && !copying(model)) {
          EXPECT_FALSE(core_.loaded(model)) << "seed " << seed_;
        }
        break;
      }
      case 6:
      case 13:
        if (!told_.empty()) {
          std::uint64_t id = next_ - std::min(next_, random_.below(10));
          if (!in_hand_.empty() && random_.below(4) > 0)  // perhaps one that runs
            id = in_hand_[random_.below(in_hand_.size())].id;
          const auto found = told_.find(id);
          Told* const told = found != told_.end() && found->second.life == life_ ? &found->second : nullptr;
          if (random_.below(3) == 0) {
            const bool may_begin = told != nullptr && told->kind != ActionKind::unload && !told->done &&
                                   !told->begun && !in_hand(Kind::copy, id);
            if (may_begin) told->dropped = true;
            EXPECT_EQ(core_.cancel({id}, now_, out_), may_begin) << "seed " << seed_;
            handle();
            if (may_begin && told->kind == ActionKind::load) {
              EXPECT_TRUE(told->done) << "seed " << seed_;
            }
            break;
          }
          const After after = random_.below(2) == 0 ? After::drop : After::resume;
          core_.evict({id}, after, now_ - 1us + Duration(random_.below(6000)), now_, out_);
          if (told != nullptr) told->dropped |= after == After::drop;
        }
        break;
      case 7:
        turns();
        break;
      case 8:
        if (random_.below(20) == 0) retire();
        break;
      case 14:
      case 15:
      case 16:
        commit();
        break;
      default:
        if (!in_hand_.empty()) complete(random_.below(in_hand_.size()));
    }
    handle();
    check();
  }

  void submit_infer() {
    const std::uint64_t id = next_++;
    Told told{.kind = ActionKind::infer,
              .model = any_model(),
              .window = any_window(),
              .stream = static_cast<std::uint8_t>(random_.below(limits_.streams)),
              .kernels = random_.below(2) == 0 ? 1 : static_cast<int>(1 + random_.below(6)),
              .life = life_,
              .workspace = random_.below(limits_.workspace.count + 1)};
    const std::uint64_t units = random_.below(2) == 0 ? 0 : 1 + random_.below(15);
    told.units = limits_.places[told.stream].units & (units == 0 ? ~0ULL : units);
    told_[id] = told;
    const Slot slot = core_.submit(
        InferAction{
            .id = {id}, .model = told.model, .window = told.window, .stream = told.stream, .units = units},
        now_, out_);
    if (slot == no_slot) told_.erase(id);
  }

  void turns() {
    for (int e = 0; e < first_stream + limits_.streams; ++e) {
      const TimePoint next = core_.turn(static_cast<Executor>(e), now_, out_);
      EXPECT_GT(next, now_) << "seed " << seed_;
    }
    handle();
  }

  // What some stream runs is with the device as a whole.
  void commit() {
    std::vector<InHand> whole;
    for (const InHand& each : in_hand_)
      if (each.command.kind == Kind::launch && each.life == life_ && !told_[each.id].behind &&
          told_[each.id].kernels == 1)
        whole.push_back(each);
    if (whole.empty()) return;
    const InHand work = whole[random_.below(whole.size())];
    const TimePoint end = now_ - 200ns + Duration(random_.below(1000));
    const std::size_t before = out_.size();
    told_[work.id].committed = true;
    const TimePoint next = core_.committed(work.command.slot, end, now_, out_);
    EXPECT_GT(next, now_) << "seed " << seed_;
    for (std::size_t i = before; i < out_.size(); ++i) {
      if (out_[i].kind != Kind::launch && out_[i].kind != Kind::gather) continue;
      Told& told = told_[core_.id(out_[i].slot).value];
      EXPECT_TRUE(limits_.places[told.stream].ahead) << "seed " << seed_;
      EXPECT_GE(told.window.latest, std::max(end, now_)) << "seed " << seed_ << ": begins too late";
      told.behind = true;
    }
  }

  // An executor is done with something: what it had in hand may end in any order, but for a stream's runs;
  // and whoever gathers for a run that is to be behind another does nothing else meanwhile.
  void complete(std::size_t which) {
    const auto same = [&](const InHand& each) {
      return each.command.executor >= first_stream &&
             each.command.executor == in_hand_[which].command.executor;
    };
    if (in_hand_[which].command.executor >= first_stream) {
      auto first = std::ranges::find_if(
          in_hand_, [&](const InHand& each) { return same(each) && each.command.kind == Kind::gather; });
      if (first == in_hand_.end()) first = std::ranges::find_if(in_hand_, same);
      which = static_cast<std::size_t>(first - in_hand_.begin());
    }
    const InHand work = in_hand_[which];
    in_hand_.erase(in_hand_.begin() + static_cast<std::ptrdiff_t>(which));
    const Slot slot = work.command.slot;
    ASSERT_EQ(core_.orphaned(slot), work.life != life_) << "seed " << seed_;
    Told& told = told_[work.id];
    switch (work.command.kind) {
      case Kind::copy: {
        const bool done = random_.below(5) > 0;
        mapped_[told.model] = done;
        core_.copied(slot, done, now_, out_);
        break;
      }
      case Kind::unmap:
        mapped_[told.model] = false;
        core_.unmapped(slot, now_, out_);
        break;
      case Kind::gather: {
        told.behind = false;  // unless it is launched now
        const bool behind = std::ranges::any_of(in_hand_, [&](const InHand& each) {
          return each.command.kind == Kind::launch && each.command.executor == work.command.executor;
        });
        const bool room = core_.take_io(slot, random_.below(20000));
        core_.gathered(slot,
                       {.status = room ? ActionStatus::success : ActionStatus::no_memory,
                        .kernels = told.kernels,
                        .workspace = told.workspace},
                       now_, out_);
        for (const Command& command : out_)
          if (behind && command.kind == Kind::launch && command.slot == slot) told.behind = true;
        break;
      }
      case Kind::launch: {
        // Some kernels run; all of them, unless it is to be ended early or fails.
        ASSERT_EQ(work.command.kernel, told.next) << "seed " << seed_ << ": resumed at another kernel";
        EXPECT_TRUE(mapped(told.model)) << "seed " << seed_ << ": ran without weights";
        const bool failed = random_.below(15) == 0;
        int next = told.kernels;
        if (told.evicting && !told.committed)
          next = told.next + static_cast<int>(random_.below(told.kernels - told.next + 1));
        told.evicting = told.committed = false;
        resumed_ += told.next > 0 ? 1 : 0;
        told.next = next;
        for (const InHand& each : in_hand_)
          if (each.command.kind == Kind::launch && each.command.executor == work.command.executor &&
              told_[each.id].behind) {
            told_[each.id].behind = false;
            ++ahead_;
          }
        core_.ended(slot, next, failed, now_, out_);
        break;
      }
      default:
        core_.scattered(slot, now_, out_);
    }
    handle();
  }

  void retire() {
    core_.retire();
    ++life_;
    for (auto& [id, told] : told_)
      if (!told.done) told.evicting = true;  // a worker ends what runs, too
    while (!in_hand_.empty()) complete(random_.below(in_hand_.size()));
    EXPECT_TRUE(core_.at_rest()) << "seed " << seed_;
    EXPECT_EQ(core_.open(), 0U) << "seed " << seed_;
    core_.clear_memory(
        [&](ModelId model) { EXPECT_TRUE(std::exchange(mapped_[model], false)) << "seed " << seed_; });
    EXPECT_EQ(core_.free_pages(), limits_.pages) << "seed " << seed_;
  }

  void handle() {
    for (std::size_t i = 0; i < out_.size(); ++i) {
      const Command command = out_[i];
      if (command.kind == Kind::wake) {
        if (random_.below(4) > 0) core_.turn(command.executor, now_, out_);
        continue;
      }
      const std::uint64_t id = core_.id(command.slot).value;
      ASSERT_TRUE(told_.contains(id)) << "seed " << seed_;
      Told& told = told_[id];
      switch (command.kind) {
        case Kind::report:
          ASSERT_FALSE(std::exchange(told.done, true)) << "seed " << seed_ << ": reported twice";
          ASSERT_EQ(told.life, life_) << "seed " << seed_ << ": of a life that is over";
          if (command.status == ActionStatus::success && told.kind == ActionKind::infer) {
            ASSERT_EQ(told.next, told.kernels) << "seed " << seed_ << ": not all of it ran";
          }
          if (command.status == ActionStatus::stopped) {
            ++stopped_;
            ASSERT_TRUE(told.dropped) << "seed " << seed_ << ": nobody said so";
          }
          break;
        case Kind::evict:
          ASSERT_TRUE(in_hand(Kind::launch, id)) << "seed " << seed_;
          told.evicting = true;
          must_end_.erase(id);
          break;
        case Kind::launch:
          if (!std::exchange(told.begun, true)) {
            EXPECT_TRUE(told.started || told.window.contains(now_)) << "seed " << seed_;
            EXPECT_TRUE(core_.loaded(told.model)) << "seed " << seed_;
          }
          EXPECT_EQ(command.executor, first_stream + told.stream);
          made_way(id, told);
          in_hand_.push_back({command, id, told.life, now_});
          break;
        case Kind::gather:
          if (command.executor != input_executor) {
            EXPECT_EQ(command.executor, first_stream + told.stream);
            EXPECT_TRUE(limits_.places[told.stream].gathers) << "seed " << seed_;
            EXPECT_TRUE(told.window.contains(now_)) << "seed " << seed_;
            told.started = true;
            ++own_gathers_;
            made_way(id, told);
          } else {
            EXPECT_FALSE(limits_.places[told.stream].gathers) << "seed " << seed_;
          }
          in_hand_.push_back({command, id, told.life, now_});
          break;
        case Kind::copy:
          EXPECT_TRUE(told.window.contains(now_)) << "seed " << seed_;
          EXPECT_FALSE(pages_[told.model.index()] > 0 && mapped_[told.model])
              << "seed " << seed_ << ": mapped twice";
          in_hand_.push_back({command, id, told.life, now_});
          break;
        case Kind::unmap:
          EXPECT_EQ(running_of(told.model), 0U) << "seed " << seed_ << ": under a run";
          in_hand_.push_back({command, id, told.life, now_});
          break;
        default:
          in_hand_.push_back({command, id, told.life, now_});
      }
    }
    out_.clear();
    for (const std::uint64_t id : must_end_)
      EXPECT_TRUE(told_[id].evicting || !in_hand(Kind::launch, id)) << "seed " << seed_ << ": makes no way";
    must_end_.clear();
  }

  // Nothing that goes first runs on what is launched; what goes later there is told to end in the same call.
  void made_way(std::uint64_t id, const Told& told) {
    for (const InHand& work : in_hand_) {
      if (work.command.executor < first_stream || work.id == id || work.life != life_) continue;
      const Told& other = told_[work.id];
      if ((other.units & told.units) == 0) continue;
      const int rank = limits_.places[told.stream].rank, others = limits_.places[other.stream].rank;
      EXPECT_LE(rank, others) << "seed " << seed_ << ": launched under what goes first";
      if (rank < others && work.command.kind == Kind::launch && !other.behind) {
        ++in_the_way_;
        must_end_.insert(work.id);
      }
    }
  }

  // What must hold at any time.
  void check() {
    std::map<Executor, std::size_t> streams;
    std::size_t copies = 0, gathers = 0, scatters = 0, unmaps = 0;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> spaces;
    for (const InHand& work : in_hand_) {
      copies += work.command.kind == Kind::copy ? 1 : 0;
      gathers += work.command.kind == Kind::gather && work.command.executor == input_executor ? 1 : 0;
      scatters += work.command.kind == Kind::scatter ? 1 : 0;
      unmaps += work.command.kind == Kind::unmap ? 1 : 0;
      if (work.command.executor >= first_stream) ++streams[work.command.executor];
    }
    for (const auto& [stream, count] : streams)
      ASSERT_LE(count, limits_.places[stream - first_stream].ahead ? 2U : 1U) << "seed " << seed_;
    ASSERT_LE(copies, 1U) << "seed " << seed_;
    ASSERT_LE(unmaps, 1U) << "seed " << seed_;
    if (limits_.gathers > 0) {
      ASSERT_LE(gathers, limits_.gathers) << "seed " << seed_;
    }
    ASSERT_LE(scatters, limits_.scatters) << "seed " << seed_;
    // Each page has one owner.
    std::set<std::uint32_t> pages;
    std::uint64_t held = 0;
    for (std::uint32_t m = 0; m < pages_.size(); ++m)
      for (const std::uint32_t page : core_.pages(ModelId{m})) {
        ASSERT_TRUE(pages.insert(page).second) << "seed " << seed_ << ": a page has two owners";
        ++held;
      }
    ASSERT_EQ(held + core_.free_pages(), limits_.pages) << "seed " << seed_;
    // Workspaces of all that began and has not ended: none overlaps.
    for (const auto& [id, told] : told_) {
      if (!told.begun || told.done || told.life != life_ || told.workspace == 0 || told.behind) continue;
      const auto slot = core_.find({id});
      if (!slot || told.next == told.kernels) continue;
      spaces.emplace_back(core_.workspace_offset(*slot), core_.workspace_offset(*slot) + told.workspace);
    }
    std::sort(spaces.begin(), spaces.end());
    for (std::size_t i = 1; i < spaces.size(); ++i)
      ASSERT_LE(spaces[i - 1].second, spaces[i].first) << "seed " << seed_ << ": workspaces overlap";
  }

  std::vector<StreamPlace> places() {
    std::vector<StreamPlace> made;
    const bool all_units = random_.below(2) == 0;
    for (int i = 0; i < 4; ++i)
      made.push_back({.rank = static_cast<std::uint8_t>(all_units ? (i + 1) % 3 : random_.below(3)),
                      .units = all_units ? 15 : random_.below(16),
                      .gathers = random_.below(3) == 0,
                      .ahead = random_.below(2) == 0});
    return made;
  }
  ModelId any_model() { return ModelId{static_cast<std::uint32_t>(random_.below(pages_.size()))}; }
  Window any_window() {
    const TimePoint from = now_ + Duration(random_.below(600));
    return random_.below(2) == 0 ? open_ : Window{from, from + Duration(random_.below(1500))};
  }
  bool in_hand(Kind kind, std::uint64_t id) const {
    return std::ranges::any_of(
        in_hand_, [&](const InHand& work) { return work.command.kind == kind && work.id == id; });
  }
  bool copying(ModelId model) const {
    return std::ranges::any_of(in_hand_, [&](const InHand& work) {
      return work.command.kind == Kind::copy && core_.model(work.command.slot) == model;
    });
  }
  bool mapped(ModelId model) { return pages_[model.index()] == 0 || mapped_[model]; }
  // Runs of this life under way, those that wait to resume included.
  std::size_t running_of(ModelId model) const {
    return static_cast<std::size_t>(std::ranges::count_if(told_, [&](const auto& entry) {
      const Told& told = entry.second;
      return told.kind == ActionKind::infer && told.model == model && told.begun && !told.done &&
             told.next < told.kernels && told.life == life_ && core_.find({entry.first});
    }));
  }

  std::uint64_t seed_;
  Random random_;
  Limits limits_;
  Core core_;
  Window open_{TimePoint::min(), TimePoint::max()};
  std::vector<std::uint64_t> pages_;
  TimePoint now_{1ms};
  std::uint64_t next_ = 0;
  std::uint32_t life_ = 0;
  std::map<std::uint64_t, Told> told_;
  std::map<ModelId, bool> mapped_;
  std::vector<InHand> in_hand_;
  Commands out_;
  std::set<std::uint64_t> must_end_;
  std::uint64_t resumed_ = 0, stopped_ = 0, parked_ = 0, in_the_way_ = 0, own_gathers_ = 0, ahead_ = 0;
};

TEST(DeviceCoreRandom, KeepsItsAccountWhateverHappens) {
  std::uint64_t resumed = 0, stopped = 0, parked = 0, in_the_way = 0, own_gathers = 0, ahead = 0;
  for (std::uint64_t seed = 0; seed < 1500 && !::testing::Test::HasFailure(); ++seed) {
    World world(seed);
    world.run(600);
    resumed += world.resumed();
    stopped += world.stopped();
    parked += world.parked();
    in_the_way += world.in_the_way();
    own_gathers += world.own_gathers();
    ahead += world.ahead();
  }
  // The worlds reach what they are for.
  EXPECT_GT(resumed, 100U);
  EXPECT_GT(stopped, 1000U);
  EXPECT_GT(parked, 1000U);
  EXPECT_GT(in_the_way, 200U);
  EXPECT_GT(own_gathers, 1000U);
  EXPECT_GT(ahead, 100U) << "runs that followed another without a gap";
}

}  // namespace
}  // namespace carillon::device
