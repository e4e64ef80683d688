#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/ledger/id_ring.h"
#include "carillon/schedule/parts/line.h"
#include "carillon/workload/request.h"

namespace carillon::schedule::parts {

// Requests that wait, in a line for each model and class, by deadline and then by id. A batch takes from one
// line. O(log n) but where said. Not thread-safe.
class Waiting {
 public:
  // The most urgent request of a line. Heads ascend by class, deadline, id.
  struct Head {
    Class cls{};
    TimePoint deadline;
    RequestId id;
    ModelId model;
    friend auto operator<=>(const Head&, const Head&) = default;
  };

  using Line = parts::Line;
  // `ordered`: heads() is asked.
  explicit Waiting(bool ordered = true) : ordered_(ordered) {}

  // Lines have dense numbers: of a model and a class, and back.
  static std::size_t line_of(ModelId model, Class cls) {
    return all_classes.size() * model.index() + static_cast<std::size_t>(cls);
  }
  static std::pair<ModelId, Class> of_line(std::size_t line) {
    return {ModelId{static_cast<std::uint32_t>(line / all_classes.size())},
            all_classes[line % all_classes.size()]};
  }

  // Such a model may have requests from now on.
  void know(ModelId model) {
    if (model.index() * all_classes.size() >= lines_.size())
      lines_.resize(all_classes.size() * (model.index() + 1));
  }
  // What is planned by the name `as` (Kinds) is of that model: what is asked of a whole model counts it, too.
  void know(ModelId as, ModelId model);
  // No such name is known any more. Nothing waits under them.
  void forget_names() {
    names_.clear();
    owners_.clear();
  }
  // True: the line's head is another now.
  bool put(const Request& request) { return put(request, request.model); }
  // In the line of another name.
  bool put(const Request& request, ModelId as);
  bool has(RequestId id) const { return places_.find(id) != nullptr; }
  // None: it does not wait.
  std::optional<std::size_t> line_of(RequestId id) const {
    const Place* const place = places_.find(id);
    return place == nullptr ? std::nullopt : std::optional(place->line);
  }
  // All that waits in a line waits in that of the other name. O(its requests x log n).
  void move(ModelId from, ModelId to, Class cls);
  // False: it does not wait.
  bool remove(RequestId id);
  // Takes the first `count` of a line's requests whose deadline is `from` or later. There must be that many.
  std::vector<RequestId> take(ModelId model, Class cls, TimePoint from, std::size_t count);

  // Of the lines that have requests, the most urgent first.
  const std::set<Head>& heads() const { return heads_; }
  // One that has requests.
  const Line& line(ModelId model, Class cls) const { return lines_[line_of(model, cls)].line; }
  std::size_t size(ModelId model, Class cls) const {
    const std::size_t at = line_of(model, cls);
    return at < lines_.size() ? lines_[at].line.size() : 0;
  }
  // Of a whole model, under all its names.
  std::size_t size(ModelId model) const;
  // Calls look(line) for each that has requests, by class.
  template <typename Look>
  void visit(ModelId model, Look&& look) const {
    for (const Class cls : all_classes)
      visit_names(model, [&](ModelId as) {
        if (size(as, cls) > 0) look(line(as, cls));
      });
  }
  // All of a model, by class and deadline. O(its requests).
  std::vector<RequestId> all(ModelId model) const;
  // Null where none waits.
  const Head* head(ModelId model, Class cls) const {
    return size(model, cls) > 0 ? &lines_[line_of(model, cls)].head : nullptr;
  }
  // The most urgent of the model.
  const Head* head(ModelId model) const;

 private:
  struct Place {
    std::size_t line = 0;
    TimePoint deadline;
  };
  struct Lined {
    Line line;
    Head head;  // where the line has requests
    bool listed = false;
  };
  bool list(std::size_t at);
  template <typename Look>
  void visit_names(ModelId model, Look&& look) const {
    look(model);
    if (model.index() < names_.size())
      for (const ModelId as : names_[model.index()]) look(as);
  }

  const bool ordered_;
  std::vector<Lined> lines_;
  std::vector<std::vector<ModelId>> names_;     // by model: its further names
  std::vector<std::optional<ModelId>> owners_;  // by name: that model
  std::set<Head> heads_;
  ledger::IdRing<RequestId, Place> places_;
};

}  // namespace carillon::schedule::parts
