#include "carillon/schedule/log/lines.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <type_traits>
#include <variant>

#include <fmt/format.h>

namespace carillon::schedule::log {
namespace {

std::int64_t ns(TimePoint t) {
  return t.time_since_epoch().count();
}

Reason reason_of(std::string_view name, Words& words) {
  for (int i = 0; i <= static_cast<int>(last_reason); ++i)
    if (name_of(static_cast<Reason>(i)) == name) return static_cast<Reason>(i);
  words.fail();
  return {};
}

Class class_of(Words& words) {
  const int cls = words.number<int>();
  if (cls < 0 || cls > 2) words.fail();
  return static_cast<Class>(cls);
}

void append_batches(std::string& out, const std::vector<BatchProfile>& batches) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "{}", batches.size());
  for (const BatchProfile& b : batches) fmt::format_to(to, " {} {}", b.batch, b.exec.count());
}

// False where they do not ascend, each with its time.
bool read_batches(Words& words, std::size_t count, std::vector<BatchProfile>& batches) {
  for (std::size_t i = 0; i < count && words.good(); ++i) {
    BatchProfile b;
    b.batch = words.number<int>();
    b.exec = words.duration();
    if (b.batch <= (batches.empty() ? 0 : batches.back().batch) || b.exec < Duration{0} || b.exec > 24h)
      words.fail();
    batches.push_back(b);
  }
  return words.good();
}

void append_model(std::string& out, const ModelInfo& model) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "model {} {} {} ", model.id.value, model.pages, model.load.count());
  append_batches(out, model.batches);
  fmt::format_to(to, " {}", model.solos.size());
  for (const Duration solo : model.solos) fmt::format_to(to, " {}", solo.count());
  if (model.cost)
    fmt::format_to(to, " 1 {} {} ", model.cost->c0.count(), model.cost->c1);
  else
    out += " 0 ";
  fmt::format_to(to, "{} {} {} ", model.time_varies ? 1 : 0, static_cast<int>(model.cls), model.sizes.size());
  for (const SizeTime& size : model.sizes)
    fmt::format_to(to, "{} {} {} {} ", size.row.operations, size.row.bytes, size.batch, size.exec.count());
  fmt::format_to(to, "{} ", model.miss_rate);
  for (const char c : model.name) out += c == '\n' ? ' ' : c;
}

}  // namespace

void append(std::string& out, const Action& action) {
  const auto to = std::back_inserter(out);
  if (const auto* infer = std::get_if<Infer>(&action)) {
    fmt::format_to(to, "infer {} {} {} {} {} {} {}", infer->id.value, infer->device.value, infer->model.value,
                   ns(infer->window.earliest), ns(infer->window.latest), infer->expected.count(),
                   static_cast<int>(infer->cls));
    for (const RequestId id : infer->requests) fmt::format_to(to, " {}", id.value);
  } else if (const auto* refuse = std::get_if<Refuse>(&action)) {
    fmt::format_to(to, "refuse {} {} {}", refuse->request.value, name_of(refuse->reason),
                   ns(refuse->would_finish));
  } else if (const auto* load = std::get_if<Load>(&action)) {
    fmt::format_to(to, "load {} {} {} {} {} {}", load->id.value, load->device.value, load->model.value,
                   ns(load->window.earliest), ns(load->window.latest), load->expected.count());
  } else if (const auto* unload = std::get_if<Unload>(&action)) {
    fmt::format_to(to, "unload {} {} {}", unload->id.value, unload->device.value, unload->model.value);
  } else if (const auto* stop = std::get_if<Stop>(&action)) {
    fmt::format_to(to, "stop {} {}", stop->id.value, stop->device.value);
  } else if (const auto* preempt = std::get_if<Preempt>(&action)) {
    fmt::format_to(to, "preempt {} {} 1 {}", preempt->id.value, preempt->device.value, ns(preempt->order));
  } else if (const auto* keep = std::get_if<Keep>(&action)) {
    fmt::format_to(to, "keep {} {}", keep->request.value, keep->keep ? 1 : 0);
  } else if (const auto* profile = std::get_if<Profile>(&action)) {
    fmt::format_to(to, "profile {} {} {} {} {} {} {}", profile->id.value, profile->device.value,
                   profile->model.value, profile->request.value, ns(profile->window.earliest),
                   ns(profile->window.latest), profile->expected.count());
  } else if (const auto* up = std::get_if<GiveUp>(&action)) {
    fmt::format_to(to, "give_up {}", up->device.value);
  }
}

void append(std::string& out, const Event& event) {
  const auto to = std::back_inserter(out);
  if (const auto* arrival = std::get_if<RequestArrived>(&event)) {
    const Request& r = arrival->request;
    fmt::format_to(to, "{} {} {} {} {} {} {} {}", arrival->more ? "arrived_with" : "arrived", r.id.value,
                   r.model.value, r.app.value, static_cast<int>(r.cls), r.priority, ns(r.arrival),
                   ns(r.deadline));
    if (r.effort.known()) fmt::format_to(to, " {} {}", r.effort.operations, r.effort.bytes);
  } else if (const auto* gone = std::get_if<RequestCancelled>(&event)) {
    fmt::format_to(to, "cancelled {} {}", gone->request.value, gone->model.value);
  } else if (const auto* done = std::get_if<ActionDone>(&event)) {
    fmt::format_to(to, "done {} {} {} {} {}", done->id.value, static_cast<int>(done->status), ns(done->start),
                   ns(done->end), done->duration.count());
    if (done->threads > 0) fmt::format_to(to, " {}", done->threads);
  } else if (const auto* change = std::get_if<DeviceChanged>(&event)) {
    fmt::format_to(to, "device {} {} {} {}", change->device.value, change->alive ? 1 : 0, change->pages,
                   change->best_effort);
    for (const ModelId held : change->held) fmt::format_to(to, " {}", held.value);
  } else if (const auto* sample = std::get_if<RequestProfiled>(&event)) {
    fmt::format_to(to, "profiled {} {} {}", sample->model.value, sample->app.value, sample->solo.count());
  } else if (const auto* model = std::get_if<ModelChanged>(&event)) {
    if (model->info)
      append_model(out, *model->info);
    else
      fmt::format_to(to, "model_gone {}", model->model.value);
  } else if (const auto* times = std::get_if<TimesChanged>(&event)) {
    fmt::format_to(to, "times {} ", times->model.value);
    append_batches(out, times->batches);
  } else if (std::holds_alternative<AllArrived>(event)) {
    out += "all_arrived";
  } else if (const auto* wake = std::get_if<Wake>(&event)) {
    out += "wake";
    for (const Excuse& excuse : wake->excuses)
      fmt::format_to(to, " {} {} {} {}", excuse.device.value, static_cast<int>(excuse.lane),
                     excuse.starved.count(), excuse.moved ? 1 : 0);
  }
}

std::string to_line(const Action& action) {
  std::string line;
  append(line, action);
  return line;
}

Action read_action(Words& words, int of_version) {
  const std::string_view kind = words.word();
  if (kind == "infer") {
    Infer infer;
    words.id(infer.id);
    words.id(infer.device);
    words.id(infer.model);
    infer.window = words.window();
    infer.expected = words.duration();
    if (of_version >= 4) infer.cls = class_of(words);
    while (words.good() && !words.done()) words.id(infer.requests.emplace_back());
    return infer;
  }
  if (kind == "refuse") {
    Refuse refuse;
    words.id(refuse.request);
    refuse.reason = reason_of(words.word(), words);
    refuse.would_finish = words.time();
    return refuse;
  }
  if (kind == "load") {
    Load load;
    words.id(load.id);
    words.id(load.device);
    words.id(load.model);
    load.window = words.window();
    load.expected = words.duration();
    return load;
  }
  if (kind == "unload") {
    Unload unload;
    words.id(unload.id);
    words.id(unload.device);
    words.id(unload.model);
    return unload;
  }
  if (kind == "preempt") {
    Preempt preempt;
    words.id(preempt.id);
    words.id(preempt.device);
    const bool resumes = words.flag();  // always, but in older logs
    preempt.order = words.time();
    if (!resumes) return Stop{preempt.id, preempt.device};
    return preempt;
  }
  if (kind == "keep") {
    Keep keep;
    words.id(keep.request);
    keep.keep = words.flag();
    return keep;
  }
  if (kind == "profile") {
    Profile profile;
    words.id(profile.id);
    words.id(profile.device);
    words.id(profile.model);
    words.id(profile.request);
    profile.window = words.window();
    profile.expected = words.duration();
    return profile;
  }
  if (kind == "give_up") {
    GiveUp up;
    words.id(up.device);
    return up;
  }
  Stop stop;
  if (kind != "stop") words.fail();
  words.id(stop.id);
  words.id(stop.device);
  return stop;
}

Event read_event(std::string_view kind, Words& words, std::size_t models) {
  const auto known = [&](ModelId model) {
    if (model.index() >= models) words.fail();
  };
  if (kind == "arrived" || kind == "arrived_with") {
    Request r;
    words.id(r.id);
    words.id(r.model);
    words.id(r.app);
    r.cls = class_of(words);
    r.priority = words.number<std::uint32_t>();
    r.arrival = words.time();
    r.deadline = words.time();
    if (!words.done()) {  // since version 5, where its model has sizes
      r.effort.operations = words.number<std::uint64_t>();
      r.effort.bytes = words.number<std::uint64_t>();
    }
    known(r.model);
    return RequestArrived{r, kind == "arrived_with"};
  }
  if (kind == "cancelled") {
    RequestCancelled gone;
    words.id(gone.request);
    words.id(gone.model);
    known(gone.model);
    return gone;
  }
  if (kind == "done") {
    ActionDone done;
    words.id(done.id);
    const auto status = words.number<int>();
    if (status < 0 || status > static_cast<int>(ActionStatus::stopped)) words.fail();
    done.status = static_cast<ActionStatus>(status);
    done.start = words.time();
    done.end = words.time();
    done.duration = words.duration();
    if (!words.done()) done.threads = words.number<int>();  // since version 7, where the device tells
    if (done.threads < 0) words.fail();
    return done;
  }
  if (kind == "device") {
    DeviceChanged change;
    words.id(change.device);
    change.alive = words.number<int>() == 1;
    change.pages = words.number<std::uint64_t>();
    if (!words.done()) change.best_effort = words.number<int>();  // since version 4
    if (change.best_effort < 1 || change.best_effort > 64) words.fail();
    while (words.good() && !words.done()) {
      words.id(change.held.emplace_back());
      known(change.held.back());
    }
    if (change.device.value > 100'000) words.fail();
    return change;
  }
  if (kind == "profiled") {
    RequestProfiled sample;
    words.id(sample.model);
    words.id(sample.app);
    sample.solo = words.duration();
    known(sample.model);
    return sample;
  }
  if (kind == "model_gone") {
    ModelChanged gone;
    words.id(gone.model);
    known(gone.model);
    return gone;
  }
  if (kind == "all_arrived") return AllArrived{};
  if (kind != "wake") words.fail();
  Wake wake;
  while (words.good() && !words.done()) {
    Excuse excuse;
    words.id(excuse.device);
    const auto lane = words.number<std::size_t>();
    if (lane >= lanes) words.fail();
    excuse.lane = static_cast<Lane>(lane);
    excuse.starved = words.duration();
    if (excuse.starved < Duration{0} || excuse.starved > 24h || excuse.device.value > 100'000) words.fail();
    excuse.moved = words.flag();
    wake.excuses.push_back(excuse);
  }
  return wake;
}

std::string wrong_held(const DeviceChanged& change, std::span<const std::optional<std::uint64_t>> served) {
  const std::string device = fmt::format("device {}", change.device.value);
  if (!change.alive && !change.held.empty()) return device + " is gone, and holds models";
  std::uint64_t room = change.pages;
  std::set<ModelId> held;
  for (const ModelId model : change.held) {
    const std::string holds = fmt::format("{} holds model {}", device, model.value);
    const auto& pages = served[model.index()];
    if (!pages) return holds + ", which is gone";
    if (*pages == 0) return holds + ", which needs no pages";
    if (!held.insert(model).second) return holds + " twice";
    if (*pages > room)
      return fmt::format("{} has {} pages, and the models that it holds need more", device, change.pages);
    room -= *pages;
  }
  return {};
}

std::string_view read_model(Words& words, std::size_t models, int of_version, ModelInfo& model) {
  words.id(model.id);
  model.pages = words.number<std::uint64_t>();
  model.load = words.duration();
  const auto batches = words.number<std::size_t>();
  if (!words.good() || model.id.index() > models || batches == 0 || batches > 100'000 ||
      model.load < Duration{0} || model.pages > (1ULL << 40))
    return "a model needs its id (ascending by one), pages, load time, and its batch sizes";
  if (!read_batches(words, batches, model.batches) || model.batches.front().batch != 1)
    return "batch sizes ascend from 1, each with its time";
  if (of_version >= 2) {
    for (auto left = words.number<std::size_t>(); left > 0 && words.good(); --left) {
      model.solos.push_back(words.duration());
      if (model.solos.back() <= Duration{0} || model.solos.back() > 24h) words.fail();
    }
    if (words.number<int>() == 1) {
      profile::PaddedCost cost;
      cost.c0 = words.duration();
      cost.c1 = words.number<double>();
      if (cost.c0 < Duration{0} || cost.c0 > 24h || !(cost.c1 >= 0 && cost.c1 <= 1e9)) words.fail();
      model.cost = cost;
    }
    if (!words.good())
      return "behind the batch sizes stand a number of times of requests alone, these, and 0 or 1 C0 C1";
  }
  if (of_version >= 3) {
    model.time_varies = words.flag();
    if (!words.good())
      return "in front of the name stands 1 where the model's time varies with its input, else 0";
  }
  if (of_version >= 4) {
    model.cls = class_of(words);
    if (!words.good()) return "in front of the name stands the model's class: 0, 1 or 2";
  }
  if (of_version >= 5) {
    const auto sizes = words.number<std::size_t>();
    if (sizes > 100'000) words.fail();
    for (std::size_t i = 0; i < sizes && words.good(); ++i) {
      SizeTime size;
      size.row.operations = words.number<std::uint64_t>();
      size.row.bytes = words.number<std::uint64_t>();
      size.batch = words.number<int>();
      size.exec = words.duration();
      if (size.batch < 1 || size.batch > 100'000 || size.exec <= Duration{0} || size.exec > 24h) words.fail();
      model.sizes.push_back(size);
    }
    if (!words.good())
      return "in front of the name stands a number of sizes, and for each OPERATIONS BYTES BATCH TIME";
  }
  if (of_version >= 10) {
    model.miss_rate = words.number<double>();
    if (!words.good() || !(model.miss_rate >= 0 && model.miss_rate <= 0.5))
      return "in front of the name stands the share of its answers that may be late: 0 (the server's) to 0.5";
  }
  model.name = words.rest();
  return {};
}

std::string read_times(Words& words, std::span<const std::vector<int>> sizes, TimesChanged& times) {
  words.id(times.model);
  const auto count = words.number<std::size_t>();
  if (!words.good()) return "times need a model's id, and how many batch sizes follow";
  if (times.model.index() >= sizes.size())
    return fmt::format("no model {} has come whose times could change", times.model.value);
  if (!read_batches(words, std::min<std::size_t>(count, 100'000), times.batches) || !words.done())
    return fmt::format("times of {} batch sizes need so many, ascending, each with its time", count);
  if (!std::ranges::equal(times.batches, sizes[times.model.index()], {}, &BatchProfile::batch))
    return fmt::format("times of model {} are of other batch sizes than it has", times.model.value);
  return {};
}

}  // namespace carillon::schedule::log
