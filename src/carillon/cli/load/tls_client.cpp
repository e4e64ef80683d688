#include "carillon/cli/load/tls_client.h"

#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/error.hpp>
#include <openssl/err.h>
#include <openssl/x509v3.h>

namespace carillon::cli {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

bool is_ip(const std::string& host) {
  error_code error;
  (void)boost::asio::ip::make_address(host, error);
  return !error;
}

// The names that the server's certificate is for, as far as they are texts and addresses.
std::string names_of(X509* certificate) {
  std::string out;
  auto* const names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names) && i < 8; ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names, i);
    std::string text;
    if (name->type == GEN_DNS) {
      text.assign(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                  static_cast<std::size_t>(ASN1_STRING_length(name->d.dNSName)));
    } else if (name->type == GEN_IPADD && ASN1_STRING_length(name->d.iPAddress) == 4) {
      const unsigned char* const ip = ASN1_STRING_get0_data(name->d.iPAddress);
      for (int b = 0; b < 4; ++b) text += (b == 0 ? "" : ".") + std::to_string(ip[b]);
    }
    for (char& c : text)
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
    if (!text.empty()) out += (out.empty() ? "" : ", ") + text.substr(0, 128);
  }
  GENERAL_NAMES_free(names);
  return out;
}

}  // namespace

Result<std::shared_ptr<const TlsClient>> TlsClient::make(std::string host, bool http2, const std::string& ca,
                                                         const std::string& certificate,
                                                         const std::string& private_key) {
  std::shared_ptr<TlsClient> made(new TlsClient(std::move(host)));
  ssl::context& context = made->context_;
  error_code error;
  (void)context.set_options(
      ssl::context::no_sslv2 | ssl::context::no_sslv3 | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1,
      error);
  (void)context.set_verify_mode(ssl::verify_peer, error);
  static constexpr unsigned char h2[] = {2, 'h', '2'};
  if (http2) (void)SSL_CTX_set_alpn_protos(context.native_handle(), h2, sizeof h2);
  made->believes_system_ = ca.empty();
  if (ca.empty())
    (void)context.set_default_verify_paths(error);
  else
    (void)context.add_certificate_authority(boost::asio::buffer(ca), error);
  if (error && !ca.empty()) return invalid("--ca: the file has no certificate in PEM: " + error.message());
  if (certificate.empty()) return made;
  made->shows_certificate_ = true;
  (void)context.use_certificate_chain(boost::asio::buffer(certificate), error);
  if (error) return invalid("--cert: the file has no certificate in PEM: " + error.message());
  // Else OpenSSL would ask for a passphrase at the terminal.
  (void)context.set_password_callback([](auto...) { return std::string(); }, error);
  (void)context.use_private_key(boost::asio::buffer(private_key), ssl::context::pem, error);
  if (error && ERR_GET_REASON(static_cast<unsigned long>(error.value())) == X509_R_KEY_VALUES_MISMATCH)
    return invalid("--cert-key: the key is not the one of the certificate of --cert");
  if (error)
    return invalid("--cert-key: the file has no private key in PEM without a passphrase: " + error.message());
  return made;
}

void TlsClient::prepare(SSL* connection) const {
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(connection);
  if (is_ip(host_)) {
    (void)X509_VERIFY_PARAM_set1_ip_asc(wanted, host_.c_str());
    return;
  }
  (void)SSL_set_tlsext_host_name(connection, host_.c_str());
  X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  (void)X509_VERIFY_PARAM_set1_host(wanted, host_.c_str(), host_.size());
}

std::string TlsClient::names_in(X509_STORE_CTX* verification) {
  X509* const certificate = X509_STORE_CTX_get0_cert(verification);
  return certificate != nullptr ? names_of(certificate) : std::string();
}

std::string TlsClient::why_closed() const {
  return std::string("the server closed the connection after the handshake: it ") +
         (shows_certificate_ ? "refuses the certificate of --cert"
                             : "may want a certificate of its clients (--cert and --cert-key name one)") +
         ", or does not speak gRPC at this port";
}

std::string TlsClient::why(SSL* connection, const error_code& error, const std::string& names) const {
  if (const long verified = SSL_get_verify_result(connection); verified != X509_V_OK) {
    if (verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH)
      return "the server's certificate is not for '" + host_ + "'" +
             (names.empty() ? "" : ", but for " + names) + ": name the server as its certificate does";
    std::string text =
        std::string("the server's certificate is not trusted: ") + X509_verify_cert_error_string(verified);
    if (verified == X509_V_ERR_CERT_HAS_EXPIRED || verified == X509_V_ERR_CERT_NOT_YET_VALID) return text;
    return text + (believes_system_ ? " (the system's CAs are believed; --ca FILE names another)"
                                    : " (that of --ca did not issue it)");
  }
  if (error.category() == boost::asio::error::get_ssl_category()) {
    switch (ERR_GET_REASON(static_cast<unsigned long>(error.value()))) {
      case SSL_R_WRONG_VERSION_NUMBER:
      case SSL_R_PACKET_LENGTH_TOO_LONG:
        return "the server does not speak TLS at this port: use http:// or grpc://";
      case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
        if (!shows_certificate_)
          return "the server wants a certificate of its clients: --cert and --cert-key name one";
        break;
      case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
      case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
        return "the server refuses the certificate of --cert: " + error.message();
      default:
        break;
    }
  }
  return error.message();
}

}  // namespace carillon::cli
