#pragma once

#include <algorithm>
#include <array>
#include <chrono>

#include "carillon/base/time.h"
#include "carillon/engine/cuda/driver/bounded_wait.h"
#include "carillon/engine/cuda/driver/driver.h"

namespace carillon::engine::cuda {

// The shortest of `rounds` launches of a graph, each between two events of a stream that has nothing else.
// One launch before them does not count. `least` is set where all went well. `longest`: as wait_for() has it,
// for each launch.
inline Status time_graph(const Driver& driver, GraphExec graph, Stream stream,
                         const std::array<Event, 2>& events, int rounds, Duration& least,
                         Duration longest = Duration{0}) {
  Duration shortest = Duration::max();
  for (int round = -1; round < rounds; ++round) {
    float milliseconds = 0;
    Status status = driver.event_record(events[0], stream);
    if (status == done) status = driver.graph_launch(graph, stream);
    if (status == done) status = driver.event_record(events[1], stream);
    if (status == done) status = wait_for(driver, stream, longest);
    if (status == done) status = driver.event_elapsed(&milliseconds, events[0], events[1]);
    if (status != done) return status;
    const std::chrono::duration<double, std::milli> took(milliseconds);
    if (round >= 0) shortest = std::min(shortest, std::chrono::duration_cast<Duration>(took));
  }
  least = shortest;
  return done;
}

}  // namespace carillon::engine::cuda
