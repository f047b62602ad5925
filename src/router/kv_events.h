// What workers publish of their prefix caches: the events of vLLM, SGLang and Espalier, read from
// MessagePack.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier::router {

// A block is a run of block_size tokens behind its parent's; its hash is the worker's own name for
// it, whatever that is made of.
struct KvEvent {
  enum class Type : uint8_t { kStored, kRemoved, kCleared };
  Type type = Type::kCleared;
  std::vector<uint64_t> hashes;
  // kStored:
  uint64_t parent = 0;
  bool has_parent = false;      // false: the first block begins a prompt
  std::vector<int32_t> tokens;  // of all blocks
  uint32_t block_size = 0;
  // What divides each block from others of the same tokens: a salt, an adapter, pictures; empty:
  // nothing divides any of them.
  std::vector<std::string> extras;
};

// The events of one message, those of other memories than the device's left out: what lies in host
// memory or on disk is no block that a prompt finds at once. Arrays (as every release has them) and
// maps are read; unknown members are passed over. kDataLoss says what is wrong.
Result<std::vector<KvEvent>> decode_kv_events(std::string_view message);

}  // namespace espalier::router
