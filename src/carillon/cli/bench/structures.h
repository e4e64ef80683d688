#pragma once

#include <cstdint>

namespace carillon::cli {

// Parts of the decision core by themselves, measured and printed: a table, or with `as_json` one object. Each
// returns an exit status.

// Orloj's priority queue, as its section 4.5.5 measures it: a full queue of n requests whose scores are such
// as deadlines make; nanoseconds to insert one, erase one, and ask for the best, and to sort all by score
// instead.
int bench_queue(bool as_json, std::uint64_t seed);

// The door: what it takes, under an uncontended lock as in the controller, to let an arrival in and take it
// out again while decisions keep up, and to turn one away while they do not, with so many models.
int bench_door(bool as_json);

}  // namespace carillon::cli
