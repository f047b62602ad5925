// Workers that are pods of a Kubernetes cluster, by labels: a list of them and a watch of what
// changes, over the REST API with the token of a service account.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/client.h"

namespace espalier::router {

struct KubernetesConfig {
  bool enabled = false;
  std::vector<std::string> selector;  // "KEY=VALUE": labels of the pods, all of them
  int port = 80;                      // of each worker
  std::string name_space;             // "": all
  // Of the API: "http://127.0.0.1:8001"; "": that of the cluster in which this process is a pod.
  std::string api;
  // A folder with the files token, read with each request, and ca.crt; each may be missing.
  std::filesystem::path credentials = "/var/run/secrets/kubernetes.io/serviceaccount";
  Duration watch_timeout = std::chrono::minutes(4);  // of one watch, after which another begins
  Duration backoff = std::chrono::milliseconds(500), backoff_max = std::chrono::seconds(30);
};

// The pods that a list and the events behind it speak of. Not thread-safe.
class PodTable {
 public:
  explicit PodTable(int port) : port_(port) {}

  // A page of a list; `is_first`: what was known is forgotten. kDataLoss: it is no list of pods.
  // Returns the token of the next page, "" behind the last.
  Result<std::string> take_page(std::string_view text, bool is_first);

  enum class Event { kNothing, kChanged, kExpired };
  // An event of a watch. kExpired: the list is to be read again (410 Gone). kDataLoss: it is no
  // event; kUnavailable: an error of the server.
  Result<Event> take_event(std::string_view line);

  // Urls of pods that may be workers: they have an address, are running, are not being deleted, and
  // have been ready. A pod that is not ready later stays, for the health checks judge it.
  std::set<std::string> urls() const;
  const std::string& version() const { return version_; }  // up to which events are known

 private:
  struct Pod {
    std::string address;
    bool is_running = false, was_ready = false;
  };
  const int port_;
  std::map<std::string, Pod> pods_, before_;  // by uid; those known before a list, until its end
  std::string version_;
};

// Lists and watches on a thread of its own, for as long as it lives. Failures are tried again, at
// first after `backoff`, then later and later; meanwhile the workers stay.
class PodWatcher {
 public:
  // `changed` is called on the thread, with all urls. kInvalidArgument: a selector or the address
  // of the API is wrong or missing.
  static Result<std::unique_ptr<PodWatcher>> start(
      KubernetesConfig config, std::function<void(std::set<std::string> urls)> changed);
  ~PodWatcher();

 private:
  PodWatcher(KubernetesConfig config, std::function<void(std::set<std::string>)> changed);
  void run();
  Status connect();
  Status list();
  Status watch();  // until the list is to be read again, or a failure
  Status watch_once(bool& must_list);
  net::Headers headers() const;
  bool wait(Duration duration);  // false when it stops
  void report();

  const KubernetesConfig config_;
  const std::function<void(std::set<std::string>)> changed_;
  PodTable pods_;
  std::optional<std::set<std::string>> reported_;
  Duration backoff_;

  std::mutex mutex_;  // guards the next two, and the client where it is replaced
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::optional<net::HttpClient> client_;
  std::thread thread_;  // starts when all is set
};

// The path and query of a list of pods. kInvalidArgument names a selector that is none.
Result<std::string> pods_path(const KubernetesConfig& config);

}  // namespace espalier::router
