#include "carillon/controller/decision_log.h"

#include <charconv>
#include <cstring>

#include <fmt/format.h>

namespace carillon::controller {
namespace {

constexpr std::string_view magic = "carillon-log 1";
constexpr std::size_t write_at = 256 << 10;
constexpr std::size_t longest_line = 1 << 20;

std::int64_t ns(TimePoint t) {
  return t.time_since_epoch().count();
}

void append(std::string& out, const schedule::Action& action) {
  const auto to = std::back_inserter(out);
  if (const auto* infer = std::get_if<schedule::Infer>(&action)) {
    fmt::format_to(to, "infer {} {} {} {} {} {}", infer->id.value, infer->device.value, infer->model.value,
                   ns(infer->window.earliest), ns(infer->window.latest), infer->expected.count());
    for (const RequestId id : infer->requests) fmt::format_to(to, " {}", id.value);
  } else if (const auto* refuse = std::get_if<schedule::Refuse>(&action)) {
    fmt::format_to(to, "refuse {} {} {}", refuse->request.value, schedule::name_of(refuse->reason),
                   ns(refuse->would_finish));
  } else if (const auto* wake = std::get_if<schedule::WakeAt>(&action)) {
    fmt::format_to(to, "wake_at {}", ns(wake->at));
  } else if (const auto* load = std::get_if<schedule::Load>(&action)) {
    fmt::format_to(to, "load {} {} {} {} {} {}", load->id.value, load->device.value, load->model.value,
                   ns(load->window.earliest), ns(load->window.latest), load->expected.count());
  } else if (const auto* unload = std::get_if<schedule::Unload>(&action)) {
    fmt::format_to(to, "unload {} {} {}", unload->id.value, unload->device.value, unload->model.value);
  } else if (const auto* stop = std::get_if<schedule::Stop>(&action)) {
    fmt::format_to(to, "stop {} {}", stop->id.value, stop->device.value);
  }
}

void append(std::string& out, const schedule::Event& event, TimePoint now) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "e {} ", ns(now));
  if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event)) {
    const Request& r = arrival->request;
    fmt::format_to(to, "arrived {} {} {} {} {} {} {}", r.id.value, r.model.value, r.app.value,
                   static_cast<int>(r.cls), r.priority, ns(r.arrival), ns(r.deadline));
  } else if (const auto* gone = std::get_if<schedule::RequestCancelled>(&event)) {
    fmt::format_to(to, "cancelled {} {}", gone->request.value, gone->model.value);
  } else if (const auto* done = std::get_if<schedule::ActionDone>(&event)) {
    fmt::format_to(to, "done {} {} {} {} {}", done->id.value, static_cast<int>(done->status), ns(done->start),
                   ns(done->end), done->duration.count());
  } else if (const auto* change = std::get_if<schedule::DeviceChanged>(&event)) {
    fmt::format_to(to, "device {} {} {}", change->device.value, change->alive ? 1 : 0, change->pages);
  } else if (const auto* sample = std::get_if<schedule::RequestProfiled>(&event)) {
    fmt::format_to(to, "profiled {} {} {}", sample->model.value, sample->app.value, sample->solo.count());
  } else {
    out += "wake";
  }
  out += '\n';
}

// The words of a line, taken one after the other.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}
  std::string_view word() {
    const auto space = rest_.find(' ');
    const auto taken = rest_.substr(0, space);
    rest_ = space == std::string_view::npos ? std::string_view{} : rest_.substr(space + 1);
    if (taken.empty()) good_ = false;
    return taken;
  }
  template <typename Number>
  Number number() {
    Number value{};
    const auto text = word();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) good_ = false;
    return value;
  }
  template <typename Tag, typename Rep>
  void id(Id<Tag, Rep>& out) {
    out.value = number<Rep>();
  }
  TimePoint time() { return TimePoint{Duration{number<std::int64_t>()}}; }
  Duration duration() { return Duration{number<std::int64_t>()}; }
  std::string_view rest() const { return rest_; }
  bool done() const { return rest_.empty(); }
  bool good() const { return good_; }
  void fail() { good_ = false; }

 private:
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace

std::string to_line(const schedule::Action& action) {
  std::string line;
  append(line, action);
  return line;
}

Result<std::unique_ptr<schedule::Scheduler>> RecordingScheduler::open(
    const std::filesystem::path& file, std::unique_ptr<schedule::Scheduler> inner, std::string_view name,
    const schedule::Environment& environment) {
  std::FILE* out = std::fopen(file.c_str(), "wbx");
  if (out == nullptr)
    return fail(ErrorCode::invalid_argument,
                "cannot create the log '" + file.string() + "': " + std::strerror(errno) +
                    (errno == EEXIST ? "; name a file that is not there yet" : ""));
  std::unique_ptr<RecordingScheduler> made(new RecordingScheduler(out, std::move(inner)));
  made->buffer_ = fmt::format("{}\nscheduler {}\nenvironment {} {} {} {} {}\n", magic, name,
                              environment.dispatch.count(), environment.answer.count(), environment.overrun,
                              environment.measured ? 1 : 0, environment.client.count());
  return made;
}

RecordingScheduler::~RecordingScheduler() {
  buffer_ += fmt::format("end {}\n", events_);
  flush();
  if (file_ != nullptr) std::fclose(file_);
}

void RecordingScheduler::flush() {
  if (file_ != nullptr && std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size()) {
    fmt::print(stderr, "carillon: the log cannot be written any more: {}\n", std::strerror(errno));
    std::fclose(file_);
    file_ = nullptr;
  }
  if (file_ != nullptr) std::fflush(file_);
  buffer_.clear();
}

void RecordingScheduler::add_model(const schedule::ModelInfo& model) {
  inner_->add_model(model);
  fmt::format_to(std::back_inserter(buffer_), "model {} {} {} {}", model.id.value, model.pages,
                 model.load.count(), model.batches.size());
  for (const schedule::BatchProfile& b : model.batches)
    fmt::format_to(std::back_inserter(buffer_), " {} {}", b.batch, b.exec.count());
  buffer_ += ' ';
  for (const char c : model.name) buffer_ += c == '\n' ? ' ' : c;
  buffer_ += '\n';
}

void RecordingScheduler::decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) {
  const std::size_t before = out.size();
  inner_->decide(event, now, out);
  ++events_;
  if (file_ == nullptr) return;
  append(buffer_, event, now);
  for (std::size_t i = before; i < out.size(); ++i) {
    buffer_ += "a ";
    append(buffer_, out[i]);
    buffer_ += '\n';
  }
  if (flushed_ == TimePoint::min()) flushed_ = now;
  if (buffer_.size() >= write_at || now - flushed_ >= 1s) {
    flush();
    flushed_ = now;
  }
}

std::unexpected<Error> LogReader::wrong(const std::string& what) const {
  return invalid(file_ + ":" + std::to_string(number_) + ": " + what);
}

// False at the end. A last line without its end was cut off, and counts as not there.
bool LogReader::read_line() {
  if (held_) {
    held_ = false;
    return true;
  }
  if (!std::getline(in_, line_) || in_.eof()) return false;
  ++number_;
  return true;
}

Result<LogReader> LogReader::open(const std::filesystem::path& file) {
  LogReader reader;
  reader.file_ = file.string();
  reader.in_.open(file, std::ios::binary);
  if (!reader.in_) return carillon::fail(ErrorCode::not_found, "cannot read the log '" + file.string() + "'");
  if (!reader.read_line() || reader.line_ != magic)
    return reader.wrong("this is not a log of carillon: the first line must be '" + std::string(magic) + "'");
  while (reader.read_line()) {
    if (reader.line_.size() > longest_line) return reader.wrong("the line is too long");
    Words words(reader.line_);
    const auto kind = words.word();
    if (kind == "scheduler") {
      reader.scheduler_ = words.rest();
    } else if (kind == "environment") {
      reader.environment_.dispatch = words.duration();
      reader.environment_.answer = words.duration();
      reader.environment_.overrun = words.number<double>();
      if (!words.done()) {  // else a log of before it was measured: what was told stayed
        reader.environment_.measured = words.number<int>() == 1;
        reader.environment_.client = words.duration();
      }
      if (!words.good() || !(reader.environment_.overrun >= 0 && reader.environment_.overrun <= 100) ||
          reader.environment_.dispatch < Duration{0} || reader.environment_.answer < Duration{0} ||
          reader.environment_.dispatch > 1h || reader.environment_.answer > 1h ||
          reader.environment_.client < Duration{0} || reader.environment_.client > reader.environment_.answer)
        return reader.wrong("environment needs two times in nanoseconds, up to an hour, and a share");
    } else if (kind == "model") {
      schedule::ModelInfo model;
      words.id(model.id);
      model.pages = words.number<std::uint64_t>();
      model.load = words.duration();
      const auto batches = words.number<std::size_t>();
      if (!words.good() || model.id.index() != reader.models_.size() || batches == 0 || batches > 100'000 ||
          model.load < Duration{0} || model.pages > (1ULL << 40))
        return reader.wrong("a model needs its id (ascending by one), pages, load time, and its batch sizes");
      for (std::size_t i = 0; i < batches && words.good(); ++i) {
        schedule::BatchProfile b;
        b.batch = words.number<int>();
        b.exec = words.duration();
        if (b.batch <= (model.batches.empty() ? 0 : model.batches.back().batch) || b.exec < Duration{0} ||
            b.exec > 24h)
          words.fail();
        model.batches.push_back(b);
      }
      if (!words.good() || model.batches.front().batch != 1)
        return reader.wrong("batch sizes ascend from 1, each with its time");
      model.name = words.rest();
      reader.models_.push_back(std::move(model));
    } else {
      reader.held_ = true;
      break;
    }
  }
  if (reader.scheduler_.empty()) return reader.wrong("the log does not say its scheduler");
  return reader;
}

Result<std::optional<LoggedDecision>> LogReader::next() {
  if (!read_line()) return std::nullopt;
  Words words(line_);
  const auto first = words.word();
  if (first == "end") {
    complete_ = true;
    return std::nullopt;
  }
  if (first != "e")
    return wrong("an event ('e ...') or the end was expected, not '" + line_.substr(0, 40) + "'");
  LoggedDecision decision;
  decision.now = words.time();
  const auto kind = words.word();
  const auto known = [&](ModelId model) { return model.index() < models_.size(); };
  if (kind == "arrived") {
    Request r;
    words.id(r.id);
    words.id(r.model);
    words.id(r.app);
    const auto cls = words.number<int>();
    r.priority = words.number<std::uint32_t>();
    r.arrival = words.time();
    r.deadline = words.time();
    if (!known(r.model) || cls < 0 || cls > 2) words.fail();
    r.cls = static_cast<Class>(cls);
    decision.event = schedule::RequestArrived{r};
  } else if (kind == "cancelled") {
    schedule::RequestCancelled gone;
    words.id(gone.request);
    words.id(gone.model);
    if (!known(gone.model)) words.fail();
    decision.event = gone;
  } else if (kind == "done") {
    schedule::ActionDone done;
    words.id(done.id);
    const auto status = words.number<int>();
    if (status < 0 || status > static_cast<int>(schedule::ActionStatus::stopped)) words.fail();
    done.status = static_cast<schedule::ActionStatus>(status);
    done.start = words.time();
    done.end = words.time();
    done.duration = words.duration();
    decision.event = done;
  } else if (kind == "device") {
    schedule::DeviceChanged change;
    words.id(change.device);
    change.alive = words.number<int>() == 1;
    change.pages = words.number<std::uint64_t>();
    if (change.device.value > 100'000) words.fail();
    decision.event = change;
  } else if (kind == "profiled") {
    schedule::RequestProfiled sample;
    words.id(sample.model);
    words.id(sample.app);
    sample.solo = words.duration();
    if (!known(sample.model)) words.fail();
    decision.event = sample;
  } else if (kind == "wake") {
    decision.event = schedule::Wake{};
  } else {
    words.fail();
  }
  if (!words.good() || !words.done()) return wrong("'" + line_.substr(0, 60) + "' is not an event");
  while (read_line()) {
    if (!line_.starts_with("a ")) {
      held_ = true;
      break;
    }
    decision.actions.push_back(line_.substr(2));
  }
  decision.whole = held_;
  return decision;
}

}  // namespace carillon::controller
