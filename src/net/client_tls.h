// The identity of a client of https, and whom it trusts.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace espalier::net {

// Whom a client of https trusts, and who it is. Files in PEM; each may be empty.
struct ClientTlsFiles {
  std::string ca;           // that signed the servers' certificates; empty: the system's
  std::string certificate;  // the client's own, for servers that ask for one
  std::string key;          // empty: in `certificate`
};

class TlsContext;
// kInvalidArgument names the file that cannot be used, or a key without a certificate.
Result<std::shared_ptr<const TlsContext>> read_client_tls(const ClientTlsFiles& files);

}  // namespace espalier::net
