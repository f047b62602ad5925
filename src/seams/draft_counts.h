// What became of draft tokens, by the drafter that proposed them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace espalier {

enum class Drafter : uint8_t {
  kGrammar,  // earlier answers of the same grammar
  kNgram,    // the request's own text, and recent answers
  kRadix,    // what other requests said behind the same prefix, from the radix tree
  kHead,     // a draft head
};
inline constexpr size_t kNumDrafters = 4;

constexpr std::string_view drafter_name(Drafter drafter) {
  constexpr std::string_view kNames[kNumDrafters] = {"grammar", "ngram", "radix", "head"};
  return kNames[static_cast<size_t>(drafter)];
}

// Batch entries that verified draft tokens, by how many they accepted: entries[n], the last for n
// and more.
template <typename Count>
struct AcceptedLengths {
  static constexpr int32_t kMax = 16;
  std::array<Count, kMax + 1> entries{};

  void add() { ++entries[0]; }
  // The entry that has accepted `before` has accepted `now`.
  void move(int32_t before, int32_t now) {
    --entries[index_of(before)];
    ++entries[index_of(now)];
  }

 private:
  static size_t index_of(int32_t count) { return static_cast<size_t>(std::min(count, kMax)); }
};

// Of one drafter, over all requests so far.
struct DraftCounts {
  int64_t drafted_tokens = 0, accepted_tokens = 0, verify_steps = 0;
  AcceptedLengths<int64_t> accepted_lengths;
};

using DraftTotals = std::array<DraftCounts, kNumDrafters>;  // by Drafter

}  // namespace espalier
