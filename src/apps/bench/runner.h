// Sends a workload and records what came back; the same for a server and for an engine in this
// process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "apps/bench/report.h"
#include "apps/bench/workload.h"

namespace espalier::apps {

// The conversation so far, in whichever form the target wants it.
struct ConversationState {
  std::vector<int32_t> ids;                                   // prompt and answers
  std::vector<std::pair<std::string, std::string>> messages;  // role, text
};

// Sends one turn and waits for the last token; adds the turn and its answer to `state`. One for
// each worker, used by one thread.
class Sender {
 public:
  virtual ~Sender() = default;
  virtual RequestRecord send(const Turn& turn, ConversationState& state) = 0;
};

struct RunnerOptions {
  double request_rate = 0;      // conversations started a second (Poisson); 0: as soon as possible
  int32_t max_concurrency = 0;  // 0: as many as there are conversations
  uint64_t seed = 1;            // of the arrivals
};

struct RunResult {
  std::vector<RequestRecord> records;
  double seconds = 0;  // from the first request to the last answer
};

using SenderFactory = std::function<std::unique_ptr<Sender>()>;

RunResult run_workload(const std::vector<Conversation>& workload, const RunnerOptions& options,
                       const SenderFactory& make_sender);

double now_seconds();  // of a clock that never goes back

// Gathers the arrival times of one request's tokens into a record. `now` in seconds.
class TokenTimer {
 public:
  explicit TokenTimer(double started) : started_(started), last_(started) {}
  void tokens(double now, int32_t total);  // `total` output tokens have arrived by now
  void finish(double now, RequestRecord& record);

 private:
  double started_, last_;
  double first_ = -1;
  int32_t count_ = 0;
  std::vector<float> gaps_;
};

}  // namespace espalier::apps
