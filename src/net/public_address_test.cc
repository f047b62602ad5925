#include "net/public_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <string>

namespace espalier::net {
namespace {

bool is_public(const std::string& text) {
  sockaddr_in in{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  if (::inet_pton(AF_INET, text.c_str(), &in.sin_addr) == 1)
    return is_public_address(reinterpret_cast<const sockaddr&>(in));
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  EXPECT_EQ(::inet_pton(AF_INET6, text.c_str(), &in6.sin6_addr), 1) << text;
  return is_public_address(reinterpret_cast<const sockaddr&>(in6));
}

TEST(PublicAddress, TakesTheInternet) {
  for (const char* text :
       {"1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.15.255.255",
        "172.32.0.0", "192.167.255.255", "192.169.0.0", "126.255.255.255", "128.0.0.0",
        "223.255.255.255", "198.17.255.255", "198.20.0.0", "169.253.255.255", "2606:4700::1111",
        "2a00:1450::5", "2001:4860::8888", "::ffff:8.8.8.8"})
    EXPECT_TRUE(is_public(text)) << text;
}

TEST(PublicAddress, RefusesWhatIsNear) {
  for (const char* text :
       {"0.0.0.0",         "0.1.2.3",        "10.0.0.0",        "10.255.255.255",  "100.64.0.1",
        "100.127.255.255", "127.0.0.1",      "127.255.255.254", "169.254.169.254", "172.16.0.1",
        "172.31.255.255",  "192.0.0.8",      "192.0.2.1",       "192.88.99.1",     "192.168.1.1",
        "198.18.0.1",      "198.19.255.255", "198.51.100.7",    "203.0.113.7",     "224.0.0.1",
        "239.1.2.3",       "240.0.0.1",      "255.255.255.255"})
    EXPECT_FALSE(is_public(text)) << text;
}

TEST(PublicAddress, RefusesDisguises) {
  for (const char* text :
       {"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1", "2002:7f00:1::1", "2001:0:1234::1",
        "2001:db8::1", "3fff::1", "fc00::1", "fd12::1", "fe80::1", "fec0::1", "ff02::1", "4000::1"})
    EXPECT_FALSE(is_public(text)) << text;
}

TEST(PublicAddress, KnowsNoOtherFamily) {
  sockaddr_un local{};
  local.sun_family = AF_UNIX;
  EXPECT_FALSE(is_public_address(reinterpret_cast<const sockaddr&>(local)));
}

}  // namespace
}  // namespace espalier::net
