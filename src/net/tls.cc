#include "net/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>

namespace espalier::net {
namespace {

// ": " and why OpenSSL failed; "" where it does not say.
std::string openssl_reason() {
  char text[256] = "";
  if (const unsigned long code = ERR_get_error(); code != 0)
    ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return *text != '\0' ? fmt::format(": {}", text) : "";
}

Status tls_error(std::string_view what) {
  return error(StatusCode::kUnavailable, "TLS: {}{}", what, openssl_reason());
}

Status bad_file(std::string_view what, const std::string& file) {
  return invalid_argument("TLS: {} {} cannot be used{}", what, file, openssl_reason());
}

// Without a password an encrypted key is an error; OpenSSL would ask the terminal.
int give_password(char* to, int size, int /*writing*/, void* password) {
  const auto& text = *static_cast<const std::string*>(password);
  if (text.size() > static_cast<size_t>(size)) return 0;
  std::copy(text.begin(), text.end(), to);
  return static_cast<int>(text.size());
}

// `wanted`: a text, of which the protocol is a length and a name.
int choose_protocol(SSL* /*ssl*/, const unsigned char** chosen, unsigned char* length,
                    const unsigned char* offered, unsigned int offered_length, void* wanted) {
  const auto* const name = static_cast<const std::string_view*>(wanted);
  const int found =
      SSL_select_next_proto(const_cast<unsigned char**>(chosen), length,
                            reinterpret_cast<const unsigned char*>(name->data()),
                            static_cast<unsigned int>(name->size()), offered, offered_length);
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

Status load_identity(SSL_CTX* context, const TlsFiles& files) {
  std::string password = files.key_password;
  const std::string& key = files.key.empty() ? files.certificate : files.key;
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1)
    return bad_file("the certificate", files.certificate);
  SSL_CTX_set_default_passwd_cb(context, give_password);
  SSL_CTX_set_default_passwd_cb_userdata(context, &password);
  const int loaded = SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM);
  SSL_CTX_set_default_passwd_cb_userdata(context, nullptr);
  SSL_CTX_set_default_passwd_cb(context, nullptr);
  if (loaded == 1) return {};
  if (ERR_GET_REASON(ERR_peek_last_error()) != X509_R_KEY_VALUES_MISMATCH)
    return bad_file("the private key", key);
  ERR_clear_error();
  return invalid_argument("TLS: the private key {} is not that of the certificate {}", key,
                          files.certificate);
}

Status require_client_certificates(SSL_CTX* context, const std::string& ca_file) {
  STACK_OF(X509_NAME)* const names = SSL_load_client_CA_file(ca_file.c_str());
  if (names == nullptr || SSL_CTX_load_verify_locations(context, ca_file.c_str(), nullptr) != 1) {
    sk_X509_NAME_pop_free(names, X509_NAME_free);
    return bad_file("the file of client authorities", ca_file);
  }
  SSL_CTX_set_client_CA_list(context, names);  // which owns them
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return {};
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

Result<std::shared_ptr<const TlsContext>> TlsContext::for_client(const ClientTlsFiles& files) {
  ERR_clear_error();
  auto impl = std::make_unique<Impl>();
  SSL_CTX* const context = impl->context = SSL_CTX_new(TLS_client_method());
  if (context == nullptr) return fail(tls_error("no context"));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  if (files.ca.empty()) {
    if (SSL_CTX_set_default_verify_paths(context) != 1)
      return fail(tls_error("the system's trusted certificates cannot be read"));
  } else if (SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr) != 1) {
    return fail(bad_file("the file of trusted authorities", files.ca));
  }
  if (!files.certificate.empty())
    ESP_RETURN_IF_ERROR(
        load_identity(context, {.certificate = files.certificate, .key = files.key}));
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(impl)));
}

Result<std::shared_ptr<const TlsContext>> TlsContext::for_server(const TlsFiles& files,
                                                                 TlsProtocol protocol) {
  ERR_clear_error();
  auto impl = std::make_unique<Impl>();
  SSL_CTX* const context = impl->context = SSL_CTX_new(TLS_server_method());
  if (context == nullptr) return fail(tls_error("no context"));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);  // an idle connection holds no 32 KiB
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);  // clients resume with tickets
  static constexpr unsigned char kSessions[] = "espalier";
  SSL_CTX_set_session_id_context(context, kSessions, sizeof kSessions - 1);
  static constinit std::string_view http11 = "\x08http/1.1", http2 = "\x02h2";
  SSL_CTX_set_alpn_select_cb(context, choose_protocol,
                             protocol == TlsProtocol::kHttp2 ? &http2 : &http11);
  ESP_RETURN_IF_ERROR(load_identity(context, files));
  if (!files.client_ca.empty())
    ESP_RETURN_IF_ERROR(require_client_certificates(context, files.client_ca));
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(impl)));
}

struct Tls::Impl {
  std::shared_ptr<const TlsContext> context;
  SSL* ssl = nullptr;
  BIO *in = nullptr, *out = nullptr;  // of `ssl`
  std::string peer;                   // in errors
  ~Impl() { SSL_free(ssl); }
};

Tls::Tls(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tls::~Tls() = default;

Result<std::unique_ptr<Tls>> Tls::create(std::shared_ptr<const TlsContext> context) {
  auto impl = std::make_unique<Impl>();
  impl->context = std::move(context);
  impl->ssl = SSL_new(impl->context->impl_->context);
  impl->in = BIO_new(BIO_s_mem());
  impl->out = BIO_new(BIO_s_mem());
  if (impl->ssl == nullptr || impl->in == nullptr || impl->out == nullptr) {
    BIO_free(impl->in);
    BIO_free(impl->out);
    return fail(tls_error("no connection"));
  }
  SSL_set_bio(impl->ssl, impl->in, impl->out);
  return std::unique_ptr<Tls>(new Tls(std::move(impl)));
}

Result<std::unique_ptr<Tls>> Tls::connect(std::shared_ptr<const TlsContext> context,
                                          const std::string& host) {
  ESP_ASSIGN_OR_RETURN(std::unique_ptr<Tls> tls, create(std::move(context)));
  SSL* const ssl = tls->impl_->ssl;
  tls->impl_->peer = host;
  SSL_set_connect_state(ssl);
  bool good;
  if (is_address(host)) {
    good = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1;
  } else {
    good =
        SSL_set1_host(ssl, host.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, host.c_str()) == 1;
  }
  if (!good) return fail(tls_error("host \"" + host + "\""));
  return tls;
}

Result<std::unique_ptr<Tls>> Tls::accept(std::shared_ptr<const TlsContext> context) {
  ESP_ASSIGN_OR_RETURN(std::unique_ptr<Tls> tls, create(std::move(context)));
  tls->impl_->peer = "the client";
  SSL_set_accept_state(tls->impl_->ssl);
  return tls;
}

Result<bool> Tls::handshake() {
  ERR_clear_error();
  const int done = SSL_do_handshake(impl_->ssl);
  if (done == 1) return true;
  if (SSL_get_error(impl_->ssl, done) == SSL_ERROR_WANT_READ) return false;
  if (const long verified = SSL_get_verify_result(impl_->ssl); verified != X509_V_OK)
    return fail(error(StatusCode::kPermissionDenied,
                      "TLS: the certificate of {} is not trusted: {}", impl_->peer,
                      X509_verify_cert_error_string(verified)));
  return fail(tls_error("no agreement with " + impl_->peer));
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

Result<size_t> Tls::decrypt(std::span<char> out) {
  ERR_clear_error();
  size_t n = 0;
  const int done = SSL_read_ex(impl_->ssl, out.data(), out.size(), &n);
  if (done == 1) return n;
  const int why = SSL_get_error(impl_->ssl, done);
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_ZERO_RETURN) return size_t{0};
  return fail(tls_error("cannot read"));
}

Result<bool> Tls::decrypt(std::string& out) {
  char chunk[16 << 10];
  while (true) {
    ESP_ASSIGN_OR_RETURN(const size_t n, decrypt(std::span<char>(chunk)));
    if (n == 0) return !has_ended();
    out.append(chunk, n);
  }
}

bool Tls::has_ended() const { return (SSL_get_shutdown(impl_->ssl) & SSL_RECEIVED_SHUTDOWN) != 0; }

bool Tls::has_input() const {
  return SSL_has_pending(impl_->ssl) == 1 || BIO_ctrl_pending(impl_->in) > 0;
}

void Tls::end() {
  ERR_clear_error();
  SSL_shutdown(impl_->ssl);  // the answer of the other side is read where it comes
  ERR_clear_error();
}

Result<std::shared_ptr<const TlsContext>> read_tls(const TlsFiles& files, TlsProtocol protocol) {
  if (files.certificate.empty()) {
    if (files.key.empty() && files.key_password.empty() && files.client_ca.empty()) return nullptr;
    return fail(invalid_argument("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile"));
  }
  auto read = TlsContext::for_server(files, protocol);
  if (!read) return fail(read.error().with_context("--ssl-certfile, --ssl-keyfile"));
  return read;
}

Result<std::shared_ptr<const TlsContext>> read_client_tls(const ClientTlsFiles& files) {
  if (files.certificate.empty() && !files.key.empty())
    return fail(invalid_argument("the private key {} needs a certificate beside it", files.key));
  return TlsContext::for_client(files);
}

}  // namespace espalier::net
