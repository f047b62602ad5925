// What happens to the pages of a request while it waits for its turn: they are named, a remote
// store is asked which of them it has, and those that disk or remote store have are copied to the
// host's memory, in the order of requests, a few at a time. So what its load needs is known and
// near when it is admitted.
//
//   begin() -> names -> look_up() of the remote store -> get() of a window -> put() to the host ...
//
// begin(), end() and the destructor are for the scheduler's thread and wait for nothing; the
// prefetcher's thread and the stores' threads do the work.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/page_name.h"
#include "seams/forward_batch.h"
#include "tiers/page_store.h"

namespace espalier {

struct PrefetchStats {
  int64_t requests = 0;       // that waited with pages elsewhere than on the device
  int64_t pages_started = 0;  // requested before theirs was admitted
  int64_t pages_fetched = 0;  // of them, copied to the host's memory
};

class Prefetcher {
 public:
  struct Config {
    PageNameScope name_scope;
    int32_t page_size = 1;  // tokens
    // Pages of requests that wait take at most this share of the host's memory.
    double host_share_max = 0.5;
    size_t window = 16;  // pages that are fetched at a time
  };
  // Borrowed; they outlive it. `host` may be null: then pages are named and looked up alone.
  struct Stores {
    PageStore* host = nullptr;
    PageStore* disk = nullptr;
    PageStore* remote = nullptr;
  };

  // One request's.
  class Entry {
   public:
    // Whether an admission must wait until the remote store was asked.
    bool must_wait() const { return needs_look_up_ && !is_known_; }
    // Of all whole pages from the first on. REQUIRES that it need not be waited for any more.
    std::span<const PageName> names() const { return names_; }

   private:
    friend class Prefetcher;
    std::string cache_namespace_;
    std::vector<TokenId> tokens_;
    std::vector<PageName> names_;
    size_t first_ = 0;  // page that is not on the device
    bool needs_look_up_ = false;
    std::atomic<bool> is_known_ = false;  // names_ are there, and the store was asked
    // Guarded by the state's mutex.
    bool is_ended_ = false;
    size_t next_ = 0;  // page to be fetched
    int64_t num_fetched_ = 0;
  };

  // `known` is called on any thread when an entry need not be waited for any more.
  Prefetcher(const Config& config, const Stores& stores, std::function<void()> known);
  ~Prefetcher();  // no callback comes any more when it has returned

  // `num_cached` tokens are on the device.
  void begin(SequenceId id, std::string_view cache_namespace, std::span<const TokenId> tokens,
             int32_t num_cached);
  // The request is admitted, or wants nothing any more: no further page is fetched. Null where
  // begin() was not called.
  std::shared_ptr<const Entry> end(SequenceId id);

  PrefetchStats stats() const;  // thread-safe

 private:
  struct State;
  class Sink;
  static void run(const std::shared_ptr<State>& state);
  static void find_out(const std::shared_ptr<State>& state, const std::shared_ptr<Entry>& entry);
  static void know(State& state, const std::shared_ptr<Entry>& entry);
  static bool fetch(const std::shared_ptr<State>& state, const std::shared_ptr<Entry>& entry);

  const std::shared_ptr<State> state_;  // shared with callbacks, which may outlive this object
  std::unordered_map<SequenceId, std::shared_ptr<Entry>> entries_;  // shared with the thread
  std::thread thread_;
};

}  // namespace espalier
