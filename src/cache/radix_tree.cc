// Invariants, besides those that check_invariants() spells out:
//   - num_locks of a node is the number of locks on it and below it, so an unlocked node has only
//     unlocked nodes below, and every unlocked page can be reached by evicting leaves.
//   - a node that is not resident is unlocked, and all nodes below it are not resident either: the
//     resident part of a match is found by climbing from its end.
//   - a node is in the heap exactly while it is an unlocked leaf. Uses are recorded under a lock
//     only, so a rank never changes while its node is in the heap.
#include "cache/radix_tree.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "cache/radix_node.h"

namespace espalier {

RadixTree::RadixTree(const Options& options)
    : options_(options), children_(options.page_size, options.num_nodes_expected) {
  ESP_CHECK(options.page_size >= 1);
}

RadixTree::~RadixTree() = default;

namespace {
int32_t num_pages_of(const RadixNode& node, const RadixTree::Options& options) {
  return node.num_tokens / options.page_size;
}
}  // namespace

int32_t RadixTree::num_tokens_to(const RadixNode* node) { return node->end; }

int32_t RadixTree::num_pages_locked_once(const RadixNode* node) const {
  int32_t count = 0;
  for (; node != nullptr && node->num_locks == 1; node = node->parent)
    count += num_pages_of(*node, options_);
  return count;
}

namespace {

constexpr size_t kBlock = 256;  // tokens: 1 KiB, past which memcmp is at full speed

// Blocks by memcmp, which uses the widest instructions there are; then the block that differs token
// by token.
size_t common_tokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  size_t n = 0;
  const size_t most = std::min(a.size(), b.size());
  while (n + kBlock <= most && std::memcmp(&a[n], &b[n], kBlock * sizeof(int32_t)) == 0)
    n += kBlock;
  if (n + kBlock > most && std::memcmp(&a[n], &b[n], (most - n) * sizeof(int32_t)) == 0)
    return most;
  while (n < most && a[n] == b[n]) ++n;
  return n;
}

// Their common prefix in tokens, whole pages only.
int32_t common_pages(std::span<const int32_t> a, std::span<const int32_t> b, int32_t page_size) {
  const auto common = static_cast<int32_t>(common_tokens(a, b));
  return common - common % page_size;
}

// The records of pages that a step has computed.
std::vector<PageRecord> computed(std::span<const int32_t> pages) {
  std::vector<PageRecord> records;
  for (const int32_t page : pages) records.push_back({.page = page});
  return records;
}

// Appends the pages from the root to the end of `end`.
void append_pages_to(const RadixNode* end, int32_t page_size, std::vector<int32_t>& pages) {
  const auto begin = static_cast<std::ptrdiff_t>(pages.size());
  pages.resize(pages.size() + static_cast<size_t>(end->end / page_size));
  for (const RadixNode* node = end; !node->is_root(); node = node->parent)
    std::ranges::transform(node->pages(), pages.begin() + begin + node->parent->end / page_size,
                           &PageRecord::page);
}

}  // namespace

// Reads the table's entries and the runs, but no nodes while all nodes are resident.
RadixTree::Walk RadixTree::walk(std::string_view name_space, std::span<const Token> tokens) const {
  const auto found = roots_.find(name_space);
  if (found == roots_.end()) return {nullptr, 0};
  Walk at{found->second, 0};
  uint32_t id = at.node->id;
  while (tokens.size() >= static_cast<size_t>(options_.page_size)) {
    const ChildTable::Entry* const child = children_.find(id, tokens.data(), tokens.size());
    if (child == nullptr) break;
    const std::span<const Token> run(child->tokens, static_cast<size_t>(child->num_tokens));
    const int32_t common = common_pages(run, tokens, options_.page_size);
    at = {child->node, at.num_tokens + common};
    if (common < child->num_tokens) break;
    tokens = tokens.subspan(static_cast<size_t>(common));
    id = child->id;
  }
  if (num_absent_ == 0) return at;
  const int32_t num_cached = at.num_tokens;
  while (!at.node->is_resident()) {
    at.node = at.node->parent;
    at.num_tokens = at.node->end;
  }
  at.num_loadable = num_cached - at.num_tokens;
  return at;
}

RadixNode* RadixTree::child_of(const RadixNode* node, std::span<const Token> tokens) const {
  if (node->is_leaf()) return nullptr;
  const ChildTable::Entry* const child = children_.find(node->id, tokens.data(), tokens.size());
  return child == nullptr ? nullptr : child->node;
}

int32_t RadixTree::match(std::string_view name_space, std::span<const Token> tokens,
                         int32_t* num_loadable) const {
  const Walk at = walk(name_space, tokens);
  if (num_loadable != nullptr) *num_loadable = at.num_loadable;
  return at.num_tokens;
}

int32_t RadixTree::match_pages(std::string_view name_space, std::span<const Token> tokens,
                               std::vector<Page>& pages) const {
  const Walk at = walk(name_space, tokens);
  if (at.node == nullptr || !options_.has_pages) return at.num_tokens;
  const size_t begin = pages.size();
  append_pages_to(at.node, options_.page_size, pages);
  pages.resize(begin + static_cast<size_t>(at.num_tokens / options_.page_size));
  return at.num_tokens;
}

RadixNode* RadixTree::lock(std::string_view name_space, std::span<const Token> tokens,
                           std::vector<Page>* pages, int32_t priority) {
  ++now_;
  Walk at = walk(name_space, tokens);
  if (at.node == nullptr) {
    at.node = nodes_.create(now_);
    at.node->name_space = &roots_.emplace(std::string(name_space), at.node).first->first;
  }
  if (at.num_tokens < at.node->end) {
    const int32_t begin = at.node->parent->end;
    at.node = split(at.node, at.num_tokens - begin);
  }
  for (RadixNode* node = at.node; node != nullptr; node = node->parent) add_lock(node, priority);
  if (pages != nullptr && options_.has_pages) append_pages_to(at.node, options_.page_size, *pages);
  return at.node;
}

void RadixTree::unlock(RadixNode* node) {
  ++now_;
  RadixNode* root = node;
  for (; node != nullptr; node = node->parent) {
    root = node;
    drop_lock(node);
  }
  if (root->num_locks == 0 && root->is_leaf()) delete_node(root);
}

RadixTree::Extension RadixTree::extend(RadixNode* node, std::span<const Token> tokens,
                                       std::span<const Page> pages, std::vector<Page>* present,
                                       int32_t priority) {
  const auto page_size = static_cast<size_t>(options_.page_size);
  ESP_CHECK(node->num_locks > 0 && tokens.size() % page_size == 0);
  ESP_CHECK(pages.size() == (options_.has_pages ? tokens.size() / page_size : 0));
  ++now_;
  const int32_t begin = node->end;
  int32_t num_present = 0;
  while (!tokens.empty()) {
    RadixNode* child = child_of(node, tokens);
    if (child == nullptr) break;
    const int32_t common = common_pages(child->tokens(), tokens, options_.page_size);
    if (common < child->num_tokens) child = split(child, common);
    if (child->is_resident()) {
      if (present != nullptr)
        std::ranges::transform(child->pages(), std::back_inserter(*present), &PageRecord::page);
      num_present = child->end - begin;
    } else {
      set_pages(child, computed(pages.first(child->pages().size())));
    }
    add_lock(child, priority);
    tokens = tokens.subspan(child->tokens().size());
    pages = pages.subspan(child->pages().size());
    node = child;
  }
  if (!tokens.empty()) {
    node = add_leaf(node, tokens, pages);
    add_lock(node, priority);
  }
  return {node, num_present};
}

void RadixTree::set_pages(RadixNode* node, std::span<const PageRecord> pages) {
  const bool resident = std::ranges::all_of(pages, &PageRecord::resident);
  ESP_CHECK(!node->is_root() && (resident || std::ranges::none_of(pages, &PageRecord::resident)),
            "pages of one node in and out of the device");
  if (resident != node->is_resident()) {
    if (resident) {
      ESP_CHECK(node->parent->is_resident(), "a resident node below one that is not");
    } else {
      ESP_CHECK(node->num_locks == 0, "the pages of a locked node leave the device");
      for (const RadixNode* at = node->first_child; at != nullptr; at = at->next_sibling)
        ESP_CHECK(!at->is_resident(), "a resident node below one that is not");
    }
    const int32_t change =
        resident ? num_pages_of(*node, options_) : -num_pages_of(*node, options_);
    num_evictable_ += change;
    num_absent_ -= change;
    ++version_;
  }
  nodes_.set_pages(node, pages);
}

int32_t RadixTree::evict(int32_t count, std::vector<PageRecord>* pages) {
  int32_t num_evicted = 0;
  while (num_evicted < count && !evictable_leaves_.empty()) {
    RadixNode* leaf = evictable_leaves_.top();
    const bool resident = leaf->is_resident();
    const int32_t take = resident ? std::min(count - num_evicted, num_pages_of(*leaf, options_))
                                  : num_pages_of(*leaf, options_);
    trim_leaf(leaf, take, pages);
    if (leaf->num_tokens == 0) remove_leaf(leaf);
    if (resident) num_evicted += take;
    ++version_;
  }
  return num_evicted;
}

// The deepest pages first. What is left keeps its rank, so it goes next. The tree's look-up needs
// the first page, so a leaf that loses all leaves the table before.
void RadixTree::trim_leaf(RadixNode* leaf, int32_t num_pages, std::vector<PageRecord>* pages) {
  const int32_t num_tokens = num_pages * options_.page_size;
  const bool all = leaf->num_tokens == num_tokens;
  (leaf->is_resident() ? num_evictable_ : num_absent_) -= num_pages;
  if (all) children_.erase(leaf);
  if (pages != nullptr && options_.has_pages)
    pages->insert(pages->end(), leaf->pages().rbegin(), leaf->pages().rbegin() + num_pages);
  leaf->num_tokens -= num_tokens;
  if (options_.has_pages) leaf->num_pages -= num_pages;
  leaf->end -= num_tokens;
  if (!all) children_.shorten(leaf);
}

void RadixTree::remove_leaf(RadixNode* leaf) {
  RadixNode* parent = leaf->parent;
  evictable_leaves_.remove(leaf);
  nodes_.unlink(leaf);
  delete_node(leaf);
  if (!parent->is_leaf() || parent->num_locks > 0) return;
  if (parent->is_root()) {
    delete_node(parent);
  } else {
    evictable_leaves_.push(parent, eviction_rank(options_.policy, parent->use));
  }
}

void RadixTree::delete_node(RadixNode* node) {
  if (node->is_root() && node->name_space != nullptr) roots_.erase(roots_.find(*node->name_space));
  nodes_.destroy(node);
}

// `node` becomes parent -> upper -> node, where `upper` has the first num_tokens of its run. The
// locks on and below `node` all pass through `upper`. The node's run stays where it is, and begins
// later.
RadixNode* RadixTree::split(RadixNode* node, int32_t num_tokens) {
  ESP_DCHECK(num_tokens > 0 && num_tokens < node->num_tokens);
  children_.erase(node);
  RadixNode* parent = node->parent;
  nodes_.unlink(node);
  RadixNode* upper = nodes_.create(now_);
  upper->use = node->use;
  upper->num_locks = node->num_locks;
  upper->end = parent->end + num_tokens;
  const int32_t num_pages = options_.has_pages ? num_tokens / options_.page_size : 0;
  nodes_.set_run(upper, node->tokens().first(static_cast<size_t>(num_tokens)),
                 node->pages().first(static_cast<size_t>(num_pages)));
  node->token_data += num_tokens;
  node->num_tokens -= num_tokens;
  node->page_data += num_pages;
  node->num_pages -= num_pages;
  nodes_.link(parent, upper);
  nodes_.link(upper, node);
  children_.insert(upper);
  children_.insert(node);
  return upper;
}

// Evictable until the caller locks it.
RadixNode* RadixTree::add_leaf(RadixNode* parent, std::span<const Token> tokens,
                               std::span<const Page> pages) {
  RadixNode* leaf = nodes_.create(now_);
  nodes_.set_computed_run(leaf, tokens, pages);
  leaf->end = parent->end + static_cast<int32_t>(tokens.size());
  nodes_.link(parent, leaf);
  children_.insert(leaf);
  num_evictable_ += num_pages_of(*leaf, options_);
  ++version_;
  return leaf;
}

// One user more, which is one use more.
void RadixTree::add_lock(RadixNode* node, int32_t priority) {
  if (node->num_locks++ == 0) {
    num_evictable_ -= num_pages_of(*node, options_);
    num_protected_ += num_pages_of(*node, options_);
    if (node->is_evictable()) evictable_leaves_.remove(node);
  }
  node->use.priority = node->use.num_uses == 0 ? priority : std::max(node->use.priority, priority);
  ++node->use.num_uses;
  node->use.last_use = now_;
}

void RadixTree::drop_lock(RadixNode* node) {
  ESP_CHECK(node->num_locks > 0, "unlocked more often than locked");
  node->use.last_use = now_;
  if (--node->num_locks > 0) return;
  num_protected_ -= num_pages_of(*node, options_);
  num_evictable_ += num_pages_of(*node, options_);
  if (node->is_leaf() && !node->is_root())
    evictable_leaves_.push(node, eviction_rank(options_.policy, node->use));
}

void RadixTree::for_each_page(const std::function<void(const PageRecord&)>& visit) const {
  for (const RadixNode* node : nodes_.all())
    for (const PageRecord& page : node->pages()) visit(page);
}

namespace {
bool has_page(const RadixNode& node) { return node.num_pages > 0 && node.is_resident(); }
}  // namespace

CacheNodes RadixTree::read_nodes(const CacheNodesQuery& query) const {
  CacheNodes out{.num_nodes = nodes_.num_linked(), .now = now_};
  const std::span<RadixNode* const> all = nodes_.all();  // number n is all[n - 1]
  const size_t begin = std::min(std::max<size_t>(query.from, 1) - 1, all.size());
  const size_t end = begin + std::min<size_t>(query.num_max, all.size() - begin);
  out.nodes.reserve(end - begin);
  for (const RadixNode* node : all.subspan(begin, end - begin)) {
    if (node->id == 0) continue;
    const auto shown = std::clamp(query.tokens_max, 0, node->num_tokens);
    const std::span<const Token> tokens = node->tokens().first(static_cast<size_t>(shown));
    out.nodes.push_back({.number = node->number,
                         .parent = node->is_root() ? 0 : node->parent->number,
                         .num_tokens = node->num_tokens,
                         .end = node->end,
                         .num_locks = node->num_locks,
                         .resident = node->is_resident(),
                         .created = node->use.created,
                         .last_use = node->use.last_use,
                         .first_page = has_page(*node) ? node->pages().front().page : -1,
                         .last_page = has_page(*node) ? node->pages().back().page : -1,
                         .name_space = node->name_space != nullptr ? *node->name_space : "",
                         .tokens = {tokens.begin(), tokens.end()}});
  }
  if (end < all.size()) out.next = static_cast<uint32_t>(end) + 1;
  return out;
}

void RadixTree::for_each_node(
    const std::function<void(int32_t, std::span<const Token>)>& visit) const {
  struct Visit {
    const RadixNode* node;
    int32_t depth;
  };
  std::vector<Visit> to_come;  // the next one last
  const auto add_children = [&](const RadixNode* node, int32_t depth) {
    for (const RadixNode* at = node->first_child; at != nullptr; at = at->next_sibling)
      to_come.push_back({at, depth});  // the newest first, so the oldest is visited first
  };
  for (const auto& [name, root] : roots_) {
    add_children(root, 0);
    while (!to_come.empty()) {
      const Visit at = to_come.back();
      to_come.pop_back();
      visit(at.depth, at.node->tokens());
      add_children(at.node, at.depth + 1);
    }
  }
}

void RadixTree::check_node(const RadixNode& node, int32_t num_locks) const {
  ESP_CHECK(node.num_locks == num_locks, "node {}: {} locks, {} expected", node.id, node.num_locks,
            num_locks);
  const auto page_size = static_cast<size_t>(options_.page_size);
  ESP_CHECK(node.tokens().size() % page_size == 0);
  ESP_CHECK(node.pages().size() == (options_.has_pages ? node.tokens().size() / page_size : 0));
  for (const RadixNode* child = node.first_child; child != nullptr; child = child->next_sibling) {
    ESP_CHECK(child->id != 0 && child->parent == &node);
    ESP_CHECK(child->next_sibling == nullptr || child->next_sibling->prev_sibling == child);
  }
  if (node.is_root()) {
    ESP_CHECK(node.num_tokens == 0 && node.end == 0 && !node.is_evictable());
    ESP_CHECK(node.num_locks > 0 || !node.is_leaf(), "an empty namespace is kept");
    ESP_CHECK(roots_.at(*node.name_space) == &node);
    return;
  }
  for (const PageRecord& page : node.pages())
    ESP_CHECK(page.resident() == node.is_resident(), "node {} is resident in part", node.id);
  ESP_CHECK(node.is_resident() ? node.parent->is_resident() : node.num_locks == 0,
            "node {} breaks the rule of resident nodes", node.id);
  ESP_CHECK(node.num_tokens > 0 && node.end == node.parent->end + node.num_tokens);
  ESP_CHECK(child_of(node.parent, node.tokens()) == &node, "node {} is not found", node.id);
  ESP_CHECK(node.is_evictable() == (node.num_locks == 0 && node.is_leaf()),
            "node {} in the heap: {}", node.id, node.is_evictable());
}

void RadixTree::check_invariants(std::span<const RadixNode* const> locked) const {
  std::unordered_map<const RadixNode*, int32_t> num_locks;
  for (const RadixNode* node : locked)
    for (; node != nullptr; node = node->parent) ++num_locks[node];

  size_t num_nodes = 0, num_roots = 0, num_evictable_leaves = 0;
  int32_t num_evictable = 0, num_protected = 0, num_absent = 0;
  for (const RadixNode* at : nodes_.all()) {
    const RadixNode& node = *at;
    if (node.id == 0) continue;
    const auto found = num_locks.find(&node);
    check_node(node, found == num_locks.end() ? 0 : found->second);
    ++(node.is_root() ? num_roots : num_nodes);
    (!node.is_resident()  ? num_absent
     : node.num_locks > 0 ? num_protected
                          : num_evictable) += num_pages_of(node, options_);
    num_evictable_leaves += node.is_evictable() ? 1 : 0;
  }
  ESP_CHECK(num_nodes == nodes_.num_linked() && num_nodes == children_.size() &&
            num_roots == roots_.size());
  ESP_CHECK(num_nodes + num_roots + nodes_.num_unused() == nodes_.all().size(), "nodes lost");
  ESP_CHECK(num_evictable == num_evictable_, "{} evictable, {} counted", num_evictable,
            num_evictable_);
  ESP_CHECK(num_protected == num_protected_, "{} protected, {} counted", num_protected,
            num_protected_);
  ESP_CHECK(num_absent == num_absent_, "{} absent, {} counted", num_absent, num_absent_);
  ESP_CHECK(num_evictable_leaves == evictable_leaves_.size());
  evictable_leaves_.check_invariants();
}

}  // namespace espalier
