#pragma once

#include <cstdint>
#include <span>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/kernels/kernels.h"
#include "carillon/engine/cuda/kernels/params.h"

// Chains: elementwise kernels, one behind the other, as one kernel. What lies between them is rounded to its
// type as if it were stored, so that a chain gives, bit for bit, what its kernels give one by one.
namespace carillon::engine::cuda::kernels {

// Reasons of the bounds: the packs of eight operands (128 registers for int64 beside f16) are what a thread
// of 256 a block can hold without spilling; each step converts its values twice where they are f16, and after
// some sixteen that takes longer than the memory that one kernel more would take.
inline constexpr int most_chain_steps = 16;

struct Chain {
  // How an operand is read; chain_body.h says what each is.
  enum class Reading : std::uint8_t { dense, single, run, repeated, apart };
  struct Operand {
    Type type;
    Reading reading;
    int rank;  // of ChainOperand; 0 unless it is read as run, repeated or apart
  };
  struct Step {
    enum class Kind : std::uint8_t { arithmetic, compare, select, cast };
    Kind kind;
    Type type;    // of its operands; of a select, of what it chooses from
    Type result;  // what it gives
    Op op;        // of arithmetic
    Activation activation;
    float low, high;
    Comparison comparison;
    int of[3];  // values: the operands from 0 on, then what each step gives. Of a select the condition first
  };

  int operand_count, step_count;
  int pack;  // elements that a thread does at once
  Operand operands[most_chain_operands];
  Step steps[most_chain_steps];  // the last gives the chain's output
};

// Values that a step reads.
int operands_of(const Chain::Step& step);
std::size_t size_of(Type type);

// The pack and the ways of reading: as wide as operands and output of such places allow. Of `chain` all else
// is set; `params` has each operand's address, or any that is aligned as it will be.
void choose_readings(Chain& chain, const ChainParams& params);

// What a chain's kernel is launched with. The kernel of a device (chain_source.h) takes what is in front, the
// interpreter all of it.
struct ChainLaunch {
  ChainParams params;
  Chain chain;
};
static_assert(offsetof(ChainLaunch, params) == 0);

inline constexpr const char* chain_symbol = "carillon_chain";
// The host's interpreter, of symbol chain_symbol; not among all().
const Kernel& chain_interpreter();

// As the others' launch(). Refused, besides: more operands or steps than there may be, values that a step may
// not read, types that an operation does not have, and an index space that has not `count` elements.
Result<Launch> launch(const ChainLaunch& chain, unsigned processors);

}  // namespace carillon::engine::cuda::kernels
