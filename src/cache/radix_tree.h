// A radix tree over token runs: which prefixes are cached, and in which pages. It knows nothing of
// memory, sequences or models, so the scheduler keeps one of the prompts in flight too.
//
// Source: "SGLang: Efficient Execution of Structured Language Model Programs", section 3
// (RadixAttention). The paper leaves two things open. A split puts the new node ABOVE the old one,
// so a pointer to the old one still stands for its whole run; eviction takes no more of a leaf than
// the caller requests.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/child_table.h"
#include "cache/eviction.h"
#include "cache/eviction_heap.h"
#include "cache/page_record.h"
#include "cache/radix_nodes.h"
#include "seams/cache_nodes.h"

namespace espalier {

class RadixNode;

// Edges are runs of whole pages; a page is `page_size` tokens and bears one page number. Runs of
// different namespaces never meet. Not thread-safe. Pages belong to the tree from the extend() that
// takes them to the evict() that hands them out.
//
// Cost, for n tokens and d nodes on their path: match and lock O(n) at the speed of memcmp plus
// O(d) look-ups in one hash table; extend the same; unlock O(d); evict O(log leaves) a leaf.
class RadixTree {
 public:
  using Token = int32_t;
  using Page = int32_t;

  struct Options {
    int32_t page_size = 1;  // tokens
    bool has_pages = true;  // false: prefixes alone, every `pages` argument is empty
    EvictionPolicy policy = EvictionPolicy::kLru;
    size_t num_nodes_expected = 0;  // the look-up table has room for these without growing
  };

  explicit RadixTree(const Options& options);
  ~RadixTree();
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  // How many leading tokens are in the tree, in whole pages that are resident: a match ends at the
  // first node that is not. `num_loadable` returns how many tokens behind the match are cached in
  // another home, for a loader. Modifies nothing.
  int32_t match(std::string_view name_space, std::span<const Token> tokens,
                int32_t* num_loadable = nullptr) const;
  // The same, and appends the match's pages.
  int32_t match_pages(std::string_view name_space, std::span<const Token> tokens,
                      std::vector<Page>& pages) const;

  // Matches as match() and protects: until unlock() nothing of the matched run is evicted. Appends
  // the run's pages to `pages`. The node is the run's end (the namespace's root for an empty
  // match).
  RadixNode* lock(std::string_view name_space, std::span<const Token> tokens,
                  std::vector<Page>* pages = nullptr, int32_t priority = 0);
  void unlock(RadixNode* node);
  static int32_t num_tokens_to(const RadixNode* node);  // from the root to the node's end
  // The child whose run has the same first page as `tokens`, at least a page; null: there is none.
  RadixNode* child_of(const RadixNode* node, std::span<const Token> tokens) const;
  // On the node's path: these become evictable with unlock().
  int32_t num_pages_locked_once(const RadixNode* node) const;

  struct Extension {
    RadixNode* node = nullptr;       // the run's end; the caller's lock has moved here
    int32_t num_tokens_present = 0;  // of the run, in resident pages that the tree had already
  };
  // Adds the run `tokens` (whole pages) below `node`, on which the caller has a lock. The tree
  // takes pages[num_tokens_present / page_size ..); the ones before stay the caller's, and the
  // pages that the tree has in their place are appended to `present`. Pages of the run that the
  // tree has, but not resident, have been computed again: the caller's take their place.
  Extension extend(RadixNode* node, std::span<const Token> tokens, std::span<const Page> pages,
                   std::vector<Page>* present = nullptr, int32_t priority = 0);

  // Moves a node's pages to another home, or changes their state; one record for each page, all of
  // them resident or none. REQUIRES: a node that becomes absent is unlocked, and no child of it is
  // resident; the parent of a node that becomes resident is.
  void set_pages(RadixNode* node, std::span<const PageRecord> pages);

  // Removes up to `count` resident pages that no lock protects, from the ends of leaves, in the
  // policy's order; a leaf that is not resident is removed where its turn comes, and does not
  // count. Appends the records to `pages`. Returns how many resident pages it removed.
  int32_t evict(int32_t count, std::vector<PageRecord>* pages);

  int32_t page_size() const { return options_.page_size; }
  int32_t num_evictable_pages() const { return num_evictable_; }  // resident
  int32_t num_protected_pages() const { return num_protected_; }  // resident
  size_t num_nodes() const { return nodes_.num_linked(); }        // roots not counted
  uint64_t version() const { return version_; }  // moves when a match may have changed

  // Each page, in no order.
  void for_each_page(const std::function<void(const PageRecord&)>& visit) const;

  // Each node but the roots with its depth (0: below a root) and its run; parents before their
  // children, the older child first.
  void for_each_node(const std::function<void(int32_t, std::span<const Token>)>& visit) const;

  // The live nodes among the numbers of the query, roots included. Cost: one look at each number.
  CacheNodes read_nodes(const CacheNodesQuery& query) const;

  // Aborts (ESP_CHECK) unless links, look-ups, counts and the order of eviction agree, and the
  // locks are exactly those on `locked` (a node once for each lock).
  void check_invariants(std::span<const RadixNode* const> locked) const;

 private:
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };

  struct Walk {
    RadixNode* node;           // deepest node touched; null when the namespace is unknown
    int32_t num_tokens;        // matched; ends inside `node` when below its end
    int32_t num_loadable = 0;  // matched behind them, in nodes that are not resident
  };
  Walk walk(std::string_view name_space, std::span<const Token> tokens) const;

  void delete_node(RadixNode* node);
  RadixNode* split(RadixNode* node, int32_t num_tokens);
  RadixNode* add_leaf(RadixNode* parent, std::span<const Token> tokens,
                      std::span<const Page> pages);

  void add_lock(RadixNode* node, int32_t priority);
  void drop_lock(RadixNode* node);
  void remove_leaf(RadixNode* leaf);
  void trim_leaf(RadixNode* leaf, int32_t num_pages, std::vector<PageRecord>* pages);

  void check_node(const RadixNode& node, int32_t num_locks) const;

  const Options options_;
  RadixNodes nodes_;
  std::unordered_map<std::string, RadixNode*, StringHash, std::equal_to<>> roots_;
  ChildTable children_;
  EvictionHeap evictable_leaves_;

  uint64_t now_ = 0;  // operations so far: the time that policies see
  uint64_t version_ = 0;
  int32_t num_evictable_ = 0;  // pages
  int32_t num_protected_ = 0;
  int32_t num_absent_ =
      0;  // pages that are not resident; 0: match() need not look at the nodes' pages
};

}  // namespace espalier
