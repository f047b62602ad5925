// What other threads say to the loop. Its length is bounded by the registry: a request sends at
// most five messages (it came, its tokens are there, its grammar and its pictures are, abort or
// evict it), each flush or pause blocks its caller, who joins branches holds requests for them, who
// reads the cache's nodes has one query under way, and weights are replaced, and a profile is
// started or stopped, by one call at a time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/constrained/grammar_compiler.h"
#include "engine/engine.h"
#include "engine/requests/live_request.h"
#include "engine/watch/step_profile.h"
#include "engine/weights/weight_epoch.h"

namespace espalier {

struct ArrivalMessage {
  std::unique_ptr<LiveRequest> request;
};
struct TokensMessage {
  RequestId id = 0;
  Result<std::vector<TokenId>> prompt_ids;
};
struct GrammarMessage {
  RequestId id = 0;
  GrammarCompiler::Compiled grammar;
};
struct ImagesMessage {
  RequestId id = 0;
  Result<std::vector<EncodedImage>> images;
};
struct AbortMessage {
  RequestId id = 0;
};
struct EvictMessage {  // the request gave way to another while it waited
  RequestId id = 0;
  Status why;
};
struct JoinMessage {
  JoinRequest request;
  JoinDone done;
};
struct CacheNodesMessage {
  CacheNodesQuery query;
  CacheNodesDone done;
};
struct FlushMessage {
  std::promise<Status> done;
};
struct PauseMessage {
  Engine::PauseMode mode = Engine::PauseMode::kAbort;
  std::promise<Status> done;
};
struct ContinueMessage {
  std::promise<Status> done;
};
struct HoldMessage {  // the weights are to be replaced
  bool abort_all = false;
  std::promise<RequestsLeft> done;  // when no step runs, nor will until a ReleaseMessage
};
struct ReleaseMessage {
  WeightEpoch weights;  // of requests that start from here on
  Status refusal;       // not ok: none starts, for want of weights; they end with this
};
struct ProfileMessage {
  ProfileCall call;
};
using Message =
    std::variant<ArrivalMessage, TokensMessage, GrammarMessage, ImagesMessage, AbortMessage,
                 EvictMessage, JoinMessage, CacheNodesMessage, FlushMessage, PauseMessage,
                 ContinueMessage, HoldMessage, ReleaseMessage, ProfileMessage>;

// Thread-safe; one thread takes.
class Inbox {
 public:
  void push(Message message) {
    {
      std::lock_guard lock(mutex_);
      messages_.push_back(std::move(message));
    }
    changed_.notify_one();
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_one();
  }

  // take() returns, though there is no message: something else that it waits for has happened.
  void wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }

  enum class Park { kNo, kForAWhile, kUntilThereIsWork };
  static constexpr std::chrono::milliseconds kAWhile{10};

  // Swaps what is there into `out` (which is empty) and returns whether stop() was called. Parked
  // it sleeps until there is something, or wake() or stop() was called, or the while is over.
  bool take(std::vector<Message>& out, Park park) {
    std::unique_lock lock(mutex_);
    const auto is_ready = [&] { return stopped_ || woken_ || !messages_.empty(); };
    if (park == Park::kUntilThereIsWork) changed_.wait(lock, is_ready);
    if (park == Park::kForAWhile) changed_.wait_for(lock, kAWhile, is_ready);
    woken_ = false;
    messages_.swap(out);
    return stopped_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Message> messages_;
  bool stopped_ = false;
  bool woken_ = false;
};

}  // namespace espalier
