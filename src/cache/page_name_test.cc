// Page names: golden values that other implementations can be checked against, and what they depend
// on.
#include "cache/page_name.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "cache/cache_events.h"
#include "cache/prefix_cache.h"

namespace espalier {
namespace {

using Tokens = std::vector<TokenId>;

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string digest_of(const std::string& text, size_t part) {
  Sha256 hash;
  for (size_t i = 0; i < text.size(); i += part)
    hash.update(std::string_view(text).substr(i, part));
  return hex(hash.finish());
}

// The examples of FIPS 180-4, in parts of every length around a block.
TEST(Sha256, Examples) {
  EXPECT_EQ(digest_of("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of("abc", 1),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  for (const size_t part : {1, 7, 55, 56, 63, 64, 65, 1000})
    EXPECT_EQ(digest_of(std::string(1000000, 'a'), part),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

// The specification in page_name.h, computed by Python's hashlib.
TEST(PageName, GoldenValues) {
  const PageName root =
      root_page_name({.model_fingerprint = "fingerprint", .kv_layout = "bf16"}, "", "tenant");
  EXPECT_EQ(hex(root.bytes), "9304dd3d0e2339efb31d92cd80fc68e6");
  const PageName first = page_name(root, Tokens{1, 2});
  EXPECT_EQ(hex(first.bytes), "8d60966f5e5d1fa3e485490b2bc3340d");
  EXPECT_EQ(hex(page_name(first, Tokens{3, -1}).bytes), "76781ec2f23182c5ea619152c8032f38");
  EXPECT_EQ(hex(root_page_name({}, "", "").bytes), "e58e53074d3f094ce371bcf25107a89f");
  EXPECT_EQ(first.prefix64(), 0x8d60966f5e5d1fa3u);
}

TEST(PageName, DiffersWithEachComponent) {
  std::set<PageName> names;
  const auto add = [&](const PageNameScope& scope, std::string_view adapter,
                       std::string_view name_space, const std::vector<Tokens>& pages) {
    PageName name = root_page_name(scope, adapter, name_space);
    for (const Tokens& page : pages) name = page_name(name, page);
    EXPECT_TRUE(names.insert(name).second);
    EXPECT_FALSE(name.empty());
  };
  add({"m", "k"}, "a", "n", {{1, 2}, {3, 4}});
  add({"M", "k"}, "a", "n", {{1, 2}, {3, 4}});
  add({"m", "K"}, "a", "n", {{1, 2}, {3, 4}});
  add({"m", "k"}, "A", "n", {{1, 2}, {3, 4}});
  add({"m", "k"}, "a", "N", {{1, 2}, {3, 4}});
  add({"m", "k"}, "a", "n", {{5, 2}, {3, 4}});  // an earlier page
  add({"m", "k"}, "a", "n", {{1, 2}, {3, 5}});
  add({"m", "k"}, "a", "n", {{3, 4}, {1, 2}});
  add({"m", "k"}, "a", "n", {{1}, {2}, {3}, {4}});  // a page size
  add({"mk", ""}, "a", "n", {{1, 2}, {3, 4}});      // borders between texts
  add({"m", "k"}, "an", "", {{1, 2}, {3, 4}});
}

// Two caches, one of which got the prefix in two parts and into other pages.
TEST(PageName, EqualInTwoTrees) {
  const Tokens tokens = {1, 2, 3, 4, 5, 6}, others = {9, 9};
  CacheEventLog logs[2] = {CacheEventLog(100), CacheEventLog(100)};
  std::vector<PageName> names[2];
  for (size_t i = 0; i < 2; ++i) {
    auto cache = make_prefix_cache({.num_pages = 16, .page_size = 2, .events = &logs[i]}).value();
    const auto insert = [&](std::string_view name_space, std::span<const TokenId> run) {
      SequencePages pages = cache->begin(name_space, run);
      ASSERT_TRUE(cache->grow(pages, static_cast<int32_t>(run.size())));
      cache->finish(std::move(pages), run);
    };
    if (i == 1) {
      insert("other", others);
      insert("n", std::span(tokens).first(4));
    }
    insert("n", tokens);
    for (const CacheEvent& event : logs[i].read(0, 100).events)
      if (event.cache_namespace == "n")
        names[i].insert(names[i].end(), event.pages.begin(), event.pages.end());
  }
  EXPECT_EQ(names[0].size(), 3u);
  EXPECT_EQ(names[0], names[1]);
}

}  // namespace
}  // namespace espalier
