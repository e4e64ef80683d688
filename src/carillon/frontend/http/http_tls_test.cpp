// HTTP over TLS, from certificates' files to sessions.

#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/ssl.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/testing/test_certificates.h"
#include "carillon/frontend/access/tls.h"
#include "carillon/frontend/testing/http_server_fixture.h"

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;
namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;

// What a client asks for, and has.
struct Presented {
  std::string certificate_file;
  std::string key_file;
  long newest = TLS1_3_VERSION;
  long oldest = TLS1_VERSION;
  std::string protocols = {};  // of ALPN
};

class TlsClient {
 public:
  explicit TlsClient(std::uint16_t port, Presented presented = {}) : context_(ssl::context::tls_client) {
    SSL_CTX_set_max_proto_version(context_.native_handle(), static_cast<int>(presented.newest));
    SSL_CTX_set_min_proto_version(context_.native_handle(), static_cast<int>(presented.oldest));
    SSL_CTX_set_security_level(context_.native_handle(), 0);
    if (!presented.certificate_file.empty()) {
      context_.use_certificate_chain_file(presented.certificate_file);
      context_.use_private_key_file(presented.key_file, ssl::context::pem);
    }
    stream_.emplace(io_, context_);
    if (!presented.protocols.empty())
      SSL_set_alpn_protos(stream_->native_handle(),
                          reinterpret_cast<const unsigned char*>(presented.protocols.data()),
                          static_cast<unsigned int>(presented.protocols.size()));
    stream_->lowest_layer().connect({asio::ip::address_v4::loopback(), port});
    (void)stream_->handshake(ssl::stream_base::client, error);
  }

  void send(const std::string& bytes) { asio::write(*stream_, asio::buffer(bytes), error); }
  std::string receive_some(std::size_t size) {
    std::string bytes(size, '\0');
    asio::read(*stream_, asio::buffer(bytes), error);
    return bytes;
  }
  TestClient::Response receive() {
    boost::beast::http::response_parser<boost::beast::http::string_body> parser;
    boost::beast::http::read(*stream_, buffer_, parser, error);
    if (error) {
      TestClient::Response none;
      none.result(0U);
      return none;
    }
    return parser.release();
  }
  TestClient::Response ask(const std::string& method, const std::string& target, const std::string& body = {},
                           const TestClient::Headers& headers = {}) {
    send(TestClient::request(method, target, body, headers));
    return receive();
  }
  std::string server_name() {
    char name[64] = {};
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(
        SSL_get1_peer_certificate(stream_->native_handle()), X509_free);
    if (certificate)
      X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name, sizeof name);
    return name;
  }
  std::string protocol() {
    const unsigned char* name = nullptr;
    unsigned int size = 0;
    SSL_get0_alpn_selected(stream_->native_handle(), &name, &size);
    return {reinterpret_cast<const char*>(name), size};
  }
  SSL* native() { return stream_->native_handle(); }
  void close() { stream_->lowest_layer().close(); }

  boost::system::error_code error;

 private:
  asio::io_context io_;
  ssl::context context_;
  std::optional<ssl::stream<asio::ip::tcp::socket>> stream_;
  boost::beast::flat_buffer buffer_;
};

class HttpTlsTest : public HttpServerTest {
 protected:
  void start_tls(bool clients = false, HttpOptions options = {}) {
    auto opened = Tls::open({.certificate = identity.certificate_file,
                             .key = identity.key_file,
                             .client_ca = clients ? ca.certificate_file : ""},
                            [this](const std::string& text) { told += text + "\n"; });
    ASSERT_TRUE(opened) << opened.error().message;
    options.tls = tls = *opened;
    start(std::move(options));
  }
  TlsClient tls_client(Presented presented = {}) { return TlsClient(server->port(), std::move(presented)); }
  std::string refused(TlsFiles files) {
    const auto opened = Tls::open(std::move(files), [this](const std::string& text) { told += text + "\n"; });
    return opened ? "opened" : opened.error().message;
  }

  TestCertificates certificates;
  TestIdentity ca = certificates.make("ca");
  TestIdentity identity = certificates.make("server", &ca);
  std::shared_ptr<Tls> tls;
  std::string told;
};

TEST_F(HttpTlsTest, ConnectionsServeOneRequestAfterTheOther) {
  start_tls();
  TlsClient c = tls_client();
  ASSERT_FALSE(c.error) << c.error.message();
  EXPECT_EQ(c.server_name(), "server");
  for (int i = 0; i < 3; ++i) {
    const auto answer = c.ask("POST", "/v2/models/pair/infer", pair_request());
    ASSERT_EQ(answer.result_int(), 200U) << answer.body();
  }
  EXPECT_EQ(c.ask("GET", "/v2/health/live").result_int(), 200U);
}

TEST_F(HttpTlsTest, BothVersionsAndNoOlder) {
  start_tls();
  for (const long version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient c = tls_client({.newest = version, .oldest = version});
    ASSERT_FALSE(c.error) << c.error.message();
    EXPECT_EQ(c.ask("GET", "/v2/health/live").result_int(), 200U);
  }
  EXPECT_TRUE(tls_client({.newest = TLS1_1_VERSION}).error);
}

TEST_F(HttpTlsTest, ChoosesHttp2WhereItIsOffered) {
  start_tls();
  TlsClient both = tls_client({.protocols = std::string("\x08http/1.1\x02h2")});
  ASSERT_FALSE(both.error);
  EXPECT_EQ(both.protocol(), "h2");
  // What is answered to a client's opening begins with the server's settings.
  both.send(std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", 33));
  EXPECT_EQ(both.receive_some(4).substr(3), "\x04");
  TlsClient one = tls_client({.protocols = std::string("\x08http/1.1")});
  EXPECT_EQ(one.protocol(), "http/1.1");
  EXPECT_EQ(one.ask("GET", "/v2/health/live").result_int(), 200U);
  EXPECT_TRUE(tls_client({.protocols = std::string("\x05spdy1")}).error);
  // Without ALPN it is HTTP/1.1, whatever comes.
  TlsClient none = tls_client({});
  none.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  EXPECT_EQ(none.receive().result_int(), 400U);
}

TEST_F(HttpTlsTest, DoesNotRenegotiate) {
  start_tls();
  TlsClient c = tls_client({.newest = TLS1_2_VERSION});
  ASSERT_FALSE(c.error);
  SSL_renegotiate(c.native());
  c.ask("GET", "/v2/health/live");
  EXPECT_TRUE(c.error);
  EXPECT_EQ(tls_client().ask("GET", "/v2/health/live").result_int(), 200U);
}

TEST_F(HttpTlsTest, PipelinedRequestsAreAnsweredInTheirOrder) {
  start_tls();
  TlsClient c = tls_client();
  std::string many;
  for (int i = 0; i < 20; ++i)
    many += TestClient::request("POST", "/v2/models/pair/infer", pair_request(std::to_string(i)));
  c.send(many);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(nlohmann::json::parse(c.receive().body())["id"], std::to_string(i));
}

// One that comes while another is open has been read already when that is answered.
TEST_F(HttpTlsTest, WhatComesWhileARequestIsOpenIsServedAfterIt) {
  start_tls();
  service.hold(true);
  TlsClient c = tls_client();
  c.send(TestClient::request("POST", "/v2/models/pair/infer", pair_request("first")));
  service.wait_for_held(1);
  c.send(TestClient::request("GET", "/v2/health/live"));
  std::this_thread::sleep_for(50ms);
  service.release();
  EXPECT_EQ(nlohmann::json::parse(c.receive().body())["id"], "first");
  EXPECT_EQ(c.receive().result_int(), 200U);
}

TEST_F(HttpTlsTest, LargeBodiesBothWaysAndInChunks) {
  start_tls();
  TlsClient c = tls_client();
  const std::string padded = pair_request() + std::string(3 << 20, ' ');
  EXPECT_EQ(c.ask("POST", "/v2/models/pair/infer", padded).result_int(), 200U);
  c.send("POST /v2/models/pair/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string body = pair_request() + std::string(300'000, ' ');
  for (std::size_t at = 0; at < body.size(); at += 100'000) {
    const std::string piece = body.substr(at, 100'000);
    char size[32];
    std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
    c.send(size + piece + "\r\n");
  }
  c.send("0\r\n\r\n");
  EXPECT_EQ(c.receive().result_int(), 200U);
  // Many index entries: an answer of several records.
  for (int i = 0; i < 2000; ++i)
    service.all_models.push_back(model_of(graph::DataType::f32, {2}, "model-" + std::to_string(i)));
  EXPECT_EQ(nlohmann::json::parse(c.ask("POST", "/v2/repository/index", "{}").body()).size(), 2002U);
}

TEST_F(HttpTlsTest, ClientsThatGoCancelTheirRequest) {
  start_tls();
  service.hold(true);
  TlsClient c = tls_client();
  c.send(TestClient::request("POST", "/v2/models/pair/infer", pair_request()));
  service.wait_for_held(1);
  c.close();
  service.wait_for_cancelled(1);
  EXPECT_EQ(service.held(), 0U);
}

TEST_F(HttpTlsTest, PlainHttpIsToldWhatThePortSpeaks) {
  start_tls();
  auto c = client();
  const auto answer = c.ask("GET", "/v2/health/live");
  EXPECT_EQ(answer.result_int(), 400U);
  EXPECT_THAT(answer.body(), HasSubstr("https://"));
  EXPECT_TRUE(c.closed());
  auto noise = client();
  noise.send("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b");
  noise.receive_all();  // an alert, and the end
  while (server->connections() > 0) std::this_thread::yield();
}

TEST_F(HttpTlsTest, AHandshakeHasAsLongAsAHeader) {
  start_tls(false, {.header_timeout = 100ms});
  auto silent = client();
  EXPECT_TRUE(silent.closed());
  auto half = client();
  half.send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  half.receive_all();
  while (server->connections() > 0) std::this_thread::yield();
}

TEST_F(HttpTlsTest, ConnectionsThatAskedNothingMakeRoom) {
  start_tls(false, {.max_connections = 4});
  std::deque<TestClient> silent;
  for (int i = 0; i < 12; ++i) silent.emplace_back(server->port());
  TlsClient c = tls_client();
  ASSERT_FALSE(c.error) << c.error.message();
  EXPECT_EQ(c.ask("GET", "/v2/health/live").result_int(), 200U);
  EXPECT_LE(server->connections(), 4U);
}

TEST_F(HttpTlsTest, HeadersHaveTheirLimit) {
  start_tls();
  TlsClient c = tls_client();
  EXPECT_EQ(c.ask("GET", "/v2/health/live", {}, {{"x", std::string(100'000, 'x')}}).result_int(), 431U);
}

TEST_F(HttpTlsTest, ClientsNeedACertificateOfTheCa) {
  start_tls(true);
  const auto known = certificates.make("client", &ca);
  TlsClient good = tls_client({.certificate_file = known.certificate_file, .key_file = known.key_file});
  EXPECT_EQ(good.ask("GET", "/v2/health/live").result_int(), 200U) << good.error.message();
  // With TLS 1.3 the client learns of it only when it reads.
  const auto other_ca = certificates.make("other-ca");
  const auto stranger = certificates.make("stranger", &other_ca);
  const auto expired = certificates.make("expired", &ca, -1);
  for (const auto& [what, presented] :
       {std::pair("none", Presented{}),
        std::pair("another CA's",
                  Presented{.certificate_file = stranger.certificate_file, .key_file = stranger.key_file}),
        std::pair("expired",
                  Presented{.certificate_file = expired.certificate_file, .key_file = expired.key_file})}) {
    TlsClient c = tls_client(presented);
    EXPECT_EQ(c.ask("GET", "/v2/health/live").result_int(), 0U) << what;
    EXPECT_TRUE(c.error) << what;
  }
}

TEST_F(HttpTlsTest, NewConnectionsHaveTheCertificatesReadAgain) {
  start_tls();
  TlsClient old = tls_client();
  EXPECT_EQ(old.ask("GET", "/v2/health/live").result_int(), 200U);
  const auto next = certificates.make("next", &ca);
  std::filesystem::copy_file(next.certificate_file, identity.certificate_file,
                             std::filesystem::copy_options::overwrite_existing);
  const auto half_done = tls->reload();
  ASSERT_FALSE(half_done);
  EXPECT_THAT(half_done.error().message, HasSubstr("not that of the certificate"));
  EXPECT_EQ(tls_client().server_name(), "server");
  std::filesystem::copy_file(next.key_file, identity.key_file,
                             std::filesystem::copy_options::overwrite_existing);
  ASSERT_TRUE(tls->reload());
  EXPECT_EQ(tls_client().server_name(), "next");
  EXPECT_EQ(old.ask("GET", "/v2/health/live").result_int(), 200U);
}

TEST_F(HttpTlsTest, StopsWithClientsConnected) {
  start_tls();
  TlsClient idle = tls_client();
  EXPECT_EQ(idle.ask("GET", "/v2/health/live").result_int(), 200U);
  auto silent = client();
  server->stop();
  EXPECT_EQ(server->connections(), 0U);
}

TEST_F(HttpTlsTest, WhatIsWrongWithFilesIsTold) {
  const auto cert = identity.certificate_file;
  const auto key = identity.key_file;
  const auto noise = certificates.write("noise", "hello\n");
  const auto damaged =
      certificates.write("damaged", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  const auto locked = certificates.write(
      "locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGb\n-----END ENCRYPTED PRIVATE KEY-----\n");
  const auto huge = certificates.write("huge", std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(refused({"/no/such", key, ""}), HasSubstr("--tls-cert /no/such: No such file"));
  EXPECT_THAT(refused({cert, "/no/such", ""}), HasSubstr("--tls-key /no/such: No such file"));
  EXPECT_THAT(refused({cert, key, "/no/such"}), HasSubstr("--tls-client-ca /no/such: No such file"));
  EXPECT_THAT(refused({::testing::TempDir(), key, ""}), HasSubstr("not a file"));
  EXPECT_THAT(refused({huge, key, ""}), HasSubstr("more than 1048576 bytes"));
  EXPECT_THAT(refused({noise, key, ""}),
              HasSubstr("--tls-cert " + noise + ": there is no certificate in PEM"));
  EXPECT_THAT(refused({damaged, key, ""}), HasSubstr("a certificate is damaged"));
  EXPECT_THAT(refused({cert, noise, ""}),
              HasSubstr("--tls-key " + noise + ": there is no private key in PEM"));
  EXPECT_THAT(refused({cert, locked, ""}), HasSubstr("has a passphrase"));
  EXPECT_THAT(refused({cert, ca.key_file, ""}), HasSubstr("not that of the certificate"));
  EXPECT_THAT(refused({cert, key, noise}), HasSubstr("--tls-client-ca " + noise));
  EXPECT_EQ(told, "");
  EXPECT_EQ(refused({cert, key, ca.certificate_file}), "opened");
  EXPECT_EQ(told, "");
  chmod(key.c_str(), 0644);
  EXPECT_EQ(refused({cert, key, ""}), "opened");
  EXPECT_THAT(told, HasSubstr("everybody on this machine"));
  const auto expired = certificates.make("expired", &ca, -1);
  EXPECT_EQ(refused({expired.certificate_file, expired.key_file, ""}), "opened");
  EXPECT_THAT(told, HasSubstr("has expired"));
}

}  // namespace
}  // namespace carillon::frontend
