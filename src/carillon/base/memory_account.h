#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"

namespace carillon {

// "97MiB": rounded up, as an option takes it.
std::string whole_mib(Bytes size);

// What a model has of the host's memory, beside devices' caches.
struct ModelMemory {
  Bytes plans;      // and what they are made of
  Bytes weights;    // that no store keeps, or that a device copies from
  Bytes processes;  // of other engines

  Bytes sum() const { return plans + weights + processes; }
};

// What models may take of a bound of memory beside its fixed parts, and what they take. From any thread.
//
//   auto charge = account->take("resnet50", {.memory = mib(200)});     // before it is tried: the error names the bound
//   ... read, compile ...
//   if (auto fits = charge->settle({.plans = mib(12)}); !fits) ...  // what it really takes
//
// A charge gives its memory back when it ends.
class MemoryAccount : public std::enable_shared_from_this<MemoryAccount> {
 public:
  struct Options {
    Bytes models;       // what they may take together
    std::string bound;  // for errors: "--memory 64MiB"
    // What the weights of one model may be at most: the caches for them are no part of `models`. 0: any.
    Bytes weights{};
    // The bound that would leave so much for models, and for one model's weights. Empty: nobody knows.
    std::function<Bytes(Bytes models, Bytes weights)> least{};
  };
  // What a model takes while it is made: in all, beside its weights where devices have them, and these.
  struct Need {
    Bytes memory;
    Bytes weights{};
  };
  class Charge {
   public:
    Charge(Charge&& other) noexcept;
    Charge& operator=(Charge&&) = delete;
    ~Charge();
    // What is needed while the model is made, as far as that is known now: more or less than before. Error:
    // there is not so much; the charge stays as it was.
    Result<> expect(const Need& need);
    // What the model takes, now that it is made. The error is as of take(), and the charge stays.
    Result<> settle(const ModelMemory& taken);
    Bytes size() const { return has_.sum() + expected_; }

   private:
    friend class MemoryAccount;
    Charge(std::shared_ptr<MemoryAccount> account, std::string model);
    std::shared_ptr<MemoryAccount> account_;
    std::string model_;
    Bytes expected_;  // under the account's mutex, as is what follows
    ModelMemory has_;
  };

  static std::shared_ptr<MemoryAccount> make(Options options);

  // Error (resource_exhausted): "--memory 64MiB is too small for model 'x': at least 97MiB, ...".
  Result<Charge> take(std::string_view model, const Need& need);

  // The bound has become so much smaller; what models have stays theirs. 0: it is as it was.
  void shrink_by(Bytes bytes);
  // What models may still take.
  Bytes left() const;

  struct Counts {
    Bytes models;   // what they may take, now
    ModelMemory taken;    // by models that are made
    Bytes loading;  // that is kept for those that are being made
  };
  Counts counts() const;

 private:
  explicit MemoryAccount(Options options) : options_(std::move(options)) {}
  Result<> check(std::string_view model, const Need& need, Bytes others) const;             // under mutex_
  Bytes all() const { return taken_.sum() + loading_; }                                     // likewise
  Bytes may_take() const;                                                                   // likewise

  const Options options_;
  mutable std::mutex mutex_;
  ModelMemory taken_;
  Bytes loading_;
  Bytes shrunk_;
};

}  // namespace carillon
