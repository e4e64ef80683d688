#pragma once

#include <cstdint>

#include "carillon/share/client/keeper.h"

// What Python calls (python/carillon/_cuda.py) in libcarillon_cuda.so, and what torch does: an allocator for
// torch.cuda.memory.CUDAPluggableAllocator, used behind a torch.cuda.MemPool. The pool asks for segments of 2
// MiB and more and cuts them into tensors by itself, in the order of streams; so tensors, their counts and
// record_stream are torch's own, and only segments are ours.
extern "C" {

struct carillon_cuda_counters_t {
  std::uint64_t lane_segments, own_segments, lane_bytes, own_bytes, segment_bytes;
  std::uint64_t replaced, replaced_bytes, returned, asks, gates, waits, frees, held_back;
};
struct carillon_cuda_range_t {
  std::uint64_t at, bytes;
};

// The two functions of torch's pluggable allocators. `device` is the one of carillon_cuda_start(), of which
// there is one: for another, alloc gives nullptr, which torch reports as out of memory.
void* carillon_cuda_alloc(std::int64_t bytes, int device, void* stream);
void carillon_cuda_free(void* at, std::int64_t bytes, int device, void* stream);

// The driver's device `ordinal`, which is torch's index. At most `at_once` gates are outstanding. 0: done.
// Nothing is taken of the device before a broker says that its lanes are there.
int carillon_cuda_start(int ordinal, std::uint32_t at_once);
// Whether the broker's lanes are this device's memory.
int carillon_cuda_ready();
const char* carillon_cuda_why();
// For carillon_keep(); static.
const carillon_keeper_t* carillon_cuda_keeper();
// Granted its lane, or alone. 0: segments come from the lane now; 1: there is none; 2: there is no memory for
// segments that torch holds beyond it: try again once it has given back what it does not need.
int carillon_cuda_enter();
// Until the device has done all that it was given; to be called with the interpreter free, before the next.
// 0: done; 2: not while a CUDA graph is captured.
int carillon_cuda_wait(void* stream);
// Before the lane is left, with the interpreter locked, so that nobody else gives the device work. `live`:
// where tensors are; nullptr: anywhere. 0: done; 2: not while a CUDA graph is captured; else the job must end
// without leaving its lane.
int carillon_cuda_leave(void* stream, const carillon_cuda_range_t* live, std::uint64_t count);
void carillon_cuda_gate(void* stream);
// A CUDA graph is captured, by whatever thread: from before its capture begins (1) until it has ended (0).
void carillon_cuda_captures(int begins);
// Bytes by torch's count: of tensors now, of segments now, of tensors at most.
void carillon_cuda_note(std::uint64_t live, std::uint64_t reserved, std::uint64_t peak);
void carillon_cuda_counters(carillon_cuda_counters_t* out);
}
