// The operations of a prompt state, which run one after another. Plain data: the operation queue
// that holds an operation owns it, and one thread at a time runs it. Internal to the room.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "lang/interpreter/stream.h"
#include "lang/interpreter/variable.h"

namespace espalier::lang {

class LiveStream;

// The text that a branch appended after its fork.
struct BranchText {
  std::string text;
  std::vector<Message> messages;
};

// The operations below are not primitives of an expression.
struct ForkOp {
  std::vector<std::weak_ptr<LiveStream>> branches;  // expired: the program dropped the branch
};
struct SetOp {
  std::shared_ptr<PromptStream> keep;  // the source's stream; null: this one
  VariablePtr source;
};
struct GatherOp {
  std::vector<std::shared_ptr<LiveStream>> branches;                    // kept alive until gathered
  std::vector<std::pair<VariablePtr, std::vector<VariablePtr>>> lists;  // target, sources
  size_t next_list = 0, next_item = 0;
};
struct ConcatOp {
  std::vector<std::shared_ptr<LiveStream>> branches;
  size_t next = 0;
};
struct ReferenceOp {
  std::shared_ptr<PromptStream> keep;  // the source's stream; null: this one
  VariablePtr source;
};

struct Operation {
  std::variant<Node, ForkOp, SetOp, GatherOp, ConcatOp, ReferenceOp> what;
  VariablePtr target;     // of a gen, select or scope
  VariablePtr reasoning;  // of separate_reasoning
  // Of a call that was sent:
  std::shared_ptr<const Gen> gen;  // shared with the expression; null: a select, or a whole message
  bool looks_ahead = false;        // the call runs past its stop
  bool sent_plainly = false;       // the call was repeated with its own stops and length
  Location where;
  TimePoint submitted{};
};

enum class Step { kDone, kSuspended };

// Fails what the operation would have filled: its variables, the lists of a gather, and a fork's
// branches.
void fail_outputs(const Operation& op, const Status& why, Location where);

}  // namespace espalier::lang
