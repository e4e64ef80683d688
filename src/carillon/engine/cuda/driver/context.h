#pragma once

#include "carillon/engine/cuda/driver/driver.h"

namespace carillon::engine::cuda {

// A context that is current on this thread, for as long as this lives.
class InContext {
 public:
  InContext(const Driver& driver, Context context) : driver_(driver) { (void)driver_.context_push(context); }
  ~InContext() {
    Context popped = nullptr;
    (void)driver_.context_pop(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const Driver& driver_;
};

// A hold on a device's primary context, which stays for as long as this lives.
class RetainedContext {
 public:
  RetainedContext(const Driver& driver, DeviceNumber device)
      : driver_(driver), device_(device), status_(driver.context_retain(&context_, device)) {}
  ~RetainedContext() {
    if (status_ == done) (void)driver_.context_release(device_);
  }
  RetainedContext(const RetainedContext&) = delete;
  RetainedContext& operator=(const RetainedContext&) = delete;
  Status status() const { return status_; }  // done, or why there is none
  Context context() const { return context_; }

 private:
  const Driver& driver_;
  DeviceNumber device_;
  Context context_ = nullptr;
  Status status_;
};

// A device's primary context, retained and current on this thread, for as long as this lives.
class InPrimaryContext {
 public:
  InPrimaryContext(const Driver& driver, DeviceNumber device) : driver_(driver), device_(device) {
    status_ = driver.context_retain(&context_, device);
    if (status_ == done) status_ = driver.context_push(context_);
  }
  ~InPrimaryContext() {
    Context popped = nullptr;
    if (status_ == done) (void)driver_.context_pop(&popped);
    if (context_ != nullptr) (void)driver_.context_release(device_);
  }
  InPrimaryContext(const InPrimaryContext&) = delete;
  InPrimaryContext& operator=(const InPrimaryContext&) = delete;
  Status status() const { return status_; }  // done, or why it is not

 private:
  const Driver& driver_;
  DeviceNumber device_;
  Context context_ = nullptr;
  Status status_;
};

}  // namespace carillon::engine::cuda
