#include "carillon/cluster/partition/prove.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "carillon/cluster/partition/cbc.h"

namespace carillon::cluster {
namespace {

// CBC takes objectives as equal that differ by 1e-5, so they are made larger.
constexpr double scale = 1000;

class Program {
 public:
  Program(const Cbc& cbc, const Problem& problem)
      : cbc_(cbc),
        problem_(problem),
        models_(problem.models.size()),
        groups_(static_cast<std::size_t>(problem.groups)),
        model_(cbc.newModel(), cbc.deleteModel) {
    cbc_.setLogLevel(model_.get(), 0);
    std::int64_t rate = 0;
    std::int64_t bytes = 0;
    std::int64_t dynamic = 0;
    for (const Model& m : problem.models) {
      rate += m.micro_rps;
      bytes += m.static_bytes;
      dynamic = std::max(dynamic, m.dynamic_bytes);
    }
    add_columns();
    add_places();
    add_deviations(&Model::micro_rps, rate, load_column());
    add_deviations(&Model::static_bytes, bytes, memory_column());
    if (bytes + dynamic > problem.memory_bytes) add_memory(dynamic > 0);
    if (problem.max_micro_rps && rate > *problem.max_micro_rps) add_rates();
    if (problem.max_move) add_moves();
  }

  Proof solve(const std::optional<Division>& from, double seconds) {
    Cbc_Model* const model = model_.get();
    std::vector<int> columns;
    if (from) {
      // Under the names that the largest models give their groups.
      std::vector<int> number(groups_, no_group);
      int next = 0;
      for (const std::size_t i : order_) {
        int& known = number[static_cast<std::size_t>((*from)[i])];
        if (known == no_group) known = problem_.current.empty() ? next++ : (*from)[i];
        columns.push_back(cell(i, static_cast<std::size_t>(known)));
      }
      const std::vector<double> ones(columns.size(), 1);
      cbc_.setMIPStartI(model, static_cast<int>(columns.size()), columns.data(), ones.data());
    }
    cbc_.setParameter(model, "log", "0");
    cbc_.setParameter(model, "timeMode", "elapsed");
    cbc_.setParameter(model, "ratioGap", "0");
    cbc_.setParameter(model, "integerTolerance", "1e-9");
    cbc_.setMaximumSeconds(model, seconds);
    cbc_.solve(model);
    Proof proof{.infeasible = !from && cbc_.isProvenInfeasible(model) != 0};
    const double* const best = cbc_.bestSolution(model);
    if (best != nullptr) {
      Division division(models_);
      for (std::size_t i = 0; i < models_; ++i) {
        const double* const row = best + cell(i, 0);
        division[i] = static_cast<int>(std::max_element(row, row + groups_) - row);
      }
      // CBC keeps bounds but for its tolerance.
      if (measure(problem_, division).feasible) proof.division = std::move(division);
    }
    const double bound = cbc_.isProvenOptimal(model) != 0 && best != nullptr
                             ? cbc_.getObjValue(model)
                             : cbc_.getBestPossibleObjValue(model);
    // Without any it is some large negative number, and without a solution some large one.
    if (bound > 0 && bound < 1e9) proof.bound = bound / scale;
    return proof;
  }

 private:
  int cell(std::size_t model, std::size_t group) const { return static_cast<int>(model * groups_ + group); }
  int load_column() const { return cell(models_, 0); }
  int memory_column() const { return cell(models_, 0) + 1; }
  int peak_column(std::size_t group) const { return cell(models_, 0) + 2 + static_cast<int>(group); }

  void add_columns() {
    order_.resize(models_);
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::ranges::stable_sort(order_, [&](std::size_t a, std::size_t b) {
      return problem_.models[a].static_bytes > problem_.models[b].static_bytes;
    });
    std::vector<std::size_t> rank(models_);
    for (std::size_t k = 0; k < models_; ++k) rank[order_[k]] = k;
    for (std::size_t i = 0; i < models_; ++i)
      for (std::size_t g = 0; g < groups_; ++g)
        add_column(problem_.current.empty() && g > rank[i] ? 0 : 1, 0, true);
    add_column(1e30, scale, false);  // load_column()
    add_column(1e30, scale, false);  // memory_column()
    for (std::size_t g = 0; g < groups_; ++g) add_column(1, 0, false);
  }
  void add_column(double most, double cost, bool whole) {
    const std::string name = "c" + std::to_string(columns_++);
    cbc_.addCol(model_.get(), name.c_str(), 0, most, cost, whole ? 1 : 0, 0, nullptr, nullptr);
  }

  void begin() {
    columns_of_row_.clear();
    factors_.clear();
  }
  void term(int column, double factor) {
    if (factor == 0) return;
    columns_of_row_.push_back(column);
    factors_.push_back(factor);
  }
  void end(char sense, double right) {
    cbc_.addRow(model_.get(), "r", static_cast<int>(columns_of_row_.size()), columns_of_row_.data(),
                factors_.data(), sense, right);
  }
  void terms_of_group(std::size_t g, std::int64_t Model::*quantity, double unit) {
    for (std::size_t i = 0; i < models_; ++i)
      term(cell(i, g), static_cast<double>(problem_.models[i].*quantity) / unit);
  }

  // (8): one group each.
  void add_places() {
    for (std::size_t i = 0; i < models_; ++i) {
      begin();
      for (std::size_t g = 0; g < groups_; ++g) term(cell(i, g), 1);
      end('E', 1);
    }
  }

  // (6), (7): in means.
  void add_deviations(std::int64_t Model::*quantity, std::int64_t sum, int deviation) {
    if (sum == 0) return;
    const double mean = static_cast<double>(sum) / problem_.groups;
    for (std::size_t g = 0; g < groups_; ++g)
      for (const double sign : {1.0, -1.0}) {
        begin();
        terms_of_group(g, quantity, mean);
        term(deviation, -sign);
        end(sign > 0 ? 'L' : 'G', 1);
      }
  }

  // (5), in devices' memories.
  void add_memory(bool dynamic) {
    const auto unit = static_cast<double>(problem_.memory_bytes);
    for (std::size_t g = 0; g < groups_; ++g) {
      begin();
      terms_of_group(g, &Model::static_bytes, unit);
      if (dynamic) term(peak_column(g), 1);
      end('L', 1);
      for (std::size_t i = 0; dynamic && i < models_; ++i) {
        if (problem_.models[i].dynamic_bytes == 0) continue;
        begin();
        term(peak_column(g), 1);
        term(cell(i, g), -static_cast<double>(problem_.models[i].dynamic_bytes) / unit);
        end('G', 0);
      }
    }
  }

  // (4), in largest rates.
  void add_rates() {
    for (std::size_t g = 0; g < groups_; ++g) {
      begin();
      terms_of_group(g, &Model::micro_rps, static_cast<double>(*problem_.max_micro_rps));
      end('L', 1);
    }
  }

  // (10): what stays need not be paid for.
  void add_moves() {
    const double unit = std::max<double>(1, static_cast<double>(*problem_.max_move));
    double right = static_cast<double>(*problem_.max_move) / unit;
    begin();
    for (std::size_t i = 0; i < models_; ++i) {
      const int now = problem_.current[i];
      if (now == no_group) continue;
      const double cost = static_cast<double>(problem_.models[i].move_cost) / unit;
      right -= cost;
      if (now < problem_.groups) term(cell(i, static_cast<std::size_t>(now)), -cost);
    }
    end('L', right);
  }

  const Cbc& cbc_;
  const Problem& problem_;
  std::size_t models_;
  std::size_t groups_;
  std::unique_ptr<Cbc_Model, void (*)(Cbc_Model*)> model_;
  int columns_ = 0;
  std::vector<std::size_t> order_;  // models, the largest first
  std::vector<int> columns_of_row_;
  std::vector<double> factors_;
};

}  // namespace

Proof prove(const Problem& problem, const std::optional<Division>& from, double seconds) {
  if (seconds <= 0 || problem.models.size() * static_cast<std::size_t>(problem.groups) > most_cells)
    return {};
  const Cbc* const cbc = Cbc::find();
  if (cbc == nullptr) return {};
  try {
    return Program(*cbc, problem).solve(from, seconds);
  } catch (...) {
    return {};  // COIN-OR's errors are no std::exception
  }
}

}  // namespace carillon::cluster
