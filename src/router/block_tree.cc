#include "router/block_tree.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.h"
#include "base/rng.h"

namespace espalier::router {

uint64_t block_hash(uint64_t parent, std::span<const int32_t> tokens, std::string_view extra) {
  uint64_t hash = mix64(parent ^ XXH3_64bits(tokens.data(), tokens.size_bytes()));
  if (!extra.empty()) hash = mix64(hash ^ XXH3_64bits(extra.data(), extra.size()));
  return hash != 0 ? hash : 1;  // 0 is a prompt's begin
}

bool BlockTree::insert(uint64_t parent, uint64_t hash, WorkerSlot worker) {
  const auto [node, is_new] = nodes_.try_emplace(hash);
  if (is_new && parent != 0) {
    const auto above = nodes_.find(parent);
    ESP_CHECK(above != nodes_.end());
    ++above->second.num_children;
  }
  if (is_new) node->second.parent = parent;
  return node->second.workers.insert(worker);
}

bool BlockTree::erase(uint64_t hash, WorkerSlot worker) {
  const auto node = nodes_.find(hash);
  if (node == nodes_.end() || !node->second.workers.erase(worker)) return false;
  remove_if_unused(hash);
  return true;
}

void BlockTree::remove_if_unused(uint64_t hash) {
  while (hash != 0) {
    const auto node = nodes_.find(hash);
    if (node->second.num_children > 0 || !node->second.workers.empty()) return;
    hash = node->second.parent;
    nodes_.erase(node);
    if (hash != 0) --nodes_.at(hash).num_children;
  }
}

void BlockTree::remove_worker(WorkerSlot worker) {
  std::vector<uint64_t> held;
  for (const auto& [hash, node] : nodes_)
    if (node.workers.contains(worker)) held.push_back(hash);
  for (const uint64_t hash : held) erase(hash, worker);
}

const BlockTree::Node* BlockTree::find(uint64_t hash) const {
  const auto node = nodes_.find(hash);
  return node == nodes_.end() ? nullptr : &node->second;
}

void BlockTree::check_invariants() const {
  std::unordered_map<uint64_t, uint32_t> children;
  for (const auto& [hash, node] : nodes_) {
    ESP_CHECK(node.num_children > 0 || !node.workers.empty());
    if (node.parent != 0) ++children[node.parent];
  }
  for (const auto& [hash, node] : nodes_) {
    const auto counted = children.find(hash);
    ESP_CHECK(node.num_children == (counted == children.end() ? 0 : counted->second));
    if (counted != children.end()) children.erase(counted);
  }
  ESP_CHECK(children.empty());
}

void CacheMirror::apply(WorkerSlot worker, const KvEvent& event) {
  if (worker >= caches_.size()) caches_.resize(size_t{worker} + 1);
  Cache& cache = caches_[worker];
  cache.mirrored = true;
  switch (event.type) {
    case KvEvent::Type::kStored:
      return store(cache, worker, event);
    case KvEvent::Type::kRemoved:
      for (const uint64_t name : event.hashes) remove(cache, worker, name);
      return;
    case KvEvent::Type::kCleared:
      return clear(worker);
  }
}

uint64_t CacheMirror::hash_of(WorkerSlot worker, uint64_t name) const {
  if (worker >= caches_.size()) return 0;
  const auto named = caches_[worker].blocks.find(name);
  return named == caches_[worker].blocks.end() ? 0 : named->second.hash;
}

void CacheMirror::store(Cache& cache, WorkerSlot worker, const KvEvent& event) {
  if (cache.block_size != event.block_size) {
    clear(worker);  // a worker whose blocks have another size is another process
    cache.block_size = event.block_size;
  }
  if (cache.blocks.size() + event.hashes.size() > kBlocksMax) clear(worker);
  Block at;  // of a prompt's begin
  if (event.has_parent) {
    const auto known = cache.blocks.find(event.parent);
    if (known == cache.blocks.end()) return;
    at = known->second;
  }
  for (size_t i = 0; i < event.hashes.size(); ++i) {
    const std::span<const int32_t> tokens =
        std::span(event.tokens).subspan(i * event.block_size, event.block_size);
    const uint64_t parent_node = at.node;
    at.hash =
        block_hash(at.hash, tokens, event.extras.empty() ? "" : std::string_view(event.extras[i]));
    at.num_tokens += event.block_size;
    const bool has_node = at.num_tokens % tokens_per_node(event.block_size) == 0;
    const uint64_t name = event.hashes[i];
    if (const auto named = cache.blocks.find(name);
        named != cache.blocks.end() && named->second.hash != at.hash)
      remove(cache, worker, name);  // which may have been the parent's name
    if (has_node) {
      if (parent_node != 0 && tree_.find(parent_node) == nullptr) return;  // evicted before this
      at.node = at.hash;
    }
    if (cache.blocks.try_emplace(name, at).second && has_node &&
        !tree_.insert(parent_node, at.node, worker))
      ++cache.counts[at.node];
  }
}

void CacheMirror::remove(Cache& cache, WorkerSlot worker, uint64_t name) {
  const auto named = cache.blocks.find(name);
  if (named == cache.blocks.end()) return;
  const Block block = named->second;
  cache.blocks.erase(named);
  if (block.node != block.hash) return;
  const auto others = cache.counts.find(block.node);
  if (others == cache.counts.end()) {
    tree_.erase(block.node, worker);
  } else if (--others->second == 0) {
    cache.counts.erase(others);
  }
}

void CacheMirror::clear(WorkerSlot worker) {
  if (worker >= caches_.size()) return;
  for (const auto& [name, block] : caches_[worker].blocks) tree_.erase(block.node, worker);
  caches_[worker].blocks.clear();
  caches_[worker].counts.clear();
}

void CacheMirror::forget(WorkerSlot worker) {
  clear(worker);
  if (worker < caches_.size()) caches_[worker] = {};
}

void CacheMirror::check_invariants() const {
  tree_.check_invariants();
  for (size_t slot = 0; slot < caches_.size(); ++slot) {
    std::unordered_map<uint64_t, uint32_t> names;
    for (const auto& [name, block] : caches_[slot].blocks)
      if (block.node == block.hash) ++names[block.node];
    for (const auto& [hash, count] : names) {
      const BlockTree::Node* const node = tree_.find(hash);
      ESP_CHECK(node != nullptr && node->workers.contains(static_cast<WorkerSlot>(slot)));
      const auto others = caches_[slot].counts.find(hash);
      ESP_CHECK(count == 1 + (others == caches_[slot].counts.end() ? 0 : others->second));
    }
    ESP_CHECK(caches_[slot].counts.size() <= names.size());
  }
}

}  // namespace espalier::router
