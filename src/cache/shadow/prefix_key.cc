#include "cache/shadow/prefix_key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstring>

#include "base/rng.h"

namespace espalier {

static_assert(std::endian::native == std::endian::little, "keys of tokens are hashed as they lie");

uint64_t name_space_hash(std::string_view name_space) {
  return XXH3_64bits(name_space.data(), name_space.size());
}

PrefixKey text_key(std::string_view text, uint64_t name_space) {
  PrefixKey key(text.size() / kBlockBytes);
  uint64_t chain = name_space;
  for (size_t i = 0; i < key.size(); ++i) {
    // The blocks' own hashes do not wait for each other; only the mixing is a chain.
    chain = mix64(chain ^ XXH3_64bits(text.data() + i * kBlockBytes, kBlockBytes));
    key[i] = chain;
  }
  return key;
}

PrefixKey token_key(std::span<const int32_t> tokens, uint64_t name_space) {
  return text_key({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()}, name_space);
}

}  // namespace espalier
