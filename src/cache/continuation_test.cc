// Continuations against a model that knows of each run of whole pages only how often and when it
// was used last, over random trees.
#include "cache/continuation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "cache/prefix_cache.h"
#include "cache/radix_node.h"
#include "cache/radix_tree.h"

namespace espalier {
namespace {

using Tokens = std::vector<int32_t>;

int32_t scale() {
  const char* const text = std::getenv("ESPALIER_FUZZ_SCALE");
  return text == nullptr ? 1 : std::atoi(text);
}

class Model {
 public:
  explicit Model(int32_t page_size) : page_size_(static_cast<size_t>(page_size)) {}

  // The pages of tokens [begin, end) are used once more, or first.
  void use(const std::string& name_space, const Tokens& tokens, size_t begin, size_t end) {
    for (size_t n = begin + page_size_; n <= end; n += page_size_) {
      Use& use = runs_[name_space][prefix(tokens, n)];
      ++use.num_uses;
      use.last_use = now_;
    }
  }
  void touch(const std::string& name_space, const Tokens& tokens) {
    for (size_t n = page_size_; n <= tokens.size(); n += page_size_)
      runs_[name_space][prefix(tokens, n)].last_use = now_;
  }
  void tick() { ++now_; }

  // The tree has evicted: what it does not match is gone.
  void follow(const RadixTree& tree) {
    for (auto& [name_space, runs] : runs_)
      std::erase_if(runs, [&](const auto& entry) {
        return tree.match(name_space, entry.first) < std::ssize(entry.first);
      });
  }

  Tokens continuation(const std::string& name_space, const Tokens& text, size_t count) const {
    const size_t whole = text.size() / page_size_ * page_size_;
    Tokens path = prefix(text, whole);
    const auto found = runs_.find(name_space);
    if (found == runs_.end() || (whole > 0 && !found->second.contains(path))) return {};
    while (path.size() < text.size() + count) {
      const auto* best = static_cast<const std::pair<const Tokens, Use>*>(nullptr);
      for (const auto& run : found->second) {
        const bool is_child =
            run.first.size() == path.size() + page_size_ &&
            std::equal(path.begin(), path.end(), run.first.begin()) &&
            std::equal(text.begin(), text.begin() + known(text, run.first), run.first.begin());
        if (is_child && (best == nullptr || run.second > best->second)) best = &run;
      }
      if (best == nullptr) break;
      path = best->first;
    }
    if (path.size() <= text.size()) return {};
    path.resize(std::min(path.size(), text.size() + count));
    return {path.begin() + static_cast<std::ptrdiff_t>(text.size()), path.end()};
  }

 private:
  struct Use {
    uint64_t num_uses = 0, last_use = 0;
    friend auto operator<=>(const Use&, const Use&) = default;
  };
  static std::ptrdiff_t known(const Tokens& text, const Tokens& run) {
    return std::min(std::ssize(text), std::ssize(run));
  }
  static Tokens prefix(const Tokens& tokens, size_t count) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  const size_t page_size_;
  std::map<std::string, std::map<Tokens, Use>> runs_;
  uint64_t now_ = 0;
};

// A sequence with a lock and a text that goes on behind it.
struct Follower {
  std::string name_space;
  Tokens text;
  RadixNode* lock = nullptr;
  TreePosition at;
};

class RandomTree {
 public:
  RandomTree(uint64_t seed, int32_t page_size)
      : rng_(seed),
        page_size_(page_size),
        tree_({.page_size = page_size, .has_pages = false}),
        model_(page_size) {}

  void step() {
    const auto action = rng_.below(10);
    if (followers_.size() < 2 || (action < 3 && followers_.size() < 8))
      begin();
    else if (action < 5)
      share(any());
    else if (action < 6)
      end();
    else if (action < 7)
      evict();
    else
      any().text.push_back(token());
    for (Follower& follower : followers_) check(follower);
  }
  int64_t num_found() const { return num_found_; }

 private:
  int32_t token() { return static_cast<int32_t>(rng_.below(page_size_ == 1 ? 4 : 2)); }
  Follower& any() { return followers_[rng_.below(followers_.size())]; }
  size_t whole(size_t count) const {
    const auto page = static_cast<size_t>(page_size_);
    return count / page * page;
  }

  void begin() {
    Follower& made = followers_.emplace_back();
    made.name_space = rng_.below(3) == 0 ? "b" : "a";
    for (auto count = rng_.below(12); count > 0; --count) made.text.push_back(token());
    model_.tick();
    made.lock = tree_.lock(made.name_space, made.text);
    model_.use(made.name_space, made.text, 0, static_cast<size_t>(made.lock->end));
  }

  void share(Follower& follower) {
    const auto begin = static_cast<size_t>(follower.lock->end);
    const size_t end = whole(follower.text.size());
    if (end <= begin) return;
    model_.tick();
    const auto run = std::span<const int32_t>(follower.text).subspan(begin, end - begin);
    follower.lock = tree_.extend(follower.lock, run, {}).node;
    model_.use(follower.name_space, follower.text, begin, end);
  }

  void end() {
    const size_t index = rng_.below(followers_.size());
    Follower& follower = followers_[index];
    model_.tick();
    const auto end = follower.text.begin() + follower.lock->end;
    model_.touch(follower.name_space, Tokens(follower.text.begin(), end));
    tree_.unlock(follower.lock);
    followers_.erase(followers_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void evict() {
    tree_.evict(static_cast<int32_t>(rng_.between(1, 6)), nullptr);
    model_.follow(tree_);
  }

  Tokens read(const Follower& follower, TreePosition& at, size_t count) const {
    Tokens out(count);
    out.resize(
        static_cast<size_t>(read_continuation(tree_, follower.lock, follower.text, at, out)));
    return out;
  }

  void check(Follower& follower) {
    const size_t count = rng_.below(9);
    const Tokens want = model_.continuation(follower.name_space, follower.text, count);
    TreePosition fresh;
    ASSERT_EQ(read(follower, fresh, count), want);
    ASSERT_EQ(read(follower, follower.at, count), want) << "from where it was before";
    num_found_ += want.empty() ? 0 : 1;
  }

  Rng rng_;
  const int32_t page_size_;
  RadixTree tree_;
  Model model_;
  std::vector<Follower> followers_;
  int64_t num_found_ = 0;
};

TEST(Continuation, IsThatOfTheModel) {
  int64_t num_found = 0;
  for (int32_t seed = 1; seed <= 40 * scale(); ++seed)
    for (const int32_t page_size : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", pages of " << page_size);
      RandomTree random(static_cast<uint64_t>(seed), page_size);
      for (int i = 0; i < 300 && !testing::Test::HasFatalFailure(); ++i) random.step();
      if (testing::Test::HasFatalFailure()) return;
      num_found += random.num_found();
    }
  EXPECT_GT(num_found, 2000 * scale());
}

// The cache's own view: what others said, never its namespace's neighbours, and nothing changes.
TEST(Continuation, ReadsTheCacheAndChangesNothing) {
  auto cache = make_prefix_cache({.num_pages = 64}).value();
  const auto run = [&](std::string_view name_space, const Tokens& tokens) {
    SequencePages pages = cache->begin(name_space, tokens);
    ASSERT_TRUE(cache->grow(pages, static_cast<int32_t>(tokens.size())));
    cache->finish(std::move(pages), tokens);
  };
  run("", {1, 2, 3, 4, 5, 6});
  run("", {1, 2, 3, 7, 8});
  run("", {1, 2, 3, 7, 9});
  run("other", {1, 2, 3, 5, 5, 5});
  const auto read = [&](std::string_view name_space, const Tokens& prompt, const Tokens& text) {
    SequencePages pages = cache->begin(name_space, prompt);
    const uint64_t version = cache->version();
    const CacheNodes before = cache->read_nodes({.num_max = 100, .tokens_max = 9});
    TreePosition at;
    Tokens out(4);
    out.resize(
        static_cast<size_t>(read_continuation(*cache->radix_tree(), pages.lock(), text, at, out)));
    const CacheNodes after = cache->read_nodes({.num_max = 100, .tokens_max = 9});
    EXPECT_EQ(cache->version(), version);
    EXPECT_EQ(before.now, after.now);
    EXPECT_EQ(before.nodes.size(), after.nodes.size());
    for (size_t i = 0; i < before.nodes.size(); ++i) {
      EXPECT_EQ(before.nodes[i].last_use, after.nodes[i].last_use);
      EXPECT_EQ(before.nodes[i].num_locks, after.nodes[i].num_locks);
      EXPECT_EQ(before.nodes[i].end, after.nodes[i].end);
    }
    cache->release(pages);
    return out;
  };
  EXPECT_EQ(read("", {1, 2}, {1, 2, 3}), (Tokens{7, 9})) << "two of three took 7, the later one 9";
  EXPECT_EQ(read("", {1, 2}, {1, 2, 3, 4}), (Tokens{5, 6})) << "the rest of an edge";
  EXPECT_EQ(read("", {1, 2}, {1, 2, 3, 6}), Tokens()) << "it has left the tree";
  EXPECT_EQ(read("other", {1, 2}, {1, 2, 3}), (Tokens{5, 5, 5}));
  EXPECT_EQ(read("third", {1, 2}, {1, 2, 3}), Tokens());
}

// The newest children alone are looked at, so a node with thousands costs no more.
TEST(Continuation, LooksAtTheNewestChildren) {
  RadixTree tree({.has_pages = false});
  RadixNode* const root = tree.lock("", {});
  for (int32_t first = 0; first < 100; ++first) {
    RadixNode* const lock = tree.lock("", {});
    tree.unlock(tree.extend(lock, Tokens{first, first + 1}, {}).node);
  }
  for (int i = 0; i < 3; ++i) tree.unlock(tree.lock("", Tokens{5, 6}));
  TreePosition at;
  Tokens out(2);
  EXPECT_EQ(read_continuation(tree, root, {}, at, out), 2);
  EXPECT_EQ(out, (Tokens{99, 100}));
  tree.unlock(tree.lock("", Tokens{90, 91}));
  EXPECT_EQ(read_continuation(tree, root, {}, at, out), 2);
  EXPECT_EQ(out, (Tokens{90, 91}));
  tree.unlock(root);
}

}  // namespace
}  // namespace espalier
