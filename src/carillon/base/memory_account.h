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

// What a model needs: of the memory for models, while it is made or for ever, and of the fixed parts of the
// bound, of which it may have as much as there is.
struct ModelNeed {
  Bytes memory;
  Bytes weights{};
  Bytes workspace{};  // of its smallest run, as are
  Bytes tensors{};    // its inputs and outputs
  // What it takes beside `memory` in a later step, as far as that is known: no reason to refuse it now, but
  // the bound that a refusal names has room for it.
  Bytes later{};
};

// What models may take of a bound of memory beside its fixed parts, and what they take. From any thread.
//
//   auto charge = account->take("resnet50", {.memory = mib(200)});  // before it is tried
//   ... read, compile ...
//   if (auto fits = charge->settle({.plans = mib(12)}); !fits) ...  // the real size
//
// A charge gives its memory back when it ends.
class MemoryAccount : public std::enable_shared_from_this<MemoryAccount> {
 public:
  struct Options {
    Bytes models;       // what they may take together
    std::string bound;  // for errors: "--memory 64MiB"
    // What one model may have of the fixed parts at most; 0: nobody knows, and others look.
    Bytes weights{}, workspace{}, tensors{};
    // The bound with which there would be so much for models, in `memory`, and for one of them; 0: no bound.
    // Empty: nobody knows.
    std::function<Bytes(const ModelNeed& need)> least{};
  };
  // Whether others are asked to give back what they can do without, where there is not enough.
  enum class Reclaims : std::uint8_t { what_it_can, nothing };
  class Charge {
   public:
    Charge(Charge&& other) noexcept;
    Charge& operator=(Charge&&) = delete;
    ~Charge();
    // What is needed while the model is made, as far as that is known now: more or less than before. Error:
    // there is not so much; the charge stays as it was.
    Result<> expect(const ModelNeed& need, Reclaims reclaims = Reclaims::what_it_can);
    // What the model takes, now that it is made. The error is as of take(), and the charge stays.
    // `need` is what it needs of the fixed parts, and its `memory` is not heeded.
    Result<> settle(const ModelMemory& taken, const ModelNeed& need = {},
                    Reclaims reclaims = Reclaims::what_it_can);
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

  // Error (resource_exhausted): "--memory 64MiB is too small for model 'x': at least 97MiB; ...".
  Result<Charge> take(std::string_view model, const ModelNeed& need,
                      Reclaims reclaims = Reclaims::what_it_can);
  // Gives back so much, or as much as it can, of what others do without. Says whether it is worth another
  // try: not where nothing came of it. Called without the account's lock, by one thread at a time.
  using Reclaim = std::function<bool(Bytes needed)>;
  void set_reclaim(Reclaim reclaim);  // waits for a call that is under way

  // The bound has become so much smaller; what models cannot do without stays theirs. 0: it is as it was.
  void shrink_by(Bytes bytes);
  // What models may still take.
  Bytes left() const;

  struct Counts {
    Bytes models;       // what they may take, now
    ModelMemory taken;  // by models that are made
    Bytes loading;      // that is kept for those that are being made
  };
  Counts counts() const;

 private:
  explicit MemoryAccount(Options options) : options_(std::move(options)) {}
  Result<> check(std::string_view model, const ModelNeed& need, Bytes others) const;  // under mutex_
  Bytes all() const { return taken_.sum() + loading_; }                               // likewise
  Bytes may_take() const;                                                             // likewise
  Bytes lacks(Bytes needed) const;                                                    // likewise
  bool reclaim(Bytes needed);

  const Options options_;
  mutable std::mutex mutex_;
  ModelMemory taken_;
  Bytes loading_;
  Bytes shrunk_;
  std::mutex reclaiming_;  // taken before the other
  Reclaim reclaim_;
};

}  // namespace carillon
