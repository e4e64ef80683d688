#include "carillon/frontend/http/http_framing.h"

#include <string>

#include <gtest/gtest.h>

namespace carillon::frontend {
namespace {

TEST(HttpFraming, OneHostAndChunkedOnce) {
  const struct {
    HttpFraming framing;
    int status;  // 0: fine
  } rows[] = {
      {{.version = 11, .hosts = 1}, 0},
      {{.version = 11, .hosts = 0}, 400},
      {{.version = 11, .hosts = 2}, 400},
      {{.version = 10, .hosts = 0}, 0},
      {{.version = 11, .hosts = 1, .transfer_encodings = {"chunked"}}, 0},
      {{.version = 11, .hosts = 1, .transfer_encodings = {" Chunked\t"}}, 0},
      {{.version = 11, .hosts = 1, .transfer_encodings = {",chunked,"}}, 0},
      {{.version = 11, .hosts = 1, .transfer_encodings = {""}}, 400},
      {{.version = 11, .hosts = 1, .transfer_encodings = {"xchunked"}}, 501},
      {{.version = 11, .hosts = 1, .transfer_encodings = {"gzip, chunked"}}, 501},
      {{.version = 11, .hosts = 1, .transfer_encodings = {"gzip", "chunked"}}, 501},
      {{.version = 11, .hosts = 1, .transfer_encodings = {"chunked, gzip"}}, 501},
      {{.version = 11, .hosts = 1, .transfer_encodings = {"identity"}}, 501},
      {{.version = 11, .hosts = 1, .transfer_encodings = {"chunked;q=1"}}, 501},
      {{.version = 11, .hosts = 1, .transfer_encodings = {"chunked, chunked"}}, 400},
      {{.version = 11, .hosts = 1, .transfer_encodings = {"chunked", "chunked"}}, 400},
      {{.version = 10, .hosts = 1, .transfer_encodings = {"chunked"}}, 400},
  };
  for (const auto& [framing, status] : rows) {
    const auto error = check_framing(framing);
    EXPECT_EQ(error ? error->status : 0, status)
        << framing.version << " " << framing.hosts << " "
        << (framing.transfer_encodings.empty() ? "" : framing.transfer_encodings[0]);
  }
}

TEST(HttpFraming, ATargetMayBeAbsolute) {
  const std::pair<std::string_view, std::string_view> rows[] = {
      {"/v2?x=http://y", "/v2?x=http://y"},
      {"http://a/v2/models?x=1", "/v2/models?x=1"},
      {"HTTPS://[::1]:8000/v2", "/v2"},
      {"http://a", "/"},
      {"http://a?x=/y", "/"},
      {"http:/a/v2", "http:/a/v2"},
      {"ftp://a/v2", "ftp://a/v2"},
      {"*", "*"},
      {"", ""},
  };
  for (const auto& [target, path] : rows) EXPECT_EQ(origin_form(target), path) << target;
}

TEST(HttpFraming, KnowsHttp2ByItsFirstBytes) {
  const std::string opening = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (std::size_t n = 0; n < opening.size(); ++n) {
    EXPECT_EQ(http2_opening(opening.substr(0, n)), Http2Opening::part) << n;
    EXPECT_EQ(http2_opening(opening.substr(0, n) + "~"), Http2Opening::none) << n;
  }
  EXPECT_EQ(http2_opening(opening), Http2Opening::whole);
  EXPECT_EQ(http2_opening(opening + "frames"), Http2Opening::whole);
  EXPECT_EQ(http2_opening("POST / HTTP/1.1\r\n"), Http2Opening::none);
}

}  // namespace
}  // namespace carillon::frontend
