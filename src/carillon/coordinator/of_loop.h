#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "carillon/coordinator/coordinator.h"

namespace carillon::coordinator {

// A coordinator whose functions are those of a client (cluster/coordinator/) that a loop's thread shares. A
// Loop has with_client(use), which calls use(client, now) and then lets its thread look at the client, and
// look(use) const, which calls use(client) alone. Both are safe from any thread.
template <typename Loop>
class OfLoop : public Coordinator {
 public:
  explicit OfLoop(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

  Result<> compare_and_set(std::uint64_t token, std::int64_t revision, const cluster::Epoch& epoch) override {
    return loop_->with_client(
        [&](auto& client, TimePoint now) { return client.compare_and_set(token, revision, epoch, now); });
  }
  Result<> read_epoch(std::uint64_t token) override {
    return loop_->with_client([&](auto& client, TimePoint now) { return client.read_epoch(token, now); });
  }
  void leave() override {
    loop_->with_client([](auto& client, TimePoint now) {
      client.leave(now);
      return true;
    });
  }
  bool up() const override {
    return loop_->look([](const auto& client) { return client.up(); });
  }
  std::map<std::string, cluster::Member> members() const override {
    return loop_->look([](const auto& client) { return client.members(); });
  }
  cluster::EpochRecord epoch() const override {
    return loop_->look([](const auto& client) { return client.epoch(); });
  }

 protected:
  const std::unique_ptr<Loop> loop_;
};

}  // namespace carillon::coordinator
