#include "carillon/cluster/partition/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "carillon/base/random.h"

namespace carillon::cluster {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
// Differences of balance below this are noise of double arithmetic.
constexpr double noise = 1e-13;
// Groups that are each tried with all others; more are tried with so many partners.
constexpr std::size_t most_partners = 64;

// Up to four models of a group, that may leave it together.
struct Bundle {
  double load = 0;    // in means over groups
  double memory = 0;  // the same
  std::int64_t micro_rps = 0;
  std::int64_t static_bytes = 0;
  std::int64_t dynamic = 0;  // the largest in the bundle
  std::int64_t rest = 0;     // the largest in the group without the bundle
  std::array<int, 4> models{};
  int count = 0;
};

// Bundles of a group are at most so many, by level.
struct Level {
  int deepest;
  std::size_t most;
};
constexpr std::array<Level, 3> levels{{{1, 400}, {4, 1000}, {4, 6000}}};

struct Sums {
  std::vector<int> models;
  std::int64_t micro_rps = 0;
  std::int64_t static_bytes = 0;
  std::int64_t dynamic = 0;
  std::uint64_t version = 1;
  struct Listed {
    std::uint64_t version = 0;
    std::vector<Bundle> bundles;  // by load
  };
  std::array<Listed, levels.size()> listed{};
};

enum class Aim { squares, objective };

class Search {
 public:
  Search(const Problem& problem, const SearchOptions& options)
      : problem_(problem), left_(options.effort), dice_(options.seed) {
    std::int64_t rate = 0;
    std::int64_t bytes = 0;
    for (const Model& model : problem.models) {
      rate += model.micro_rps;
      bytes += model.static_bytes;
    }
    const double groups = problem.groups;
    per_load_ = rate == 0 ? 0 : groups / static_cast<double>(rate);
    per_byte_ = bytes == 0 ? 0 : groups / static_cast<double>(bytes);
    mean_load_ = rate == 0 ? 0 : 1;
    mean_memory_ = bytes == 0 ? 0 : 1;
  }

  Division run() {
    bound_ = objective_bound(problem_);
    start(Order::largest);
    improve();
    Division best = group_of_;
    double least = penalty();
    if (least > 0 && problem_.current.empty()) {
      // Bounds are tight: pack closely, models of like dynamic memory together.
      for (const Order order : {Order::dynamic, Order::bytes}) {
        start(order);
        improve();
        if (const double broken = penalty(); broken < least) {
          least = broken;
          best = group_of_;
        }
        if (least == 0) break;
      }
      take(best);
    }
    wander(best);
    return best;
  }

 private:
  enum class Order { largest, dynamic, bytes };

  double load_of(const Model& m) const { return static_cast<double>(m.micro_rps) * per_load_; }
  double memory_of(const Model& m) const { return static_cast<double>(m.static_bytes) * per_byte_; }
  double load_off(std::int64_t micro_rps) const {
    return static_cast<double>(micro_rps) * per_load_ - mean_load_;
  }
  double memory_off(std::int64_t bytes) const {
    return static_cast<double>(bytes) * per_byte_ - mean_memory_;
  }
  const Model& model(int i) const { return problem_.models[static_cast<std::size_t>(i)]; }
  Sums& group(int g) { return groups_[static_cast<std::size_t>(g)]; }
  std::size_t size() const { return groups_.size(); }

  // How far a group is beyond its bounds; 0: it keeps them.
  double beyond(std::int64_t micro_rps, std::int64_t peak) const {
    double by = 0;
    if (peak > problem_.memory_bytes)
      by += static_cast<double>(peak - problem_.memory_bytes) / static_cast<double>(problem_.memory_bytes);
    if (problem_.max_micro_rps && micro_rps > *problem_.max_micro_rps)
      by += static_cast<double>(micro_rps - *problem_.max_micro_rps) /
            static_cast<double>(*problem_.max_micro_rps);
    return by;
  }
  double beyond(const Sums& g) const { return beyond(g.micro_rps, g.static_bytes + g.dynamic); }

  double penalty() const {
    double sum = 0;
    for (const Sums& g : groups_) sum += beyond(g);
    return sum;
  }
  double objective() const {
    double load = 0;
    double memory = 0;
    for (const Sums& g : groups_) {
      load = std::max(load, std::abs(load_off(g.micro_rps)));
      memory = std::max(memory, std::abs(memory_off(g.static_bytes)));
    }
    return load + memory;
  }

  double squared() const {
    double sum = 0;
    for (const Sums& g : groups_)
      sum += std::pow(load_off(g.micro_rps), 2) + std::pow(memory_off(g.static_bytes), 2);
    return sum;
  }

  // What moving a model from one group to another adds to the cost of moves.
  std::int64_t added_cost(int i, int from, int to) const {
    if (problem_.current.empty()) return 0;
    const int now = problem_.current[static_cast<std::size_t>(i)];
    if (now == no_group) return 0;
    return (to == now ? 0 : model(i).move_cost) - (from == now ? 0 : model(i).move_cost);
  }

  void put(int i, int g) {
    group_of_[static_cast<std::size_t>(i)] = g;
    Sums& to = group(g);
    to.models.push_back(i);
    to.micro_rps += model(i).micro_rps;
    to.static_bytes += model(i).static_bytes;
    to.dynamic = std::max(to.dynamic, model(i).dynamic_bytes);
    ++to.version;
  }

  void move(int i, int to) {
    const int was = group_of_[static_cast<std::size_t>(i)];
    Sums& from = group(was);
    cost_ += added_cost(i, was, to);
    from.models.erase(std::ranges::find(from.models, i));
    from.micro_rps -= model(i).micro_rps;
    from.static_bytes -= model(i).static_bytes;
    from.dynamic = 0;
    for (const int other : from.models) from.dynamic = std::max(from.dynamic, model(other).dynamic_bytes);
    ++from.version;
    put(i, to);
  }

  // Changes what differs, so that what is known of the other groups stays.
  void take(const Division& division) {
    for (std::size_t i = 0; i < division.size(); ++i)
      if (group_of_[i] != division[i]) move(static_cast<int>(i), division[i]);
  }

  // The division in force, and the other models where they fit best, one after the other.
  void start(Order order) {
    groups_.assign(static_cast<std::size_t>(problem_.groups), {});
    group_of_.assign(problem_.models.size(), no_group);
    cost_ = 0;
    std::vector<int> open;
    for (std::size_t i = 0; i < group_of_.size(); ++i) {
      const int now = problem_.current.empty() ? no_group : problem_.current[i];
      if (now != no_group && now < problem_.groups) {
        put(static_cast<int>(i), now);
      } else {
        open.push_back(static_cast<int>(i));
        if (now != no_group) cost_ += problem_.models[i].move_cost;
      }
    }
    const auto size_of = [&](int i) { return load_of(model(i)) + memory_of(model(i)); };
    std::ranges::stable_sort(open, [&](int a, int b) {
      if (order == Order::dynamic && model(a).dynamic_bytes != model(b).dynamic_bytes)
        return model(a).dynamic_bytes > model(b).dynamic_bytes;
      if (order == Order::bytes && model(a).static_bytes != model(b).static_bytes)
        return model(a).static_bytes > model(b).static_bytes;
      return size_of(a) > size_of(b);
    });
    // Groups by how full they are.
    std::set<std::pair<double, int>> fullness;
    const auto full = [&](int g) { return load_off(group(g).micro_rps) + memory_off(group(g).static_bytes); };
    for (int g = 0; g < problem_.groups; ++g) fullness.emplace(full(g), g);
    for (const int i : open) {
      const Model& m = model(i);
      int best = no_group;
      std::pair<double, double> least{infinite, infinite};
      std::size_t tried = 0;
      for (const auto& [value, g] : fullness) {
        if (++tried > most_partners && least.first <= 0) break;
        const Sums& to = group(g);
        const double load = load_off(to.micro_rps);
        const double memory = memory_off(to.static_bytes);
        const double worse = beyond(to.micro_rps + m.micro_rps, to.static_bytes + m.static_bytes +
                                                                    std::max(to.dynamic, m.dynamic_bytes)) -
                             beyond(to);
        // The growth of the squares; where models are packed by one size, the fullest group that has room.
        const double growth =
            order == Order::largest
                ? load_of(m) * (2 * load + load_of(m)) + memory_of(m) * (2 * memory + memory_of(m))
                : static_cast<double>(std::max(0L, m.dynamic_bytes - to.dynamic)) * per_byte_ - memory;
        if (std::pair(worse, growth) < least) {
          least = {worse, growth};
          best = g;
        }
      }
      fullness.erase({full(best), best});
      put(i, best);
      fullness.emplace(full(best), best);
      left_ -= static_cast<std::int64_t>(tried);
    }
  }

  // The bundles of a group, the empty one included: all up to a number of models, where they are few, else
  // those of some models that the dice name.
  const std::vector<Bundle>& bundles(int g, std::size_t level) {
    Sums& of = group(g);
    Sums::Listed& listed = of.listed[level];
    if (listed.version == of.version) return listed.bundles;
    listed.version = of.version;
    std::vector<Bundle>& out = listed.bundles;
    out.clear();
    std::vector<int> members = of.models;
    std::ranges::sort(members);
    const auto [deepest, most] = levels[level];
    // How many of n models at most.
    const auto count = [](std::size_t n, int depth) {
      double sum = 1;
      double term = 1;
      for (int k = 1; k <= depth && static_cast<std::size_t>(k) <= n; ++k)
        sum += term *= static_cast<double>(n - static_cast<std::size_t>(k) + 1) / k;
      return sum;
    };
    const auto limit = static_cast<double>(most);
    int depth = 1;
    while (depth < deepest && count(members.size(), depth + 1) <= limit) ++depth;
    std::size_t drawn = members.size();
    if (depth == 1 && deepest > 1) {
      depth = 2;
      while (drawn > 2 && count(drawn, depth) > limit) drawn = drawn * 9 / 10;
    }
    drawn = std::min(drawn, most);
    if (drawn < members.size()) {
      for (std::size_t i = 0; i < drawn; ++i)
        std::swap(members[i], members[i + dice_.below(members.size() - i)]);
      members.resize(drawn);
      std::ranges::sort(members);
    }
    // The largest dynamic sizes of the group: of five, one is not in a bundle of four.
    std::array<int, 5> top{};
    const std::size_t tops = std::min(top.size(), of.models.size());
    std::ranges::partial_sort_copy(of.models, std::span(top).first(tops), [&](int a, int b) {
      return std::pair(-model(a).dynamic_bytes, a) < std::pair(-model(b).dynamic_bytes, b);
    });
    const auto finish = [&](Bundle bundle) {
      for (std::size_t t = 0; t < tops; ++t) {
        const auto in_bundle = std::span(bundle.models).first(static_cast<std::size_t>(bundle.count));
        if (std::ranges::find(in_bundle, top[t]) != in_bundle.end()) continue;
        bundle.rest = model(top[t]).dynamic_bytes;
        break;
      }
      bundle.load = static_cast<double>(bundle.micro_rps) * per_load_;
      bundle.memory = static_cast<double>(bundle.static_bytes) * per_byte_;
      out.push_back(bundle);
    };
    const auto grow = [&](auto& self, const Bundle& bundle, std::size_t next) -> void {
      finish(bundle);
      if (bundle.count == depth) return;
      for (std::size_t i = next; i < members.size(); ++i) {
        Bundle larger = bundle;
        const Model& m = model(members[i]);
        larger.models[static_cast<std::size_t>(larger.count++)] = members[i];
        larger.micro_rps += m.micro_rps;
        larger.static_bytes += m.static_bytes;
        larger.dynamic = std::max(larger.dynamic, m.dynamic_bytes);
        self(self, larger, i + 1);
      }
    };
    grow(grow, Bundle{}, 0);
    std::ranges::stable_sort(out, {}, &Bundle::micro_rps);
    left_ -= static_cast<std::int64_t>(10 * out.size());
    return out;
  }

  // The largest deviations of all groups but two.
  std::pair<double, double> others(int a, int b) const {
    double load = 0;
    double memory = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (g == static_cast<std::size_t>(a) || g == static_cast<std::size_t>(b)) continue;
      load = std::max(load, std::abs(load_off(groups_[g].micro_rps)));
      memory = std::max(memory, std::abs(memory_off(groups_[g].static_bytes)));
    }
    return {load, memory};
  }

  // The best exchange of bundles between two groups, where one helps, is carried out.
  bool exchange(int a, int b, Aim aim, std::size_t level) {
    const double broken = beyond(group(a)) + beyond(group(b));
    if (broken > 0) level = std::min<std::size_t>(level, 1);
    const std::vector<Bundle>& from = bundles(a, level);
    const std::vector<Bundle>& to = bundles(b, level);
    const Sums& ga = group(a);
    const Sums& gb = group(b);
    const double load_a = load_off(ga.micro_rps), load_b = load_off(gb.micro_rps);
    const double memory_a = memory_off(ga.static_bytes), memory_b = memory_off(gb.static_bytes);
    double other_load = 0;
    double other_memory = 0;
    if (aim == Aim::objective) {
      std::tie(other_load, other_memory) = others(a, b);
      left_ -= problem_.groups;
    }
    const auto value = [&](double load, double memory) {  // of moving so much from a to b
      const double la = load_a - load, lb = load_b + load, ma = memory_a - memory, mb = memory_b + memory;
      if (aim == Aim::squares) return la * la + lb * lb + ma * ma + mb * mb;
      return std::max({other_load, std::abs(la), std::abs(lb)}) +
             std::max({other_memory, std::abs(ma), std::abs(mb)});
    };
    double least_broken = broken;
    double least = value(0, 0) - noise;
    const Bundle* best_from = nullptr;
    const Bundle* best_to = nullptr;
    std::size_t low = 0;
    for (const Bundle& x : from) {
      // Only moves of load in this range can help. Both ends move in with what was found.
      double lowest = -infinite;
      double highest = infinite;
      if (broken <= 0 && aim == Aim::squares) {
        const double half = (load_a - load_b) / 2;
        const double mean = (load_a + load_b) / 2;
        const double mean_memory = (memory_a + memory_b) / 2;
        const double reach = std::sqrt(std::max(0.0, least / 2 - mean * mean - mean_memory * mean_memory));
        lowest = half - reach;
        highest = half + reach;
      } else if (broken <= 0) {
        const double reach = least - other_memory;
        lowest = std::max(load_a - reach, -reach - load_b);
        highest = std::min(load_a + reach, reach - load_b);
      }
      // The beginning of the range never has to go back, as x.load grows and the ranges only shrink.
      while (low < to.size() && x.load - to[low].load > highest) ++low;
      for (std::size_t at = low; at < to.size(); ++at) {
        const Bundle& y = to[at];
        const double load = x.load - y.load;
        if (load < lowest) break;
        --left_;
        double worth = value(load, x.memory - y.memory);
        if (broken <= 0 && worth >= least) continue;
        if (problem_.max_move) {
          const std::int64_t added = added_cost(a, b, x, y);
          if (cost_ + added > *problem_.max_move) continue;
          worth += price_ * static_cast<double>(std::max<std::int64_t>(added, 0));
        }
        const std::int64_t rate = x.micro_rps - y.micro_rps;
        const std::int64_t bytes = x.static_bytes - y.static_bytes;
        const double breaks =
            beyond(ga.micro_rps - rate, ga.static_bytes - bytes + std::max(x.rest, y.dynamic)) +
            beyond(gb.micro_rps + rate, gb.static_bytes + bytes + std::max(y.rest, x.dynamic));
        if (breaks > least_broken || (breaks == least_broken && worth >= least)) continue;
        least_broken = breaks;
        least = worth;
        best_from = &x;
        best_to = &y;
      }
    }
    if (best_from == nullptr) return false;
    const Bundle x = *best_from;
    const Bundle y = *best_to;
    for (int k = 0; k < x.count; ++k) move(x.models[static_cast<std::size_t>(k)], b);
    for (int k = 0; k < y.count; ++k) move(y.models[static_cast<std::size_t>(k)], a);
    return true;
  }

  // What an exchange adds to the cost of moves.
  std::int64_t added_cost(int a, int b, const Bundle& x, const Bundle& y) const {
    std::int64_t cost = 0;
    for (int k = 0; k < x.count; ++k) cost += added_cost(x.models[static_cast<std::size_t>(k)], a, b);
    for (int k = 0; k < y.count; ++k) cost += added_cost(y.models[static_cast<std::size_t>(k)], b, a);
    return cost;
  }

  // Exchanges until none helps, by ever larger bundles.
  void improve() {
    // Where moves are bounded, those that help most for their cost come first: moves for the whole bound have
    // to bring `gain` of the squared deviations.
    if (problem_.max_move && *problem_.max_move > 0) {
      for (const double gain : {4.0, 1.0, 0.25, 0.05}) {
        price_ = gain * squared() / static_cast<double>(*problem_.max_move);
        squares(0);
      }
      price_ = 0;
    }
    for (std::size_t level = 0; level < levels.size(); ++level) squares(level);
    for (std::size_t level = 1; level < levels.size(); ++level) objectives(level);
  }

  bool done() const { return left_ <= 0; }

  void squares(std::size_t level) {
    const std::size_t n = size();
    std::vector<std::pair<std::uint64_t, std::uint64_t>> tried(n <= most_partners ? n * n : 0);
    for (bool helped = true; helped && !done();) {
      helped = false;
      for (std::size_t a = 0; a < n && !done(); ++a) {
        if (n <= most_partners) {
          for (std::size_t b = a + 1; b < n && !done(); ++b) {
            const std::pair now{groups_[a].version, groups_[b].version};
            if (tried[a * n + b] == now) continue;
            if (exchange(static_cast<int>(a), static_cast<int>(b), Aim::squares, level))
              helped = true;
            else
              tried[a * n + b] = now;
          }
        } else {
          for (std::size_t k = 0; k < most_partners && !done(); ++k) {
            const std::size_t b = dice_.below(n);
            if (a != b && exchange(static_cast<int>(a), static_cast<int>(b), Aim::squares, level))
              helped = true;
          }
        }
      }
    }
  }

  // The groups that are furthest off, with each other group.
  void objectives(std::size_t level) {
    for (bool helped = true; helped && !done() && objective() > bound_ + tolerance;) {
      helped = false;
      std::pair<int, int> worst{0, 0};
      double load = -1;
      double memory = -1;
      for (int g = 0; g < problem_.groups; ++g) {
        if (const double off = std::abs(load_off(group(g).micro_rps)); off > load)
          load = off, worst.first = g;
        if (const double off = std::abs(memory_off(group(g).static_bytes)); off > memory)
          memory = off, worst.second = g;
      }
      left_ -= problem_.groups;
      for (const int a : {worst.first, worst.second}) {
        for (std::size_t k = 0; k < std::min(size(), most_partners) && !helped && !done(); ++k) {
          const int b = static_cast<int>(size() <= most_partners ? k : dice_.below(size()));
          if (a != b) helped = exchange(a, b, Aim::objective, level);
        }
        if (worst.first == worst.second) break;
      }
    }
  }

  // Random exchanges, and the way down again; what is not better is undone.
  void wander(Division& best) {
    double broken = penalty();
    double least = objective();
    while (!done() && size() > 1 && (broken > 0 || least > bound_ + tolerance)) {
      const std::uint64_t kicks = 1 + dice_.below(3);
      for (std::uint64_t k = 0; k < kicks; ++k) {
        const int i = static_cast<int>(dice_.below(group_of_.size()));
        const int other = static_cast<int>(dice_.below(group_of_.size()));
        const int a = group_of_[static_cast<std::size_t>(i)];
        const int b = dice_.below(4) == 0 ? static_cast<int>(dice_.below(size()))
                                          : group_of_[static_cast<std::size_t>(other)];
        const bool swap = b == group_of_[static_cast<std::size_t>(other)];
        if (a == b) continue;
        const std::int64_t cost = cost_ + added_cost(i, a, b) + (swap ? added_cost(other, b, a) : 0);
        if (problem_.max_move && cost > *problem_.max_move) continue;
        move(i, b);
        if (swap) move(other, a);
      }
      left_ -= 100;
      improve();
      const double now_broken = penalty();
      const double now = objective();
      if (std::pair(now_broken, now) < std::pair(broken, least - noise)) {
        broken = now_broken;
        least = now;
        best = group_of_;
      } else {
        take(best);
      }
    }
  }

  const Problem& problem_;
  std::int64_t left_;  // exchanges that may still be weighed
  Random dice_;
  double per_load_ = 0;
  double per_byte_ = 0;
  double mean_load_ = 0;
  double mean_memory_ = 0;
  double bound_ = 0;
  std::vector<Sums> groups_;
  Division group_of_;
  std::int64_t cost_ = 0;  // of moves, against the division in force
  double price_ = 0;       // in squared deviations, of a unit of this cost
};

}  // namespace

Division search(const Problem& problem, const SearchOptions& options) {
  return Search(problem, options).run();
}

}  // namespace carillon::cluster
