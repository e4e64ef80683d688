// Memory of devices and of the host, and other processes' memory.

#include <algorithm>
#include <cstring>
#include <utility>

#include "carillon/engine/cuda/driver/emulated_functions.h"

namespace carillon::engine::cuda {

// --- memory

Status EmulatedFunctions::granularity(std::size_t* out, const Properties*, int) {
  *out = s().options.granularity;
  return done;
}

Status EmulatedFunctions::create(Handle* out, std::size_t bytes, const Properties* of, unsigned long long) {
  const auto held = hold();
  ++s().memory_calls;
  Board* const asked = board(of->location.id);
  if (of->type != 1 || of->location.type != 1 || asked == nullptr) return invalid_value;
  if (asked->lost != done) return asked->lost;
  s().foreign(asked, "memory that is to be made");
  if (bytes == 0 || !s().aligned(bytes)) {
    s().wrong("physical memory is not of whole granules");
    return invalid_value;
  }
  if (++asked->made == asked->options.fail_create || asked->used + bytes > asked->options.memory)
    return out_of_memory;
  auto memory = std::make_shared<Memory>(asked, bytes);
  if (asked->options.computes) {
    memory->file = memfd_create("carillon-emulated", MFD_CLOEXEC);
    if (memory->file < 0 || ftruncate(memory->file, static_cast<off_t>(bytes)) != 0) return out_of_memory;
  }
  *out = s().next++;
  s().handles.emplace(*out, std::move(memory));
  return done;
}

Status EmulatedFunctions::release(Handle memory) {
  const auto held = hold();
  ++s().memory_calls;
  if (s().handles.erase(memory) == 1) return done;  // what is mapped stays
  s().wrong("memory was released that there is not");
  return invalid_value;
}

Status EmulatedFunctions::reserve(Address* out, std::size_t bytes, std::size_t alignment, Address,
                                  unsigned long long) {
  const auto held = hold();
  ++s().memory_calls;
  if (bytes == 0 || !s().aligned(bytes)) return invalid_value;
  alignment = std::max(alignment, s().options.granularity);
  const std::size_t wide = bytes + alignment;
  void* const at = mmap(nullptr, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return out_of_memory;
  const Address start = address(at), fit = (start + alignment - 1) / alignment * alignment;
  if (fit > start) munmap(at, fit - start);
  if (fit + bytes < start + wide) munmap(pointer(fit + bytes), start + wide - fit - bytes);
  *out = fit;
  s().reservations.emplace(fit, bytes);
  return done;
}

bool EmulatedFunctions::meets(Address a, std::uint64_t a_bytes, Address b, std::uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

Status EmulatedFunctions::unreserve(Address at, std::size_t bytes) {
  const auto held = hold();
  ++s().memory_calls;
  const auto found = s().reservations.find(at);
  if (found == s().reservations.end() || found->second != bytes) {
    s().wrong("addresses were given back that were not reserved so");
    return invalid_value;
  }
  for (const auto& [start, mapping] : s().mappings)
    if (meets(start, mapping.bytes, at, bytes)) {
      s().wrong("addresses were given back with memory mapped there");
      return invalid_value;
    }
  munmap(pointer(at), bytes);
  s().reservations.erase(found);
  return done;
}

Status EmulatedFunctions::map(Address at, std::size_t bytes, std::size_t offset, Handle handle,
                              unsigned long long) {
  const auto held = hold();
  ++s().memory_calls;
  const auto found = s().handles.find(handle);
  if (found != s().handles.end() && found->second->board->lost != done) return found->second->board->lost;
  if (found != s().handles.end()) s().foreign(found->second->board, "memory that is to be mapped");
  const auto above = s().reservations.upper_bound(at);
  const bool reserved =
      above != s().reservations.begin() && at + bytes <= std::prev(above)->first + std::prev(above)->second;
  // The driver takes no offset but 0 today.
  if (found == s().handles.end() || !reserved || offset != 0 || bytes == 0 || bytes > found->second->bytes ||
      !s().aligned(at) || !s().aligned(bytes)) {
    s().wrong("memory was mapped in a way that there is not");
    return invalid_value;
  }
  for (const auto& [start, mapping] : s().mappings)
    if (meets(start, mapping.bytes, at, bytes)) {
      s().wrong("memory was mapped where some is mapped");
      return invalid_value;
    }
  if (found->second->file >= 0 &&
      mmap(pointer(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second->file, 0) == MAP_FAILED)
    return out_of_memory;
  ++found->second->mappings;
  s().mappings.emplace(at, Mapping{.bytes = bytes, .memory = found->second});
  return done;
}

std::vector<Address> EmulatedFunctions::whole_mappings(Address at, std::size_t bytes) {
  std::vector<Address> out;
  for (Address next = at; next < at + bytes;) {
    const auto found = s().mappings.find(next);
    if (found == s().mappings.end() || next + found->second.bytes > at + bytes) return {};
    out.push_back(next);
    next += found->second.bytes;
  }
  return out;
}

Status EmulatedFunctions::unmap(Address at, std::size_t bytes) {
  const auto held = hold();
  ++s().memory_calls;
  const std::vector<Address> whole = whole_mappings(at, bytes);
  if (whole.empty()) {
    s().wrong("memory was unmapped that is not, or not so, mapped");
    return invalid_value;
  }
  for (const Address each : whole) {
    Mapping& mapping = s().mappings.at(each);
    if (const auto work = s().outstanding(*mapping.memory, 0, mapping.bytes))
      s().wrong(fmt::format("memory was unmapped that {} may use still", *work));
    --mapping.memory->mappings;  // what it holds stays, wherever it is mapped next
    s().mappings.erase(each);
  }
  (void)mmap(pointer(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  return done;
}

Status EmulatedFunctions::set_access(Address at, std::size_t bytes, const Access* what, std::size_t count) {
  const auto held = hold();
  ++s().memory_calls;
  const std::vector<Address> whole = whole_mappings(at, bytes);
  const Board* const asked = count == 1 ? board(what->location.id) : nullptr;
  if (asked == nullptr || what->flags != 3 || what->location.type != 1 || whole.empty()) {
    s().wrong("access was given in a way that there is not, or to memory that is not mapped");
    return invalid_value;
  }
  for (const Address each : whole)
    if (s().foreign(s().mappings.at(each).memory->board, "memory that access is given to", asked))
      return invalid_value;
  for (const Address each : whole) {
    Mapping& mapping = s().mappings.at(each);
    mapping.access = true;
    if (mapping.memory->file >= 0) mprotect(pointer(each), mapping.bytes, PROT_READ | PROT_WRITE);
  }
  return done;
}

// --- allocations, and those of other processes

Address EmulatedFunctions::map_file(Board& board, std::map<Address, Mapping>& table, int file,
                                    std::uint64_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return 0;
  auto memory = std::make_shared<Memory>(&board, bytes);
  memory->file = file;
  table.emplace(address(at), Mapping{.bytes = bytes, .memory = std::move(memory), .access = true});
  return address(at);
}

Status EmulatedFunctions::allocate(Address* out, std::size_t bytes) {
  const auto held = hold();
  if (const Status status = ready(); status != done) return status;
  Board& board = *State::here();
  if (bytes == 0) return invalid_value;
  if (++board.made == board.options.fail_create || board.used + bytes > board.options.memory)
    return out_of_memory;
  const int file = whole_file(bytes);
  if (file < 0) return out_of_memory;
  *out = map_file(board, s().allocations, file, bytes);
  if (*out != 0) return done;
  close(file);
  return out_of_memory;
}

void EmulatedFunctions::end_mapping(std::map<Address, Mapping>& table,
                                    std::map<Address, Mapping>::iterator which, const char* what) {
  if (const auto work = s().outstanding(*which->second.memory, 0, which->second.bytes))
    s().wrong(fmt::format("{} that {} may use still", what, *work));
  munmap(pointer(which->first), which->second.bytes);
  table.erase(which);
}

Status EmulatedFunctions::free(Address at) {
  const auto held = hold();
  const auto found = s().allocations.find(at);
  if (found == s().allocations.end()) {
    s().wrong("an allocation was freed that there is not");
    return invalid_value;
  }
  end_mapping(s().allocations, found, "an allocation was freed");
  return done;
}

Status EmulatedFunctions::address_range(Address* base, std::size_t* bytes, Address at) {
  const auto held = hold();
  for (const auto* const table : {&s().allocations, &s().borrowed, &s().mappings}) {
    const auto above = table->upper_bound(at);
    if (above == table->begin()) continue;
    const auto& [start, mapping] = *std::prev(above);
    if (at >= start + mapping.bytes) continue;
    *base = start;
    *bytes = mapping.bytes;
    return done;
  }
  return not_found;
}

Status EmulatedFunctions::ipc_export(IpcHandle* out, Address at) {
  const auto held = hold();
  if (const Status status = ready(); status != done) return status;
  const auto found = s().allocations.find(at);
  if (found == s().allocations.end()) return invalid_value;  // what is mapped piece by piece has no handle
  *out = handle_of(found->second.memory->file, found->second.bytes, false);
  return done;
}

Status EmulatedFunctions::ipc_open(Address* out, IpcHandle handle, unsigned flags) {
  const auto held = hold();
  if (const Status status = ready(); status != done) return status;
  Board& board = *State::here();
  Exported from;
  std::memcpy(&from, handle.bytes, sizeof from);
  if (flags != peers_as_needed || from.mark != Exported().mark || from.sum != from.summed() ||
      from.bytes == 0)
    return invalid_value;
  if (from.process == getpid() && from.here == 0) return invalid_context;
  for (auto& [at, loan] : s().loans)
    if (loan.device == from.device && loan.inode == from.inode) {
      ++loan.opened;
      *out = at;
      return done;
    }
  if (++board.made == board.options.fail_create) return out_of_memory;
  const int file = open(fmt::format("/proc/{}/fd/{}", from.process, from.file).c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  if (file < 0 || fstat(file, &status) != 0 || status.st_dev != from.device || status.st_ino != from.inode ||
      static_cast<std::uint64_t>(status.st_size) < from.bytes ||
      (fcntl(file, F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
    if (file >= 0) close(file);
    return map_failed;  // its process has ended, or freed it
  }
  *out = map_file(board, s().borrowed, file, from.bytes);
  if (*out == 0) {
    close(file);
    return map_failed;
  }
  s().borrowed.at(*out).memory->written.add(0, from.bytes);  // by whom it is
  s().loans.emplace(*out, Borrowed{.device = from.device, .inode = from.inode, .opened = 1});
  return done;
}

Status EmulatedFunctions::ipc_close(Address at) {
  const auto held = hold();
  const auto found = s().loans.find(at);
  if (found == s().loans.end()) {
    s().wrong("memory of another process was closed that is not open");
    return invalid_value;
  }
  if (--found->second.opened > 0) return done;
  s().loans.erase(found);
  end_mapping(s().borrowed, s().borrowed.find(at), "memory of another process was closed");
  return done;
}

Status EmulatedFunctions::host_allocate(void** out, std::size_t bytes, unsigned) {
  const auto held = hold();
  if (const Status status = ready(); status != done) return status;
  if (bytes == 0) return invalid_value;
  if (++State::here()->made == State::here()->options.fail_create) return out_of_memory;
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return out_of_memory;
  auto memory = std::make_shared<Memory>(nullptr, bytes);
  s().host.emplace(address(at), Mapping{.bytes = bytes, .memory = std::move(memory), .access = true});
  *out = at;
  return done;
}

Status EmulatedFunctions::host_free(void* memory) {
  const auto held = hold();
  const auto found = s().host.find(address(memory));
  if (found == s().host.end()) {
    s().wrong("memory of the host was freed that there is not");
    return invalid_value;
  }
  if (const auto work = s().outstanding(*found->second.memory, 0, found->second.bytes))
    s().wrong(fmt::format("memory of the host was freed that {} may use still", *work));
  munmap(memory, found->second.bytes);
  s().host.erase(found);
  return done;
}

Status EmulatedFunctions::host_address(Address* out, void* host, unsigned) {
  const auto held = hold();
  if (!pinned(host, 1)) return invalid_value;
  *out = address(host);
  return done;
}

}  // namespace carillon::engine::cuda
