// The radix tree against a naive model: a map from each cached prefix, page by page, to its page.
#include "cache/radix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"

namespace espalier {
namespace {

using Token = RadixTree::Token;
using Page = RadixTree::Page;
using Tokens = std::vector<Token>;

std::span<const Token> first(const Tokens& tokens, size_t n) { return std::span(tokens).first(n); }

std::vector<Page> numbers_of(std::span<const PageRecord> records) {
  std::vector<Page> numbers;
  for (const PageRecord& record : records) numbers.push_back(record.page);
  return numbers;
}

// What the tree should be, with nothing shared and nothing fast. One entry for each cached page,
// keyed by its namespace and the whole prefix that it ends.
class NaiveTree {
 public:
  NaiveTree(int32_t page_size, EvictionPolicy policy)
      : page_size_(static_cast<size_t>(page_size)), policy_(policy) {}

  struct Key {
    std::string name_space;
    Tokens prefix;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    Page page = 0;
    NodeUse use;
  };

  size_t match(const std::string& name_space, std::span<const Token> tokens) const {
    size_t n = 0;
    while (n + page_size_ <= tokens.size() &&
           entries_.contains(key(name_space, tokens, n + page_size_)))
      n += page_size_;
    return n;
  }

  // The lock is the key of the locked run.
  Key lock(const std::string& name_space, std::span<const Token> tokens, std::vector<Page>& pages,
           int32_t priority) {
    ++now_;
    const Key run = key(name_space, tokens, match(name_space, tokens));
    for (size_t n = page_size_; n <= run.prefix.size(); n += page_size_) {
      Entry& entry = entries_.at(key(name_space, tokens, n));
      use(entry, priority);
      pages.push_back(entry.page);
    }
    locks_.push_back(run);
    return run;
  }

  void unlock(const Key& run) {
    ++now_;
    for (size_t n = page_size_; n <= run.prefix.size(); n += page_size_)
      entries_.at(key(run.name_space, run.prefix, n)).use.last_use = now_;
    locks_.erase(std::find(locks_.begin(), locks_.end(), run));
  }

  Key extend(const Key& run, std::span<const Token> tokens, std::span<const Page> pages,
             std::vector<Page>& present, int32_t priority) {
    ++now_;
    Key end = run;
    for (size_t n = 0; n < tokens.size(); n += page_size_) {
      end.prefix.insert(end.prefix.end(), tokens.begin() + static_cast<long>(n),
                        tokens.begin() + static_cast<long>(n + page_size_));
      const auto [place, added] = entries_.try_emplace(end);
      if (added) {
        place->second = {pages.empty() ? 0 : pages[n / page_size_], {.created = now_}};
      } else {
        present.push_back(place->second.page);
      }
      use(place->second, priority);
    }
    *std::find(locks_.begin(), locks_.end(), run) = end;
    return end;
  }

  int32_t evict(int32_t count, std::vector<Page>& pages) {
    int32_t num_evicted = 0;
    for (; num_evicted < count; ++num_evicted) {
      auto best = entries_.end();
      for (auto it = entries_.begin(); it != entries_.end(); ++it) {
        if (!is_leaf(it) || is_locked(it->first)) continue;
        if (best == entries_.end() || rank(it->second) < rank(best->second)) best = it;
      }
      if (best == entries_.end()) break;
      pages.push_back(best->second.page);
      entries_.erase(best);
    }
    return num_evicted;
  }

  int32_t num_protected() const {
    return static_cast<int32_t>(std::count_if(entries_.begin(), entries_.end(),
                                              [&](auto& e) { return is_locked(e.first); }));
  }
  // Whether a lock is on this prefix, or behind it.
  bool locks(const std::string& name_space, const Tokens& prefix) const {
    return is_locked({name_space, prefix});
  }
  int32_t num_pages() const { return static_cast<int32_t>(entries_.size()); }

 private:
  using Map = std::map<Key, Entry>;

  static Key key(const std::string& name_space, std::span<const Token> tokens, size_t n) {
    return {name_space, Tokens(tokens.begin(), tokens.begin() + static_cast<long>(n))};
  }
  void use(Entry& entry, int32_t priority) const {
    NodeUse& u = entry.use;
    u.priority = u.num_uses == 0 ? priority : std::max(u.priority, priority);
    u.last_use = now_;
    ++u.num_uses;
  }
  EvictionRank rank(const Entry& entry) const { return eviction_rank(policy_, entry.use); }
  static bool begins_with(const Key& run, const Key& prefix) {
    return run.name_space == prefix.name_space && run.prefix.size() >= prefix.prefix.size() &&
           std::equal(prefix.prefix.begin(), prefix.prefix.end(), run.prefix.begin());
  }
  bool is_leaf(Map::const_iterator it) const {  // in the map's order its extensions come next
    const auto next = std::next(it);
    return next == entries_.end() || !begins_with(next->first, it->first);
  }
  bool is_locked(const Key& prefix) const {
    return std::any_of(locks_.begin(), locks_.end(),
                       [&](const Key& run) { return begins_with(run, prefix); });
  }

  const size_t page_size_;
  const EvictionPolicy policy_;
  Map entries_;
  std::vector<Key> locks_;
  uint64_t now_ = 0;
};

// Drives both with the same events and compares all that either says.
class Pair {
 public:
  Pair(int32_t page_size, bool has_pages, EvictionPolicy policy)
      : page_size_(static_cast<size_t>(page_size)),
        has_pages_(has_pages),
        tree_({.page_size = page_size, .has_pages = has_pages, .policy = policy}),
        naive_(page_size, policy) {}

  void match(const std::string& name_space, const Tokens& tokens) {
    const uint64_t version = tree_.version();
    ASSERT_EQ(static_cast<size_t>(tree_.match(name_space, tokens)),
              naive_.match(name_space, tokens));
    ASSERT_EQ(tree_.version(), version);
  }

  void lock(const std::string& name_space, const Tokens& tokens, int32_t priority) {
    std::vector<Page> pages, expected;
    RadixNode* node = tree_.lock(name_space, tokens, &pages, priority);
    locks_.push_back({node, naive_.lock(name_space, tokens, expected, priority)});
    if (has_pages_) {
      ASSERT_EQ(pages, expected);
    }
    ASSERT_EQ(static_cast<size_t>(RadixTree::num_tokens_to(node)), locks_.back().run.prefix.size());
  }

  // Adds `tokens` below the lock `index`.
  void extend(size_t index, Tokens tokens, int32_t priority) {
    tokens.resize(tokens.size() - tokens.size() % page_size_);
    std::vector<Page> pages, present, expected;
    for (size_t i = 0; has_pages_ && i < tokens.size() / page_size_; ++i)
      pages.push_back(next_page_++);
    Lock& run_lock = locks_[index];
    const RadixTree::Extension added =
        tree_.extend(run_lock.node, tokens, pages, &present, priority);
    run_lock = {added.node, naive_.extend(run_lock.run, tokens, pages, expected, priority)};
    if (has_pages_) {
      ASSERT_EQ(present, expected);
    }
    ASSERT_EQ(static_cast<size_t>(added.num_tokens_present), expected.size() * page_size_);
    ASSERT_EQ(static_cast<size_t>(RadixTree::num_tokens_to(added.node)),
              run_lock.run.prefix.size());
  }

  void unlock(size_t index) {
    tree_.unlock(locks_[index].node);
    naive_.unlock(locks_[index].run);
    locks_.erase(locks_.begin() + static_cast<long>(index));
  }

  void evict(int32_t count) {
    std::vector<PageRecord> pages;
    std::vector<Page> expected;
    ASSERT_EQ(tree_.evict(count, &pages), naive_.evict(count, expected));
    if (has_pages_) {
      ASSERT_EQ(numbers_of(pages), expected);
    }
  }

  void insert(const std::string& name_space, const Tokens& tokens, int32_t priority) {
    lock(name_space, tokens, priority);
    const auto done = static_cast<long>(locks_.back().run.prefix.size());
    extend(locks_.size() - 1, Tokens(tokens.begin() + done, tokens.end()), priority);
    unlock(locks_.size() - 1);
  }

  // A reader of a few numbers at a time sees every cached prefix, page by page, and no other.
  void read_nodes(uint32_t num_max) {
    std::map<uint32_t, CacheNode> seen;
    for (uint32_t from = 1; from != 0;) {
      CacheNodes read = tree_.read_nodes({.from = from, .num_max = num_max, .tokens_max = 1 << 20});
      ASSERT_EQ(read.num_nodes, tree_.num_nodes());
      for (CacheNode& node : read.nodes)
        ASSERT_TRUE(seen.emplace(node.number, std::move(node)).second);
      from = read.next;
    }
    size_t num_pages = 0;
    for (const auto& [number, node] : seen) {
      num_pages += node.tokens.size() / page_size_;
      Tokens prefix = node.tokens;
      const CacheNode* at = &node;
      for (; at->parent != 0; prefix.insert(prefix.begin(), at->tokens.begin(), at->tokens.end()))
        at = &seen.at(at->parent);
      ASSERT_EQ(prefix.size(), static_cast<size_t>(node.end));
      ASSERT_EQ(naive_.match(at->name_space, prefix), prefix.size());
      ASSERT_EQ(node.num_locks > 0, naive_.locks(at->name_space, prefix));
    }
    ASSERT_EQ(num_pages, static_cast<size_t>(naive_.num_pages()));
  }

  void check() {
    std::vector<const RadixNode*> locked;
    for (const Lock& run_lock : locks_) locked.push_back(run_lock.node);
    tree_.check_invariants(locked);
    ASSERT_EQ(tree_.num_protected_pages(), naive_.num_protected());
    ASSERT_EQ(tree_.num_evictable_pages(), naive_.num_pages() - naive_.num_protected());
  }

  size_t num_locks() const { return locks_.size(); }
  const RadixTree& tree() const { return tree_; }

 private:
  struct Lock {
    RadixNode* node;
    NaiveTree::Key run;
  };
  const size_t page_size_;
  const bool has_pages_;
  RadixTree tree_;
  NaiveTree naive_;
  std::vector<Lock> locks_;
  Page next_page_ = 0;
};

std::vector<Tokens> all_strings(size_t length_max, Token alphabet) {
  std::vector<Tokens> strings = {{}};
  for (size_t begin = 0, length = 0; length < length_max; ++length) {
    const size_t end = strings.size();
    for (; begin < end; ++begin) {
      for (Token token = 0; token < alphabet; ++token) {
        strings.push_back(strings[begin]);
        strings.back().push_back(token);
      }
    }
  }
  return strings;
}

TEST(RadixTree, EveryThreeShortStrings) {
  const std::vector<Tokens> strings = all_strings(4, 2);
  for (const int32_t page_size : {1, 2}) {
    for (const Tokens& a : strings) {
      for (const Tokens& b : strings) {
        for (const Tokens& c : strings) {
          if (a.size() < 2 || b.empty()) continue;
          Pair pair(page_size, true, EvictionPolicy::kLru);
          pair.insert("", a, 0);
          pair.lock("", b, 0);
          pair.insert("", b, 0);
          pair.insert("", c, 0);
          pair.check();
          for (const Tokens& probe : strings) pair.match("", probe);
          pair.evict(3);
          pair.check();
          pair.unlock(0);
          pair.evict(100);
          pair.check();
          ASSERT_EQ(pair.tree().num_nodes(), 0u);
        }
      }
    }
  }
}

Tokens random_tokens(Rng& rng, int32_t page_size) {
  // Few distinct tokens and pages, so that runs meet and part at every place.
  Tokens tokens;
  const auto num_pages = static_cast<size_t>(rng.below(9));
  while (tokens.size() < num_pages * static_cast<size_t>(page_size)) {
    const bool odd = rng.below(6) == 0;
    const auto base = static_cast<Token>(rng.below(2));
    for (int32_t i = 0; i < page_size; ++i) tokens.push_back(odd && i == page_size - 1 ? 9 : base);
  }
  for (uint64_t i = rng.below(static_cast<uint64_t>(page_size)); i > 0; --i) tokens.push_back(0);
  return tokens;
}

void fuzz(uint64_t seed, int32_t page_size, bool has_pages, EvictionPolicy policy, int num_events) {
  SCOPED_TRACE(testing::Message() << "seed " << seed << " page_size " << page_size << " policy "
                                  << eviction_policy_name(policy) << " has_pages " << has_pages);
  Rng rng(seed);
  Pair pair(page_size, has_pages, policy);
  for (int i = 0; i < num_events; ++i) {
    const std::string name_space = rng.below(4) == 0 ? "other" : "";
    const Tokens tokens = random_tokens(rng, page_size);
    const auto priority = static_cast<int32_t>(rng.between(-2, 2));
    const uint64_t event = rng.below(10);
    if (event < 2) {
      pair.match(name_space, tokens);
    } else if (event < 5) {
      pair.insert(name_space, tokens, priority);
    } else if (event < 6) {
      if (pair.num_locks() < 5) pair.lock(name_space, tokens, priority);
    } else if (event < 7) {
      if (pair.num_locks() > 0) pair.extend(rng.below(pair.num_locks()), tokens, priority);
    } else if (event < 8) {
      if (pair.num_locks() > 0) pair.unlock(rng.below(pair.num_locks()));
    } else {
      pair.evict(static_cast<int32_t>(rng.below(12)));
    }
    pair.check();
    if (i % 16 == 0) pair.read_nodes(1 + static_cast<uint32_t>(rng.below(5)));
    if (testing::Test::HasFatalFailure()) return;
  }
  while (pair.num_locks() > 0) pair.unlock(0);
  pair.evict(1 << 30);
  pair.check();
  EXPECT_EQ(pair.tree().num_nodes(), 0u);
}

TEST(RadixTree, RandomEventsAgainstNaive) {
  const char* scale = std::getenv("ESPALIER_FUZZ_SCALE");  // 1: a second or so
  const int num_rounds = scale == nullptr ? 1 : std::atoi(scale);
  constexpr int kEvents = 1000;
  uint64_t seed = 1;
  for (int round = 0; round < num_rounds; ++round) {
    for (const int32_t page_size : {1, 4, 16})
      for (int policy = 0; policy <= static_cast<int>(EvictionPolicy::kPriority); ++policy)
        for (const bool has_pages : {true, false})
          fuzz(seed++, page_size, has_pages, static_cast<EvictionPolicy>(policy), kEvents);
    if (testing::Test::HasFailure()) return;
  }
  std::printf("%llu operations, seeds 1 to %llu: equal to the naive model after each\n",
              static_cast<unsigned long long>((seed - 1) * kEvents),
              static_cast<unsigned long long>(seed - 1));
}

TEST(RadixTree, LongRunsThatPartInTheirMiddle) {
  // Beyond one block of the comparison, at every place around its border.
  Tokens base(1040);
  for (size_t i = 0; i < base.size(); ++i) base[i] = static_cast<Token>(mix64(i) & 0xffff);
  for (const size_t at : {1u, 255u, 256u, 257u, 511u, 512u, 513u, 1039u}) {
    for (const int32_t page_size : {1, 16}) {
      Tokens other = base;
      other[at] ^= 1;
      Pair pair(page_size, true, EvictionPolicy::kLru);
      pair.insert("", base, 0);
      EXPECT_EQ(static_cast<size_t>(pair.tree().match("", other)),
                at - at % static_cast<size_t>(page_size));
      pair.insert("", other, 0);
      pair.match("", base);
      pair.match("", other);
      EXPECT_EQ(pair.tree().num_nodes(), at >= static_cast<size_t>(page_size) ? 3u : 2u);
    }
  }
}

// A lock holds exactly its own run: a split by another one must neither free nor leak its rest.
TEST(RadixTree, SplitKeepsTheWholeLockedRun) {
  RadixTree tree({});
  const Tokens abcd = {1, 2, 3, 4}, abxy = {1, 2, 8, 9};
  RadixNode* root_lock = tree.lock("", abcd);
  RadixNode* run_lock = tree.extend(root_lock, abcd, std::vector<Page>{0, 1, 2, 3}).node;
  RadixNode* other = tree.lock("", abxy);
  EXPECT_EQ(RadixTree::num_tokens_to(other), 2);
  other = tree.extend(other, std::span(abxy).subspan(2), std::vector<Page>{4, 5}).node;
  tree.unlock(other);
  EXPECT_EQ(tree.num_protected_pages(), 4);
  std::vector<PageRecord> evicted;
  EXPECT_EQ(tree.evict(100, &evicted), 2);
  EXPECT_EQ(numbers_of(evicted), (std::vector<Page>{5, 4}));
  tree.unlock(run_lock);
  EXPECT_EQ(tree.num_evictable_pages(), 4);
  EXPECT_EQ(tree.evict(3, nullptr), 3);  // no more of the leaf than asked for
  EXPECT_EQ(tree.match("", first(abcd, 4)), 1);
  tree.check_invariants({});
}

TEST(RadixTree, NamespacesLeaveNothingBehind) {
  RadixTree tree({});
  for (int i = 0; i < 1000; ++i) {
    const std::string salt = "salt" + std::to_string(i);
    const Tokens tokens = {1, 2, 3};
    RadixNode* node = tree.lock(salt, tokens);
    node = tree.extend(node, tokens, std::vector<Page>{1, 2, 3}).node;
    EXPECT_EQ(tree.match(salt, tokens), 3);
    EXPECT_EQ(tree.match("", tokens), 0);
    tree.unlock(node);
    EXPECT_EQ(tree.evict(10, nullptr), 3);
  }
  tree.check_invariants({});  // counts roots too
  EXPECT_EQ(tree.num_nodes(), 0u);
}

// Four prefixes that differ in age, last use, number of uses and priority.
TEST(EvictionPolicy, EachHasItsOrder) {
  const std::pair<EvictionPolicy, Tokens> cases[] = {
      {EvictionPolicy::kLru, {2, 3, 1, 4}},  {EvictionPolicy::kLfu, {3, 4, 2, 1}},
      {EvictionPolicy::kFifo, {1, 2, 3, 4}}, {EvictionPolicy::kMru, {4, 1, 3, 2}},
      {EvictionPolicy::kSlru, {3, 4, 2, 1}}, {EvictionPolicy::kPriority, {2, 4, 1, 3}},
  };
  for (const auto& [policy, expected] : cases) {
    RadixTree tree({.policy = policy});
    const auto use = [&](Token name, int32_t priority) {
      const Tokens tokens = {name};
      RadixNode* node = tree.lock("", tokens, nullptr, priority);
      if (RadixTree::num_tokens_to(node) == 0)
        node = tree.extend(node, tokens, std::vector<Page>{name}, nullptr, priority).node;
      tree.unlock(node);
    };
    use(1, 0);
    use(2, -3);
    use(2, -4);
    use(3, 5);
    use(1, 0);
    use(1, 0);
    use(4, -1);
    std::vector<PageRecord> order;
    tree.evict(4, &order);
    EXPECT_EQ(numbers_of(order), expected) << eviction_policy_name(policy);
  }
}

TEST(EvictionPolicy, NamesAreParsed) {
  for (const char* name : {"lru", "lfu", "fifo", "mru", "slru", "priority"}) {
    const Result<EvictionPolicy> policy = parse_eviction_policy(name);
    ASSERT_TRUE(policy) << name;
    EXPECT_EQ(eviction_policy_name(*policy), name);
  }
  const Result<EvictionPolicy> unknown = parse_eviction_policy("best");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message().find("lru, lfu, fifo, mru, slru, priority"),
            std::string::npos);
}

std::vector<PageRecord> records(std::vector<Page> pages, PageHome home, PageState state) {
  std::vector<PageRecord> out;
  for (const Page page : pages) out.push_back({.page = page, .home = home, .state = state});
  return out;
}

// A node of two tokens above one of three, both unlocked.
class ResidentPages : public testing::Test {
 protected:
  ResidentPages() {
    RadixNode* const root = tree_.lock("", {});
    upper_ = tree_.extend(root, first(tokens_, 2), std::vector<Page>{0, 1}).node;
    tree_.unlock(upper_);
    RadixNode* const again = tree_.lock("", first(tokens_, 2));
    lower_ = tree_.extend(again, std::span(tokens_).subspan(2), std::vector<Page>{2, 3, 4}).node;
    tree_.unlock(lower_);
    EXPECT_NE(upper_, lower_);
  }
  int32_t loadable() const {
    int32_t count = -1;
    tree_.match("", tokens_, &count);
    return count;
  }

  const Tokens tokens_ = {1, 2, 3, 4, 5};
  RadixTree tree_{RadixTree::Options{}};
  RadixNode* upper_ = nullptr;
  RadixNode* lower_ = nullptr;
};

TEST_F(ResidentPages, MatchAndLockEndAtTheFirstNodeThatIsNotResident) {
  EXPECT_EQ(tree_.match("", tokens_), 5);
  EXPECT_EQ(loadable(), 0);
  const uint64_t version = tree_.version();
  tree_.set_pages(lower_, records({7, 8, 9}, PageHome::kHost, PageState::kReady));
  EXPECT_NE(tree_.version(), version);
  EXPECT_EQ(tree_.match("", tokens_), 2);
  EXPECT_EQ(loadable(), 3);
  EXPECT_EQ(tree_.num_evictable_pages(), 2);
  std::vector<Page> pages;
  EXPECT_EQ(tree_.match_pages("", tokens_, pages), 2);
  EXPECT_EQ(pages, (std::vector<Page>{0, 1}));
  pages.clear();
  RadixNode* const locked = tree_.lock("", tokens_, &pages);
  EXPECT_EQ(locked, upper_);
  EXPECT_EQ(pages, (std::vector<Page>{0, 1}));
  tree_.check_invariants(std::vector<const RadixNode*>{locked});
  tree_.unlock(locked);

  tree_.set_pages(upper_, records({5, 6}, PageHome::kDisk, PageState::kReady));
  EXPECT_EQ(tree_.match("", tokens_), 0);
  EXPECT_EQ(loadable(), 5);
  EXPECT_EQ(tree_.num_evictable_pages(), 0);
  tree_.check_invariants({});
}

TEST_F(ResidentPages, PagesAreUsableWhenTheTransferIsDone) {
  tree_.set_pages(lower_, records({7, 8, 9}, PageHome::kHost, PageState::kReady));
  tree_.set_pages(lower_, records({20, 21, 22}, PageHome::kInTransit, PageState::kPending));
  EXPECT_EQ(tree_.match("", tokens_), 2);
  tree_.set_pages(lower_, records({20, 21, 22}, PageHome::kDevice, PageState::kFailed));
  EXPECT_EQ(tree_.match("", tokens_), 2);
  tree_.set_pages(lower_, records({20, 21, 22}, PageHome::kDevice, PageState::kReady));
  std::vector<Page> pages;
  EXPECT_EQ(tree_.match_pages("", tokens_, pages), 5);
  EXPECT_EQ(pages, (std::vector<Page>{0, 1, 20, 21, 22}));
  tree_.check_invariants({});
}

TEST_F(ResidentPages, ComputedPagesReplaceThoseThatAreNotResident) {
  tree_.set_pages(lower_, records({7, 8, 9}, PageHome::kHost, PageState::kReady));
  RadixNode* const locked = tree_.lock("", first(tokens_, 1));
  const Tokens run = {2, 3, 4, 9};  // shares two tokens of the absent node
  std::vector<Page> present;
  const RadixTree::Extension added =
      tree_.extend(locked, run, std::vector<Page>{30, 31, 32, 33}, &present);
  EXPECT_EQ(added.num_tokens_present, 1);
  EXPECT_EQ(present, (std::vector<Page>{1}));
  std::vector<Page> pages;
  EXPECT_EQ(tree_.match_pages("", Tokens{1, 2, 3, 4, 9}, pages), 5);
  EXPECT_EQ(pages, (std::vector<Page>{0, 1, 31, 32, 33}));
  EXPECT_EQ(tree_.match("", tokens_), 4);
  EXPECT_EQ(loadable(), 1);
  tree_.check_invariants(std::vector<const RadixNode*>{added.node});
  tree_.unlock(added.node);
  tree_.check_invariants({});
}

TEST_F(ResidentPages, EvictionCountsResidentPagesOnly) {
  tree_.set_pages(lower_, records({7, 8, 9}, PageHome::kHost, PageState::kReady));
  std::vector<PageRecord> evicted;
  EXPECT_EQ(tree_.evict(1, &evicted), 1);
  ASSERT_EQ(evicted.size(), 4u);
  EXPECT_EQ(evicted.front(), (PageRecord{.page = 9, .home = PageHome::kHost}));
  EXPECT_EQ(evicted.back(), PageRecord{.page = 1});
  EXPECT_EQ(tree_.num_evictable_pages(), 1);
  tree_.check_invariants({});
}

}  // namespace
}  // namespace espalier
