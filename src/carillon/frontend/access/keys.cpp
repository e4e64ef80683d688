#include "carillon/frontend/access/keys.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <utility>

#include <openssl/rand.h>
#include <openssl/sha.h>
#include <toml++/toml.h>

#include "carillon/base/bytes.h"

namespace carillon::frontend {
namespace {

constexpr const char* key_name_rule = "1 to 64 letters, digits, '-', '_' and '.'";

bool is_key_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

std::optional<SecretDigest> from_hex(std::string_view text) {
  SecretDigest digest{};
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    int digit = 0;
    if (c >= '0' && c <= '9')
      digit = c - '0';
    else if (c >= 'a' && c <= 'f')
      digit = c - 'a' + 10;
    else if (c >= 'A' && c <= 'F')
      digit = c - 'A' + 10;
    else
      return std::nullopt;
    digest[i / 2] = static_cast<unsigned char>(digest[i / 2] << 4 | digit);
  }
  return digest;
}

// Thrown and caught in this file.
struct BadKeys {
  std::string message;
};

class KeyReader {
 public:
  KeyReader(const toml::table& table, const std::string& where) : table_(table), where_(where) {}

  Key read() {
    for (const auto& [name, value] : table_) {
      static const std::set<std::string_view> known{"name",      "sha256",  "secret", "models", "roles",
                                                    "real_time", "regions", "rate",   "burst",  "bytes"};
      if (!known.contains(name.str()))
        wrong(value,
              "a key has no such member; there are name, sha256, secret, models, roles, real_time, regions, "
              "rate, burst and bytes");
    }
    Key key;
    const auto* const name = table_.get("name");
    if (name == nullptr) wrong(table_, "a key needs a name");
    key.name = name->value<std::string>().value_or("");
    if (!name->is_string() || !is_key_name(key.name))
      wrong(*name, std::string("a key's name must be ") + key_name_rule);
    read_digest(key);
    if (const auto* const models = table_.get("models")) {
      key.models = texts(*models, "models", "patterns of models' names, such as [\"resnet*\"]");
      if (key.models.empty()) wrong(*models, "models is empty: such a key could use none");
    }
    if (const auto* const regions = table_.get("regions"))
      key.regions = texts(*regions, "regions", "patterns of shared memory regions, such as [\"camera-*\"]");
    if (const auto* const roles = table_.get("roles")) read_roles(key, *roles);
    if (const auto* const real_time = table_.get("real_time")) {
      const auto on = real_time->value_exact<bool>();
      if (!on) wrong(*real_time, "real_time must be true or false");
      key.real_time = *on;
    }
    key.rate = number("rate", 0);
    key.burst = number("burst", std::max(1.0, key.rate));
    if (key.rate == 0 && table_.contains("burst")) wrong(*table_.get("burst"), "burst needs a rate");
    if (key.rate == 0) key.burst = 0;
    if (key.rate > 0 && key.burst < 1) wrong(*table_.get("burst"), "burst must be at least 1");
    if (const auto* const bytes = table_.get("bytes")) {
      const auto text = bytes->value_exact<std::string>();
      const auto size = text ? parse_bytes(*text) : invalid("");
      if (!size || size->count == 0) wrong(*bytes, "bytes must be a size such as \"64 MiB\"");
      key.bytes = size->count;
    }
    return key;
  }

 private:
  [[noreturn]] void wrong(const toml::node& node, const std::string& what) const {
    throw BadKeys{where_ + ":" + std::to_string(node.source().begin.line) + ": " + what};
  }

  void read_digest(Key& key) {
    const auto* const hash = table_.get("sha256");
    const auto* const secret = table_.get("secret");
    if ((hash == nullptr) == (secret == nullptr))
      wrong(table_,
            "key '" + key.name + "' needs either sha256 or secret; 'carillon key new NAME' makes one");
    if (hash != nullptr) {
      const auto digest = from_hex(hash->value_exact<std::string>().value_or(""));
      if (!digest) wrong(*hash, "sha256 must be the 64 hexadecimal digits of the secret's SHA-256");
      key.digest = *digest;
      return;
    }
    const auto text = secret->value_exact<std::string>().value_or("");
    if (text.size() < shortest_secret || text.size() > longest_secret ||
        !std::ranges::all_of(text, [](unsigned char c) { return c > 0x20 && c < 0x7f; }))
      wrong(*secret, "secret must be text of " + std::to_string(shortest_secret) + " to " +
                         std::to_string(longest_secret) + " characters of ASCII without spaces");
    key.digest = digest_of(text);
  }

  void read_roles(Key& key, const toml::node& roles) {
    const char* const choice = "roles, of \"infer\", \"admin\" and \"metrics\"";
    key.infer = false;
    const auto names = texts(roles, "roles", choice);
    if (names.empty()) wrong(roles, "roles is empty: such a key could do nothing");
    for (const std::string& role : names) {
      if (role == "infer")
        key.infer = true;
      else if (role == "admin")
        key.admin = true;
      else if (role == "metrics")
        key.metrics = true;
      else
        wrong(roles, std::string("roles must be an array of ") + choice);
    }
  }

  std::vector<std::string> texts(const toml::node& node, const char* name, const std::string& what) const {
    std::vector<std::string> texts;
    const auto* const array = node.as_array();
    if (array == nullptr) wrong(node, std::string(name) + " must be an array of " + what);
    for (const auto& each : *array) {
      const auto text = each.value_exact<std::string>();
      if (!text || text->empty() || text->size() > 256 || array->size() > 1024)
        wrong(each, std::string(name) + " must be an array of " + what);
      texts.push_back(*text);
    }
    return texts;
  }

  double number(const char* name, double otherwise) const {
    const auto* const node = table_.get(name);
    if (node == nullptr) return otherwise;
    const auto value = node->value<double>();
    if (!node->is_number() || !value || !(*value > 0 && *value <= 1e9))
      wrong(*node, std::string(name) + " must be a number above 0, and at most 1e9");
    return *value;
  }

  const toml::table& table_;
  const std::string& where_;
};

std::vector<Key> read_keys(const toml::table& file, const std::string& where) {
  const auto wrong = [&](const toml::node& node, const std::string& what) {
    throw BadKeys{where + ":" + std::to_string(node.source().begin.line) + ": " + what};
  };
  for (const auto& [name, value] : file)
    if (name.str() != "key") wrong(value, "a file of keys has nothing but [[key]] tables");
  const auto* const entries = file.get_as<toml::array>("key");
  if (entries == nullptr || entries->empty())
    throw BadKeys{where + ": there is no key; each is a table under [[key]]"};
  if (entries->size() > keys_most)
    throw BadKeys{where + ": there are " + std::to_string(entries->size()) + " keys; at most " +
                  std::to_string(keys_most) + " are taken"};
  std::vector<Key> keys;
  std::set<std::string> names;
  std::set<SecretDigest> digests;
  for (const auto& entry : *entries) {
    const auto* const table = entry.as_table();
    if (table == nullptr) wrong(entry, "each key is a table under [[key]]");
    keys.push_back(KeyReader(*table, where).read());
    if (!names.insert(keys.back().name).second)
      wrong(entry, "there is a key '" + keys.back().name + "' before this one");
    if (!digests.insert(keys.back().digest).second)
      wrong(entry, "key '" + keys.back().name + "' has the same secret as one before it");
  }
  return keys;
}

}  // namespace

SecretDigest digest_of(std::string_view secret) {
  SecretDigest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), digest.data());
  return digest;
}

std::string to_hex(const SecretDigest& digest) {
  std::string text;
  for (const unsigned char byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 0xf];
  }
  return text;
}

// Back to the last star where something does not fit: a name takes its length times the pattern's at most.
bool matches_glob(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

namespace {

bool fits_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::ranges::any_of(patterns,
                             [&](const std::string& pattern) { return matches_glob(pattern, name); });
}

}  // namespace

bool Key::may_use(std::string_view model) const {
  return fits_any(models, model);
}

bool Key::may_name(std::string_view region, std::string_view owner) const {
  return admin || owner == name || fits_any(regions, region);
}

Result<std::vector<Key>> parse_keys(std::string_view text, const std::string& where) {
  try {
    return read_keys(toml::parse(text), where);
  } catch (const toml::parse_error& error) {
    // Its own words show pieces of the file.
    return invalid(where + ":" + std::to_string(error.source().begin.line) +
                   ": this is not TOML, at column " + std::to_string(error.source().begin.column));
  } catch (const BadKeys& bad) {
    return invalid(bad.message);
  }
}

Result<std::string> new_secret() {
  static constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  unsigned char bytes[43];
  if (RAND_bytes(bytes, sizeof bytes) != 1)
    return fail(ErrorCode::internal, "the system has no random numbers for a secret");
  std::string secret;
  for (const unsigned char byte : bytes) secret += digits[byte & 63];  // 6 bits of each: 258
  return secret;
}

Result<std::string> key_entry(const std::string& name, std::string_view secret, bool real_time) {
  if (!is_key_name(name)) return invalid(std::string("a key's name must be ") + key_name_rule);
  return "[[key]]\nname = \"" + name + "\"\nsha256 = \"" + to_hex(digest_of(secret)) + "\"\n" +
         (real_time ? "real_time = true\n" : "");
}

}  // namespace carillon::frontend
