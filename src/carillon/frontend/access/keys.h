#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"

namespace carillon::frontend {

// SHA-256 of a secret: all that is kept of it. Secrets are random, so that no slower hash is needed.
using SecretDigest = std::array<unsigned char, 32>;
SecretDigest digest_of(std::string_view secret);
std::string to_hex(const SecretDigest& digest);

// What one client may do: an entry of the file of keys.
struct Key {
  std::string name;  // told to its holder and to the log
  SecretDigest digest{};
  std::vector<std::string> models{"*"};  // patterns; see matches_glob()
  std::vector<std::string> regions;      // patterns of regions that others registered and this key may name
  bool infer = true;
  bool admin = false;
  bool metrics = false;
  bool real_time = false;  // requests that name priority 1 are real-time, for any of its models
  double rate = 0;         // requests a second; 0: any number
  double burst = 0;        // requests at once; at least 1 where there is a rate
  std::size_t bytes = 0;   // of bodies in flight; 0: as many as all together may have

  bool may_use(std::string_view model) const;
  // Whether its holder's tensors may lie in a region of shared memory that the holder of key `owner`
  // registered: its own, those of its patterns, and any where it could register the object itself.
  bool may_name(std::string_view region, std::string_view owner) const;
  friend bool operator==(const Key&, const Key&) = default;
};

inline constexpr std::size_t keys_most = 1024;
inline constexpr std::size_t shortest_secret = 16;  // characters
inline constexpr std::size_t longest_secret = 512;

// '*' stands for any text, '?' for any one byte; all else for itself.
bool matches_glob(std::string_view pattern, std::string_view name);

// Reads a file of keys:
//
//   [[key]]
//   name = "team-a"
//   sha256 = "64 hexadecimal digits"    # or secret = "the secret itself"
//   models = ["resnet*"]                # all where left out
//   regions = ["camera-*"]              # of others; none where left out
//   roles = ["infer"]                   # infer, admin, metrics; infer where left out
//   real_time = true                    # see Key; false where left out
//   rate = 100                          # requests a second
//   burst = 200                         # as the rate where left out
//   bytes = "64 MiB"                    # of bodies in flight
//
// Errors name `where`, the line and what would be right; none shows what the file has, which may be secret.
Result<std::vector<Key>> parse_keys(std::string_view toml, const std::string& where);

// 256 bits from the system's generator, as text that needs no quoting anywhere.
Result<std::string> new_secret();

// The lines that give the holder of `secret` a key; `real_time`: see Key. Error: `name` is not one (1 to 64
// letters, digits, "-",
// "_" and ".").
Result<std::string> key_entry(const std::string& name, std::string_view secret, bool real_time = false);

}  // namespace carillon::frontend
