#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"
#include "carillon/engine/cuda/memory/scratch.h"
#include "carillon/engine/cuda/plan/device.h"
#include "carillon/engine/cuda/stream/splits.h"
#include "carillon/engine/engine.h"
#include "carillon/workload/request.h"

namespace carillon::engine::cuda {

// What a stream of EXEC is on the device: CUDA streams of one priority, one in each part of the device that
// its runs use. It may have two words more, by which what runs is told to end soon, and tells how far it
// came:
//
//  - the flag, in the device's memory: kernels of ours look at it before each of their tiles;
//  - the mark, in the host's: the end of each segment writes how many have run, where the flag is not set. So
//  what it says has run to its end, whoever saw the flag when.
//
// Used by one thread at a time, with the device's context current.
class Lane final : public Team {
 public:
  // `ends_early`: with those words.
  static Result<std::unique_ptr<Lane>> make(std::shared_ptr<const Device> device, Class cls, bool ends_early);
  ~Lane() override;
  int width() const override { return 1; }
  Class cls() const { return cls_; }

  // Made when it is first asked for.
  Result<Stream> stream(const Part& part = {});

  bool ends_early() const { return flag_ != nullptr; }
  Address flag() const { return flag_ == nullptr ? 0 : flag_->at(); }
  Address mark() const { return mark_address_; }

  // Nothing of the lane is under way: the flag is taken back, before whatever comes next in `stream`, and the
  // mark says `marked`.
  Result<> begin(Stream stream, std::uint32_t marked);
  // Sets the flag, beside what runs.
  Result<> end_early();
  // Nothing of the lane is under way.
  std::uint32_t marked() const { return *static_cast<const volatile std::uint32_t*>(mark_); }

 private:
  Lane(std::shared_ptr<const Device> device, Class cls);
  Result<> make_words();
  Result<> write_flag(Stream stream, Event after, std::uint32_t value, Event tell);
  int priority() const;

  std::shared_ptr<const Device> device_;
  Class cls_;
  std::map<Part, Stream> streams_;
  std::unique_ptr<Scratch> flag_;
  std::uint32_t* mark_ = nullptr;
  Address mark_address_ = 0;
  Stream control_ = nullptr;  // sets the flag
  Event set_ = nullptr, reset_ = nullptr;
  bool dirty_ = false;  // the flag was set, and not taken back
};

}  // namespace carillon::engine::cuda
