// Devices, their contexts, and green ones.

#include <algorithm>
#include <cstring>

#include "carillon/engine/cuda/driver/emulated_functions.h"

namespace carillon::engine::cuda {

Status EmulatedFunctions::init(unsigned) {
  const auto held = hold();
  return s().boards.empty() ? no_device : done;
}

Status EmulatedFunctions::driver_version(int* out) {
  *out = s().options.version;
  return done;
}

Status EmulatedFunctions::device_count(int* out) {
  const auto held = hold();
  *out = static_cast<int>(s().boards.size());
  return done;
}

Status EmulatedFunctions::device_get(DeviceNumber* out, int ordinal) {
  const auto held = hold();
  if (board(ordinal) == nullptr) return invalid_device;
  *out = ordinal;
  return done;
}

Status EmulatedFunctions::device_attribute(int* out, int attribute, DeviceNumber device) {
  const auto held = hold();
  const Board* const asked = board(device);
  if (asked == nullptr) return invalid_device;
  const EmulatedOptions& options = asked->options;
  switch (attribute) {
    case attribute_major:
      *out = options.major;
      return done;
    case attribute_minor:
      *out = options.minor;
      return done;
    case attribute_processors:
      *out = static_cast<int>(options.processors);
      return done;
    case attribute_virtual_memory:
      *out = options.virtual_memory ? 1 : 0;
      return done;
    case attribute_clock_khz:
      *out = 1'980'000;
      return done;
    case attribute_bus_bits:
      *out = 5120;
      return done;
    case attribute_l2_bytes:
      *out = 50 << 20;
      return done;
    default:
      return invalid_value;
  }
}

Status EmulatedFunctions::device_name(char* out, int bytes, DeviceNumber device) {
  const auto held = hold();
  const Board* const asked = board(device);
  if (asked == nullptr || bytes < 1) return invalid_device;
  const std::string& name = asked->options.name;
  const std::size_t length = std::min<std::size_t>(name.size(), static_cast<std::size_t>(bytes) - 1);
  std::memcpy(out, name.data(), length);
  out[length] = '\0';
  return done;
}

Status EmulatedFunctions::device_uuid(Uuid* out, DeviceNumber device) {
  const auto held = hold();
  if (board(device) == nullptr) return invalid_device;
  *out = {};
  out->bytes[0] = static_cast<unsigned char>(device + 1);
  return done;
}

Status EmulatedFunctions::device_memory(std::size_t* out, DeviceNumber device) {
  const auto held = hold();
  const Board* const asked = board(device);
  if (asked == nullptr) return invalid_device;
  *out = asked->options.memory;
  return done;
}

Status EmulatedFunctions::context_retain(Context* out, DeviceNumber device) {
  const auto held = hold();
  Board* const asked = board(device);
  if (asked == nullptr) return invalid_device;
  ++asked->contexts;
  *out = asked;
  return done;
}

Status EmulatedFunctions::context_release(DeviceNumber device) {
  const auto held = hold();
  Board* const asked = board(device);
  if (asked == nullptr) return invalid_device;
  if (--asked->contexts < 0) s().wrong("a context was released more often than it was retained");
  return done;
}

Status EmulatedFunctions::context_push(Context context) {
  const auto held = hold();
  if (std::ranges::none_of(s().boards, [&](const Board& each) { return &each == context; }))
    return invalid_context;
  contexts_here.push_back(context);
  return done;
}

Status EmulatedFunctions::context_pop(Context* out) {
  if (contexts_here.empty()) return invalid_context;
  *out = contexts_here.back();
  contexts_here.pop_back();
  return done;
}

Status EmulatedFunctions::context_synchronize() {
  auto held = hold();
  if (const Status status = ready(); status != done) return status;
  const Board& board = *State::here();
  Duration last{0};
  for (const auto& [handle, stream] : s().streams)
    if (&of(stream) == &board) last = std::max(last, stream.free_at);
  if (s().never_ends(last, "cuCtxSynchronize")) return launch_timeout;
  State::pass_until(board, last, held);
  for (auto& [handle, stream] : s().streams) {
    if (&of(stream) != &board) continue;
    if (s().breaks_capture(&stream, "cuCtxSynchronize")) return capture_unsupported;
    s().wait_for(board, stream.before, stream.free_at);
  }
  return done;
}

Status EmulatedFunctions::memory_info(std::size_t* left, std::size_t* all) {
  const auto held = hold();
  const Board* const asked = State::here();
  if (asked == nullptr) return invalid_context;
  *all = asked->options.memory;
  *left = asked->options.memory - asked->used;
  return done;
}

// --- green contexts

Status EmulatedFunctions::processors(DeviceNumber device, Processors* out, int type) {
  const auto held = hold();
  const Board* const asked = board(device);
  if (asked == nullptr || type != of_processors) return invalid_value;
  *out = {};
  out->count = asked->options.processors;
  out->least = out->alignment = asked->options.least_part;
  return done;
}

Status EmulatedFunctions::split_processors(Processors* parts, unsigned* count, const Processors* of,
                                           Processors* rest, unsigned, unsigned least) {
  const unsigned unit = s().options.least_part;
  const unsigned size = std::max(unit, (least + unit - 1) / unit * unit);
  const unsigned most = std::min(of->count, s().options.groups * unit) / size;
  if (most == 0) return invalid_value;
  if (parts == nullptr) {
    *count = most;
    return done;
  }
  *count = std::min(*count, most);
  for (unsigned i = 0; i < *count; ++i) {
    parts[i] = *of;
    parts[i].count = size;
  }
  if (rest != nullptr) {
    *rest = *of;
    rest->count = of->count - *count * size;
    if (rest->count == 0) rest->type = 0;
  }
  return done;
}

Status EmulatedFunctions::describe(Resources* out, Processors* parts, unsigned count) {
  const auto held = hold();
  unsigned sum = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (parts[i].type != of_processors) return invalid_value;
    sum += parts[i].count;
  }
  if (sum == 0) return invalid_value;
  *out = s().fresh<Resources>();
  s().resources.emplace(*out, sum);
  return done;
}

Status EmulatedFunctions::green_create(GreenContext* out, Resources what, DeviceNumber device,
                                       unsigned flags) {
  const auto held = hold();
  Board* const asked = board(device);
  const auto found = s().resources.find(what);
  if (asked == nullptr || found == s().resources.end() || flags != green_default_stream ||
      found->second > asked->options.processors)
    return invalid_value;
  if (asked->lost != done) return asked->lost;
  s().foreign(asked, "a green context");
  *out = s().fresh<GreenContext>();
  s().greens.emplace(*out, std::make_shared<Partition>(*asked, found->second));
  return done;
}

Status EmulatedFunctions::green_destroy(GreenContext context) {
  const auto held = hold();
  const auto found = s().greens.find(context);
  if (found == s().greens.end()) return invalid_handle;
  if (std::ranges::any_of(s().streams,
                          [&](const auto& each) { return each.second.partition == found->second; }))
    s().wrong("a green context was destroyed before its streams");
  s().greens.erase(found);
  return done;
}

Status EmulatedFunctions::green_stream(Stream* out, GreenContext context, unsigned flags, int) {
  const auto held = hold();
  const auto found = s().greens.find(context);
  if (found == s().greens.end()) return invalid_handle;
  const Board& board = found->second->board;
  if (board.lost != done) return board.lost;
  s().foreign(&board, "a green context, for a stream,");
  return make_stream(out, flags, found->second);
}

Status EmulatedFunctions::error_name(Status status, const char** out) {
  static const std::map<Status, const char*> names{
      {done, "CUDA_SUCCESS"},
      {invalid_value, "CUDA_ERROR_INVALID_VALUE"},
      {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {not_initialized, "CUDA_ERROR_NOT_INITIALIZED"},
      {no_device, "CUDA_ERROR_NO_DEVICE"},
      {invalid_device, "CUDA_ERROR_INVALID_DEVICE"},
      {invalid_context, "CUDA_ERROR_INVALID_CONTEXT"},
      {map_failed, "CUDA_ERROR_MAP_FAILED"},
      {uncorrectable_memory, "CUDA_ERROR_ECC_UNCORRECTABLE"},
      {invalid_handle, "CUDA_ERROR_INVALID_HANDLE"},
      {not_found, "CUDA_ERROR_NOT_FOUND"},
      {not_ready, "CUDA_ERROR_NOT_READY"},
      {launch_timeout, "CUDA_ERROR_LAUNCH_TIMEOUT"},
      {launch_failed, "CUDA_ERROR_LAUNCH_FAILED"},
      {not_supported, "CUDA_ERROR_NOT_SUPPORTED"},
      {capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {capture_unmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
      {capture_unjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"}};
  const auto found = names.find(status);
  if (found == names.end()) return invalid_value;
  *out = found->second;
  return done;
}

}  // namespace carillon::engine::cuda
