#include "server/tree_mirror.h"

#include <algorithm>
#include <utility>

#include "server/errors.h"

namespace espalier::server {
namespace {

bool same(const CacheNode& a, const CacheNode& b) {
  return a.created == b.created && a.last_use == b.last_use && a.num_locks == b.num_locks &&
         a.num_tokens == b.num_tokens && a.parent == b.parent && a.resident == b.resident &&
         a.tiers == b.tiers && a.last_name == b.last_name && a.name_space == b.name_space;
}

}  // namespace

void TreeMirror::add(const CacheNodes& read) {
  for (const CacheNode& node : read.nodes) add_node(node);
  num_nodes_ = read.num_nodes;
  now_ = read.now;
  has_tiers_ = read.has_tiers;
}

void TreeMirror::add_node(const CacheNode& node) {
  Seen& seen = nodes_[node.number];
  if (seen.changed != 0 && same(seen.node, node)) {
    seen.seen = reading_;
    return;
  }
  const bool is_other = seen.changed == 0 || seen.node.created != node.created;
  if (is_other && seen.changed != 0) follow(seen);
  if (is_other || node.end >= seen.full_end) {
    seen.full_name = node.last_name;
    seen.full_end = node.end;
  }
  seen.node = node;
  seen.changed = seen.seen = reading_;
}

// While a reading is under way, links of two readings may form a circle.
const std::string& TreeMirror::name_space_of(const CacheNode& node) const {
  const CacheNode* at = &node;
  for (size_t i = 0; i < nodes_.size() && at->parent != 0; ++i) {
    const auto parent = nodes_.find(at->parent);
    if (parent == nodes_.end()) break;
    at = &parent->second.node;
  }
  return at->name_space;
}

// Nodes of tiers alone are followed already.
void TreeMirror::follow(const Seen& lost) {
  if (!has_tiers_ || lost.node.number > kNumbersMax || lost.full_name.empty()) return;
  CacheNode node = lost.node;
  node.num_tokens += lost.full_end - node.end;
  node.end = lost.full_end;
  node.last_name = lost.full_name;
  away_.add(node, lost.parent_end, name_space_of(lost.node));
}

std::vector<PageName> TreeMirror::end_of_tree() {
  for (const auto& [number, seen] : nodes_)
    if (seen.seen != reading_) follow(seen);
  return away_.names();
}

void TreeMirror::end(const std::vector<uint8_t>& tiers_of_names) {
  std::vector<AwayNodes::Live> live;
  for (const auto& [number, seen] : nodes_)
    if (seen.seen == reading_) live.push_back({&seen.node, &seen.full_name});
  away_.settle(tiers_of_names, live);
  for (const CacheNode* node : away_.nodes()) add_node(*node);
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    if (it->second.seen == reading_) {
      ++it;
      continue;
    }
    removed_.push_back({it->first, reading_});
    it = nodes_.erase(it);
  }
  for (auto& [number, seen] : nodes_) find_parent(seen);
  for (; removed_.size() > kRemovedMax; removed_.pop_front()) forgotten_ = removed_.front().reading;
}

// Children stand at their parent's end, so a parent whose end was evicted before is whole again.
void TreeMirror::find_parent(Seen& seen) {
  if (seen.changed != reading_ || seen.node.number > kNumbersMax) return;
  const auto parent = nodes_.find(seen.node.parent);
  if (parent == nodes_.end()) return;
  Seen& of = parent->second;
  of.full_name = seen.parent_end = of.node.last_name;
  of.full_end = of.node.end;
}

TreeMirror::Changes TreeMirror::changes(uint64_t since) const {
  Changes out{.reading = reading_, .num_nodes = num_nodes_, .now = now_, .has_tiers = has_tiers_};
  out.whole = since == 0 || since < forgotten_ || since > reading_;
  for (const auto& [number, seen] : nodes_)
    if (out.whole || seen.changed > since) out.nodes.push_back(&seen.node);
  if (out.whole) return out;
  for (auto at = removed_.rbegin(); at != removed_.rend() && at->reading > since; ++at)
    if (!nodes_.contains(at->number)) out.removed.push_back(at->number);
  return out;
}

void TreeWatch::read(uint64_t since, net::ResponsePtr response) {
  std::lock_guard lock(mutex_);
  const bool idle = waiting_.empty();
  (idle ? waiting_ : next_).push_back({since, std::move(response)});
  if (idle) begin();
}

void TreeWatch::begin() {
  mirror_.begin();
  in_tree_ = true;
  query({.num_max = kNodesPerStep}, waiting_.front().response);
}

void TreeWatch::query(CacheNodesQuery query, const net::ResponsePtr& response) {
  engine_.read_cache(query, [self = shared_from_this(), response](Result<CacheNodes> read) {
    response->post([self, response, read = std::move(read)] { self->on_nodes(read, response); });
  });
}

// First the nodes of the tree, then which tiers have what has left it.
bool TreeWatch::go_on(const CacheNodes& read, const net::ResponsePtr& response) {
  if (in_tree_) {
    mirror_.add(read);
    if (read.next != 0 && read.next <= TreeMirror::kNumbersMax) {
      query({.from = read.next, .num_max = kNodesPerStep}, response);
      return true;
    }
    in_tree_ = false;
    names_ = mirror_.end_of_tree();
    tiers_.clear();
  } else {
    if (read.tiers_of_names.empty()) return false;
    tiers_.insert(tiers_.end(), read.tiers_of_names.begin(), read.tiers_of_names.end());
  }
  if (tiers_.size() == names_.size()) return false;
  const auto begin = names_.begin() + static_cast<std::ptrdiff_t>(tiers_.size());
  const auto count = std::min(kNamesPerStep, names_.size() - tiers_.size());
  query({.num_max = 0, .names = {begin, begin + static_cast<std::ptrdiff_t>(count)}}, response);
  return true;
}

void TreeWatch::on_nodes(const Result<CacheNodes>& read, const net::ResponsePtr& response) {
  std::lock_guard lock(mutex_);
  if (read) {
    if (go_on(*read, response)) return;
    mirror_.end(tiers_);
  }
  answer(read);
  waiting_ = std::exchange(next_, {});
  if (!waiting_.empty()) begin();
}

void TreeWatch::answer(const Result<CacheNodes>& last) {
  for (const Waiting& each : waiting_)
    each.response->send(last ? net::HttpResponse::json(200, write_(mirror_.changes(each.since)))
                             : error_response(Dialect::kNative, last.error()));
}

}  // namespace espalier::server
