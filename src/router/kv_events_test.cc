#include "router/kv_events.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "base/msgpack.h"
#include "base/rng.h"
#include "router/kv_event_order.h"
#include "router/kv_feed.h"

namespace espalier::router {
namespace {

void write_numbers(MsgpackWriter& w, const std::vector<uint64_t>& numbers) {
  w.array(numbers.size());
  for (const uint64_t number : numbers) w.unsigned_integer(number);
}

// A batch of one event, whose members behind the type are written by the caller.
template <typename Write>
std::string batch_of(std::string_view type, size_t num_members, Write&& write) {
  std::string out;
  MsgpackWriter w(out);
  w.array(2);
  w.number(1.5);
  w.array(1);
  w.array(1 + num_members);
  w.text(type);
  write(w);
  return out;
}

TEST(KvEvents, AreReadAsArrays) {
  const auto stored = decode_kv_events(batch_of("BlockStored", 8, [](MsgpackWriter& w) {
    write_numbers(w, {~uint64_t{0}, 7});
    w.unsigned_integer(3);
    write_numbers(w, {1, 2, 300, 4});
    w.integer(2);
    w.nil();
    w.text("GPU");
    w.nil();
    w.array(2);
    w.array(2);
    w.text("salt");
    w.integer(5);
    w.nil();
  }));
  ASSERT_TRUE(stored) << stored.error().to_string();
  ASSERT_EQ(stored->size(), 1u);
  const KvEvent& event = stored->front();
  EXPECT_EQ(event.type, KvEvent::Type::kStored);
  EXPECT_EQ(event.hashes, (std::vector<uint64_t>{~uint64_t{0}, 7}));
  EXPECT_TRUE(event.has_parent);
  EXPECT_EQ(event.parent, 3u);
  EXPECT_EQ(event.tokens, (std::vector<int32_t>{1, 2, 300, 4}));
  EXPECT_EQ(event.block_size, 2u);
  EXPECT_EQ(event.extras, (std::vector<std::string>{"salt\x1f"
                                                    "5",
                                                    ""}));
}

// The oldest publishers end an event with the block's size, and hashes may be bytes.
TEST(KvEvents, MissingMembersAndHashesOfBytesAreTaken) {
  const auto read = decode_kv_events(batch_of("BlockStored", 4, [](MsgpackWriter& w) {
    w.array(1);
    w.bytes(std::string(32, 'h'));
    w.nil();
    write_numbers(w, {1});
    w.integer(1);
  }));
  ASSERT_TRUE(read && read->size() == 1);
  EXPECT_FALSE(read->front().has_parent);
  const auto removed = decode_kv_events(batch_of("BlockRemoved", 1, [](MsgpackWriter& w) {
    w.array(1);
    w.bytes(std::string(32, 'h'));
  }));
  ASSERT_TRUE(removed && removed->size() == 1);
  EXPECT_EQ(removed->front().type, KvEvent::Type::kRemoved);
  EXPECT_EQ(removed->front().hashes, read->front().hashes);
}

// vLLM's and SGLang's names. What a memory other than the device's stores may have names alone.
TEST(KvEvents, BlocksOfOtherMemoriesAreRead) {
  const std::map<std::string_view, KvMedium> media = {
      {"GPU", KvMedium::kDevice},      {"CPU", KvMedium::kHost},
      {"CPU_PINNED", KvMedium::kHost}, {"DISK", KvMedium::kDisk},
      {"EXTERNAL", KvMedium::kRemote}, {"SHARED_STORAGE", KvMedium::kRemote}};
  for (const auto& [name, medium] : media) {
    const auto read = decode_kv_events(batch_of("BlockRemoved", 2, [&](MsgpackWriter& w) {
      write_numbers(w, {1});
      w.text(name);
    }));
    ASSERT_TRUE(read && read->size() == 1) << name;
    EXPECT_EQ(read->front().medium, medium) << name;
    const auto named = decode_kv_events(batch_of("BlockStored", 6, [&](MsgpackWriter& w) {
      write_numbers(w, {1, 2});
      w.nil();
      w.array(0);
      w.integer(16);
      w.nil();
      w.text(name);
    }));
    EXPECT_EQ(named && named->size() == 1, medium != KvMedium::kDevice) << name;
  }
}

// Our workers state the adapter once, where a prefix begins; vLLM among the keys of every block.
TEST(KvEvents, AnAdapterDividesThePrefixesOfEqualTokens) {
  const auto read = [](bool has_parent, const std::vector<std::vector<std::string_view>>& keys) {
    return decode_kv_events(batch_of("BlockStored", 8, [&](MsgpackWriter& w) {
      write_numbers(w, {1, 2});
      has_parent ? w.unsigned_integer(3) : w.nil();
      write_numbers(w, {1, 2, 3, 4});
      w.integer(2);
      w.integer(1);
      w.text("GPU");
      w.text("poet");
      w.array(keys.size());
      for (const auto& each : keys) {
        w.array(each.size());
        for (const std::string_view key : each) w.text(key);
      }
    }));
  };
  const auto extras = [&](bool has_parent, const std::vector<std::vector<std::string_view>>& keys) {
    const auto events = read(has_parent, keys);
    return events && events->size() == 1 ? events->front().extras : std::vector<std::string>{"?"};
  };
  using Extras = std::vector<std::string>;
  EXPECT_EQ(extras(false, {{}, {}}), (Extras{adapter_extra("poet", ""), ""}));
  EXPECT_EQ(extras(false, {{"poet"}, {"poet"}}), (Extras{adapter_extra("poet", ""), ""}));
  EXPECT_EQ(extras(false, {{"poet", "salt"}, {"poet"}}),
            (Extras{adapter_extra("poet", "salt"), ""}));
  EXPECT_EQ(extras(false, {{"salt", "poet", "x"}, {"poet", "picture"}}),
            (Extras{adapter_extra("poet", "salt\x1fx"), "picture"}));
  EXPECT_EQ(extras(true, {{"poet"}, {"poet"}}), Extras{}) << "its parent's chain has it";
  EXPECT_NE(adapter_extra("poet", ""), adapter_extra("poe", "t"));
}

TEST(KvEvents, UnknownKindsAreLeftOut) {
  const auto unknown =
      decode_kv_events(batch_of("BlockMoved", 1, [](MsgpackWriter& w) { write_numbers(w, {1}); }));
  EXPECT_TRUE(unknown && unknown->empty());
  const auto cleared = decode_kv_events(batch_of("AllBlocksCleared", 0, [](MsgpackWriter&) {}));
  ASSERT_TRUE(cleared && cleared->size() == 1);
  EXPECT_EQ(cleared->front().type, KvEvent::Type::kCleared);
}

// {"ts": 1, "events": [{"type": "BlockRemoved", "block_hashes": [5], "new": {}}], "x": nil}
TEST(KvEvents, AreReadAsMaps) {
  const std::string bytes(
      "\x83\xa2ts\x01\xa6"
      "events\x91\x83\xa4type\xac"
      "BlockRemoved\xac"
      "block_hashes\x91\x05"
      "\xa3new\x80\xa1x\xc0");
  const auto read = decode_kv_events(bytes);
  ASSERT_TRUE(read) << read.error().to_string();
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ(read->front().type, KvEvent::Type::kRemoved);
  EXPECT_EQ(read->front().hashes, std::vector<uint64_t>{5});
}

TEST(KvEvents, WhatContradictsItselfOrIsCutIsRefused) {
  const std::string whole = batch_of("BlockStored", 4, [](MsgpackWriter& w) {
    write_numbers(w, {1, 2});
    w.nil();
    write_numbers(w, {1, 2, 3, 4});
    w.integer(2);
  });
  ASSERT_TRUE(decode_kv_events(whole));
  for (size_t n = 0; n < whole.size(); ++n)
    EXPECT_EQ(decode_kv_events(whole.substr(0, n)).error().code(), StatusCode::kDataLoss) << n;
  EXPECT_FALSE(decode_kv_events(batch_of("BlockStored", 4, [](MsgpackWriter& w) {
    write_numbers(w, {1, 2});
    w.nil();
    write_numbers(w, {1, 2, 3});
    w.integer(2);
  })));
  Rng rng(11);
  for (int round = 0; round < 20000; ++round) {  // any bytes are read or refused
    std::string bytes = whole;
    for (uint64_t i = 0; i <= rng.below(3); ++i)
      bytes[rng.below(bytes.size())] = static_cast<char>(rng());
    (void)decode_kv_events(bytes);
  }
}

// A publisher that keeps its last batches, behind a line that loses some: what is known in the end
// is what the publisher holds, unless batches were lost for good.
class OrderTest : public testing::Test {
 protected:
  static constexpr size_t kKept = 6;
  void run(uint64_t seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    bool asked = false;
    uint64_t asked_from = 0;
    std::vector<std::string> known;  // that the reader has applied since the last clear
    KvEventOrder order({.apply = [&](std::string_view batch) { known.emplace_back(batch); },
                        .clear = [&] { known.clear(); },
                        .replay = [&](uint64_t from) { asked = true, asked_from = from; }});
    std::vector<std::string> published;  // of the process that runs
    int process = 0;
    TimePoint now{};
    order.begin(now);
    for (int step = 0; step < 200; ++step) {
      now += std::chrono::milliseconds(rng.below(100));
      const bool is_last = step == 199;
      if (rng.below(60) == 0 && !is_last) {
        published.clear();
        ++process;
        asked = false;  // its asker is gone, too
      }
      published.push_back(fmt::format("{}:{}", process, published.size()));
      // The first batch of a process arrives, since its number is what shows a restart.
      if (is_last || published.size() == 1 || rng.below(4) != 0)
        order.on_live(published.size() - 1, published.back(), now);
      if (asked && (is_last || rng.below(2) == 0)) {
        asked = false;
        const size_t first = published.size() - std::min(kKept, published.size());
        for (size_t i = std::max<size_t>(first, asked_from); i < published.size(); ++i)
          order.on_replayed(i, published[i]);
        order.on_replay_end();
      }
      order.tick(now);
    }
    // A suffix of what was published, without a gap.
    ASSERT_LE(known.size(), published.size() + 0u);
    const std::vector<std::string> tail(published.end() - static_cast<ptrdiff_t>(known.size()),
                                        published.end());
    EXPECT_EQ(known, tail);
    if (order.num_lost() == 0) {
      EXPECT_EQ(known, published);
    }
    lost_ += order.num_lost();
    complete_ += known.size() == published.size() ? 1 : 0;
  }
  int64_t lost_ = 0, complete_ = 0;
};

TEST_F(OrderTest, GapsAreFilledOrClearWhatWasKnown) {
  for (uint64_t seed = 1; seed <= 300; ++seed) run(seed);
  EXPECT_GT(lost_, 0);
  EXPECT_GT(complete_, 100);
}

TEST(KvEventOrder, AReplayThatDoesNotEndIsGivenUp) {
  std::vector<std::string> known;
  KvEventOrder order({.apply = [&](std::string_view batch) { known.emplace_back(batch); },
                      .clear = [&] { known.clear(); },
                      .replay = [](uint64_t) {}});
  order.begin(TimePoint{});
  order.on_live(3, "three", TimePoint{});
  EXPECT_TRUE(known.empty());
  order.tick(TimePoint{} + KvEventOrder::kReplayTimeout);
  EXPECT_EQ(known, std::vector<std::string>{"three"});
  EXPECT_EQ(order.num_lost(), 1);
}

TEST(KvFeed, FindsWhereWorkersPublish) {
  const KvFeedConfig config{.port = 5557, .replay_port = 0};
  const auto of = [&](std::string_view setting, const std::string& host = "10.0.0.1") {
    return kv_endpoints(fmt::format(R"({{"kv_events_config": "{}"}})", setting), host, config);
  };
  const KvEndpoints own = of(
      R"({\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:7\",\"replay_endpoint\":\"tcp://1.2.3.4:8\"})");
  EXPECT_EQ(own.events, "tcp://10.0.0.1:7");
  EXPECT_EQ(own.replay, "tcp://1.2.3.4:8");
  EXPECT_EQ(of(R"({\"publisher\":\"zmq\",\"replay_endpoint\":null})", "::1").events,
            "tcp://[::1]:5557");
  EXPECT_EQ(of(R"({\"publisher\":\"http\"})").events, "");
  EXPECT_EQ(kv_endpoints(R"({"kv_events_config": null})", "h", config).events, "");
  for (const std::string_view silent : {"", "{}", "no JSON"}) {
    EXPECT_EQ(kv_endpoints(silent, "::1", config).events, "tcp://[::1]:5557");
    EXPECT_EQ(kv_endpoints(silent, "::1", config).replay, "");
    EXPECT_EQ(kv_endpoints(silent, "::1", {.port = 0}).events, "");
  }
}

}  // namespace
}  // namespace espalier::router
