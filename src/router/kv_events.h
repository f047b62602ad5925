// What workers publish of their prefix caches: the events of vLLM, SGLang and Espalier, read from
// MessagePack.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier::router {

// Where a block lies, from the nearest memory on. A prompt finds a block of the device's at once;
// one of another memory is loaded first.
enum class KvMedium : uint8_t { kDevice, kHost, kDisk, kRemote };
inline constexpr size_t kNumMedia = 4;

// As publishers name it: none or GPU; CPU, CPU_PINNED; DISK and the like. What has another name is
// kRemote, the farthest.
KvMedium kv_medium(std::string_view name);

// What divides the first block of an adapter's prompts from those of others; `extra`: what else
// does.
std::string adapter_extra(std::string_view adapter, std::string_view extra);

// A block is a run of block_size tokens behind its parent's; its hash is the worker's own name for
// it, whatever that is made of.
struct KvEvent {
  enum class Type : uint8_t { kStored, kRemoved, kCleared };
  Type type = Type::kCleared;
  KvMedium medium = KvMedium::kDevice;  // of kCleared: all of them
  std::vector<uint64_t> hashes;
  // kStored; without tokens the blocks are those that the worker has by these names in another
  // memory:
  uint64_t parent = 0;
  bool has_parent = false;      // false: the first block begins a prompt
  std::vector<int32_t> tokens;  // of all blocks
  uint32_t block_size = 0;
  // What divides each block from others of the same tokens: a salt, an adapter (at a prompt's first
  // block), pictures; empty: nothing divides any of them.
  std::vector<std::string> extras;
};

// The events of one message. Arrays (as every release has them) and
// maps are read; unknown members are passed over. kDataLoss says what is wrong.
Result<std::vector<KvEvent>> decode_kv_events(std::string_view message);

}  // namespace espalier::router
