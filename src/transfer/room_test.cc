// Rooms against a list: random fills, skips, ends and reads from seeds; memory is given back.
#include "transfer/room.h"

#include <gtest/gtest.h>

#include "transfer/test_prompt.h"

namespace espalier::transfer {
namespace {

constexpr Duration kNow{0};

TEST(Room, GivesWhatWasAddedInOrder) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const SteadyClock clock;
    RoomTable rooms(1 << 20, std::chrono::seconds(60), clock);
    TestPrompt prompt{.num_tokens = 1 + static_cast<uint32_t>(rng.below(60)),
                      .shape = test_shape(1 + rng.below(900))};
    const auto room = *rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
    ASSERT_EQ(rooms.join(prompt.key, kNow), room);
    uint32_t num_added = 0, next = 0, num_logprobs = 0, logprobs_read = 0;
    const auto num_cached = static_cast<uint32_t>(rng.below(prompt.num_pages()));
    bool is_skipped = false, has_ended = false, has_token = false;
    while (!has_token) {
      switch (rng.below(5)) {
        case 0:
          if (!is_skipped && next == 0) room->skip_pages(num_cached), is_skipped = true;
          if (is_skipped) next = std::max(next, num_cached);
          break;
        case 1: {
          const auto end =
              num_added + static_cast<uint32_t>(rng.below(prompt.num_pages() - num_added + 1));
          room->add_pages(num_added, end, test_fill(prompt.shape.page_bytes));
          num_added = end;
          break;
        }
        case 2:
          if (has_ended) break;
          room->add_logprobs(
              {.first = num_logprobs++, .logprobs = std::vector<TokenLogprobs>(rng.below(3))});
          break;
        case 3:
          if (num_added < prompt.num_pages()) break;
          room->end(prompt.first());
          has_ended = true;
          break;
        default:
          if (!is_skipped) break;  // a reader states first what it has
          const auto item = room->next(kNow);
          if (!item) {
            ASSERT_FALSE(has_ended);
            ASSERT_TRUE(next >= num_added && logprobs_read == num_logprobs);
          } else if (const auto* pages = std::get_if<Room::Pages>(&*item)) {
            ASSERT_EQ(pages->first, next);
            std::vector<std::byte> wanted(pages->bytes.size());
            test_fill(prompt.shape.page_bytes)(next, wanted);
            ASSERT_EQ(pages->bytes, wanted);
            next += static_cast<uint32_t>(wanted.size() / prompt.shape.page_bytes);
          } else if (const auto* logprobs = std::get_if<InputLogprobs>(&*item)) {
            ASSERT_EQ(logprobs->first, logprobs_read++);
          } else {
            ASSERT_TRUE(std::holds_alternative<FirstToken>(*item));
            has_token = true;
          }
      }
    }
    EXPECT_EQ(next, prompt.num_pages());
    EXPECT_EQ(room->num_bytes(), 0);
    rooms.remove(prompt.key, room);
    EXPECT_EQ(rooms.num_bytes(), 0);
    EXPECT_EQ(rooms.num_rooms(), 0u);
  }
}

TEST(Room, WithoutMemoryForPagesEndsInAFailure) {
  const SteadyClock clock;
  const TestPrompt prompt{.num_tokens = 40};  // 10 pages of 640 bytes
  RoomTable rooms(6400, std::chrono::seconds(60), clock);
  const auto room = *rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
  const auto refused = rooms.open({.room = 8}, prompt.prompt(), 1);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
  const auto taken = rooms.open(prompt.key, prompt.prompt(), 1);
  EXPECT_EQ(taken.error().code(), StatusCode::kAlreadyExists);
  room->add_pages(0, 10, test_fill(640));
  room->add_pages(10, 11, test_fill(640));  // of forced tokens, beyond the charge
  room->end(prompt.first());
  EXPECT_TRUE(std::holds_alternative<Room::Pages>(*room->next(kNow)));
  const auto failure = *room->next(kNow);
  EXPECT_EQ(std::get<Failure>(failure).code, StatusCode::kResourceExhausted);
  EXPECT_FALSE(room->next(kNow)) << "nothing follows a failure";
  rooms.remove(prompt.key, room);
  EXPECT_TRUE(rooms.open({.room = 8}, prompt.prompt(), 10));
}

// Log-probabilities are charged until they are read.
TEST(Room, LogprobsHaveABound) {
  const TestPrompt prompt{.num_tokens = 40};
  const InputLogprobs ten{.logprobs = std::vector<TokenLogprobs>(10)};
  const auto bytes = static_cast<int64_t>(10 * sizeof(TokenLogprobs));
  const auto account = std::make_shared<MemoryAccount>("log-probabilities", 3 * bytes + 1);
  Room room(prompt.prompt(), {}, MemoryCharge(account));
  room.add_logprobs(ten);
  EXPECT_EQ(room.num_bytes(), bytes);
  EXPECT_EQ(account->used(), bytes);
  EXPECT_TRUE(std::holds_alternative<InputLogprobs>(*room.next(kNow)));
  EXPECT_EQ(account->used(), 0);
  for (int i = 0; i < 4; ++i) room.add_logprobs(ten);
  EXPECT_EQ(account->used(), 3 * bytes);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::holds_alternative<InputLogprobs>(*room.next(kNow)));
  EXPECT_EQ(std::get<Failure>(*room.next(kNow)).code, StatusCode::kResourceExhausted);
  room.add_logprobs(ten);
  EXPECT_EQ(room.num_bytes(), 0);
  EXPECT_EQ(account->used(), 0);
}

TEST(Room, ThatEndsGivesLogprobsBack) {
  const auto account = std::make_shared<MemoryAccount>("log-probabilities", 1 << 20);
  const TestPrompt prompt{.num_tokens = 40};
  for (const bool closes : {false, true}) {
    Room room(prompt.prompt(), {}, MemoryCharge(account));
    room.add_logprobs({.logprobs = std::vector<TokenLogprobs>(10)});
    EXPECT_GT(account->used(), 0);
    if (closes) {
      room.close();
    } else {
      room.end(Status(StatusCode::kAborted, "gone"));
    }
    EXPECT_EQ(account->used(), 0);
  }
}

// What was aborted keeps nothing but the reason, for a while, and its key may be taken again.
TEST(Room, OfAnAbortedPromptIsFree) {
  ManualClock clock;
  const TestPrompt prompt{.num_tokens = 40};
  RoomTable rooms(1 << 20, std::chrono::seconds(300), clock);
  const Status aborted(StatusCode::kAborted, "its client has left");
  const auto room = *rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
  room->add_pages(0, 3, test_fill(640));
  rooms.end_failed(prompt.key, room, aborted);
  EXPECT_EQ(rooms.num_bytes(), 0);
  const auto again = *rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
  EXPECT_EQ(rooms.num_rooms(), 1u);
  EXPECT_EQ(rooms.join(prompt.key, kNow), again);
  rooms.end_failed(prompt.key, again, aborted);  // its reader has come
  EXPECT_EQ(std::get<Failure>(*again->next(kNow)).message, "its client has left");
  EXPECT_EQ(rooms.open(prompt.key, prompt.prompt(), 1).error().code(), StatusCode::kAlreadyExists);
  rooms.remove(prompt.key, again);
  const auto late = *rooms.open(prompt.key, prompt.prompt(), 1);
  rooms.end_failed(prompt.key, late, aborted);
  EXPECT_EQ(std::get<Failure>(*rooms.join(prompt.key, kNow)->next(kNow)).message,
            "its client has left");
  rooms.remove(prompt.key, late);
  const auto left = *rooms.open(prompt.key, prompt.prompt(), 1);
  rooms.end_failed(prompt.key, left, aborted);
  clock.advance(RoomTable::kFailureKept - std::chrono::seconds(1));
  EXPECT_EQ(rooms.close_late(), 0);
  EXPECT_EQ(rooms.num_rooms(), 1u);
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(rooms.close_late(), 0) << "a failure is none that nobody has fetched";
  EXPECT_EQ(rooms.num_rooms(), 0u);
}

TEST(Room, FailuresAreBounded) {
  ManualClock clock;
  const TestPrompt prompt{.num_tokens = 4};
  RoomTable rooms(1 << 20, std::chrono::seconds(300), clock);
  for (uint64_t number = 0; number < RoomTable::kFailuresMax + 100; ++number) {
    const auto room = *rooms.open({.room = number}, prompt.prompt(), 1);
    rooms.end_failed({.room = number}, room, Status(StatusCode::kAborted, "gone"));
  }
  EXPECT_EQ(rooms.num_rooms(), RoomTable::kFailuresMax);
  EXPECT_EQ(rooms.join({.room = 99}, kNow), nullptr);
  EXPECT_NE(rooms.join({.room = 100}, kNow), nullptr);
}

TEST(Room, ThatNobodyJoinsIsClosed) {
  ManualClock clock;
  const TestPrompt prompt{.num_tokens = 4};
  RoomTable rooms(1 << 20, std::chrono::seconds(10), clock);
  const auto late = *rooms.open({.room = 1}, prompt.prompt(), 1);
  const auto joined = *rooms.open({.room = 2}, prompt.prompt(), 1);
  EXPECT_EQ(rooms.join({.room = 2}, kNow), joined);
  EXPECT_EQ(rooms.join({.room = 2}, kNow), nullptr) << "a room has one reader";
  EXPECT_EQ(rooms.join({.room = 3}, kNow), nullptr);
  clock.advance(std::chrono::seconds(9));
  EXPECT_EQ(rooms.close_late(), 0);
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(rooms.close_late(), 1);
  late->add_pages(0, 1, test_fill(640));
  EXPECT_EQ(late->num_bytes(), 0);
  EXPECT_EQ(std::get<Failure>(*late->next(kNow)).code, StatusCode::kUnavailable);
  EXPECT_EQ(rooms.num_rooms(), 1u);
  EXPECT_EQ(rooms.num_bytes(), 640);
  rooms.close_all();
  EXPECT_EQ(rooms.num_bytes(), 0);
  EXPECT_EQ(rooms.open({.room = 1}, prompt.prompt(), 1).error().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace espalier::transfer
