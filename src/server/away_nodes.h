// What tiers below the device keep of evicted nodes of the radix tree, for observers: the tree has
// no nodes for what has left the device. Internal to the room.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "seams/cache_nodes.h"

namespace espalier::server {

// Nodes that were seen in the tree and have left it, each with a number that no node of the tree
// has. A node is followed by the name of its last page and is dropped when no tier has that page,
// when the tree has a node again that begins with the same page, or when its parent is neither in
// the tree nor here. A namespace without nodes in the tree has a root here. Not thread-safe.
class AwayNodes {
 public:
  static constexpr size_t kNodesMax = 4096;  // beyond, nothing is added

  // The nodes here get numbers above this one.
  explicit AwayNodes(uint32_t numbers_after) : next_number_(numbers_after + 1) {}

  // A node as it was last seen, whose pages have names. parent_end: the name of its parent's last
  // page; empty: the parent is the root of the namespace.
  void add(const CacheNode& lost, const PageName& parent_end, const std::string& name_space);

  // The names of the last pages, in an order that stays until settle().
  std::vector<PageName> names() const;

  // A node of the tree, and the name of its last page when it was longest.
  struct Live {
    const CacheNode* node = nullptr;
    const PageName* end = nullptr;
  };
  // Drops what has gone. tiers: of names(), empty where there are none.
  void settle(const std::vector<uint8_t>& tiers, const std::vector<Live>& live);

  // In order of numbers; parents are nodes of the tree or of here.
  std::vector<const CacheNode*> nodes() const;

 private:
  struct Away {
    CacheNode node;
    PageName parent_end;
    std::string name_space;
  };
  struct HashOfName {
    size_t operator()(const PageName& name) const { return static_cast<size_t>(name.prefix64()); }
  };
  // The numbers of nodes by names that are looked for; 0: the tree has none.
  using Numbers = std::unordered_map<PageName, uint32_t, HashOfName>;
  // What of the tree concerns the nodes here.
  struct Known {
    Numbers begins, ends;
    std::map<std::string, uint32_t> roots;
  };
  Known look_for(const std::vector<Live>& live) const;
  uint32_t parent_of(const Away& away, const Known& known);
  uint32_t take_number();

  std::map<uint32_t, Away> away_;           // by number
  std::map<std::string, CacheNode> roots_;  // of namespaces that have none in the tree
  std::set<uint32_t> free_numbers_;
  uint32_t next_number_;
};

}  // namespace espalier::server
