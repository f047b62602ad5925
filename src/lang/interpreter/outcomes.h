// How the operations of a prompt state end: a span for the recorder, or a failure of the stream and
// of every variable that waits for it. Internal to the room.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lang/interpreter/operation.h"
#include "lang/interpreter/operation_queue.h"
#include "lang/interpreter/pending_message.h"
#include "lang/interpreter/session.h"

namespace espalier::lang {

// Not thread-safe: belongs to the thread that has the stream's turn. The session, the queue and the
// pending message outlive it.
class Outcomes {
 public:
  Outcomes(const Session& session, int32_t stream, int32_t parent_stream, OperationQueue& queue,
           PendingMessage& message)
      : session_(session),
        stream_(stream),
        parent_stream_(parent_stream),
        queue_(queue),
        message_(message) {}

  void begin_operation();  // takes the time, for its span
  // The operation has ended. `meta`: of its call.
  void record(const Operation& op, const MetaInfo* meta = nullptr, const Status& status = {});
  // The operation has failed, and the stream with it, at `where` or else at the operation's line.
  Step refuse(Operation& op, Status why, Location where = {});
  // The stream has failed: fails what the operation, open scopes and the pending message would
  // fill.
  void skip(Operation& op);

  // var_scopes: where they begin in the text, and the variable that their end fills.
  void open_scope(const std::string& name, size_t begin, VariablePtr variable);
  std::optional<std::pair<size_t, VariablePtr>> close_scope(std::string_view name);

 private:
  const Session& session_;
  const int32_t stream_, parent_stream_;
  OperationQueue& queue_;
  PendingMessage& message_;
  std::map<std::string, std::pair<size_t, VariablePtr>, std::less<>> scopes_;
  TimePoint begin_{};
};

}  // namespace espalier::lang
