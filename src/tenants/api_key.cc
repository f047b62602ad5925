#include "tenants/api_key.h"

#include <strings.h>

namespace espalier {

std::string_view api_key_of(const std::string* authorization, const std::string* x_api_key) {
  constexpr std::string_view kScheme = "Bearer ";  // in any case (RFC 9110, 11.1)
  if (authorization != nullptr &&
      ::strncasecmp(authorization->c_str(), kScheme.data(), kScheme.size()) == 0)
    return std::string_view(*authorization).substr(kScheme.size());
  return x_api_key != nullptr ? std::string_view(*x_api_key) : std::string_view();
}

bool same_key(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(key.empty() ? 0 : key[i % key.size()]);
  }
  return difference == 0;
}

}  // namespace espalier
