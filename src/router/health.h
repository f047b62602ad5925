// Asks the workers, again and again, whether they are well, and what models they serve.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/clock.h"
#include "net/upstream.h"
#include "router/dispatcher.h"
#include "router/prompt_ids.h"

namespace espalier::router {

struct HealthConfig {
  Duration interval = std::chrono::milliseconds(400);
  // A worker that computes as much as it can still answers this: its I/O threads do. With three
  // checks to fail (health_failure_threshold), a worker that stops is known broken after at most
  // 1.75 seconds, so that what it was to answer begins elsewhere within 2.
  Duration timeout = std::chrono::milliseconds(450);
  std::string path = "/health";
  std::string api_key;  // sent to workers; empty: none
  TokenProbe probe;     // its answers show which workers may get token ids in place of text
  std::shared_ptr<const net::TlsContext> tls;  // as ProxyConfig's upstream has it
};

// A check that is answered with 2xx or 429 passes; a worker that has too much to do is not dead. A
// worker gets one check at a time, and the next one at once while it is in doubt. Checks run on a
// thread of their own until the checker is destroyed. `dispatcher` outlives it.
class HealthChecker {
 public:
  HealthChecker(HealthConfig config, Dispatcher& dispatcher);
  ~HealthChecker();

 private:
  class Check;
  void check_all();
  void check(const WorkerInfo& worker);
  void read_models(const WorkerInfo& worker);
  void compare_tokenizer(const WorkerInfo& worker);
  // Asks the questions one after another; `done` gets whether all were answered, where the worker
  // has answered at all.
  void ask(const WorkerInfo& worker, const std::vector<TokenQuestion>& questions, size_t next,
           std::function<void(bool)> done);
  void log_failure(const WorkerInfo& worker, const std::string& why);
  // A GET where there is no `body`, else a POST of it.
  void call(const WorkerInfo& worker, std::string target, std::string_view body,
            std::function<void(int status, std::string body)> done);

  const HealthConfig config_;
  Dispatcher& dispatcher_;
  int64_t round_ = 0;
  std::unordered_set<uint64_t> being_checked_;  // generations; on the thread alone, as the next
  std::map<uint64_t, std::string> failures_;    // why their last checks failed, as the log has it
  net::Upstream upstream_;
  net::BackgroundIo io_;  // last: it is stopped first
};

// What GET /v1/models lists; nothing where the body is not what OpenAI's is.
struct ListedModels {
  std::vector<std::string> ids;
  std::vector<std::string> adapters;  // of them: those whose `parent` is another model
};
ListedModels listed_models(std::string_view body);

}  // namespace espalier::router
