#include "engine/images/span_keys.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"

namespace espalier {
namespace {

SpanKeys::Digest digest_of(uint64_t content) {
  Sha256 sha;
  sha.update(std::to_string(content));
  return sha.finish();
}

TEST(SpanKeys, EqualContentsHaveOneKeyAndOthersAnother) {
  SpanKeys keys;
  std::map<uint64_t, TokenId> known;
  std::set<TokenId> given;
  Rng rng(3);
  for (int i = 0; i < 3000; ++i) {
    const uint64_t content = rng.below(500);
    const std::optional<TokenId> key = keys.key_of(digest_of(content));
    ASSERT_TRUE(key);
    EXPECT_GE(*key, kFirstSpanKey);
    const auto [found, added] = known.try_emplace(content, *key);
    EXPECT_EQ(found->second, *key);
    EXPECT_EQ(given.insert(*key).second, added);
  }
}

// The model is a list of the contents that were used last.
TEST(SpanKeys, WhatIsForgottenGetsANewKey) {
  constexpr size_t kCapacity = 7;
  SpanKeys keys(kCapacity);
  std::vector<std::pair<uint64_t, TokenId>> recent;
  std::set<TokenId> given;
  Rng rng(4);
  for (int i = 0; i < 5000; ++i) {
    const uint64_t content = rng.below(12);
    const TokenId key = keys.key_of(digest_of(content)).value();
    const auto found =
        std::find_if(recent.begin(), recent.end(), [&](auto& r) { return r.first == content; });
    if (found != recent.end()) {
      EXPECT_EQ(found->second, key);
      recent.erase(found);
    } else {
      EXPECT_TRUE(given.insert(key).second) << "a number was given twice";
    }
    recent.insert(recent.begin(), {content, key});
    if (recent.size() > kCapacity) recent.pop_back();
  }
}

TEST(SpanKeys, NumbersEnd) {
  constexpr TokenId kLast = std::numeric_limits<TokenId>::max();
  SpanKeys keys(2, kLast - 1);
  EXPECT_EQ(keys.key_of(digest_of(1)), kLast - 1);
  EXPECT_EQ(keys.key_of(digest_of(2)), kLast);
  EXPECT_EQ(keys.key_of(digest_of(3)), std::nullopt);
  EXPECT_EQ(keys.key_of(digest_of(2)), kLast);  // those that are known stay
}

}  // namespace
}  // namespace espalier
