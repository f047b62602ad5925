#include "base/msgpack.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <variant>
#include <vector>

#include "base/rng.h"

namespace espalier {
namespace {

using Type = MsgpackToken::Type;

std::string written(auto&& write) {
  std::string out;
  MsgpackWriter w(out);
  write(w);
  return out;
}

TEST(Msgpack, BytesAreThoseOfTheSpecification) {
  const auto integer = [](int64_t v) { return written([v](MsgpackWriter& w) { w.integer(v); }); };
  EXPECT_EQ(integer(0), std::string("\x00", 1));
  EXPECT_EQ(integer(127), "\x7f");
  EXPECT_EQ(integer(128), "\xcc\x80");
  EXPECT_EQ(integer(256), std::string("\xcd\x01\x00", 3));
  EXPECT_EQ(integer(70000), std::string("\xce\x00\x01\x11\x70", 5));
  EXPECT_EQ(integer(-1), "\xff");
  EXPECT_EQ(integer(-33), "\xd0\xdf");
  EXPECT_EQ(integer(-129), "\xd1\xff\x7f");
  EXPECT_EQ(written([](MsgpackWriter& w) { w.unsigned_integer(~uint64_t{0}); }),
            "\xcf\xff\xff\xff\xff\xff\xff\xff\xff");
  EXPECT_EQ(written([](MsgpackWriter& w) { w.number(1.0); }),
            std::string("\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00", 9));
  EXPECT_EQ(written([](MsgpackWriter& w) { w.text("ab"); }),
            "\xa2"
            "ab");
  EXPECT_EQ(written([](MsgpackWriter& w) { w.bytes("ab"); }), std::string("\xc4\x02"
                                                                          "ab"));
  EXPECT_EQ(written([](MsgpackWriter& w) { w.array(2); }), "\x92");
  EXPECT_EQ(written([](MsgpackWriter& w) { w.array(16); }), std::string("\xdc\x00\x10", 3));
}

struct ArrayOf {
  size_t size = 0;
};
using Value = std::variant<std::monostate, int64_t, uint64_t, double, std::string, ArrayOf>;

// A list of values whose lengths and magnitudes lie around the borders between forms.
std::vector<Value> draw(Rng& rng) {
  std::vector<Value> out;
  for (uint64_t n = rng.below(20); n > 0; --n) {
    const uint64_t bits = rng() >> rng.below(64);
    switch (rng.below(6)) {
      case 0:
        out.emplace_back();
        break;
      case 1:
        out.emplace_back(static_cast<int64_t>(bits));
        break;
      case 2:
        out.emplace_back(bits);
        break;
      case 3:
        out.emplace_back(static_cast<double>(bits) / 3);
        break;
      case 4:
        out.emplace_back(std::string(rng.below(3) == 0 ? rng.below(70000) : rng.below(40), 'x'));
        break;
      default:
        out.emplace_back(ArrayOf{rng.below(2) == 0 ? rng.below(20) : rng.below(100000)});
    }
  }
  return out;
}

void write(MsgpackWriter& w, const Value& value) {
  switch (value.index()) {
    case 0:
      return w.nil();
    case 1:
      return w.integer(std::get<1>(value));
    case 2:
      return w.unsigned_integer(std::get<2>(value));
    case 3:
      return w.number(std::get<3>(value));
    case 4:
      return w.text(std::get<4>(value));
    default:
      w.array(std::get<5>(value).size);
  }
}

void expect_token(const MsgpackToken& token, const Value& value) {
  switch (value.index()) {
    case 0:
      EXPECT_EQ(token.type, Type::kNil);
      break;
    case 1:
      EXPECT_EQ(static_cast<int64_t>(token.bits), std::get<1>(value));
      break;
    case 2:
      EXPECT_EQ(token.bits, std::get<2>(value));
      break;
    case 3:
      EXPECT_EQ(token.number, std::get<3>(value));
      break;
    case 4:
      EXPECT_TRUE(token.is_text(std::get<4>(value)));
      break;
    default:
      EXPECT_EQ(token.type, Type::kArray);
      EXPECT_EQ(token.size, std::get<5>(value).size);
  }
}

TEST(Msgpack, ReadsWhatItWrote) {
  const uint64_t seed = 24;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int round = 0; round < 300; ++round) {
    const std::vector<Value> values = draw(rng);
    std::string bytes;
    MsgpackWriter w(bytes);
    for (const Value& value : values) write(w, value);
    MsgpackReader r(bytes);
    MsgpackToken token;
    for (const Value& value : values) {
      ASSERT_TRUE(r.next(token));
      expect_token(token, value);
    }
    EXPECT_TRUE(r.at_end());
    EXPECT_FALSE(r.next(token));
  }
}

TEST(Msgpack, SkipsWholeValues) {
  // {"a": [1, {"b": nil}], 2: 1.5f}, then 7; made by hand, for the writer has no maps.
  const std::string bytes(
      "\x82\xa1"
      "a\x92\x01\x81\xa1"
      "b\xc0\x02\xca\x3f\xc0\x00\x00\x07",
      16);
  MsgpackReader r(bytes);
  ASSERT_TRUE(r.skip());
  MsgpackToken token;
  ASSERT_TRUE(r.next(token));
  EXPECT_EQ(token.bits, 7u);
  EXPECT_TRUE(r.at_end());
}

TEST(Msgpack, CutAndMalformedBytesEndTheReading) {
  const std::string whole = written([](MsgpackWriter& w) {
    w.array(3);
    w.text(std::string(300, 'x'));
    w.unsigned_integer(1u << 20);
    w.number(2);
  });
  for (size_t n = 0; n < whole.size(); ++n) {
    MsgpackReader r(std::string_view(whole).substr(0, n));
    EXPECT_FALSE(r.skip()) << n;
    EXPECT_TRUE(r.at_end());
  }
  EXPECT_FALSE(MsgpackReader("\xc1").skip());
  // Arrays of 2^32 - 1 arrays, and so on: neither memory nor stack is spent.
  std::string nested;
  for (int i = 0; i < 200000; ++i) nested += "\xdd\xff\xff\xff\xff";
  EXPECT_FALSE(MsgpackReader(nested).skip());
  Rng rng(25);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(rng.below(40), '\0');
    for (char& c : bytes) c = static_cast<char>(rng());
    MsgpackReader r(bytes);
    while (r.skip()) {
    }
    EXPECT_TRUE(r.at_end());
  }
}

}  // namespace
}  // namespace espalier
