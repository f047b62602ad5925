// A prompt state that runs: what programs and readers call, from any thread. Its primitives are
// done in order by a StepRunner (step_runner.h); this class declares what they will fill, queues
// them, and waits for results.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lang/interpreter/monitor.h"
#include "lang/interpreter/operation_queue.h"
#include "lang/interpreter/prompt_text.h"
#include "lang/interpreter/session.h"
#include "lang/interpreter/step_runner.h"
#include "lang/interpreter/stream.h"
#include "lang/interpreter/variable_table.h"

namespace espalier::lang {

// Thread-safe. Handles, values and queued references keep a stream alive, a branch keeps its parent
// alive until the fork, calls keep nothing alive. The destructor cancels the call in flight.
class LiveStream final : public PromptStream {
 public:
  static std::shared_ptr<LiveStream> root(RunOptions options);
  ~LiveStream() override;

  void append(std::vector<Node> nodes) override;
  Status check_variable(std::string_view name) const override;
  std::vector<std::string> variable_names() const override;
  void set_variable(std::string name, Value value, Location where) override;
  Read read(const std::string& name) override;
  bool ready(const std::string& name) const override;
  Result<MetaInfo> meta(const std::string& name) override;
  Result<std::string> text() override;
  Result<std::vector<Message>> messages() override;
  std::shared_ptr<TextStream::Source> open_text(const std::string& name) override;
  std::vector<std::shared_ptr<PromptStream>> fork(int n, Location where) override;
  Status join(std::vector<std::shared_ptr<PromptStream>> branches, JoinMode mode,
              Location where) override;
  Status sync() override;
  Status error() const override;
  Location error_place() const override;
  void fail_with(Status why, Location where) override;
  void cancel() override;

  // While a program writes to it on a thread of its own (launch), other threads wait for names that
  // are not declared yet, and the text has not ended.
  void set_writer(std::thread::id writer);  // a default id: there is none any more

  // Calls back, on some thread, once nothing is queued or suspended; at once when so already.
  void when_idle(std::function<void()> callback);
  bool is_idle() const;
  // Waits for text beyond `offset`; false at the end (idle, without a writer).
  Result<bool> read_text(size_t offset, std::string& out);

  // For the parent, which has come to the fork: what the branch goes on from. Called once.
  void activate(WrittenPrompt written);
  const PromptText& written() const { return text_; }

 private:
  LiveStream(std::shared_ptr<Session> session, std::shared_ptr<LiveStream> parent, bool cancelled);

  bool enqueue(Operation op, const Monitor::Lock& lock);  // true: the caller drains
  ReferenceOp resolve(const Value& value);
  // Null when there is none, and no writer on another thread may still declare it.
  VariablePtr find(std::string_view name, Monitor::Lock& lock) const;
  Status take_branches(const std::vector<std::shared_ptr<PromptStream>>& branches,
                       std::vector<std::shared_ptr<LiveStream>>& live);

  const std::shared_ptr<Session> session_;  // shared by the streams of one run
  const int32_t index_;
  mutable Monitor monitor_;             // guards the rest
  std::shared_ptr<LiveStream> parent_;  // until it has come to the fork, which it must reach
  VariableTable variables_;
  OperationQueue queue_;
  PromptText text_;
  StepRunner runner_;
  std::thread::id writer_;                           // none: no program has a thread of its own
  std::vector<std::weak_ptr<LiveStream>> branches_;  // to cancel with this
  bool joined_ = false;
};

}  // namespace espalier::lang
