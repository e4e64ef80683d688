#include "carillon/frontend/access/guard.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <utility>

#include <openssl/crypto.h>

#include "carillon/frontend/access/secret_file.h"

namespace carillon::frontend {
namespace {

constexpr const char* how_to_send_a_key =
    "send it as 'Authorization: Bearer SECRET', or as 'x-api-key: SECRET'";

// The secret behind "Bearer", in any case (RFC 9110, section 11.1); empty: there is none.
std::string_view bearer_of(std::string_view authorization) {
  static constexpr std::string_view scheme = "bearer ";
  if (authorization.size() <= scheme.size()) return {};
  for (std::size_t i = 0; i < scheme.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != scheme[i]) return {};
  const auto first = authorization.find_first_not_of(' ', scheme.size());
  return first == std::string_view::npos ? std::string_view() : authorization.substr(first);
}

bool has_role(const Key& key, Need need) {
  switch (need) {
    case Need::nothing:
      return true;
    case Need::reading:
    case Need::requests:
      return key.infer || key.admin;
    case Need::infer:
      return key.infer;
    case Need::admin:
      return key.admin;
    case Need::metrics:
      return key.metrics;
  }
  return false;
}

std::string role_text(Need need) {
  switch (need) {
    case Need::nothing:
      break;
    case Need::reading:
    case Need::requests:
      return "'infer' or 'admin'";
    case Need::infer:
      return "'infer'";
    case Need::admin:
      return "'admin'";
    case Need::metrics:
      return "'metrics'";
  }
  return "no role";
}

std::unexpected<Denial> denied(Denial::Kind kind, std::string message, Duration wait = Duration{0}) {
  return std::unexpected(Denial{kind, std::move(message), wait});
}

}  // namespace

std::optional<Duration> TokenBucket::take(TimePoint now) {
  if (rate_ <= 0) return std::nullopt;
  if (last_ && now > *last_)
    tokens_ = std::min(burst_, tokens_ + std::chrono::duration<double>(now - *last_).count() * rate_);
  if (!last_ || now > *last_) last_ = now;
  if (tokens_ >= 1) {
    tokens_ -= 1;
    return std::nullopt;
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>((1 - tokens_) / rate_)) + 1us;
}

Caller::Caller(Key of)
    : key(std::move(of)),
      bytes(key.bytes > 0 ? std::make_shared<ByteBudget>(key.bytes, key.bytes) : nullptr),
      bucket_(key.rate, key.burst) {}

std::optional<Duration> Caller::take_token(TimePoint now) {
  if (key.rate <= 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return bucket_.take(now);
}

Result<std::shared_ptr<Guard>> Guard::open(GuardOptions options) {
  auto guard = std::make_shared<Guard>();
  guard->options_ = std::move(options);
  if (auto read = guard->reload(); !read) return std::unexpected(std::move(read.error()));
  return guard;
}

Result<> Guard::reload() {
  if (!needs_keys()) return {};
  const auto text = read_secret_file(options_.keys, "--keys", true, options_.log);
  if (!text) return std::unexpected(text.error());
  auto keys = parse_keys(*text, "--keys " + options_.keys);
  if (!keys) return std::unexpected(std::move(keys.error()));
  auto now = std::make_shared<Callers>();
  const auto before = callers();
  for (const Key& key : *keys) {
    const auto same = std::ranges::find_if(*before, [&](const auto& caller) { return caller->key == key; });
    now->push_back(same != before->end() ? *same : std::make_shared<Caller>(key));
  }
  const std::lock_guard lock(mutex_);
  callers_ = std::move(now);
  return {};
}

std::shared_ptr<const Guard::Callers> Guard::callers() const {
  const std::lock_guard lock(mutex_);
  return callers_;
}

// All keys are looked at, each in constant time: how long it takes tells nothing of which was nearly right.
std::shared_ptr<Caller> Guard::find(std::string_view secret) const {
  const SecretDigest digest = digest_of(secret);
  const auto all = callers();
  const std::shared_ptr<Caller>* found = nullptr;
  for (const auto& caller : *all)
    if (CRYPTO_memcmp(caller->key.digest.data(), digest.data(), digest.size()) == 0) found = &caller;
  return found != nullptr ? *found : nullptr;
}

Guard::Admitted Guard::identify(const Credentials& credentials, Need need) const {
  if (!needs_keys()) return nullptr;
  if (credentials.ambiguous)
    return denied(Denial::Kind::unknown,
                  std::string("the request has several keys; ") + how_to_send_a_key + ", once");
  std::string_view secret = bearer_of(credentials.authorization);
  if (secret.empty()) secret = credentials.api_key;
  if (secret.empty())
    return denied(Denial::Kind::unknown, std::string("this server wants a key; ") + how_to_send_a_key);
  std::shared_ptr<Caller> caller = secret.size() <= longest_secret ? find(secret) : nullptr;
  if (!caller) return denied(Denial::Kind::unknown, "this server does not know the key");
  if (!has_role(caller->key, need))
    return denied(
        Denial::Kind::forbidden,
        "key '" + caller->key.name + "' may not do this: it would need the role " + role_text(need));
  return caller;
}

Guard::Admitted Guard::known(const Credentials& credentials) const {
  return identify(credentials, Need::infer);
}

Guard::Admitted Guard::admit(const Credentials& credentials, Need need, std::string_view model, TimePoint now,
                             bool at_admin_door) const {
  if (need == Need::nothing) return nullptr;
  auto caller = identify(credentials, need);
  if (!caller) return caller;
  if (*caller)
    if (const auto wait = (*caller)->take_token(now))
      return denied(Denial::Kind::too_many,
                    "key '" + (*caller)->key.name + "' makes more requests than its rate allows", *wait);
  if ((need == Need::admin || need == Need::requests) && !options_.admin_at.empty() && !at_admin_door)
    return denied(
        Denial::Kind::forbidden,
        "administrative requests are not served here, but over HTTP at the admin port, " + options_.admin_at);
  if (!model.empty())
    if (auto wrong = check_model(caller->get(), model)) return std::unexpected(std::move(*wrong));
  return caller;
}

std::optional<Denial> Guard::check_model(const Caller* caller, std::string_view model) {
  if (may_use(caller, model)) return std::nullopt;
  return Denial{Denial::Kind::forbidden, "key '" + caller->key.name + "' may not use a model of the name '" +
                                             std::string(model.substr(0, 128)) + "'"};
}

}  // namespace carillon::frontend
