#include "server/away_nodes.h"

#include <algorithm>
#include <utility>

namespace espalier::server {

uint32_t AwayNodes::take_number() {
  if (free_numbers_.empty()) return next_number_++;
  return free_numbers_.extract(free_numbers_.begin()).value();
}

void AwayNodes::add(const CacheNode& lost, const PageName& parent_end,
                    const std::string& name_space) {
  if (away_.size() >= kNodesMax) return;
  const uint32_t number = take_number();
  Away& away = away_[number];
  away = {.node = lost, .parent_end = parent_end, .name_space = name_space};
  away.node.number = number;
  away.node.num_locks = 0;
  away.node.resident = false;
}

std::vector<PageName> AwayNodes::names() const {
  std::vector<PageName> names;
  for (const auto& [number, away] : away_) names.push_back(away.node.last_name);
  return names;
}

AwayNodes::Known AwayNodes::look_for(const std::vector<Live>& live) const {
  Known known;
  for (const auto& [number, away] : away_) {
    known.ends[away.parent_end] = 0;
    known.ends[away.node.last_name] = 0;
    known.begins[away.node.first_name] = 0;
  }
  const auto note = [](Numbers& numbers, const PageName& name, uint32_t number) {
    if (const auto at = numbers.find(name); at != numbers.end()) at->second = number;
  };
  for (const auto& [node, end] : live) {
    if (node->parent == 0) {
      known.roots[node->name_space] = node->number;
      continue;
    }
    note(known.ends, *end, node->number);
    note(known.begins, node->first_name, node->number);
  }
  return known;
}

// 0: it is nowhere.
uint32_t AwayNodes::parent_of(const Away& away, const Known& known) {
  if (!away.parent_end.empty()) return known.ends.at(away.parent_end);
  if (const auto at = known.roots.find(away.name_space); at != known.roots.end()) return at->second;
  CacheNode& root = roots_[away.name_space];
  if (root.number == 0) root = {.number = take_number(), .name_space = away.name_space};
  return root.number;
}

void AwayNodes::settle(const std::vector<uint8_t>& tiers, const std::vector<Live>& live) {
  Known known = look_for(live);
  std::vector<Away*> order;
  for (auto& [number, away] : away_) {
    away.node.tiers = order.size() < tiers.size() ? tiers[order.size()] : 0;
    order.push_back(&away);
  }
  std::map<std::string, CacheNode> roots_before = std::exchange(roots_, {});
  for (auto& [name, root] : roots_before)
    if (!known.roots.contains(name)) roots_.emplace(name, root);
  std::set<std::string> used;
  // A parent ends before its children do, so in order of their ends each finds its parent decided.
  std::ranges::stable_sort(order, {}, [](const Away* away) { return away->node.end; });
  for (Away* away : order) {
    uint32_t& same_end = known.ends.at(away->node.last_name);
    const bool is_back = known.begins.at(away->node.first_name) != 0 || same_end != 0;
    if (away->node.tiers != 0 && !is_back) {
      if (const uint32_t parent = parent_of(*away, known); parent != 0) {
        away->node.parent = parent;
        same_end = away->node.number;
        used.insert(away->name_space);
        continue;
      }
    }
    free_numbers_.insert(away->node.number);
    away_.erase(away->node.number);
  }
  std::erase_if(roots_, [&](const auto& root) { return !used.contains(root.first); });
  for (const auto& [name, root] : roots_before)
    if (!roots_.contains(name)) free_numbers_.insert(root.number);
}

std::vector<const CacheNode*> AwayNodes::nodes() const {
  std::vector<const CacheNode*> nodes;
  for (const auto& [name, root] : roots_) nodes.push_back(&root);
  for (const auto& [number, away] : away_) nodes.push_back(&away.node);
  return nodes;
}

}  // namespace espalier::server
