#include "cache/continuation.h"

#include <algorithm>

#include "base/check.h"
#include "cache/radix_node.h"
#include "cache/radix_tree.h"

namespace espalier {

namespace {

using Tokens = std::span<const int32_t>;

Tokens from(Tokens tokens, int32_t begin) { return tokens.subspan(static_cast<size_t>(begin)); }

bool begins_with(Tokens tokens, Tokens prefix) {
  return std::equal(prefix.begin(), prefix.end(), tokens.begin(), tokens.begin() + prefix.size());
}

// Follows the text to its end, or to less than a page before it at a node's end. False: the tree
// has no such run.
bool follow(const RadixTree& tree, Tokens text, TreePosition& at) {
  // A split moves the position to a node above without a change of version.
  while (!at.node->is_root() && at.num_tokens <= at.node->parent->end) at.node = at.node->parent;
  while (at.num_tokens < std::ssize(text)) {
    const Tokens rest = from(text, at.num_tokens);
    if (at.num_tokens == at.node->end) {
      if (std::ssize(rest) < tree.page_size()) return true;
      const RadixNode* const child = tree.child_of(at.node, rest);
      if (child == nullptr) return false;
      at.node = child;
    }
    const Tokens run = from(at.node->tokens(), at.num_tokens - at.node->parent->end);
    const size_t most = std::min(run.size(), rest.size());
    if (!begins_with(run, rest.first(most))) return false;
    at.num_tokens += static_cast<int32_t>(most);
  }
  return true;
}

// Whether b is preferred to a.
bool is_preferred(const RadixNode& a, const RadixNode& b) {
  if (a.use.num_uses != b.use.num_uses) return b.use.num_uses > a.use.num_uses;
  return b.use.last_use > a.use.last_use;
}

// Of the children whose runs begin with `first`, less than a page; null: there is none.
const RadixNode* preferred_child(const RadixNode& node, Tokens first) {
  const RadixNode* best = nullptr;
  int32_t num_seen = 0;
  for (const RadixNode* child = node.first_child; child != nullptr && num_seen < kSiblingsMax;
       child = child->next_sibling, ++num_seen)
    if (begins_with(child->tokens(), first) && (best == nullptr || is_preferred(*best, *child)))
      best = child;
  return best;
}

}  // namespace

int32_t read_continuation(const RadixTree& tree, const RadixNode* lock, Tokens text,
                          TreePosition& at, std::span<int32_t> out) {
  if (at.lock != lock || at.version != tree.version() || at.num_tokens > std::ssize(text))
    at = {.lock = lock, .node = lock, .num_tokens = lock->end, .version = tree.version()};
  ESP_DCHECK(at.num_tokens <= std::ssize(text));
  if (at.has_left || !follow(tree, text, at)) {
    at.has_left = true;
    return 0;
  }
  Tokens known = from(text, at.num_tokens);  // at the front of the next run
  const RadixNode* node = at.node;
  int32_t begin = at.num_tokens;  // of what is read next, from the root
  size_t count = 0;
  while (count < out.size()) {
    if (begin == node->end) {
      node = preferred_child(*node, known);
      if (node == nullptr) break;
      begin += static_cast<int32_t>(known.size());
      known = {};
      if (begin == node->end) continue;
    }
    const Tokens run = from(node->tokens(), begin - node->parent->end);
    const size_t most = std::min(run.size(), out.size() - count);
    std::copy_n(run.begin(), most, out.begin() + static_cast<std::ptrdiff_t>(count));
    count += most;
    begin += static_cast<int32_t>(most);
  }
  return static_cast<int32_t>(count);
}

}  // namespace espalier
