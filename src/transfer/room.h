// A prompt on its way from the prefill server's scheduler to the decode server that fetches it: a
// queue of pages, log-probabilities and at last the first token. Pages are copied into the room as
// they are computed, so the cache's pages are free for other prompts at once, and the scheduler
// never waits for a network. What is sent is freed.
//
// Thread-safe: one thread fills a room, one empties it, and any closes it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/memory_account.h"
#include "seams/staged_pages.h"
#include "transfer/frame.h"

namespace espalier::transfer {

// Writes pages [first, first + bytes.size() / page_bytes) of the prompt; false: it cannot.
using FillPages = std::function<bool(uint32_t first, std::span<std::byte> bytes)>;

class Room {
 public:
  struct Prompt {
    PageName name;            // Hello::prompt
    uint32_t num_tokens = 0;  // without those that a grammar forces
    uint64_t page_bytes = 0;
  };
  struct Pages {
    uint32_t first = 0;
    std::vector<std::byte> bytes;
  };
  struct Staged {
    uint32_t first = 0;                  // page of the prompt that the first staged one is
    uint32_t num_skipped = 0;            // leading ones that the reader does not want
    std::unique_ptr<StagedPages> pages;  // some; given back with the item
  };
  using Item = std::variant<Pages, Staged, InputLogprobs, FirstToken, Failure>;

  // `pages`: covers those of the prompt. `logprobs`: grows with those that wait.
  Room(const Prompt& prompt, MemoryCharge pages, MemoryCharge logprobs = {});

  const Prompt& prompt() const { return prompt_; }

  // --- The scheduler's side. Calls after the end, and after close(), do nothing.
  // Pages [first, end) are computed; those that the reader does not want are left out.
  void add_pages(uint32_t first, uint32_t end, const FillPages& fill);
  // Pages from `first` on are on their way into staging memory.
  void add_staged(uint32_t first, std::unique_ptr<StagedPages> pages);
  uint32_t first_wanted() const;  // pages before are not; 0 before the reader is known
  void add_logprobs(InputLogprobs logprobs);
  void end(FirstToken first);
  void end(Status why);  // no first token will come

  // --- The reader's side.
  void skip_pages(uint32_t num_cached);  // leading pages that are not wanted
  // The next item, in order; none where nothing has come within `timeout`. Nothing follows a first
  // token or a failure.
  std::optional<Item> next(Duration timeout);
  // Frees what the room has; nothing comes any more.
  void close();

  TimePoint ended_at() const;  // when the first token came; REQUIRES that it has
  int64_t num_bytes() const;   // of pages and log-probabilities that wait
  bool has_failed() const;     // it was ended without a first token

 private:
  void push(Item item);
  void fail_for_memory(const char* what);
  bool reserve(uint64_t num_pages);

  const Prompt prompt_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  MemoryCharge charge_, logprob_charge_;
  std::deque<Item> items_;
  int64_t num_bytes_ = 0;
  uint32_t first_wanted_ = 0;
  TimePoint ended_at_{};
  bool is_ended_ = false, is_closed_ = false, has_failed_ = false;
};

// The rooms of a prefill server, by key. A room whose reader does not come within the timeout is
// closed. One whose prompt has failed or was aborted has nothing but the reason, for a reader that
// may still come: it is kept for kFailureKept at most, as one of kFailuresMax, and a new request
// may take its key. Thread-safe.
class RoomTable {
 public:
  static constexpr Duration kFailureKept = std::chrono::seconds(30);
  static constexpr size_t kFailuresMax = 1024;

  // Of log-probabilities in all rooms together: prompts of a million tokens with 16 alternatives.
  static constexpr int64_t kLogprobBytesMax = 256 << 20;

  // `bytes_max`: of pages in all rooms together. Borrows the clock.
  RoomTable(int64_t bytes_max, Duration timeout, const Clock& clock);

  // kAlreadyExists where the key is in use; kResourceExhausted where the pages have no room.
  Result<std::shared_ptr<Room>> open(const RoomKey& key, const Room::Prompt& prompt,
                                     uint64_t num_pages);
  // Takes the room for its one reader; null where there is none (yet).
  std::shared_ptr<Room> join(const RoomKey& key, Duration timeout);
  // No first token will come: gives back what the room has but the reason.
  void end_failed(const RoomKey& key, const std::shared_ptr<Room>& room, const Status& why);
  // The key is free again: its reader is done, or it has none.
  void remove(const RoomKey& key, const std::shared_ptr<Room>& room);

  // Closes the rooms whose reader has not come in time; how many, without failed ones.
  int close_late();
  void close_all();  // join() answers null from now on, at once

  // Waits until no room has anything for a reader but a failure, or `timeout` has passed.
  void wait_empty(Duration timeout) const;

  size_t num_rooms() const;
  int64_t num_bytes() const { return account_->used() + logprob_account_->used(); }

 private:
  struct Entry {
    std::shared_ptr<Room> room;  // filled by the scheduler, shared with its reader
    TimePoint deadline{};
    bool is_joined = false;
  };

  const Duration timeout_;
  const Clock& clock_;
  const std::shared_ptr<MemoryAccount> account_, logprob_account_;  // shared with the rooms
  mutable std::mutex mutex_;
  std::condition_variable opened_;
  mutable std::condition_variable removed_;
  std::map<RoomKey, Entry> rooms_;
  std::deque<std::pair<RoomKey, std::shared_ptr<Room>>> failures_;  // the oldest first; some gone
  bool is_closed_ = false;
};

}  // namespace espalier::transfer
