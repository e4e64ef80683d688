#pragma once

// For tests only: a CA, and certificates of it, as files.

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

namespace carillon {

struct TestIdentity {
  std::shared_ptr<EVP_PKEY> key;
  std::shared_ptr<X509> certificate;
  std::string certificate_file;
  std::string key_file;
};

class TestCertificates {
 public:
  TestCertificates()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ("tls-" + std::to_string(getpid()) + "-" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(folder_);
  }
  ~TestCertificates() { std::filesystem::remove_all(folder_); }

  // Signed by `issuer`, or by itself; valid from two days ago for `hours` from now, which may be negative.
  // `alternative`: the subject alternative names, as OpenSSL writes them. Empty: none.
  TestIdentity make(const std::string& name, const TestIdentity* issuer = nullptr, int hours = 24,
                    const std::string& alternative = "DNS:localhost,IP:127.0.0.1") {
    TestIdentity made;
    made.key.reset(EVP_EC_gen("P-256"), EVP_PKEY_free);
    made.certificate.reset(X509_new(), X509_free);
    X509* const x = made.certificate.get();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600L * 48);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600L * hours);
    X509_set_pubkey(x, made.key.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509* const by = issuer != nullptr ? issuer->certificate.get() : x;
    X509_set_issuer_name(x, X509_get_subject_name(by));
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, by, x, nullptr, nullptr, 0);
    extend(x, context, NID_basic_constraints, issuer != nullptr ? "CA:FALSE" : "critical,CA:TRUE");
    if (issuer != nullptr && !alternative.empty())
      extend(x, context, NID_subject_alt_name, alternative.c_str());
    X509_sign(x, (issuer != nullptr ? issuer->key : made.key).get(), EVP_sha256());
    made.certificate_file = write(name + ".pem", pem([&](BIO* out) { PEM_write_bio_X509(out, x); }));
    made.key_file =
        write(name + ".key", pem([&](BIO* out) {
                PEM_write_bio_PrivateKey(out, made.key.get(), nullptr, nullptr, 0, nullptr, nullptr);
              }));
    return made;
  }

  // The file appears whole, also in place of an earlier one.
  std::string write(const std::string& name, const std::string& text) {
    const std::string file = folder_ / name, part = file + ".part";
    std::ofstream(part) << text;
    chmod(part.c_str(), 0600);
    std::filesystem::rename(part, file);
    return file;
  }

 private:
  template <typename Write>
  static std::string pem(Write&& to) {
    const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), BIO_free);
    to(out.get());
    char* text = nullptr;
    const long size = BIO_get_mem_data(out.get(), &text);
    return {text, static_cast<std::size_t>(size)};
  }
  static void extend(X509* x, X509V3_CTX& context, int nid, const char* value) {
    const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
        X509V3_EXT_conf_nid(nullptr, &context, nid, value), X509_EXTENSION_free);
    X509_add_ext(x, extension.get(), -1);
  }

  const std::filesystem::path folder_;
  long serial_ = 0;
};

}  // namespace carillon
