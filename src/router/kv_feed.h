// Reads the events that workers publish of their caches (over ZeroMQ, as vLLM, SGLang and Espalier
// do) and passes them to the dispatcher, so that its policy knows what each cache holds.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "router/dispatcher.h"

namespace espalier::router {

struct KvFeedConfig {
  bool enabled = false;
  // Of workers that do not state where they publish: on the worker's host. 0: those have no events.
  int port = 5557, replay_port = 5558;
  std::string api_key;  // sent to workers; empty: none
  std::string ca_file;  // that signed the certificates of workers of https; empty: the system's
};

// Where a worker publishes; empty: nowhere.
struct KvEndpoints {
  std::string events, replay;
};
// From a worker's /server_info, whose addresses with wildcards are of its own host. `body`: its
// answer, or empty where it has none.
KvEndpoints kv_endpoints(std::string_view body, const std::string& host,
                         const KvFeedConfig& config);

struct KvFeedStats {
  int64_t num_workers = 0;  // whose events are read
  int64_t num_batches = 0, num_lost = 0, num_malformed = 0;
};

// A thread of its own, until it is destroyed. A worker is read while it is healthy or drains; one
// that comes back is read anew. `dispatcher` outlives it. Thread-safe.
class KvFeed {
 public:
  // kUnavailable where libzmq is missing.
  static Result<std::unique_ptr<KvFeed>> start(KvFeedConfig config, Dispatcher& dispatcher);
  ~KvFeed();

  KvFeedStats stats() const;

 private:
  class Source;
  KvFeed(KvFeedConfig config, Dispatcher& dispatcher);
  void run();
  void follow_workers();
  KvEndpoints discover(const WorkerInfo& worker) const;
  void read_sources(Duration wait);

  const KvFeedConfig config_;
  Dispatcher& dispatcher_;
  std::map<uint64_t, std::unique_ptr<Source>> sources_;  // by generation; of the thread
  std::atomic<int64_t> num_workers_{0}, num_batches_{0}, num_lost_{0}, num_malformed_{0};
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded
  std::thread thread_;     // last: it uses the rest
};

}  // namespace espalier::router
