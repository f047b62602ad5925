#include "cache/shadow/prefix_tree.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "base/rng.h"

namespace espalier {
namespace {

PrefixKey key_of(std::string_view letters) {
  std::string text;
  for (const char c : letters) text += std::string(kBlockBytes, c);
  return text_key(text, 0);
}

std::set<WorkerSlot> workers_of(const WorkerSet& set) {
  std::set<WorkerSlot> out;
  set.for_each([&](WorkerSlot worker) { out.insert(worker); });
  EXPECT_EQ(out.size(), set.size());
  for (const WorkerSlot worker : out) EXPECT_TRUE(set.contains(worker));
  return out;
}

// Which workers were sent each prefix, prefix by prefix.
class NaiveTree {
 public:
  void insert(const PrefixKey& key, WorkerSlot worker) {
    for (const uint64_t hash : key) workers_[hash].insert(worker);
  }
  void remove_worker(WorkerSlot worker) {
    for (auto& [hash, workers] : workers_) workers.erase(worker);
  }
  // Of the key's first `num_blocks`.
  std::set<WorkerSlot> workers(const PrefixKey& key, size_t num_blocks) const {
    const auto at = num_blocks == 0 ? workers_.end() : workers_.find(key[num_blocks - 1]);
    return at == workers_.end() ? std::set<WorkerSlot>{} : at->second;
  }
  size_t match(const PrefixKey& key) const {
    size_t n = 0;
    while (n < key.size() && !workers(key, n + 1).empty()) ++n;
    return n;
  }

 private:
  std::map<uint64_t, std::set<WorkerSlot>> workers_;
};

std::string random_letters(Rng& rng, size_t length_max) {
  std::string out;
  for (size_t n = rng.below(length_max + 1); n > 0; --n)
    out += static_cast<char>('a' + rng.below(rng.below(8) == 0 ? 6 : 2));
  return out;
}

TEST(PrefixKey, BlocksDependOnAllBeforeThem) {
  EXPECT_TRUE(text_key(std::string(kBlockBytes - 1, 'a'), 0).empty());
  const PrefixKey abc = key_of("abc"), abd = key_of("abd"), xbc = key_of("xbc");
  EXPECT_EQ(abc.size(), 3u);
  EXPECT_EQ(abc[1], abd[1]);
  EXPECT_NE(abc[2], abd[2]);
  EXPECT_NE(abc[2], xbc[2]);
  const std::string text(kBlockBytes, 'a');
  EXPECT_NE(text_key(text, name_space_hash("one")), text_key(text, name_space_hash("two")));
  const std::vector<int32_t> tokens(2 * kBlockBytes / sizeof(int32_t) + 1, 7);
  EXPECT_EQ(token_key(tokens, 0).size(), 2u);
}

TEST(WorkerSet, AgreesWithASet) {
  const uint64_t seed = 20;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int round = 0; round < 50; ++round) {
    WorkerSet set;
    std::set<WorkerSlot> model;
    const uint64_t range = round % 2 == 0 ? 5 : kMaxWorkers;
    for (int i = 0; i < 200; ++i) {
      const auto worker = static_cast<WorkerSlot>(rng.below(range));
      if (rng.below(3) > 0) {
        EXPECT_EQ(set.insert(worker), model.insert(worker).second);
      } else {
        EXPECT_EQ(set.erase(worker), model.erase(worker) == 1);
      }
      ASSERT_EQ(workers_of(set), model);
      ASSERT_EQ(workers_of(set.copy()), model);
      ASSERT_EQ(set.empty(), model.empty());
    }
  }
}

TEST(PrefixTree, MatchesAndSplits) {
  PrefixTree tree({});
  tree.insert(key_of("system user1 answer"), 1);
  tree.insert(key_of("system user2"), 2);
  PrefixTree::Match match;
  tree.match(key_of("system user1 answer next"), match);
  EXPECT_EQ(match.num_blocks, 19u);
  EXPECT_TRUE(match.at_leafs_end);
  ASSERT_EQ(match.path.size(), 2u);
  EXPECT_EQ(match.path[0].num_blocks, 11u);
  EXPECT_EQ(workers_of(*match.path[0].workers), (std::set<WorkerSlot>{1, 2}));
  EXPECT_EQ(workers_of(*match.path[1].workers), (std::set<WorkerSlot>{1}));
  tree.match(key_of("system user3"), match);
  EXPECT_EQ(match.num_blocks, 11u);
  EXPECT_FALSE(match.at_leafs_end);
  tree.match(key_of("other"), match);
  EXPECT_EQ(match.num_blocks, 0u);
  EXPECT_TRUE(match.path.empty());
  tree.check_invariants();
}

TEST(PrefixTree, AgreesWithAMapOfAllPrefixes) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    PrefixTree tree({});
    NaiveTree model;
    PrefixTree::Match match;
    for (int i = 0; i < 400; ++i) {
      const PrefixKey key = key_of(random_letters(rng, 12));
      const auto worker = static_cast<WorkerSlot>(rng.below(6));
      if (rng.below(100) == 0) {
        tree.remove_worker(worker);
        model.remove_worker(worker);
      } else if (rng.below(2) == 0) {
        tree.insert(key, worker);
        model.insert(key, worker);
      }
      tree.match(key, match);
      ASSERT_EQ(match.num_blocks, model.match(key));
      size_t from = 0;
      for (const PrefixTree::Step& step : match.path) {
        for (size_t n = from + 1; n <= step.num_blocks; ++n)
          ASSERT_EQ(workers_of(*step.workers), model.workers(key, n)) << "block " << n;
        from = step.num_blocks;
      }
      ASSERT_EQ(from, match.num_blocks);
      if (i % 20 == 0) tree.check_invariants();
    }
  }
}

TEST(PrefixTree, KeepsItsBoundsAndTheNewest) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    PrefixTree tree({.max_blocks = 40 + 10 * rng.below(10), .max_nodes = 6 + rng.below(20)});
    NaiveTree model;
    PrefixTree::Match match;
    for (int i = 0; i < 500; ++i) {
      const PrefixKey key = key_of(random_letters(rng, 10));
      const auto worker = static_cast<WorkerSlot>(rng.below(4));
      tree.insert(key, worker);
      model.insert(key, worker);
      tree.check_invariants();
      tree.match(key, match);
      ASSERT_EQ(match.num_blocks, key.size()) << "what was inserted last is there";
      if (!key.empty()) {
        ASSERT_TRUE(match.path.back().workers->contains(worker));
      }
      const PrefixKey other = key_of(random_letters(rng, 10));
      tree.match(other, match);
      for (const PrefixTree::Step& step : match.path)
        for (const WorkerSlot w : workers_of(*step.workers))
          ASSERT_TRUE(model.workers(other, step.num_blocks).contains(w)) << "never sent there";
    }
    EXPECT_GT(tree.num_evicted_total(), 0u);
  }
}

TEST(PrefixTree, EvictsTheLeafThatWasNotUsed) {
  PrefixTree tree({.max_blocks = 100, .max_nodes = 4});
  for (const char* key : {"a1", "b2", "c3", "d4"}) tree.insert(key_of(key), 0);
  tree.insert(key_of("a1"), 0);  // used again
  tree.insert(key_of("e5"), 0);
  PrefixTree::Match match;
  tree.match(key_of("a1"), match);
  EXPECT_EQ(match.num_blocks, 2u);
  tree.match(key_of("b2"), match);
  EXPECT_EQ(match.num_blocks, 0u);
}

TEST(PrefixTree, TakesLongKeysInPart) {
  PrefixTree tree({.max_blocks = 40, .max_nodes = 10});
  const PrefixKey key = key_of(std::string(100, 'x'));
  tree.insert(key, 0);
  tree.check_invariants();
  PrefixTree::Match match;
  tree.match(key, match);
  EXPECT_EQ(match.num_blocks, 10u);
}

}  // namespace
}  // namespace espalier
