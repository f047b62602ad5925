// What each operation does to a prompt state. A strand without a thread of its own: text is taken
// on the thread that appends it, a call hands the stream over to the back end, and the back end's
// pool continues it when the call has ended. Internal to the room.
//
//   append() --> queue --> drain(): take the first, do it, again
//                             |  a call, or a value that is not there yet
//                             v
//                          suspended --- the answer, on the pool --> resume() --> drain()
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lang/interpreter/calls.h"
#include "lang/interpreter/gen_runner.h"
#include "lang/interpreter/operation.h"
#include "lang/interpreter/operation_queue.h"
#include "lang/interpreter/outcomes.h"
#include "lang/interpreter/pending_message.h"
#include "lang/interpreter/prompt_text.h"
#include "lang/interpreter/session.h"

namespace espalier::lang {

// REQUIRES, for each method: the caller has the queue's turn (operation_queue.h), so never two run
// at once. The references outlive it; `owner` is the stream that it is a part of.
class StepRunner {
 public:
  StepRunner(PromptStream& owner, Session& session, int32_t stream, int32_t parent_stream,
             OperationQueue& queue, PromptText& text);

  // Does operations until none is left or one is suspended.
  void drain();
  // For an operation that was taken out of the queue while it waited: the stream has failed.
  void abandon(Operation& op);

 private:
  void resume(uint64_t turn);
  std::function<void()> resumption(uint64_t turn);
  void run_later(std::function<void()> task);
  // Suspends until the variable is filled, or the stream idle, then does `op` again.
  Step await(Operation& op, const VariablePtr& variable);
  Step await_idle(Operation& op, const std::shared_ptr<LiveStream>& stream);

  Step step(Operation& op);
  Step step(Operation& op, const Node& node);
  Step step(Operation& op, const Text& text);
  Step step(Operation& op, const std::shared_ptr<const Gen>& gen);
  Step step(Operation& op, const Select& select);
  Step step(Operation& op, const Media& media);
  Step step(Operation& op, const RoleBegin& role);
  Step step(Operation& op, const RoleEnd& role);
  Step step(Operation& op, const ScopeBegin& scope);
  Step step(Operation& op, const ScopeEnd& scope);
  Step step(Operation& op, const Reasoning& reasoning);
  Step step(Operation& op, const Reference& reference);
  Step step(Operation& op, ForkOp& fork);
  Step step(Operation& op, SetOp& set);
  Step step(Operation& op, GatherOp& gather);
  Step step(Operation& op, ConcatOp& concat);
  Step step(Operation& op, ReferenceOp& reference);

  Step close_message(Operation& op, Role role);
  bool can_prefetch(const ForkOp& fork) const;
  bool can_join(const ConcatOp& concat, const std::vector<BranchText>& texts) const;
  Step send_join(Operation& op, const std::vector<BranchText>& texts);

  PromptStream& owner_;
  Session& session_;
  OperationQueue& queue_;
  PromptText& text_;
  PendingMessage message_;
  Outcomes outcomes_;
  Calls calls_;
  GenRunner gens_;
};

}  // namespace espalier::lang
