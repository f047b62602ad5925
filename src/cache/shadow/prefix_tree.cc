#include "cache/shadow/prefix_tree.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"

namespace espalier {

namespace {

constexpr size_t kTableMin = 64;  // entries

uint32_t low(uint64_t hash) { return static_cast<uint32_t>(hash); }

// Of a RunStore's block: lengths are rounded up to 16, 24, 32, 48, 64 ...
size_t run_bytes(size_t num_blocks) {
  size_t length = 16;
  while (length / 2 * 3 < num_blocks) length *= 2;
  return (num_blocks <= length ? length : length / 2 * 3) * sizeof(int32_t);
}

}  // namespace

PrefixTree::PrefixTree(const Options& options)
    : options_(options),
      nodes_(map_zeroed((options.max_nodes + 3) * sizeof(Node))),
      table_(kTableMin),
      mask_(kTableMin - 1) {
  ESP_CHECK(options.max_nodes >= 4 && options.max_nodes < UINT32_MAX / 2, "{} nodes",
            options.max_nodes);
  ESP_CHECK(options.max_blocks >= 4, "{} blocks", options.max_blocks);
  new (&at(0)) Node;
}

PrefixTree::~PrefixTree() {
  for (Index i = 0; i < num_constructed_; ++i) at(i).~Node();
}

// Looking up.

PrefixTree::Index PrefixTree::find(Index parent, uint32_t first) const {
  for (size_t i = first & mask_; table_[i].node != 0; i = (i + 1) & mask_)
    if (table_[i].first == first && at(table_[i].node).parent == parent) return table_[i].node;
  return 0;
}

void PrefixTree::link(Index node) {
  if (2 * (num_nodes_ + 1) > table_.size()) grow();
  const uint32_t first = at(node).block(0);
  size_t i = first & mask_;
  while (table_[i].node != 0) i = (i + 1) & mask_;
  table_[i] = {first, node};
}

// Entries behind the one that goes move up where their own place allows it.
void PrefixTree::unlink(Index node) {
  size_t hole = at(node).block(0) & mask_;
  while (table_[hole].node != node) hole = (hole + 1) & mask_;
  for (size_t i = (hole + 1) & mask_; table_[i].node != 0; i = (i + 1) & mask_) {
    const size_t wanted = table_[i].first & mask_;
    if (((i - wanted) & mask_) < ((i - hole) & mask_)) continue;
    table_[hole] = table_[i];
    hole = i;
  }
  table_[hole] = {};
}

void PrefixTree::grow() {
  std::vector<Entry> old(table_.size() * 2);
  old.swap(table_);
  mask_ = table_.size() - 1;
  for (const Entry& entry : old) {
    if (entry.node == 0) continue;
    size_t i = entry.first & mask_;
    while (table_[i].node != 0) i = (i + 1) & mask_;
    table_[i] = entry;
  }
}

// Calls visit(node, blocks of the key that match so far) for each node that the key enters.
template <typename Visit>
PrefixTree::End PrefixTree::walk(std::span<const uint64_t> key, Visit&& visit) const {
  End end;
  while (end.num_blocks < key.size()) {
    const Index next = find(end.node, low(key[end.num_blocks]));
    if (next == 0) return end;
    const Node& node = at(next);
    const auto length =
        static_cast<uint32_t>(std::min<size_t>(node.num_blocks, key.size() - end.num_blocks));
    const uint64_t* const blocks = key.data() + end.num_blocks;
    uint32_t matching = length;
    if (length < node.num_blocks || node.last != low(blocks[length - 1])) {
      // The first block matches, and a block matches only where all before it do.
      uint32_t above = length;
      matching = 1;
      while (matching < above) {
        const uint32_t middle = matching + (above - matching) / 2;
        if (node.block(middle) == low(blocks[middle])) {
          matching = middle + 1;
        } else {
          above = middle;
        }
      }
    }
    end = {next, matching, end.num_blocks + matching};
    visit(next, end.num_blocks);
    if (matching < node.num_blocks) return end;
  }
  return end;
}

void PrefixTree::match(std::span<const uint64_t> key, Match& match) const {
  match.path.clear();
  const End end = walk(key, [&](Index node, size_t num_blocks) {
    match.path.push_back({static_cast<uint32_t>(num_blocks), &at(node).workers});
  });
  match.num_blocks = static_cast<uint32_t>(end.num_blocks);
  match.at_leafs_end =
      end.node != 0 && at(end.node).num_children == 0 && end.num_inside == at(end.node).num_blocks;
}

// Changing.

void PrefixTree::insert(std::span<const uint64_t> key, WorkerSlot worker) {
  key = key.first(std::min(key.size(), options_.max_blocks / 4));
  End end = walk(key, [](Index, size_t) {});
  if (end.node != 0 && end.num_inside < at(end.node).num_blocks &&
      (end.num_blocks < key.size() || !at(end.node).workers.contains(worker)))
    end.node = split(end.node, end.num_inside);
  // From the end on upwards: a node that has the worker is below others that have it.
  for (Index i = end.node; i != 0 && at(i).workers.insert(worker); i = at(i).parent) {
  }
  if (end.num_blocks < key.size()) {
    add_leaf(end.node, key.subspan(end.num_blocks), worker);
  } else if (end.node != 0 && at(end.node).num_children == 0) {
    take_from_list(end.node);
    push_newest(end.node);
  }
  // The newest leaf, which holds what was inserted, is not the oldest: the bounds exceed a key.
  while (num_blocks_ > options_.max_blocks || num_nodes_ > options_.max_nodes) {
    ++num_evicted_;
    remove_leaf(oldest_);
  }
}

PrefixTree::Index PrefixTree::new_node() {
  ++num_nodes_;
  if (free_nodes_.empty()) {
    new (&at(num_constructed_)) Node;
    return num_constructed_++;
  }
  const Index node = free_nodes_.back();
  free_nodes_.pop_back();
  return node;
}

template <typename Hash>
void PrefixTree::set_run(Node& node, std::span<const Hash> blocks) {
  node.run = runs_.allocate(blocks.size());
  run_bytes_ += run_bytes(blocks.size());
  int32_t* to = node.run.data;
  for (const Hash block : blocks) *to++ = static_cast<int32_t>(low(block));
  node.num_blocks = static_cast<uint32_t>(blocks.size());
  node.last = low(blocks.back());
}

void PrefixTree::add_leaf(Index parent, std::span<const uint64_t> blocks, WorkerSlot worker) {
  if (parent != 0 && at(parent).num_children == 0) take_from_list(parent);
  const Index leaf = new_node();
  Node& node = at(leaf);
  set_run(node, blocks);
  node.parent = parent;
  node.workers.insert(worker);
  num_blocks_ += node.num_blocks;
  ++at(parent).num_children;
  link(leaf);
  push_newest(leaf);
}

PrefixTree::Index PrefixTree::split(Index lower, uint32_t num_blocks) {
  const Index upper = new_node();
  unlink(lower);
  Node &above = at(upper), &below = at(lower);
  const RunStore::Block run = below.run;
  const std::span blocks(reinterpret_cast<const uint32_t*>(run.data), below.num_blocks);
  set_run(above, blocks.first(num_blocks));
  set_run(below, blocks.subspan(num_blocks));
  run_bytes_ -= run_bytes(blocks.size());
  runs_.free(run);
  above.parent = below.parent;
  above.num_children = 1;
  above.workers = below.workers.copy();
  below.parent = upper;
  link(upper);
  link(lower);
  return upper;
}

void PrefixTree::remove_leaf(Index leaf) {
  unlink(leaf);
  take_from_list(leaf);
  Node& node = at(leaf);
  const Index parent = node.parent;
  num_blocks_ -= node.num_blocks;
  run_bytes_ -= run_bytes(node.num_blocks);
  runs_.free(node.run);
  node = Node{};
  free_nodes_.push_back(leaf);
  --num_nodes_;
  if (--at(parent).num_children == 0 && parent != 0) push_newest(parent);
}

void PrefixTree::remove_worker(WorkerSlot worker) {
  for (Index i = 1; i < num_constructed_; ++i) at(i).workers.erase(worker);
  for (Index i = 1; i < num_constructed_; ++i) remove_if_unused(i);
}

// And what becomes an unused leaf by that.
void PrefixTree::remove_if_unused(Index leaf) {
  while (leaf != 0 && at(leaf).num_blocks > 0 && at(leaf).num_children == 0 &&
         at(leaf).workers.empty()) {
    const Index parent = at(leaf).parent;
    remove_leaf(leaf);
    leaf = parent;
  }
}

// The order of eviction.

void PrefixTree::push_newest(Index leaf) {
  at(leaf).newer = 0;
  at(leaf).older = newest_;
  (newest_ != 0 ? at(newest_).newer : oldest_) = leaf;
  newest_ = leaf;
}

void PrefixTree::take_from_list(Index leaf) {
  const auto [newer, older] = std::pair(at(leaf).newer, at(leaf).older);
  (newer != 0 ? at(newer).older : newest_) = older;
  (older != 0 ? at(older).newer : oldest_) = newer;
}

size_t PrefixTree::memory_bytes() const {
  size_t sets = 0;
  for (Index i = 1; i < num_constructed_; ++i) sets += at(i).workers.heap_bytes();
  return num_constructed_ * sizeof(Node) + run_bytes_ + table_.capacity() * sizeof(Entry) + sets +
         free_nodes_.capacity() * sizeof(Index);
}

void PrefixTree::check_invariants() const {
  size_t nodes = 0, blocks = 0, leaves = 0, bytes = 0;
  std::vector<uint32_t> children(num_constructed_);
  for (Index i = 1; i < num_constructed_; ++i) {
    const Node& node = at(i);
    if (node.num_blocks == 0) continue;
    ++nodes;
    blocks += node.num_blocks;
    bytes += run_bytes(node.num_blocks);
    leaves += node.num_children == 0 ? 1 : 0;
    ++children[node.parent];
    ESP_CHECK(find(node.parent, node.block(0)) == i, "node {} is not found", i);
    ESP_CHECK(node.last == node.block(node.num_blocks - 1), "node {}: its last block", i);
    ESP_CHECK(!node.workers.empty(), "node {} has no worker", i);
    if (node.parent == 0) continue;
    ESP_CHECK(at(node.parent).num_blocks > 0, "node {} has a removed parent", i);
    node.workers.for_each([&](WorkerSlot worker) {
      ESP_CHECK(at(node.parent).workers.contains(worker), "worker {} of node {} is not above it",
                worker, i);
    });
  }
  for (Index i = 0; i < num_constructed_; ++i)
    ESP_CHECK(children[i] == at(i).num_children, "node {} counts its children wrongly", i);
  ESP_CHECK(nodes == num_nodes_ && blocks == num_blocks_ && bytes == run_bytes_, "wrong counts");
  ESP_CHECK(nodes <= options_.max_nodes && blocks <= options_.max_blocks, "beyond the bounds");
  size_t entries = 0, listed = 0;
  for (const Entry& entry : table_) entries += entry.node != 0 ? 1 : 0;
  ESP_CHECK(entries == nodes, "the table has {} entries for {} nodes", entries, nodes);
  for (Index i = oldest_, older = 0; i != 0; older = i, i = at(i).newer, ++listed)
    ESP_CHECK(at(i).older == older && at(i).num_children == 0, "node {} is wrong in the list", i);
  ESP_CHECK(listed == leaves, "{} of {} leaves are in the list", listed, leaves);
}

}  // namespace espalier
