#include "speech/cuda/step_arrays.h"

#include <gtest/gtest.h>

#include <vector>

namespace espalier::speech {
namespace {

class SpeechStep : public testing::Test {
 protected:
  static constexpr int32_t kTokens = 16, kSlots = 4, kSourcePositions = 100;
  static constexpr SlotPages kPages{.tokens = 4, .source = 7};

  SpeechStep() {
    cuda::Arena measured;
    SpeechStepArrays none;
    none.lay_out(measured, kTokens, kSlots);
    memory_.resize(static_cast<size_t>(measured.used_bytes()), std::byte{0xff});
    cuda::Arena arena(memory_.data());
    arrays_.lay_out(arena, kTokens, kSlots);
  }
  static std::vector<int32_t> first(const int32_t* array, int32_t count) {
    return {array, array + count};
  }

  std::vector<std::byte> memory_;
  SpeechStepArrays arrays_;
};

using Numbers = std::vector<int32_t>;

TEST_F(SpeechStep, EntriesStandOneBehindTheOther) {
  const std::vector<TokenId> prefix = {11, 12, 13}, next = {21};
  const DecoderEntry entries[] = {{.slot = 2, .num_cached = 0, .tokens = prefix, .logits_row = 1},
                                  {.slot = 0, .num_cached = 9, .tokens = next}};
  const SpeechStepSize size = write_speech_step(entries, kPages, kSourcePositions, 0, arrays_);
  EXPECT_EQ(size.entries, 2);
  EXPECT_EQ(size.tokens, 4);
  EXPECT_EQ(size.tokens_longest, 3);
  EXPECT_EQ(size.rows, 3);
  EXPECT_EQ(first(arrays_.ids, 4), (Numbers{11, 12, 13, 21}));
  EXPECT_EQ(first(arrays_.wanted, 3), (Numbers{1, 2, 3}));
  EXPECT_EQ(first(arrays_.begins, 3), (Numbers{0, 3, 4}));
  EXPECT_EQ(first(arrays_.prefixes, 2), (Numbers{0, 9}));
  EXPECT_EQ(first(arrays_.pages, 2), (Numbers{8, 0}));
  EXPECT_EQ(first(arrays_.source_begins, 5), (Numbers{0, 1, 2, 3, 4}));
  EXPECT_EQ(first(arrays_.source_prefixes, 4), Numbers(4, kSourcePositions - 1));
  EXPECT_EQ(first(arrays_.source_pages, 4), (Numbers{14, 14, 14, 0}));
}

// Of a graph: entries behind those that are there have no tokens, and read nothing beyond tables.
TEST_F(SpeechStep, AGraphsOtherEntriesAreEmpty) {
  const std::vector<TokenId> tokens = {5};
  const DecoderEntry entries[] = {{.slot = 1, .num_cached = 3, .tokens = tokens},
                                  {.slot = 3, .num_cached = 0, .tokens = tokens},
                                  {.slot = 0, .num_cached = 1, .tokens = tokens}};
  const SpeechStepSize size = write_speech_step(entries, kPages, kSourcePositions, 4, arrays_);
  EXPECT_EQ(size.entries, 4);
  EXPECT_EQ(size.tokens, 4);
  EXPECT_EQ(size.tokens_longest, 1);
  EXPECT_EQ(size.rows, 4);
  EXPECT_EQ(first(arrays_.ids, 4), (Numbers{5, 5, 5, 0}));
  EXPECT_EQ(first(arrays_.wanted, 4), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(first(arrays_.begins, 5), (Numbers{0, 1, 2, 3, 3}));
  EXPECT_EQ(first(arrays_.source_begins, 5), (Numbers{0, 1, 2, 3, 3}));
  EXPECT_EQ(first(arrays_.pages, 4), (Numbers{4, 12, 0, 0}));
  EXPECT_EQ(first(arrays_.source_pages, 4), (Numbers{7, 21, 0, 0}));
}

}  // namespace
}  // namespace espalier::speech
