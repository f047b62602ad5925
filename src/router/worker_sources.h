// Where a router's workers come from: the command line and its API, a file that may change, names
// whose addresses may change, and the pods of a cluster.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "router/dispatcher.h"
#include "router/kubernetes.h"

namespace espalier::router {

struct SourcesConfig {
  std::vector<std::string> urls;  // that are there from the start
  // Likewise, of prefill workers: each url may be followed by its bootstrap port.
  std::vector<std::string> prefill;
  bool pairs = false;  // then there is one of `prefill`
  // One url a line; "#" begins a comment. Read every `poll`, and taken when it has been the same
  // twice; a worker that is no longer there
  // leaves when its requests have ended.
  std::filesystem::path file;
  std::vector<std::string> dns;  // "HOST:PORT": each address of the host is a worker
  KubernetesConfig kubernetes;
  Duration poll = std::chrono::seconds(1), dns_poll = std::chrono::seconds(5);
};

inline constexpr int kBootstrapPort = 8998;  // of a prefill worker that states none

// Bootstrap ports of prefill workers by their normal urls. kInvalidArgument names what is wrong.
Result<std::map<std::string, int>> parse_prefill_workers(const std::vector<std::string>& words);

// The urls of a file, in their normal form. kInvalidArgument names the line.
Result<std::set<std::string>> parse_worker_file(std::string_view text);

// Names are looked up, and the file is read, on a thread of its own. `dispatcher` outlives it.
class WorkerSources {
 public:
  // Reads everything once: kInvalidArgument where a url or the file is wrong. A host that has no
  // address yet is looked up again and again.
  static Result<std::unique_ptr<WorkerSources>> start(SourcesConfig config, Dispatcher& dispatcher);
  ~WorkerSources();

  // By an administrator. `done` is called on this object's thread; kAlreadyExists, kUnavailable
  // where the host has no address.
  void add(std::string url, std::function<void(const Status&)> done);
  // A worker of the file comes back only when its line has been removed and written again.
  Status remove(const std::string& url);

 private:
  WorkerSources(SourcesConfig config, Dispatcher& dispatcher);
  void run();
  void poll_file();
  void poll_dns();
  void follow(const std::string& source, const std::set<std::string>& urls);
  void post(std::function<void()> task);
  Status add_first(const std::string& url);
  Status add_now(const std::string& url);
  void add_pending();

  const SourcesConfig config_;
  Dispatcher& dispatcher_;
  std::string file_text_, file_seen_;  // as it was taken, and as it was read last
  std::map<std::string, std::set<std::string>> followed_;  // urls by source, as last seen
  std::set<std::string> pending_;                          // whose hosts had no address
  std::map<std::string, int> bootstrap_ports_;             // of prefill workers, by url

  std::mutex mutex_;  // guards the next two
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;                // uses all but the next; starts when all is set
  std::unique_ptr<PodWatcher> pods_;  // null without service discovery
};

}  // namespace espalier::router
