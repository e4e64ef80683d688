#include "carillon/share/client/cuda/lanes.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace carillon::share::client::cuda {
namespace {

constexpr std::uint8_t quiet_enough = 3;  // as Survivors forgets

// While a graph is captured.
bool forbidden(Status status) {
  return status == not_while_capturing || status == default_stream_is_barred;
}

std::size_t whole(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

// Driver calls need a context in the calling thread; torch may not have set one there.
//
// While a CUDA graph is captured, calls that are not put into a stream (cuMemMap, cuEventQuery and others)
// end the capture, in this thread's or others' streams, unless the thread's mode forbids nothing
// (cuThreadExchangeStreamCaptureMode). They are safe here, as no graph needs them to be replayed: what they
// map stays mapped until torch frees it.
class Lanes::InContext {
 public:
  explicit InContext(const Lanes& lanes)
      : driver_(lanes.driver_), pushed_(driver_.context_push(lanes.context_) == done) {
    driver_.thread_capture_mode(&mode_);
  }
  ~InContext() {
    driver_.thread_capture_mode(&mode_);
    Context popped = nullptr;
    if (pushed_) driver_.context_pop(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const Driver& driver_;
  const bool pushed_;
  int mode_ = forbids_nothing;
};

Lanes::~Lanes() {
  stop();
}

bool Lanes::failed(const char* what, Status status) {
  why_ = std::string(what) + ": " + name_of(driver_, status).text;
  return false;
}

bool Lanes::start(const Driver& driver, int ordinal, Ask ask, std::uint32_t at_once) {
  const std::lock_guard held(mutex_);
  if (started_) return true;
  driver_ = driver;
  ask_ = ask;
  if (const Status status = driver_.device_get(&device_, ordinal); status != done)
    return failed("no such device", status);
  int can = 0;
  driver_.device_attribute(&can, has_descriptors, device_);
  if (can == 0) {
    why_ = "the device cannot share memory by descriptors";
    return false;
  }
  properties_ = {};
  properties_.location.id = device_;
  std::size_t memory = 0;
  if (Status status = driver_.granularity(&granularity_, &properties_, smallest_granularity); status != done)
    return failed("the granularity of its memory is not known", status);
  if (Status status = driver_.device_memory(&memory, device_); status != done)
    return failed("how much memory it has is not known", status);
  if (Status status = driver_.context_retain(&context_, device_); status != done)
    return failed("no context", status);
  started_ = true;  // from here on stop() has something to do
  const InContext in(*this);
  // Twice the device's memory: what is free there is in pieces.
  own_bytes_ = whole(2 * memory, granularity_);
  Status status = driver_.reserve(&own_base_, own_bytes_, 0, 0, 0);
  if (status == done) status = driver_.stream_create(&copies_, stream_beside_the_default);
  for (std::uint32_t i = 0; i < std::max(at_once, 1U) && status == done; ++i) {
    Event event = nullptr;
    status = driver_.event_create(&event, event_without_time | event_sleeps);
    if (status == done) ring_.push_back(event);
  }
  own_ = Heap();
  if (status != done || !own_.start(reinterpret_cast<std::byte*>(own_base_), own_bytes_)) {
    failed("no addresses, stream or events", status);
    stop();
    return false;
  }
  own_.set_limit(own_bytes_);
  return true;
}

void Lanes::stop() {
  const std::lock_guard held(mutex_);
  if (!started_) return;
  {
    const InContext in(*this);
    driver_.context_synchronize();
    for (const Held& each : std::exchange(held_, {})) give_now(each.at);
    for (const auto& [at, memory] : own_handles_) {
      const Heap::Block* const b = own_.find(reinterpret_cast<void*>(at));
      driver_.unmap(at, b == nullptr ? granularity_ : std::size_t{b->pages} * page_bytes);
      driver_.release(memory);
    }
    own_handles_.clear();
    for (std::size_t i = 0; i < places_.size(); ++i) {
      clear(i);
      if (places_[i].own != 0) driver_.release(places_[i].own);
      if (places_[i].lane != 0) driver_.release(places_[i].lane);
    }
    places_.clear();
    forget_coming();
    if (own_base_ != 0) driver_.unreserve(own_base_, own_bytes_);
    if (lane_base_ != 0) driver_.unreserve(lane_base_, lane_range_);
    if (spare_base_ != 0) driver_.unreserve(spare_base_, lane_range_);
    own_base_ = lane_base_ = spare_base_ = 0;
    for (const Event event : ring_) driver_.event_destroy(event);
    ring_.clear();
    if (copies_ != nullptr) driver_.stream_destroy(copies_);
    copies_ = nullptr;
  }
  driver_.context_release(device_);
  started_ = inside_ = false;
  number_ = 0;
  size_ = lane_places_ = 0;
}

// --- memory and where it is mapped

bool Lanes::make(Handle& out, std::size_t bytes) {
  const Status status = driver_.create(&out, bytes, &properties_, 0);
  return status == done || failed("no memory", status);
}

// Without access: see open().
bool Lanes::map(Address at, std::size_t bytes, Handle memory) {
  const Status status = driver_.map(at, bytes, 0, memory, 0);
  return status == done || failed("memory cannot be mapped", status);
}

// One call for many mappings that lie side by side: it is the dearest of them.
bool Lanes::open(Address from, Address to) {
  if (from == to) return true;
  Access access;
  access.location.id = device_;
  const Status status = driver_.set_access(from, to - from, &access, 1);
  return status == done || failed("no access to memory", status);
}

bool Lanes::clear(std::size_t i) {
  Place& place = places_[i];
  if (place.behind == Behind::nothing) return true;
  if (const Status status = driver_.unmap(place_at(i), piece_); status != done)
    return failed("memory cannot be unmapped", status);
  place.behind = Behind::nothing;
  return true;
}

void Lanes::mark_under(std::uint64_t at, std::uint64_t bytes, std::vector<bool>& places) const {
  if (bytes == 0 || at < lane_base_ || at - lane_base_ >= lane_range_) return;
  const std::uint64_t from = at - lane_base_;
  const std::size_t last =
      static_cast<std::size_t>((from + std::min(bytes, lane_range_ - from) - 1) / piece_);
  for (std::size_t i = static_cast<std::size_t>(from / piece_); i <= last; ++i) places[i] = true;
}

std::vector<bool> Lanes::under_segments() {
  std::vector<bool> places(places_.size());
  for (const Heap::Block* b = lane_.first_shared(); b != nullptr; b = lane_.next_shared(*b))
    mark_under(reinterpret_cast<Address>(lane_.address(*b)), std::size_t{b->pages} * page_bytes, places);
  return places;
}

// Each place gets what should be behind it: the lane's piece or what replaces it; beyond the lane, memory of
// the job's own where a segment is; else nothing. Places whose memory is right are left alone.
bool Lanes::settle() {
  const std::vector<bool> needed = under_segments();
  Address from = 0, to = 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    const bool of_lane = i < lane_places_;
    if (place.own != 0 && !needed[i]) {  // nothing is there any more
      if (place.behind == Behind::own && !clear(i)) return false;
      driver_.release(std::exchange(place.own, 0));
    }
    if (place.own == 0 && !of_lane && needed[i] && !make(place.own, piece_)) return open(from, to) && false;
    const Behind wanted = place.own != 0 ? Behind::own : of_lane ? Behind::lane : Behind::nothing;
    if (place.behind == wanted) continue;
    if (!clear(i)) return false;
    if (wanted == Behind::nothing) continue;
    if (!map(place_at(i), piece_, wanted == Behind::own ? place.own : place.lane))
      return open(from, to) && false;
    place.behind = wanted;
    place.quiet = 0;
    if (place_at(i) != to) {
      if (!open(from, to)) return false;
      from = place_at(i);
    }
    to = place_at(i) + piece_;
  }
  return open(from, to);
}

// What is in these pieces of the lane goes into memory of the job's own, which then is where they were.
// Nothing runs on the device, and nothing must, until it is done.
//
// The driver cannot exchange what lies behind an address, so: the new memory is mapped at a spare address and
// copied to; then the piece is unmapped, and the new memory mapped in its place. A handle is mapped as a
// whole, which is why whole pieces are replaced.
bool Lanes::replace(const std::vector<bool>& which) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (which[i] && places_[i].behind == Behind::lane) places.push_back(i);
  std::size_t copied = 0;
  bool fine = true;
  for (const std::size_t i : places) {
    const Address spare = spare_base_ + i * piece_;
    fine = make(places_[i].own, piece_);
    if (!fine) break;
    ++copied;
    fine = map(spare, piece_, places_[i].own) && open(spare, spare + piece_);
    if (!fine) break;
    const Status status = driver_.copy_async(spare, place_at(i), piece_, copies_);
    fine = status == done || failed("what lives on cannot be copied", status);
    if (!fine) break;
  }
  if (const Status status = driver_.stream_synchronize(copies_); fine && status != done)
    fine = failed("what lives on cannot be copied", status);
  for (std::size_t k = 0; k < copied; ++k) {
    Place& place = places_[places[k]];
    const Address at = place_at(places[k]), spare = spare_base_ + places[k] * piece_;
    const bool was_mapped = driver_.unmap(spare, piece_) == done;
    if (!fine || !was_mapped) {  // they stay in the lane
      driver_.release(std::exchange(place.own, 0));
      fine = false;
      continue;
    }
    if (!clear(places[k]) || !map(at, piece_, place.own) || !open(at, at + piece_)) return false;
    place.behind = Behind::own;
    place.quiet = 0;
    ++counts_.replaced;
    counts_.replaced_bytes += piece_;
  }
  return fine;
}

// The lane's pieces from place `first` on are no more ours.
bool Lanes::let_go(std::size_t first) {
  for (std::size_t i = first; i < places_.size(); ++i) {
    if (places_[i].behind == Behind::lane && !clear(i)) return false;
    if (places_[i].lane != 0) driver_.release(std::exchange(places_[i].lane, 0));
  }
  return true;
}

void Lanes::forget_coming() {
  for (const auto& [place, memory] : coming_) driver_.release(memory);
  coming_.clear();
}

// --- segments

void* Lanes::take(std::size_t bytes) {
  const std::lock_guard held(mutex_);
  if (!started_ || bytes == 0 || bytes > own_bytes_) return nullptr;
  const InContext in(*this);
  give_held();
  bytes = whole(bytes, granularity_);
  if (!inside_ || std::this_thread::get_id() != trains_) return take_own(bytes, 0, 0);
  const std::uint32_t key = survivors_.key(bytes), iteration = survivors_.iteration();
  if (survivors_.expected(key)) return take_own(bytes, key, iteration);
  Heap::Block* b = lane_.take(bytes, Heap::State::shared);
  if (b == nullptr && ask_ != nullptr) {
    ++counts_.asks;
    const int answer = ask_(end_of_segments() + bytes);
    if (answer == 2) return nullptr;
    if (answer == 0) b = lane_.take(bytes, Heap::State::shared);
  }
  if (b == nullptr) return take_own(bytes, key, iteration);
  b->key = key;
  b->iteration = iteration;
  ++counts_.lane_segments;
  most_segments_ = std::max(most_segments_, lane_.live_shared());
  return lane_.address(*b);
}

// Within the lane's addresses; beyond the lane where that became smaller.
std::size_t Lanes::end_of_segments() {
  std::size_t end = 0;
  for (const Heap::Block* b = lane_.first_shared(); b != nullptr; b = lane_.next_shared(*b))
    end = std::max(end, (std::size_t{b->start} + b->pages) * page_bytes);
  return end;
}

void* Lanes::take_own(std::size_t bytes, std::uint32_t key, std::uint32_t iteration) {
  Heap::Block* const b = own_.take(bytes, Heap::State::own);
  if (b == nullptr) return nullptr;
  const auto at = reinterpret_cast<Address>(own_.address(*b));
  Handle memory = 0;
  const bool made = make(memory, bytes);
  const bool mapped = made && map(at, bytes, memory);
  if (!mapped || !open(at, at + bytes)) {
    if (mapped) driver_.unmap(at, bytes);
    if (made) driver_.release(memory);
    own_.give(b);
    return nullptr;
  }
  b->key = key;
  b->iteration = iteration;
  own_handles_.emplace(at, memory);
  ++counts_.own_segments;
  return own_.address(*b);
}

// Torch takes it that freeing waits for the device, as cudaFree does: work on the segment may be outstanding,
// and its addresses may be another stream's next. That work is the segment's stream's: torch frees a segment
// once the events are done that it recorded for others (record_stream), and so waits for this stream alone
// where it unmaps segments of its own. The context is not waited for: one captured stream, of whatever
// thread, and the call would fail and end the capture.
void Lanes::give(void* at, Stream stream) {
  const std::lock_guard held(mutex_);
  if (!started_ || at == nullptr) return;
  const InContext in(*this);
  give_held();
  ++counts_.frees;
  if (const Heap::Block* const b = own_.find(at);
      b != nullptr && b->iteration != 0 && b->iteration == survivors_.iteration())
    survivors_.died(b->key);
  if (ends_of(stream)) return give_now(at);
  ++counts_.held_back;
  held_.push_back({at, stream});
}

void Lanes::capture_begins() {
  const std::lock_guard held(mutex_);
  ++captures_;
}

void Lanes::capture_ends() {
  const std::lock_guard held(mutex_);
  --captures_;
  if (!started_) return;
  const InContext in(*this);
  give_held();
}

// To ask ends no capture: of the default stream beside a captured one that waits for it, it is the error.
bool Lanes::is_captured(Stream stream) const {
  int status = is_not_capturing;
  const Status asked = driver_.stream_capturing(stream, &status);
  return asked == default_stream_is_barred || (asked == done && status != is_not_capturing);
}

bool Lanes::graph_in_the_way() const {
  const std::lock_guard held(mutex_);
  return graph_in_the_way_;
}

// False: not while a graph is captured.
bool Lanes::ends_of(Stream stream) const {
  if (captures_ > 0 || is_captured(stream)) return false;
  Status status = driver_.stream_synchronize(stream);
  // The stream is gone, or the device is.
  if (status != done && !forbidden(status)) status = driver_.context_synchronize();
  return !forbidden(status);  // a capture that has just begun, or that nobody told us of
}

void Lanes::give_held() {
  if (held_.empty() || captures_ > 0) return;
  std::erase_if(held_, [this](const Held& each) {
    if (!ends_of(each.stream)) return false;
    give_now(each.at);
    return true;
  });
}

void Lanes::give_now(void* at) {
  if (Heap::Block* const b = lane_range_ > 0 ? lane_.find(at) : nullptr; b != nullptr) {
    lane_.give(b);
    return;
  }
  Heap::Block* const b = own_.find(at);
  const auto memory = own_handles_.find(reinterpret_cast<Address>(at));
  if (b == nullptr || memory == own_handles_.end()) return;  // not ours
  driver_.unmap(memory->first, std::size_t{b->pages} * page_bytes);
  driver_.release(memory->second);
  own_handles_.erase(memory);
  own_.give(b);
}

// --- what the broker says

const char* Lanes::device(const DeviceIs& is) {
  const std::lock_guard held(mutex_);
  const auto because = [this](std::string text) {
    why_ = std::move(text);
    return why_.c_str();
  };
  if (!started_) return because("this process has no CUDA device ready");
  if (is.memory != memory_of_cuda)
    return because("the broker's lanes are of a kind of memory that this client does not know");
  Uuid uuid;
  driver_.device_uuid(&uuid, device_);
  if (std::memcmp(uuid.bytes, is.uuid, sizeof is.uuid) != 0)
    return because(
        "the broker's lanes are another device's memory than the one that this job uses: run it where its "
        "device is the broker's (CUDA_VISIBLE_DEVICES)");
  if (piece_ != 0 && lane_base_ != 0)
    return is.piece == piece_
               ? nullptr
               : because("this broker's lanes come in pieces of another size than the last one's");
  std::size_t memory = 0;
  driver_.device_memory(&memory, device_);
  if (is.piece == 0 || is.piece % granularity_ != 0 || is.piece > memory)
    return because("the broker's lanes come in pieces of " + std::to_string(is.piece) +
                   " bytes, which this device cannot map");
  const InContext in(*this);
  piece_ = static_cast<std::size_t>(is.piece);
  lane_range_ = whole(memory, piece_);
  lane_ = Heap();
  if (driver_.reserve(&lane_base_, lane_range_, 0, 0, 0) != done ||
      driver_.reserve(&spare_base_, lane_range_, 0, 0, 0) != done ||
      !lane_.start(reinterpret_cast<std::byte*>(lane_base_), lane_range_))
    return because("no range of addresses for a lane");
  places_.resize(lane_range_ / piece_);
  return nullptr;
}

void Lanes::pieces(const Pieces& are, const int* descriptors) {
  const std::lock_guard held(mutex_);
  if (!started_) return;
  const InContext in(*this);
  if (coming_number_ != are.lane) forget_coming();
  import_failed_ = false;
  coming_number_ = are.lane;
  for (std::uint32_t i = 0; i < are.count && i < most_pieces; ++i) {
    const std::size_t place = std::size_t{are.first} + i;
    if (place >= places_.size()) return;
    Handle memory = 0;
    const auto number = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptors[i]));
    if (const Status status = driver_.import_handle(&memory, number, file_descriptor); status != done) {
      import_failed_ = !failed("a piece of the lane cannot be imported", status);
      return;  // the lane packet then finds that it lacks one
    }
    if (const auto old = coming_.find(place); old != coming_.end()) driver_.release(old->second);
    coming_[place] = memory;
  }
}

bool Lanes::lane(std::uint32_t number, std::uint64_t bytes) {
  const std::lock_guard held(mutex_);
  if (!started_ || places_.empty()) return number == 0;
  const InContext in(*this);
  bytes = number == 0 ? 0 : std::min<std::uint64_t>(bytes, lane_range_) / granularity_ * granularity_;
  const std::size_t count = whole(static_cast<std::size_t>(bytes), piece_) / piece_;
  const bool other = number != number_;
  if (inside_ && (other || count < lane_places_)) {
    // Not at a boundary: everything counts as living on.
    if (!ends_of_all(nullptr) || !replace(under_segments())) return false;
  }
  if (!let_go(other ? 0 : count)) return false;
  if (coming_number_ == number)
    for (auto& [place, memory] : std::exchange(coming_, {})) {
      if (places_[place].behind == Behind::lane && !clear(place)) return false;
      if (places_[place].lane != 0) driver_.release(places_[place].lane);
      places_[place].lane = memory;
    }
  forget_coming();
  number_ = number;
  size_ = bytes;
  lane_places_ = count;
  for (std::size_t i = 0; i < count; ++i)
    if (places_[i].lane == 0) {
      why_ = import_failed_ ? why_ : "the broker gave fewer pieces of the lane than it has";
      lane_places_ = i;
      size_ = i * piece_;
      lane_.set_limit(static_cast<std::size_t>(size_));
      return false;
    }
  lane_.set_limit(static_cast<std::size_t>(bytes));
  // A job that is held needs no memory behind its segments; enter() sees to it.
  const bool runs = inside_;
  if (number == 0) inside_ = false;
  return !runs || settle();
}

// --- the job's turns

Lanes::Entered Lanes::enter() {
  const std::lock_guard held(mutex_);
  if (!started_) return Entered::no_lane;
  const InContext in(*this);
  if (!settle()) return Entered::no_memory;
  inside_ = number_ != 0 && size_ > 0;
  trains_ = std::this_thread::get_id();
  return inside_ ? Entered::lane : Entered::no_lane;
}

// Where a call failed: as a graph is captured, of which nobody told us, or as the device did.
bool Lanes::lost_or_captured(const char* what, Status status) {
  graph_in_the_way_ = forbidden(status);
  return failed(what, status);
}

// The job's streams by their events, and after them whatever streams nobody told us of. Cheap once the former
// ended.
bool Lanes::ends_of_all(Stream stream) {
  graph_in_the_way_ = captures_ > 0 || is_captured(stream);
  if (graph_in_the_way_) {
    why_ = "a CUDA graph is being captured, and the device's work cannot be waited for until that ends";
    return false;
  }
  if (Status status = driver_.event_record(ring_[marks_++ % ring_.size()], stream); status != done)
    return lost_or_captured("the end of an iteration cannot be marked", status);
  for (std::size_t i = 0; i < ring_.size() && i < marks_; ++i)
    if (const Status status = driver_.event_synchronize(ring_[i]); status != done)
      return lost_or_captured("the device failed within an iteration", status);
  const Status status = driver_.context_synchronize();
  if (status != done) return lost_or_captured("the device failed within an iteration", status);
  for (const Held& each : std::exchange(held_, {})) give_now(each.at);
  return true;
}

bool Lanes::wait(Stream stream) {
  const std::lock_guard held(mutex_);
  if (!started_) return true;
  const InContext in(*this);
  return ends_of_all(stream);
}

bool Lanes::leave(Stream stream, const std::vector<LiveRange>* live) {
  const std::lock_guard held(mutex_);
  if (!started_) return true;
  const InContext in(*this);
  if (!ends_of_all(stream)) return false;
  if (!inside_) return true;
  std::vector<bool> lives = live == nullptr ? under_segments() : std::vector<bool>(places_.size());
  if (live != nullptr)
    for (const LiveRange& range : *live) mark_under(range.at, range.bytes, lives);
  for (const Heap::Block* b = lane_.first_shared(); b != nullptr; b = lane_.next_shared(*b)) {
    if (b->iteration + 1 != survivors_.iteration()) continue;  // taken in the iteration that has just ended
    const LiveRange segment{reinterpret_cast<Address>(lane_.address(*b)), std::size_t{b->pages} * page_bytes};
    if (live == nullptr || std::any_of(live->begin(), live->end(), [&](const LiveRange& range) {
          return range.at - segment.at < segment.bytes;
        }))
      survivors_.survived(b->key);
  }
  if (!replace(lives)) return false;
  for (std::size_t i = 0; i < lane_places_; ++i) {
    Place& place = places_[i];
    if (place.own == 0) continue;
    place.quiet = lives[i] ? std::uint8_t{0} : static_cast<std::uint8_t>(place.quiet + 1);
    if (place.quiet < quiet_enough) continue;
    if (!clear(i)) return false;
    driver_.release(std::exchange(place.own, 0));
    ++counts_.returned;
  }
  inside_ = false;
  return settle();
}

void Lanes::gate(Stream stream) {
  const std::lock_guard held(mutex_);
  if (!started_) return;
  const InContext in(*this);
  if (is_captured(stream)) return;  // the mark would be the graph's, and waiting for it end the capture
  const Event event = ring_[marks_ % ring_.size()];
  if (marks_ >= ring_.size() && driver_.event_query(event) == not_ready) {
    ++counts_.waits;
    driver_.event_synchronize(event);
  }
  ++counts_.gates;
  ++marks_;
  driver_.event_record(event, stream);
}

void Lanes::iteration_ended() {
  const std::lock_guard held(mutex_);
  survivors_.next_iteration();
}

// --- what is counted

void Lanes::note(std::uint64_t live, std::uint64_t reserved, std::uint64_t peak) {
  const std::lock_guard held(mutex_);
  live_now_ = live;
  reserved_now_ = reserved;
  peak_ = std::max(peak, live);
}

std::uint64_t Lanes::live() const {
  const std::lock_guard held(mutex_);
  return live_now_;
}

std::uint64_t Lanes::persistent() const {
  const std::lock_guard held(mutex_);
  // Until the lane has been used, what torch keeps is mostly what iterations left.
  if (most_segments_ == 0) return live_now_;
  std::uint64_t replaced = 0;
  for (const Place& place : places_)
    if (place.own != 0) replaced += piece_;
  return reserved_now_ - std::min(reserved_now_, lane_.live_shared()) + replaced;
}

std::uint64_t Lanes::ephemeral() const {
  const std::lock_guard held(mutex_);
  return most_segments_ == 0 ? peak_ - live_now_ : most_segments_;
}

Counts Lanes::counts() const {
  const std::lock_guard held(mutex_);
  Counts out = counts_;
  out.lane_bytes = size_;
  out.own_bytes = own_.live();
  for (const Place& place : places_)
    if (place.own != 0) out.own_bytes += piece_;
  out.segment_bytes = lane_.live_shared();
  return out;
}

}  // namespace carillon::share::client::cuda
