#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/schedule/id_map.h"
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

  using Line = std::set<std::pair<TimePoint, RequestId>>;
  // Lines have dense numbers: of a model and a class, and back.
  static std::size_t line_of(ModelId model, Class cls) {
    return all_classes.size() * model.index() + static_cast<std::size_t>(cls);
  }
  static std::pair<ModelId, Class> of_line(std::size_t line) {
    return {ModelId{static_cast<std::uint32_t>(line / all_classes.size())},
            all_classes[line % all_classes.size()]};
  }

  void put(const Request& request);
  bool has(RequestId id) const { return places_.find(id) != nullptr; }
  // False: it does not wait.
  bool remove(RequestId id);
  // Takes the first `count` of a line's requests whose deadline is `from` or later. There must be that many.
  std::vector<RequestId> take(ModelId model, Class cls, TimePoint from, std::size_t count);

  // Of the lines that have requests, the most urgent first.
  const std::set<Head>& heads() const { return heads_; }
  // One that has requests.
  const Line& line(ModelId model, Class cls) const { return lines_[line_of(model, cls)]; }
  std::size_t size(ModelId model, Class cls) const {
    const std::size_t at = line_of(model, cls);
    return at < lines_.size() ? lines_[at].size() : 0;
  }
  std::size_t size(ModelId model) const;
  // All of a model, by class and deadline. O(its requests).
  std::vector<RequestId> all(ModelId model) const;
  // Null where none waits.
  const Head* head(ModelId model, Class cls) const {
    return size(model, cls) > 0 ? &*listed_[line_of(model, cls)] : nullptr;
  }
  // The most urgent of the model.
  const Head* head(ModelId model) const;

 private:
  struct Place {
    ModelId model;
    Class cls{};
    TimePoint deadline;
  };
  void list(ModelId model, Class cls);

  std::vector<Line> lines_;
  std::vector<std::set<Head>::iterator> listed_;  // by line; end(): it has no head
  std::set<Head> heads_;
  IdMap<RequestId, Place> places_;
};

}  // namespace carillon::schedule::parts
