// Both sides over real sockets: pages stream while they are computed, what is cached stays at home,
// and servers that do not belong together refuse each other with a reason.
#include <gtest/gtest.h>

#include <future>

#include "transfer/test_prompt.h"

namespace espalier::transfer {
namespace {

PageFetchConfig to(const TestServer& server) { return {.port = server.server->port()}; }

// A server counts a transfer once it has the last confirmation.
void await_counts(const TestServer& server, int64_t num_transfers, int64_t num_failed) {
  const auto done = [&] {
    const TransferStats stats = server.server->stats();
    return stats.num_transfers == num_transfers && stats.num_failed == num_failed;
  };
  for (int i = 0; i < 4000 && !done(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(done());
}

TEST(Transfer, BringsAllButWhatIsCached) {
  TestServer server;
  int64_t num_bytes = 0;
  for (uint32_t num_cached = 0; num_cached < 10; ++num_cached) {
    const TestPrompt prompt{
        .key = {.room = num_cached}, .num_tokens = 39, .num_cached = num_cached};
    const auto room = *server.rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
    std::thread prefill([&] { prompt.compute(*room, 3); });
    const auto fetched = test_fetch(prompt, to(server));
    prefill.join();
    ASSERT_TRUE(fetched) << fetched.error().to_string();
    EXPECT_EQ(fetched->num_bytes, (10 - num_cached) * 640);
    EXPECT_EQ(fetched->first.cached_tokens, 3u);
    ASSERT_EQ(fetched->logprobs.size(), 1u);
    EXPECT_EQ(fetched->logprobs[0].logprobs.size(), 39u);
    num_bytes += fetched->num_bytes;
  }
  await_counts(server, 10, 0);
  EXPECT_EQ(server.server->stats().num_bytes, num_bytes);
  EXPECT_EQ(server.rooms.num_rooms(), 0u);
  EXPECT_EQ(server.rooms.num_bytes(), 0);
}

TEST(Transfer, StreamsPagesWhileTheyAreComputed) {
  TestServer server({.wait_interval = std::chrono::milliseconds(5)});
  const TestPrompt prompt{.num_tokens = 12};
  std::promise<void> first_page;
  PageFetch fetch({.host = "127.0.0.1", .port = server.server->port(), .token = "token"},
                  prompt.hello());
  Result<Fetched> fetched;
  std::thread decode([&] {  // before the request is at the prefill server
    fetched = fetch.run([&](uint32_t first, std::span<const std::byte>) {
      if (first == 0) first_page.set_value();
      return true;
    });
  });
  const auto room = *server.rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
  room->add_pages(0, 1, test_fill(640));
  first_page.get_future().wait();  // it is there while the prompt is still computed
  room->add_pages(1, 3, test_fill(640));
  room->end(prompt.first());
  decode.join();
  ASSERT_TRUE(fetched) << fetched.error().to_string();
}

// Fetches from a server whose pages are staged; the memory is mapped unless `maps` is false.
struct StagedFetch {
  bool maps = true;
  std::vector<std::pair<uint32_t, int32_t>> taken;  // page, plane

  Result<Fetched> run(const TestServer& server, const TestPrompt& prompt) {
    PageFetch fetch({.host = "127.0.0.1", .port = server.server->port(), .token = "token"},
                    prompt.hello());
    return fetch.run(
        [&](uint32_t first, std::span<const std::byte> bytes) {
          std::vector<std::byte> wanted(bytes.size());
          test_fill(640)(first, wanted);
          for (uint32_t i = 0; i < bytes.size() / 640; ++i) taken.emplace_back(first + i, -1);
          return std::ranges::equal(bytes, wanted);
        },
        {.kind = "test",
         .map = [&](const StagingHandle& handle) { return maps && handle.bytes == "memory"; },
         .take =
             [&](const StagedView& staged) {
               uint32_t page = staged.first;
               for (const StagedPart& part : staged.parts)
                 for (int32_t i = 0; i < part.num_pages; ++i, ++page) {
                   EXPECT_EQ(part.block + part.first + i, page);
                   taken.emplace_back(page, staged.planes.begin);
                 }
               return true;
             }});
  }
};

TEST(Transfer, StagedPagesAreReadFromMappedMemory) {
  const StagingHandle handle{.kind = "test", .bytes = "memory"};
  TestServer server({.staging = handle});
  std::atomic<int> num_alive = 0;
  for (const bool maps : {true, false})
    for (uint32_t num_cached = 0; num_cached < 10; ++num_cached) {
      SCOPED_TRACE(num_cached);
      const TestPrompt prompt{
          .key = {.room = num_cached}, .num_tokens = 39, .num_cached = num_cached};
      const auto room = *server.rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
      const auto stage = [&](uint32_t first, int32_t count) {
        room->add_staged(
            first, std::make_unique<TestStagedPages>(
                       first, count, 640, TestStagedPages::Options{.num_ranges = 2}, num_alive));
      };
      stage(0, 7);
      room->add_pages(7, 8, test_fill(640));  // staging memory was full
      stage(8, 2);
      room->end(prompt.first());
      StagedFetch fetch{.maps = maps};
      const auto fetched = fetch.run(server, prompt);
      ASSERT_TRUE(fetched) << fetched.error().to_string();
      EXPECT_EQ(fetched->num_bytes, (10 - num_cached) * 640);
      const uint32_t num_copied = num_cached <= 7 ? 1 : 0;
      EXPECT_EQ(fetched->num_staged_bytes, maps ? (10 - num_cached - num_copied) * 640 : 0);
      std::vector<std::pair<uint32_t, int32_t>> wanted;
      for (const auto& [begin, end] : {std::pair(0u, 7u), {7u, 8u}, {8u, 10u}}) {
        const bool staged = maps && begin != 7;
        for (int32_t plane = 0; plane < (staged ? 2 : 1); ++plane)
          for (uint32_t page = std::max(begin, num_cached); page < end; ++page)
            wanted.emplace_back(page, staged ? plane : -1);
      }
      EXPECT_EQ(fetch.taken, wanted);
    }
  await_counts(server, 20, 0);
  EXPECT_EQ(num_alive, 0) << "blocks are given back";
}

TEST(Transfer, StagedPagesOfAFailedStepEndInAFailure) {
  TestServer server({.staging = {.kind = "test", .bytes = "memory"}});
  std::atomic<int> num_alive = 0;
  const TestPrompt prompt{.num_tokens = 39};
  const auto room = *server.rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
  room->add_staged(
      0, std::make_unique<TestStagedPages>(
             0, 9, 640, TestStagedPages::Options{.num_ranges = 3, .fails = true}, num_alive));
  StagedFetch fetch;
  const auto fetched = fetch.run(server, prompt);
  EXPECT_EQ(fetched.error().code(), StatusCode::kInternal);
  await_counts(server, 0, 1);
  EXPECT_EQ(num_alive, 0);
}

TEST(Transfer, ManyAlternativesOfTokensTakeSeveralFrames) {
  TestServer server;
  const TestPrompt prompt{.num_tokens = 4};
  const auto room = *server.rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
  room->add_pages(0, 1, test_fill(640));
  TokenLogprobs one;
  one.top.assign(50'000, {3, -1.f});
  room->add_logprobs({.first = 1, .logprobs = std::vector<TokenLogprobs>(50, one)});  // 20 MB
  room->end(prompt.first());
  const auto fetched = test_fetch(prompt, to(server));
  ASSERT_TRUE(fetched) << fetched.error().to_string();
  EXPECT_GT(fetched->logprobs.size(), 1u);
  uint32_t next = 1;
  for (const InputLogprobs& part : fetched->logprobs) {
    EXPECT_EQ(part.first, next);
    next += static_cast<uint32_t>(part.logprobs.size());
    for (const TokenLogprobs& got : part.logprobs) EXPECT_EQ(got.top, one.top);
  }
  EXPECT_EQ(next, 51u);
}

TEST(Transfer, AWrongTokenReadsNothing) {
  TestServer server;
  const TestPrompt prompt{.num_tokens = 12};
  const auto room = *server.rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
  prompt.compute(*room, 1);
  for (const char* token : {"Token", "token ", "x"}) {
    const auto fetched = test_fetch(prompt, {.port = server.server->port(), .token = token});
    ASSERT_FALSE(fetched);
    EXPECT_EQ(fetched.error().code(), StatusCode::kUnauthenticated) << fetched.error().to_string();
  }
  await_counts(server, 0, 3);
  EXPECT_TRUE(test_fetch(prompt, to(server))) << "the room is still there";
}

TEST(Transfer, ServersThatDifferRefuseEachOther) {
  TestServer server;
  const auto refusal = [&](TestPrompt other) {
    const TestPrompt prompt{.num_tokens = 12};
    const auto room = *server.rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
    prompt.compute(*room, 1);
    const auto fetched = test_fetch(other, to(server));
    server.rooms.remove(prompt.key, room);
    return fetched ? Status() : fetched.error();
  };
  TestPrompt other{.num_tokens = 12};
  other.shape.model = "another";
  EXPECT_EQ(refusal(other).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refusal({.num_tokens = 11}).code(), StatusCode::kInvalidArgument) << "another prompt";
  EXPECT_TRUE(refusal({.num_tokens = 12}).ok());
}

TEST(Transfer, ARoomThatDoesNotComeIsADeadline) {
  TestServer server({.room_timeout = std::chrono::milliseconds(30),
                     .wait_interval = std::chrono::milliseconds(5)});
  const auto fetched = test_fetch({.num_tokens = 4}, to(server));
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().code(), StatusCode::kDeadlineExceeded) << fetched.error().to_string();
}

TEST(Transfer, AFailedPrefillFailsTheFetch) {
  TestServer server;
  const TestPrompt prompt{.num_tokens = 12};
  const auto room = *server.rooms.open(prompt.key, prompt.prompt(), prompt.num_pages());
  room->add_pages(0, 1, test_fill(640));
  room->end(error(StatusCode::kAborted, "its client has left"));
  const auto fetched = test_fetch(prompt, to(server));
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().code(), StatusCode::kAborted);
  await_counts(server, 0, 1);
  EXPECT_EQ(server.rooms.num_rooms(), 0u);
}

TEST(Transfer, NoServerAndAStoppingOneAreUnavailable) {
  int port = 0;
  {
    TestServer server;
    port = server.server->port();
    Result<Fetched> fetched;
    std::thread decode([&] { fetched = test_fetch({.num_tokens = 4}, to(server)); });
    while (server.server->num_connections() == 0) std::this_thread::yield();
    server.server.reset();
    decode.join();
    ASSERT_FALSE(fetched);
    EXPECT_EQ(fetched.error().code(), StatusCode::kUnavailable) << fetched.error().to_string();
  }
  const auto fetched = test_fetch({.num_tokens = 4}, {.port = port});
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().code(), StatusCode::kUnavailable);
}

TEST(Transfer, CancelEndsAFetchThatWaits) {
  TestServer server;
  PageFetch fetch({.host = "127.0.0.1", .port = server.server->port(), .token = "token"},
                  TestPrompt{.num_tokens = 4}.hello());
  Result<Fetched> fetched;
  std::thread decode([&] { fetched = fetch.run([](auto, auto) { return true; }); });
  while (server.server->num_connections() == 0) std::this_thread::yield();
  fetch.cancel();
  decode.join();
  EXPECT_EQ(fetched.error().code(), StatusCode::kAborted);
}

TEST(Transfer, ACancelledFetchDoesNotConnect) {
  TestServer server;
  PageFetch fetch({.host = "127.0.0.1", .port = server.server->port(), .token = "token"},
                  TestPrompt{.num_tokens = 4}.hello());
  fetch.cancel();
  EXPECT_EQ(fetch.run([](auto, auto) { return true; }).error().code(), StatusCode::kAborted);
  EXPECT_EQ(server.server->num_connections(), 0u);
}

}  // namespace
}  // namespace espalier::transfer
