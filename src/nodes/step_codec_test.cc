// Steps from seeds through encoder and decoder, beside what was encoded; and any bytes.
#include "nodes/step_codec.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/rng.h"

namespace espalier::nodes {
namespace {

constexpr StepLimits kLimits = {.max_slots = 6,
                                .max_tokens = 64,
                                .vocab_size = 100,
                                .context_length = 48,
                                .page_size = 4,
                                .num_pages = 90};

// A scheduler's sequences: tables grow, and a slot that is reused has another version.
class DrawnSteps {
 public:
  explicit DrawnSteps(uint64_t seed, bool windows) : rng_(seed), windows_(windows) {}

  const ForwardBatch& next(std::vector<TokenId>& ids) {
    batch_.clear();
    ids.clear();
    batch_.step = ++step_;
    for (int32_t slot = 0; slot < kLimits.max_slots; ++slot)
      if (draw(3) != 0 || (slot + 1 == kLimits.max_slots && batch_.entries.empty()))
        add_entry(slot, ids);
    batch_.token_ids.assign(ids.size(), kTokenFromSlot);  // what the device resolves
    return batch_;
  }

  int32_t draw(int32_t below) {
    return static_cast<int32_t>(rng_() % static_cast<uint64_t>(below));
  }

 private:
  struct Sequence {
    int32_t length = 0;
    uint64_t version = 0;
    std::vector<PageId> pages;
  };

  void add_entry(int32_t slot, std::vector<TokenId>& ids) {
    Sequence& s = sequences_[slot];
    const int32_t count = 1 + draw(10);
    if (s.version == 0 || draw(8) == 0 || s.length + count > kLimits.context_length)
      s = {.length = 0, .version = ++version_, .pages = {}};
    const int32_t wanted = kLimits.pages_of(s.length + count);
    while (static_cast<int32_t>(s.pages.size()) < wanted)
      s.pages.push_back(draw(kLimits.num_pages));
    BatchEntry& entry = batch_.entries.emplace_back();
    entry.slot = slot;
    entry.num_query_tokens = count;
    entry.prefix_len = s.length;
    entry.query_begin = static_cast<int32_t>(ids.size());
    entry.page_begin = static_cast<int32_t>(batch_.page_tables.size());
    entry.num_pages = wanted;
    entry.table_version = s.version;
    entry.sample = draw(2) == 0;
    for (int32_t i = 0; i < count; ++i) {
      ids.push_back(draw(kLimits.vocab_size));
      batch_.positions.push_back(s.length + i);
    }
    add_lists(entry);
    batch_.page_tables.insert(batch_.page_tables.end(), s.pages.begin(), s.pages.end());
    if (windows_)
      for (int32_t i = 0; i < wanted; ++i) batch_.window_page_tables.push_back(draw(40));
    for (int i = draw(3); i > 0; --i) {  // gaps between tables
      batch_.page_tables.push_back(-7);
      if (windows_) batch_.window_page_tables.push_back(-7);
    }
    s.length += count;
  }

  void add_lists(BatchEntry& entry) {
    if (draw(3) == 0) entry.num_draft_tokens = draw(entry.num_query_tokens);
    entry.draft_samples_begin = static_cast<int32_t>(batch_.draft_samples.size());
    for (int32_t i = 0; i < entry.num_draft_tokens; ++i)
      if (draw(2) == 0) batch_.draft_samples.push_back(i), ++entry.num_draft_samples;
    if (draw(3) != 0) return;
    entry.input_logprob_begin = draw(entry.num_query_tokens);
    for (int32_t i = entry.input_logprob_begin; i < entry.num_query_tokens; ++i)
      entry.input_logprob_targets.push_back(draw(kLimits.vocab_size));
  }

  Rng rng_;
  const bool windows_;
  uint64_t step_ = 0, version_ = 0;
  Sequence sequences_[kLimits.max_slots];
  ForwardBatch batch_;
};

StepLimits limits_of(bool windows) {
  StepLimits limits = kLimits;
  if (windows) limits.num_window_pages = 40;
  return limits;
}

void expect_equal(const ForwardBatch& got, const ForwardBatch& sent,
                  const std::vector<TokenId>& ids) {
  EXPECT_EQ(got.step, sent.step);
  EXPECT_EQ(got.token_ids, ids);
  EXPECT_EQ(got.positions, sent.positions);
  ASSERT_EQ(got.entries.size(), sent.entries.size());
  for (size_t i = 0; i < got.entries.size(); ++i) {
    const BatchEntry &a = got.entries[i], &b = sent.entries[i];
    EXPECT_EQ(a.slot, b.slot);
    EXPECT_EQ(a.num_query_tokens, b.num_query_tokens);
    EXPECT_EQ(a.prefix_len, b.prefix_len);
    EXPECT_EQ(a.query_begin, b.query_begin);
    EXPECT_EQ(a.sample, b.sample);
    EXPECT_EQ(a.num_draft_tokens, b.num_draft_tokens);
    EXPECT_EQ(a.input_logprob_begin, b.input_logprob_begin);
    EXPECT_EQ(a.input_logprob_targets, b.input_logprob_targets);
    ASSERT_EQ(a.num_pages, b.num_pages);
    ASSERT_EQ(a.num_draft_samples, b.num_draft_samples);
    for (int32_t k = 0; k < a.num_draft_samples; ++k)
      EXPECT_EQ(got.draft_samples[static_cast<size_t>(a.draft_samples_begin + k)],
                sent.draft_samples[static_cast<size_t>(b.draft_samples_begin + k)]);
    for (int32_t k = 0; k < a.num_pages; ++k) {
      const auto at = static_cast<size_t>(a.page_begin + k),
                 from = static_cast<size_t>(b.page_begin + k);
      EXPECT_EQ(got.page_tables[at], sent.page_tables[from]);
      if (!sent.window_page_tables.empty()) {
        EXPECT_EQ(got.window_page_tables[at], sent.window_page_tables[from]);
      }
    }
  }
}

TEST(StepCodec, ReturnsEveryStepThatWasEncoded) {
  for (const bool windows : {false, true}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(seed);
      DrawnSteps steps(seed, windows);
      StepEncoder encoder;
      StepDecoder decoder(limits_of(windows));
      std::vector<TokenId> ids;
      for (int step = 0; step < 50; ++step) {
        const ForwardBatch& batch = steps.next(ids);
        PageCopies copies;
        for (int i = steps.draw(4); i > 1; --i)
          copies.from.push_back(steps.draw(90)), copies.to.push_back(steps.draw(90));
        const std::string_view bytes = encoder.encode(batch, ids, copies);
        EXPECT_LE(bytes.size(), limits_of(windows).bytes_max());
        const Status status = decoder.decode(bytes);
        ASSERT_TRUE(status.ok()) << status.message();
        expect_equal(decoder.batch(), batch, ids);
        EXPECT_EQ(decoder.copies().from, copies.from);
        EXPECT_EQ(decoder.copies().to, copies.to);
      }
    }
  }
}

TEST(StepCodec, SendsTheNewPagesOfATableAlone) {
  ForwardBatch batch;
  batch.step = 1;
  batch.entries.push_back(
      {.slot = 0, .num_query_tokens = 1, .prefix_len = 39, .num_pages = 10, .table_version = 5});
  batch.positions = {39};
  for (PageId i = 0; i < 10; ++i) batch.page_tables.push_back(i);
  StepEncoder encoder;
  const size_t first = encoder.encode(batch, std::vector<TokenId>{1}, {}).size();
  EXPECT_EQ(encoder.encode(batch, std::vector<TokenId>{1}, {}).size(), first - 40);
  batch.entries[0].table_version = 6;
  EXPECT_EQ(encoder.encode(batch, std::vector<TokenId>{1}, {}).size(), first);
}

// A device that keeps tables takes the pages that are new to it: a table keeps its version while
// pages are appended, and has another one when they are others.
TEST(StepCodec, TablesKeepTheirVersionWhileTheyGrow) {
  ForwardBatch batch;
  batch.step = 1;
  batch.entries.push_back(
      {.slot = 2, .num_query_tokens = 1, .prefix_len = 3, .num_pages = 1, .table_version = 7});
  batch.positions = {3};
  batch.page_tables = {11, 12};
  StepEncoder encoder;
  StepDecoder decoder(kLimits);
  const auto version_of = [&] {
    const Status status = decoder.decode(encoder.encode(batch, std::vector<TokenId>{1}, {}));
    EXPECT_TRUE(status.ok()) << status.message();
    return decoder.batch().entries[0].table_version;
  };
  const uint64_t first = version_of();
  EXPECT_NE(first, 0u);
  batch.entries[0].prefix_len = 4, batch.entries[0].num_pages = 2, batch.positions = {4};
  EXPECT_EQ(version_of(), first);
  batch.entries[0].table_version = 8, batch.page_tables = {13, 14};
  EXPECT_NE(version_of(), first);
}

TEST(StepCodec, TokensOfSlotsAreForNodesThatHaveThem) {
  ForwardBatch batch;
  batch.step = 1;
  batch.entries.push_back({.num_query_tokens = 1, .num_pages = 1, .table_version = 1});
  batch.entries[0].slot = 0;
  batch.positions = {0};
  batch.page_tables = {5};
  StepEncoder encoder;
  const std::string bytes(encoder.encode(batch, std::vector<TokenId>{kTokenFromSlot}, {}));
  EXPECT_EQ(StepDecoder(kLimits).decode(bytes).code(), StatusCode::kDataLoss);
  StepLimits limits = kLimits;
  limits.tokens_from_slots = true;
  StepDecoder decoder(limits);
  ASSERT_TRUE(decoder.decode(bytes).ok());
  EXPECT_EQ(decoder.batch().token_ids, std::vector<TokenId>{kTokenFromSlot});
}

// Every index of what is taken is within its bounds.
void expect_within_limits(const ForwardBatch& batch, const PageCopies& copies) {
  EXPECT_LE(batch.num_tokens(), kLimits.max_tokens);
  EXPECT_EQ(batch.positions.size(), batch.token_ids.size());
  const auto below = [](const auto& values, int32_t bound) {
    for (const int32_t value : values)
      if (value < 0 || value >= bound) return false;
    return true;
  };
  EXPECT_TRUE(below(batch.token_ids, kLimits.vocab_size));
  EXPECT_TRUE(below(batch.positions, kLimits.context_length));
  EXPECT_TRUE(below(batch.page_tables, kLimits.num_pages));
  EXPECT_TRUE(below(copies.from, kLimits.num_pages) && below(copies.to, kLimits.num_pages));
  EXPECT_EQ(copies.from.size(), copies.to.size());
  int32_t query_end = 0;
  for (const BatchEntry& e : batch.entries) {
    EXPECT_TRUE(e.slot >= 0 && e.slot < kLimits.max_slots);
    EXPECT_EQ(e.query_begin, query_end);
    query_end += e.num_query_tokens;
    EXPECT_GE(e.num_query_tokens, 1);
    EXPECT_LE(e.prefix_len + e.num_query_tokens, kLimits.context_length);
    EXPECT_EQ(e.num_pages, kLimits.pages_of(e.prefix_len + e.num_query_tokens));
    EXPECT_LE(static_cast<size_t>(e.page_begin + e.num_pages), batch.page_tables.size());
    EXPECT_LT(e.num_draft_tokens, e.num_query_tokens);
    EXPECT_LE(static_cast<size_t>(e.draft_samples_begin + e.num_draft_samples),
              batch.draft_samples.size());
    EXPECT_LT(e.input_logprob_begin, e.num_query_tokens);
  }
  EXPECT_EQ(query_end, batch.num_tokens());
}

TEST(StepCodec, TakesAnyBytes) {
  const char* scale = std::getenv("ESPALIER_FUZZ_SCALE");
  const int rounds = 20000 * (scale == nullptr ? 1 : std::atoi(scale));
  DrawnSteps steps(3, false);
  StepEncoder encoder;
  StepDecoder decoder(kLimits);
  std::vector<TokenId> ids;
  int taken = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string bytes(encoder.encode(steps.next(ids), ids, {}));
    const int32_t times = steps.draw(4);
    for (int32_t i = 0; i < times; ++i)
      bytes[static_cast<size_t>(steps.draw(static_cast<int32_t>(bytes.size())))] =
          static_cast<char>(steps.draw(256));
    if (steps.draw(4) == 0)
      bytes.resize(static_cast<size_t>(steps.draw(static_cast<int32_t>(bytes.size()))));
    if (!decoder.decode(bytes).ok()) continue;
    ++taken;
    expect_within_limits(decoder.batch(), decoder.copies());
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, rounds);
}

}  // namespace
}  // namespace espalier::nodes
