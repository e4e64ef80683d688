#include "carillon/controller/gates/sequences.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "carillon/base/assert.h"

namespace carillon::controller {
namespace {

using graph::DataType;
using graph::TensorSpec;
using repository::SequenceBatching;
using Signal = SequenceBatching::Signal;
using Buffer = std::vector<std::byte>;  // of one tensor

template <typename T>
Buffer bytes_of(T value) {
  Buffer out(sizeof value);
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

Buffer control_bytes(const SequenceBatching::Control& control, const SequenceMark& mark) {
  if (control.signal == Signal::id) {
    if (graph::size_of(control.type) == 4) return bytes_of(static_cast<std::uint32_t>(mark.number));
    return bytes_of(mark.number);
  }
  const bool on = control.signal == Signal::ready || (control.signal == Signal::start && mark.start) ||
                  (control.signal == Signal::end && mark.end);
  const double value = on ? control.on : control.off;
  if (control.type == DataType::boolean) return bytes_of(static_cast<std::uint8_t>(value != 0));
  if (control.type == DataType::i32) return bytes_of(static_cast<std::int32_t>(value));
  return bytes_of(static_cast<float>(value));
}

// The largest id that a signal of this type can carry.
std::uint64_t largest_id(DataType type) {
  if (type == DataType::i32) return std::numeric_limits<std::int32_t>::max();
  if (type == DataType::u32) return std::numeric_limits<std::uint32_t>::max();
  if (type == DataType::i64) return std::numeric_limits<std::int64_t>::max();
  return std::numeric_limits<std::uint64_t>::max();
}

std::string id_text(std::uint64_t number, const std::string& text) {
  return text.empty() ? std::to_string(number) : "'" + text + "'";
}

std::optional<std::size_t> place_of(const std::vector<TensorSpec>& specs, const std::string& name) {
  const auto at = std::ranges::find(specs, name, &TensorSpec::name);
  if (at == specs.end()) return std::nullopt;
  return static_cast<std::size_t>(at - specs.begin());
}

}  // namespace

void Sequences::add_model(ModelId id, const repository::ModelConfig& config) {
  if (config.sequence == nullptr) return;
  auto model = std::make_shared<Model>();
  model->name = config.name;
  model->batching = config.sequence;
  const SequenceBatching& batching = *config.sequence;
  using Place = Model::Place;
  for (const TensorSpec& input : batching.inputs) {
    Place place;
    for (std::size_t i = 0; i < batching.controls.size(); ++i)
      if (batching.controls[i].input == input.name) place = {Place::Kind::control, i, {}};
    for (std::size_t i = 0; i < batching.states.size(); ++i)
      if (batching.states[i].input == input.name) place = {Place::Kind::state, i, {}};
    if (place.kind == Place::Kind::client) place.index = place_of(config.inputs, input.name).value();
    model->inputs.push_back(place);
  }
  for (const TensorSpec& output : batching.outputs) {
    Place place;
    for (std::size_t i = 0; i < batching.states.size(); ++i)
      if (batching.states[i].output == output.name)
        place = {Place::Kind::state, i, place_of(config.outputs, output.name)};
    if (place.kind == Place::Kind::client) place.index = place_of(config.outputs, output.name).value();
    model->outputs.push_back(place);
  }
  for (const SequenceBatching::State& state : batching.states) model->state_bytes += state.initial.size();
  const std::lock_guard lock(mutex_);
  models_[id] = std::move(model);
}

void Sequences::remove_model(ModelId id) {
  const std::lock_guard lock(mutex_);
  const auto model = models_.find(id);
  if (model == models_.end()) return;
  model->second->gone = true;
  for (auto at = table_.lower_bound(Key{id, 0, {}, {}}); at != table_.end() && at->first.model == id;) {
    const auto next = std::next(at);
    lose(at->first, model->second->name);
    if (!at->second.running) {
      idle_.erase({at->second.idle_at, at->first});
      end(at);
    }
    at = next;
  }
}

void Sequences::stop() {
  std::vector<Waiting> left;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, sequence] : table_) {
      for (Waiting& waiting : sequence.waiting) left.push_back(std::move(waiting));
      sequence.waiting.clear();
    }
  }
  for (Waiting& waiting : left)
    goes_(std::move(waiting), fail(ErrorCode::unavailable, "the server is stopping"));
}

bool Sequences::has(ModelId id) const {
  const std::lock_guard lock(mutex_);
  return models_.contains(id);
}

std::size_t Sequences::waiting(ModelId id) const {
  const std::lock_guard lock(mutex_);
  std::size_t out = 0;
  for (auto at = table_.lower_bound(Key{id, 0, {}, {}}); at != table_.end() && at->first.model == id; ++at)
    out += at->second.waiting.size();
  return out;
}

Sequences::Counts Sequences::counts() const {
  const std::lock_guard lock(mutex_);
  return {.open = table_.size(), .state = Bytes{state_bytes_}};
}

Result<Sequences::Key> Sequences::key_of(const InferCall& call, const Model& model) const {
  if (!call.sequence || (call.sequence->number == 0 && call.sequence->text.empty()))
    return invalid("inference request to model '" + model.name +
                   "' must specify a non-zero or non-empty correlation ID (parameter sequence_id)");
  if (call.rows != 1)
    return invalid("inference request to model '" + model.name +
                   "' must specify batch-size 1 due to requirements of sequence batcher; it has " +
                   std::to_string(call.rows) + " rows");
  const SequenceMark& mark = *call.sequence;
  for (const SequenceBatching::Control& control : model.batching->controls) {
    if (control.signal != Signal::id) continue;
    if (!mark.text.empty())
      return invalid("sequence_id is text, '" + mark.text + "', and model '" + model.name +
                     "' takes its sequence's id as a number, " +
                     std::string(graph::kserve_name(control.type)));
    if (mark.number > largest_id(control.type))
      return invalid("sequence_id is " + std::to_string(mark.number) + ", and model '" + model.name +
                     "' takes its sequence's id as " + std::string(graph::kserve_name(control.type)) +
                     ", at most " + std::to_string(largest_id(control.type)));
  }
  return Key{call.model, mark.number, mark.text, call.key};
}

// Whether a sequence of the model may begin beside those that are open.
Result<> Sequences::admit(const Key& key, const Model& model) const {
  const std::string which =
      "sequence " + id_text(key.number, key.text) + " of model '" + model.name + "' cannot begin: ";
  if (table_.size() >= options_.most)
    return fail(
        ErrorCode::resource_exhausted,
        which + std::to_string(table_.size()) +
            " sequences are open, as many as there may be; end some with sequence_end, or try again later");
  if (state_bytes_ + model.state_bytes > options_.state.count)
    return fail(ErrorCode::resource_exhausted,
                which + std::to_string(table_.size()) + " sequences hold " + to_text(Bytes{state_bytes_}) +
                    " of state, of " + to_text(options_.state) + " that there may be, and it takes " +
                    to_text(Bytes{model.state_bytes}) + "; end some with sequence_end, or try again later");
  return {};
}

// Gives the call the inputs that its client does not see.
void Sequences::complete(InferCall& call, const Model& model, const Sequence& sequence) {
  std::vector<Buffer> inputs;
  const SequenceMark& mark = *call.sequence;
  for (const Model::Place& place : model.inputs) {
    switch (place.kind) {
      case Model::Place::Kind::client:
        inputs.push_back(std::move(call.inputs[place.index]));
        break;
      case Model::Place::Kind::control:
        inputs.push_back(control_bytes(model.batching->controls[place.index], mark));
        break;
      case Model::Place::Kind::state:
        inputs.push_back(mark.start ? model.batching->states[place.index].initial
                                    : sequence.state[place.index]);
        break;
    }
  }
  call.inputs = std::move(inputs);
  call.outputs_wanted.clear();  // of the client's outputs; the state is in others
}

// Leaves the outputs that clients see, and gives the state.
std::vector<Buffer> Sequences::strip(InferCall& call, const Model& model) {
  CARILLON_ASSERT(call.outputs.size() == model.outputs.size());
  std::vector<Buffer> state(model.batching->states.size());
  std::vector<Buffer> outputs(model.outputs.size());
  std::vector<graph::Shape> shapes(model.outputs.size());
  std::size_t shown = 0;
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    const Model::Place& place = model.outputs[i];
    const bool is_state = place.kind == Model::Place::Kind::state;
    const auto to = is_state ? place.shown : std::optional(place.index);
    if (to) {
      ++shown;
      outputs[*to] = is_state ? call.outputs[i] : std::move(call.outputs[i]);
      if (call.size != nullptr) shapes[*to] = call.size->outputs[i];
    }
    if (is_state) state[place.index] = std::move(call.outputs[i]);
  }
  outputs.resize(shown);
  shapes.resize(shown);
  call.outputs = std::move(outputs);
  if (call.size != nullptr)
    call.size = std::make_shared<const Size>(Size{.number = call.size->number, .outputs = std::move(shapes)});
  return state;
}

void Sequences::end(Table::iterator at) {
  state_bytes_ -= models_.at(at->first.model)->state_bytes;
  table_.erase(at);
}

void Sequences::end_idle(TimePoint now) {
  while (!idle_.empty() && idle_.begin()->first <= now) {
    end(table_.find(idle_.begin()->second));
    idle_.erase(idle_.begin());
  }
}

void Sequences::lose(const Key& key, const std::string& model) {
  if (lost_.size() >= options_.most) lost_.clear();
  Key lost = key;
  lost.model = ModelId{};
  lost_.emplace(model, std::move(lost));
}

std::string Sequences::why_none(const Key& key, const Model& model) const {
  Key lost = key;
  lost.model = ModelId{};
  // While the model that was before is still about, its sequences are, too.
  const bool is_of_another = std::ranges::any_of(models_, [&](const auto& other) {
    Key before = key;
    before.model = other.first;
    return other.second->name == model.name && table_.contains(before);
  });
  if (is_of_another || lost_.contains({model.name, std::move(lost)}))
    return "the model was loaded anew, which ends its sequences";
  return "one that is idle for " + fmt::format("{:g}", to_ms(model.batching->idle)) + " ms has ended";
}

// Finds the call's sequence, or begins it, and says whether the call goes now; false: it waits there.
Result<bool> Sequences::take(Waiting& waiting, const Model& model, Table::iterator& at) {
  const auto key = key_of(*waiting.call, model);
  if (!key) return std::unexpected(key.error());
  at = table_.find(*key);
  if (at == table_.end()) {
    if (!waiting.call->sequence->start)
      return invalid("inference request for sequence " + id_text(key->number, key->text) + " to model '" +
                     model.name + "' must specify the START flag on the first request of the sequence; " +
                     why_none(*key, model));
    if (auto may = admit(*key, model); !may) return std::unexpected(may.error());
    state_bytes_ += model.state_bytes;
    at = table_.emplace(*key, Sequence{}).first;
    Key found = *key;
    found.model = ModelId{};
    lost_.erase({model.name, std::move(found)});
    return true;
  }
  Sequence& sequence = at->second;
  if (!sequence.running) {
    idle_.erase({sequence.idle_at, *key});
    return true;
  }
  if (sequence.waiting.size() >= options_.most_waiting)
    return fail(ErrorCode::resource_exhausted,
                std::to_string(sequence.waiting.size()) + " requests of sequence " +
                    id_text(key->number, key->text) + " of model '" + model.name +
                    "' wait already for those before them; wait for answers");
  sequence.waiting.push_back(std::move(waiting));
  return false;
}

void Sequences::submit(Waiting waiting, TimePoint now) {
  std::shared_ptr<const Model> model;
  Table::iterator at;
  Result<bool> goes;
  {
    const std::lock_guard lock(mutex_);
    end_idle(now);
    model = models_.at(waiting.call->model);
    goes = take(waiting, *model, at);
    if (goes && *goes) at->second.running = true;
  }
  if (!goes) return goes_(std::move(waiting), std::unexpected(goes.error()));
  if (*goes) go(std::move(waiting), std::move(model), at);
}

// The sequence's turn is this call's: `running` is set.
void Sequences::go(Waiting waiting, std::shared_ptr<const Model> model, Table::iterator at) {
  complete(*waiting.call, *model, at->second);
  const bool ends = waiting.call->sequence->end;
  AnswerHandler whole = [this, at, model = std::move(model), ends, handler = std::move(waiting.handler)](
                            InferAnswer answer) mutable { answered(at, model, ends, answer, handler); };
  waiting.handler = std::move(whole);
  goes_(std::move(waiting), {});
}

void Sequences::answered(Table::iterator at, const std::shared_ptr<const Model>& model, bool ends,
                         InferAnswer& answer, AnswerHandler& handler) {
  std::optional<std::vector<Buffer>> state;
  if (answer.status) state = strip(*answer.call, *model);
  std::vector<Waiting> homeless;  // behind the sequence's end, without a start of their own
  std::optional<Waiting> next;
  bool gone = false;
  {
    const std::lock_guard lock(mutex_);
    gone = model->gone;
    Sequence& sequence = at->second;
    sequence.running = false;
    if (state) {
      sequence.state = *std::move(state);
      sequence.begun = !ends;
    }
    if (gone) sequence.begun = false;
    while (!sequence.waiting.empty() && !next) {
      Waiting first = std::move(sequence.waiting.front());
      sequence.waiting.pop_front();
      if (sequence.begun || (first.call->sequence->start && !gone))
        next = std::move(first);
      else
        homeless.push_back(std::move(first));
    }
    if (next) {
      sequence.running = true;
    } else if (sequence.begun) {
      sequence.idle_at = saturating_add(answer.finished, model->batching->idle);
      idle_.emplace(sequence.idle_at, at->first);
    } else {
      end(at);
    }
  }
  handler(std::move(answer));
  const char* const why = gone ? "the model was loaded anew, which ends its sequences"
                               : "the request before it ended the sequence, or did not begin it";
  for (Waiting& each : homeless)
    goes_(std::move(each),
          invalid("inference request to model '" + model->name +
                  "' must specify the START flag on the first request of the sequence: " + why));
  if (next) go(*std::move(next), model, at);
}

void Sequences::cancel(std::uint64_t ticket) {
  std::optional<Waiting> found;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, sequence] : table_) {
      const auto at = std::ranges::find(sequence.waiting, ticket, &Waiting::ticket);
      if (at == sequence.waiting.end()) continue;
      found = std::move(*at);
      sequence.waiting.erase(at);
      break;
    }
  }
  if (found) goes_(*std::move(found), fail(ErrorCode::cancelled, "the client has gone"));
}

}  // namespace carillon::controller
