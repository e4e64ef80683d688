// TLS between members: files, streams, the desk and rows.

#include "carillon/transport/tls.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "carillon/base/random.h"
#include "carillon/base/testing/test_certificates.h"
#include "carillon/transport/desk.h"
#include "carillon/transport/row_client.h"
#include "carillon/transport/row_frames.h"
#include "carillon/transport/row_wire.h"
#include "carillon/transport/rows.h"
#include "carillon/transport/stream.h"

namespace carillon::transport {
namespace {

using cluster::Role;
using ::testing::HasSubstr;

std::string pem_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

class TlsTest : public ::testing::Test {
 protected:
  struct Warnings {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> texts;

    std::vector<std::string> all(std::size_t at_least = 0) {
      std::unique_lock lock(mutex);
      EXPECT_TRUE(changed.wait_for(lock, 60s, [&] { return texts.size() >= at_least; }));
      return texts;
    }
  };
  TlsFiles files_of(const TestIdentity& own, const TestIdentity& by) const {
    return {.certificate = own.certificate_file, .key = own.key_file, .ca = by.certificate_file};
  }
  TlsFiles files_of(const TestIdentity& own) const { return files_of(own, ca); }
  // The certificate of `uri`.
  TestIdentity made(const std::string& name, const std::string& uri) {
    return certificates.make(name, &ca, 24, "URI:carillon://" + uri);
  }
  std::shared_ptr<Tls> opened(const TlsFiles& files) {
    auto tls = Tls::open(files, [into = warned](const std::string& text) {
      const std::lock_guard lock(into->mutex);
      into->texts.push_back(text);
      into->changed.notify_all();
    });
    EXPECT_TRUE(tls) << tls.error().message;
    return tls ? *tls : nullptr;
  }
  std::shared_ptr<Tls> of(const std::string& uri) {
    auto& kept = kept_[uri];
    if (kept == nullptr) kept = opened(files_of(made(fmt::format("own{}", kept_.size()), uri)));
    return kept;
  }

  TestCertificates certificates;
  const TestIdentity ca = certificates.make("ca"), other_ca = certificates.make("other");
  // gRPC lets go of credentials when it likes.
  const std::shared_ptr<Warnings> warned = std::make_shared<Warnings>();

 private:
  std::map<std::string, std::shared_ptr<Tls>> kept_;
};

// --- Files

TEST_F(TlsTest, FilesSayWhoThisProcessIs) {
  const auto tls = of("box/worker/w1");
  EXPECT_EQ(tls->identity(), (Identity{"box", Role::worker, "w1"}));
  EXPECT_THAT(tls->expires(), HasSubstr("GMT"));
}

TEST_F(TlsTest, FilesThatCannotBeUsedAreNamed) {
  const std::string uri = "URI:carillon://box/worker/w1";
  const TestIdentity good = made("good", "box/worker/w1"), expired = certificates.make("old", &ca, -1, uri),
                     stranger = certificates.make("stranger", &other_ca, 24, uri),
                     nobody = certificates.make("nobody", &ca, 24, "DNS:localhost"),
                     wrong = certificates.make("wrong", &ca, 24, "URI:carillon://box/king/w1");
  const std::string text = certificates.write("text.pem", "no PEM"), none = good.certificate_file + "x";
  const struct {
    TlsFiles files;
    std::string why;
    ErrorCode code = ErrorCode::invalid_argument;
  } rows[] = {
      {{none, good.key_file, ca.certificate_file}, "--cluster-cert " + none, ErrorCode::not_found},
      {{good.certificate_file, none, ca.certificate_file},
       "--cluster-cert-key " + none,
       ErrorCode::not_found},
      {{good.certificate_file, good.key_file, none}, "--cluster-ca " + none, ErrorCode::not_found},
      {{text, good.key_file, ca.certificate_file}, "--cluster-cert " + text + ": there is no certificate"},
      {{good.certificate_file, text, ca.certificate_file},
       "--cluster-cert-key " + text + ": there is no private key"},
      {{good.certificate_file, good.key_file, text}, "--cluster-ca " + text + ": there is no certificate"},
      {{good.certificate_file, expired.key_file, ca.certificate_file},
       "--cluster-cert-key " + expired.key_file +
           ": the key is not that of the certificate in --cluster-cert " + good.certificate_file},
      {files_of(expired), "--cluster-cert " + expired.certificate_file + ": the certificate expired at "},
      {files_of(stranger), "--cluster-cert " + stranger.certificate_file + ": not valid"},
      {files_of(nobody), "--cluster-cert " + nobody.certificate_file + ": the certificate has no URI"},
      {files_of(wrong), "--cluster-cert " + wrong.certificate_file + ": the certificate's URI"},
  };
  for (const auto& [files, why, code] : rows) {
    const auto tls = Tls::open(files, {});
    ASSERT_FALSE(tls) << why;
    EXPECT_EQ(tls.error().code, code) << tls.error().message;
    EXPECT_THAT(tls.error().message, HasSubstr(why));
  }
}

TEST_F(TlsTest, ChangedFilesThatCannotBeUsedChangeNothing) {
  const TestIdentity own = made("own", "box/worker/w1"), next = made("next", "box/worker/w2");
  const auto tls = opened(files_of(own));
  const auto before = tls->context();
  EXPECT_EQ(tls->context(), before);
  certificates.write("own.pem", "no PEM");
  EXPECT_EQ(tls->context(), before);
  EXPECT_EQ(tls->context(), before);
  ASSERT_EQ(warned->all().size(), 1U);
  EXPECT_THAT(warned->all()[0], HasSubstr("own.pem: there is no certificate in PEM"));
  for (const char* part : {".pem", ".key"}) {
    certificates.write(std::string("own") + part,
                       pem_of(next.certificate_file.substr(0, next.certificate_file.size() - 4) + part));
  }
  EXPECT_EQ(tls->context(), before);
  EXPECT_THAT(warned->all().back(), HasSubstr("now that of carillon://box/worker/w2, and was that of "
                                              "carillon://box/worker/w1"));
  made("own", "box/worker/w1");
  EXPECT_NE(tls->context(), before);
}

// --- Streams

// What a peer says that Tls::open() would refuse to be.
class RawTls {
 public:
  RawTls(int port, const TestIdentity& own) : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
    SSL_CTX_use_certificate_file(context_.get(), own.certificate_file.c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_use_PrivateKey_file(context_.get(), own.key_file.c_str(), SSL_FILETYPE_PEM);
    socket_.connect({boost::asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(port)});
    ssl_.reset(SSL_new(context_.get()), SSL_free);
    SSL_set_fd(ssl_.get(), socket_.native_handle());
  }
  // Of the first read.
  std::string reason() {
    if (SSL_connect(ssl_.get()) == 1) {
      char byte = 0;
      if (SSL_read(ssl_.get(), &byte, 1) == 1) return "bytes";
    }
    const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
    return reason != nullptr ? reason : "closed";
  }
  // Whether the peer shows this certificate.
  bool sees(const TestIdentity& peer) {
    if (SSL_connect(ssl_.get()) != 1) return false;
    const std::unique_ptr<X509, decltype(&X509_free)> shown(SSL_get1_peer_certificate(ssl_.get()), X509_free);
    return X509_cmp(shown.get(), peer.certificate.get()) == 0;
  }

 private:
  std::shared_ptr<SSL_CTX> context_;
  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket socket_{io_};
  std::shared_ptr<SSL> ssl_;
};

class Heard final : public StreamOwner {
 public:
  Result<> greets(const Hello&) override { return {}; }
  void opened(const std::shared_ptr<Stream>& stream) override {
    const std::lock_guard lock(mutex_);
    stream_ = stream;
    ++count_;
    changed_.notify_all();
  }
  void heard(Stream&, Frame frame) override {
    const std::lock_guard lock(mutex_);
    messages_ += frame.messages.size();
    changed_.notify_all();
  }
  void ended(Stream&, const Error&) override {
    const std::lock_guard lock(mutex_);
    ++ends_;
    changed_.notify_all();
  }
  std::shared_ptr<Stream> stream(int number = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 60s, [&] { return count_ >= number; }) ? stream_ : nullptr;
  }
  bool hears(std::size_t messages) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 60s, [&] { return messages_ >= messages; });
  }
  int ends() {
    const std::lock_guard lock(mutex_);
    return ends_;
  }
  int opens() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Stream> stream_;
  int count_ = 0, ends_ = 0;
  std::size_t messages_ = 0;
};

const Hello scheduler_s1{"box", "s1", Role::scheduler, 1}, worker_w1{"box", "w1", Role::worker, 2};

class TlsStreamTest : public TlsTest {
 protected:
  void listen(std::shared_ptr<grpc::ServerCredentials> credentials, Desk* desk = nullptr,
              const Hello& self = scheduler_s1) {
    auto made_one = StreamListener::open("127.0.0.1:0", std::move(credentials), self, here, {}, desk);
    ASSERT_TRUE(made_one) << made_one.error().message;
    listener = *std::move(made_one);
  }
  std::string address() const { return fmt::format("127.0.0.1:{}", listener->port()); }
  std::unique_ptr<StreamDialer> dial(std::shared_ptr<grpc::ChannelCredentials> credentials,
                                     const Hello& self = worker_w1) {
    return StreamDialer::open(address(), std::move(credentials), self, there, {.longest_pause = 20ms});
  }
  // Why no stream comes to stand.
  std::string refused(std::shared_ptr<grpc::ChannelCredentials> credentials, const Hello& self = worker_w1) {
    const auto dialer = dial(std::move(credentials), self);
    std::string why;
    for (int i = 0; i < 6000 && why.empty() && there.opens() == 0; ++i) {
      std::this_thread::sleep_for(10ms);
      why = dialer->last_error();
    }
    EXPECT_EQ(there.opens(), 0);
    return why;
  }

  // The listener to new connections, within a minute.
  bool comes_to_show(const TestIdentity& renewed, const TestIdentity& peer) const {
    for (int i = 0; i < 3000; ++i) {
      if (RawTls(listener->port(), peer).sees(renewed)) return true;
      std::this_thread::sleep_for(20ms);
    }
    return false;
  }

  Heard here, there;
  std::unique_ptr<StreamListener> listener;
};

TEST_F(TlsStreamTest, MembersSpeak) {
  listen(of("box/scheduler/s1")->server());
  const auto dialer = dial(of("box/worker/w1")->channel("box"));
  ASSERT_NE(there.stream(), nullptr) << dialer->last_error();
  EXPECT_EQ(there.stream()->peer(), scheduler_s1);
  EXPECT_EQ(here.stream()->peer(), worker_w1);
  EXPECT_TRUE(there.stream()->send(1, Withdraw{RequestId{1}, ModelId{0}}));
  EXPECT_TRUE(here.hears(1));
}

TEST_F(TlsStreamTest, ACertificateOfAnyIdServesAll) {
  listen(of("box/scheduler/*")->server());
  const auto dialer = dial(of("box/worker/*")->channel("box"));
  ASSERT_NE(there.stream(), nullptr) << dialer->last_error();
}

TEST_F(TlsStreamTest, AHelloIsThatOfTheCertificate) {
  listen(of("box/scheduler/s1")->server());
  const auto says = [](const char* uri) {
    return fmt::format("the certificate is that of carillon://{}, and not of carillon://box/worker/w1", uri);
  };
  for (const char* uri : {"box/worker/w2", "box/frontend/w1", "box/admin/w1", "other/worker/w1"})
    EXPECT_THAT(refused(of(uri)->channel("box")), HasSubstr(says(uri)));
}

TEST_F(TlsStreamTest, AListenersHelloIsThatOfItsCertificate) {
  listen(of("box/scheduler/s2")->server());
  EXPECT_THAT(refused(of("box/worker/w1")->channel("box")),
              HasSubstr("the certificate is that of carillon://box/scheduler/s2, and not of "
                        "carillon://box/scheduler/s1"));
}

TEST_F(TlsStreamTest, OnlySchedulersOfTheClusterAreBelieved) {
  for (const char* uri : {"box/worker/s1", "other/scheduler/s1"}) {
    listen(of(uri)->server());
    EXPECT_THAT(refused(of("box/worker/w1")->channel("box")),
                HasSubstr(fmt::format("the certificate is that of carillon://{}, and not of a scheduler of "
                                      "cluster box",
                                      uri)));
  }
}

// A certificate that Tls::open() itself would refuse.
std::shared_ptr<grpc::ChannelCredentials> believing(const TestIdentity& by, const TestIdentity* own) {
  grpc::SslCredentialsOptions options{.pem_root_certs = pem_of(by.certificate_file)};
  if (own != nullptr) {
    options.pem_private_key = pem_of(own->key_file);
    options.pem_cert_chain = pem_of(own->certificate_file);
  }
  return grpc::SslCredentials(options);
}

TEST_F(TlsStreamTest, WhoeverHasNoGoodCertificateGetsNoStream) {
  const std::string uri = "URI:carillon://box/scheduler/s1,IP:127.0.0.1";
  listen(opened(files_of(certificates.make("server", &ca, 24, uri)))->server());
  const std::string mine = "URI:carillon://box/worker/w1";
  const TestIdentity good = certificates.make("mine", &ca, 24, mine),
                     expired = certificates.make("old", &ca, -1, mine),
                     stranger = certificates.make("stranger", &other_ca, 24, mine);
  for (const auto& bad : {believing(ca, nullptr), believing(ca, &expired), believing(ca, &stranger),
                          grpc::InsecureChannelCredentials()})
    EXPECT_THAT(refused(bad),
                HasSubstr("it may want TLS, see --cluster-cert, or not believe this process's"));
  EXPECT_THAT(refused(believing(other_ca, &good)), HasSubstr("or --cluster-ca did not sign it"));
  const auto dialer = dial(believing(ca, &good));
  EXPECT_NE(there.stream(), nullptr) << dialer->last_error();
}

TEST_F(TlsStreamTest, AnExpiredListenerIsNotBelieved) {
  const TestIdentity expired = certificates.make("old", &ca, -1, "URI:carillon://box/scheduler/s1");
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  options.pem_root_certs = pem_of(ca.certificate_file);
  options.pem_key_cert_pairs.push_back({pem_of(expired.key_file), pem_of(expired.certificate_file)});
  listen(grpc::SslServerCredentials(options));
  EXPECT_THAT(refused(of("box/worker/w1")->channel("box")),
              HasSubstr("its certificate has expired, or --cluster-ca did not sign it"));
}

TEST_F(TlsStreamTest, AListenerWithoutTlsIsToldApart) {
  listen(grpc::InsecureServerCredentials());
  EXPECT_THAT(refused(of("box/worker/w1")->channel("box")), HasSubstr("it does not speak TLS"));
}

// The CA is another from some moment on: both files change while both processes run.
TEST_F(TlsStreamTest, FilesAreReadAgainAndStreamsStay) {
  const TestIdentity own = made("server", "box/scheduler/s1");
  const auto tls = opened(files_of(own));
  listen(tls->server());
  const auto dialer = dial(of("box/worker/w1")->channel("box"));
  ASSERT_NE(there.stream(), nullptr) << dialer->last_error();
  const TestIdentity mine = certificates.make("mine", &other_ca, 24, "URI:carillon://box/worker/w7");
  certificates.make("server", &other_ca, 24, "URI:carillon://box/scheduler/s1");
  certificates.write("ca.pem", pem_of(other_ca.certificate_file));
  Heard others;
  const auto next = StreamDialer::open(address(), opened(files_of(mine, other_ca))->channel("box"),
                                       {"box", "w7", Role::worker, 1}, others, {.longest_pause = 20ms});
  ASSERT_NE(others.stream(), nullptr) << next->last_error();
  EXPECT_EQ(there.ends(), 0);
  EXPECT_TRUE(there.stream()->send(1, Withdraw{RequestId{1}, ModelId{0}}));
  EXPECT_TRUE(here.hears(1));
}

// As `cp` and a full disk leave them. gRPC would end the process.
TEST_F(TlsStreamTest, FilesThatAreEmptyOrGarbageEndNothing) {
  const TestIdentity own = made("server", "box/scheduler/s1"), mine = made("mine", "box/worker/*");
  const auto tls = opened(files_of(own)), ours = opened(files_of(mine));
  listen(tls->server());
  const auto credentials = ours->channel("box");
  const auto dialer = dial(credentials);
  ASSERT_NE(there.stream(), nullptr) << dialer->last_error();

  const auto shows = [](Tls& by, const TestIdentity& what) {
    return X509_cmp(SSL_CTX_get0_certificate(by.context().get()), what.certificate.get()) == 0;
  };
  const auto key = std::pair(pem_of(own.key_file), pem_of(mine.key_file)),
             certificate = std::pair(pem_of(own.certificate_file), pem_of(mine.certificate_file));
  const auto write = [&](const std::string& part, const std::pair<std::string, std::string>& texts) {
    certificates.write("server" + part, texts.first);
    certificates.write("mine" + part, texts.second);
  };
  const std::pair<std::string, std::string> empty;
  const std::string garbage = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
  std::size_t faults = 0;
  const auto goes_on = [&](const std::string& why) {
    faults += 2;
    auto texts = warned->all(faults);
    EXPECT_THAT(texts, ::testing::SizeIs(faults));
    texts.erase(texts.begin(), texts.end() - 2);
    EXPECT_THAT(texts, ::testing::UnorderedElementsAre(HasSubstr("server" + why), HasSubstr("mine" + why)));
    EXPECT_TRUE(there.stream()->send(1, Withdraw{RequestId{1}, ModelId{0}}));
    EXPECT_TRUE(here.hears(faults / 2));
    Heard others;
    // Other credentials, or gRPC would use the connection that stands.
    const auto next = StreamDialer::open(address(), ours->channel("box"), {"box", "w9", Role::worker, 3},
                                         others, {.longest_pause = 20ms});
    EXPECT_NE(others.stream(), nullptr) << next->last_error();
    EXPECT_TRUE(shows(*tls, own) && shows(*ours, mine));
  };
  write(".key", empty);
  goes_on(".key: there is no private key");
  write(".key", key);
  write(".pem", empty);
  goes_on(".pem: there is no certificate");
  write(".pem", certificate);
  write(".key", {garbage, garbage});
  goes_on(".key: there is no private key");
  std::this_thread::sleep_for(2500ms);  // further looks, which have nothing new to tell
  EXPECT_THAT(warned->all(), ::testing::SizeIs(faults));
  EXPECT_EQ(there.ends(), 0);

  const TestIdentity renewed = made("server", "box/scheduler/s1"),
                     mine_renewed = made("mine", "box/worker/*");
  EXPECT_TRUE(comes_to_show(renewed, mine));
  EXPECT_TRUE(shows(*tls, renewed) && shows(*ours, mine_renewed));
  EXPECT_THAT(warned->all(), ::testing::SizeIs(faults));
  Heard others;
  const auto next = StreamDialer::open(address(), ours->channel("box"), {"box", "w9", Role::worker, 3},
                                       others, {.longest_pause = 20ms});
  EXPECT_NE(others.stream(), nullptr) << next->last_error();
  EXPECT_EQ(there.ends(), 0);
}

// gRPC keeps what it needs of a process's certificate.
TEST_F(TlsStreamTest, CredentialsOutliveTheirMaker) {
  const TestIdentity own = made("server", "box/scheduler/s1");
  listen(opened(files_of(own))->server());
  const TestIdentity renewed = made("server", "box/scheduler/s1");
  EXPECT_TRUE(comes_to_show(renewed, own));
}

// --- The desk

class SilentDesk final : public Desk {
 public:
  Look look() override { return {.id = "s1", .leader = "s1"}; }
  Result<> hand_over(const std::string&) override {
    ++orders;
    return {};
  }
  Result<> drain(const std::string&, bool) override {
    ++orders;
    return {};
  }
  std::atomic<int> orders = 0;
};

TEST_F(TlsStreamTest, OnlySchedulersAndAdminsOrder) {
  SilentDesk desk;
  listen(of("box/scheduler/s1")->server(), &desk);
  const auto asks = [&](const char* uri) { return of(uri)->channel("box"); };
  for (const char* uri : {"box/worker/w1", "box/frontend/f1"}) {
    EXPECT_TRUE(look({address()}, asks(uri), "box", 60s).front());
    const auto done = order(address(), asks(uri), "box", HandOver{"s2"}, 60s);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().message,
              fmt::format("the certificate is that of carillon://{}, and only schedulers "
                          "and admins may order",
                          uri));
  }
  EXPECT_EQ(desk.orders, 0);
  EXPECT_TRUE(order(address(), asks("box/admin/anna"), "box", HandOver{"s2"}, 60s));
  EXPECT_TRUE(order(address(), asks("box/scheduler/s2"), "box", DrainMember{"w1"}, 60s));
  EXPECT_EQ(desk.orders, 2);
  const auto foreign = look({address()}, asks("other/admin/anna"), "box", 60s).front();
  ASSERT_FALSE(foreign);
  EXPECT_THAT(foreign.error().message,
              HasSubstr("carillon://other/admin/anna, and this member is of cluster box"));
  EXPECT_FALSE(look({address()}, grpc::InsecureChannelCredentials(), "box", 60s).front());
  EXPECT_FALSE(order(address(), grpc::InsecureChannelCredentials(), "box", HandOver{"s2"}, 60s));
  EXPECT_EQ(desk.orders, 2);
}

// --- Rows

using Blob = std::vector<std::byte>;

Blob random_blob(std::size_t size, std::uint64_t seed) {
  Random random(seed);
  Blob bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.bits());
  return bytes;
}

class TlsRowsTest : public TlsTest {
 protected:
  std::unique_ptr<RowServer> serve(std::shared_ptr<Tls> tls) {
    auto opened_one = RowServer::open("127.0.0.1:0", {.cluster = "box", .tls = std::move(tls)}, store,
                                      [](RequestId, std::uint64_t, const std::string&) {});
    EXPECT_TRUE(opened_one) << opened_one.error().message;
    return *std::move(opened_one);
  }
  static std::unique_ptr<RowClient> client_of(std::shared_ptr<Tls> tls) {
    return RowClient::make({.cluster = "box", .connect_within = 60s, .tls = std::move(tls)});
  }
  std::uint64_t open(std::vector<Blob>& inputs, std::vector<Blob>& outputs) {
    return store.open(RequestId{1}, {.inputs = {inputs.begin(), inputs.end()},
                                     .outputs = {outputs.begin(), outputs.end()}});
  }
  static std::future<Result<std::int64_t>> pull(RowClient& client, int port, std::uint64_t key,
                                                std::vector<Blob>& into) {
    auto promise = std::make_shared<std::promise<Result<std::int64_t>>>();
    client.pull({.address = fmt::format("127.0.0.1:{}", port),
                 .key = key,
                 .urgency = {},
                 .room = RowClient::room_of({into.begin(), into.end()})},
                [promise](Result<std::int64_t> length) { promise->set_value(std::move(length)); });
    client.flush();
    return promise->get_future();
  }
  static std::future<Result<bool>> push(RowClient& client, int port, std::uint64_t key,
                                        const std::vector<Blob>& outputs) {
    auto promise = std::make_shared<std::promise<Result<bool>>>();
    client.push({.address = fmt::format("127.0.0.1:{}", port),
                 .key = key,
                 .epoch = 1,
                 .report = "done",
                 .outputs = {outputs.begin(), outputs.end()}},
                [promise](Result<bool> taken) { promise->set_value(std::move(taken)); });
    client.flush();
    return promise->get_future();
  }
  // Why a row of one byte cannot be pulled.
  std::string refused(RowClient& client, const RowServer& server) {
    std::vector<Blob> inputs{Blob(1, std::byte{7})}, outputs{Blob(1)}, into{Blob(1)};
    const auto key = open(inputs, outputs);
    const auto pulled = pull(client, server.port(), key, into).get();
    EXPECT_FALSE(pulled);
    EXPECT_EQ(into[0][0], std::byte{});
    EXPECT_FALSE(push(client, server.port(), key, into).get());
    store.close(key);
    return pulled ? "" : pulled.error().message;
  }
  std::string refused(std::shared_ptr<Tls> at_worker, std::shared_ptr<Tls> at_frontend) {
    const auto server = serve(std::move(at_frontend));
    const auto client = client_of(std::move(at_worker));
    return refused(*client, *server);
  }

  RowStore store;
};

TEST_F(TlsRowsTest, AreTheSameAsWithoutTls) {
  const auto server = serve(of("box/frontend/f1"));
  const auto client = client_of(of("box/worker/w1"));
  // Records of TLS have 16 KiB, and frames 64: sizes on both sides of each.
  const std::size_t sizes[] = {0, 1, 100, 16383, 16384, 16385, 65535, 65536, 65537, 3 << 20};
  std::vector<std::vector<Blob>> inputs, outputs, into, from;
  std::vector<std::uint64_t> keys;
  std::vector<std::future<Result<std::int64_t>>> pulls;
  std::vector<std::future<Result<bool>>> pushes;
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    inputs.push_back({random_blob(sizes[i], i), random_blob(sizes[9 - i], 100 + i)});
    from.push_back({random_blob(sizes[i], 200 + i), random_blob(3, 300 + i)});
    into.push_back({Blob(sizes[i]), Blob(sizes[9 - i])});
    outputs.push_back({Blob(sizes[i]), Blob(3)});
  }
  for (std::size_t i = 0; i < std::size(sizes); ++i) keys.push_back(open(inputs[i], outputs[i]));
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    pulls.push_back(pull(*client, server->port(), keys[i], into[i]));
    pushes.push_back(push(*client, server->port(), keys[i], from[i]));
  }
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    const auto pulled = pulls[i].get();
    ASSERT_TRUE(pulled) << pulled.error().message;
    const auto pushed = pushes[i].get();
    ASSERT_TRUE(pushed && *pushed);
    EXPECT_EQ(into[i], inputs[i]) << sizes[i];
    store.close(keys[i]);
    EXPECT_EQ(outputs[i], from[i]) << sizes[i];
  }
}

TEST_F(TlsRowsTest, OnlyAWorkersCertificatePullsAndPushes) {
  const struct {
    const char* uri;
    const char* why;
  } rows[] = {{"box/frontend/f2", "carillon://box/frontend/f2, and not of a worker of cluster box"},
              {"box/scheduler/s1", "carillon://box/scheduler/s1, and not of a worker of cluster box"},
              {"box/admin/anna", "carillon://box/admin/anna, and not of a worker of cluster box"},
              {"other/worker/w1", "carillon://other/worker/w1, and not of a worker of cluster box"}};
  for (const auto& [uri, why] : rows) EXPECT_THAT(refused(of(uri), of("box/frontend/f1")), HasSubstr(why));
}

TEST_F(TlsRowsTest, OnlyAFrontendsCertificateIsBelieved) {
  for (const char* uri : {"box/worker/w1", "box/scheduler/s1", "other/frontend/f1"})
    EXPECT_THAT(refused(of("box/worker/w1"), of(uri)),
                HasSubstr(fmt::format("carillon://{}, and not of a frontend of cluster box", uri)));
}

TEST_F(TlsRowsTest, CertificatesOfAnotherCaAreRefused) {
  const std::string uri = "URI:carillon://box/worker/w1";
  const TestIdentity stranger = certificates.make("stranger", &other_ca, 24, uri);
  // The worker believes the frontend, but is not believed.
  const std::string both =
      certificates.write("both.pem", pem_of(ca.certificate_file) + pem_of(other_ca.certificate_file));
  const auto foreign = opened({stranger.certificate_file, stranger.key_file, both});
  EXPECT_THAT(refused(foreign, of("box/frontend/f1")), HasSubstr("refuses this process's certificate"));
  // And the other way round.
  const TestIdentity front = certificates.make("front", &other_ca, 24, "URI:carillon://box/frontend/f1");
  EXPECT_THAT(refused(of("box/worker/w1"), opened({front.certificate_file, front.key_file, both})),
              HasSubstr("its certificate is not believed: "));
}

TEST_F(TlsRowsTest, OneSideWithoutTlsIsTold) {
  EXPECT_THAT(refused(nullptr, of("box/frontend/f1")), HasSubstr("the worker needs --cluster-cert"));
  EXPECT_THAT(refused(of("box/worker/w1"), nullptr), HasSubstr("it does not speak TLS"));
}

TEST_F(TlsRowsTest, AnExpiredCertificateIsRefused) {
  const auto server = serve(of("box/frontend/f1"));
  RawTls expired(server->port(), certificates.make("old", &ca, -1, "URI:carillon://box/worker/w1"));
  EXPECT_THAT(expired.reason(), HasSubstr("certificate expired"));
}

// A peer whose end of the handshake, hello and first pull come as one segment.
TEST_F(TlsRowsTest, WhatComesWithTheHandshakeIsHeard) {
  const auto server = serve(of("box/frontend/f1"));
  std::vector<Blob> inputs{Blob(1)}, outputs{Blob(1)};
  const auto key = open(inputs, outputs);
  boost::asio::io_context io;
  boost::asio::ip::tcp::socket socket(io);
  socket.connect({boost::asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(server->port())});
  const auto context = of("box/worker/w1")->context();
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
  BIO *const in = BIO_new(BIO_s_mem()), *const out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), in, out);
  SSL_set_connect_state(ssl.get());
  const auto send = [&] {
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(out, &bytes);
    boost::asio::write(socket, boost::asio::buffer(bytes, static_cast<std::size_t>(size)));
    BIO_reset(out);
  };
  const auto receive = [&] {
    std::array<char, 4096> bytes{};
    BIO_write(in, bytes.data(), static_cast<int>(socket.read_some(boost::asio::buffer(bytes))));
  };
  while (SSL_do_handshake(ssl.get()) != 1) {
    send();
    receive();
  }
  std::string said;
  rows::put(said, rows::hello_of("box"));
  rows::put(said, rows::Header{rows::Kind::pull, sizeof(rows::PullBody), 1});
  rows::put(said, rows::PullBody{key, 0});
  SSL_write(ssl.get(), said.data(), static_cast<int>(said.size()));
  send();
  rows::Header heard;
  while (SSL_read(ssl.get(), &heard, sizeof(heard)) != sizeof(heard)) receive();
  EXPECT_EQ(heard.kind, rows::Kind::sizes);
}

// TLS takes more from the socket than whoever reads wants, and then the socket has nothing to wait for.
TEST_F(TlsRowsTest, AWireDoesNotWaitForWhatItHolds) {
  using boost::asio::ip::tcp;
  boost::asio::io_context io;
  tcp::acceptor acceptor(io, {boost::asio::ip::make_address("127.0.0.1"), 0});
  tcp::socket near(io);
  near.connect(acceptor.local_endpoint());
  rows::Wire near_end(std::move(near)), far_end(acceptor.accept());
  for (rows::Wire* each : {&near_end, &far_end}) rows::prepare(each->socket());
  std::vector<std::string> peers;
  const auto known = [&](const Result<Identity>& peer) {
    peers.push_back(peer ? to_text(*peer) : peer.error().message);
  };
  near_end.greet(of("box/worker/w1")->context(), false, known);
  far_end.greet(of("box/frontend/f1")->context(), true, known);
  const auto run_until = [&](const auto& condition) {
    while (!condition()) {
      io.restart();
      ASSERT_EQ(io.run_one_for(60s), 1U);
    }
  };
  run_until([&] { return peers.size() == 2; });
  EXPECT_THAT(peers,
              ::testing::UnorderedElementsAre("carillon://box/worker/w1", "carillon://box/frontend/f1"));

  const Blob sent = random_blob(100, 1);
  Blob got(100);
  boost::system::error_code error;
  const auto read_half = [&](std::size_t at) {
    const boost::asio::mutable_buffer half(got.data() + at, 50);
    return far_end.read_some({&half, 1}, error);
  };
  EXPECT_EQ(read_half(0), 0U);
  EXPECT_TRUE(rows::would_block(error));
  const boost::asio::const_buffer all(sent.data(), sent.size());
  EXPECT_EQ(near_end.write_some({&all, 1}, error), 100U);
  int told = 0;
  const auto tell = [&](const boost::system::error_code& failed) { told += failed ? 100 : 1; };
  far_end.wait_read(tell);
  run_until([&] { return told == 1; });
  EXPECT_EQ(read_half(0), 50U);
  far_end.wait_read(tell);
  io.restart();
  io.poll();
  ASSERT_EQ(told, 2);
  EXPECT_EQ(read_half(50), 50U);
  EXPECT_EQ(got, sent);

  near_end.shutdown();
  far_end.wait_read(tell);
  run_until([&] { return told == 3; });
  while (read_half(0) == 0 && rows::would_block(error)) {
  }
  EXPECT_EQ(error, boost::asio::error::eof);
}

TEST_F(TlsRowsTest, FilesAreReadAgainAndConnectionsStay) {
  const TestIdentity front = made("front", "box/frontend/f1");
  const auto server = serve(opened(files_of(front)));
  const auto client = client_of(of("box/worker/w1"));
  std::vector<Blob> inputs{random_blob(1000, 1)}, outputs{Blob(1)}, into{Blob(1000)};
  const auto key = open(inputs, outputs);
  ASSERT_TRUE(pull(*client, server->port(), key, into).get());
  certificates.make("front", &other_ca, 24, "URI:carillon://box/frontend/f1");
  certificates.write("ca.pem", pem_of(other_ca.certificate_file));
  const TestIdentity mine = certificates.make("mine", &other_ca, 24, "URI:carillon://box/worker/w7");
  const auto next = client_of(opened(files_of(mine, other_ca)));
  const auto pulled = pull(*next, server->port(), key, into).get();
  EXPECT_TRUE(pulled) << pulled.error().message;
  // The one that stands.
  const auto again = pull(*client, server->port(), key, into).get();
  EXPECT_TRUE(again) << again.error().message;
  EXPECT_EQ(into, inputs);
}

TEST_F(TlsRowsTest, FilesThatAreEmptyEndNothing) {
  const TestIdentity front = made("front", "box/frontend/f1");
  const auto server = serve(opened(files_of(front)));
  const auto client = client_of(of("box/worker/w1"));
  std::vector<Blob> inputs{random_blob(1000, 1)}, outputs{Blob(1)}, into{Blob(1000)};
  const auto key = open(inputs, outputs);
  ASSERT_TRUE(pull(*client, server->port(), key, into).get());
  for (const char* file : {"front.key", "front.pem"}) {
    certificates.write(file, "");
    const auto other = client_of(of("box/worker/w2"));
    for (RowClient* each : {client.get(), other.get()}) {
      const auto pulled = pull(*each, server->port(), key, into).get();
      EXPECT_TRUE(pulled) << pulled.error().message;
    }
  }
  const TestIdentity renewed = made("front", "box/frontend/f1");
  EXPECT_TRUE(RawTls(server->port(), renewed).sees(renewed));
}

}  // namespace
}  // namespace carillon::transport
