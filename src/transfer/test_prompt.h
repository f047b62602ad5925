// Prompts for tests of transfers: a page's bytes follow from its index, a server with its rooms,
// and a fetch that checks what it gets.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "transfer/page_fetch.h"
#include "transfer/page_server.h"

namespace espalier::transfer {

inline KvShape test_shape(uint64_t page_bytes = 640) {
  return {.model = "m",
          .layout = "bf16",
          .computer = "scalar",
          .page_size = 4,
          .page_bytes = page_bytes};
}

inline std::byte test_byte(uint64_t at) { return static_cast<std::byte>(mix64(at) & 0xff); }

// Fills pages as a prefill computes them; `page_bytes` each.
inline FillPages test_fill(uint64_t page_bytes) {
  return [page_bytes](uint32_t first, std::span<std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = test_byte(first * page_bytes + i);
    return true;
  };
}

// Staging memory of a test: the pages' bytes one behind the other, planes of them by rounds.
class TestStagedPages final : public StagedPages {
 public:
  struct Options {
    int32_t block_pages = 3, num_ranges = 1;
    bool fails = false;  // the last range does not come
  };
  // Pages [first, first + num_pages); `num_alive` counts objects.
  TestStagedPages(uint32_t first, int32_t num_pages, uint64_t page_bytes, const Options& options,
                  std::atomic<int>& num_alive)
      : page_bytes_(page_bytes), options_(options), num_alive_(num_alive) {
    ++num_alive_;
    for (int32_t at = 0; at < num_pages; at += options.block_pages) {
      const int32_t count = std::min(options.block_pages, num_pages - at);
      parts_.push_back({.block = int64_t{first} + at, .block_pages = count, .num_pages = count});
    }
  }
  TestStagedPages(const TestStagedPages&) = delete;
  TestStagedPages& operator=(const TestStagedPages&) = delete;
  ~TestStagedPages() override { --num_alive_; }

  std::span<const StagedPart> parts() const override { return parts_; }
  int32_t num_ranges() const override { return options_.num_ranges; }
  Result<PlaneRange> wait(int32_t range) override {
    if (options_.fails && range + 1 == options_.num_ranges)
      return fail(error(StatusCode::kInternal, "the step failed"));
    return PlaneRange{range, range + 1};
  }
  Status read(const StagedPart& part, int32_t page, std::span<std::byte> to) override {
    (void)test_fill(page_bytes_)(static_cast<uint32_t>(part.block + page), to);
    return {};
  }

 private:
  const uint64_t page_bytes_;
  const Options options_;
  std::atomic<int>& num_alive_;
  std::vector<StagedPart> parts_;
};

struct TestPrompt {
  RoomKey key{.room = 7};
  uint32_t num_tokens = 0, num_cached = 0;  // num_cached: pages
  KvShape shape = test_shape();

  PageName name() const {
    PageName name;
    name.bytes[0] = static_cast<uint8_t>(num_tokens);
    name.bytes[15] = 1;
    return name;
  }
  uint32_t num_pages() const { return (num_tokens + shape.page_size - 1) / shape.page_size; }
  Room::Prompt prompt() const {
    return {.name = name(), .num_tokens = num_tokens, .page_bytes = shape.page_bytes};
  }
  Hello hello() const {
    return {.key = key,
            .shape = shape,
            .prompt = name(),
            .num_tokens = num_tokens,
            .num_cached = num_cached};
  }
  FirstToken first() const {
    return {.token = 42,
            .num_tokens = num_tokens,
            .cached_tokens = 3,
            .logprobs = {.logprob = -0.5f, .top = {{42, -0.5f}, {1, -2.f}}, .wanted = {{9, -7.f}}}};
  }
  // What a prefill gives in turn: so many chunks of pages, then log-probabilities and the token.
  void compute(Room& room, uint32_t num_chunks) const {
    for (uint32_t i = 0; i < num_chunks; ++i)
      room.add_pages(num_pages() * i / num_chunks, num_pages() * (i + 1) / num_chunks,
                     test_fill(shape.page_bytes));
    room.add_logprobs({.first = 1, .logprobs = std::vector<TokenLogprobs>(num_tokens)});
    room.end(first());
  }
};

// A prefill server on a free port, with its rooms.
struct TestServer {
  explicit TestServer(PageServerConfig c = {}, int64_t bytes_max = 1 << 20,
                      Duration room_timeout = std::chrono::seconds(60))
      : rooms(bytes_max, room_timeout, clock) {
    if (c.token.empty()) c.token = "token";
    c.shape = c.shape.model.empty() ? test_shape() : c.shape;
    auto started = PageServer::start(c, rooms);
    EXPECT_TRUE(started) << started.error().to_string();
    server = *std::move(started);
  }
  SteadyClock clock;
  RoomTable rooms;
  std::unique_ptr<PageServer> server;
};

// Fetches the prompt; what arrives must be its bytes.
inline Result<Fetched> test_fetch(const TestPrompt& prompt, PageFetchConfig config) {
  if (config.host.empty()) config.host = "127.0.0.1";
  if (config.token.empty()) config.token = "token";
  std::vector<uint32_t> taken;
  PageFetch fetch(config, prompt.hello());
  auto fetched = fetch.run([&](uint32_t first, std::span<const std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); ++i)
      if (bytes[i] != test_byte(first * prompt.shape.page_bytes + i)) return false;
    for (uint32_t i = 0; i < bytes.size() / prompt.shape.page_bytes; ++i)
      taken.push_back(first + i);
    return true;
  });
  if (!fetched) return fetched;
  std::vector<uint32_t> wanted;
  for (uint32_t i = prompt.num_cached; i < prompt.num_pages(); ++i) wanted.push_back(i);
  EXPECT_EQ(taken, wanted);
  EXPECT_EQ(fetched->first.token, 42);
  return fetched;
}

}  // namespace espalier::transfer
