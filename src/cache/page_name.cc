#include "cache/page_name.h"

#include <algorithm>

#include "base/sha256.h"

namespace espalier {
namespace {

PageName truncated(const Sha256::Digest& digest) {
  PageName name;
  std::copy_n(digest.begin(), name.bytes.size(), name.bytes.begin());
  return name;
}

template <typename T>
void update_little_endian(Sha256& hash, T value) {
  std::byte bytes[sizeof(T)];
  for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  hash.update(bytes);
}

}  // namespace

PageName root_page_name(const PageNameScope& scope, std::string_view adapter,
                        std::string_view cache_namespace) {
  Sha256 hash;
  for (const std::string_view text :
       {std::string_view("espalier.page.1"), std::string_view(scope.model_fingerprint),
        std::string_view(scope.kv_layout), adapter, cache_namespace}) {
    update_little_endian(hash, uint64_t{text.size()});
    hash.update(text);
  }
  return truncated(hash.finish());
}

PageName page_name(const PageName& parent, std::span<const TokenId> tokens) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(parent.bytes)));
  for (const TokenId token : tokens) update_little_endian(hash, static_cast<uint32_t>(token));
  return truncated(hash.finish());
}

}  // namespace espalier
