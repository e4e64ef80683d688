#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/index_table.h"
#include "carillon/base/result.h"
#include "carillon/base/slab.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/book.h"
#include "carillon/controller/calls/journal.h"
#include "carillon/controller/calls/kept_rows.h"
#include "carillon/controller/calls/outcomes.h"
#include "carillon/controller/calls/row_lookup.h"
#include "carillon/controller/calls/service.h"
#include "carillon/wire/ends.h"
#include "carillon/worker/row_buffers.h"

namespace carillon::controller {

namespace testing {
struct Audit;  // reads what a core keeps
}

// The size of one row of a tensor: `bytes`, for each unit of its length where it varies.
struct RowSize {
  std::size_t bytes = 0;
  bool varies = false;
  std::size_t at(std::int64_t length) const {
    return varies ? bytes * static_cast<std::size_t>(length) : bytes;
  }
};

// What a holder must know of a model. Sizes are those of one row, in the model's order.
struct HeldModel {
  std::string name;
  ToldModel told;  // its name in the journal is add_model()'s to set
  std::vector<RowSize> input_row_bytes;
  std::vector<RowSize> output_row_bytes;
  std::vector<std::int64_t> lengths;  // of its plans, ascending; empty where nothing varies
  bool open = false;                  // rows are as large as the call's buffers say
  bool tells_sizes = false;           // the scheduler tells its sizes apart (schedule::ModelInfo::sizes)
  bool gone = false;
  std::size_t calls = 0;  // without an answer, or whose buffers live on
};

struct HolderOptions {
  std::optional<Duration> default_deadline;  // for a call without one, of a model without an SLO
  Duration longest_deadline =
      std::chrono::hours{24};      // of a call, from its arrival; a longer one is an error
  std::size_t max_open = 1 << 16;  // rows; a call beyond it is answered `unavailable`
  // Requests that run at different lengths count as of different applications, so that a policy that plans by
  // distributions knows what is known of each. False: by their names alone, as Orloj's paper has it.
  bool by_length = true;
  std::size_t largest_kept_row = 4 << 20;  // bytes; see KeptRows
  // Hears of each call that gather() was given, once the call has its answer and its buffers are free. May be
  // empty. Must not call back.
  std::function<void(ModelId)> on_left = {};
};

// Holds clients' calls with their tensors, offers their rows to a dispatcher, and gives each call its one
// answer.
//
// One call of k rows is k requests to the scheduler, with one deadline. It is answered when all rows are
// done; as soon as one is refused, or has data that the model cannot use, the others are withdrawn and the
// whole is refused. A row of a call that is to be delayed (InferCall::due) is not refused for its time: it is
// offered once more, with the call's own deadline. A device writes into a call's buffers while an INFER of
// one of its rows is under way: a call that is refused or cancelled then is answered at once, but without its
// buffers (InferAnswer::call is null), which live on here until that INFER has ended.
//
// Not thread-safe; `now` never goes back. Handlers must not call back. A call that fails is answered in
// settle(), which comes once the dispatcher has heard of all its rows.
class Holder final : public wire::Calls, public RowLookup {
 public:
  // All must outlive the holder; `journal` may be null.
  Holder(wire::Dispatcher& dispatcher, const HolderOptions& options, Book& book, Journal* journal);

  // In the order of their ids, which are dense. `in_journal`: the device's number there.
  void add_model(HeldModel model);
  void add_device(std::uint32_t in_journal) { devices_.push_back(in_journal); }
  // What comes of it from now on is answered `not_found`. False: it had gone.
  bool go(ModelId id) { return !std::exchange(models_[id.index()].gone, true); }
  const HeldModel& model(ModelId id) const { return models_[id.index()]; }
  void start() { serving_ = true; }

  // Takes a call whose buffers all have the right sizes and whose outputs are sized. `ticket` is not in use.
  void gather(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler on_answer, TimePoint now);
  // Offers the rows of all calls that were gathered.
  void offer(TimePoint now);
  // The client of `ticket` has gone. Any ticket; nothing happens where it is not open.
  void cancel(std::uint64_t ticket, TimePoint now);
  void settle(TimePoint now);
  // Answers all that is open, and all that comes, with `unavailable`. The dispatcher was stopped before.
  void stop(TimePoint now);

  std::size_t open_rows() const { return open_rows_; }        // buffers that live on after an answer included
  std::size_t open_calls() const { return tickets_.size(); }  // without an answer yet
  // Calls of the model without an answer, or whose buffers live on.
  std::size_t calls_of(ModelId id) const { return models_[id.index()].calls; }

  // A row that the dispatcher holds, for whoever gives it to other hosts.
  struct HeldRow {
    worker::RowBuffers buffers;
    // Null: the request is not sampled, or the row is beyond most_traced.
    const TraceContext* trace = nullptr;
  };
  static constexpr std::size_t most_traced = 16;  // rows of a call whose way over hosts is traced, the first
  HeldRow held(RequestId row) const;

  // RowLookup, between sent() and ended().
  worker::RowBuffers buffers(RequestId row) const override { return held(row).buffers; }
  bool run_again(const ledger::Profile& order, worker::InferCommand& command) override {
    return kept_.run(order.request, order.id, order.window, command);
  }

  // wire::Calls.
  std::uint64_t sent(RequestId row, ModelId model, std::uint64_t entry) override;
  void came_back(RequestId row) override;
  void ended(RequestId row, const wire::Report& report, TimePoint now) override;
  void turned_down(RequestId row, const Error& error) override;
  void lost(RequestId row, std::string_view why) override;
  void refused(const wire::Verdict& verdict, TimePoint now) override;
  void keep(RequestId row) override { kept_.want(row); }
  void forget(RequestId row) override { kept_.forget(row); }

 private:
  friend struct testing::Audit;
  enum class Row : std::uint8_t {
    fresh,    // the scheduler has not heard of it
    waiting,  // the scheduler holds it
    flying,   // in an INFER that a device has
    done,     // its outputs are there
    gone      // refused or cancelled
  };
  struct Open {
    std::uint64_t ticket = 0;
    std::unique_ptr<InferCall> call;
    AnswerHandler handler;
    ModelId model;
    AppId app;
    Class cls{};
    TimePoint arrival;
    TimePoint deadline;
    TimePoint due;                      // what the scheduler is told at first: at most `deadline`
    std::vector<std::uint8_t> put_off;  // by row, where `due` is nearer: it was told `deadline` since
    RequestId first;                    // its rows are requests [first, first + rows)
    int rows = 0;
    int done = 0;
    int flying = 0;
    bool closing = false;   // its failure is decided, the answer not yet given
    bool answered = false;  // only its buffers live on
    bool waiting = false;   // counted as such: none of its rows runs
    Outcome outcome = Outcome::failed;
    Error error;
    std::optional<Duration> would_take;
    CallSteps steps;           // of its last action
    std::string worker_error;  // of its last action that ran and failed
    std::vector<Row> state;
    std::vector<const std::byte*> inputs;  // row by row
    std::vector<std::byte*> outputs;
    CallRecord record;  // where there is a journal
    std::optional<Duration> retry_after;
  };
  Request request_of(const Open& open, RequestId id) const;
  AppId application(const InferCall& call, TimePoint now);
  std::optional<std::uint32_t> landed(RequestId row);
  bool put_off(Open& open, const ledger::Refuse& refusal, TimePoint now);
  void weigh(Open& open, const wire::Verdict& verdict, TimePoint now);
  void close(std::uint32_t index, Outcome outcome, explain::Cause cause, Error error);
  void answer_success(std::uint32_t index, TimePoint now);
  void release(std::uint32_t index);
  void left(ModelId id) const {
    if (options_.on_left) options_.on_left(id);
  }
  void count_waiting(Open& open, bool waiting);
  void note_answer(Open& open, Outcome outcome, TimePoint now);
  std::uint64_t number_of(const Open& open) const { return journal_ != nullptr ? open.ticket : 0; }
  static std::size_t place_of(const Open& open, RequestId row) { return row.value - open.first.value; }
  static Row& state_of(Open& open, RequestId row) { return open.state[place_of(open, row)]; }

  wire::Dispatcher& dispatcher_;
  const HolderOptions options_;
  Book& book_;
  Journal* const journal_;
  const Outcomes outcomes_;
  std::vector<HeldModel> models_;
  std::vector<std::uint32_t> devices_;  // by device: its number in the journal
  bool serving_ = false;

  Slab<Open> open_;
  IndexTable tickets_;   // of unanswered calls, to open_
  IndexTable requests_;  // of rows that the scheduler or a device may still name, to open_
  std::size_t open_rows_ = 0;
  KeptRows kept_;
  RequestId next_request_{0};
  std::vector<std::pair<std::uint32_t, Request>> gathered_;  // calls, and the first row of each
  std::vector<std::uint32_t> closing_;
};

}  // namespace carillon::controller
