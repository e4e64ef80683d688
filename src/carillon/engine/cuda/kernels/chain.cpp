#include "carillon/engine/cuda/kernels/chain.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "carillon/engine/cuda/kernels/describe.h"
#include "carillon/engine/cuda/kernels/elements.h"

namespace carillon::engine::cuda::kernels {

namespace {

// Calls does(T{}) with the type of elements.
template <typename Does>
void with_type(Type type, const Does& does) {
  switch (type) {
    case Type::f32:
      return does(float{});
    case Type::f16:
      return does(Half{});
    case Type::bf16:
      return does(Bfloat{});
    case Type::i32:
      return does(std::int32_t{});
    case Type::i64:
      return does(std::int64_t{});
    case Type::boolean:
      return does(Bool{});
  }
}

bool is_number(Type type) {
  return type == Type::f32 || type == Type::f16 || type == Type::bf16;
}

// Values of one tile, step after step.
class Tile {
 public:
  Tile(const ChainLaunch& launch, std::int64_t tile)
      : launch_(launch),
        begin_(tile * tile_elements),
        count_(static_cast<std::size_t>(least(tile_elements, launch.params.count - begin_))) {}

  void compute() {
    const Chain& chain = launch_.chain;
    for (int i = 0; i < chain.operand_count; ++i)
      with_type(chain.operands[i].type, [&](auto t) { read<decltype(t)>(i); });
    for (int i = 0; i < chain.step_count; ++i) {
      const Chain::Step& step = chain.steps[i];
      with_type(step.type, [&](auto t) { compute<decltype(t)>(step, chain.operand_count + i); });
    }
    with_type(chain.steps[chain.step_count - 1].result, [&](auto t) {
      using T = decltype(t);
      std::memcpy(as<T>(launch_.params.output) + begin_,
                  values<T>(chain.operand_count + chain.step_count - 1), count_ * sizeof(T));
    });
  }

 private:
  static constexpr std::size_t most_values = most_chain_operands + most_chain_steps;

  static constexpr std::size_t widest = 8;  // bytes of an element

  // On the heap of each thread that computes chains: a thread_local array would be memory of every thread.
  static std::byte* room() {
    static thread_local const auto all = std::make_unique<std::byte[]>(most_values * tile_elements * widest);
    return all.get();
  }
  template <typename T>
  T* values(int which) const {
    return reinterpret_cast<T*>(room_ + static_cast<std::size_t>(which) * tile_elements * widest);
  }
  template <typename T>
  void read(int which) const {
    const ChainOperand& operand = launch_.params.operands[which];
    T* const to = values<T>(which);
    for (std::size_t j = 0; j < count_; ++j)
      to[j] = as<T>(operand.at)[offset_of(static_cast<std::uint32_t>(begin_) + static_cast<std::uint32_t>(j),
                                          operand.extents, operand.strides, operand.rank)];
  }
  template <typename T>
  void compute(const Chain::Step& step, int into) const {
    switch (step.kind) {
      case Chain::Step::Kind::arithmetic:
        if constexpr (!is_bool<T>) {
          const int n = arity(step.op);
          const T *a = values<T>(step.of[0]), *b = n > 1 ? values<T>(step.of[1]) : nullptr,
                  *c = n > 2 ? values<T>(step.of[2]) : nullptr;
          for (std::size_t j = 0; j < count_; ++j)
            values<T>(into)[j] = arithmetic(step.op, a[j], b != nullptr ? b[j] : T{},
                                            c != nullptr ? c[j] : T{}, step.activation, step.low, step.high);
        }
        return;
      case Chain::Step::Kind::compare:
        for (std::size_t j = 0; j < count_; ++j)
          values<Bool>(into)[j] =
              compared(step.comparison, values<T>(step.of[0])[j], values<T>(step.of[1])[j]);
        return;
      case Chain::Step::Kind::select:
        for (std::size_t j = 0; j < count_; ++j)
          values<T>(into)[j] =
              chosen(values<Bool>(step.of[0])[j], values<T>(step.of[1])[j], values<T>(step.of[2])[j]);
        return;
      case Chain::Step::Kind::cast:
        with_type(step.result, [&](auto to) {
          for (std::size_t j = 0; j < count_; ++j)
            values<decltype(to)>(into)[j] = convert<decltype(to)>(values<T>(step.of[0])[j]);
        });
        return;
    }
  }

  const ChainLaunch& launch_;
  std::int64_t begin_;
  std::size_t count_;
  std::byte* room_ = room();
};

// As a kernel that run() takes.
struct Interpreter {
  using Params = ChainLaunch;
  static std::int64_t tiles(const Params& p) { return in_tiles(p.params.count, tile_elements); }
  static void tile(const Params& p, std::int64_t tile) { Tile(p, tile).compute(); }
};

std::unexpected<Error> refuse(const std::string& why) {
  return invalid("CUDA kernel chain: " + why);
}

Result<> check(const Chain& chain) {
  if (chain.operand_count < 1 || chain.operand_count > most_chain_operands)
    return refuse(std::to_string(chain.operand_count) + " operands; 1 to " +
                  std::to_string(most_chain_operands) + " wanted");
  if (chain.step_count < 1 || chain.step_count > most_chain_steps)
    return refuse(std::to_string(chain.step_count) + " steps; 1 to " + std::to_string(most_chain_steps) +
                  " wanted");
  std::vector<Type> types;
  for (int i = 0; i < chain.operand_count; ++i) types.push_back(chain.operands[i].type);
  for (int i = 0; i < chain.step_count; ++i) {
    const Chain::Step& step = chain.steps[i];
    const std::string where = "step " + std::to_string(i) + " ";
    for (int k = 0; k < operands_of(step); ++k)
      if (step.of[k] < 0 || step.of[k] >= static_cast<int>(types.size()))
        return refuse(where + "reads what is not there yet");
    const auto is = [&](int k, Type type) { return types[static_cast<std::size_t>(step.of[k])] == type; };
    using Kind = Chain::Step::Kind;
    bool fits = true;
    for (int k = step.kind == Kind::select ? 1 : 0; k < operands_of(step); ++k)
      fits = fits && is(k, step.type);
    if (step.kind == Kind::select) fits = fits && is(0, Type::boolean);
    if (step.kind == Kind::arithmetic) fits = fits && step.type != Type::boolean;
    if (step.kind == Kind::arithmetic && !is_number(step.type))
      fits = fits && step.activation == Activation::none;
    if (step.kind == Kind::compare) fits = fits && step.result == Type::boolean;
    if (step.kind == Kind::arithmetic || step.kind == Kind::select) fits = fits && step.result == step.type;
    if (!fits) return refuse(where + "has types that it does not go with");
    types.push_back(step.result);
  }
  return {};
}

}  // namespace

int operands_of(const Chain::Step& step) {
  switch (step.kind) {
    case Chain::Step::Kind::arithmetic:
      return arity(step.op);
    case Chain::Step::Kind::compare:
      return 2;
    case Chain::Step::Kind::select:
      return 3;
    case Chain::Step::Kind::cast:
      return 1;
  }
  return 0;
}

std::size_t size_of(Type type) {
  std::size_t out = 0;
  with_type(type, [&](auto t) { out = sizeof t; });
  return out;
}

void choose_readings(Chain& chain, const ChainParams& params) {
  const auto is_dense = [](const ChainOperand& o) { return dense(o.extents, o.strides, o.rank); };
  const auto is_single = [](const ChainOperand& o) { return repeated(o.extents, o.strides, o.rank); };
  // As many elements as make 16 bytes of the smallest numbers; of truth values alone, 16.
  std::size_t smallest = 0;
  const auto count = [&](Type type) {
    const std::size_t size = size_of(type);
    if (size > 1) smallest = smallest == 0 ? size : std::min(smallest, size);
  };
  for (int i = 0; i < chain.operand_count; ++i)
    if (is_dense(params.operands[i]) && !is_single(params.operands[i])) count(chain.operands[i].type);
  count(chain.steps[chain.step_count - 1].result);
  chain.pack = smallest == 0 ? 16 : static_cast<int>(16 / smallest);
  const auto pack = static_cast<std::uint32_t>(chain.pack);
  for (int i = 0; i < chain.operand_count; ++i) {
    const ChainOperand& operand = params.operands[i];
    Chain::Operand& into = chain.operands[i];
    using Reading = Chain::Reading;
    into.rank = operand.rank;
    const int last = operand.rank - 1;
    bool in_packs = aligned(operand.at) && last >= 0 && operand.extents[last] % pack == 0;
    for (int k = 0; k < last; ++k) in_packs = in_packs && operand.strides[k] % chain.pack == 0;
    if (is_single(operand)) {
      into.reading = Reading::single;
    } else if (is_dense(operand) && aligned(operand.at)) {
      into.reading = Reading::dense;
    } else if (in_packs && operand.strides[last] == 1) {
      into.reading = Reading::run;
    } else if (operand.strides[last] == 0 && operand.extents[last] % pack == 0) {
      into.reading = Reading::repeated;
    } else {
      into.reading = Reading::apart;
    }
    if (into.reading == Reading::single || into.reading == Reading::dense) into.rank = 0;
  }
}

const Kernel& chain_interpreter() {
  static constexpr Kernel kernel{
      chain_symbol,
      sizeof(ChainLaunch),
      offsetof(ChainLaunch, params) + offsetof(ChainParams, stop),
      [](const void* p) { return Interpreter::tiles(*static_cast<const ChainLaunch*>(p)); },
      [](const void* p) {
        const auto& launch = *static_cast<const ChainLaunch*>(p);
        run_until<Interpreter>(launch, [&] { return stopped(launch.params.stop); });
      },
      [](const void* p, std::int64_t tiles) {
        const auto& launch = *static_cast<const ChainLaunch*>(p);
        run_until<Interpreter>(launch, [&] { return tiles-- <= 0 || stopped(launch.params.stop); });
      },
      [](const void* p, std::vector<Bytes>& reads, std::vector<Bytes>& writes) {
        const auto& [params, chain] = *static_cast<const ChainLaunch*>(p);
        Accesses accesses(reads, writes);
        for (int i = 0; i < chain.operand_count; ++i) {
          const ChainOperand& operand = params.operands[i];
          accesses.read(operand.at, extents_of(operand.extents, operand.rank),
                        strides_of(operand.strides, operand.rank), size_of(chain.operands[i].type));
        }
        accesses.write(params.output, params.count, size_of(chain.steps[chain.step_count - 1].result));
      }};
  return kernel;
}

Result<Launch> launch(const ChainLaunch& chain, unsigned processors) {
  if (auto sound = check(chain.chain); !sound) return std::unexpected(sound.error());
  const ChainParams& params = chain.params;
  if (params.count < 0 || params.count >= std::int64_t{1} << 31)
    return refuse(std::to_string(params.count) + " elements; fewer than 2^31 wanted");
  if (processors == 0) return refuse("a device of 0 multiprocessors, 1 or more wanted");
  for (int i = 0; i < chain.chain.operand_count; ++i) {
    const ChainOperand& operand = params.operands[i];
    if (operand.rank < 0 || operand.rank > max_rank || product(operand.extents, operand.rank) != params.count)
      return refuse("operand " + std::to_string(i) + " has not the elements of the output");
  }
  return launch_in_tiles(chain_interpreter(), in_tiles(params.count, tile_elements), processors);
}

}  // namespace carillon::engine::cuda::kernels
