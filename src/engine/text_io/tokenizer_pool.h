// The threads that turn prompts into tokens, so that no long prompt holds up the scheduler.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier {

// Thread-safe. Idle threads are parked.
class TokenizerPool {
 public:
  // kResourceExhausted: there was no memory for the prompt's tokens.
  using Done = std::function<void(Result<std::vector<TokenId>>&& ids)>;

  // `tokenizer` outlives the pool. `capacity`: jobs that may wait.
  TokenizerPool(const Tokenizer& tokenizer, int num_threads, size_t capacity);
  ~TokenizerPool();  // jobs that wait are dropped, those that run are finished

  // `done` is called on a thread of the pool. False when `capacity` jobs wait.
  [[nodiscard]] bool submit(std::string text, const EncodeOptions& options, Done done);

 private:
  struct Job {
    std::string text;
    EncodeOptions options;
    Done done;
  };
  void work();
  Result<std::vector<TokenId>> encode(const Job& job) const;

  const Tokenizer& tokenizer_;
  BoundedQueue<Job> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace espalier
