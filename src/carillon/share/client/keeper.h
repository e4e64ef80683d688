#pragma once

#include <cstdint>

#include "carillon/share/protocol.h"

// Who keeps lanes that are a device's memory, for the preloaded library: that one speaks with the broker and
// knows when the job is in its lane, and hands on what is said of such lanes. Plain types; the keeper is a
// library of its own (client/cuda), as only jobs of such a device have it, and it may use malloc.
extern "C" {

// Called by the thread that trains, with the preloaded library's lock held: none of them calls back into it.
struct carillon_keeper_t {
  // The broker's lanes are this device's. nullptr: they can be used; else why not.
  const char* (*device)(const carillon::share::DeviceIs* is);
  // The descriptors are the keeper's to close.
  void (*pieces)(const carillon::share::Pieces* are, const int* descriptors);
  // The lane is this one, of which `bytes` may be used; 0, 0: there is none any more. False: it cannot be
  // used.
  bool (*lane)(std::uint32_t number, std::uint64_t bytes);
  // Bytes now, of the device: what is live, what stays, and what an iteration has taken of a lane.
  std::uint64_t (*live)();
  std::uint64_t (*persistent)();
  std::uint64_t (*ephemeral)();
  void (*iteration_ended)();
};

// Before carillon_attach(); the job then says that its lane may be a device's. Stays.
void carillon_keep(const carillon_keeper_t* keeper);
// More of the lane, where it does not suffice for `bytes` in all: the job is held until the answer. By the
// thread that trains, within its lane. 0: it has them; 1: it does not; 2: nor goes it on, as it was evicted.
int carillon_ask(std::uint64_t bytes);
}
