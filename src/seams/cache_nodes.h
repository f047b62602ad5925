// The nodes of the prefix cache's radix tree, as an observer reads them: a few at a time, between
// two steps. Plain data; owns what it contains.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "seams/page_name.h"
#include "seams/vocab_view.h"

namespace espalier {

// Bits of a set of tiers below the device.
constexpr uint8_t kHostTier = 1, kStorageTier = 2;

// A node, or the root of a namespace. The number stays the node's until it is evicted and may then
// be given to a new one, which has another `created`.
struct CacheNode {
  uint32_t number = 0;     // from 1
  uint32_t parent = 0;     // its number; 0: this is the root of a namespace
  int32_t num_tokens = 0;  // of the edge from the parent to here; 0 for a root
  int32_t end = 0;         // tokens from the root to this node's end
  int32_t num_locks = 0;   // running sequences that read it or a node below it
  bool resident = true;    // the next step can read its keys and values
  uint64_t created = 0;    // times are the cache's count of operations
  uint64_t last_use = 0;
  // Of its first page and its last one, where pages have names (there are tiers or events) and it
  // is resident; else empty, and -1.
  PageName first_name, last_name;
  int32_t first_page = -1, last_page = -1;
  uint8_t tiers = 0;            // those that have a copy of its last page
  std::string name_space;       // of a root
  std::vector<TokenId> tokens;  // the edge's first ones, as many as were asked for
};

// Which numbers to read: [from, from + num_max), `from` at least 1.
struct CacheNodesQuery {
  uint32_t from = 1;
  uint32_t num_max = 1024;  // numbers that are looked at, which bounds the work
  int32_t tokens_max = 0;   // of each node
  std::vector<PageName>
      names;  // of pages, perhaps evicted ones, of which to say which tiers have them
};

// The nodes that exist among those numbers, in their order. Reading all numbers takes several
// queries, between which the tree changes; a node that exists throughout is seen exactly once.
struct CacheNodes {
  std::vector<CacheNode> nodes;
  uint32_t next = 0;     // the first number of the next query; 0: there are no more
  size_t num_nodes = 0;  // of the whole tree, roots not counted
  uint64_t now = 0;      // the cache's count of operations
  bool has_tiers = false;
  std::vector<uint8_t> tiers_of_names;  // for each of the query's names; empty without tiers
};
using CacheNodesDone = std::function<void(Result<CacheNodes>)>;

}  // namespace espalier
