// Which addresses belong to the public internet: what a client may make a server connect to.
#pragma once

struct sockaddr;

namespace espalier::net {

// False for loopback, private, link-local, carrier-grade, multicast, documentation and reserved
// addresses, for IPv6 addresses that stand for or lead to such an IPv4 address (mapped, 6to4,
// Teredo, NAT64), and for what is neither IPv4 nor IPv6. Source: the special-purpose registries of
// IANA (RFC 6890). Pure.
bool is_public_address(const sockaddr& address);

}  // namespace espalier::net
