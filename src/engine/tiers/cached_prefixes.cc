#include "engine/tiers/cached_prefixes.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "cache/page_observer.h"
#include "engine/weights/weight_epoch.h"
#include "seams/forward_batch.h"

namespace espalier {
namespace {

class PrefixReader {
 public:
  explicit PrefixReader(std::span<const CacheNode> nodes) {
    for (const CacheNode& node : nodes) {
      by_number_[node.number] = &node;
      if (node.parent != 0) parents_.insert(node.parent);
    }
  }
  bool is_leaf(const CacheNode& node) const {
    return node.parent != 0 && !parents_.contains(node.number);
  }
  // Sets the tokens from the root to the leaf, and returns the root; null where a node is missing.
  const CacheNode* read(const CacheNode& leaf, std::vector<TokenId>& tokens) const {
    std::vector<const CacheNode*> path;
    const CacheNode* at = &leaf;
    while (at->parent != 0) {
      path.push_back(at);
      const auto parent = by_number_.find(at->parent);
      // A number that was given to another node meanwhile could make a circle.
      if (parent == by_number_.end() || path.size() > by_number_.size()) return nullptr;
      at = parent->second;
    }
    tokens.clear();
    for (auto node = path.rbegin(); node != path.rend(); ++node)
      tokens.insert(tokens.end(), (*node)->tokens.begin(), (*node)->tokens.end());
    return std::ssize(tokens) == leaf.end ? at : nullptr;
  }

 private:
  std::unordered_map<uint32_t, const CacheNode*> by_number_;
  std::unordered_set<uint32_t> parents_;
};

bool begins_alike(std::span<const TokenId> a, std::span<const TokenId> b) {
  const size_t count = std::min(a.size(), b.size());
  return std::ranges::equal(a.first(count), b.first(count));
}

}  // namespace

void for_each_prefix(std::span<const CacheNode> nodes, const PrefixFilter& filter,
                     const VisitPrefix& visit) {
  const PrefixReader reader(nodes);
  std::vector<TokenId> tokens;
  for (const CacheNode& node : nodes) {
    if (!reader.is_leaf(node)) continue;
    const CacheNode* const root = reader.read(node, tokens);
    if (root == nullptr || is_process_local(root->name_space)) continue;
    if (filter.extra_key && namespace_without_weights(root->name_space) != *filter.extra_key)
      continue;
    if (!begins_alike(tokens, filter.tokens)) continue;
    const auto end = std::ranges::find_if(tokens, [](TokenId id) { return id >= kFirstSpanKey; });
    if (end != tokens.begin()) visit(root->name_space, {tokens.begin(), end});
  }
}

}  // namespace espalier
