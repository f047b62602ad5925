// Gives what a draining worker has cached to the workers that go on: the worker writes its cache to
// a file (/cache/export), and the others take it into their tiers (/cache/import), from a folder
// that all of them share (--cache-file-dir). So the prefixes of the worker's clients are loaded
// elsewhere instead of being computed again.
//
// Hand-overs run one after the other, on a thread of their own, through one file that each one
// overwrites.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/status.h"
#include "net/client.h"
#include "router/dispatcher.h"

namespace espalier::router {

struct CacheHandoverConfig {
  std::string api_key;                               // sent to workers; empty: none
  std::string ca_file;                               // of https
  Duration requests_max = std::chrono::seconds(60);  // awaits the worker's last requests
  Duration call_timeout = std::chrono::minutes(10);
};

// What each worker that took the file has of it.
struct HandedOver {
  std::string file;
  int64_t num_pages = 0, num_bytes = 0;
  struct Peer {
    std::string url;
    int64_t num_pages = 0;
    std::string failure;  // empty: it has taken them
  };
  std::vector<Peer> peers;
};

class CacheHandover {
 public:
  using Done = std::function<void(Result<HandedOver>)>;

  // Borrows the dispatcher.
  CacheHandover(CacheHandoverConfig config, Dispatcher& dispatcher);
  ~CacheHandover();  // as begin_stop(), and waits
  void begin_stop();  // ends what is in progress and what waits with a failure

  // Of a worker that drains, to all healthy workers of one of its models. Calls done() on a thread
  // of its own; with kResourceExhausted where too many wait, with kNotFound without such workers,
  // with kFailedPrecondition where it drains no more, and with kUnavailable where it cannot export.
  void start(const std::string& url, Done done);

 private:
  struct Job {
    std::string url;
    Done done;
  };
  void run();
  Result<HandedOver> guarded_hand_over(const std::string& url);
  Result<HandedOver> hand_over(const std::string& url);
  Result<std::vector<std::string>> await_requests(const std::string& url);
  Result<int64_t> call(const std::string& url, std::string_view path, const std::string& file,
                       int64_t* num_bytes);

  const CacheHandoverConfig config_;
  Dispatcher& dispatcher_;
  const std::string file_;  // of a drawn name, since several routers may share workers
  BoundedQueue<Job> jobs_{16};
  std::atomic<bool> stopped_ = false;
  std::mutex client_mutex_;
  net::HttpClient* client_ = nullptr;  // of the call in progress
  std::thread thread_;                 // last: it uses all of the above
};

}  // namespace espalier::router
