// TLS for the client, between the socket and HTTP: bytes in, bytes out, no system calls. Internal
// to the room; OpenSSL stays behind it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace espalier::net {

// Whom the client trusts. Immutable; thread-safe.
class TlsContext {
 public:
  // `ca_file`: certificates in PEM that are trusted; "": the system's.
  static Result<std::shared_ptr<const TlsContext>> create(const std::string& ca_file);
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
  // The server must show a certificate for `host`, a name or an address.
  static Result<std::unique_ptr<Tls>> create(std::shared_ptr<const TlsContext> context,
                                             const std::string& host);
  ~Tls();

  // True once both sides agree; until then send output() and feed() what comes.
  Result<bool> handshake();
  Status encrypt(std::string_view plain);
  std::string output();  // what is to be sent, taken
  void feed(std::string_view received);
  // Appends what is readable; false once the server has ended the stream.
  Result<bool> decrypt(std::string& out);

 private:
  struct Impl;
  explicit Tls(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier::net
