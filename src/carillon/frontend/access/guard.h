#pragma once

#include <cstddef>
#include <expected>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/frontend/access/keys.h"
#include "carillon/frontend/memory/byte_budget.h"
#include "carillon/frontend/unheeded.h"

namespace carillon::frontend {

// Requests a second, with a burst: `burst` tokens at most, of which `rate` come back each second. Pure.
class TokenBucket {
 public:
  // Full. Rate 0: nothing is ever held back.
  TokenBucket(double rate, double burst) : rate_(rate), burst_(burst), tokens_(burst) {}

  // Takes a token; or says in what time there will be one. Times do not go back.
  std::optional<Duration> take(TimePoint now);

 private:
  double rate_;
  double burst_;
  double tokens_;
  std::optional<TimePoint> last_;
};

// The holder of a key, as long as the key stays as it is. Safe from any thread.
class Caller {
 public:
  explicit Caller(Key key);

  const Key key;
  const std::shared_ptr<ByteBudget> bytes;  // null: no limit of its own

  std::optional<Duration> take_token(TimePoint now);

 private:
  std::mutex mutex_;
  TokenBucket bucket_;
};

// Whether models of this name may be shown to, and used by, `caller`; null is somebody in a server without
// keys.
inline bool may_use(const Caller* caller, std::string_view model) {
  return caller == nullptr || caller->key.may_use(model);
}

// Null where there is nobody.
inline const Key* key_of(const Caller* caller) {
  return caller != nullptr ? &caller->key : nullptr;
}

// What a request is, as far as it matters for who may make it.
enum class Need {
  nothing,  // health: open to all
  reading,  // models' metadata, statistics: infer or admin
  infer,
  requests,  // what is kept of requests: infer (its own) or admin, where administrative ones are served
  admin,     // changes what others see
  metrics,
};

// What a request brought: the header or metadata `authorization` ("Bearer SECRET"), and `x-api-key`.
struct Credentials {
  std::string_view authorization;
  std::string_view api_key;
  bool ambiguous = false;  // one of them came twice
};

struct Denial {
  enum class Kind {
    unknown,    // HTTP 401, UNAUTHENTICATED
    forbidden,  // HTTP 403, PERMISSION_DENIED
    too_many,   // HTTP 429, RESOURCE_EXHAUSTED
  };
  Kind kind = Kind::unknown;
  std::string message;
  Duration wait{0};  // of too_many: until another may come
};

struct GuardOptions {
  std::string keys;      // a file; empty: nobody needs a key
  std::string admin_at;  // where alone administrative requests are served; empty: at every door
  Log log;
};

// Who may do what, at all doors of a server. Keys may be read anew while it serves: those that stay as they
// were keep what they have in flight and what they have used of their rate. Safe from any thread.
class Guard {
 public:
  using Admitted = std::expected<std::shared_ptr<Caller>, Denial>;

  Guard() = default;  // lets everybody do everything
  // Errors name the option (--keys), the file and what is wrong with it.
  static Result<std::shared_ptr<Guard>> open(GuardOptions options);

  // Reads the keys again. Errors as open()'s: everything stays as it was.
  Result<> reload();

  bool needs_keys() const { return !options_.keys.empty(); }
  // Whether there is anything to ask admit() for.
  bool idle() const { return !needs_keys() && options_.admin_at.empty(); }

  // Whose a request is, where it may be made; null where nobody needs a key. `model`: empty for none, or not
  // known yet (then check_model() comes later). Takes of the key's rate. The error tells nothing of what
  // models there are.
  Admitted admit(const Credentials& credentials, Need need, std::string_view model, TimePoint now,
                 bool at_admin_door) const;
  // Whose key it is, as admit() says, where it may infer; takes nothing of its rate.
  Admitted known(const Credentials& credentials) const;
  // Whether `caller` (may be null) may use `model`, be there one or not.
  static std::optional<Denial> check_model(const Caller* caller, std::string_view model);

 private:
  using Callers = std::vector<std::shared_ptr<Caller>>;

  Admitted identify(const Credentials& credentials, Need need) const;
  std::shared_ptr<Caller> find(std::string_view secret) const;
  std::shared_ptr<const Callers> callers() const;

  GuardOptions options_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Callers> callers_ = std::make_shared<const Callers>();
};

}  // namespace carillon::frontend
