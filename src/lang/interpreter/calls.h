// The calls of one prompt state to its back end: a call suspends the stream, and its answer, which
// comes on a thread of the back end, continues it on the back end's pool. Internal to the room.
//
// Ownership: a call keeps neither the stream nor the back end alive, so a stream without readers
// ends at once (its destructor cancels the call) and no back end is destroyed on its own thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lang/interpreter/operation_queue.h"
#include "lang/interpreter/outcomes.h"
#include "lang/interpreter/prompt_text.h"
#include "lang/interpreter/session.h"

namespace espalier::lang {

// The three calls belong to the thread that has the stream's turn; at most one is in flight. All
// references outlive it; `owner` is the stream that it is a part of.
class Calls {
 public:
  // Takes the answer, or why there is none, on a pool's thread that has the stream's turn.
  template <typename T>
  using Continuation = std::function<Step(Operation& op, Result<T> answer)>;

  // `drain` goes on with the stream's next operations.
  Calls(PromptStream& owner, Session& session, OperationQueue& queue, PromptText& text,
        Outcomes& outcomes, std::function<void()> drain)
      : owner_(owner),
        session_(session),
        queue_(queue),
        text_(text),
        outcomes_(outcomes),
        drain_(std::move(drain)) {}

  // Each fills in the call's id and prompt and takes `op` until the answer is there. They return
  // kDone where the stream has failed meanwhile, and `op` with it. REQUIRES a back end.
  Step generate(Operation& op, GenerateCall call, Continuation<Completion> then);
  Step score(Operation& op, ScoreCall call, Continuation<std::vector<ChoiceScore>> then);
  Step join(Operation& op, JoinCall call, Continuation<std::shared_ptr<const JoinedPrefix>> then);

  Prompt prompt() const;  // as it is now

 private:
  class Mailbox;
  template <typename Call>
  uint64_t begin(Operation& op, Call& call);
  void after_send(uint64_t turn);
  void grow(uint64_t turn, std::string_view delta, std::optional<Progress> progress);
  template <typename T>
  void finish(uint64_t turn, Result<T> answer, const Continuation<T>& then);
  template <typename T>
  std::function<void(Result<T>)> on_pool(uint64_t turn, Continuation<T> then);

  PromptStream& owner_;
  Session& session_;
  OperationQueue& queue_;
  PromptText& text_;
  Outcomes& outcomes_;
  const std::function<void()> drain_;
  size_t begin_chars_ = 0;  // of the text where the call in flight began to stream
};

}  // namespace espalier::lang
