#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "carillon/base/bytes.h"
#include "carillon/base/clock.h"
#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/share/broker.h"

namespace CLI {
class App;
}

// `serve --train`: training jobs have the CPU while requests leave it free.
namespace carillon::cli {

struct TrainArguments {
  std::string socket;  // empty: nobody trains here
  std::string memory;
  std::string policy = "fair";
  double rest_ms = 0;
  double freeze_ms = 1;
};
void add_train_options(CLI::App& command, TrainArguments& arguments);

class Training {
 public:
  // What jobs have, out of `page_cache`. Errors: no size, or none that leaves `least` for weights.
  static Result<Bytes> memory_of(const TrainArguments& arguments, Bytes page_cache, Bytes least);

  // Takes jobs when it returns, but lends them nothing before leisure() says so.
  // `clock` outlives it. Errors as of Broker::start().
  static Result<std::unique_ptr<Training>> start(const TrainArguments& arguments, Bytes memory, const Clock& clock);
  ~Training();  // jobs wait for another broker

  // Until when requests cannot want the CPU: the controller's thread.
  void leisure(std::optional<TimePoint> free_until) { broker_->leisure(free_until); }
  std::string metrics() const;  // any thread

 private:
  explicit Training(std::unique_ptr<share::Broker> broker);

  std::unique_ptr<share::Broker> broker_;
  std::thread thread_;
};

}  // namespace carillon::cli
