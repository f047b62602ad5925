// A tier on another host: pages behind sessions of a protocol (remote_session.h), shared by all
// servers that are given the same one. Every page is checked when it is read.
//
// One thread asks which pages are there, on a connection of its own, so that look-ups wait for no
// transfer; others move pages, each on its connection, many in one exchange.
//
// A circuit breaker keeps requests from waiting for a store that is dead, slow or none: an exchange
// that fails cuts the store off. What waits is then answered as absent or dropped, nothing is
// asked, and the first thread tries to connect, after pauses that double. So a failure costs one
// timeout, and no request ever waits for a connection.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "tiers/disk_format.h"
#include "tiers/known_pages.h"
#include "tiers/page_store.h"
#include "tiers/remote_session.h"

namespace espalier {

struct RemotePageStoreConfig {
  std::string kind;  // "redis"
  // As in DiskPageStoreConfig: pages of another scope are never found.
  std::string scope;
  int64_t page_bytes = 0;
  int32_t num_connections = 2;            // that move pages
  size_t pages_in_exchange = 64;          // read or written at once on a connection, at most
  int64_t bytes_in_exchange = 16 << 20;   // the same, but at least a page
  size_t known_pages_max = 1 << 16;       // names of pages that were seen in the store
  int64_t write_buffer_bytes = 64 << 20;  // pages on their way to the store
  int32_t num_reads_max = 1 << 16;        // pages that wait to be read; more are refused
  Duration connect_timeout = std::chrono::milliseconds(500);
  Duration lookup_timeout = std::chrono::milliseconds(50);
  Duration transfer_timeout = std::chrono::seconds(1);  // of an exchange
  Duration retry_after = std::chrono::milliseconds(100), retry_after_max = std::chrono::seconds(30);
};

class RemotePageStore final : public PageStore {
 public:
  using MakeSession = std::function<Result<std::unique_ptr<RemoteSession>>()>;
  // Waits for a first connection for connect_timeout; a store that is not reached is opened all the
  // same, cut off. Fails as make_session does.
  static Result<std::unique_ptr<RemotePageStore>> open(const RemotePageStoreConfig& config,
                                                       const MakeSession& make_session);
  // Stores and erases what is on its way, as far as one transfer_timeout allows.
  ~RemotePageStore() override;

  std::string_view kind() const override { return config_.kind; }
  int64_t page_bytes() const override { return config_.page_bytes; }
  void get(std::span<const PageName> names, std::shared_ptr<PageSink> sink) override;
  size_t put(std::span<const PageName> names, const FillPage& fill) override;
  size_t num_leading(std::span<const PageName> names) const override;  // as far as is known
  void look_up(std::span<const PageName> names, std::function<void()> done) override;
  bool needs_look_up() const override;
  void erase(std::span<const PageName> names) override;
  void clear() override;
  void flush() override;
  PageStoreStats stats() const override;
  std::string problem() const override;

 private:
  class Window;
  struct Read;
  struct LookUp {
    std::vector<PageName> names;
    std::function<void()> done;
    TimePoint asked{};
  };
  struct WriteBuffer {
    PageName name;
    std::span<std::byte> slot;
  };
  struct NameHash {
    size_t operator()(const PageName& name) const { return name.prefix64(); }
  };
  struct Breaker {
    bool is_cut_off = true;
    TimePoint retry_at{}, connected_at{};
    Duration pause{};
    std::string problem = "it is not connected yet";
  };
  struct Waiting {
    std::deque<LookUp> look_ups;
    std::deque<std::vector<PageName>> erases;  // an empty list: all. The first is in progress
    std::deque<std::shared_ptr<Read>> reads;   // shared by the threads that read parts of it
    std::deque<WriteBuffer*> writes;
  };
  // What waits for an answer, taken out of the queues. Of a read no thread takes pages any more.
  struct Dropped {
    std::vector<std::pair<std::shared_ptr<Read>, size_t>> reads;  // from which page on
    std::deque<LookUp> look_ups;
    void answer() const;
  };

  RemotePageStore(const RemotePageStoreConfig& config,
                  std::vector<std::unique_ptr<RemoteSession>> sessions);
  void start();
  void run_control(RemoteSession& session);
  void run_transfers(RemoteSession& session);
  void connect(RemoteSession& session, std::unique_lock<std::mutex>& lock);
  void forget_connection(std::unique_lock<std::mutex>& lock);
  void run_look_up(RemoteSession& session, std::unique_lock<std::mutex>& lock);
  void run_erase(RemoteSession& session, std::unique_lock<std::mutex>& lock);
  void run_read(RemoteSession& session, std::span<std::byte> buffers,
                std::unique_lock<std::mutex>& lock);
  void run_write(RemoteSession& session, std::unique_lock<std::mutex>& lock);
  void release_buffer(WriteBuffer& buffer);
  void cut_off(const Status& why, std::unique_lock<std::mutex>& lock);
  Dropped drop_questions();
  Dropped drop_all();
  size_t num_fresh(std::span<const PageName> names) const;

  const RemotePageStoreConfig config_;
  const ScopeDigest scope_;
  const size_t slot_bytes_;
  std::vector<std::unique_ptr<RemoteSession>> sessions_;  // the first looks up
  const size_t exchange_pages_;
  std::unique_ptr<std::byte[]> arena_;  // of write_buffers_
  std::vector<WriteBuffer> write_buffers_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_, settled_;
  Breaker breaker_;
  KnownPages known_;
  Waiting waiting_;
  std::vector<WriteBuffer*> free_buffers_;
  std::unordered_set<PageName, NameHash> on_their_way_;  // put, and not written
  TimePoint writes_again_at_{};                          // the server has refused some
  bool stopped_ = false;
  PageStoreStats stats_;

  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace espalier
