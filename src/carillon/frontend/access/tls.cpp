#include "carillon/frontend/access/tls.h"

#include <atomic>
#include <utility>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "carillon/frontend/access/secret_file.h"

namespace carillon::frontend {
namespace {

namespace ssl = boost::asio::ssl;

template <auto free>
struct FreeBy {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using BioPtr = std::unique_ptr<BIO, FreeBy<BIO_free>>;
using CertificatePtr = std::unique_ptr<X509, FreeBy<X509_free>>;
using PrivateKeyPtr = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;

// The libraries' own words for what went wrong last.
std::string openssl_words() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
  return reason != nullptr ? reason : "unknown error";
}

BioPtr bio_of(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Without it a key with a passphrase would be asked about at the terminal.
int no_passphrase(char*, int, int, void*) {
  return -1;
}

// The first certificate, where all of the file's can be read.
Result<CertificatePtr> first_certificate(const std::string& text, const std::string& where) {
  const BioPtr bio = bio_of(text);
  CertificatePtr first;
  for (;;) {
    CertificatePtr next(PEM_read_bio_X509(bio.get(), nullptr, no_passphrase, nullptr));
    if (!next) {
      const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
      if (at_end && first) {
        ERR_clear_error();
        return first;
      }
      if (at_end) {
        ERR_clear_error();
        return invalid(where +
                       ": there is no certificate in PEM ('-----BEGIN CERTIFICATE-----') in this file");
      }
      return invalid(where + ": a certificate is damaged: " + openssl_words());
    }
    if (!first) first = std::move(next);
  }
}

Result<PrivateKeyPtr> private_key(const std::string& text, const std::string& where) {
  const BioPtr bio = bio_of(text);
  PrivateKeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  if (key) return key;
  if (text.find("ENCRYPTED") != std::string::npos) {
    ERR_clear_error();
    return invalid(where + ": the key has a passphrase; 'openssl pkey -in FILE -out OTHER' takes it off");
  }
  return invalid(where +
                 ": there is no private key in PEM ('-----BEGIN PRIVATE KEY-----') that can be read (" +
                 openssl_words() + ")");
}

void tell_times(const X509& certificate, const std::string& where, const Log& log) {
  if (!log) return;
  if (X509_cmp_current_time(X509_get0_notAfter(&certificate)) < 0)
    log(where + ": the certificate has expired; clients that look will refuse it");
  if (X509_cmp_current_time(X509_get0_notBefore(&certificate)) > 0)
    log(where + ": the certificate is not valid yet; clients that look will refuse it");
}

// Of those that a client offers; without a common one the handshake ends (RFC 7301, section 3.2).
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                    unsigned int size, void*) {
  static constexpr unsigned char known[] = "\x02h2\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, known, sizeof known - 1, offered, size) !=
      OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

Result<std::shared_ptr<ssl::context>> context_of(const TlsState& state, const TlsFiles& files) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* const native = context->native_handle();
  boost::system::error_code error;
  (void)context->use_certificate_chain(boost::asio::buffer(state.certificate), error);
  if (error) return invalid("--tls-cert " + files.certificate + ": OpenSSL refuses it: " + error.message());
  (void)context->use_private_key(boost::asio::buffer(state.key), ssl::context::pem, error);
  if (error) return invalid("--tls-key " + files.key + ": OpenSSL refuses it: " + error.message());
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native,
                      SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);
  if (SSL_CTX_set_cipher_list(native, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1)
    return fail(ErrorCode::internal, "TLS: OpenSSL has none of the ciphers: " + openssl_words());
  SSL_CTX_set_alpn_select_cb(native, choose_protocol, nullptr);
  // Sessions are resumed by tickets, whose keys are this context's.
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  static constexpr unsigned char session_context[] = "carillon";
  SSL_CTX_set_session_id_context(native, session_context, sizeof session_context - 1);
  if (!state.client_ca.empty()) {
    const BioPtr bio = bio_of(state.client_ca);
    X509_STORE* const store = SSL_CTX_get_cert_store(native);
    while (const CertificatePtr ca{PEM_read_bio_X509(bio.get(), nullptr, no_passphrase, nullptr)}) {
      if (X509_STORE_add_cert(store, ca.get()) != 1 || SSL_CTX_add_client_CA(native, ca.get()) != 1)
        return invalid("--tls-client-ca " + files.client_ca + ": OpenSSL refuses it: " + openssl_words());
    }
    ERR_clear_error();
    SSL_CTX_set_verify(native, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return context;
}

Result<std::shared_ptr<const TlsState>> read_state(const TlsFiles& files, const Log& log) {
  static std::atomic<std::uint64_t> generations = 0;
  auto state = std::make_shared<TlsState>();
  state->generation = ++generations;
  auto certificate = read_secret_file(files.certificate, "--tls-cert", false, log);
  if (!certificate) return std::unexpected(std::move(certificate.error()));
  auto key = read_secret_file(files.key, "--tls-key", true, log);
  if (!key) return std::unexpected(std::move(key.error()));
  const auto first = first_certificate(*certificate, "--tls-cert " + files.certificate);
  if (!first) return std::unexpected(first.error());
  const auto pair = private_key(*key, "--tls-key " + files.key);
  if (!pair) return std::unexpected(pair.error());
  if (X509_check_private_key(first->get(), pair->get()) != 1) {
    ERR_clear_error();
    return invalid("--tls-key " + files.key + ": this key is not that of the certificate in --tls-cert " +
                   files.certificate + " (the first of the file, where it has several)");
  }
  if (!files.client_ca.empty()) {
    auto ca = read_secret_file(files.client_ca, "--tls-client-ca", false, log);
    if (!ca) return std::unexpected(std::move(ca.error()));
    const auto read = first_certificate(*ca, "--tls-client-ca " + files.client_ca);
    if (!read) return std::unexpected(read.error());
    tell_times(**read, "--tls-client-ca " + files.client_ca, log);
    state->client_ca = std::move(*ca);
  }
  tell_times(**first, "--tls-cert " + files.certificate, log);
  state->certificate = std::move(*certificate);
  state->key = std::move(*key);
  auto context = context_of(*state, files);
  if (!context) return std::unexpected(std::move(context.error()));
  state->context = std::move(*context);
  return state;
}

}  // namespace

Result<std::shared_ptr<Tls>> Tls::open(TlsFiles files, Log log) {
  std::shared_ptr<Tls> tls(new Tls(std::move(files), std::move(log)));
  if (auto read = tls->reload(); !read) return std::unexpected(std::move(read.error()));
  return tls;
}

Result<> Tls::reload() {
  auto state = read_state(files_, log_);
  if (!state) return std::unexpected(std::move(state.error()));
  const std::lock_guard lock(mutex_);
  state_ = std::move(*state);
  return {};
}

std::shared_ptr<const TlsState> Tls::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace carillon::frontend
