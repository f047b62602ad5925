// A copy of the prefix cache's radix tree for observers, made by reading a few nodes at a time, and
// what has changed in it since an earlier reading. Internal to the room.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "net/http.h"
#include "seams/cache_nodes.h"
#include "server/away_nodes.h"

namespace espalier::server {

// Readings of the whole tree have numbers 1, 2, 3 ... A node counts as changed by a reading that
// finds it new or in any way different, and as removed by one that does not find it. Nodes that
// only tiers below the device have count as nodes. Not thread-safe.
class TreeMirror {
 public:
  static constexpr uint32_t kNumbersMax = 65536;  // of the tree's nodes: a page cannot draw more
  // Of removed nodes; a reader who comes later than these reach back gets the whole tree.
  static constexpr size_t kRemovedMax = 65536;

  // A reading: begin(), then the answer of each query for nodes, then end_of_tree(), then end().
  void begin() { ++reading_; }
  void add(const CacheNodes& read);
  // The pages of which end() wants to know which tiers have them; none without tiers.
  std::vector<PageName> end_of_tree();
  void end(const std::vector<uint8_t>& tiers_of_names);

  struct Changes {
    uint64_t reading = 0;                 // the last one, from which the caller goes on
    bool whole = false;                   // forget what you have: `nodes` are all there are
    std::vector<const CacheNode*> nodes;  // valid until the next begin()
    std::vector<uint32_t> removed;
    size_t num_nodes = 0;  // of the tree, which may be more than a reading takes
    uint64_t now = 0;
    bool has_tiers = false;
  };
  // What readings after `since` have found; 0: the whole tree.
  Changes changes(uint64_t since) const;

 private:
  struct Seen {
    CacheNode node;
    uint64_t changed = 0, seen = 0;  // readings
    PageName parent_end;             // the last page of the parent; empty: it is a root
    // The node when it was longest: eviction takes its last pages first.
    PageName full_name;
    int32_t full_end = 0;
  };
  struct Removed {
    uint32_t number = 0;
    uint64_t reading = 0;
  };
  void add_node(const CacheNode& node);
  void follow(const Seen& lost);
  void find_parent(Seen& seen);
  const std::string& name_space_of(const CacheNode& node) const;

  uint64_t reading_ = 0;
  std::unordered_map<uint32_t, Seen> nodes_;
  AwayNodes away_{kNumbersMax};
  std::deque<Removed> removed_;
  uint64_t forgotten_ = 0;  // the last reading of whose removals some are no longer listed
  size_t num_nodes_ = 0;
  uint64_t now_ = 0;
  bool has_tiers_ = false;
};

// Reads an engine's tree when a client asks, and once for all that ask meanwhile. One query is
// under way at a time, so the scheduler's thread copies at most kNodesPerStep nodes between two
// steps and does nothing else of it; with nobody asking nothing is read. Thread-safe. The engine
// outlives it.
class TreeWatch : public std::enable_shared_from_this<TreeWatch> {
 public:
  static constexpr uint32_t kNodesPerStep = 512;
  static constexpr size_t kNamesPerStep = 256;

  using Write = std::string (*)(const TreeMirror::Changes&);  // an answer's JSON
  TreeWatch(Engine& engine, Write write) : engine_(engine), write_(write) {}

  // Reads the tree and answers with what has changed since that reading. The work is done on the
  // connection's I/O thread.
  void read(uint64_t since, net::ResponsePtr response);

 private:
  struct Waiting {
    uint64_t since = 0;
    net::ResponsePtr response;
  };
  void begin();
  void query(CacheNodesQuery query, const net::ResponsePtr& response);
  void on_nodes(const Result<CacheNodes>& read, const net::ResponsePtr& response);
  bool go_on(const CacheNodes& read, const net::ResponsePtr& response);
  void answer(const Result<CacheNodes>& last);

  Engine& engine_;
  const Write write_;
  std::mutex mutex_;
  TreeMirror mirror_;             // guarded, as are:
  std::vector<Waiting> waiting_;  // for the reading under way; empty: there is none
  std::vector<Waiting> next_;     // came during it, and may not have what it has read
  // Of the reading under way: what tiers are asked for, and what they have answered.
  bool in_tree_ = false;
  std::vector<PageName> names_;
  std::vector<uint8_t> tiers_;
};

// One that answers as GET /cache_tree does (observer_routes.cc).
std::shared_ptr<TreeWatch> make_tree_watch(Engine& engine);

}  // namespace espalier::server
