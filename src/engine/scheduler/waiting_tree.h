// The sequences that wait, as a radix tree of their prompts: an index for the policies that look at
// prefixes. Sequences that share a prompt's beginning are ranked by one node, so what changes in
// the cache moves a few nodes, never each of a hundred thousand sequences.
//
// For lpm each node bounds from above how much of its path is cached. What the cache takes in is
// told at once; what it evicts is found out when a sequence comes first and does not match as much
// as its node says. So the order is exact, at O(log n) a sequence.
//
//   loud   a node of whose own run something is cached: it ranks its quiet part by itself
//   quiet  nothing of its run is: it stands among its parent's members, ranked with them
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/scheduler/sequence.h"

namespace espalier {

// Lowest goes first.
struct WaitingKey {
  int64_t tier = 0;
  int64_t order = 0;
  friend auto operator<=>(const WaitingKey&, const WaitingKey&) = default;
};

// Borrows the sequences, whose tokens must not change while they are in it. Not thread-safe.
class WaitingTree {
 public:
  enum class Order : uint8_t {
    kLongestMatch,  // longest cached prefix, then order of arrival
    kDepthFirst,    // whole subtrees after one another, those of more sequences first
  };
  WaitingTree(Order order, const PrefixCache& cache);
  ~WaitingTree();

  void add(Sequence& sequence);  // by its tokens up to match_limit() and its waiting_rank.order
  void remove(Sequence& sequence);
  int32_t size() const { return size_; }

  // The cache holds these tokens now.
  void on_stored(std::string_view cache_namespace, std::span<const TokenId> tokens);

  // Who goes first of those that are not set aside; null when there is nobody. Its `matched` is up
  // to date with kLongestMatch.
  Sequence* first();

  // Sets a sequence aside, and with it all that share its first `num_tokens` (more than are cached;
  // beyond its end: itself alone), until take_back().
  void set_aside(Sequence& sequence, int32_t num_tokens);
  void take_back();

  // Aborts unless links, counts, keys and bounds agree.
  void check_invariants() const;

 private:
  friend struct WaitingNode;
  using Node = WaitingNode;
  struct Member {
    WaitingKey key;
    Sequence* sequence = nullptr;  // one of the two
    Node* node = nullptr;
    bool operator<(const Member& other) const { return key < other.key; }
  };
  using Members = std::set<Member>;

  Node* root_of(std::string_view cache_namespace);
  Node* find_child(const Node* parent, std::span<const TokenId> tokens) const;
  void add_child(Node* node);
  void erase_child(Node* node);
  Node* new_node(Node* parent, int32_t begin, int32_t end, Sequence* witness);
  Node* split(Node* node, int32_t num_tokens);
  void delete_if_empty(Node* node);
  void replace_witness(Node* node, const Sequence& gone);
  std::span<const TokenId> run_of(const Node* node) const;
  int32_t common_tokens(const Node* node, std::span<const TokenId> tokens) const;
  uint64_t hash_of(const Node* parent, std::span<const TokenId> tokens) const;

  WaitingKey key_of(const Node* node) const;
  void refresh(Node* node);
  void leave_container(Node* node);
  void link_loud(Node* node);
  void unlink_loud(Node* node);
  void make_loud(Node* node, int32_t cached);
  void make_quiet(Node* node);
  void lower(Node* node, int32_t cached);
  Node* choose(Members& members, Node*& current) const;
  Sequence* first_below(Node* node);
  void check_node(const Node& node) const;

  const Order order_;
  const PrefixCache& cache_;
  const int32_t page_size_;
  int32_t size_ = 0;
  uint64_t next_id_ = 1;
  std::unordered_map<std::string, Node*> roots_;
  std::unordered_multimap<uint64_t, std::unique_ptr<Node>> nodes_;  // by parent and first page
  Members groups_;                                                  // loud nodes that have members
  Node* current_group_ = nullptr;  // depth first: where it went last
  std::vector<Node*> nodes_aside_;
  std::vector<Sequence*> sequences_aside_;
};

}  // namespace espalier
