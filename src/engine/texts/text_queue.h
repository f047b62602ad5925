// The texts of an encoder that wait: first for the threads that make tokens of them, then for a
// step. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/clock.h"
#include "engine/requests/registry.h"
#include "engine/requests/request.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier {

// One text from its arrival to its vector.
struct TextJob {
  RequestId id = 0;
  GenerateRequest request;
  EventSink sink;
  RequestStats stats;
  Result<TypedIds> text = TypedIds{};  // once it has been tokenised
  bool aborted = false;
};
using TextJobPtr = std::unique_ptr<TextJob>;

class TextQueue {
 public:
  void push(TextJobPtr job);
  // The next text to tokenise; null once the queue is closed.
  TextJobPtr next_raw();
  void push_tokenised(TextJobPtr job);
  // Waits for texts that can run, then takes as many as `tokens_max` tokens hold, at least one, the
  // largest priority first and the oldest first among equals; failed and aborted ones besides.
  // Empty once the queue is closed and nothing is left.
  std::vector<TextJobPtr> next_step(int64_t tokens_max);
  // Those of these that wait end with the next step.
  void abort(const std::vector<RequestId>& ids);
  void forget(RequestId id);  // it has ended
  // Nothing waits any longer; all that is left comes out as aborted.
  void close();
  int32_t num_waiting() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable raw_ready_, step_ready_;
  std::deque<TextJobPtr> raw_;
  std::map<std::pair<int64_t, RequestId>, TextJobPtr> ready_;  // by -priority, then by age
  std::set<RequestId> aborted_;                                // of those that have not ended
  int32_t num_being_tokenised_ = 0;
  bool closed_ = false;
};

}  // namespace espalier
