#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/index_table.h"
#include "carillon/base/slab.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/holder.h"
#include "carillon/dispatch/decider.h"
#include "carillon/explain/row_spans.h"
#include "carillon/roles/offer_queue.h"
#include "carillon/transport/messages.h"
#include "carillon/transport/rows.h"

namespace carillon::roles {

// What a frontend's decider asks of its process. None may call back.
class OfferingOut {
 public:
  virtual ~OfferingOut() = default;
  // To the leader that was last told by leads().
  virtual void send(transport::Message message) = 0;
  // Tensors of a row that may be pulled from now on; returns the key. Once close() returns, no byte of them
  // is read or written.
  virtual std::uint64_t open(RequestId row, transport::RowTensors tensors) = 0;
  virtual void close(std::uint64_t key) = 0;
  // The cluster serves a model that this process does not know, or not in this form. Decider::come() follows
  // once it does.
  virtual void model_comes(const wire::Model& model) = 0;
  // It does not serve that model any more. Decider::go() follows.
  virtual void model_goes(ModelId id) = 0;
  // Whether a worker has it, as far as is known. Without a worker it is served no more if none comes in time.
  virtual void model_held(ModelId, bool) {}
  // A leader that has a device has told all models that it knew. Again with each leader, and whenever its
  // devices change. Without a device it may know of no model, as its workers are yet to come.
  virtual void models_told() = 0;
  // When this process's Unix time was 0. Asked for rows of sampled requests alone.
  virtual TimePoint unix_zero() { return {}; }
  // The spans of such a row, once it is over.
  virtual void traced(std::shared_ptr<const explain::RowSpans>) {}
  // Nothing more follows at once: what was sent can go.
  virtual void flush() {}
};

// Decides on a frontend's calls by asking the leader of its cluster. Rows are offered to whoever leads, and
// once more to the next leader. Workers pull them, and give back their outputs, by keys.
//
// A row without a leader, or of a model that the leader does not know yet, waits. It is refused when its
// deadline passes. A row that the leader has is refused `word_grace` after its deadline, whatever the policy
// does with late rows, unless the leader has told that a worker has it. So a leader that is not heard keeps
// no client waiting.
//
// A row whose model goes is refused for good (no_model), unless another of that name and version takes the
// model's place: then its client may try again.
//
// Not thread-safe; `now` never goes back. What peers say is not trusted: whatever does not fit is counted as
// a stray, and changes nothing.
class Offering final : public dispatch::Decider {
 public:
  struct Counters {
    std::uint64_t strays = 0;     // messages, or rows of one, that did not fit
    std::uint64_t offered = 0;    // rows, once more ones included
    std::uint64_t reoffered = 0;  // of them: to another leader, or as their outputs did not come
    std::uint64_t late_wins = 0;  // rows whose outputs came of an order that their leader had not told of
  };
  static constexpr std::size_t most_applications = 4096;
  // How long a model is served on that a new leader does not tell of: its worker may be on its way.
  static constexpr Duration model_grace = std::chrono::seconds{10};
  // How long after a row's deadline its outputs, or what the leader says of it, are waited for.
  static constexpr Duration word_grace = std::chrono::milliseconds{50};

  // Both outlive this. `rows_at`: where rows are pulled from.
  Offering(controller::Holder& holder, OfferingOut& out, std::string rows_at);

  // Within controller::Controller::react(). Times of messages are on our clock.
  //
  // A stream to a leader begins, and ends.
  void leads(TimePoint now);
  void leader_left(TimePoint now);
  void heard(transport::Message message, TimePoint now);
  // A worker has given back all outputs of a row, and they are in place. The key is closed.
  void outputs(RequestId row, const wire::Report& report, TimePoint now);
  const Counters& counters() const { return counters_; }
  std::size_t open_rows() const { return rows_.size(); }

  // dispatch::Decider. Devices are the cluster's; none is this process's own.
  void add_device(wire::DeviceLink& link) override;
  void add_model(wire::Model model) override;
  void start(TimePoint) override {}
  void come(wire::Model model, TimePoint now) override;
  void go(ModelId id, TimePoint now) override;
  void change_times(ModelId id, std::vector<ledger::BatchProfile> batches, TimePoint now) override;
  const ledger::ModelInfo& model(ModelId id) const override { return models_[id.index()].model.info; }
  void on_report(const wire::Report&, TimePoint) override {}
  void on_probe(const wire::ProbeReport&, TimePoint) override {}
  TimePoint wake_at() const override;
  void wake(TimePoint now) override;
  void stop() override;
  void flush() override { out_.flush(); }
  bool stopped() const override { return stopped_; }
  std::size_t devices() const override { return alive_; }
  std::size_t devices_alive() const override { return alive_; }
  bool device_alive(DeviceId) const override { return false; }
  bool on_devices(ModelId) const override { return false; }
  std::size_t actions_in_flight() const override { return 0; }
  AppId application(std::string_view name, const std::optional<Alike>& alike, TimePoint now) override;
  void offer(const Request& row, bool more, TimePoint now) override;
  void all_arrived(TimePoint now) override;
  void withdraw(RequestId row, ModelId model) override;
  void hear(TimePoint now) override { tell_lost(now); }

 private:
  struct Row {
    Request request;
    std::uint64_t key = 0;
    std::uint64_t bytes = 0;
    bool queued = false;                            // in queue_
    bool offered = false;                           // to the leader of now
    bool before = false;                            // to any leader
    bool flying = false;                            // the holder was told that it was sent
    bool over = false;                              // it flies, and nobody wants it any more
    TimePoint ends;                                 // as in ends_
    std::shared_ptr<explain::RowSpans> spans = {};  // of a sampled request; else null
  };
  struct Model {
    wire::Model model;
    std::optional<ModelId> theirs;  // the leader's number
  };
  struct Application {
    std::string name;
    std::optional<Alike> alike;
    bool told = false;  // to the leader of now
  };
  using Known = std::tuple<std::string, std::int64_t, std::uint64_t>;  // name, version, hash
  static Known known_as(const wire::Model& model) { return {model.info.name, model.version, model.hash}; }

  void on(transport::Sent& message, TimePoint now);
  void on(transport::CameBack& message, TimePoint now);
  void on(transport::Ended& message, TimePoint now);
  void on(transport::TurnedDown& message, TimePoint now);
  void on(transport::Lost& message, TimePoint now);
  void on(wire::Verdict& message, TimePoint now);
  void on(transport::DeviceCount& message, TimePoint now);
  void on(transport::OfferCredit& message, TimePoint now);
  void on(transport::ModelComes& message, TimePoint now);
  void on(transport::ModelGoes& message, TimePoint now);
  void on(transport::ModelTimes&, TimePoint) {}  // a frontend promises nothing by itself
  void on(transport::Leads&, TimePoint) {}       // whoever has the stream says so by leads()
  void on(transport::Keep&, TimePoint) {}        // no row is run again
  void on(transport::Forget&, TimePoint) {}
  template <typename Other>
  void on(Other&, TimePoint) {  // not for a frontend
    ++counters_.strays;
  }
  Row* find(RequestId id);
  // A row that the holder holds for sent. Null: it is not, and the message that names it is a stray.
  Row* find_flying(RequestId id);
  std::vector<RequestId> rows_of(std::optional<ModelId> model) const;  // ascending
  void erase(RequestId id);
  void forget(ModelId id);
  void over(RequestId id);
  static void decided_anew(Row& row, std::string_view why, TimePoint now);
  void lands(RequestId id, Row& row);
  // Those of them that can be, together, as far as the leader's credit goes. The others wait, or are turned
  // away.
  void offer_to_leader(const std::vector<RequestId>& rows, TimePoint now);
  void offer_waiting(TimePoint now);
  // False: some of them are gone, and their credit is free for rows that wait.
  bool send(const std::vector<RequestId>& offers, TimePoint now);
  void turn_away(RequestId id, bool hurried, TimePoint now);
  // The client may try again later.
  void turn_down(RequestId id, std::string why);
  // Whether the leader serves another model of its name and version.
  bool comes_anew(ModelId model) const;
  void take_back(Row& row, TimePoint now);
  // After a change of what the row waits for.
  void set_end(Row& row);
  void refuse(RequestId id, ledger::Reason reason, TimePoint now);
  void tell_lost(TimePoint now);
  void tell_traced(TimePoint now);

  controller::Holder& holder_;
  OfferingOut& out_;
  const std::string rows_at_;
  std::vector<Model> models_;
  std::map<Known, ModelId> known_;                 // of these, what has not gone
  std::map<std::uint32_t, Known> leaders_models_;  // by the number that the leader of now gave
  std::set<std::uint32_t> away_;                   // of these: no worker has them
  std::vector<Application> applications_;          // by AppId, which begin at 1
  std::map<std::tuple<std::string, std::uint32_t, std::size_t>, AppId> numbers_;
  Slab<Row> slab_;
  IndexTable rows_;                                 // to slab_
  std::set<std::pair<TimePoint, RequestId>> ends_;  // when each is refused; not of those that fly
  OfferQueue queue_;
  std::vector<RequestId> together_;                         // offered with more, until all_arrived()
  std::vector<RequestId> lost_;                             // that fly and were withdrawn
  std::vector<std::shared_ptr<explain::RowSpans>> traced_;  // of rows that are over in this step
  std::uint32_t alive_ = 0;                                 // devices of the cluster
  TimePoint forget_at_ = TimePoint::max();                  // models that no leader told of since
  bool led_ = false;
  bool stopped_ = false;
  Counters counters_;
};

}  // namespace carillon::roles
