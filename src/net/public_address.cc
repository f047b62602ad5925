#include "net/public_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

namespace espalier::net {
namespace {

struct Range4 {
  uint32_t first = 0;
  int bits = 0;
};

constexpr uint32_t v4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return a << 24 | b << 16 | c << 8 | d;
}

constexpr Range4 kSpecial4[] = {
    {v4(0, 0, 0, 0), 8},      {v4(10, 0, 0, 0), 8},     {v4(100, 64, 0, 0), 10},
    {v4(127, 0, 0, 0), 8},    {v4(169, 254, 0, 0), 16}, {v4(172, 16, 0, 0), 12},
    {v4(192, 0, 0, 0), 24},   {v4(192, 0, 2, 0), 24},   {v4(192, 88, 99, 0), 24},
    {v4(192, 168, 0, 0), 16}, {v4(198, 18, 0, 0), 15},  {v4(198, 51, 100, 0), 24},
    {v4(203, 0, 113, 0), 24}, {v4(224, 0, 0, 0), 4},    {v4(240, 0, 0, 0), 4},
};

bool is_public4(uint32_t address) {
  return std::ranges::none_of(kSpecial4, [&](const Range4& range) {
    return (address ^ range.first) >> (32 - range.bits) == 0;
  });
}

using Bytes6 = std::array<uint8_t, 16>;

bool starts_with(const Bytes6& address, std::span<const uint8_t> prefix) {
  return std::ranges::equal(prefix, std::span(address).first(prefix.size()));
}

bool is_public6(const Bytes6& a) {
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (starts_with(a, kMapped)) return is_public4(v4(a[12], a[13], a[14], a[15]));
  if (a[0] >> 5 != 1) return false;  // 2000::/3 is all that is given to networks
  constexpr std::array<uint8_t, 2> k6to4 = {0x20, 0x02};
  constexpr std::array<uint8_t, 4> kDocumentation = {0x20, 0x01, 0x0d, 0xb8};
  constexpr std::array<uint8_t, 2> kDocumentation2 = {0x3f, 0xff};
  const bool protocols = a[0] == 0x20 && a[1] == 0x01 && a[2] < 2;  // 2001::/23: Teredo and others
  return !starts_with(a, k6to4) && !starts_with(a, kDocumentation) &&
         !starts_with(a, kDocumentation2) && !protocols;
}

}  // namespace

bool is_public_address(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address, sizeof in);
    return is_public4(ntohl(in.sin_addr.s_addr));
  }
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 in{};
  std::memcpy(&in, &address, sizeof in);
  Bytes6 bytes{};
  std::memcpy(bytes.data(), in.sin6_addr.s6_addr, bytes.size());
  return is_public6(bytes);
}

}  // namespace espalier::net
