#include "carillon/transport/codec.h"

#include <array>
#include <limits>
#include <span>
#include <utility>

#include "hosts.pb.h"
#include <fmt/format.h>
#include <google/protobuf/arena.h>

#include "carillon/cluster/coordinator/address.h"

namespace carillon::transport {
namespace {

std::int64_t ns(TimePoint t) {
  return t.time_since_epoch().count();
}
TimePoint time(std::int64_t ns) {
  return TimePoint{Duration{ns}};
}

// Times of a report may be any, as a leader passes on what a worker told.
std::int64_t later_by(TimePoint at, TimePoint before) {
  std::int64_t difference = 0;
  if (__builtin_sub_overflow(ns(at), ns(before), &difference))
    return at < before ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
  return difference;
}

// Ids of traces and spans, the most significant byte first.
std::uint64_t number_of(std::span<const std::uint8_t> bytes) {
  std::uint64_t number = 0;
  for (const std::uint8_t byte : bytes) number = number << 8 | byte;
  return number;
}
void set_bytes(std::uint64_t number, std::span<std::uint8_t> bytes) {
  for (std::size_t i = bytes.size(); i-- > 0; number >>= 8) bytes[i] = static_cast<std::uint8_t>(number);
}

hosts::Class as_class(Class cls) {
  switch (cls) {
    case Class::real_time:
      return hosts::CLASS_REAL_TIME;
    case Class::best_effort:
      return hosts::CLASS_BEST_EFFORT;
    case Class::normal:
      break;
  }
  return hosts::CLASS_NORMAL;
}

hosts::Role as_role(Role role) {
  switch (role) {
    case Role::frontend:
      return hosts::ROLE_FRONTEND;
    case Role::scheduler:
      return hosts::ROLE_SCHEDULER;
    case Role::worker:
      break;
  }
  return hosts::ROLE_WORKER;
}

// Writes messages.
struct Writer {
  hosts::Message& to;
  const FrameLimits& limits;

  std::string cut(std::string_view text, std::size_t most) const { return std::string(text.substr(0, most)); }
  template <typename Out>
  static void rows(const std::vector<RequestId>& rows, Out& out) {
    for (const RequestId row : rows) out.add_rows(row.value);
  }
  template <typename Out>
  static void order(const auto& from, Out& out) {
    out.set_action(from.id.value);
    out.set_device(from.device.value);
  }
  template <typename Out>
  static void timed(const auto& from, Out& out) {
    order(from, out);
    out.set_model(from.model.value);
    if (from.window.earliest != TimePoint::min())
      out.mutable_window()->set_earliest(ns(from.window.earliest));
    if (from.window.latest != TimePoint::max()) out.mutable_window()->set_latest(ns(from.window.latest));
    out.set_expected_ns(from.expected.count());
  }
  static void trace(const wire::RowTrace& from, hosts::RowTrace& out) {
    const std::span id(from.trace.trace_id);
    out.set_trace_high(number_of(id.first<8>()));
    out.set_trace_low(number_of(id.last<8>()));
    out.set_span(number_of(from.trace.span_id));
    out.set_flags(from.trace.flags);
    out.set_unix_zero(ns(from.unix_zero));
    out.set_clock_bound_ns(from.clock_bound.count());
  }
  static void reference(const RowReference& from, hosts::RowReference& out) {
    out.set_row(from.row.value);
    out.set_frontend(from.frontend);
    out.set_key(from.key);
    if (from.trace) trace(*from.trace, *out.mutable_trace());
  }
  void error(const Error& from, hosts::Error& out, std::size_t most) const {
    out.set_code(static_cast<std::uint32_t>(from.code));
    out.set_message(cut(from.message, most));
  }
  void report(const wire::Report& from, hosts::Report& out) const {
    order(from, out);
    out.set_life(from.life);
    out.set_status(static_cast<std::uint32_t>(from.status));
    const wire::ActionTimes& t = from.times;
    out.set_received(ns(t.received));
    TimePoint before = t.received;
    for (const TimePoint at :
         {t.input_start, t.input_end, t.exec_start, t.exec_end, t.output_start, t.output_end}) {
      out.add_later_ns(later_by(at, before));
      before = at;
    }
    out.set_paused_ns(t.paused.count());
    out.set_preemptions(t.preemptions);
    out.set_lost_ns(t.lost.count());
    out.set_padded_ns(t.padded.count());
    out.set_threads(t.threads);
    out.set_preempts(t.preempts);
    if (!from.error.empty()) out.set_error(cut(from.error, limits.text));
    out.set_device_lost(from.device_lost);
    out.set_odd_time(from.odd_time);
    out.set_delivers(from.delivers);
    for (const wire::BadRow& bad : from.bad_rows) {
      hosts::BadRow& row = *out.add_bad_rows();
      row.set_row(bad.row);
      error(bad.error, *row.mutable_error(), limits.text / 16);  // there may be many
    }
  }

  void operator()(const Application& m) const {
    hosts::Application& out = *to.mutable_application();
    out.set_app(m.app.value);
    out.set_name(cut(m.name, limits.text));
    if (!m.alike) return;
    out.set_model(m.alike->model.value);
    out.set_length(m.alike->length);
  }
  void operator()(const Offer& m) const {
    hosts::Offer& out = *to.mutable_offer();
    out.set_row(m.row.id.value);
    out.set_model(m.row.model.value);
    out.set_app(m.row.app.value);
    out.set_class_(as_class(m.row.cls));
    out.set_priority(m.row.priority);
    out.set_arrival(ns(m.row.arrival));
    if (m.row.deadline != TimePoint::max()) out.set_deadline(ns(m.row.deadline));
    out.set_operations(m.row.effort.operations);
    out.set_bytes(m.row.effort.bytes);
    out.set_more(m.more);
    out.set_key(m.key);
    out.set_tensor_bytes(m.tensor_bytes);
    if (m.trace) trace(*m.trace, *out.mutable_trace());
  }
  void operator()(const Withdraw& m) const {
    to.mutable_withdraw()->set_row(m.row.value);
    to.mutable_withdraw()->set_model(m.model.value);
  }
  void operator()(const Sent& m) const {
    rows(m.rows, *to.mutable_sent());
    to.mutable_sent()->set_device(m.device.value);
  }
  void operator()(const CameBack& m) const { rows(m.rows, *to.mutable_came_back()); }
  void operator()(const Ended& m) const {
    rows(m.rows, *to.mutable_ended());
    report(m.report, *to.mutable_ended()->mutable_report());
  }
  void operator()(const TurnedDown& m) const {
    to.mutable_turned_down()->set_row(m.row.value);
    error(m.error, *to.mutable_turned_down()->mutable_error(), limits.text);
  }
  void operator()(const Lost& m) const {
    rows(m.rows, *to.mutable_lost());
    to.mutable_lost()->set_why(cut(m.why, limits.text));
  }
  void operator()(const wire::Verdict& m) const {
    hosts::Refused& out = *to.mutable_refused();
    out.set_row(m.refusal.request.value);
    out.set_reason(static_cast<std::uint32_t>(m.refusal.reason));
    if (m.refusal.would_finish != TimePoint::max()) out.set_would_finish(ns(m.refusal.would_finish));
    hosts::Prospect& prospect = *out.mutable_prospect();
    prospect.set_exec_ns(m.prospect.exec.count());
    prospect.set_batch(m.prospect.batch);
    prospect.set_devices(m.prospect.devices);
    prospect.set_holding(m.prospect.holding);
    prospect.set_loading(m.prospect.loading);
    if (m.prospect.device) prospect.set_device(m.prospect.device->value);
    prospect.set_holds(m.prospect.holds);
    prospect.set_runs(m.prospect.runs);
    prospect.set_busy_ns(m.prospect.busy.count());
  }
  void operator()(const Keep& m) const { rows(m.rows, *to.mutable_keep()); }
  void operator()(const Forget& m) const { rows(m.rows, *to.mutable_forget()); }
  void operator()(const ledger::Load& m) const { timed(m, *to.mutable_load()); }
  void operator()(const ledger::Unload& m) const {
    order(m, *to.mutable_unload());
    to.mutable_unload()->set_model(m.model.value);
  }
  void operator()(const Infer& m) const {
    hosts::Infer& out = *to.mutable_infer();
    timed(m.order, out);
    out.set_class_(as_class(m.order.cls));
    for (const RowReference& row : m.rows) reference(row, *out.add_rows());
  }
  void operator()(const Profile& m) const {
    timed(m.order, *to.mutable_profile());
    reference(m.row, *to.mutable_profile()->mutable_row());
  }
  void operator()(const ledger::Stop& m) const { order(m, *to.mutable_stop()); }
  void operator()(const ledger::Preempt& m) const {
    order(m, *to.mutable_preempt());
    to.mutable_preempt()->set_order(ns(m.order));
  }
  void operator()(const Retire& m) const {
    to.mutable_retire()->set_device(m.device.value);
    to.mutable_retire()->set_life(m.life);
  }
  void operator()(const Probe& m) const { to.mutable_probe()->set_device(m.device.value); }
  void operator()(const Adopt& m) const {
    to.mutable_adopt()->set_device(m.device.value);
    to.mutable_adopt()->set_life(m.life);
  }
  void operator()(const wire::Report& m) const { report(m, *to.mutable_report()); }
  void operator()(const wire::ProbeReport& m) const {
    hosts::ProbeReport& out = *to.mutable_probe_report();
    out.set_device(m.device.value);
    out.set_life(m.life);
    if (!m.found) error(m.found.error(), *out.mutable_error(), limits.text);
  }
  void operator()(const DeviceState& m) const {
    hosts::DeviceState& out = *to.mutable_device_state();
    out.set_device(m.device.value);
    out.set_pages(m.pages);
    out.set_best_effort(m.best_effort);
    out.set_infers(m.credit.infers);
    out.set_loads(m.credit.loads);
    if (m.order) out.set_order(*m.order);
    if (!m.left) return;
    hosts::Left& left = *out.mutable_left();
    for (const ModelId model : m.left->held) left.add_held(model.value);
    for (const DeviceState::Run& run : m.left->runs) {
      hosts::EarlierRun& earlier = *left.add_runs();
      earlier.set_model(run.model.value);
      earlier.set_class_(as_class(run.cls));
      earlier.set_rows(run.rows);
      earlier.set_took_ns(run.took.count());
      earlier.set_expected_ns(run.expected.count());
      earlier.set_ago_ns(run.ago.count());
    }
  }
  void operator()(const ledger::Excuse& m) const {
    hosts::Slowness& out = *to.mutable_slowness();
    out.set_device(m.device.value);
    out.set_lane(static_cast<std::uint32_t>(m.lane));
    out.set_starved_ns(m.starved.count());
    out.set_moved(m.moved);
  }
  void operator()(const Delivered& m) const {
    to.mutable_delivered()->set_action(m.action.value);
    to.mutable_delivered()->set_took_ns(m.took.count());
  }
  void operator()(const RowsAt& m) const { to.mutable_rows_at()->set_address(cut(m.address, limits.text)); }
  void operator()(const DeviceCount& m) const {
    to.mutable_device_count()->set_alive(m.alive);
    to.mutable_device_count()->set_known(m.known);
  }
  void operator()(const OfferCredit& m) const {
    to.mutable_offer_credit()->set_taken(m.taken);
    to.mutable_offer_credit()->set_most(m.most);
  }
  void operator()(const FrontendAt& m) const {
    to.mutable_frontend_at()->set_frontend(m.frontend);
    to.mutable_frontend_at()->set_address(cut(m.address, limits.text));
    if (m.protocols == Protocols{1, 1}) return;
    to.mutable_frontend_at()->set_oldest_protocol(m.protocols.oldest);
    to.mutable_frontend_at()->set_newest_protocol(m.protocols.newest);
  }
  void operator()(const Leads&) const { (void)to.mutable_leads(); }
  void operator()(const Drain& m) const { to.mutable_drain()->set_undo(m.undo); }
  void operator()(const ModelOrder& m) const {
    hosts::ModelOrder& out = *to.mutable_model_order();
    out.set_order(m.order);
    out.set_model(cut(m.model, limits.text));
    out.set_unload(m.unload);
  }
  void operator()(const ModelOrdered& m) const {
    hosts::ModelOrdered& out = *to.mutable_model_ordered();
    out.set_order(m.order);
    if (!m.result) error(m.result.error(), *out.mutable_error(), limits.text);
  }
  void operator()(const Drains& m) const { to.mutable_drains()->set_actions(m.actions); }
  template <typename Out>
  static void batches(const std::vector<ledger::BatchProfile>& from, Out& out) {
    for (const ledger::BatchProfile& each : from) {
      hosts::Batch& batch = *out.add_batches();
      batch.set_batch(each.batch);
      batch.set_exec_ns(each.exec.count());
    }
  }
  void tensor(const graph::TensorSpec& from, hosts::Tensor& out) const {
    out.set_name(cut(from.name, limits.text));
    out.set_type(static_cast<std::uint32_t>(from.type));
    for (const std::int64_t extent : from.shape) out.add_shape(extent);
  }
  void operator()(const ModelComes& m) const {
    hosts::ModelComes& out = *to.mutable_model_comes();
    const ledger::ModelInfo& info = m.model.info;
    out.set_model(info.id.value);
    out.set_name(cut(info.name, limits.text));
    out.set_version(m.model.version);
    out.set_hash(m.model.hash);
    out.set_config(cut(m.model.config, limits.config));
    for (const graph::TensorSpec& each : m.model.inputs) tensor(each, *out.add_inputs());
    for (const graph::TensorSpec& each : m.model.outputs) tensor(each, *out.add_outputs());
    for (const std::int64_t length : m.model.lengths) out.add_lengths(length);
    out.set_pages(info.pages);
    out.set_load_ns(info.load.count());
    batches(info.batches, out);
    for (const Duration solo : info.solos) out.add_solos_ns(solo.count());
    out.set_time_varies(info.time_varies);
    out.set_class_(as_class(info.cls));
    out.set_miss_rate(info.miss_rate);
    if (!info.cost) return;
    out.mutable_cost()->set_c0_ns(info.cost->c0.count());
    out.mutable_cost()->set_c1(info.cost->c1);
  }
  void operator()(const ModelGoes& m) const {
    hosts::ModelGoes& out = *to.mutable_model_goes();
    out.set_model(m.model.value);
    out.set_for_now(m.for_now);
  }
  void operator()(const ModelTimes& m) const {
    to.mutable_model_times()->set_model(m.model.value);
    batches(m.batches, *to.mutable_model_times());
  }
};

// Reads one message. The first thing that is wrong is kept.
class Reader {
 public:
  explicit Reader(const FrameLimits& limits) : limits_(limits) {}

  // None: of a kind that is not known here, or something is wrong.
  std::optional<Message> read(const hosts::Message& from);
  const std::string& wrong() const { return wrong_; }

 private:
  template <typename... Args>
  void says(fmt::format_string<Args...> text, Args&&... args) {
    if (wrong_.empty()) wrong_ = fmt::format(text, std::forward<Args>(args)...);
  }
  template <typename Enum>
  Enum one_of(std::string_view field, std::uint32_t value, Enum last) {
    if (value <= static_cast<std::uint32_t>(last)) return static_cast<Enum>(value);
    says("{}: {} is none of 0 to {}", field, value, static_cast<std::uint32_t>(last));
    return {};
  }
  std::string text(std::string_view field, const std::string& value) {
    if (value.size() > limits_.text)
      says("{}: {} bytes of text, at most {}", field, value.size(), limits_.text);
    return value;
  }
  Duration duration(std::string_view field, std::int64_t ns) {
    if (ns < 0) says("{}: {} ns, at least 0", field, ns);
    return Duration{ns};
  }
  int count(std::string_view field, std::int32_t value) {
    if (value < 0) says("{}: {}, at least 0", field, value);
    return value;
  }
  // Of an earlier version, which tells none: 1.
  Protocols protocols(std::string_view field, std::uint32_t oldest, std::uint32_t newest) {
    if (newest == 0) return {1, 1};
    const Protocols told{oldest, newest};
    if (!told.is_range()) says("{}: protocols {} to {} are no range", field, oldest, newest);
    return told;
  }
  std::size_t rows(int n) {
    if (n == 0) says("rows: none, at least 1");
    if (static_cast<std::size_t>(n) > limits_.rows) says("rows: {}, at most {}", n, limits_.rows);
    return wrong_.empty() ? static_cast<std::size_t>(n) : 0;
  }
  template <typename From>
  std::vector<RequestId> row_list(const From& from) {
    std::vector<RequestId> list;
    list.reserve(rows(from.rows_size()));
    if (wrong_.empty())
      for (const std::uint64_t row : from.rows()) list.push_back(RequestId{row});
    return list;
  }
  Class class_of(hosts::Class cls) {
    switch (cls) {
      case hosts::CLASS_NORMAL:
        return Class::normal;
      case hosts::CLASS_REAL_TIME:
        return Class::real_time;
      case hosts::CLASS_BEST_EFFORT:
        return Class::best_effort;
      default:
        says("class: {} is none of 0 to 2", static_cast<int>(cls));
        return Class::normal;
    }
  }
  static Window window(const hosts::Window& from) {
    return {from.has_earliest() ? time(from.earliest()) : TimePoint::min(),
            from.has_latest() ? time(from.latest()) : TimePoint::max()};
  }
  // None: a trace that is none, or is not sampled.
  template <typename From>
  std::optional<wire::RowTrace> trace(const From& from) {
    if (!from.has_trace()) return std::nullopt;
    const hosts::RowTrace& told = from.trace();
    wire::RowTrace out{.trace = {},
                       .unix_zero = time(told.unix_zero()),
                       .clock_bound = duration("trace.clock_bound_ns", told.clock_bound_ns())};
    const std::span<std::uint8_t> id(out.trace.trace_id);
    set_bytes(told.trace_high(), id.first(8));
    set_bytes(told.trace_low(), id.last(8));
    set_bytes(told.span(), out.trace.span_id);
    out.trace.flags = static_cast<std::uint8_t>(told.flags());
    return out.trace.there() && out.trace.sampled() ? std::optional(out) : std::nullopt;
  }
  RowReference reference(const hosts::RowReference& from) {
    return {RequestId{from.row()}, from.frontend(), from.key(), trace(from)};
  }
  template <typename Order>
  static Order order(const auto& from) {
    Order order;
    order.id = ActionId{from.action()};
    order.device = DeviceId{from.device()};
    return order;
  }
  template <typename Order>
  Order timed(const auto& from) {
    auto timed = order<Order>(from);
    timed.model = ModelId{from.model()};
    timed.window = window(from.window());
    timed.expected = duration("expected_ns", from.expected_ns());
    return timed;
  }
  Error error(const hosts::Error& from) {
    return {one_of("error.code", from.code(), ErrorCode::internal), text("error.message", from.message())};
  }
  wire::Report report(const hosts::Report& from);
  wire::Prospect prospect(const hosts::Prospect& from);
  DeviceState::Left left(const hosts::Left& from);
  wire::Model model(const hosts::ModelComes& from);
  graph::TensorSpec tensor(const hosts::Tensor& from);
  // At least one, ascending, as schedulers expect them.
  template <typename From>
  std::vector<ledger::BatchProfile> batches(const From& from) {
    std::vector<ledger::BatchProfile> out;
    if (from.batches_size() == 0) says("batches: none, at least 1");
    out.reserve(bounded("batches", from.batches_size()));
    for (int i = 0; wrong_.empty() && i < from.batches_size(); ++i) {
      out.push_back({from.batches(i).batch(), duration("batches.exec_ns", from.batches(i).exec_ns())});
      if (const int least = i == 0 ? 1 : out[out.size() - 2].batch + 1; out.back().batch < least)
        says("batches: {}, at least {}", out.back().batch, least);
    }
    return out;
  }
  std::size_t bounded(std::string_view field, int n) {
    if (static_cast<std::size_t>(n) > limits_.rows) says("{}: {}, at most {}", field, n, limits_.rows);
    return wrong_.empty() ? static_cast<std::size_t>(n) : 0;
  }

  const FrameLimits& limits_;
  std::string wrong_;
};

wire::Report Reader::report(const hosts::Report& from) {
  auto report = order<wire::Report>(from);
  report.life = from.life();
  report.status = one_of("status", from.status(), ledger::ActionStatus::stopped);
  wire::ActionTimes& t = report.times;
  const std::array<TimePoint*, 6> later{&t.input_start, &t.input_end,    &t.exec_start,
                                        &t.exec_end,    &t.output_start, &t.output_end};
  t.received = time(from.received());
  if (from.later_ns_size() != static_cast<int>(later.size()))
    says("later_ns: {} times, not {}", from.later_ns_size(), later.size());
  TimePoint at = t.received;
  for (std::size_t i = 0; wrong_.empty() && i < later.size(); ++i)
    *later[i] = at = saturating_add(at, Duration{from.later_ns(static_cast<int>(i))});
  t.paused = duration("paused_ns", from.paused_ns());
  t.preemptions = count("preemptions", from.preemptions());
  t.lost = duration("lost_ns", from.lost_ns());
  t.padded = duration("padded_ns", from.padded_ns());
  t.threads = count("threads", from.threads());
  t.preempts = from.preempts();
  report.error = text("error", from.error());
  report.device_lost = from.device_lost();
  report.odd_time = from.odd_time();
  report.delivers = from.delivers();
  if (static_cast<std::size_t>(from.bad_rows_size()) > limits_.rows)
    says("bad_rows: {}, at most {}", from.bad_rows_size(), limits_.rows);
  for (int i = 0; wrong_.empty() && i < from.bad_rows_size(); ++i)
    report.bad_rows.push_back(
        {count("bad_rows.row", from.bad_rows(i).row()), error(from.bad_rows(i).error())});
  return report;
}

wire::Prospect Reader::prospect(const hosts::Prospect& from) {
  wire::Prospect prospect{.exec = duration("prospect.exec_ns", from.exec_ns()),
                          .batch = count("prospect.batch", from.batch()),
                          .devices = from.devices(),
                          .holding = from.holding(),
                          .loading = from.loading(),
                          .holds = from.holds(),
                          .runs = from.runs(),
                          .busy = duration("prospect.busy_ns", from.busy_ns())};
  if (from.has_device()) prospect.device = DeviceId{from.device()};
  return prospect;
}

DeviceState::Left Reader::left(const hosts::Left& from) {
  DeviceState::Left left;
  left.held.reserve(bounded("left.held", from.held_size()));
  for (int i = 0; wrong_.empty() && i < from.held_size(); ++i) left.held.push_back(ModelId{from.held(i)});
  left.runs.reserve(bounded("left.runs", from.runs_size()));
  for (int i = 0; wrong_.empty() && i < from.runs_size(); ++i) {
    const hosts::EarlierRun& run = from.runs(i);
    left.runs.push_back({.model = ModelId{run.model()},
                         .cls = class_of(run.class_()),
                         .rows = run.rows(),
                         .took = duration("left.took_ns", run.took_ns()),
                         .expected = duration("left.expected_ns", run.expected_ns()),
                         .ago = duration("left.ago_ns", run.ago_ns())});
  }
  return left;
}

graph::TensorSpec Reader::tensor(const hosts::Tensor& from) {
  graph::TensorSpec spec{.name = text("tensor.name", from.name()),
                         .type = one_of("tensor.type", from.type(), graph::DataType::string),
                         .shape = {}};
  spec.shape.reserve(bounded("tensor.shape", from.shape_size()));
  for (int i = 0; wrong_.empty() && i < from.shape_size(); ++i) {
    const std::int64_t extent = from.shape(i);
    if (extent < 0 && extent != graph::batch_dimension && extent != graph::length_dimension)
      says("tensor.shape: extent {}, at least 0, or -1 or -2", extent);
    spec.shape.push_back(extent);
  }
  return spec;
}

wire::Model Reader::model(const hosts::ModelComes& from) {
  wire::Model model{.info = {.id = ModelId{from.model()},
                             .name = text("model.name", from.name()),
                             .pages = from.pages(),
                             .load = duration("model.load_ns", from.load_ns()),
                             .batches = batches(from),
                             .time_varies = from.time_varies(),
                             .cls = class_of(from.class_()),
                             .miss_rate = from.miss_rate()},
                    .version = from.version(),
                    .hash = from.hash(),
                    .config = from.config(),
                    .inputs = {},
                    .outputs = {},
                    .lengths = {}};
  if (model.info.name.empty()) says("model.name: empty");
  if (model.version < 1) says("model.version: {}, at least 1", model.version);
  if (!(from.miss_rate() >= 0 && from.miss_rate() <= 0.5))
    says("model.miss_rate: {}, from 0 to 0.5", from.miss_rate());
  if (from.config().size() > limits_.config)
    says("model.config: {} bytes, at most {}", from.config().size(), limits_.config);
  model.inputs.reserve(bounded("model.inputs", from.inputs_size()));
  for (int i = 0; wrong_.empty() && i < from.inputs_size(); ++i)
    model.inputs.push_back(tensor(from.inputs(i)));
  model.outputs.reserve(bounded("model.outputs", from.outputs_size()));
  for (int i = 0; wrong_.empty() && i < from.outputs_size(); ++i)
    model.outputs.push_back(tensor(from.outputs(i)));
  model.lengths.reserve(bounded("model.lengths", from.lengths_size()));
  for (int i = 0; wrong_.empty() && i < from.lengths_size(); ++i) {
    const std::int64_t least = i == 0 ? 1 : model.lengths.back() + 1;
    if (from.lengths(i) < least) says("model.lengths: {}, at least {}", from.lengths(i), least);
    model.lengths.push_back(from.lengths(i));
  }
  model.info.solos.reserve(bounded("model.solos_ns", from.solos_ns_size()));
  for (int i = 0; wrong_.empty() && i < from.solos_ns_size(); ++i) {
    if (from.solos_ns(i) <= 0) says("model.solos_ns: {}, above 0", from.solos_ns(i));
    model.info.solos.emplace_back(from.solos_ns(i));
  }
  if (from.has_cost()) {
    model.info.cost = {duration("model.cost.c0_ns", from.cost().c0_ns()), from.cost().c1()};
    if (!(model.info.cost->c1 >= 0 && model.info.cost->c1 <= 1e6))
      says("model.cost.c1: {}, 0 to 1e6", model.info.cost->c1);
  }
  return model;
}

std::optional<Message> Reader::read(const hosts::Message& from) {
  std::optional<Message> message;
  switch (from.what_case()) {
    case hosts::Message::kApplication: {
      const hosts::Application& m = from.application();
      Application app{.app = AppId{m.app()}, .name = text("application.name", m.name())};
      if (m.has_model()) app.alike = {ModelId{m.model()}, m.length()};
      message = std::move(app);
      break;
    }
    case hosts::Message::kOffer: {
      const hosts::Offer& m = from.offer();
      message = Offer{.row = {.id = RequestId{m.row()},
                              .model = ModelId{m.model()},
                              .app = AppId{m.app()},
                              .cls = class_of(m.class_()),
                              .priority = m.priority(),
                              .arrival = time(m.arrival()),
                              .deadline = m.has_deadline() ? time(m.deadline()) : TimePoint::max(),
                              .effort = {m.operations(), m.bytes()}},
                      .more = m.more(),
                      .key = m.key(),
                      .tensor_bytes = m.tensor_bytes(),
                      .trace = trace(m)};
      break;
    }
    case hosts::Message::kWithdraw:
      message = Withdraw{RequestId{from.withdraw().row()}, ModelId{from.withdraw().model()}};
      break;
    case hosts::Message::kSent:
      message = Sent{row_list(from.sent()), DeviceId{from.sent().device()}};
      break;
    case hosts::Message::kCameBack:
      message = CameBack{row_list(from.came_back())};
      break;
    case hosts::Message::kEnded:
      message = Ended{row_list(from.ended()), report(from.ended().report())};
      break;
    case hosts::Message::kTurnedDown:
      message = TurnedDown{RequestId{from.turned_down().row()}, error(from.turned_down().error())};
      break;
    case hosts::Message::kLost:
      message = Lost{row_list(from.lost()), text("lost.why", from.lost().why())};
      break;
    case hosts::Message::kRefused: {
      const hosts::Refused& m = from.refused();
      message = wire::Verdict{{RequestId{m.row()}, one_of("refused.reason", m.reason(), ledger::last_reason),
                               m.has_would_finish() ? time(m.would_finish()) : TimePoint::max()},
                              prospect(m.prospect())};
      break;
    }
    case hosts::Message::kKeep:
      message = Keep{row_list(from.keep())};
      break;
    case hosts::Message::kForget:
      message = Forget{row_list(from.forget())};
      break;
    case hosts::Message::kLoad:
      message = timed<ledger::Load>(from.load());
      break;
    case hosts::Message::kUnload: {
      auto unload = order<ledger::Unload>(from.unload());
      unload.model = ModelId{from.unload().model()};
      message = unload;
      break;
    }
    case hosts::Message::kInfer: {
      const hosts::Infer& m = from.infer();
      Infer infer{.order = timed<ledger::Infer>(m), .rows = {}};
      infer.order.cls = class_of(m.class_());
      infer.rows.reserve(rows(m.rows_size()));
      for (int i = 0; wrong_.empty() && i < m.rows_size(); ++i) {
        infer.rows.push_back(reference(m.rows(i)));
        infer.order.requests.push_back(infer.rows.back().row);
      }
      message = std::move(infer);
      break;
    }
    case hosts::Message::kProfile: {
      Profile profile{.order = timed<ledger::Profile>(from.profile()),
                      .row = reference(from.profile().row())};
      profile.order.request = profile.row.row;
      message = profile;
      break;
    }
    case hosts::Message::kStop:
      message = order<ledger::Stop>(from.stop());
      break;
    case hosts::Message::kPreempt: {
      auto preempt = order<ledger::Preempt>(from.preempt());
      preempt.order = time(from.preempt().order());
      message = preempt;
      break;
    }
    case hosts::Message::kRetire:
      message = Retire{DeviceId{from.retire().device()}, from.retire().life()};
      break;
    case hosts::Message::kProbe:
      message = Probe{DeviceId{from.probe().device()}};
      break;
    case hosts::Message::kAdopt:
      message = Adopt{DeviceId{from.adopt().device()}, from.adopt().life()};
      break;
    case hosts::Message::kReport:
      message = report(from.report());
      break;
    case hosts::Message::kProbeReport: {
      const hosts::ProbeReport& m = from.probe_report();
      wire::ProbeReport probed{.found = {}, .life = m.life(), .device = DeviceId{m.device()}};
      if (m.has_error()) probed.found = std::unexpected(error(m.error()));
      message = std::move(probed);
      break;
    }
    case hosts::Message::kDeviceState: {
      const hosts::DeviceState& m = from.device_state();
      DeviceState state{.device = DeviceId{m.device()},
                        .pages = m.pages(),
                        .best_effort = count("device_state.best_effort", m.best_effort()),
                        .credit = {m.infers(), m.loads()}};
      if (m.has_left()) state.left = left(m.left());
      if (m.has_order()) state.order = m.order();
      message = std::move(state);
      break;
    }
    case hosts::Message::kSlowness: {
      const hosts::Slowness& m = from.slowness();
      message = ledger::Excuse{.device = DeviceId{m.device()},
                               .lane = one_of("slowness.lane", m.lane(), ledger::Lane::best_effort),
                               .starved = duration("slowness.starved_ns", m.starved_ns()),
                               .moved = m.moved()};
      break;
    }
    case hosts::Message::kDelivered:
      message = Delivered{ActionId{from.delivered().action()},
                          duration("delivered.took_ns", from.delivered().took_ns())};
      break;
    case hosts::Message::kRowsAt:
      message = RowsAt{text("rows_at.address", from.rows_at().address())};
      break;
    case hosts::Message::kDeviceCount:
      message = DeviceCount{from.device_count().alive(), from.device_count().known()};
      break;
    case hosts::Message::kOfferCredit:
      message = OfferCredit{from.offer_credit().taken(), from.offer_credit().most()};
      break;
    case hosts::Message::kFrontendAt: {
      const hosts::FrontendAt& m = from.frontend_at();
      message = FrontendAt{m.frontend(), text("frontend_at.address", m.address()),
                           protocols("frontend_at", m.oldest_protocol(), m.newest_protocol())};
      break;
    }
    case hosts::Message::kLeads:
      message = Leads{};
      break;
    case hosts::Message::kDrain:
      message = Drain{from.drain().undo()};
      break;
    case hosts::Message::kDrains:
      message = Drains{from.drains().actions()};
      break;
    case hosts::Message::kModelOrder: {
      const hosts::ModelOrder& m = from.model_order();
      message = ModelOrder{m.order(), text("model_order.model", m.model()), m.unload()};
      break;
    }
    case hosts::Message::kModelOrdered: {
      const hosts::ModelOrdered& m = from.model_ordered();
      ModelOrdered ordered{.order = m.order()};
      if (m.has_error()) ordered.result = std::unexpected(error(m.error()));
      message = std::move(ordered);
      break;
    }
    case hosts::Message::kModelComes:
      message = ModelComes{model(from.model_comes())};
      break;
    case hosts::Message::kModelGoes:
      message = ModelGoes{ModelId{from.model_goes().model()}, from.model_goes().for_now()};
      break;
    case hosts::Message::kModelTimes:
      message = ModelTimes{ModelId{from.model_times().model()}, batches(from.model_times())};
      break;
    case hosts::Message::WHAT_NOT_SET:
      break;
  }
  if (!wrong_.empty()) message.reset();
  return message;
}

Result<Hello> read_hello(const hosts::Hello& from, std::uint32_t protocol) {
  if (!cluster::is_name(from.cluster()))
    return invalid(fmt::format("hello: the cluster's name is not {}", cluster::name_rule));
  if (!cluster::is_name(from.id()))
    return invalid(fmt::format("hello: the host's id is not {}", cluster::name_rule));
  Hello hello{.cluster = from.cluster(),
              .id = from.id(),
              .incarnation = from.incarnation(),
              .protocols = {protocol, protocol},
              .build = from.build()};
  if (from.newest_protocol() > 0) hello.protocols = {from.oldest_protocol(), from.newest_protocol()};
  if (!hello.protocols.is_range())
    return invalid(fmt::format("hello: protocols {} to {} are no range", hello.protocols.oldest,
                               hello.protocols.newest));
  if (!cluster::is_build(hello.build))
    return invalid(
        fmt::format("hello: the build is not up to {} printable characters", cluster::longest_build));
  switch (from.role()) {
    case hosts::ROLE_FRONTEND:
      hello.role = Role::frontend;
      return hello;
    case hosts::ROLE_SCHEDULER:
      hello.role = Role::scheduler;
      return hello;
    case hosts::ROLE_WORKER:
      hello.role = Role::worker;
      return hello;
    default:
      return invalid(fmt::format("hello: role {} is none of 1 to 3", static_cast<int>(from.role())));
  }
}

}  // namespace

Encoder::Encoder(const FrameLimits& limits)
    : limits_(limits), head_(std::make_unique<hosts::Frame>()), one_(std::make_unique<hosts::Frame>()) {}
Encoder::~Encoder() = default;

void Encoder::begin(std::uint32_t protocol, std::uint64_t epoch, const std::optional<Hello>& hello,
                    std::string& out) {
  head_->Clear();
  head_->set_protocol(protocol);
  head_->set_epoch(epoch);
  if (hello) {
    hosts::Hello& to = *head_->mutable_hello();
    to.set_cluster(hello->cluster);
    to.set_id(hello->id);
    to.set_role(as_role(hello->role));
    to.set_incarnation(hello->incarnation);
    // Without them the frame's own number is all that the speaker speaks.
    if (hello->protocols != Protocols{protocol, protocol}) {
      to.set_oldest_protocol(hello->protocols.oldest);
      to.set_newest_protocol(hello->protocols.newest);
    }
    to.set_build(hello->build);
  }
  head_->AppendToString(&out);
}

// Frames one after the other are one frame with the messages of all: protobuf reads them as merged.
void Encoder::add(const Message& message, std::string& out) {
  one_->Clear();
  std::visit(Writer{*one_->add_messages(), limits_}, message);
  one_->AppendToString(&out);
}

void encode(const Frame& frame, std::string& out, const FrameLimits& limits) {
  Encoder encoder(limits);
  encoder.begin(frame.protocol, frame.epoch, frame.hello, out);
  for (const Message& message : frame.messages) encoder.add(message, out);
}

Result<Frame> decode(std::string_view bytes, const FrameLimits& limits, const Protocols& speaks) {
  if (bytes.size() > limits.bytes)
    return invalid(fmt::format("a frame of {} bytes, at most {}", bytes.size(), limits.bytes));
  google::protobuf::Arena arena;
  auto& from = *google::protobuf::Arena::CreateMessage<hosts::Frame>(&arena);
  if (!from.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return invalid("not a frame of hosts.proto");
  if (static_cast<std::size_t>(from.messages_size()) > limits.messages)
    return invalid(fmt::format("a frame of {} messages, at most {}", from.messages_size(), limits.messages));
  Frame frame{.epoch = from.epoch(), .protocol = from.protocol()};
  if (from.has_hello()) {
    auto hello = read_hello(from.hello(), from.protocol());
    if (!hello) return std::unexpected(std::move(hello.error()));
    frame.hello = std::move(*hello);
  }
  if (!speaks.has(from.protocol())) {
    if (frame.hello) return frame;
    return invalid(
        fmt::format("a frame of protocol {}, and this member speaks {}", from.protocol(), to_text(speaks)));
  }
  frame.messages.reserve(static_cast<std::size_t>(from.messages_size()));
  for (int i = 0; i < from.messages_size(); ++i) {
    Reader reader(limits);
    auto message = reader.read(from.messages(i));
    if (!reader.wrong().empty()) return invalid(fmt::format("messages[{}]: {}", i, reader.wrong()));
    if (message) frame.messages.push_back(std::move(*message));
  }
  return frame;
}

}  // namespace carillon::transport
