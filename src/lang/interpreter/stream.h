// A prompt state from inside: what State, Forks and Value call. Two kinds: one that runs
// (interpreter/live_stream.h) and one that writes a graph down (graph/tracer.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lang/backend.h"
#include "lang/expr.h"
#include "lang/state.h"
#include "lang/value.h"

namespace espalier::lang {

// Thread-safe.
class PromptStream : public std::enable_shared_from_this<PromptStream> {
 public:
  virtual ~PromptStream() = default;

  virtual void append(std::vector<Node> nodes) = 0;

  // Ok when the stream has, or will have, a variable of that name.
  virtual Status check_variable(std::string_view name) const = 0;
  virtual std::vector<std::string> variable_names() const = 0;
  virtual void set_variable(std::string name, Value value, Location where) = 0;
  // What a variable holds, and the line that failed to fill it.
  struct Read {
    Result<Content> content;
    Location where;
  };
  virtual Read read(const std::string& name) = 0;  // waits
  virtual bool ready(const std::string& name) const = 0;
  virtual Result<MetaInfo> meta(const std::string& name) = 0;  // waits

  virtual Result<std::string> text() = 0;  // waits
  virtual Result<std::vector<Message>> messages() = 0;
  virtual std::shared_ptr<TextStream::Source> open_text(const std::string& name) = 0;  // "": all

  virtual std::vector<std::shared_ptr<PromptStream>> fork(int n, Location where) = 0;
  // kFailedPrecondition when a branch was joined before.
  virtual Status join(std::vector<std::shared_ptr<PromptStream>> branches, JoinMode mode,
                      Location where) = 0;

  virtual Status sync() = 0;
  virtual Status error() const = 0;
  virtual Location error_place() const = 0;
  // Fails the stream from outside (a program's own mistake), as if a primitive at `where` had.
  virtual void fail_with(Status why, Location where) = 0;
  virtual void cancel() = 0;
};

}  // namespace espalier::lang
