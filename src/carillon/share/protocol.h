#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

// What the broker and the jobs that share its device say to each other: packets over a Unix socket
// (SOCK_SEQPACKET), and a page that both map. Plain types, for C++ on both sides of one machine; the client
// (python/carillon) includes this header and nothing else of the program.
//
// Whatever comes from a job is checked: lengths, kinds, texts, numbers. Nothing in a page that a job can write
// is used as a size, an index or an address. Who the job is the kernel says (SO_PEERCRED, a pidfd), not the
// packet.
namespace carillon::share {

inline constexpr std::uint32_t protocol_magic = 0x6c6c7263;  // "crll"
inline constexpr std::uint32_t protocol_version = 2;

// What `carillon run` puts into a job's environment. Sizes are bytes, the time is seconds; what is not set is
// not known.
inline constexpr const char* socket_variable = "CARILLON_SOCKET";          // a path
inline constexpr const char* name_variable = "CARILLON_JOB_NAME";          // for people
inline constexpr const char* persistent_variable = "CARILLON_JOB_PERSISTENT";
inline constexpr const char* ephemeral_variable = "CARILLON_JOB_EPHEMERAL";
inline constexpr const char* remaining_variable = "CARILLON_JOB_REMAINING";
inline constexpr const char* weight_variable = "CARILLON_JOB_WEIGHT";

enum class Kind : std::uint32_t {
  hello = 1,  // job: the first packet. Answered by welcome or refused
  welcome,    // broker, with one descriptor: the page
  refused,    // broker, the last packet: why, and what would have fit
  lane,       // broker, with one descriptor (none after `device`: its pieces have come before): the job's lane is
              // this memfd, of which it may use `size` from the
              // start. Comes before the first grant, and again where it changes; only while the job is held, or
              // as the answer to ask. The same number as before: the same memfd, of which more (or less) may be
              // used now; what is in it stays. Another number: the job leaves the old one. Number 0, without a
              // descriptor: it may have what it asked for, and has no lane yet
  stopped,    // job: it is out of its lane and waits to be granted it: once when it is ready for its first
              // iteration, then whenever it was recalled, or has nothing to do for a while (it makes the lease
              // `hold` itself, where it is `run`, before it says so)
  ask,        // job, which waits for the answer, in an iteration or before its first: it needs so much in all.
              // Answered by lane or evicted
  evicted,    // broker, the last packet: why. The job is expected to end itself; after a second it is killed
  bye,        // job: it is done with the device (its end says the same)
  query,      // anybody of the user, instead of hello: answered by `listing` packets, whose texts together are
              // one; then the socket closes
  listing,    // broker: JSON text
  ending,     // broker, the last packet: it ends as it was told to. The job waits for another broker and says hello
              // to it with `again`, or goes on without one, in memory of its own
  device,     // broker, after welcome, where lanes are a device's memory and come in pieces
  pieces      // broker, with `count` descriptors, before the lane packet that makes them usable: pieces of the lane's
              // memory, the first of them at place `first`. What was at these places of that lane is no more used
};

// Every packet begins so, in any version; `bytes` is its whole length.
struct Header {
  std::uint32_t magic = protocol_magic;
  std::uint32_t version = protocol_version;
  Kind kind{};  // NOLINT(bugprone-invalid-enum-default-initialization): set by who sends it
  std::uint32_t bytes = 0;
};

inline constexpr std::size_t most_packet = std::size_t{64} * 1024;
inline constexpr std::size_t most_name = 64;
inline constexpr std::uint32_t most_pieces = 64;  // descriptors that come along with a packet

inline constexpr std::uint32_t memory_of_cuda = 1;

struct Hello {
  Header header;
  std::uint32_t pid = 0;         // as the job sees itself; only shown
  std::uint32_t threads = 0;     // that compute, as far as known; only shown
  std::uint64_t persistent = 0;  // bytes; 0: not known
  std::uint64_t ephemeral = 0;   // bytes; 0: not known
  std::uint64_t remaining_ns = 0;  // device time; 0: not known
  double weight = 1;
  // A job that lost its broker attaches again, at a boundary, out of its lane: what it has run so far.
  std::uint32_t again = 0;     // 0 or 1
  std::uint32_t memories = 0;  // whose memory its lane may be, besides the host's: 0, or memory_of_cuda
  std::uint64_t iterations = 0;
  std::uint64_t busy_ns = 0;
  char name[most_name] = {};  // UTF-8, ends with 0
};

struct Welcome {
  Header header;
  std::uint32_t job = 0;
  std::uint32_t memory = 0;  // whose memory lanes are. 0: the host's. memory_of_cuda: `device` follows at once
  std::uint64_t capacity = 0;  // of the device, for jobs, in bytes
};

struct Refused {  // and evicted
  Header header;
  std::uint64_t fits_persistent = 0, fits_ephemeral = 0;
  char why[256] = {};
};

struct LaneIs {
  Header header;
  std::uint32_t lane = 0;
  std::uint32_t reserved = 0;
  std::uint64_t size = 0;
};

struct Stopped {
  Header header;
  std::uint64_t iterations = 0;  // all so far
  std::uint64_t busy_ns = 0;     // all so far
  std::uint64_t persistent = 0;  // now
  std::uint64_t ephemeral = 0;   // the most of an iteration since the last packet
  std::uint64_t remaining_ns = 0;
  std::uint64_t stops = 0;  // ControlPage::stops; 0: a job that does not count them there
};

struct Ask {
  Header header;
  std::uint64_t persistent = 0;
  std::uint64_t ephemeral = 0;
};

struct DeviceIs {
  Header header;
  std::uint32_t memory = memory_of_cuda;
  std::uint32_t reserved = 0;
  std::uint64_t piece = 0;       // bytes of each piece of a lane, the last one too
  std::uint8_t uuid[16] = {};    // of the device: numbers differ between processes
};

struct Pieces {
  Header header;
  std::uint32_t lane = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;  // 1..most_pieces
  std::uint32_t reserved = 0;
};

struct Ending {
  Header header;
  std::uint32_t alone = 0;  // 1: go on without a broker. 0: wait for another
  std::uint32_t reserved = 0;
};

// What the lease word says.
enum class Lease : std::uint32_t {
  hold = 0,  // be out of the lane at the next boundary, say `stopped`, and wait here
  run = 1,   // run on
  look = 2   // as hold; and a last packet (refused, evicted, ending) lies in the socket
};

// The page. Each side writes its own half; both are futex words or counters.
struct ControlPage {
  std::uint32_t magic = protocol_magic;
  std::uint32_t version = protocol_version;

  // --- written by the broker
  // A Lease. What a job reads at each boundary, and waits on (FUTEX_WAIT, not private) while it is not `run`. Who
  // waits looks at the socket at least once a second: a broker that was killed says nothing. Packets that came
  // before a grant are read before the first iteration under it.
  alignas(64) std::atomic<std::uint32_t> lease;
  // CLOCK_MONOTONIC. A job that waits and is woken while its lease is still `hold` may be granted it any moment until
  // then: it stays awake, so that its start does not wait for a processor that sleeps.
  std::atomic<std::uint64_t> soon_ns;
  // 1 while the broker looks at this page all the time, and hears of a `stopped` without a packet. It looks once more
  // after it has made this 0.
  std::atomic<std::uint32_t> listens;

  // --- written by the job
  // 1 from when it has seen a grant; 0 again before it says `stopped`. A grant that was not seen is not taken back.
  alignas(64) std::atomic<std::uint32_t> inside;
  std::atomic<std::uint64_t> iterations;          // ended so far
  std::atomic<std::uint64_t> busy_ns;             // these took
  std::atomic<std::uint64_t> persistent;          // bytes, at the last boundary
  std::atomic<std::uint64_t> ephemeral;           // bytes, the most of an iteration so far
  // CLOCK_MONOTONIC at the last boundary, and what the iteration before it took; 0: nothing is said. By these the
  // broker is awake when a job that it recalled comes out of its lane.
  std::atomic<std::uint64_t> boundary_ns, last_ns;
  // How often it has stopped, counted after all else here is written, and what it says then of the time that is left. It
  // sends the packet only where `listens` is 0 after that.
  std::atomic<std::uint64_t> remaining_ns, stops;
};
static_assert(sizeof(ControlPage) <= 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace carillon::share
