// Whose cached prefixes a request may find: those of requests with the same key and the same salt.
#pragma once

#include <string>
#include <string_view>

namespace espalier::server {

// One name for the pair (extra_key, cache_salt), different for different pairs: "key", or
// "key/salt" where there is a salt. What divides them is escaped in the key, so that ("a/b", "")
// and ("a", "b") stay apart.
inline std::string cache_namespace(std::string_view extra_key, std::string_view cache_salt) {
  std::string name;
  for (const char c : extra_key) {
    if (c == '/' || c == '\\') name += '\\';
    name += c;
  }
  if (!cache_salt.empty()) (name += '/') += cache_salt;
  return name;
}

}  // namespace espalier::server
