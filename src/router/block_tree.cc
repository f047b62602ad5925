#include "router/block_tree.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"

namespace espalier::router {

uint64_t block_hash(uint64_t parent, std::span<const int32_t> tokens, std::string_view extra) {
  uint64_t hash = mix64(parent ^ XXH3_64bits(tokens.data(), tokens.size_bytes()));
  if (!extra.empty()) hash = mix64(hash ^ XXH3_64bits(extra.data(), extra.size()));
  return hash != 0 ? hash : 1;  // 0 is a prompt's begin
}

namespace {

constexpr std::array<KvMedium, kNumMedia> kMedia = {KvMedium::kDevice, KvMedium::kHost,
                                                    KvMedium::kDisk, KvMedium::kRemote};

constexpr size_t index_of(KvMedium medium) { return static_cast<size_t>(medium); }
constexpr uint8_t bit_of(KvMedium medium) { return static_cast<uint8_t>(1 << index_of(medium)); }

}  // namespace

const WorkerSet* BlockTree::Node::in(KvMedium medium) const {
  if (medium == KvMedium::kDevice) return &workers;
  return elsewhere == nullptr ? nullptr : &(*elsewhere)[index_of(medium) - 1];
}

std::optional<KvMedium> BlockTree::Node::nearest(WorkerSlot worker) const {
  for (const KvMedium medium : kMedia)
    if (const WorkerSet* const set = in(medium); set != nullptr && set->contains(worker))
      return medium;
  return std::nullopt;
}

bool BlockTree::Node::has_worker() const { return !workers.empty() || elsewhere != nullptr; }

bool BlockTree::insert(uint64_t parent, uint64_t hash, WorkerSlot worker, KvMedium medium) {
  const auto [node, is_new] = nodes_.try_emplace(hash);
  if (is_new && parent != 0) {
    const auto above = nodes_.find(parent);
    ESP_CHECK(above != nodes_.end());
    ++above->second.num_children;
  }
  if (is_new) node->second.parent = parent;
  if (medium == KvMedium::kDevice) return node->second.workers.insert(worker);
  auto& elsewhere = node->second.elsewhere;
  if (elsewhere == nullptr) elsewhere = std::make_unique<std::array<WorkerSet, kNumMedia - 1>>();
  return (*elsewhere)[index_of(medium) - 1].insert(worker);
}

bool BlockTree::erase(uint64_t hash, WorkerSlot worker, KvMedium medium) {
  const auto node = nodes_.find(hash);
  if (node == nodes_.end()) return false;
  auto& elsewhere = node->second.elsewhere;
  if (medium == KvMedium::kDevice) {
    if (!node->second.workers.erase(worker)) return false;
  } else {
    if (elsewhere == nullptr || !(*elsewhere)[index_of(medium) - 1].erase(worker)) return false;
    if (std::ranges::all_of(*elsewhere, &WorkerSet::empty)) elsewhere.reset();
  }
  remove_if_unused(hash);
  return true;
}

void BlockTree::remove_if_unused(uint64_t hash) {
  while (hash != 0) {
    const auto node = nodes_.find(hash);
    if (node->second.num_children > 0 || node->second.has_worker()) return;
    hash = node->second.parent;
    nodes_.erase(node);
    if (hash != 0) --nodes_.at(hash).num_children;
  }
}

void BlockTree::remove_worker(WorkerSlot worker) {
  std::vector<uint64_t> held;
  for (const auto& [hash, node] : nodes_)
    if (node.nearest(worker)) held.push_back(hash);
  for (const uint64_t hash : held)
    for (const KvMedium medium : kMedia) erase(hash, worker, medium);
}

const BlockTree::Node* BlockTree::find(uint64_t hash) const {
  const auto node = nodes_.find(hash);
  return node == nodes_.end() ? nullptr : &node->second;
}

void BlockTree::check_invariants() const {
  std::unordered_map<uint64_t, uint32_t> children;
  for (const auto& [hash, node] : nodes_) {
    ESP_CHECK(node.num_children > 0 || node.has_worker());
    ESP_CHECK(node.elsewhere == nullptr ||
              !std::ranges::all_of(*node.elsewhere, &WorkerSet::empty));
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
      return event.tokens.empty() ? store_named(cache, worker, event) : store(cache, worker, event);
    case KvEvent::Type::kRemoved:
      for (const uint64_t name : event.hashes) remove(cache, worker, name, event.medium);
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
    if (cache.block_size != 0 && event.medium != KvMedium::kDevice) return;  // larger ones, on disk
    clear(worker);  // a worker whose blocks have another size is another process
    cache.block_size = event.block_size;
  }
  if (cache.blocks.size() + event.hashes.size() > kBlocksMax) clear(worker);
  Block at;  // of a prompt's begin
  if (event.has_parent) {
    const auto known = cache.blocks.find(event.parent);
    if (known == cache.blocks.end()) return;
    at = known->second;
    at.media = 0;
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
      remove_everywhere(cache, worker, name);  // which may have been the parent's name
    if (has_node) {
      if (parent_node != 0 && tree_.find(parent_node) == nullptr) return;  // evicted before this
      at.node = at.hash;
    }
    put(cache, worker, parent_node, cache.blocks.try_emplace(name, at).first->second, event.medium);
  }
}

// The worker has the blocks in another memory by the same names.
void CacheMirror::store_named(Cache& cache, WorkerSlot worker, const KvEvent& event) {
  for (const uint64_t name : event.hashes)
    if (const auto known = cache.blocks.find(name); known != cache.blocks.end())
      put(cache, worker, 0, known->second, event.medium);
}

// `parent_node`: where the block's node may be new.
void CacheMirror::put(Cache& cache, WorkerSlot worker, uint64_t parent_node, Block& block,
                      KvMedium medium) {
  if ((block.media & bit_of(medium)) != 0) return;
  block.media |= bit_of(medium);
  if (block.node != block.hash) return;
  if (!tree_.insert(parent_node, block.node, worker, medium))
    ++cache.counts[index_of(medium)][block.node];
}

void CacheMirror::remove(Cache& cache, WorkerSlot worker, uint64_t name, KvMedium medium) {
  const auto named = cache.blocks.find(name);
  if (named == cache.blocks.end() || (named->second.media & bit_of(medium)) == 0) return;
  named->second.media &= static_cast<uint8_t>(~bit_of(medium));
  const Block block = named->second;
  if (block.media == 0) cache.blocks.erase(named);
  if (block.node != block.hash) return;
  auto& counts = cache.counts[index_of(medium)];
  const auto others = counts.find(block.node);
  if (others == counts.end()) {
    tree_.erase(block.node, worker, medium);
  } else if (--others->second == 0) {
    counts.erase(others);
  }
}

void CacheMirror::remove_everywhere(Cache& cache, WorkerSlot worker, uint64_t name) {
  for (const KvMedium medium : kMedia) remove(cache, worker, name, medium);
}

void CacheMirror::clear(WorkerSlot worker) {
  if (worker >= caches_.size()) return;
  for (const auto& [name, block] : caches_[worker].blocks)
    for (const KvMedium medium : kMedia) tree_.erase(block.node, worker, medium);
  caches_[worker].blocks.clear();
  for (auto& counts : caches_[worker].counts) counts.clear();
}

void CacheMirror::forget(WorkerSlot worker) {
  clear(worker);
  if (worker < caches_.size()) caches_[worker] = {};
}

void CacheMirror::check_invariants() const {
  tree_.check_invariants();
  for (size_t slot = 0; slot < caches_.size(); ++slot) {
    for (const KvMedium medium : kMedia) {
      std::unordered_map<uint64_t, uint32_t> names;
      for (const auto& [name, block] : caches_[slot].blocks) {
        ESP_CHECK(block.media != 0);
        if (block.node == block.hash && (block.media & bit_of(medium)) != 0) ++names[block.node];
      }
      const auto& counts = caches_[slot].counts[index_of(medium)];
      for (const auto& [hash, count] : names) {
        const BlockTree::Node* const node = tree_.find(hash);
        ESP_CHECK(node != nullptr && node->in(medium) != nullptr &&
                  node->in(medium)->contains(static_cast<WorkerSlot>(slot)));
        const auto others = counts.find(hash);
        ESP_CHECK(count == 1 + (others == counts.end() ? 0 : others->second));
      }
      ESP_CHECK(counts.size() <= names.size());
    }
  }
}

}  // namespace espalier::router
