#include "net/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace espalier::net {
namespace {

Status tls_error(std::string_view what) {
  char text[256] = "";
  if (const unsigned long code = ERR_get_error(); code != 0)
    ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return error(StatusCode::kUnavailable, "TLS: {}{}{}", what, *text != '\0' ? ": " : "", text);
}

bool is_address(const std::string& host) {
  unsigned char bytes[16];
  return ::inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

}  // namespace

struct TlsContext::Impl {
  SSL_CTX* context = nullptr;
  ~Impl() { SSL_CTX_free(context); }
};

TlsContext::TlsContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsContext::~TlsContext() = default;

Result<std::shared_ptr<const TlsContext>> TlsContext::create(const std::string& ca_file) {
  auto impl = std::make_unique<Impl>();
  impl->context = SSL_CTX_new(TLS_client_method());
  if (impl->context == nullptr) return fail(tls_error("no context"));
  SSL_CTX_set_min_proto_version(impl->context, TLS1_2_VERSION);
  SSL_CTX_set_verify(impl->context, SSL_VERIFY_PEER, nullptr);
  const int loaded = ca_file.empty()
                         ? SSL_CTX_set_default_verify_paths(impl->context)
                         : SSL_CTX_load_verify_locations(impl->context, ca_file.c_str(), nullptr);
  if (loaded != 1)
    return fail(tls_error("the trusted certificates cannot be read" +
                          (ca_file.empty() ? "" : " from " + ca_file)));
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(impl)));
}

struct Tls::Impl {
  std::shared_ptr<const TlsContext> context;
  SSL* ssl = nullptr;
  BIO *in = nullptr, *out = nullptr;  // of `ssl`
  std::string host;
  ~Impl() { SSL_free(ssl); }
};

Tls::Tls(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tls::~Tls() = default;

Result<std::unique_ptr<Tls>> Tls::create(std::shared_ptr<const TlsContext> context,
                                         const std::string& host) {
  auto impl = std::make_unique<Impl>();
  impl->context = std::move(context);
  impl->host = host;
  impl->ssl = SSL_new(impl->context->impl_->context);
  impl->in = BIO_new(BIO_s_mem());
  impl->out = BIO_new(BIO_s_mem());
  if (impl->ssl == nullptr || impl->in == nullptr || impl->out == nullptr) {
    BIO_free(impl->in);
    BIO_free(impl->out);
    return fail(tls_error("no connection"));
  }
  SSL_set_bio(impl->ssl, impl->in, impl->out);
  SSL_set_connect_state(impl->ssl);
  bool good;
  if (is_address(host)) {
    good = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(impl->ssl), host.c_str()) == 1;
  } else {
    good = SSL_set1_host(impl->ssl, host.c_str()) == 1 &&
           SSL_set_tlsext_host_name(impl->ssl, host.c_str()) == 1;
  }
  if (!good) return fail(tls_error("host \"" + host + "\""));
  return std::unique_ptr<Tls>(new Tls(std::move(impl)));
}

Result<bool> Tls::handshake() {
  ERR_clear_error();
  const int done = SSL_do_handshake(impl_->ssl);
  if (done == 1) return true;
  if (SSL_get_error(impl_->ssl, done) == SSL_ERROR_WANT_READ) return false;
  if (const long verified = SSL_get_verify_result(impl_->ssl); verified != X509_V_OK)
    return fail(error(StatusCode::kPermissionDenied,
                      "TLS: the certificate of {} is not trusted: {}", impl_->host,
                      X509_verify_cert_error_string(verified)));
  return fail(tls_error("no agreement with " + impl_->host));
}

Status Tls::encrypt(std::string_view plain) {
  ERR_clear_error();
  while (!plain.empty()) {
    size_t written = 0;
    if (SSL_write_ex(impl_->ssl, plain.data(), plain.size(), &written) != 1)
      return tls_error("cannot send");
    plain.remove_prefix(written);
  }
  return {};
}

std::string Tls::output() {
  std::string bytes(BIO_ctrl_pending(impl_->out), '\0');
  if (!bytes.empty()) BIO_read(impl_->out, bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

void Tls::feed(std::string_view received) {
  BIO_write(impl_->in, received.data(), static_cast<int>(received.size()));
}

Result<bool> Tls::decrypt(std::string& out) {
  ERR_clear_error();
  char chunk[16 << 10];
  while (true) {
    size_t n = 0;
    const int done = SSL_read_ex(impl_->ssl, chunk, sizeof chunk, &n);
    if (done == 1) {
      out.append(chunk, n);
      continue;
    }
    switch (SSL_get_error(impl_->ssl, done)) {
      case SSL_ERROR_WANT_READ:
        return true;
      case SSL_ERROR_ZERO_RETURN:
        return false;
      default:
        return fail(tls_error("cannot read"));
    }
  }
}

}  // namespace espalier::net
