#include "carillon/transport/tls.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <system_error>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/context.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/base/files.h"
#include "carillon/cluster/coordinator/address.h"
#include "carillon/graph/text.h"

namespace carillon::transport {
namespace {

namespace ssl = boost::asio::ssl;
namespace tls = grpc::experimental;
using boost::system::error_code;

constexpr std::chrono::seconds between_looks{1};
constexpr off_t longest_file = off_t{1} << 20;

Result<std::string> read_pem(const char* option, const std::string& file) {
  const std::string where = fmt::format("{} {}", option, file);
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0)
    return fail(errno == ENOENT ? ErrorCode::not_found : ErrorCode::invalid_argument,
                fmt::format("{}: {}", where, std::generic_category().message(errno)));
  if (!S_ISREG(status.st_mode)) return invalid(where + ": this is not a file");
  if (status.st_size > longest_file)
    return invalid(
        fmt::format("{}: the file has {} bytes; {} are the most", where, status.st_size, longest_file));
  auto text = read_file(option, file);
  if (!text) return std::unexpected(text.error());
  return text;
}

// Of the files' state: what changes when one of them does.
std::string stamp_of(const TlsFiles& files) {
  std::string stamp;
  for (const std::string* file : {&files.certificate, &files.key, &files.ca}) {
    struct stat status {};
    if (::stat(file->c_str(), &status) == 0)
      stamp += fmt::format("{}.{}.{}.{} ", status.st_ino, status.st_size, status.st_mtim.tv_sec,
                           status.st_mtim.tv_nsec);
    else
      stamp += "- ";
  }
  return stamp;
}

std::string text_of_time(const ASN1_TIME* time) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), BIO_free);
  char* text = nullptr;
  if (ASN1_TIME_print(out.get(), time) != 1) return "a time that cannot be read";
  const long size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<std::size_t>(size)};
}

// Whether others who believe the context's CAs will believe its certificate, as a server's and a client's.
Result<> check_chain(SSL_CTX* context, const TlsFiles& files) {
  X509* const own = SSL_CTX_get0_certificate(context);
  const std::string where = "--cluster-cert " + files.certificate;
  if (X509_cmp_current_time(X509_get0_notAfter(own)) < 0)
    return invalid(
        fmt::format("{}: the certificate expired at {}", where, text_of_time(X509_get0_notAfter(own))));
  if (X509_cmp_current_time(X509_get0_notBefore(own)) > 0)
    return invalid(fmt::format("{}: the certificate is not valid before {}", where,
                               text_of_time(X509_get0_notBefore(own))));
  STACK_OF(X509)* between = nullptr;
  SSL_CTX_get0_chain_certs(context, &between);
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
    const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> checked(X509_STORE_CTX_new(),
                                                                                  X509_STORE_CTX_free);
    X509_STORE_CTX_init(checked.get(), SSL_CTX_get_cert_store(context), own, between);
    X509_STORE_CTX_set_purpose(checked.get(), purpose);
    if (X509_verify_cert(checked.get()) == 1) continue;
    const std::string why = X509_verify_cert_error_string(X509_STORE_CTX_get_error(checked.get()));
    ERR_clear_error();
    return invalid(fmt::format("{}: not valid as a {}'s certificate with --cluster-ca {}: {}", where,
                               purpose == X509_PURPOSE_SSL_SERVER ? "server" : "client", files.ca, why));
  }
  return {};
}

// The context's private key, and then its certificates.
std::string pair_of(SSL_CTX* context) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_PrivateKey(out.get(), SSL_CTX_get0_privatekey(context), nullptr, nullptr, 0, nullptr,
                           nullptr);
  PEM_write_bio_X509(out.get(), SSL_CTX_get0_certificate(context));
  STACK_OF(X509)* between = nullptr;
  SSL_CTX_get0_chain_certs(context, &between);
  for (int i = 0; i < sk_X509_num(between); ++i) PEM_write_bio_X509(out.get(), sk_X509_value(between, i));
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<std::size_t>(size)};
}

std::string path_of(const Descriptor& file) {
  return fmt::format("/proc/self/fd/{}", file.number());
}

// A file in memory. `changed`: when it changed last, in seconds since 1970.
Result<Descriptor> memory_file(const std::string& text, std::time_t changed) {
  const auto failed = [](const std::string& what) {
    return fail(ErrorCode::internal, fmt::format("TLS needs a file in memory: {}: {}", what,
                                                 std::generic_category().message(errno)));
  };
  Descriptor file(memfd_create("carillon-tls", MFD_CLOEXEC));
  if (!file.open()) return failed("memfd_create");
  if (::write(file.number(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return failed("write");
  const std::timespec times[2]{{changed, 0}, {changed, 0}};
  if (::futimens(file.number(), times) != 0) return failed("futimens");
  if (::access(path_of(file).c_str(), R_OK) != 0) return failed(path_of(file));
  return file;
}

// Whoever opens the path of `place` opens `file` from now on.
Result<> put_at(Descriptor& place, Descriptor file) {
  if (!place.open()) {
    place = std::move(file);
    return {};
  }
  while (::dup3(file.number(), place.number(), O_CLOEXEC) < 0) {
    if (errno == EBUSY || errno == EINTR) continue;
    return fail(ErrorCode::internal, "TLS: dup3: " + std::generic_category().message(errno));
  }
  return {};
}

// Believes everybody whose certificate the CA signed. On gRPC's threads. gRPC keeps it as long as it may need
// the files that `tls` has for it.
class MemberVerifier : public tls::ExternalCertificateVerifier {
 public:
  explicit MemberVerifier(std::shared_ptr<const void> tls) : tls_(std::move(tls)) {}
  ~MemberVerifier() override = default;

  bool Verify(tls::TlsCustomVerificationCheckRequest*, std::function<void(grpc::Status)>,
              grpc::Status*) override {
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::shared_ptr<const void> tls_;
};

// Believes schedulers of one cluster.
class SchedulerVerifier final : public MemberVerifier {
 public:
  SchedulerVerifier(std::shared_ptr<const void> tls, std::string cluster)
      : MemberVerifier(std::move(tls)), cluster_(std::move(cluster)) {}
  ~SchedulerVerifier() override = default;

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    std::vector<std::string> uris;
    for (const auto& uri : request->uri_names()) uris.emplace_back(uri.data(), uri.size());
    const auto peer = identity_among(uris);
    const auto checked = peer ? check_role(*peer, cluster_, cluster::Role::scheduler)
                              : Result<>(std::unexpected(peer.error()));
    if (!checked) *status = {grpc::StatusCode::UNAUTHENTICATED, checked.error().message};
    return true;
  }

 private:
  const std::string cluster_;
};

}  // namespace

struct Tls::State {
  std::shared_ptr<SSL_CTX> context;
  Identity identity;
  std::string expires;
  std::string stamp;
  std::string pair, ca;  // the same in PEM
};

Result<Tls::State> Tls::read(const TlsFiles& files) {
  State state;
  state.stamp = stamp_of(files);  // before: a change while they are read is seen next time
  const std::array<std::pair<const char*, const std::string*>, 3> named{
      {{"--cluster-cert", &files.certificate},
       {"--cluster-cert-key", &files.key},
       {"--cluster-ca", &files.ca}}};
  std::array<std::string, 3> texts;
  for (std::size_t i = 0; i < named.size(); ++i) {
    auto text = read_pem(named[i].first, *named[i].second);
    if (!text) return std::unexpected(std::move(text.error()));
    texts[i] = std::move(*text);
  }
  const auto wrong = [&](std::size_t i, const std::string& why) {
    ERR_clear_error();
    return invalid(fmt::format("{} {}: {}", named[i].first, *named[i].second, why));
  };
  ssl::context context(ssl::context::tls);
  SSL_CTX* const native = context.native_handle();
  error_code error;
  (void)context.add_certificate_authority(boost::asio::buffer(texts[2]), error);
  if (error || sk_X509_OBJECT_num(X509_STORE_get0_objects(SSL_CTX_get_cert_store(native))) == 0)
    return wrong(2, "there is no certificate in PEM in this file");
  (void)context.use_certificate_chain(boost::asio::buffer(texts[0]), error);
  if (error) return wrong(0, "there is no certificate in PEM in this file: " + error.message());
  // Else OpenSSL would ask for a passphrase at the terminal.
  (void)context.set_password_callback([](auto...) { return std::string(); }, error);
  (void)context.use_private_key(boost::asio::buffer(texts[1]), ssl::context::pem, error);
  if (error && ERR_GET_REASON(static_cast<unsigned long>(error.value())) == X509_R_KEY_VALUES_MISMATCH)
    return wrong(1, "the key is not that of the certificate in --cluster-cert " + files.certificate);
  if (error)
    return wrong(1, "there is no private key in PEM, without a passphrase, in this file: " + error.message());
  if (auto checked = check_chain(native, files); !checked) return std::unexpected(checked.error());
  auto identity = identity_of(*SSL_CTX_get0_certificate(native));
  if (!identity) return wrong(0, identity.error().message);
  state.identity = std::move(*identity);
  state.expires = text_of_time(X509_get0_notAfter(SSL_CTX_get0_certificate(native)));

  SSL_CTX_set_min_proto_version(native, TLS1_3_VERSION);
  SSL_CTX_set_verify(native, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(native, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(native, 0);
  // A write takes what the socket takes, and goes on from wherever the rest lies by then.
  SSL_CTX_set_mode(native, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_up_ref(native);
  state.context = {native, SSL_CTX_free};
  state.pair = pair_of(native);
  state.ca = std::move(texts[2]);
  return state;
}

// gRPC reads the pair as a key and as a certificate, and again if the file's time in seconds changed
// meanwhile: each pair has another.
Result<> Tls::Copies::hold(const State& state) {
  ++changes_;
  auto ca = memory_file(state.ca, changes_);
  if (!ca) return std::unexpected(std::move(ca.error()));
  auto pair = memory_file(state.pair, changes_);
  if (!pair) return std::unexpected(std::move(pair.error()));
  if (auto done = put_at(ca_, *std::move(ca)); !done) return done;
  return put_at(pair_, *std::move(pair));
}

std::shared_ptr<grpc::experimental::CertificateProviderInterface> Tls::Copies::watched() const {
  return std::make_shared<tls::FileWatcherCertificateProvider>(
      path_of(pair_), path_of(pair_), path_of(ca_), static_cast<unsigned int>(between_looks.count()));
}

Tls::Tls(TlsFiles files, std::function<void(const std::string&)> warn, State state, Copies copies)
    : files_(std::move(files)),
      warn_(std::move(warn)),
      identity_(std::move(state.identity)),
      expires_(std::move(state.expires)),
      context_(std::move(state.context)),
      stamp_(std::move(state.stamp)),
      copies_(std::move(copies)) {}

Result<std::shared_ptr<Tls>> Tls::open(TlsFiles files, std::function<void(const std::string&)> warn) {
  auto state = read(files);
  if (!state) return std::unexpected(std::move(state.error()));
  Copies copies;
  if (auto held = copies.hold(*state); !held) return std::unexpected(std::move(held.error()));
  return std::shared_ptr<Tls>(
      new Tls(std::move(files), std::move(warn), *std::move(state), std::move(copies)));
}

std::shared_ptr<SSL_CTX> Tls::context() {
  const std::lock_guard lock(mutex_);
  if (stamp_of(files_) != stamp_) look();
  return context_;
}

void Tls::look() {
  std::string stamp = stamp_of(files_);
  auto state = read(files_);
  if (state && state->identity != identity_)
    state = invalid(fmt::format("--cluster-cert {}: the certificate is now that of {}, and was that of {}",
                                files_.certificate, to_text(state->identity), to_text(identity_)));
  if (state) {
    if (auto held = copies_.hold(*state); !held) state = std::unexpected(std::move(held.error()));
  }
  if (!state) {
    stamp_ = std::move(stamp);
    if (state.error().message == trouble_) return;
    trouble_ = std::move(state.error().message);
    if (warn_) warn_(trouble_ + "; the earlier files are used");
    return;
  }
  trouble_.clear();
  context_ = std::move(state->context);
  stamp_ = std::move(state->stamp);
}

void Tls::keep_looking() {
  const std::lock_guard lock(mutex_);
  if (looks_.joinable()) return;
  looks_ = std::jthread([this](const std::stop_token& ended) {
    std::unique_lock held(mutex_);
    while (!wake_.wait_for(held, ended, between_looks, [&] { return ended.stop_requested(); }))
      if (!trouble_.empty() || stamp_of(files_) != stamp_) look();
  });
}

std::shared_ptr<grpc::ServerCredentials> Tls::server() {
  keep_looking();
  tls::TlsServerCredentialsOptions options(copies_.watched());
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<MemberVerifier>(shared_from_this()));
  return tls::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> Tls::channel(const std::string& cluster) {
  keep_looking();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(copies_.watched());
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<SchedulerVerifier>(shared_from_this(), cluster));
  options.set_check_call_host(false);
  return tls::TlsCredentials(options);
}

std::string explained(const std::string& error) {
  const auto has = [&](std::string_view text) { return error.find(text) != error.npos; };
  if (!has("failed to connect")) return graph::printable(error);
  const std::string words = cluster::words_of_connection(error);
  if (has("wrong version number"))
    return words + " (it does not speak TLS: start all members with --cluster-cert, or none)";
  if (has("certificate verify failed"))
    return words + " (its certificate has expired, or --cluster-ca did not sign it)";
  if (has("Socket closed") || has("Connection reset by peer"))
    return words +
           " (it hung up at once: it may want TLS, see --cluster-cert, or not believe this "
           "process's certificate)";
  return words;
}

Result<std::optional<Identity>> identity_of(const grpc::AuthContext& connection) {
  const auto kind = connection.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  if (kind.empty() || kind.front() == "insecure") return std::nullopt;
  std::vector<std::string> uris;
  for (const auto& uri : connection.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME))
    uris.emplace_back(uri.data(), uri.size());
  auto identity = identity_among(uris);
  if (!identity) return std::unexpected(std::move(identity.error()));
  return *std::move(identity);
}

Result<Identity> identity_of(const X509& certificate) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  std::vector<std::string> uris;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const text = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                      static_cast<std::size_t>(ASN1_STRING_length(text)));
  }
  return identity_among(uris);
}

}  // namespace carillon::transport
