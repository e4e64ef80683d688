#include "carillon/engine/cuda/driver/recorded.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "carillon/engine/cuda/driver/emulated.h"

namespace carillon::engine::cuda {

namespace {

enum class Asks : std::uint8_t {
#define CARILLON_ASKS(member, symbol, arguments) member,
  CARILLON_CUDA_DRIVER(CARILLON_ASKS)
#undef CARILLON_ASKS
};

// What each argument is, a letter each:
//   n  a number                              h  a handle          a  an address of a device or the host
//   N  a number that is given, and compared  o  a handle or address that is given
//   V  the same, not compared                O  an address that is given, of as many bytes as the next
//   Z  N of 64 bits   z  V of 64 bits           argument says, or as the memory that it is has
//   s  a text         S  a text that is given   c  a name that is given, not compared
//   p, A  what memory is, and who has access: the device's number
//   P  processors     Q  processors that are given   R  several that are given   D  several
//   -  no matter
constexpr std::pair<std::string_view, std::string_view> known_kinds[] = {
    {"cuInit", "n"},
    {"cuDriverGetVersion", "N"},
    {"cuDeviceGetCount", "N"},
    {"cuDeviceGet", "Nn"},
    {"cuDeviceGetAttribute", "Vnn"},
    {"cuDeviceGetName", "cnn"},
    {"cuDeviceGetUuid_v2", "-n"},
    {"cuDeviceTotalMem_v2", "zn"},
    {"cuDevicePrimaryCtxRetain", "on"},
    {"cuDevicePrimaryCtxRelease_v2", "n"},
    {"cuCtxPushCurrent_v2", "h"},
    {"cuCtxPopCurrent_v2", "o"},
    {"cuCtxSynchronize", ""},
    {"cuMemGetInfo_v2", "zz"},
    {"cuMemGetAllocationGranularity", "Zpn"},
    {"cuMemCreate", "onpn"},
    {"cuMemRelease", "h"},
    {"cuMemAddressReserve", "Onnan"},
    {"cuMemAddressFree", "an"},
    {"cuMemMap", "annhn"},
    {"cuMemUnmap", "an"},
    {"cuMemSetAccess", "anAn"},
    {"cuMemAlloc_v2", "On"},
    {"cuMemFree_v2", "a"},
    {"cuMemGetAddressRange_v2", "o-a"},
    {"cuIpcGetMemHandle", "-a"},
    {"cuIpcOpenMemHandle_v2", "o-n"},
    {"cuIpcCloseMemHandle", "a"},
    {"cuMemHostAlloc", "Onn"},
    {"cuMemFreeHost", "a"},
    {"cuMemHostGetDevicePointer_v2", "Oan"},
    {"cuMemcpyHtoDAsync_v2", "aanh"},
    {"cuMemcpyDtoHAsync_v2", "aanh"},
    {"cuMemcpyDtoDAsync_v2", "aanh"},
    {"cuMemsetD8Async", "annh"},
    {"cuStreamWriteValue32_v2", "hann"},
    {"cuStreamCreateWithPriority", "onn"},
    {"cuCtxGetStreamPriorityRange", "NN"},
    {"cuStreamDestroy_v2", "h"},
    {"cuStreamQuery", "h"},
    {"cuStreamSynchronize", "h"},
    {"cuStreamWaitEvent", "hhn"},
    {"cuEventCreate", "on"},
    {"cuEventRecord", "hh"},
    {"cuEventQuery", "h"},
    {"cuEventSynchronize", "h"},
    {"cuEventElapsedTime", "-hh"},
    {"cuEventDestroy_v2", "h"},
    {"cuModuleLoadData", "o-"},
    {"cuModuleUnload", "h"},
    {"cuModuleGetFunction", "ohs"},
    {"cuLaunchKernel", "hnnnnnnnh--"},
    {"cuStreamBeginCapture_v2", "hn"},
    {"cuStreamEndCapture", "ho"},
    {"cuGraphDestroy", "h"},
    {"cuGraphInstantiateWithFlags", "ohn"},
    {"cuGraphLaunch", "hh"},
    {"cuGraphExecDestroy", "h"},
    {"cuDeviceGetDevResource", "nQn"},
    {"cuDevSmResourceSplitByCount", "RNPQnn"},
    {"cuDevResourceGenerateDesc", "oDn"},
    {"cuGreenCtxCreate", "ohnn"},
    {"cuGreenCtxDestroy", "h"},
    {"cuGreenCtxStreamCreate", "ohnn"},
    {"cuGetErrorName", "nS"},
};
template <Asks which>
constexpr std::string_view symbol_of() {
  return known_kinds[static_cast<std::size_t>(which)].first;
}

// The table above is in the order of the driver's, with a letter for each argument.
template <typename... A>
constexpr std::size_t arguments_of(Status (*)(A...)) {
  return sizeof...(A);
}
#define CARILLON_HAS_KINDS(member, symbol, arguments)                                \
  static_assert(symbol_of<Asks::member>() == #symbol &&                              \
                known_kinds[static_cast<std::size_t>(Asks::member)].second.size() == \
                    arguments_of(decltype(Driver::member){}));
CARILLON_CUDA_DRIVER(CARILLON_HAS_KINDS)
#undef CARILLON_HAS_KINDS

// An argument as 64 bits: a number, or where it points.
template <typename T>
std::uint64_t bits(const T& argument) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<std::uint64_t>(argument);
  else if constexpr (std::is_same_v<T, IpcHandle>)
    return 0;
  else
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(argument));
}
template <typename T>
T read_at(std::uint64_t at) {
  T out{};
  std::memcpy(&out, reinterpret_cast<const void*>(at), sizeof out);
  return out;
}

std::string text_of(const Processors& of) {
  return fmt::format("{}:{}/{}/{}", of.type, of.count, of.least, of.alignment);
}

}  // namespace

// ---------------------------------------------------------------------------------------------- the
// recording

struct Recording::State {
  std::mutex mutex;
  Driver driver;
  std::ofstream out;
  RecordingOptions options;
  std::uint64_t written = 0, calls = 0;
  std::map<std::thread::id, int> threads;
  std::map<int, std::string> waits;                // by thread: what it asked last that was not done
  std::map<std::uint64_t, std::uint64_t> numbers;  // of handles and addresses
  std::map<std::uint64_t, std::uint64_t> ranges;   // bytes, by where they begin

  std::string given(std::uint64_t value) {
    if (value == 0) return "0";
    return fmt::format("h{}", numbers.try_emplace(value, numbers.size() + 1).first->second);
  }
  std::string handle(std::uint64_t value) const {
    if (value == 0) return "0";
    const auto found = numbers.find(value);
    return found == numbers.end() ? "-" : fmt::format("h{}", found->second);
  }
  // Where it begins, and its bytes.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> range_of(std::uint64_t at) const {
    auto above = ranges.upper_bound(at);
    if (above == ranges.begin()) return std::nullopt;
    --above;
    if (at >= above->first + above->second) return std::nullopt;
    return *above;
  }
  std::string place(std::uint64_t at) const {
    if (at == 0) return "0";
    const auto range = range_of(at);
    if (!range) return handle(at);
    const std::string start = handle(range->first);
    return at == range->first ? start : fmt::format("{}+{}", start, at - range->first);
  }

  void note(std::size_t which, Status status, std::span<const std::uint64_t> arguments) {
    const auto& [symbol, kinds] = known_kinds[which];
    const std::lock_guard lock(mutex);
    if (written >= options.most) return;
    const int thread =
        threads.try_emplace(std::this_thread::get_id(), static_cast<int>(threads.size()) + 1).first->second;
    std::string line = fmt::format("{} {} {}", thread, symbol, status);
    for (std::size_t i = 0; i < kinds.size(); ++i) line += ' ' + argument(kinds, i, status, arguments);
    std::string& waits_for = waits[thread];
    if (status == not_ready && line == waits_for) return;
    waits_for = status == not_ready ? line : std::string();
    line += '\n';
    out << line;
    written += line.size();
    if (++calls % 256 == 0) out.flush();
  }

  std::string argument(std::string_view kinds, std::size_t i, Status status,
                       std::span<const std::uint64_t> arguments) {
    const std::uint64_t value = arguments[i];
    const bool is_given = status == done && value != 0;
    switch (kinds[i]) {
      case 'n':
        return fmt::format("{}", static_cast<std::int64_t>(value));
      case 'h':
        return handle(value);
      case 'a':
        return place(value);
      case 's':
        return reinterpret_cast<const char*>(value);
      case 'p':
        return fmt::format("{}", read_at<Properties>(value).location.id);
      case 'A':
        return fmt::format("{}", read_at<Access>(value).location.id);
      case 'P':
        return text_of(read_at<Processors>(value));
      case 'D': {
        std::vector<std::string> each;
        for (std::uint64_t k = 0; k < arguments[i + 1]; ++k)
          each.push_back(text_of(read_at<Processors>(value + k * sizeof(Processors))));
        return fmt::format("{}", fmt::join(each, ","));
      }
      default:
        break;
    }
    if (!is_given) return "-";
    switch (kinds[i]) {
      case 'N':
      case 'V':
        return fmt::format("{}", read_at<int>(value));
      case 'Z':
      case 'z':
        return fmt::format("{}", read_at<std::uint64_t>(value));
      case 'o':
        return given(read_at<std::uint64_t>(value));
      case 'O': {
        const auto at = read_at<std::uint64_t>(value);
        const auto of = kinds[i + 1] == 'a' ? range_of(arguments[i + 1]) : std::nullopt;
        if (of)
          ranges.insert_or_assign(at, of->first + of->second - arguments[i + 1]);
        else if (kinds[i + 1] == 'n')
          ranges.insert_or_assign(at, arguments[i + 1]);
        return given(at);
      }
      case 'S':
        return read_at<const char*>(value);
      case 'c': {
        std::string name = reinterpret_cast<const char*>(value);
        std::ranges::replace(name, ' ', '_');
        return name;
      }
      case 'Q':
        return text_of(read_at<Processors>(value));
      case 'R': {
        std::vector<std::string> each;
        for (unsigned k = 0; k < read_at<unsigned>(arguments[i + 1]); ++k)
          each.push_back(text_of(read_at<Processors>(value + k * sizeof(Processors))));
        return fmt::format("{}", fmt::join(each, ","));
      }
      default:
        return "-";
    }
  }
};

namespace {

Recording::State* recording = nullptr;

template <Asks which, auto member, typename F>
struct Noted;
template <Asks which, auto member, typename... A>
struct Noted<which, member, Status (*)(A...)> {
  static Status call(A... arguments) {
    const Status status = (recording->driver.*member)(arguments...);
    const std::array<std::uint64_t, sizeof...(A)> all{bits(arguments)...};
    recording->note(static_cast<std::size_t>(which), status, all);
    return status;
  }
};

}  // namespace

Recording::Recording(std::unique_ptr<State> state) : state_(std::move(state)) {
  recording = state_.get();
}

Recording::~Recording() {
  recording = nullptr;
}

Result<std::unique_ptr<Recording>> Recording::make(const std::string& file, const RecordingOptions& options) {
  auto state = std::make_unique<State>();
  state->options = options;
  state->out.open(file, std::ios::trunc);
  if (!state->out) return fail(ErrorCode::invalid_argument, file + ": cannot be written");
  return std::unique_ptr<Recording>(new Recording(std::move(state)));
}

Driver Recording::around(const Driver& driver) {
  state_->driver = driver;
  Driver out;
#define CARILLON_NOTED(member, symbol, arguments) \
  out.member = Noted<Asks::member, &Driver::member, decltype(Driver::member)>::call;
  CARILLON_CUDA_DRIVER(CARILLON_NOTED)
#undef CARILLON_NOTED
  return out;
}

// ------------------------------------------------------------------------------------------------- the
// replay

namespace {

struct Line {
  std::size_t number = 0;
  int thread = 0;
  std::size_t which = 0;
  Status status = done;
  std::vector<std::string_view> arguments;
};

std::vector<std::string_view> words_of(std::string_view line, char between = ' ') {
  std::vector<std::string_view> out;
  for (std::size_t at = 0; at <= line.size();) {
    const std::size_t end = std::min(line.find(between, at), line.size());
    out.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  return out;
}
template <typename T>
std::optional<T> number_in(std::string_view text) {
  T out{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

Result<std::vector<Line>> read_lines(std::string_view text) {
  std::vector<Line> out;
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    ++number;
    if (end == std::string_view::npos) break;  // cut off: the program ended while it was written
    const auto words = words_of(rest.substr(0, end));
    rest.remove_prefix(end + 1);
    const auto wrong = [&](const std::string& why) {
      return fail(ErrorCode::invalid_argument, fmt::format("line {} of recorded calls: {}", number, why));
    };
    if (words.size() < 3) return wrong("it has no thread, function and status");
    const auto thread = number_in<int>(words[0]);
    const auto status = number_in<Status>(words[2]);
    const auto* const known =
        std::ranges::find(known_kinds, words[1], &std::pair<std::string_view, std::string_view>::first);
    if (known == std::end(known_kinds)) return wrong(fmt::format("there is no function {}", words[1]));
    if (!thread || *thread < 1 || *thread > 1000 || !status) return wrong("thread and status are numbers");
    if (words.size() != known->second.size() + 3)
      return wrong(fmt::format("{} has {} arguments", words[1], known->second.size()));
    out.push_back({.number = number,
                   .thread = *thread,
                   .which = static_cast<std::size_t>(known - std::begin(known_kinds)),
                   .status = *status,
                   .arguments = {words.begin() + 3, words.end()}});
  }
  return out;
}

// A device as the recorded one says that it is.
EmulatedOptions sizes_of(const std::vector<Line>& lines) {
  EmulatedOptions out{.computes = false};
  for (const Line& line : lines) {
    if (line.status != done) continue;
    const auto number = [&](std::size_t i) {
      return number_in<std::uint64_t>(line.arguments[i]).value_or(0);
    };
    switch (static_cast<Asks>(line.which)) {
      case Asks::driver_version:
        out.version = static_cast<int>(number(0));
        break;
      case Asks::device_count:
        out.devices = static_cast<int>(std::clamp<std::uint64_t>(number(0), 1, 64));
        break;
      case Asks::device_memory:
        out.memory = number(0);
        break;
      case Asks::device_attribute:
        if (number(1) == attribute_major) out.major = static_cast<int>(number(0));
        if (number(1) == attribute_minor) out.minor = static_cast<int>(number(0));
        if (number(1) == attribute_processors) out.processors = static_cast<unsigned>(number(0));
        break;
      default:
        break;
    }
  }
  return out;
}

// A thread that runs one task at a time. give() returns when the task has ended.
class Hand {
 public:
  Hand() : thread_([this] { work(); }) {}
  ~Hand() {
    give(nullptr);
    thread_.join();
  }
  Hand(const Hand&) = delete;
  Hand& operator=(const Hand&) = delete;

  void give(const std::function<void()>* what) {
    std::unique_lock lock(mutex_);
    what_ = what;
    is_given_ = true;
    changed_.notify_all();
    if (what != nullptr) changed_.wait(lock, [&] { return !is_given_; });
  }

 private:
  void work() {
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return is_given_; });
      if (what_ == nullptr) return;
      (*what_)();
      is_given_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* what_ = nullptr;
  bool is_given_ = false;
  std::thread thread_;
};

constexpr std::size_t most_arguments = 11, most_parts = 256;

class Replay {
 public:
  explicit Replay(const std::vector<Line>& lines) : lines_(lines), device_(sizes_of(lines)) {
    for (const Line& line : lines)
      if (static_cast<Asks>(line.which) == Asks::module_function)
        device_.know(std::string(line.arguments[2]), {.parameter_bytes = {},
                                                      .run = [](const auto&) {},
                                                      .accesses = [](const auto&, auto&, auto&) {},
                                                      .duration = {}});
  }

  Replayed run() {
    std::map<int, std::unique_ptr<Hand>> hands;
    for (const Line& line : lines_) {
      if (is_lost(line.status)) break;
      auto& hand = hands[line.thread];
      if (hand == nullptr) hand = std::make_unique<Hand>();
      const std::function<void()> what = [&] { replay(line); };
      hand->give(&what);
    }
    return std::move(out_);
  }

 private:
  void differs(const Line& line, const std::string& what) {
    if (out_.differences.size() < 100)
      out_.differences.push_back(
          fmt::format("line {}: {} {}", line.number, known_kinds[line.which].first, what));
  }
  std::string name(Status status) const { return name_of(driver_, status); }

  // Where what was h3, or h3+16, is now; nothing where nobody gave it.
  std::optional<std::uint64_t> now(std::string_view text) const {
    if (text == "0") return 0;
    const std::size_t plus = std::min(text.find('+'), text.size());
    const auto found = now_.find(std::string(text.substr(0, plus)));
    if (found == now_.end()) return std::nullopt;
    return found->second +
           (plus == text.size() ? 0 : number_in<std::uint64_t>(text.substr(plus + 1)).value_or(0));
  }

  // Sets arguments; false where one cannot be told, and the call cannot be made.
  bool prepare(const Line& line) {
    const std::string_view kinds = known_kinds[line.which].second;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const std::string_view text = line.arguments[i];
      std::uint64_t& to = values_[i];
      slots_[i] = 0;
      to = reinterpret_cast<std::uint64_t>(&slots_[i]);
      switch (kinds[i]) {
        case 'n':
          to = static_cast<std::uint64_t>(number_in<std::int64_t>(text).value_or(0));
          break;
        case 'h':
        case 'a': {
          const auto there = now(text);
          if (!there) return false;
          to = *there;
          break;
        }
        case 's':
          text_ = text;
          to = reinterpret_cast<std::uint64_t>(text_.c_str());
          break;
        case 'c':
          to = reinterpret_cast<std::uint64_t>(name_.data());
          break;
        case 'p':
          properties_.location.id = number_in<int>(text).value_or(0);
          to = reinterpret_cast<std::uint64_t>(&properties_);
          break;
        case 'A':
          access_.location.id = number_in<int>(text).value_or(0);
          to = reinterpret_cast<std::uint64_t>(&access_);
          break;
        case 'P':
        case 'D': {
          parts_[i].clear();
          for (const std::string_view each : words_of(text, ',')) {
            const auto found = processors_.find(each);
            if (found == processors_.end()) return false;
            parts_[i].push_back(found->second);
          }
          to = reinterpret_cast<std::uint64_t>(parts_[i].data());
          break;
        }
        case 'Q':
        case 'R':
          parts_[i].assign(kinds[i] == 'Q' ? 1 : most_parts, Processors{});
          to = text == "-" ? 0 : reinterpret_cast<std::uint64_t>(parts_[i].data());
          break;
        default:
          break;
      }
    }
    // The number of parts says how many are wanted, and then how many there are.
    if (static_cast<Asks>(line.which) == Asks::split_processors)
      slots_[1] = number_in<std::uint64_t>(line.arguments[1]).value_or(0);
    if (static_cast<Asks>(line.which) == Asks::device_name)
      values_[1] = std::min<std::uint64_t>(values_[1], name_.size());
    if (static_cast<Asks>(line.which) == Asks::launch) values_[10] = 0;  // `extra`
    return true;
  }

  static bool is_left_out(const Line& line) {
    switch (static_cast<Asks>(line.which)) {
      case Asks::ipc_export:
      case Asks::ipc_open:
      case Asks::ipc_close:
      case Asks::address_range:
      case Asks::device_uuid:
        return true;
      case Asks::copy_in:
        return line.arguments[1] == "-";
      case Asks::copy_out:
        return line.arguments[0] == "-";
      default:
        return false;
    }
  }

  Status call(Asks which) {
    switch (which) {
#define CARILLON_AGAIN(member, symbol, arguments) \
  case Asks::member:                              \
    return again(driver_.member);
      CARILLON_CUDA_DRIVER(CARILLON_AGAIN)
#undef CARILLON_AGAIN
    }
    return invalid_value;
  }
  template <typename... A>
  Status again(Status (*function)(A...)) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return function(argument<A>(I)...);
    }
    (std::index_sequence_for<A...>{});
  }
  template <typename T>
  T argument(std::size_t i) const {
    if constexpr (std::is_pointer_v<T>)
      return reinterpret_cast<T>(values_[i]);
    else if constexpr (std::is_same_v<T, IpcHandle>)
      return {};
    else
      return static_cast<T>(values_[i]);
  }

  void replay(const Line& line) {
    const auto which = static_cast<Asks>(line.which);
    if (is_left_out(line)) {
      ++out_.left_out;
      return;
    }
    if (!prepare(line)) {
      differs(line, "uses what no recorded call gave");
      return;
    }
    ++out_.calls;
    const std::size_t wrong_before = device_.violations().size();
    Status status = call(which);
    // Work may be done at another time: then it is waited for where it was done.
    if (status == not_ready && line.status == done) {
      if (which == Asks::stream_query) status = again(driver_.stream_synchronize);
      if (which == Asks::event_query) status = again(driver_.event_synchronize);
      if (which == Asks::event_elapsed) status = elapsed();
    }
    const bool asks =
        which == Asks::stream_query || which == Asks::event_query || which == Asks::event_elapsed;
    if (asks && line.status == not_ready && status == done) status = not_ready;
    if (status != line.status) {
      differs(line, fmt::format("gave {} where {} is recorded", name(status), name(line.status)));
      return;
    }
    if (status != done) return;
    const auto violations = device_.violations();
    if (violations.size() > wrong_before)
      differs(line, fmt::format("was done where it is recorded, and the emulated device finds: {}",
                                violations.back()));
    keep(line);
  }
  // The time between two events, once the later has come.
  Status elapsed() {
    for (const std::size_t event : {1U, 2U})
      (void)driver_.event_synchronize(reinterpret_cast<Event>(values_[event]));
    return again(driver_.event_elapsed);
  }

  // What a call gave.
  void keep(const Line& line) {
    const std::string_view kinds = known_kinds[line.which].second;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const std::string_view text = line.arguments[i];
      if (text == "-") continue;
      const auto compare = [&](const std::string& got) {
        if (got != text) differs(line, fmt::format("gave {} where {} is recorded", got, text));
      };
      switch (kinds[i]) {
        case 'o':
        case 'O':
          now_[std::string(text)] = slots_[i];
          break;
        case 'N':
          compare(fmt::format("{}", read_at<int>(values_[i])));
          break;
        case 'Z':
          compare(fmt::format("{}", slots_[i]));
          break;
        case 'S':
          compare(read_at<const char*>(values_[i]));
          break;
        case 'Q':
        case 'R': {
          const std::size_t given = kinds[i] == 'Q' ? 1 : static_cast<unsigned>(slots_[1]);
          std::vector<std::string> each;
          for (std::size_t k = 0; k < std::min(given, parts_[i].size()); ++k) {
            each.push_back(text_of(parts_[i][k]));
            processors_.insert_or_assign(each.back(), parts_[i][k]);
          }
          compare(fmt::format("{}", fmt::join(each, ",")));
          break;
        }
        default:
          break;
      }
    }
  }

  const std::vector<Line>& lines_;
  Emulated device_;
  const Driver driver_ = Emulated::table();
  Replayed out_;
  std::map<std::string, std::uint64_t, std::less<>> now_;
  std::map<std::string, Processors, std::less<>> processors_;
  // Of the call that is made.
  std::array<std::uint64_t, most_arguments> values_{}, slots_{};
  std::array<std::vector<Processors>, most_arguments> parts_;
  std::string text_;
  std::array<char, 4096> name_{};
  Properties properties_;
  Access access_;
};

}  // namespace

Result<Replayed> replay(std::string_view text) {
  auto lines = read_lines(text);
  if (!lines) return std::unexpected(lines.error());
  Replay again(*lines);
  return again.run();
}

}  // namespace carillon::engine::cuda
