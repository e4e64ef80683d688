#pragma once

#include <cstddef>
#include <cstdint>

// The lane: memory that all its jobs map and use in turn, and how a job gets out of it. All of it under
// me.lock.
#pragma GCC visibility push(hidden)
namespace carillon::share::client {

// What a range of the lane's addresses is made of: pages of the memfd within `lane_bytes`, nothing beyond.
void map_lane(std::size_t from, std::size_t to);
// Blocks of the lane that live get pages of their own, with what is in them, at their addresses.
void rescue_all();
// The lane is `bytes` of `fd` from now on, which is taken over (-1: the same memfd as before).
void set_lane(std::uint32_t number, int fd, std::size_t bytes);
void drop_lane();
// What is free of private memory goes back to the system: nobody counts it as this job's, and others need it.
void give_back_own();
// The first iterations take private memory instead of the lane's, which is empty meanwhile: nobody needs what is in it.
void empty_lane();
// After a boundary at which nothing holds the job: blocks of the next iteration may come from the lane.
void enter_lane();
// At a boundary: what the iteration took, and which blocks outlive it.
void end_iteration(std::uint64_t now);

}  // namespace carillon::share::client
#pragma GCC visibility pop
