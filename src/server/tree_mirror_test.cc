// The mirror of the radix tree against a map: an observer that applies the changes has the tree.
#include "server/tree_mirror.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/rng.h"
#include "server/test_server.h"

namespace espalier::server {
namespace {

using Row = std::tuple<uint32_t, int32_t, uint64_t>;  // parent, locks, last use
using Tree = std::map<uint32_t, Row>;

Row row_of(const CacheNode& node) { return {node.parent, node.num_locks, node.last_use}; }

CacheNode node_of(uint32_t number, const Row& of) {
  return {.number = number,
          .parent = std::get<0>(of),
          .num_tokens = 3,
          .num_locks = std::get<1>(of),
          .last_use = std::get<2>(of)};
}

// What a client of GET /cache_tree keeps.
struct Observer {
  Tree tree;
  uint64_t reading = 0;

  void take(const TreeMirror::Changes& changes) {
    if (changes.whole) tree.clear();
    for (const uint32_t number : changes.removed) tree.erase(number);
    for (const CacheNode* changed : changes.nodes) tree[changed->number] = row_of(*changed);
    reading = changes.reading;
  }
};

void read_into(TreeMirror& mirror, const Tree& tree) {
  mirror.begin();
  CacheNodes part{.num_nodes = tree.size(), .now = 7};
  for (const auto& [number, of] : tree) {
    part.nodes.push_back(node_of(number, of));
    if (part.nodes.size() == 3) mirror.add(std::exchange(part, {.num_nodes = tree.size()}));
  }
  mirror.add(part);
  EXPECT_TRUE(mirror.end_of_tree().empty()) << "pages without names";
  mirror.end({});
}

TEST(TreeMirror, ObserversThatApplyTheChangesHaveTheTree) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    Tree tree;
    TreeMirror mirror;
    Observer often, seldom;
    for (int i = 0; i < 200; ++i) {
      for (uint64_t k = rng.below(6); k > 0; --k) {
        const auto number = static_cast<uint32_t>(rng.below(30)) + 1;
        if (rng.below(3) == 0)
          tree.erase(number);
        else
          tree[number] = {static_cast<uint32_t>(rng.below(4)), static_cast<int32_t>(rng.below(2)),
                          static_cast<uint64_t>(i)};
      }
      read_into(mirror, tree);
      often.take(mirror.changes(often.reading));
      ASSERT_EQ(often.tree, tree);
      if (rng.below(5) != 0) continue;
      seldom.take(mirror.changes(seldom.reading));
      ASSERT_EQ(seldom.tree, tree);
    }
  }
}

TEST(TreeMirror, AnUnchangedTreeHasNoChanges) {
  TreeMirror mirror;
  read_into(mirror, {{1, {0, 0, 5}}, {2, {1, 1, 6}}});
  read_into(mirror, {{1, {0, 0, 5}}, {2, {1, 1, 6}}});
  EXPECT_EQ(mirror.changes(0).nodes.size(), 2u);
  EXPECT_TRUE(mirror.changes(0).whole);
  EXPECT_TRUE(mirror.changes(1).nodes.empty());
  EXPECT_FALSE(mirror.changes(1).whole);
  EXPECT_TRUE(mirror.changes(99).whole) << "the reading of another process";
}

TEST(TreeMirror, AnObserverThatComesTooLateGetsTheWholeTree) {
  TreeMirror mirror;
  Tree tree;
  for (uint32_t i = 1; i <= 1000; ++i) tree[i] = {0, 0, 1};
  read_into(mirror, tree);
  for (size_t removed = 0; removed <= TreeMirror::kRemovedMax; removed += 1000) {
    read_into(mirror, {});
    read_into(mirror, tree);
  }
  EXPECT_TRUE(mirror.changes(1).whole);
  EXPECT_FALSE(mirror.changes(mirror.changes(0).reading - 1).whole);
}

// A tree of one page a node, named by its path, above a tier that keeps some of what is evicted.
class TierModel {
 public:
  explicit TierModel(uint64_t seed) : rng_(seed) {}

  void grow() {
    if (live_.empty()) add("");
    const std::string path = some(live_) + static_cast<char>('a' + rng_.below(3));
    if (!live_.contains(path) && path.size() < 8) add(path);
  }
  void evict() {
    const std::string path = some(live_);
    const auto next = live_.upper_bound(path);
    if (path.empty() || (next != live_.end() && next->first.starts_with(path))) return;
    free_.insert(live_.at(path));
    live_.erase(path);
    if (rng_.below(3) > 0) tier_.insert(path);
    if (live_.size() == 1) {  // the root goes with its last node
      free_.insert(live_.at(""));
      live_.clear();
    }
  }
  void lose() {
    if (!tier_.empty())
      tier_.erase(std::next(tier_.begin(), static_cast<long>(rng_.below(tier_.size()))));
  }

  // Reads all into the mirror; then what only the tier has is in the mirror, and nothing else is.
  void check(TreeMirror& mirror) {
    mirror.begin();
    CacheNodes read{.num_nodes = live_.size(), .has_tiers = true};
    for (const auto& [path, number] : live_)
      read.nodes.push_back({.number = number,
                            .parent = path.empty() ? 0 : live_.at(parent(path)),
                            .num_tokens = path.empty() ? 0 : 4,
                            .end = static_cast<int32_t>(path.size()) * 4,
                            .created = created_.at(path),
                            .first_name = name(path),
                            .last_name = name(path),
                            .name_space = path.empty() ? "key" : ""});
    mirror.add(read);
    std::vector<uint8_t> tiers;
    for (const PageName& each : mirror.end_of_tree())
      tiers.push_back(tier_.contains(path_of(each)) ? kHostTier : 0);
    mirror.end(tiers);
    for (const auto& [path, number] : seen_)
      if (!live_.contains(path)) away_.insert(path);
    std::erase_if(away_, [&](const std::string& path) { return live_.contains(path); });
    std::set<std::string> kept;  // parents come before their children
    for (const std::string& path : away_)
      if (tier_.contains(path) &&
          (path.size() == 1 || kept.contains(parent(path)) || live_.contains(parent(path))))
        kept.insert(path);
    away_ = kept;
    seen_ = live_;
    compare(mirror.changes(0));
  }

 private:
  static PageName name(const std::string& path) {
    PageName out;
    std::ranges::copy(path, out.bytes.begin());
    return out;
  }
  static std::string path_of(const PageName& name) {
    return reinterpret_cast<const char*>(name.bytes.data());
  }
  static std::string parent(const std::string& path) { return path.substr(0, path.size() - 1); }
  void add(const std::string& path) {
    live_[path] = free_.empty() ? ++last_ : free_.extract(free_.begin()).value();
    created_[path] = ++now_;
  }
  std::string some(const std::map<std::string, uint32_t>& of) {
    return of.empty() ? "" : std::next(of.begin(), static_cast<long>(rng_.below(of.size())))->first;
  }
  void compare(const TreeMirror::Changes& all) {
    std::map<uint32_t, const CacheNode*> nodes;
    std::set<std::string> shown;
    for (const CacheNode* node : all.nodes) ASSERT_TRUE(nodes.emplace(node->number, node).second);
    for (const auto& [number, node] : nodes) {
      if (node->resident || node->parent == 0) continue;
      ASSERT_TRUE(shown.insert(path_of(node->last_name)).second);
      ASSERT_EQ(node->tiers, kHostTier);
      const CacheNode& above = *nodes.at(node->parent);
      ASSERT_EQ(path_of(above.last_name), parent(path_of(node->last_name)));
      ASSERT_TRUE(above.parent != 0 || above.name_space == "key");
    }
    ASSERT_EQ(shown, away_);
  }

  Rng rng_;
  std::map<std::string, uint32_t> live_, seen_;  // by path
  std::set<std::string> tier_, away_;
  std::set<uint32_t> free_;
  uint32_t last_ = 0;
  std::map<std::string, uint64_t> created_;
  uint64_t now_ = 0;
};

TEST(TreeMirror, WhatOnlyATierHasStaysInThePicture) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    TierModel model(seed);
    TreeMirror mirror;
    for (int i = 0; i < 200; ++i) {
      // One eviction a reading: what has come and gone between two readings was never seen.
      if (i % 3 == 0) model.evict();
      model.grow();
      if (i % 3 == 1) model.evict();
      if (i % 5 == 0) model.lose();
      model.check(mirror);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_F(ServerTest, AnEngineWhoseCacheCannotBeReadIsAnError) {
  start();
  for (const char* path : {"/cache_tree", "/cache_tree/1"}) {
    const Answer answer = call("GET", path);
    EXPECT_EQ(answer.status, 400);
    EXPECT_NE(answer.body.find("this engine's cache cannot be read"), std::string::npos);
  }
  EXPECT_EQ(call("GET", "/cache_tree/0").status, 400);
  EXPECT_EQ(call("GET", "/cache_tree?since=x").status, 400);
}

}  // namespace
}  // namespace espalier::server
