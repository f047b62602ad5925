#include "router/block_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/rng.h"
#include "router/block_match.h"

namespace espalier::router {
namespace {

// Prompts are made of pieces of so many equal tokens.
constexpr uint32_t kPiece = 16;

std::vector<int32_t> pieces(const std::vector<int32_t>& values) {
  std::vector<int32_t> out;
  for (const int32_t value : values) out.insert(out.end(), kPiece, value);
  return out;
}

// A worker's cache as its own process has it: runs of blocks by names that differ between
// processes.
class NaiveWorker {
 public:
  NaiveWorker(uint64_t salt, uint32_t block_size) : salt_(salt), block_size_(block_size) {}

  // The whole prompt is stored on the device; the events are those of the blocks that are new
  // there.
  std::vector<KvEvent> store(const std::vector<int32_t>& prompt, const std::string& extra) {
    std::vector<KvEvent> out;
    uint64_t parent = 0;
    for (size_t n = block_size_; n <= prompt.size(); n += block_size_) {
      const std::vector<int32_t> prefix(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(n));
      Block& block = blocks_[{extra, prefix}];
      if (block.media.empty()) block.name = mix64(salt_ + ++num_names_);
      if (block.media.insert(KvMedium::kDevice).second) {
        KvEvent event{.type = KvEvent::Type::kStored,
                      .hashes = {block.name},
                      .parent = parent,
                      .has_parent = n > block_size_,
                      .tokens = {prefix.end() - block_size_, prefix.end()},
                      .block_size = block_size_};
        if (n == block_size_ && !extra.empty()) event.extras = {extra};
        out.push_back(std::move(event));
      }
      parent = block.name;
    }
    return out;
  }
  // Any block is copied to another memory, by its name.
  std::vector<KvEvent> copy(Rng& rng) {
    if (blocks_.empty()) return {};
    const auto at = std::next(blocks_.begin(), static_cast<ptrdiff_t>(rng.below(blocks_.size())));
    const auto medium = static_cast<KvMedium>(1 + rng.below(kNumMedia - 1));
    at->second.media.insert(medium);
    return {{.type = KvEvent::Type::kStored, .medium = medium, .hashes = {at->second.name}}};
  }
  // A copy of any block goes, also of one that others follow, as vLLM's caches may evict; of small
  // blocks from the last on.
  std::vector<KvEvent> evict(Rng& rng) {
    if (blocks_.empty()) return {};
    auto at = std::next(blocks_.begin(), static_cast<ptrdiff_t>(rng.below(blocks_.size())));
    if (block_size_ < kPiece) {  // prefixes stand before what goes on behind them
      for (auto next = std::next(at); next != blocks_.end() && goes_on(*at, *next); ++next)
        at = next;
    }
    auto& media = at->second.media;
    const auto medium = std::next(media.begin(), static_cast<ptrdiff_t>(rng.below(media.size())));
    KvEvent event{.type = KvEvent::Type::kRemoved, .medium = *medium, .hashes = {at->second.name}};
    media.erase(medium);
    if (media.empty()) blocks_.erase(at);
    return {event};
  }
  std::vector<KvEvent> flush() {
    blocks_.clear();
    return {{}};
  }
  // By the memory that has the last block of each piece.
  double num_tokens_spared(const PromptTokens& prompt, const LoadCosts& costs) const {
    double spared = 0;
    for (size_t n = block_size_; n <= prompt.ids.size(); n += block_size_) {
      const std::vector<int32_t> prefix(prompt.ids.begin(),
                                        prompt.ids.begin() + static_cast<ptrdiff_t>(n));
      const auto at = blocks_.find({prompt.extra, prefix});
      if (at == blocks_.end()) break;
      const auto nearest = static_cast<size_t>(*at->second.media.begin());
      if (n % kPiece == 0) spared += kPiece * (1 - costs[nearest]);
    }
    return spared;
  }
  size_t num_blocks() const { return blocks_.size(); }

 private:
  struct Block {
    uint64_t name = 0;
    std::set<KvMedium> media;
  };
  using Blocks = std::map<std::pair<std::string, std::vector<int32_t>>, Block>;
  static bool goes_on(const Blocks::value_type& prefix, const Blocks::value_type& longer) {
    const std::vector<int32_t>& a = prefix.first.second;
    const std::vector<int32_t>& b = longer.first.second;
    return prefix.first.first == longer.first.first && b.size() > a.size() &&
           std::equal(a.begin(), a.end(), b.begin());
  }
  const uint64_t salt_;
  const uint32_t block_size_;
  uint64_t num_names_ = 0;
  Blocks blocks_;
};

PromptTokens draw_prompt(Rng& rng) {
  PromptTokens out;
  std::vector<int32_t> values;
  for (uint64_t n = rng.below(6); n > 0; --n) values.push_back(static_cast<int32_t>(rng.below(2)));
  out.ids = pieces(values);
  if (rng.below(4) == 0) out.extra = "salt";
  return out;
}

uint32_t num_tokens_of(const BlockMatch& match, WorkerSlot slot) {
  uint32_t out = 0;
  for (const BlockMatch::Step& step : match.path)
    if (step.workers.contains(slot)) out = step.num_tokens;
  return out;
}

class MirrorTest : public testing::TestWithParam<uint32_t> {};

TEST_P(MirrorTest, HoldsWhatWorkersHold) {
  const uint64_t seed = 2401 + GetParam();
  SCOPED_TRACE(seed);
  Rng rng(seed);
  const std::array<WorkerSlot, 3> slots = {0, 5, 70};
  std::vector<NaiveWorker> workers;
  for (uint64_t i = 0; i < slots.size(); ++i) workers.emplace_back(i << 32, GetParam());
  CacheMirror mirror;
  for (int step = 0; step < 6000; ++step) {
    const size_t w = rng.below(slots.size());
    const PromptTokens prompt = draw_prompt(rng);
    const uint64_t what = rng.below(20);
    const std::vector<KvEvent> events = what < 10   ? workers[w].store(prompt.ids, prompt.extra)
                                        : what < 13 ? workers[w].copy(rng)
                                        : what < 19 ? workers[w].evict(rng)
                                        : rng.below(10) == 0 ? workers[w].flush()
                                                             : std::vector<KvEvent>();
    for (const KvEvent& event : events) mirror.apply(slots[w], event);
    EXPECT_EQ(mirror.num_blocks(slots[w]), workers[w].num_blocks());
    if (step % 20 == 0) mirror.check_invariants();
    const PromptTokens asked = draw_prompt(rng);
    const std::array<const BlockTree*, 1> trees = {&mirror.tree()};
    constexpr LoadCosts kCosts = {0, 0.125, 0.5, 1};
    BlockMatcher matcher(asked, trees, kCosts);
    matcher.add(GetParam(), slots);
    const BlockMatch match = matcher.take();
    for (size_t i = 0; i < slots.size(); ++i)
      ASSERT_EQ(num_tokens_of(match, slots[i]), workers[i].num_tokens_spared(asked, kCosts))
          << step;
    for (size_t i = 1; i < match.path.size(); ++i) {
      EXPECT_LT(match.path[i - 1].num_tokens, match.path[i].num_tokens);
      EXPECT_GT(match.path[i - 1].workers.size(), match.path[i].workers.size());
    }
  }
  for (const WorkerSlot slot : slots) mirror.forget(slot);
  EXPECT_EQ(mirror.tree().num_nodes(), 0u);
  EXPECT_FALSE(mirror.is_mirrored(slots[0]));
}

INSTANTIATE_TEST_SUITE_P(BlockSizes, MirrorTest, testing::Values(1u, 8u, 16u));

// Where a block between two nodes is there and the node before it is not, nothing is learnt.
TEST(CacheMirror, ANodeThatWentFirstEndsItsBranch) {
  CacheMirror mirror;
  const KvEvent three{.type = KvEvent::Type::kStored,
                      .hashes = {1, 2, 3},
                      .tokens = std::vector<int32_t>(24, 5),
                      .block_size = 8};
  mirror.apply(0, three);
  mirror.apply(0, {.type = KvEvent::Type::kRemoved, .hashes = {2}});
  mirror.apply(0, {.type = KvEvent::Type::kStored,
                   .hashes = {4},
                   .parent = 3,
                   .has_parent = true,
                   .tokens = std::vector<int32_t>(8, 6),
                   .block_size = 8});
  mirror.check_invariants();
  EXPECT_EQ(mirror.tree().num_nodes(), 0u);
  mirror.apply(0, three);
  mirror.check_invariants();
  EXPECT_EQ(mirror.tree().num_nodes(), 1u);
}

TEST(CacheMirror, AnotherBlockSizeIsAnotherProcess) {
  CacheMirror mirror;
  const KvEvent small{
      .type = KvEvent::Type::kStored, .hashes = {1}, .tokens = {1, 2}, .block_size = 2};
  const KvEvent large{
      .type = KvEvent::Type::kStored, .hashes = {2}, .tokens = {1, 2, 3}, .block_size = 3};
  mirror.apply(0, small);
  mirror.apply(0, large);
  EXPECT_EQ(mirror.num_blocks(0), 1u);
  EXPECT_EQ(mirror.block_size(0), 3u);
  mirror.check_invariants();
}

TEST(CacheMirror, BlocksBehindUnknownOnesAreLeftOut) {
  CacheMirror mirror;
  mirror.apply(0, {.type = KvEvent::Type::kStored,
                   .hashes = {1},
                   .parent = 9,
                   .has_parent = true,
                   .tokens = {1, 2},
                   .block_size = 2});
  EXPECT_TRUE(mirror.is_mirrored(0));
  EXPECT_EQ(mirror.num_blocks(0), 0u);
}

// A name is known as long as a memory has its block, and then names it in any other.
TEST(CacheMirror, ABlockIsKnownUntilItHasLeftEveryMemory) {
  CacheMirror mirror;
  const KvEvent stored{.type = KvEvent::Type::kStored,
                       .hashes = {1, 2},
                       .tokens = pieces({1, 2}),
                       .block_size = kPiece};
  const auto moved = [](KvEvent::Type type, KvMedium medium) {
    return KvEvent{.type = type, .medium = medium, .hashes = {1, 2, 3}};
  };
  using enum KvEvent::Type;
  mirror.apply(0, moved(kStored, KvMedium::kHost));
  EXPECT_EQ(mirror.num_blocks(0), 0u) << "names that nothing has explained";
  mirror.apply(0, stored);
  mirror.apply(0, moved(kStored, KvMedium::kHost));
  mirror.apply(0, moved(kRemoved, KvMedium::kDisk));
  mirror.apply(0, moved(kRemoved, KvMedium::kDevice));
  mirror.check_invariants();
  EXPECT_EQ(mirror.num_blocks(0), 2u);
  mirror.apply(0, moved(kStored, KvMedium::kRemote));
  mirror.apply(0, moved(kRemoved, KvMedium::kHost));
  mirror.check_invariants();
  const BlockTree::Node* const node = mirror.tree().find(mirror.hash_of(0, 2));
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(node->nearest(0), KvMedium::kRemote);
  EXPECT_EQ(node->nearest(1), std::nullopt);
  // Blocks of another size elsewhere do not void those of the device.
  mirror.apply(0, {.type = kStored,
                   .medium = KvMedium::kDisk,
                   .hashes = {9},
                   .tokens = pieces({1, 2}),
                   .block_size = 2 * kPiece});
  EXPECT_EQ(mirror.num_blocks(0), 2u);
  mirror.apply(0, moved(kRemoved, KvMedium::kRemote));
  EXPECT_EQ(mirror.num_blocks(0), 0u);
  EXPECT_EQ(mirror.tree().num_nodes(), 0u);
}

TEST(BlockMatch, SeveralTreesCountAsOneAndLeavesEndConversations) {
  BlockTree held, expected;
  const PromptTokens prompt{.ids = pieces({1, 2, 3}), .extra = ""};
  const PromptTokens start{.ids = pieces({1, 2}), .extra = ""};
  insert_blocks(start, kPiece, 3, held);
  insert_blocks(prompt, kPiece, 4, expected);
  const std::array<const BlockTree*, 2> trees = {&held, &expected};
  const std::array<WorkerSlot, 2> slots = {3, 4};
  BlockMatcher matcher(prompt, trees);
  matcher.add(kPiece, slots);
  BlockMatch match = matcher.take();
  ASSERT_EQ(match.path.size(), 2u);
  EXPECT_EQ(match.path[0].num_tokens, 32u);
  EXPECT_EQ(match.path[0].workers.size(), 2u);
  EXPECT_EQ(match.path[1].num_tokens, 48u);
  EXPECT_TRUE(match.path[1].workers.contains(4));
  EXPECT_TRUE(match.at_leafs_end);
  matcher.add(kPiece, std::array<WorkerSlot, 1>{3});
  match = matcher.take();
  EXPECT_FALSE(match.at_leafs_end);  // another prompt goes on there
  expected.remove_worker(4);
  EXPECT_EQ(expected.num_nodes(), 0u);
}

// Events come from other processes, so they may contradict themselves: a name may stand twice in
// an event, or be its own parent.
TEST(CacheMirror, ANameThatItsOwnEventUsesAgainIsRenamed) {
  const KvEvent stored{.type = KvEvent::Type::kStored,
                       .hashes = {7, 7},
                       .tokens = pieces({1, 2}),
                       .block_size = kPiece};
  const KvEvent own_parent{.type = KvEvent::Type::kStored,
                           .hashes = {7},
                           .parent = 7,
                           .has_parent = true,
                           .tokens = pieces({3}),
                           .block_size = kPiece};
  CacheMirror mirror;
  mirror.apply(0, stored);
  mirror.check_invariants();
  mirror.apply(
      1,
      {.type = KvEvent::Type::kStored, .hashes = {7}, .tokens = pieces({1}), .block_size = kPiece});
  mirror.apply(1, own_parent);
  mirror.check_invariants();
  mirror.clear(0);
  mirror.clear(1);
  EXPECT_EQ(mirror.tree().num_nodes(), 0u);
}

TEST(CacheMirror, DrawnEventsThatContradictEachOtherKeepTheInvariants) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    CacheMirror mirror;
    for (int i = 0; i < 500; ++i) {
      KvEvent event{.type = rng.below(4) > 0 ? KvEvent::Type::kStored : KvEvent::Type::kRemoved,
                    .medium = static_cast<KvMedium>(rng.below(kNumMedia)),
                    .parent = 1 + rng.below(8),
                    .has_parent = rng.below(3) > 0,
                    .block_size = seed % 2 == 0 ? kPiece : kPiece / 2};
      for (uint64_t n = rng.below(5); n > 0; --n) {
        event.hashes.push_back(1 + rng.below(8));
        event.tokens.insert(event.tokens.end(), event.block_size,
                            static_cast<int32_t>(rng.below(3)));
      }
      if (event.medium != KvMedium::kDevice && rng.below(2) == 0) event.tokens.clear();
      const auto worker = static_cast<WorkerSlot>(rng.below(3));
      if (rng.below(100) == 0) mirror.clear(worker);
      mirror.apply(worker, event);
      mirror.check_invariants();
    }
    for (WorkerSlot worker = 0; worker < 3; ++worker) mirror.forget(worker);
    EXPECT_EQ(mirror.tree().num_nodes(), 0u);
  }
}

}  // namespace
}  // namespace espalier::router
