#include "carillon/controller/models/rows_agree.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/controller/models/loaded_aside.h"
#include "carillon/engine/zero_operands.h"
#include "carillon/graph/bounded.h"
#include "carillon/graph/known_texts.h"
#include "carillon/graph/plain/number.h"
#include "carillon/graph/shape_inference.h"

namespace carillon::controller {
namespace {

using graph::DataType;
using graph::TensorSpec;

constexpr std::uint64_t seeds = 3;

// What the data of a row's companies are multiplied by, for each seed: another row's great numbers reach a
// threshold that small ones do not, and are not lost in rounding; infinity and NaN go through a product with
// zero.
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr std::array<std::array<float, 2>, seeds> company_scales{
    {{1, 1e30F}, {100, infinity}, {10'000, std::numeric_limits<float>::quiet_NaN()}}};

// The data of one row of an input: floats in [-2, 2) times `scale`, whole numbers 0 or 1, which most models
// can use, and texts that no model need know.
Result<std::vector<std::byte>> random_row(const TensorSpec& spec, std::size_t bytes, Random& random,
                                          float scale = 1) {
  const std::size_t element = graph::size_of(spec.type);
  std::vector<std::byte> out(bytes);
  for (std::size_t at = 0; at + element <= bytes; at += element) {
    if (spec.type == DataType::string) {
      const auto text = graph::known_texts().add(random.below(2) == 0 ? "a" : "b");
      if (!text) return std::unexpected(text.error());
      std::memcpy(out.data() + at, &*text, element);
    } else if (spec.type == DataType::boolean) {
      out[at] = static_cast<std::byte>(random.below(2));
    } else {
      const bool real = graph::belongs(spec.type, graph::TypeClass::floating);
      const float value =
          real ? static_cast<float>(random.uniform() * 4 - 2) * scale : static_cast<float>(random.below(2));
      const graph::Tensor number = graph::scalar_of(spec.type, value);
      std::memcpy(out.data() + at, number.bytes().data(), element);
    }
  }
  return out;
}

// Element `at` of a tensor of floats.
double real_at(DataType type, std::span<const std::byte> bytes, std::size_t at) {
  const auto read = [&]<typename T>(T value) {
    std::memcpy(&value, bytes.data() + at * sizeof value, sizeof value);
    return value;
  };
  if (type == DataType::f64) return read(double{});
  if (type == DataType::f16) return static_cast<double>(graph::plain::to_float(read(graph::plain::Half{})));
  if (type == DataType::bf16)
    return static_cast<double>(graph::plain::to_float(read(graph::plain::BFloat16{})));
  return static_cast<double>(read(float{}));
}

using Rows = std::vector<std::vector<std::byte>>;  // the bytes of one row of each input, or of each output

class RowRuns {
 public:
  RowRuns(const repository::ModelConfig& config, engine::Engine& engine,
          const engine::CompiledModel& compiled)
      : config_(config), engine_(engine), compiled_(compiled) {}

  Result<> prepare(int threads) {
    auto loaded = load_aside(engine_, compiled_, threads);
    if (!loaded) return std::unexpected(loaded.error());
    loaded_.emplace(std::move(*loaded));
    return {};
  }

  Result<> compare(std::int64_t length, std::uint64_t seed) {
    const auto sizes = compiled_.batch_sizes();
    const engine::Plan* const one = compiled_.plan(1, length);
    if (one == nullptr) return fail(ErrorCode::unsupported, "there is no plan for one row");
    if (engine_.measure(compiled_, *one, 1))
      return fail(ErrorCode::unsupported, "on this device that cannot be tried");
    Random random(seed);
    const auto most = static_cast<std::size_t>(sizes.back());
    const auto rows = random_rows(*one, most, random, 1);
    if (!rows) return std::unexpected(rows.error());
    std::vector<std::pair<float, std::vector<Rows>>> companies;
    for (const float scale : company_scales[seed - 1]) {
      auto others = random_rows(*one, most, random, scale);
      if (!others) return std::unexpected(others.error());
      companies.emplace_back(scale, std::move(*others));
    }
    std::map<int, Rows> alone;
    for (const int size : sizes) {
      if (size < 2) continue;
      const engine::Plan* const plan = compiled_.plan(size, length);
      if (plan == nullptr) continue;
      auto together = run(*plan, std::span(*rows).first(static_cast<std::size_t>(size)));
      if (!together) return in_context("in a batch of " + std::to_string(size), together.error());
      for (const int row : std::set{0, 1, size / 2, size - 1}) {
        if (!alone.contains(row)) {
          auto answer = run(*one, std::span(*rows).subspan(static_cast<std::size_t>(row), 1));
          if (!answer) return in_context("one row alone", answer.error());
          alone[row] = std::move(*answer);
        }
        if (auto same = agree(*one, alone[row], *together, size, row); !same) return same;
        for (const auto& [scale, others] : companies) {
          std::vector<Rows> company(others.begin(), others.begin() + size);
          company[static_cast<std::size_t>(row)] = (*rows)[static_cast<std::size_t>(row)];
          const auto among = run(*plan, company);
          // Great numbers may be no data for the model, such as an index that is made of them.
          if (!among && scale != 1) continue;
          if (!among) return in_context("in a batch of " + std::to_string(size), among.error());
          if (auto same = untouched(*one, *together, *among, size, row, scale <= 10'000); !same) return same;
        }
      }
    }
    return {};
  }

 private:
  static Result<std::vector<Rows>> random_rows(const engine::Plan& one, std::size_t count, Random& random,
                                               float scale) {
    std::vector<Rows> rows(count);
    for (Rows& row : rows)
      for (const TensorSpec& spec : one.inputs()) {
        auto data = random_row(spec, graph::memory_of(spec.type, spec.shape).count, random, scale);
        if (!data) return std::unexpected(data.error());
        row.push_back(std::move(*data));
      }
    return rows;
  }

  // The outputs of these rows together.
  Result<Rows> run(const engine::Plan& plan, std::span<const Rows> rows) {
    std::vector<graph::Tensor> inputs, outputs;
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (std::size_t i = 0; i < plan.inputs().size(); ++i) {
      const TensorSpec& spec = plan.inputs()[i];
      inputs.push_back(engine::zero_block(graph::memory_of(spec.type, spec.shape)));
      std::byte* at = inputs.back().bytes().data();
      for (const Rows& row : rows) at = std::ranges::copy(row[i], at).out;
    }
    for (const graph::Tensor& tensor : inputs) from.push_back(tensor.bytes().data());
    for (const TensorSpec& spec : plan.outputs())
      outputs.push_back(engine::zero_block(graph::memory_of(spec.type, spec.shape)));
    for (graph::Tensor& tensor : outputs) to.push_back(tensor.bytes().data());
    graph::Tensor workspace = engine::zero_block(plan.workspace());
    const auto state = plan.make_state(loaded_->team.get());
    const engine::Binding binding{.inputs = from,
                                  .outputs = to,
                                  .workspace = workspace.bytes().data(),
                                  .weights = loaded_->weights.bytes().data(),
                                  .state = state.get()};
    if (auto ran = plan.run({0, plan.kernels()}, binding, {}); !ran) return std::unexpected(ran.error());
    Rows out;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const TensorSpec& spec = plan.outputs()[i];
      const auto bytes = outputs[i].bytes().first(graph::memory_of(spec.type, spec.shape).count);
      out.emplace_back(bytes.begin(), bytes.end());
    }
    return out;
  }

  // Whether row `row` of `together`, which are `size` rows, is `alone`.
  Result<> agree(const engine::Plan& one, const Rows& alone, const Rows& together, int size, int row) const {
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const TensorSpec& spec = one.outputs()[i];
      const std::size_t bytes = alone[i].size();
      const auto mine = std::span(together[i]).subspan(static_cast<std::size_t>(row) * bytes, bytes);
      if (!same(spec.type, alone[i], mine, together[i]))
        return invalid("output '" + spec.name + "' of row " + std::to_string(row) + " among " +
                       std::to_string(size) + " random rows is not what it is of that row alone");
    }
    return {};
  }

  // Whether row `row` of two batches that have nothing else in common is the same: both are computed by one
  // plan. `exactly`: bit for bit. Kernels may take another way where they see infinity or NaN.
  Result<> untouched(const engine::Plan& one, const Rows& together, const Rows& among, int size, int row,
                     bool exactly) const {
    for (std::size_t i = 0; i < together.size(); ++i) {
      const std::size_t bytes = together[i].size() / static_cast<std::size_t>(size);
      const std::size_t from = static_cast<std::size_t>(row) * bytes;
      const auto before = std::span(together[i]).subspan(from, bytes),
                 now = std::span(among[i]).subspan(from, bytes);
      if (exactly ? !std::ranges::equal(before, now) : !same(one.outputs()[i].type, before, now, before))
        return invalid("output '" + one.outputs()[i].name + "' of row " + std::to_string(row) + " among " +
                       std::to_string(size) + " random rows is another where only the other rows are others");
    }
    return {};
  }

  bool same(DataType type, std::span<const std::byte> a, std::span<const std::byte> b,
            std::span<const std::byte> all) const {
    if (!graph::belongs(type, graph::TypeClass::floating)) return std::ranges::equal(a, b);
    const bool short_type = type == DataType::f16 || type == DataType::bf16 || config_.precision != "f32";
    const double share = short_type ? 0x1p-6 : 1e-5;
    const std::size_t element = graph::size_of(type);
    double largest = 0;
    for (std::size_t i = 0; i < all.size() / element; ++i)
      if (const double value = std::abs(real_at(type, all, i)); std::isfinite(value))
        largest = std::max(largest, value);
    for (std::size_t i = 0; i < a.size() / element; ++i) {
      const double x = real_at(type, a, i), y = real_at(type, b, i);
      const bool equal = x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) <= share * largest;
      if (!equal) return false;
    }
    return true;
  }

  const repository::ModelConfig& config_;
  engine::Engine& engine_;
  const engine::CompiledModel& compiled_;
  std::optional<LoadedAside> loaded_;
};

}  // namespace

Result<> rows_agree(const repository::ModelConfig& config, engine::Engine& engine,
                    const engine::CompiledModel& compiled, int threads) {
  RowRuns runs(config, engine, compiled);
  if (auto ready = runs.prepare(threads); !ready) return ready;
  const auto lengths = compiled.lengths();
  std::set<std::int64_t> tried{0};
  if (!lengths.empty()) tried = {lengths.front(), lengths.back()};
  for (const std::int64_t length : tried)
    for (std::uint64_t seed = 1; seed <= seeds; ++seed)
      if (auto same = runs.compare(length, seed); !same) return same;
  return {};
}

}  // namespace carillon::controller
