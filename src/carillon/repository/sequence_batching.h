#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/graph/model.h"

namespace inference {
class ModelSequenceBatching;
}

namespace carillon::repository {

struct ModelConfig;

inline constexpr std::size_t largest_initial_state = 64 << 20;  // bytes of a file
// The folder, in the model's, that files of initial states are in.
inline constexpr const char* initial_state_folder = "initial_state";

// What `sequence_batching` says of a model whose requests belong to sequences (Triton's stateful models). The
// inputs that tell it of the sequence, and those and the outputs that are its state, are the server's matter:
// clients do not see them.
struct SequenceBatching {
  enum class Signal : std::uint8_t { start, end, ready, id };
  struct Control {
    Signal signal = Signal::start;
    std::string input;
    graph::DataType type = graph::DataType::f32;
    double off = 0, on = 1;  // what the input is; of id neither
  };
  struct State {
    std::string input;
    std::string output;
    graph::DataType type = graph::DataType::f32;
    graph::Shape dims;               // without the batch; -1 where the file decides
    std::string file;                // of the initial state; empty: zeros
    bool shown = false;              // the output is one of the config's, too
    std::vector<std::byte> initial;  // of one row
  };
  std::vector<Control> controls;  // each signal once at most
  std::vector<State> states;
  Duration idle = std::chrono::seconds{1};  // without a request: then the sequence ends
  // All that the model has, in its own order, with what clients do not see. Set by complete_sequence().
  std::vector<graph::TensorSpec> inputs, outputs;
};

// Errors (invalid_argument): a signal that is there twice or whose values or type are missing, a state
// without names or type, a file's name that leads elsewhere; unsupported: iterative sequences, text as ids.
Result<SequenceBatching> read_sequence_batching(const inference::ModelSequenceBatching& message,
                                                std::vector<std::string>& ignored);

// Holds `config`, whose inputs and outputs are all that the file has, against its `sequence`, and leaves
// clients those that are theirs. Errors (invalid_argument): a tensor that the file does not have, another
// type, a shape that is not one value a row (signals) or not fixed (states), an initial state of another
// size.
Result<> complete_sequence(SequenceBatching sequence, ModelConfig& config);

}  // namespace carillon::repository
