// The open items of a text against a model that keeps every item as text, byte by byte.
#include "grammar/schema/open_items.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"

namespace espalier::grammar {
namespace {

// Appends a value without numbers, escapes and white space.
void append_value(Rng& rng, int depth, std::string& out) {
  const uint64_t kind = rng.below(depth > 0 ? 5 : 3);
  if (kind == 0) {
    out += rng.below(2) == 0 ? "true" : "null";
  } else if (kind < 3) {
    out += '"' + std::string(rng.below(3), static_cast<char>('a' + rng.below(2))) + '"';
  } else if (kind == 3) {
    out += '[';
    for (uint64_t i = 0, n = rng.below(4); i < n; ++i) {
      if (i > 0) out += ',';
      append_value(rng, depth - 1, out);
    }
    out += ']';
  } else {
    out += '{';
    for (uint64_t i = 0, n = rng.below(3); i < n; ++i) {
      if (i > 0) out += ',';
      out += i == 0 ? "\"x\":" : "\"y\":";
      append_value(rng, depth - 1, out);
    }
    out += '}';
  }
}

// The arrays that a text of append_value() leaves open, found anew for each text.
class Model {
 public:
  explicit Model(const std::string& text) {
    size_t cut = std::string::npos;  // where the key under way begins, which counts when complete
    for (size_t at = 0; at < text.size(); ++at) {
      const char c = text[at];
      if (c == '"') {
        const size_t end = text.find('"', at + 1);
        if (end == std::string::npos) break;  // within a string
        at = end;
        cut = std::string::npos;
        ended();
      } else if (c == '[' || c == '{') {
        open_.push_back({.array = c == '[', .begin = at + 1});
        if (c == '{') cut = at + 1;
      } else if (c == ']' || c == '}') {
        open_.pop_back();
        cut = std::string::npos;
        ended();
      } else if (c == ',' && open_.back().array) {
        open_.back().items.push_back(text.substr(open_.back().begin, at - open_.back().begin));
        open_.back().begin = at + 1;
        open_.back().between = false;
      } else if (c == ',') {
        cut = at;
      }
    }
    // A key that is none of those before it counts at once; here a second key can repeat "x" alone.
    if (cut < text.size()) {
      const std::string_view key = std::string_view(text).substr(cut);
      if (!std::string_view(",\"x\"").starts_with(key)) cut = std::string::npos;
    }
    for (Open& one : open_)
      one.begun = text.substr(one.begin, std::min(cut, text.size()) - one.begin);
  }

  bool all_differ(bool inside) const {
    return std::ranges::none_of(open_, [&](const Open& one) {
      if (!one.array) return false;
      if (one.between) return inside;
      return std::ranges::any_of(
          one.items, [&](const std::string& item) { return item.starts_with(one.begun); });
    });
  }

 private:
  struct Open {
    bool array = false, between = false;
    size_t begin = 0;
    std::string begun = {};
    std::vector<std::string> items = {};
  };
  void ended() {
    if (!open_.empty() && open_.back().array) open_.back().between = true;
  }
  std::vector<Open> open_;
};

TEST(OpenItems, EqualTheModelByteByByte) {
  const uint64_t seed = 20261126;
  Rng rng(seed);
  for (int round = 0; round < 300; ++round) {
    std::string text = "[";
    for (int i = 0; i < 6; ++i) append_value(rng, 3, text += i == 0 ? "" : ",");
    OpenItems items;
    ItemsOfText kept;
    for (size_t n = 1; n <= text.size(); ++n) {
      const std::string begun = text.substr(0, n);
      SCOPED_TRACE(testing::Message() << "seed " << seed << " text " << begun);
      items.read({&begun.back(), 1});
      const Model model(begun);
      ASSERT_EQ(items.all_differ(), model.all_differ(false));
      ASSERT_EQ(items.all_differ_inside(), model.all_differ(true));
      // The same after steps back.
      if (rng.below(4) == 0) kept.shrink_to(rng.below(n));
      ASSERT_EQ(kept.at(begun).all_differ(), items.all_differ());
    }
  }
}

bool differs(std::string_view text) {
  OpenItems items;
  items.read(text);
  return items.all_differ();
}

TEST(OpenItems, SpellingsOfAValueAreOne) {
  EXPECT_FALSE(differs(R"(["ab", "\u0061)"));
  EXPECT_FALSE(differs(R"(["\u0061b", "a)"));
  EXPECT_TRUE(differs(R"(["\u0061b", "b)"));
  EXPECT_FALSE(differs(R"(["ab", "\u00)"));  // it is not read yet
  EXPECT_FALSE(differs(R"(["\ud83d\ude00", "😀)"));
  EXPECT_FALSE(differs(R"(["a\"]b", "a\")"));
  EXPECT_TRUE(differs(R"(["a\"]b", "a\\)"));
  EXPECT_FALSE(differs("[ [ 1.0 , 2 ] , [ 1 ,"));
  EXPECT_TRUE(differs("[[1.0,2],[1.5]"));
  EXPECT_FALSE(differs("[[1,2],[1"));  // it may become any number
  EXPECT_TRUE(differs("[[1,2],[1,2]"));
  EXPECT_FALSE(differs("[[1,2],[1,2],"));
}

// A member whose key has come before changes nothing for certain.
TEST(OpenItems, KeysMayComeTwice) {
  EXPECT_FALSE(differs(R"([{"x":null},{"x":null,)"));
  EXPECT_FALSE(differs(R"([{"x":null},{"x":null,"x":"a")"));
  EXPECT_FALSE(differs(R"([{"x":null},{"x":null,"x":["a",{"y":1}])"));
  EXPECT_TRUE(differs(R"([{"x":null},{"x":null,"x":"a","y")"));
  EXPECT_TRUE(differs(R"([{"x":null},{"y")"));
  EXPECT_FALSE(differs(R"({"k":[{"x":null},{"x":)"));
  EXPECT_TRUE(differs(R"({"k":[{"x":null},{"x":t)"));
}

// Text that is no JSON leads to no wrong access.
TEST(OpenItems, ReadsAnyBytes) {
  Rng rng(7);
  const std::string_view kBytes = "[]{},:\"\\u0a1-.eE \nxd8";
  for (int round = 0; round < 2000; ++round) {
    OpenItems items;
    for (int i = 0; i < 40; ++i) {
      items.read(kBytes.substr(rng.below(kBytes.size()), 1));
      (void)items.all_differ();
      (void)items.all_differ_inside();
    }
  }
}

}  // namespace
}  // namespace espalier::grammar
