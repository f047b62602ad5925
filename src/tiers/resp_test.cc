#include "tiers/resp.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "base/rng.h"

namespace espalier {
namespace {

// What a stream of replies means, with strings' bytes and arrays' elements; or the failure.
std::string read_all(std::string_view in, bool& is_broken) {
  std::string out;
  while (true) {
    const auto line = parse_resp_line(in);
    if (!line) {
      is_broken = true;
      EXPECT_EQ(line.error().code(), StatusCode::kDataLoss);
      return out;
    }
    if (!*line) return out;
    EXPECT_LE((*line)->size, in.size());
    EXPECT_LE((*line)->size, kRespLineMax + 1);
    out +=
        fmt::format("{}:{}:{};", static_cast<int>((*line)->type), (*line)->number, (*line)->text);
    in.remove_prefix((*line)->size);
    if ((*line)->type != RespType::kString || (*line)->number < 0) continue;
    const auto size = static_cast<size_t>((*line)->number) + 2;
    if (in.size() < size) return out;
    in.remove_prefix(size);
  }
}

std::string random_replies(Rng& rng) {
  std::string out;
  for (uint64_t count = rng.between(1, 8); count > 0; --count) {
    const std::string text(rng.below(40), static_cast<char>('a' + rng.below(26)));
    switch (rng.below(6)) {
      case 0:
        out += "+" + text + "\r\n";
        break;
      case 1:
        out += "-ERR " + text + "\r\n";
        break;
      case 2:
        out += fmt::format(":{}\r\n", static_cast<int64_t>(rng()));
        break;
      case 3:
        out += "$-1\r\n";
        break;
      case 4:
        out += fmt::format("*{}\r\n", rng.below(5));
        break;
      default:
        out += fmt::format("${}\r\n{}\r\n", text.size(), text);
        break;
    }
  }
  return out;
}

int fuzz_scale() {
  const char* const scale = std::getenv("ESPALIER_FUZZ_SCALE");
  return scale == nullptr ? 1 : std::max(std::atoi(scale), 1);
}

TEST(Resp, LinesOfEveryType) {
  const auto parse = [](std::string_view in) { return **parse_resp_line(in); };
  EXPECT_EQ(parse("+OK\r\n").text, "OK");
  EXPECT_EQ(parse("-ERR no\r\n").text, "ERR no");
  EXPECT_EQ(parse("-ERR no\r\n").type, RespType::kError);
  EXPECT_EQ(parse(":-12\r\nmore").number, -12);
  EXPECT_EQ(parse(":-12\r\nmore").size, 6u);
  EXPECT_EQ(parse("$5\r\nhello\r\n").number, 5);
  EXPECT_EQ(parse("$-1\r\n").number, -1);
  EXPECT_EQ(parse("*2\r\n").type, RespType::kArray);
  EXPECT_EQ(parse("*2\r\n").size, 4u);
}

// A line is known exactly when its last byte is there, wherever the bytes are cut.
TEST(Resp, WaitsForTheEndOfALine) {
  const std::string line = "$1048640\r\n";
  for (size_t size = 0; size < line.size(); ++size) {
    const auto parsed = parse_resp_line(std::string_view(line).substr(0, size));
    ASSERT_TRUE(parsed);
    EXPECT_FALSE(*parsed) << size;
  }
  EXPECT_EQ((*parse_resp_line(line))->number, 1048640);
}

TEST(Resp, RefusesWhatNoServerSends) {
  for (const std::string bad : {"HTTP/1.1 400 Bad Request\r\n", "$-2\r\n", "$536870913\r\n",
                                "$99999999999999999999\r\n", "$1x\r\n", "$\r\n", ":\r\n", ": 1\r\n",
                                "-ERR a\nb\r\n", ":1\n2\r\n", "+a\rb\r\n", "*-7\r\n", "*1e3\r\n"})
    EXPECT_FALSE(parse_resp_line(bad)) << bad;
  EXPECT_TRUE(parse_resp_line("+" + std::string(kRespLineMax - 2, 'a')));
  EXPECT_FALSE(parse_resp_line("+" + std::string(kRespLineMax, 'a')));
  EXPECT_FALSE(parse_resp_line("+" + std::string(kRespLineMax, 'a') + "\r\n"));
}

TEST(Resp, CommandsAreArraysOfStrings) {
  std::string out;
  append_resp_command(out, {"SET", "a key", ""});
  EXPECT_EQ(out, "*3\r\n$3\r\nSET\r\n$5\r\na key\r\n$0\r\n\r\n");
  bool is_broken = false;
  EXPECT_EQ(read_all(out, is_broken), "4:3:;3:3:;3:5:;3:0:;");
  EXPECT_FALSE(is_broken);
}

// Damaged replies never do more than fail; undamaged ones are read whole.
TEST(Resp, MutatedReplies) {
  int num_broken = 0;
  for (uint64_t seed = 1; seed <= 10'000u * static_cast<uint64_t>(fuzz_scale()); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::string in = random_replies(rng);
    bool is_broken = false;
    read_all(in, is_broken);
    ASSERT_FALSE(is_broken);
    for (uint64_t count = rng.between(1, 4); count > 0 && !in.empty(); --count) {
      const size_t at = rng.below(in.size());
      switch (rng.below(4)) {
        case 0:
          in[at] = static_cast<char>(rng());
          break;
        case 1:
          in.erase(at, rng.between(1, 5));
          break;
        case 2:
          in.insert(at, in.substr(0, rng.below(20)));
          break;
        default:
          in.insert(at, fmt::format("${}\r\n", static_cast<int64_t>(rng())));
          break;
      }
    }
    read_all(in, is_broken);
    num_broken += is_broken ? 1 : 0;
  }
  EXPECT_GT(num_broken, 1000);
}

}  // namespace
}  // namespace espalier
