// The identity of a server of https.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace espalier::net {

// Files in PEM. Without a certificate a server speaks plain HTTP.
struct TlsFiles {
  std::string certificate;   // with those that signed it, its own first
  std::string key;           // empty: in `certificate`
  std::string key_password;  // where it is encrypted
  std::string client_ca;  // clients must show a certificate that one of these signed; empty: none
};

// What clients that offer protocols (ALPN) must offer.
enum class TlsProtocol { kHttp11, kHttp2 };

class TlsContext;
// Null without a certificate. kInvalidArgument names the file that cannot be used, a key that is not
// the certificate's, or a file that needs a certificate beside it; by the flags of servers.
Result<std::shared_ptr<const TlsContext>> read_tls(const TlsFiles& files,
                                                   TlsProtocol protocol = TlsProtocol::kHttp11);

}  // namespace espalier::net
