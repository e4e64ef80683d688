#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
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
  // True: the line's head is another now.
  bool put(const Request& request);
  bool has(RequestId id) const { return places_.find(id) != nullptr; }
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
  std::size_t size(ModelId model) const;
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

  const bool ordered_;
  std::vector<Lined> lines_;
  std::set<Head> heads_;
  ledger::IdRing<RequestId, Place> places_;
};

}  // namespace carillon::schedule::parts
