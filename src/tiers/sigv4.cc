#include "tiers/sigv4.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <iterator>

#include "base/check.h"

namespace espalier {
namespace {

using Digest256 = std::array<unsigned char, 32>;

std::string hex_of(const Digest256& digest) {
  std::string text;
  for (const unsigned char byte : digest) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

std::string_view as_text(const Digest256& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

Digest256 hmac_sha256(std::string_view key, std::string_view text) {
  Digest256 out;
  unsigned int size = 0;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  ESP_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, text.size(),
                 out.data(), &size) != nullptr &&
            size == out.size());
  return out;
}

}  // namespace

std::string hex_sha256(std::string_view bytes) {
  Digest256 out;
  unsigned int size = 0;
  ESP_CHECK(EVP_Digest(bytes.data(), bytes.size(), out.data(), &size, EVP_sha256(), nullptr) == 1 &&
            size == out.size());
  return hex_of(out);
}

std::string uri_encode(std::string_view text, bool encodes_slash) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  std::string out;
  for (const char c : text) {
    if (kPlain.find(c) != std::string_view::npos || (c == '/' && !encodes_slash)) {
      out += c;
    } else {
      fmt::format_to(std::back_inserter(out), "%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string sigv4_time(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::string sigv4_authorization(const SigV4Key& key, SigV4Request request, std::string_view time) {
  std::ranges::sort(request.headers);
  std::string names,
      canonical = fmt::format("{}\n{}\n{}\n", request.method, request.path, request.query);
  for (const auto& [name, value] : request.headers) {
    names += names.empty() ? name : ";" + name;
    canonical += fmt::format("{}:{}\n", name, value);
  }
  canonical += fmt::format("\n{}\n{}", names, request.body_hash);

  const std::string_view date = time.substr(0, 8);
  const std::string scope = fmt::format("{}/{}/{}/aws4_request", date, key.region, key.service);
  const std::string to_sign =
      fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope, hex_sha256(canonical));
  const Digest256 of_date = hmac_sha256("AWS4" + key.secret_access_key, date);
  const Digest256 of_region = hmac_sha256(as_text(of_date), key.region);
  const Digest256 of_service = hmac_sha256(as_text(of_region), key.service);
  const Digest256 signing_key = hmac_sha256(as_text(of_service), "aws4_request");
  return fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                     key.access_key_id, scope, names,
                     hex_of(hmac_sha256(as_text(signing_key), to_sign)));
}

}  // namespace espalier
