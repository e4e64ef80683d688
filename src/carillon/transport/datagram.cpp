#include "carillon/transport/datagram.h"

#include <concepts>
#include <cstring>

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "carillon/base/assert.h"
#include "carillon/cluster/coordinator/address.h"

namespace carillon::transport {
namespace {

using Kind = cluster::election::Message::Kind;
constexpr auto last_kind = Kind::handover;

// "CRLN", the protocol, which of the two parts are there, the sender, the parts, the MAC. Numbers are little
// endian.
constexpr std::string_view magic = "CRLN";
enum Parts : std::uint8_t { has_message = 1, has_echo = 2 };

template <std::unsigned_integral Number>
void put(std::string& out, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}
void put(std::string& out, TimePoint time) {
  put(out, static_cast<std::uint64_t>(time.time_since_epoch().count()));
}

// Takes numbers from the front. What is not there is 0, and makes it fail.
class Taker {
 public:
  explicit Taker(std::string_view bytes) : left_(bytes) {}
  template <std::unsigned_integral Number>
  Number number() {
    Number value = 0;
    const std::string_view bytes = text(sizeof(Number));
    for (std::size_t i = 0; i < bytes.size(); ++i)
      value |= static_cast<Number>(static_cast<Number>(static_cast<unsigned char>(bytes[i])) << (8 * i));
    return value;
  }
  TimePoint time() { return TimePoint{Duration{static_cast<std::int64_t>(number<std::uint64_t>())}}; }
  std::string_view text(std::size_t size) {
    failed_ = failed_ || size > left_.size();
    if (failed_) return {};
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  bool whole() const { return !failed_ && left_.empty(); }

 private:
  std::string_view left_;
  bool failed_ = false;
};

using Digest = std::array<unsigned char, EVP_MAX_MD_SIZE>;

}  // namespace

std::optional<cluster::PeerClock::Sample> sample_of(const Datagram& datagram, TimePoint heard) {
  if (!datagram.echo) return std::nullopt;
  return cluster::PeerClock::Sample{.sent = datagram.echo->sent,
                                    .received = datagram.echo->received,
                                    .replied = datagram.sent,
                                    .heard = heard};
}

class MacKey {
 public:
  explicit MacKey(std::string_view key)
      : mac_(EVP_MAC_fetch(nullptr, "HMAC", nullptr)), context_(EVP_MAC_CTX_new(mac_.get())) {
    char digest[] = "SHA256";
    const std::array parameters{OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                OSSL_PARAM_construct_end()};
    // A key of no bytes is one, too, and must not be null.
    const std::string bytes(key);
    const bool done = EVP_MAC_init(context_.get(), reinterpret_cast<const unsigned char*>(bytes.c_str()),
                                   bytes.size(), parameters.data()) == 1;
    CARILLON_ASSERT(done);
  }
  // HMAC-SHA256: its first 32 bytes.
  Digest sign(std::string_view text) {
    Digest digest{};
    std::size_t size = 0;
    const bool done = EVP_MAC_init(context_.get(), nullptr, 0, nullptr) == 1 &&
                      EVP_MAC_update(context_.get(), reinterpret_cast<const unsigned char*>(text.data()),
                                     text.size()) == 1 &&
                      EVP_MAC_final(context_.get(), digest.data(), &size, digest.size()) == 1;
    CARILLON_ASSERT(done);
    return digest;
  }

 private:
  struct Free {
    void operator()(EVP_MAC* mac) const { EVP_MAC_free(mac); }
    void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
  };
  const std::unique_ptr<EVP_MAC, Free> mac_;
  const std::unique_ptr<EVP_MAC_CTX, Free> context_;
};

DatagramCodec::DatagramCodec(std::string cluster, const std::string& key,
                             const std::optional<std::string>& other_key, const cluster::Protocols& speaks)
    : cluster_(std::move(cluster)),
      speaks_(speaks),
      key_(std::make_unique<MacKey>(key)),
      other_key_(other_key ? std::make_unique<MacKey>(*other_key) : nullptr) {}
DatagramCodec::~DatagramCodec() = default;

std::string fingerprint_of(std::string_view cluster, std::string_view key) {
  // What a datagram signs begins otherwise: with the cluster's name and a zero byte.
  const std::string whole = "fingerprint of the key of cluster " + std::string(cluster);
  const auto digest = MacKey(key).sign(whole);
  std::string out;
  for (std::size_t i = 0; i < 8; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

DatagramCodec::Mac DatagramCodec::mac_of(MacKey& key, std::string_view bytes, const Process& to) const {
  // Names have no zero byte, so that the parts cannot be taken for others.
  std::string whole = cluster_;
  whole.push_back('\0');
  whole.append(to.id);
  whole.push_back('\0');
  put(whole, to.incarnation);
  whole.append(bytes);
  const std::lock_guard lock(mutex_);
  const auto digest = key.sign(whole);
  Mac mac{};
  std::memcpy(mac.data(), digest.data(), mac.size());
  return mac;
}

std::string DatagramCodec::encode(const Datagram& datagram, const Process& to) const {
  std::string out(magic);
  put(out, static_cast<std::uint8_t>(datagram.protocol));
  put(out, static_cast<std::uint8_t>((datagram.message ? has_message : 0) | (datagram.echo ? has_echo : 0)));
  put(out, static_cast<std::uint8_t>(datagram.from.size()));
  out.append(datagram.from);
  put(out, datagram.incarnation);
  put(out, datagram.sent);
  if (datagram.message) {
    put(out, static_cast<std::uint8_t>(datagram.message->kind));
    put(out, datagram.message->epoch.value);
    put(out, datagram.message->number);
  }
  if (datagram.echo) {
    put(out, datagram.echo->sent);
    put(out, datagram.echo->received);
  }
  const Mac mac = mac_of(*key_, out, to);
  out.append(reinterpret_cast<const char*>(mac.data()), mac.size());
  return out;
}

Result<Datagram> DatagramCodec::decode(std::string_view bytes, const Process& self) const {
  Mac mac{};
  if (bytes.size() < magic.size() + 1 + mac.size() || bytes.size() > longest_datagram)
    return invalid(fmt::format("a datagram of {} bytes, not {} to {}", bytes.size(),
                               magic.size() + 1 + mac.size(), longest_datagram));
  if (!bytes.starts_with(magic)) return invalid("a datagram of something else than Carillon");
  const auto spoken = static_cast<unsigned char>(bytes[magic.size()]);
  if (!speaks_.has(spoken))
    return invalid(
        fmt::format("a datagram of protocol {}, and this member speaks {}", spoken, to_text(speaks_)));
  std::memcpy(mac.data(), bytes.data() + bytes.size() - mac.size(), mac.size());
  bytes.remove_suffix(mac.size());
  const auto signs = [&](MacKey& key) {
    const Mac right = mac_of(key, bytes, self);
    return CRYPTO_memcmp(mac.data(), right.data(), mac.size()) == 0;
  };
  if (!signs(*key_) && !(other_key_ != nullptr && signs(*other_key_)))
    return invalid("a datagram for another process or cluster, or with another key");
  // Its sender has the key. It may have faults of its own all the same.
  Taker take(bytes.substr(magic.size() + 1));
  const auto parts = take.number<std::uint8_t>();
  Datagram datagram{.from = std::string(take.text(take.number<std::uint8_t>())),
                    .incarnation = take.number<std::uint64_t>(),
                    .sent = take.time(),
                    .protocol = spoken};
  if ((parts & has_message) != 0) {
    const auto kind = take.number<std::uint8_t>();
    if (kind > static_cast<std::uint8_t>(last_kind))
      return invalid(
          fmt::format("a datagram with a message of kind {}, at most {}", kind, static_cast<int>(last_kind)));
    const cluster::election::Epoch epoch{take.number<std::uint64_t>()};
    datagram.message = {static_cast<Kind>(kind), epoch, take.number<std::uint64_t>()};
  }
  if ((parts & has_echo) != 0) {
    const TimePoint sent = take.time();
    datagram.echo = {sent, take.time()};
  }
  if (!take.whole()) return invalid("a datagram with too few bytes, or too many");
  if (!cluster::is_name(datagram.from))
    return invalid(fmt::format("a datagram whose sender's id is not {}", cluster::name_rule));
  return datagram;
}

}  // namespace carillon::transport
