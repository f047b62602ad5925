// Invariants, besides those that check_invariants() spells out:
//   - all ancestors of a cached node are cached in full, as far as the tree knows;
//   - no descendant of an uncached or partly cached node is a cached node;
//   - so all sequences below a cached node that are separated from it by uncached nodes only match
//     equally: its num_cached tokens.
#include "engine/scheduler/waiting_tree.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace espalier {

// The run is [begin, end) of the tokens of `witness`, any sequence below.
struct WaitingNode {
  using Node = WaitingNode;
  using Members = std::set<WaitingTree::Member>;

  Node* parent = nullptr;
  const std::string* name_space = nullptr;  // of a root
  uint64_t id = 0;
  int32_t begin = 0, end = 0;
  int32_t num_cached = 0;  // tokens of the path, an upper bound; uncached node: begin
  int32_t weight = 0;      // sequences at and below
  const Sequence* witness = nullptr;
  Members members;  // sequences that end here, uncached children
  Node* first_cached = nullptr;
  Node* next_cached = nullptr;
  Node* prev_cached = nullptr;
  Node* current = nullptr;  // depth first: the child where it went last
  bool is_cached = false;
  bool contained = false;  // in groups_ (cached) or among the parent's members (uncached)
  bool deferred = false;
  int32_t num_deferred = 0;  // sequences and children set deferred
  WaitingKey key;            // as contained

  bool whole() const { return is_cached && num_cached == end; }
  bool empty() const { return members.empty() && first_cached == nullptr && num_deferred == 0; }
};

namespace {

// The list of a node's cached children.
void link_cached(WaitingNode* node) {
  WaitingNode*& first = node->parent->first_cached;
  node->next_cached = first;
  if (first != nullptr) first->prev_cached = node;
  first = node;
}

void unlink_cached(WaitingNode* node) {
  (node->prev_cached != nullptr ? node->prev_cached->next_cached : node->parent->first_cached) =
      node->next_cached;
  if (node->next_cached != nullptr) node->next_cached->prev_cached = node->prev_cached;
  node->prev_cached = node->next_cached = nullptr;
}

}  // namespace

WaitingTree::WaitingTree(Order order, const PrefixCache& cache)
    : order_(order), cache_(cache), page_size_(cache.page_size()) {}
WaitingTree::~WaitingTree() = default;

std::span<const TokenId> WaitingTree::run_of(const Node* node) const {
  return node->witness->first_tokens(node->end).subspan(static_cast<size_t>(node->begin));
}

// In whole pages, as the cache counts.
int32_t WaitingTree::common_tokens(const Node* node, std::span<const TokenId> tokens) const {
  const std::span<const TokenId> run = run_of(node);
  const size_t most = std::min(run.size(), tokens.size());
  size_t n = most;
  if (std::memcmp(run.data(), tokens.data(), most * sizeof(TokenId)) != 0)
    n = static_cast<size_t>(
        std::mismatch(run.begin(), run.begin() + static_cast<std::ptrdiff_t>(most), tokens.begin())
            .first -
        run.begin());
  return static_cast<int32_t>(n) - static_cast<int32_t>(n) % page_size_;
}

uint64_t WaitingTree::hash_of(const Node* parent, std::span<const TokenId> tokens) const {
  uint64_t hash = parent->id * 0x9e3779b97f4a7c15ull;
  for (int32_t i = 0; i < page_size_; ++i)
    hash = mix64(hash ^ static_cast<uint32_t>(tokens[static_cast<size_t>(i)]));
  return hash;
}

WaitingTree::Node* WaitingTree::root_of(std::string_view cache_namespace) {
  const auto place = roots_.try_emplace(std::string(cache_namespace), nullptr).first;
  Node*& root = place->second;
  if (root != nullptr) return root;
  auto made = std::make_unique<Node>();
  root = made.get();
  root->name_space = &place->first;
  root->id = next_id_++;
  root->is_cached = true;
  nodes_.emplace(root->id, std::move(made));
  return root;
}

// `tokens`: at least a page.
WaitingTree::Node* WaitingTree::find_child(const Node* parent,
                                           std::span<const TokenId> tokens) const {
  const auto [begin, end] = nodes_.equal_range(hash_of(parent, tokens));
  for (auto at = begin; at != end; ++at) {
    Node* node = at->second.get();
    if (node->parent == parent && common_tokens(node, tokens) > 0) return node;
  }
  return nullptr;
}

WaitingTree::Node* WaitingTree::new_node(Node* parent, int32_t begin, int32_t end,
                                         Sequence* witness) {
  auto made = std::make_unique<Node>();
  Node* node = made.get();
  node->parent = parent;
  node->id = next_id_++;
  node->begin = node->num_cached = begin;
  node->end = end;
  node->witness = witness;
  nodes_.emplace(hash_of(parent, run_of(node)), std::move(made));
  return node;
}

void WaitingTree::erase_child(Node* node) {
  const auto [begin, end] =
      nodes_.equal_range(node->parent == nullptr ? node->id : hash_of(node->parent, run_of(node)));
  const auto at = std::find_if(begin, end, [&](const auto& e) { return e.second.get() == node; });
  ESP_CHECK(at != end, "a node that is not in the tree");
  nodes_.erase(at);
}

// parent -> node becomes parent -> upper -> node; `upper` has the first num_tokens of its run.
WaitingTree::Node* WaitingTree::split(Node* node, int32_t num_tokens) {
  Node* const parent = node->parent;
  const bool was_cached = node->is_cached;
  const int32_t cached = node->num_cached, middle = node->begin + num_tokens;
  leave_container(node);
  if (was_cached) unlink_cached(node);
  const auto [begin, end] = nodes_.equal_range(hash_of(parent, run_of(node)));
  const auto at = std::find_if(begin, end, [&](const auto& e) { return e.second.get() == node; });
  auto handle = nodes_.extract(at);
  Node* const upper = new_node(parent, node->begin, middle, const_cast<Sequence*>(node->witness));
  upper->weight = node->weight;
  if (parent->current == node) parent->current = upper;
  upper->current = node;
  node->parent = upper;
  node->begin = middle;
  handle.key() = hash_of(upper, run_of(node));
  nodes_.insert(std::move(handle));
  node->is_cached = was_cached && cached > middle;  // else it has no cached descendant
  if (node->is_cached) {
    link_cached(node);
  } else {
    node->num_cached = middle;
  }
  refresh(node);
  if (was_cached) mark_cached(upper, std::min(cached, middle));
  return upper;
}

WaitingKey WaitingTree::key_of(const Node* node) const {
  if (order_ == Order::kDepthFirst) return {-node->weight, static_cast<int64_t>(node->id)};
  const int64_t order = node->members.begin()->key.order;
  return {node->is_cached ? -node->num_cached : 0, order};
}

void WaitingTree::leave_container(Node* node) {
  if (!node->contained) return;
  (node->is_cached ? groups_ : node->parent->members).erase({.key = node->key});
  node->contained = false;
}

// After a change of its members, its weight or its bound: puts it where it belongs, and those
// above.
void WaitingTree::refresh(Node* node) {
  while (true) {
    const bool wanted = !node->deferred && !node->members.empty();
    if (!wanted && !node->contained) return;
    const WaitingKey key = wanted ? key_of(node) : WaitingKey();
    if (wanted && node->contained && key == node->key) return;
    leave_container(node);
    if (wanted) {
      node->key = key;
      node->contained = true;
      (node->is_cached ? groups_ : node->parent->members).insert({.key = key, .node = node});
    }
    if (node->is_cached) return;
    node = node->parent;
  }
}

void WaitingTree::mark_cached(Node* node, int32_t cached) {
  leave_container(node);
  node->is_cached = true;
  node->num_cached = cached;
  link_cached(node);
  refresh(node->parent);
  refresh(node);
}

// With all below.
void WaitingTree::mark_uncached(Node* node) {
  while (node->first_cached != nullptr) mark_uncached(node->first_cached);
  leave_container(node);
  unlink_cached(node);
  node->is_cached = false;
  node->num_cached = node->begin;
  refresh(node);
}

// Less of a cached node is in the cache than its bound says.
void WaitingTree::lower(Node* node, int32_t cached) {
  while (node->first_cached != nullptr) mark_uncached(node->first_cached);
  if (cached == node->begin) return mark_uncached(node);
  node->num_cached = cached;
  refresh(node);
}

void WaitingTree::add(Sequence& sequence) {
  const int32_t limit = sequence.match_limit() - sequence.match_limit() % page_size_;
  std::span<const TokenId> tokens = sequence.first_tokens(limit);
  Node* node = root_of(sequence.spec.cache_namespace);
  while (!tokens.empty()) {
    Node* child = find_child(node, tokens);
    if (child == nullptr) {
      child = new_node(node, node->end, limit, &sequence);
      // The other sequences here match no more than it: only what follows a prefix that is cached
      // whole can be.
      if (order_ == Order::kLongestMatch && node->whole()) {
        const int32_t matched = current_match_bound(sequence, cache_);
        if (matched > child->begin) mark_cached(child, std::min(matched, child->end));
      }
      node = child;
      break;
    }
    const int32_t common = common_tokens(child, tokens);
    node = common < child->end - child->begin ? split(child, common) : child;
    tokens = tokens.subspan(static_cast<size_t>(common));
  }
  sequence.queue.node = node;
  for (Node* at = node; at != nullptr; at = at->parent) ++at->weight;
  node->members.insert({.key = {0, sequence.queue.rank.order}, .sequence = &sequence});
  ++size_;
  refresh(node);
  if (order_ == Order::kDepthFirst)
    for (Node* at = node; at != nullptr; at = at->parent) refresh(at);
}

void WaitingTree::remove(Sequence& sequence) {
  Node* const node = std::exchange(sequence.queue.node, nullptr);
  if (std::erase(deferred_sequences_, &sequence) > 0) {
    --node->num_deferred;
  } else {
    node->members.erase({.key = {0, sequence.queue.rank.order}});
  }
  --size_;
  for (Node* at = node; at != nullptr; at = at->parent) --at->weight;
  refresh(node);
  if (order_ == Order::kDepthFirst)
    for (Node* at = node; at != nullptr; at = at->parent) refresh(at);
  // From below: whoever has lost its witness takes that of one below it.
  for (Node* at = node; at != nullptr;) {
    Node* const parent = at->parent;
    if (at->weight > 0) {
      if (at->witness == &sequence) replace_witness(at, sequence);
    } else {
      delete_if_empty(at);
    }
    at = parent;
  }
}

void WaitingTree::replace_witness(Node* node, const Sequence& gone) {
  node->witness = nullptr;
  const auto take = [&](const Sequence* other) {
    if (other != &gone) node->witness = other;
  };
  if (!node->members.empty()) {
    const Member& member = *node->members.begin();
    take(member.sequence != nullptr ? member.sequence : member.node->witness);
  } else if (node->first_cached != nullptr) {
    take(node->first_cached->witness);
  } else {
    const auto below = [&](const Node* at) {
      while (at != nullptr && at != node) at = at->parent;
      return at != nullptr;
    };
    for (const Sequence* deferred : deferred_sequences_)
      if (below(deferred->queue.node)) take(deferred);
    for (const Node* deferred : deferred_nodes_)
      if (below(deferred->parent)) take(deferred->witness);
  }
  ESP_CHECK(node->witness != nullptr, "a node of waiting sequences without any");
}

void WaitingTree::delete_if_empty(Node* node) {
  ESP_CHECK(node->members.empty() && node->first_cached == nullptr);
  leave_container(node);
  if (current_group_ == node) current_group_ = nullptr;
  if (node->parent == nullptr) {
    roots_.erase(roots_.find(*node->name_space));
  } else {
    if (node->parent->current == node) node->parent->current = nullptr;
    if (node->is_cached) mark_uncached(node);
    if (std::erase(deferred_nodes_, node) > 0) --node->parent->num_deferred;
  }
  erase_child(node);
}

void WaitingTree::on_stored(std::string_view cache_namespace, std::span<const TokenId> tokens) {
  if (order_ != Order::kLongestMatch || size_ == 0) return;
  const auto found = roots_.find(std::string(cache_namespace));
  if (found == roots_.end()) return;
  Node* node = found->second;
  while (tokens.size() >= static_cast<size_t>(page_size_)) {
    Node* child = find_child(node, tokens);
    if (child == nullptr) return;
    const int32_t common = common_tokens(child, tokens), reach = child->begin + common;
    if (!child->is_cached) {
      mark_cached(child, reach);
    } else if (reach > child->num_cached) {
      child->num_cached = reach;
      refresh(child);
    }
    if (reach < child->end) return;
    tokens = tokens.subspan(static_cast<size_t>(common));
    node = child;
  }
}

// Depth first goes on where it went last, while anybody is left there; what is only set deferred
// keeps its turn.
WaitingTree::Node* WaitingTree::choose(Members& members, Node*& current) const {
  if (order_ == Order::kDepthFirst && current != nullptr && current->contained) return current;
  Node* const first = members.begin()->node;
  if (current == nullptr) current = first;
  return first;
}

Sequence* WaitingTree::first_below(Node* node) {
  while (Node* child = choose(node->members, node->current)) node = child;
  return node->members.begin()->sequence;
}

Sequence* WaitingTree::first() {
  while (!groups_.empty()) {
    Node* const group = choose(groups_, current_group_);
    Sequence* const sequence = first_below(group);
    if (order_ == Order::kDepthFirst) return sequence;
    const int32_t matched = current_match_bound(*sequence, cache_);
    ESP_DCHECK(matched <= group->num_cached);
    if (matched >= group->num_cached) return sequence;
    Node* at = group;  // whose run the match ends in
    while (at->begin > matched) at = at->parent;
    lower(at, matched);
  }
  return nullptr;
}

void WaitingTree::defer(Sequence& sequence, int32_t num_tokens) {
  Node* const own = sequence.queue.node;
  Node* top = nullptr;
  for (Node* at = own; at->parent != nullptr && at->end >= num_tokens; at = at->parent)
    if (!at->whole()) top = at;
  if (top != nullptr) {
    top->deferred = true;
    ++top->parent->num_deferred;
    deferred_nodes_.push_back(top);
    refresh(top);
    return;
  }
  own->members.erase({.key = {0, sequence.queue.rank.order}});
  ++own->num_deferred;
  deferred_sequences_.push_back(&sequence);
  refresh(own);
}

void WaitingTree::restore_deferred() {
  for (Node* node : deferred_nodes_) {
    node->deferred = false;
    --node->parent->num_deferred;
    refresh(node);
  }
  for (Sequence* sequence : deferred_sequences_) {
    Node* const node = sequence->queue.node;
    --node->num_deferred;
    node->members.insert({.key = {0, sequence->queue.rank.order}, .sequence = sequence});
    refresh(node);
  }
  deferred_nodes_.clear();
  deferred_sequences_.clear();
}

void WaitingTree::check_node(const Node& node) const {
  ESP_CHECK(node.weight > 0 && !node.empty());
  ESP_CHECK(node.contained == (!node.deferred && !node.members.empty()));
  if (node.contained) {
    const Members& members = node.is_cached ? groups_ : node.parent->members;
    const auto found = members.find({.key = node.key});
    ESP_CHECK(node.key == key_of(&node) && found != members.end() && found->node == &node);
  }
  if (node.parent == nullptr) {
    ESP_CHECK(node.is_cached && node.end == 0);
  } else {
    ESP_CHECK(node.begin == node.parent->end && node.begin < node.end);
    ESP_CHECK(find_child(node.parent, run_of(&node)) == &node);
    if (node.is_cached) {
      ESP_CHECK(node.parent->whole() && node.num_cached > node.begin &&
                node.num_cached <= node.end);
    } else {
      ESP_CHECK(node.num_cached == node.begin && node.first_cached == nullptr);
    }
  }
  if (!node.whole()) ESP_CHECK(node.first_cached == nullptr);
  for (const Member& member : node.members) {
    const Sequence* s = member.sequence;
    if (s == nullptr) {
      ESP_CHECK(member.node->parent == &node && !member.node->is_cached);
      continue;
    }
    ESP_CHECK(s->queue.node == &node && member.key.order == s->queue.rank.order);
    if (order_ == Order::kDepthFirst) continue;
    const Node* group = &node;
    while (!group->is_cached) group = group->parent;
    ESP_CHECK(cache_.match_bound(s->spec.cache_namespace, s->first_tokens(s->match_limit())) <=
                  group->num_cached,
              "sequence {} matches more than the index says", s->spec.id);
  }
}

void WaitingTree::check_invariants() const {
  ESP_CHECK(deferred_nodes_.empty() && deferred_sequences_.empty());
  int32_t num_sequences = 0;
  size_t num_groups = 0;
  for (const auto& [hash, node] : nodes_) {
    check_node(*node);
    if (node->is_cached && node->contained) ++num_groups;
    for (const Member& member : node->members) num_sequences += member.sequence != nullptr ? 1 : 0;
  }
  ESP_CHECK(num_sequences == size_ && num_groups == groups_.size());
}

}  // namespace espalier
