// The waiting sequences as a radix tree of their prompts: an index for the policies that order by
// prefix. Sequences that share a prompt's beginning are ranked by one node, so a change of the
// cache moves a few nodes and never each of a hundred thousand sequences.
//
// For lpm each node bounds from above how many tokens of its path are cached. Insertions into the
// cache raise the bound at once (on_stored); an eviction is found when a sequence comes first and
// matches less than its node's bound. So the order is exact, at O(log n) a sequence.
//
//   cached node    part of its own run is cached: it ranks its uncached descendants as one group
//   uncached node  nothing of its run is cached: it is a member of its parent, ranked with the
//   others
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

  void add(Sequence& sequence);  // by its tokens up to match_limit() and its rank order
  void remove(Sequence& sequence);
  int32_t size() const { return size_; }

  // The cache holds these tokens now.
  void on_stored(std::string_view cache_namespace, std::span<const TokenId> tokens);

  // Who goes first of those that are not set deferred; null when there is nobody. Its `matched` is
  // up to date with kLongestMatch.
  Sequence* first();

  // Defers a sequence, and with it all that share its first `num_tokens` (more than are cached;
  // beyond its end: itself alone), until restore_deferred().
  void defer(Sequence& sequence, int32_t num_tokens);
  void restore_deferred();

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
  void mark_cached(Node* node, int32_t cached);
  void mark_uncached(Node* node);
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
  Members groups_;                                                  // cached nodes with members
  Node* current_group_ = nullptr;  // depth first: where it went last
  std::vector<Node*> deferred_nodes_;
  std::vector<Sequence*> deferred_sequences_;
};

}  // namespace espalier
