#include "router/block_match.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace espalier::router {

namespace {

// The hashes of those of a prompt's whole blocks that have nodes, one after the other.
class HashChain {
 public:
  HashChain(const PromptTokens& prompt, uint32_t block_size)
      : prompt_(prompt), block_size_(block_size), step_(tokens_per_node(block_size)) {}

  bool next() {
    if (prompt_.ids.size() - at_ < step_) return false;
    parent_ = hash_;
    for (const size_t end = at_ + step_; at_ < end; at_ += block_size_)
      hash_ = block_hash(hash_, std::span(prompt_.ids).subspan(at_, block_size_),
                         at_ == 0 ? std::string_view(prompt_.extra) : std::string_view());
    return true;
  }
  uint64_t parent() const { return parent_; }
  uint64_t hash() const { return hash_; }
  uint32_t num_tokens() const { return static_cast<uint32_t>(at_); }

 private:
  const PromptTokens& prompt_;
  const size_t block_size_, step_;
  size_t at_ = 0;
  uint64_t parent_ = 0, hash_ = 0;
};

std::optional<KvMedium> nearest(std::span<const BlockTree::Node* const> nodes, WorkerSlot worker) {
  std::optional<KvMedium> out;
  for (const BlockTree::Node* const node : nodes)
    if (const auto medium = node->nearest(worker); medium && (!out || *medium < *out)) out = medium;
  return out;
}

}  // namespace

void BlockMatcher::add(uint32_t block_size, std::span<const WorkerSlot> slots) {
  std::vector<Held> active;
  for (const WorkerSlot slot : slots) active.push_back({.slot = slot});
  HashChain chain(prompt_, block_size);
  std::vector<const BlockTree::Node*> nodes;
  while (!active.empty() && chain.next()) {
    nodes.clear();
    for (const BlockTree* tree : trees_)
      if (const BlockTree::Node* const node = tree->find(chain.hash())) nodes.push_back(node);
    if (nodes.empty()) break;
    const bool is_leaf = std::ranges::all_of(
        nodes, [](const BlockTree::Node* node) { return node->num_children == 0; });
    std::erase_if(active, [&](Held& held) {
      const std::optional<KvMedium> medium = nearest(nodes, held.slot);
      if (!medium) {
        finish(held);
        return true;
      }
      held.spared +=
          (chain.num_tokens() - held.num_tokens) * (1 - costs_[static_cast<size_t>(*medium)]);
      held.num_tokens = chain.num_tokens();
      held.at_leafs_end = is_leaf;
      return false;
    });
  }
  for (const Held& held : active) finish(held);
}

void BlockMatcher::finish(Held held) {
  held.num_tokens = static_cast<uint32_t>(std::lround(held.spared));
  if (held.num_tokens > 0) held_.push_back(held);
}

BlockMatch BlockMatcher::take() {
  BlockMatch out;
  std::ranges::sort(held_, std::ranges::greater(), &Held::num_tokens);
  WorkerSet workers;
  for (size_t i = 0; i < held_.size(); ++i) {
    workers.insert(held_[i].slot);
    if (i + 1 == held_.size() || held_[i + 1].num_tokens != held_[i].num_tokens)
      out.path.push_back({held_[i].num_tokens, workers.copy()});
  }
  std::ranges::reverse(out.path);
  out.at_leafs_end = !held_.empty() && held_.front().at_leafs_end;
  held_.clear();
  return out;
}

void insert_blocks(const PromptTokens& prompt, uint32_t block_size, WorkerSlot worker,
                   BlockTree& tree) {
  HashChain chain(prompt, block_size);
  while (chain.next()) tree.insert(chain.parent(), chain.hash(), worker);
}

}  // namespace espalier::router
