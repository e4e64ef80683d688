#include "carillon/engine/cuda/driver/emulated.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "carillon/engine/cuda/driver/emulated_functions.h"

namespace carillon::engine::cuda {

EmulatedLoan::EmulatedLoan(std::size_t bytes) : file_(whole_file(bytes)), bytes_(bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (at == MAP_FAILED) std::abort();
  data_ = static_cast<std::byte*>(at);
  handle_ = handle_of(file_, bytes, true);
}

EmulatedLoan::~EmulatedLoan() {
  munmap(data_, bytes_);
  close(file_);
}

Emulated::Emulated(EmulatedOptions options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  for (int i = 0; i < state_->options.devices; ++i) add_device(state_->options);
  contexts_here.clear();
  EmulatedFunctions::the_one = this;
}

Emulated::~Emulated() {
  for (const auto& [at, bytes] : state_->reservations) munmap(pointer(at), bytes);
  for (const auto* const table : {&state_->host, &state_->allocations, &state_->borrowed})
    for (const auto& [at, mapping] : *table) munmap(pointer(at), mapping.bytes);
  EmulatedFunctions::the_one = nullptr;
}

Driver Emulated::table() {
  Driver out;
#define CARILLON_EMULATED(member, symbol, arguments) out.member = EmulatedFunctions::member;
  CARILLON_CUDA_DRIVER(CARILLON_EMULATED)
#undef CARILLON_EMULATED
  return out;
}

void Emulated::know(std::string name, EmulatedKernel kernel) {
  const std::lock_guard held(state_->mutex);
  state_->kernels.insert_or_assign(std::move(name), std::move(kernel));
}

Duration Emulated::now() const {
  const std::lock_guard held(state_->mutex);
  return state_->now;
}
void Emulated::pass(Duration while_) {
  const std::lock_guard held(state_->mutex);
  state_->now += while_;
}
void Emulated::next_takes(Duration duration) {
  next_here = duration;
}
void Emulated::next_needs(unsigned processors) {
  next_needs_here = processors;
}

DeviceNumber Emulated::add_device(EmulatedOptions options) {
  const std::lock_guard held(state_->mutex);
  const auto number = static_cast<DeviceNumber>(state_->boards.size());
  return state_->boards.emplace_back(number, std::move(options)).number;
}
void Emulated::lose(DeviceNumber device) {
  const std::lock_guard held(state_->mutex);
  state_->lose(*state_->board(device));
}
Duration Emulated::busy() const {
  const std::lock_guard held(state_->mutex);
  Duration sum{0};
  for (const Board& board : state_->boards) sum += board.busy;
  return sum;
}
Duration Emulated::busy(unsigned processors) const {
  const std::lock_guard held(state_->mutex);
  const auto found = state_->busy_by_processors.find(processors);
  return found == state_->busy_by_processors.end() ? Duration{0} : found->second;
}
std::uint64_t Emulated::launched() const {
  const std::lock_guard held(state_->mutex);
  std::uint64_t sum = 0;
  for (const Board& board : state_->boards) sum += board.launched;
  return sum;
}
std::uint64_t Emulated::launched(DeviceNumber device) const {
  const std::lock_guard held(state_->mutex);
  return state_->board(device)->launched;
}
std::uint64_t Emulated::memory_used() const {
  const std::lock_guard held(state_->mutex);
  std::uint64_t sum = 0;
  for (const Board& board : state_->boards) sum += board.used;
  return sum;
}
std::uint64_t Emulated::memory_calls() const {
  const std::lock_guard held(state_->mutex);
  return state_->memory_calls;
}
std::vector<std::string> Emulated::violations() const {
  const std::lock_guard held(state_->mutex);
  return state_->violations;
}

std::string Emulated::left_behind() const {
  const std::lock_guard held(state_->mutex);
  std::string out;
  const auto count = [&](std::size_t many, const char* what) {
    if (many > 0) out += fmt::format("{}{} {}{}", out.empty() ? "" : ", ", many, what, many == 1 ? "" : "s");
  };
  count(state_->mappings.size(), "mapping");
  count(state_->handles.size(), "handle");
  count(state_->reservations.size(), "reservation");
  count(state_->host.size(), "block of the host");
  count(state_->allocations.size(), "allocation");
  count(state_->borrowed.size(), "open loan");
  count(state_->streams.size(), "stream");
  count(state_->events.size(), "event");
  count(state_->modules.size(), "module");
  count(state_->graphs.size(), "graph");
  count(state_->executables.size(), "graph that can be launched");
  count(state_->captures.size(), "capture that nobody ended");
  count(state_->greens.size(), "green context");
  std::size_t contexts = 0;
  for (const Board& board : state_->boards) contexts += static_cast<std::size_t>(std::max(0, board.contexts));
  count(contexts, "context");
  count(state_->waiting.size(), "piece of work that nobody waited for");
  return out;
}

}  // namespace carillon::engine::cuda
