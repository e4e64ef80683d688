#include "carillon/frontend/admin/admin_page.h"

#include <string>
#include <string_view>

#include <openssl/evp.h>

#include "carillon/base/assert.h"
#include "carillon/frontend/access/keys.h"

namespace carillon::frontend {

std::string_view admin_page_html();  // embedded: web/dist/admin.html

namespace {

// What lies between the page's one <tag> and </tag>: the build (web/) writes them so.
std::string_view inside(std::string_view page, std::string_view tag) {
  const std::string open = "<" + std::string(tag) + ">";
  const std::string close = "</" + std::string(tag) + ">";
  const std::size_t begin = page.find(open);
  const std::size_t end = page.find(close);
  CARILLON_ASSERT(begin != std::string_view::npos && end != std::string_view::npos && begin < end &&
                  page.find(open, begin + 1) == std::string_view::npos);
  return page.substr(begin + open.size(), end - begin - open.size());
}

std::string hash_source(std::string_view text) {
  const SecretDigest digest = digest_of(text);
  std::string base64(4 * ((digest.size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(base64.data()), digest.data(),
                                   static_cast<int>(digest.size()));
  base64.resize(static_cast<std::size_t>(size));
  return "'sha256-" + base64 + "'";
}

}  // namespace

HttpReply admin_page_reply() {
  static const std::string policy =
      "default-src 'none'; script-src " + hash_source(inside(admin_page_html(), "script")) + "; style-src " +
      hash_source(inside(admin_page_html(), "style")) +
      "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
  return {.content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy", policy},
                      {"X-Frame-Options", "DENY"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"},
                      {"Cache-Control", "no-store"}},
          .body = std::string(admin_page_html()),
          .may_pack = true};
}

}  // namespace carillon::frontend
