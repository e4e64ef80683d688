// A client of servers that want to be believed, certificates, keys: against the frontend itself.
#include "carillon/cli/load/access.h"

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/testing/test_certificates.h"
#include "carillon/cli/load/client.h"
#include "carillon/cli/load/http_get.h"
#include "carillon/frontend/access/tls.h"
#include "carillon/frontend/api/http_api.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/grpc/grpc_server.h"
#include "carillon/frontend/http/http_server.h"
#include "carillon/frontend/testing/fake_service.h"

namespace carillon::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* team_secret = "team-secret-0123456789";
constexpr const char* boss_secret = "boss-secret-0123456789";

class AccessTest : public ::testing::Test {
 protected:
  ~AccessTest() override {
    if (http) http->stop();
    if (grpc) grpc->stop();
  }

  // Both doors; with TLS where `own` is given, and then only for clients of `client_ca` where that is given.
  void start(const TestIdentity* own, const TestIdentity* client_ca = nullptr, bool keys = false) {
    service.all_models = {frontend::pair_model()};
    std::shared_ptr<frontend::Tls> tls;
    if (own != nullptr) {
      auto opened = frontend::Tls::open(
          {.certificate = own->certificate_file,
           .key = own->key_file,
           .client_ca = client_ca != nullptr ? client_ca->certificate_file : std::string()},
          [](const std::string&) {});
      ASSERT_TRUE(opened) << opened.error().message;
      tls = *opened;
    }
    frontend::CommonsOptions options{.strict_readiness = false, .heavy_threads = 1};
    if (keys) {
      auto guard = frontend::Guard::open(
          {.keys = files.write("keys.toml",
                               std::string("[[key]]\nname = \"team\"\nsecret = \"") + team_secret +
                                   "\"\n[[key]]\nname = \"boss\"\nroles = [\"metrics\"]\nsecret = \"" +
                                   boss_secret + "\"\n")});
      ASSERT_TRUE(guard) << guard.error().message;
      options.guard = *guard;
    }
    commons = std::make_unique<frontend::Commons>(options);
    api = std::make_unique<frontend::HttpApi>(service, *commons);
    auto over_http = frontend::HttpServer::start(
        *api, {.address = {"127.0.0.1", 0}, .tls = tls, .commons = commons.get()});
    ASSERT_TRUE(over_http) << over_http.error().message;
    http = std::move(*over_http);
    auto over_grpc = frontend::GrpcServer::start(
        service, {.address = {"127.0.0.1", 0}, .tls = tls, .commons = commons.get()});
    ASSERT_TRUE(over_grpc) << over_grpc.error().message;
    grpc = std::move(*over_grpc);
  }

  std::string url(const std::string& scheme, const std::string& host = "127.0.0.1") const {
    return scheme + "://" + host + ":" +
           std::to_string(scheme.starts_with("grpc") ? grpc->port() : http->port());
  }

  // What the server says of its model, or why not: as `load` asks, over either protocol.
  std::string asked(const std::string& at, const AccessArguments& arguments) const {
    const auto address = parse_address(at);
    if (!address) return address.error().message;
    const auto access = read_access(arguments, *address);
    if (!access) return access.error().message;
    const auto client = address->protocol == Protocol::http ? make_http_client(*address, *access, 2)
                                                            : make_grpc_client(*address, *access);
    const auto metadata = client->metadata("pair");
    if (!metadata) return metadata.error().message;
    return "inputs: " + std::to_string(metadata->inputs.size());
  }

  frontend::FakeService service;
  TestCertificates files;
  std::unique_ptr<frontend::Commons> commons;
  std::unique_ptr<frontend::HttpApi> api;
  std::unique_ptr<frontend::HttpServer> http;
  std::unique_ptr<frontend::GrpcServer> grpc;
};

TEST_F(AccessTest, WhomAClientBelievesAndWhatItShows) {
  const TestIdentity ca = files.make("ca"), other = files.make("other");
  const TestIdentity own = files.make("server", &ca), client = files.make("client", &ca);
  const TestIdentity stranger = files.make("stranger", &other);
  start(&own, &ca);
  const AccessArguments good{
      .ca = ca.certificate_file, .cert = client.certificate_file, .cert_key = client.key_file};
  const struct {
    const char* what;
    std::string host;
    AccessArguments arguments;
    std::string says;
  } rows[] = {
      {"all is right", "127.0.0.1", good, "inputs: 2"},
      {"by name", "localhost", good, "inputs: 2"},
      {"the system's CAs", "127.0.0.1", {.cert = good.cert, .cert_key = good.cert_key}, "is not trusted: "},
      {"and what helps",
       "127.0.0.1",
       {.cert = good.cert, .cert_key = good.cert_key},
       "--ca FILE names another"},
      {"another's",
       "127.0.0.1",
       {.ca = other.certificate_file, .cert = good.cert, .cert_key = good.cert_key},
       "that of --ca did not issue it"},
      {"another name", "127.1", good, "not for '127.1', but for localhost, 127.0.0.1"},
      {"no certificate", "127.0.0.1", {.ca = good.ca}, "--cert and --cert-key name one"},
      {"a stranger's",
       "127.0.0.1",
       {.ca = good.ca, .cert = stranger.certificate_file, .cert_key = stranger.key_file},
       "refuses the certificate of --cert"},
  };
  for (const auto& row : rows)
    for (const char* const scheme : {"https", "grpcs"}) {
      EXPECT_THAT(asked(url(scheme, row.host), row.arguments), HasSubstr(row.says))
          << scheme << ": " << row.what;
    }
  EXPECT_THAT(asked(url("http"), {}), HasSubstr("this port speaks TLS"));
}

TEST_F(AccessTest, AServerWithoutTlsIsToldOf) {
  start(nullptr);
  const TestIdentity ca = files.make("ca");
  for (const char* const scheme : {"https", "grpcs"})
    EXPECT_THAT(asked(url(scheme), {.ca = ca.certificate_file}), HasSubstr("does not speak TLS at this port"))
        << scheme;
  for (const char* const scheme : {"http", "grpc"}) EXPECT_EQ(asked(url(scheme), {}), "inputs: 2") << scheme;
}

TEST_F(AccessTest, KeysAndTheirRefusals) {
  start(nullptr, nullptr, true);
  const std::string in_file = "@" + files.write("secret", std::string(team_secret) + "\n");
  for (const char* const scheme : {"http", "grpc"}) {
    const std::string at = url(scheme);
    EXPECT_EQ(asked(at, {.key = team_secret}), "inputs: 2") << scheme;
    EXPECT_EQ(asked(at, {.key = in_file}), "inputs: 2") << scheme;
    EXPECT_THAT(asked(at, {}), HasSubstr("--key, or CARILLON_KEY, sends a key")) << scheme;
    const std::string unknown = asked(at, {.key = "nobody-knows-this-one"});
    EXPECT_THAT(unknown, HasSubstr("the key that was sent is refused")) << scheme;
    EXPECT_THAT(unknown, Not(HasSubstr("nobody-knows"))) << scheme;
    EXPECT_THAT(asked(at, {.key = boss_secret}), HasSubstr("is known, and may not do this")) << scheme;
  }
  EXPECT_THAT(*http_get(url("http") + "/v2/models/pair", {.key = team_secret}), HasSubstr("pair"));
  const auto refused = http_get(url("http") + "/v2/models/pair");
  EXPECT_THAT(refused.error().message, HasSubstr("the answer is HTTP 401"));
}

TEST_F(AccessTest, RequestsGoTheSameWay) {
  const TestIdentity ca = files.make("ca"), own = files.make("server", &ca);
  start(&own, nullptr, true);
  const AccessArguments arguments{.ca = ca.certificate_file, .key = team_secret};
  const auto bytes_of = [](auto... values) {
    std::vector<std::byte> out;
    const auto add = [&](auto value) {
      const auto* const raw = reinterpret_cast<const std::byte*>(&value);
      out.insert(out.end(), raw, raw + sizeof value);
    };
    (add(values), ...);
    return out;
  };
  const Template what{
      .model = "pair",
      .application = {},
      .inputs = {{"x", "FP32", {1, 3}, bytes_of(1.F, 2.F, 3.F)}, {"n", "INT32", {1, 2}, bytes_of(1, 2)}}};
  for (const char* const scheme : {"https", "grpcs"}) {
    const auto address = *parse_address(url(scheme));
    const auto access = read_access(arguments, address);
    ASSERT_TRUE(access) << access.error().message;
    const auto client = address.protocol == Protocol::http ? make_http_client(address, *access, 2)
                                                           : make_grpc_client(address, *access);
    for (int i = 0; i < 5; ++i) {
      std::promise<Reply> answered;
      client->send(what, Duration{0}, [&](Reply reply) { answered.set_value(std::move(reply)); });
      const Reply reply = answered.get_future().get();
      EXPECT_EQ(reply.kind, Reply::Kind::result) << scheme << ": " << reply.error;
    }
  }
}

TEST_F(AccessTest, OptionsThatAreNotRightAreNamed) {
  const TestIdentity ca = files.make("ca"), client = files.make("client", &ca);
  const std::string garbage = files.write("garbage", "no PEM");
  const std::string empty = files.write("empty", "");
  const struct {
    std::string at;
    AccessArguments arguments;
    std::string says;
  } rows[] = {
      {"https://h",
       {.ca = "/nowhere/ca.pem"},
       "--ca: cannot read the file of PEM '/nowhere/ca.pem': No such file or directory"},
      {"https://h", {.ca = empty}, "--ca: '" + empty + "' is empty"},
      {"https://h", {.ca = garbage}, "--ca: the file has no certificate in PEM"},
      {"https://h", {.cert = client.certificate_file}, "--cert and --cert-key go together"},
      {"grpcs://h", {.cert_key = client.key_file}, "--cert and --cert-key go together"},
      {"https://h",
       {.cert = garbage, .cert_key = client.key_file},
       "--cert: the file has no certificate in PEM"},
      {"https://h",
       {.cert = client.certificate_file, .cert_key = garbage},
       "--cert-key: the file has no private key"},
      {"https://h",
       {.cert = client.certificate_file, .cert_key = ca.key_file},
       "--cert-key: the key is not the one of the certificate"},
      {"http://h", {.ca = ca.certificate_file}, "--ca goes with TLS: write https://"},
      {"grpc://h", {.cert = client.certificate_file, .cert_key = client.key_file}, "--cert goes with TLS"},
      {"http://h",
       {.key = "@/nowhere/secret"},
       "--key: cannot read the secret '/nowhere/secret': No such file or directory"},
      {"http://h", {.key = "a b"}, "--key: a key's secret is ASCII without spaces"},
      {"http://h", {.key = "a\r\nx: y"}, "--key: a key's secret is ASCII without spaces"},
  };
  for (const auto& row : rows) {
    const auto access = read_access(row.arguments, *parse_address(row.at));
    ASSERT_FALSE(access) << row.says;
    EXPECT_EQ(access.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(access.error().message, HasSubstr(row.says));
  }
}

}  // namespace
}  // namespace carillon::cli
