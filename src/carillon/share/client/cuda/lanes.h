#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "carillon/share/client/heap.h"
#include "carillon/share/client/survivors.h"
#include "carillon/share/cuda/driver.h"
#include "carillon/share/protocol.h"

// A job's memory on a CUDA device: its lane, which other jobs use in turn, and memory of its own. Segments
// come from the one or the other; torch cuts them into tensors (allocator.h).
//
// Two ranges of addresses are reserved. Behind `own` addresses lies memory that is the job's alone, one
// handle a segment. Behind `lane` addresses lie the lane's pieces, each at the place that it has in the lane.
// Before the job leaves its lane, each piece with something in it that lives on is replaced: memory of the
// job's own is made, what is in the piece is copied there, and it is mapped where the piece was (`leave`).
// Addresses stay as they were, so tensors do not notice. A piece that was replaced, and that held nothing for
// a while, is the lane's again.
//
// Every place under a segment has memory behind it whenever the job is in its lane, also where the lane is
// smaller than it was: torch keeps segments and uses them again without asking.
namespace carillon::share::client::cuda {

using namespace carillon::share::cuda;

struct Counts {
  std::uint64_t lane_segments, own_segments;  // taken so far
  std::uint64_t lane_bytes, own_bytes;  // now: the lane's size; memory of the job's own, replacements too
  std::uint64_t segment_bytes;          // of segments in the lane, now
  std::uint64_t replaced, replaced_bytes, returned;    // pieces, so far
  std::uint64_t asks, gates, waits, frees, held_back;  // so far
};

struct LiveRange {
  std::uint64_t at, bytes;
};

class Lanes {
 public:
  // More of the lane, for `bytes` in all, as carillon_ask() (keeper.h); calls pieces() and lane() before it
  // returns.
  using Ask = int (*)(std::uint64_t bytes);

  Lanes() = default;
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;
  ~Lanes();  // as stop()

  // With the device's primary context, which torch uses too. `at_once`: so many gates may be outstanding.
  bool start(const Driver& driver, int ordinal, Ask ask, std::uint32_t at_once);
  // Of the last call that returned false, or nullptr; for people.
  const char* why() const { return why_.c_str(); }
  // Whether that is a CUDA graph that was being captured.
  bool graph_in_the_way() const;
  // Gives everything back: no segment is used any more.
  void stop();

  // --- segments (any thread)
  // Of the lane where this is the thread that is in it, and the segment is not known to outlive its
  // iteration; else of the job's own. nullptr: there is no memory.
  void* take(std::size_t bytes);
  // Once what `stream` has of work is done: the one that torch took the segment for. Work of other streams on
  // it torch has waited for. While that stream is captured, or anything is (capture_begins), the segment is
  // held back, as waiting would end the capture: a later call here gives it.
  void give(void* at, Stream stream = nullptr);
  // A CUDA graph is captured, in any stream of the process. A stream that nobody told of is seen as captured
  // only where it is the one that a call is for.
  void capture_begins();
  void capture_ends();

  // --- what the broker says (the thread that trains)
  // nullptr: its lanes can be used.
  const char* device(const DeviceIs& is);
  void pieces(const Pieces& are, const int* descriptors);
  bool lane(std::uint32_t number, std::uint64_t bytes);

  // --- the job's turns (the thread that trains)
  enum class Entered : std::uint8_t { lane, no_lane, no_memory };
  // Sees to it that there is memory behind every segment, whether there is a lane or not.
  Entered enter();
  // Until the device has done all that it was given. False while anything is captured: work of a stream that
  // is cannot be waited for.
  bool wait(Stream stream);
  // Waits for the device, and replaces pieces. Nobody gives it work on what is in the lane meanwhile. `live`:
  // where tensors are, in whatever segments; nullptr: everywhere. False: there is no memory for what lives
  // on, and the job must end without leaving its lane before.
  bool leave(Stream stream, const std::vector<LiveRange>* live);
  // Waits until fewer than `at_once` of these are outstanding, then marks the stream's end; nothing for a
  // stream that is captured.
  void gate(Stream stream);
  void iteration_ended();

  // --- what is counted; torch knows how much of it are tensors
  void note(std::uint64_t live, std::uint64_t reserved, std::uint64_t peak);
  std::uint64_t live() const;
  std::uint64_t persistent() const;
  std::uint64_t ephemeral() const;
  Counts counts() const;

 private:
  enum class Behind : std::uint8_t { nothing, lane, own };
  struct Place {
    Handle lane = 0;  // of the lane's piece here; 0: none
    Handle own = 0;   // of what replaces it; 0: nothing does
    Behind behind = Behind::nothing;
    std::uint8_t quiet = 0;  // so often nothing lived here when the lane was left
  };
  class InContext;

  bool failed(const char* what, Status status);
  bool lost_or_captured(const char* what, Status status);
  Address place_at(std::size_t i) const { return lane_base_ + i * piece_; }
  bool make(Handle& out, std::size_t bytes);
  bool map(Address at, std::size_t bytes, Handle memory);
  bool open(Address from, Address to);
  bool clear(std::size_t i);
  bool settle();
  bool replace(const std::vector<bool>& which);
  bool ends_of_all(Stream stream);
  bool is_captured(Stream stream) const;
  bool ends_of(Stream stream) const;
  void give_now(void* at);
  void give_held();
  bool let_go(std::size_t first);
  void mark_under(std::uint64_t at, std::uint64_t bytes, std::vector<bool>& places) const;
  std::vector<bool> under_segments();
  std::size_t end_of_segments();
  void* take_own(std::size_t bytes, std::uint32_t key, std::uint32_t iteration);
  void forget_coming();

  mutable std::recursive_mutex mutex_;  // take() asks, and the answer comes back into here
  Driver driver_;
  bool started_ = false;
  DeviceNumber device_ = 0;
  Properties properties_;
  Context context_ = nullptr;
  Stream copies_ = nullptr;
  Ask ask_ = nullptr;
  std::string why_;
  bool graph_in_the_way_ = false;

  std::size_t granularity_ = 0, piece_ = 0;
  Address own_base_ = 0, lane_base_ = 0, spare_base_ = 0;
  std::size_t own_bytes_ = 0, lane_range_ = 0;
  Heap own_, lane_;
  std::map<Address, Handle> own_handles_;
  std::vector<Place> places_;
  std::size_t lane_places_ = 0;  // of the lane as it is
  struct Held {
    void* at;
    Stream stream;
  };
  std::vector<Held> held_;  // segments that were freed while a graph was captured
  int captures_ = 0;        // that we were told of
  std::uint32_t number_ = 0, coming_number_ = 0;
  std::map<std::size_t, Handle> coming_;
  bool import_failed_ = false;
  std::uint64_t size_ = 0;
  bool inside_ = false;
  std::thread::id trains_;
  Survivors survivors_;

  std::vector<Event> ring_;
  std::uint64_t marks_ = 0;
  std::uint64_t live_now_ = 0, reserved_now_ = 0, peak_ = 0, most_segments_ = 0;
  Counts counts_{};
};

}  // namespace carillon::share::client::cuda
