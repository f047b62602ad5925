// TLS 1.2 and 1.3 between a socket and HTTP, for both sides: bytes in, bytes out, no system calls.
// Internal to the room; OpenSSL stays behind it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/client_tls.h"
#include "net/http_server.h"

namespace espalier::net {

// Whom a client trusts, or what a server shows. Immutable; thread-safe.
class TlsContext {
 public:
  // kInvalidArgument names the file that cannot be used.
  static Result<std::shared_ptr<const TlsContext>> for_client(const ClientTlsFiles& files);
  // kInvalidArgument names the file that cannot be used.
  static Result<std::shared_ptr<const TlsContext>> for_server(
      const TlsFiles& files, TlsProtocol protocol = TlsProtocol::kHttp11);
  ~TlsContext();

 private:
  friend class Tls;
  struct Impl;
  explicit TlsContext(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// One connection. Not thread-safe.
class Tls {
 public:
  // The client's side. The server must show a certificate for `host`, a name or an address.
  static Result<std::unique_ptr<Tls>> connect(std::shared_ptr<const TlsContext> context,
                                              const std::string& host);
  // The server's side.
  static Result<std::unique_ptr<Tls>> accept(std::shared_ptr<const TlsContext> context);
  ~Tls();

  // True once both sides agree; until then send output() and feed() what comes.
  Result<bool> handshake();
  Status encrypt(std::string_view plain);
  std::string output();  // what is to be sent, taken
  void feed(std::string_view received);
  // Appends what is readable; false once the other side has ended the stream.
  Result<bool> decrypt(std::string& out);
  // The number of bytes put into `out`; 0: none is readable, or the stream has ended.
  Result<size_t> decrypt(std::span<char> out);
  bool has_ended() const;  // the other side's stream
  bool has_input() const;  // of what was fed, some is not decrypted
  void end();              // our stream (close_notify, in output())

 private:
  struct Impl;
  explicit Tls(std::unique_ptr<Impl> impl);
  static Result<std::unique_ptr<Tls>> create(std::shared_ptr<const TlsContext> context);
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier::net
