// A private key and its certificate for tests of https, in files of their own.
#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

namespace espalier::net {

// For `name` ("IP:127.0.0.1"); signs itself. The files are removed with the object.
struct Identity {
  // `password`: of the key's file; "": it is not encrypted.
  explicit Identity(const char* name, const std::string& password = "") {
    static std::atomic<int> num_made{0};
    const std::string stem = ::testing::TempDir() + "net_identity_" + std::to_string(::getpid()) +
                             "_" + std::to_string(num_made++);
    file = stem + ".pem";
    key_file = stem + ".key";
    make_certificate(name);
    write_files(password);
  }
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;
  ~Identity() {
    std::remove(file.c_str());
    std::remove(key_file.c_str());
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  EVP_PKEY* key = nullptr;
  X509* certificate = nullptr;
  std::string file, key_file;

 private:
  void make_certificate(const char* name) {
    key = EVP_EC_gen("P-256");
    certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME* subject = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(certificate, subject);
    X509_EXTENSION* names =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, const_cast<char*>(name));
    X509_add_ext(certificate, names, -1);
    X509_EXTENSION_free(names);
    X509_sign(certificate, key, EVP_sha256());
  }
  void write_files(const std::string& password) {
    FILE* out = std::fopen(file.c_str(), "w");
    PEM_write_X509(out, certificate);
    std::fclose(out);
    out = std::fopen(key_file.c_str(), "w");
    PEM_write_PrivateKey(out, key, password.empty() ? nullptr : EVP_aes_128_cbc(),
                         reinterpret_cast<const unsigned char*>(password.data()),
                         static_cast<int>(password.size()), nullptr, nullptr);
    std::fclose(out);
  }
};

}  // namespace espalier::net
