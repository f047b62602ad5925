// The key of a prompt, by which a router chooses a worker for its request and an engine a replica:
// the chained hashes of the prompt's blocks. Two prompts share
// their first n blocks exactly where their first n hashes are equal, so a whole prefix is compared
// by one number and the prompt itself is never kept.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace espalier {

// Bytes of text, or of token ids of 4 bytes each, in a block: about 16 tokens of either. What
// follows the last whole block is not part of a key, so a prompt of less than a block has an empty
// key.
inline constexpr size_t kBlockBytes = 64;
inline constexpr int64_t kTokensPerBlock = 16;

// hashes[i] depends on the name space and on all bytes up to the end of block i. The hash is not
// cryptographic: a collision sends a request to a worker that lacks its prefix, and does no other
// harm.
using PrefixKey = std::vector<uint64_t>;

// The start of the chain. Prompts of different name spaces (model, adapter, tools, tenant) share no
// block. It is the same in every process, so that routers agree.
uint64_t name_space_hash(std::string_view name_space);

PrefixKey text_key(std::string_view text, uint64_t name_space);
PrefixKey token_key(std::span<const int32_t> tokens, uint64_t name_space);

}  // namespace espalier
