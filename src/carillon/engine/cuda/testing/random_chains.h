#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"
#include "carillon/engine/cuda/kernels/chain.h"
#include "carillon/engine/cuda/kernels/number.h"

// Chains that are random by a seed, with tensors for them, and what their kernels give one by one.
namespace carillon::engine::cuda::testing {

// Bytes that begin at a multiple of 256, as buffers of a device do.
class Aligned {
 public:
  explicit Aligned(std::size_t bytes = 0) : all_(bytes + 512) {
    const auto at = reinterpret_cast<std::uintptr_t>(all_.data());
    first_ = (256 - at % 256) % 256;
  }
  std::byte* at() { return all_.data() + first_; }

 private:
  std::vector<std::byte> all_;
  std::size_t first_ = 0;
};

class RandomChain {
 public:
  using Chain = kernels::Chain;
  using Type = kernels::Type;

  explicit RandomChain(std::uint64_t seed) : random_(seed) {
    make_extents();
    const auto wanted = 1 + static_cast<int>(random_.below(kernels::most_chain_operands));
    for (int i = 0; i < wanted; ++i)
      add_operand(any_of(
          {Type::f32, Type::f16, Type::bf16, Type::f16, Type::f32, Type::i32, Type::i64, Type::boolean}));
    const auto steps = 1 + static_cast<int>(random_.below(kernels::most_chain_steps));
    for (int i = 0; i < steps; ++i) add_step();
    out_bytes_ = count() * size_of(launch.chain.steps[launch.chain.step_count - 1].result);
    output_ = Aligned(out_bytes_ + 16);
    const std::size_t shifted =
        random_.below(8) == 0 ? size_of(launch.chain.steps[launch.chain.step_count - 1].result) : 0;
    launch.params.output = output_.at() + shifted;
    launch.params.count = static_cast<std::int64_t>(count());
    // Sometimes what was planned for aligned addresses meets others.
    kernels::ChainParams planned = launch.params;
    if (random_.below(8) == 0)
      for (auto& operand : planned.operands) operand.at = nullptr;
    choose_readings(launch.chain, planned);
  }
  RandomChain(const RandomChain&) = delete;
  RandomChain& operator=(const RandomChain&) = delete;

  kernels::ChainLaunch launch{};

  Type result() const { return launch.chain.steps[launch.chain.step_count - 1].result; }
  // What the output holds, after it was filled with 0xa5 by clear().
  void clear() { std::memset(output_.at(), 0xa5, out_bytes_ + 16); }
  std::vector<std::byte> output() const {
    const auto* const from = static_cast<const std::byte*>(launch.params.output);
    return {from, from + out_bytes_};
  }

  // By the kernels of single operations, one after the other, on dense tensors.
  std::vector<std::byte> one_by_one() const {
    std::vector<std::vector<std::byte>> values;
    for (int i = 0; i < launch.chain.operand_count; ++i) values.push_back(gathered(i));
    for (int i = 0; i < launch.chain.step_count; ++i) {
      const Chain::Step& step = launch.chain.steps[i];
      std::vector<std::byte> out(count() * size_of(step.result));
      const auto value = [&](int k) { return values[static_cast<std::size_t>(step.of[k])].data(); };
      const auto run = [&](auto params, const auto& launched) {
        CARILLON_ASSERT(launched);
        params.output = out.data();
        launched->kernel->run(&params);
      };
      const auto dense = [&](auto& params, auto& strides, int operands) {
        params.rank = 1;
        params.extents[0] = static_cast<std::uint32_t>(count());
        for (int k = 0; k < operands; ++k) strides[k][0] = 1;
      };
      switch (step.kind) {
        case Chain::Step::Kind::arithmetic: {
          kernels::ElementwiseParams p{};
          p.op = step.op;
          p.activation = step.activation;
          p.low = step.low;
          p.high = step.high;
          dense(p, p.strides, 3);
          for (int k = 0; k < arity(step.op); ++k) p.operands[k] = value(k);
          run(p, kernels::launch(p, step.type, 1));
          break;
        }
        case Chain::Step::Kind::compare: {
          kernels::CompareParams p{};
          p.comparison = step.comparison;
          dense(p, p.strides, 2);
          for (int k = 0; k < 2; ++k) p.operands[k] = value(k);
          run(p, kernels::launch(p, step.type, 1));
          break;
        }
        case Chain::Step::Kind::select: {
          kernels::SelectParams p{};
          dense(p, p.strides, 2);
          p.condition_strides[0] = 1;
          p.condition = value(0);
          for (int k = 0; k < 2; ++k) p.operands[k] = value(k + 1);
          run(p, kernels::launch(p, size_of(step.type), 1));
          break;
        }
        case Chain::Step::Kind::cast: {
          kernels::CastParams p{};
          p.count = launch.params.count;
          p.input = value(0);
          run(p, kernels::launch(p, step.type, step.result, 1));
          break;
        }
      }
      values.push_back(std::move(out));
    }
    return values.back();
  }

 private:
  std::size_t count() const {
    return std::accumulate(extents_.begin(), extents_.end(), std::size_t{1}, std::multiplies<>());
  }
  template <typename T>
  T any_of(std::initializer_list<T> of) {
    return of.begin()[random_.below(of.size())];
  }

  void make_extents() {
    do {
      extents_.clear();
      for (std::uint64_t rank = random_.below(5); rank > 0; --rank)
        extents_.push_back(any_of<std::size_t>({1, 2, 3, 5, 7, 8, 13, 16, 24, 32, 40}));
    } while (count() > 9000);
  }

  void add_operand(Type type) {
    Chain& chain = launch.chain;
    chain.operands[chain.operand_count].type = type;
    kernels::ChainOperand& operand = launch.params.operands[chain.operand_count++];
    const std::size_t size = size_of(type), rank = extents_.size();
    operand.rank = static_cast<int>(rank);
    for (std::size_t i = 0; i < rank; ++i) operand.extents[i] = static_cast<std::uint32_t>(extents_[i]);
    std::size_t reach = 1, shift = random_.below(6) == 0 ? random_.below(4) : 0;
    std::vector<std::size_t> order(rank);
    std::iota(order.begin(), order.end(), 0U);
    const auto in_order = [&](std::size_t pad) {
      for (std::size_t k = rank; k-- > 0;) {
        operand.strides[order[k]] = static_cast<std::int64_t>(reach);
        reach *= extents_[order[k]];
        if (k + 1 == rank) reach += pad;
      }
    };
    switch (random_.below(8)) {
      case 0:  // one element
        break;
      case 1:  // by the last axis
        if (rank > 0) operand.strides[rank - 1] = 1;
        if (rank > 0) reach = extents_[rank - 1];
        break;
      case 2:  // repeated along the last
        for (std::size_t k = rank; k-- > 0;)
          if (k + 1 < rank) {
            operand.strides[k] = static_cast<std::int64_t>(reach);
            reach *= extents_[k];
          }
        break;
      case 3:  // turned
        for (std::size_t k = rank; k > 1; --k) std::swap(order[k - 1], order[random_.below(k)]);
        in_order(0);
        break;
      case 4:  // a part of something larger
        in_order(any_of<std::size_t>({8, 16, 3}));
        break;
      case 5:  // dense, as one axis
        in_order(0);
        operand.rank = 1;
        operand.extents[0] = static_cast<std::uint32_t>(count());
        operand.strides[0] = 1;
        break;
      default:
        in_order(0);
    }
    Aligned& tensor = *tensors_.emplace_back(std::make_unique<Aligned>((reach + shift + 64) * size));
    for (std::size_t i = 0; i < reach + shift + 64; ++i) put_random(type, tensor.at() + i * size);
    operand.at = tensor.at() + shift * size;
  }

  template <typename T>
  static void put(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof value);
  }
  float real() {
    constexpr float infinite = std::numeric_limits<float>::infinity();
    if (random_.below(40) == 0)
      return any_of({0.0F, -0.0F, infinite, -infinite, std::nanf(""), 1e30F, -65504.0F, 1e-40F, 6e-8F});
    return static_cast<float>(random_.normal() * any_of({1.0, 1.0, 3.0, 100.0}));
  }
  std::int64_t whole() {
    if (random_.below(30) == 0)
      return any_of<std::int64_t>({INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX, 0, -1});
    return static_cast<std::int64_t>(random_.below(40)) - 20;
  }
  void put_random(Type type, std::byte* to) {
    switch (type) {
      case Type::f32:
        return put(to, real());
      case Type::f16:
        return put(to, kernels::from_float<kernels::Half>(real()));
      case Type::bf16:
        return put(to, kernels::from_float<kernels::Bfloat>(real()));
      case Type::i32:
        return put(to, static_cast<std::int32_t>(whole()));
      case Type::i64:
        return put(to, whole());
      case Type::boolean:
        return put(to, static_cast<std::uint8_t>(random_.below(2)));
    }
  }

  Type type_of(int value) const {
    const Chain& chain = launch.chain;
    return value < chain.operand_count ? chain.operands[value].type
                                       : chain.steps[value - chain.operand_count].result;
  }
  // A value of a type, the latest more often; one that there is not is -1.
  int any_value(Type type) {
    const int all = launch.chain.operand_count + launch.chain.step_count;
    std::vector<int> fit;
    for (int i = 0; i < all; ++i)
      if (type_of(i) == type) fit.push_back(i);
    if (fit.empty()) return -1;
    return random_.below(2) == 0 ? fit.back() : fit[random_.below(fit.size())];
  }

  void add_step() {
    using kernels::Activation;
    using kernels::Op;
    Chain& chain = launch.chain;
    Chain::Step step{};
    const int all = chain.operand_count + chain.step_count;
    const int first =
        random_.below(3) != 0 ? all - 1 : static_cast<int>(random_.below(static_cast<std::uint64_t>(all)));
    const Type type = type_of(first);
    const bool number = type == Type::f32 || type == Type::f16 || type == Type::bf16;
    const int condition = any_value(Type::boolean);
    step.type = step.result = type;
    step.of[0] = first;
    const std::uint64_t kind = random_.below(10);
    if (kind == 0) {
      step.kind = Chain::Step::Kind::cast;
      do {
        step.result = any_of({Type::f32, Type::f16, Type::bf16, Type::i32, Type::i64, Type::boolean});
      } while (step.result == type);
    } else if (kind == 1) {
      step.kind = Chain::Step::Kind::compare;
      step.comparison = static_cast<kernels::Comparison>(random_.below(8));
      step.of[1] = any_value(type);
      step.result = Type::boolean;
    } else if (type == Type::boolean || (kind == 2 && condition >= 0)) {
      // Of values of one type, more often numbers.
      int from = first;
      for (int tries = 0; type_of(from) == Type::boolean && tries < 5; ++tries)
        from = static_cast<int>(random_.below(static_cast<std::uint64_t>(all)));
      step.kind = Chain::Step::Kind::select;
      step.type = step.result = type_of(from);
      step.of[0] = type == Type::boolean ? first : condition;
      step.of[1] = from;
      step.of[2] = any_value(step.type);
    } else {
      step.kind = Chain::Step::Kind::arithmetic;
      if (number) {
        do {
          step.op = static_cast<Op>(random_.below(static_cast<std::uint64_t>(Op::fma) + 1));
        } while (step.op == Op::copy && random_.below(2) == 0);
        if (random_.below(3) == 0 || step.op == Op::copy)
          step.activation =
              static_cast<Activation>(random_.below(static_cast<std::uint64_t>(Activation::clip) + 1));
        step.low = -1;
        step.high = static_cast<float>(random_.below(7));
      } else {
        step.op = any_of({Op::copy, Op::neg, Op::abs, Op::add, Op::sub, Op::mul, Op::div, Op::min, Op::max});
      }
      for (int k = 1; k < arity(step.op); ++k) step.of[k] = any_value(type);
    }
    chain.steps[chain.step_count++] = step;
  }

  // An operand's elements side by side, by counting through its axes.
  std::vector<std::byte> gathered(int which) const {
    const kernels::ChainOperand& operand = launch.params.operands[which];
    const std::size_t size = size_of(launch.chain.operands[which].type);
    std::vector<std::byte> out(count() * size);
    std::vector<std::uint32_t> at(static_cast<std::size_t>(operand.rank));
    for (std::size_t i = 0; i < count(); ++i) {
      std::int64_t offset = 0;
      for (std::size_t k = 0; k < at.size(); ++k) offset += at[k] * operand.strides[k];
      std::memcpy(out.data() + i * size,
                  static_cast<const std::byte*>(operand.at) + offset * static_cast<std::int64_t>(size), size);
      for (std::size_t k = at.size(); k-- > 0;) {
        if (++at[k] < operand.extents[k]) break;
        at[k] = 0;
      }
    }
    return out;
  }

  Random random_;
  std::vector<std::size_t> extents_;
  std::vector<std::unique_ptr<Aligned>> tensors_;
  Aligned output_;
  std::size_t out_bytes_ = 0;
};

// The first element that differs, or -1: bit for bit, but that a NaN of f32 is any other.
inline std::ptrdiff_t differs(kernels::Type type, const std::vector<std::byte>& a,
                              const std::vector<std::byte>& b) {
  const std::size_t size = size_of(type);
  for (std::size_t i = 0; i < a.size(); i += size) {
    if (std::memcmp(a.data() + i, b.data() + i, size) == 0) continue;
    if (type == kernels::Type::f32) {
      float x = 0, y = 0;
      std::memcpy(&x, a.data() + i, sizeof x);
      std::memcpy(&y, b.data() + i, sizeof y);
      if (std::isnan(x) && std::isnan(y)) continue;
    }
    return static_cast<std::ptrdiff_t>(i / size);
  }
  return -1;
}

}  // namespace carillon::engine::cuda::testing
