// A prompt state that runs. Its primitives are done in order, each after the one before it: a
// strand without a thread of its own. Text is taken on the thread that appends it; a call hands the
// stream over to the back end, and the back end's pool goes on with it when the call has ended.
//
//   append() --> queue --> drain(): take the first, do it, again
//                             |  a call, or a value that is not there yet
//                             v
//                          suspended --- on_done / when_ready, on the pool --> resume() --> drain()
//
// Invariant: `busy_` is true from the first primitive until the queue is empty and nothing is
// awaited; who sets it owns the stream's text and messages until then (readers take the lock).
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "lang/interpreter/speculation.h"
#include "lang/interpreter/stream.h"
#include "lang/interpreter/variable.h"
#include "lang/program.h"

namespace espalier::lang {

// What the prompt states of one run share.
struct Session {
  explicit Session(RunOptions o);
  const RunOptions options;  // the back end filled in; null where there is none
  const std::string id;      // of this run; call ids begin with it
  std::atomic<int32_t> num_streams{0};
  std::atomic<int64_t> num_calls{0};
};

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

  // While a program writes to it on a thread of its own (launch), names that are not known yet may
  // still come and the text has not ended; for other threads.
  void hold(std::thread::id writer);
  void release();

  // Calls back, on some thread, once nothing is queued or awaited; at once when so already.
  void when_idle(std::function<void()> callback);
  // Waits for text beyond `offset`; false at the end (nothing is queued or awaited).
  Result<bool> read_text(size_t offset, std::string& out);

  struct Awaited;  // one call's mailbox; live_calls.cc

 private:
  // What was written so far, as a branch inherits it.
  struct Written {
    std::string text;
    std::vector<Message> messages;
    std::optional<Message> open;
    std::vector<Media> media;
    size_t cached_chars = 0;                     // of `text`, known to be in the back end's cache
    std::shared_ptr<const JoinedPrefix> joined;  // what `text` begins with; see Prompt
  };
  using Variables = std::map<std::string, VariablePtr, std::less<>>;

  // Operations that are no primitive of an expression.
  struct ForkOp {
    std::vector<std::weak_ptr<LiveStream>> branches;  // those that are still wanted
  };
  struct SetOp {
    std::shared_ptr<PromptStream> keep;
    VariablePtr source;
  };
  struct GatherOp {
    std::vector<std::shared_ptr<LiveStream>> branches;  // kept alive until gathered
    std::vector<std::pair<VariablePtr, std::vector<VariablePtr>>> lists;
    size_t next_list = 0, next_item = 0;
  };
  struct ConcatOp {
    std::vector<std::shared_ptr<LiveStream>> branches;
    size_t next = 0;
  };
  // What a branch wrote.
  struct BranchText {
    std::string text;
    std::vector<Message> messages;
  };
  struct ReferenceOp {
    std::shared_ptr<PromptStream> keep;  // null: this stream's own
    VariablePtr source;
  };
  struct Operation {
    std::variant<Node, ForkOp, SetOp, GatherOp, ConcatOp, ReferenceOp> what;
    VariablePtr target;     // of a gen, select or scope
    VariablePtr reasoning;  // of separate_reasoning
    // Of a call that was sent:
    std::shared_ptr<const Gen> gen;  // null: a select, or a whole message
    ChoicesMethod method = ChoicesMethod::kTokenLengthNormalized;
    bool looks_ahead = false;   // it runs past its stop
    bool sent_plainly = false;  // it must not
    Location where;
    TimePoint submitted{};
  };
  enum class Step { kDone, kSuspended };

  explicit LiveStream(std::shared_ptr<Session> session);

  // ---- appending (any thread) ----
  ReferenceOp resolve(const Value& value);
  Operation prepare(Node node);  // under the lock: declares variables
  VariablePtr declare(const std::string& name);
  bool enqueue(Operation op);  // under the lock; true: the caller drains
  Status unreadable(std::string_view name) const;
  // Null when there is none, and while it is held none came.
  VariablePtr find(std::string_view name, std::unique_lock<std::mutex>& lock) const;

  // ---- the strand ----
  void drain();
  void resume(uint64_t turn);  // after what `turn` awaited
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
  Step step(Operation& op, ForkOp& fork);
  Step step(Operation& op, SetOp& set);
  Step step(Operation& op, GatherOp& gather);
  Step step(Operation& op, ConcatOp& concat);
  Step step(Operation& op, ReferenceOp& reference);
  std::vector<BranchText> branch_texts(const ConcatOp& concat) const;
  bool joins_cached(const ConcatOp& concat, const std::vector<BranchText>& texts) const;
  void append_branches(const std::vector<BranchText>& texts);
  void skip(Operation& op);  // the stream has failed: so do the operation's variables
  // Suspends until the variable is there, then does `op` again.
  Step await(Operation& op, const VariablePtr& variable);
  Step await_idle(Operation& op, const std::shared_ptr<LiveStream>& stream);
  uint64_t suspend(Operation& op);
  std::function<void()> resumption(uint64_t turn);
  Step refuse(Operation& op, Status why, Location where = {});
  void write(std::string_view text);
  void record(const Operation& op, const MetaInfo* meta = nullptr, const Status& status = {});
  void activate(Written written);
  void activate_failed(const Status& why, Location where);
  void run_later(std::function<void()> task);

  // ---- calls; live_calls.cc ----
  bool speculates() const;
  std::optional<Role> previous_role() const;
  bool defers() const;  // gens wait for the end of their message
  Prompt prompt() const;
  GenOptions complete(const Gen& gen) const;
  std::shared_ptr<Awaited> begin_call(Operation& op);
  void sent_call(uint64_t turn);
  Step send_gen(Operation& op, const Gen& gen);
  Step send_message(Operation& op);  // one call for the gens that were deferred
  void finish_call(uint64_t turn, Result<Completion> result);
  Step send_join(Operation& op, const std::vector<BranchText>& texts);
  void finish_join(uint64_t turn, Result<std::shared_ptr<const JoinedPrefix>> result);
  void finish_score(uint64_t turn, Result<std::vector<ChoiceScore>> result);
  void grow(uint64_t turn, std::string_view delta, std::optional<Progress> progress);
  Step take_completion(Operation& op, const Gen& gen, Completion completion);
  Step take_message(Operation& op, Completion completion);
  bool take_ahead(Operation& op, const Gen& gen);
  void count_saved();
  void fail_op(Operation& op, Status why, Location where = {});

  const std::shared_ptr<Session> session_;
  const int32_t index_;
  int32_t parent_index_ = -1;
  std::shared_ptr<LiveStream> parent_;  // until it has come to the fork: it must go on until then

  mutable std::mutex mutex_;  // everything below
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  bool busy_ = false;
  std::string call_id_;  // of the call in flight
  uint64_t turn_ = 0;    // what is awaited; older answers are for nobody
  Variables variables_;
  Variables inherited_;  // at the fork
  // By the program, as it appends: what cannot be read before it is closed.
  std::vector<std::string> open_scopes_, open_role_gens_;
  bool is_role_open_ = false;
  std::thread::id writer_;  // none: not held
  std::vector<std::weak_ptr<LiveStream>> branches_;
  std::vector<std::function<void()>> idle_callbacks_;
  Status error_;
  Location error_place_;
  bool cancelled_ = false;
  bool joined_ = false;

  Written written_;
  size_t fork_chars_ = 0, fork_messages_ = 0;  // where this stream's own part begins
  std::map<std::string, std::pair<size_t, VariablePtr>, std::less<>> scopes_;  // begin in the text
  Operation current_;                                                          // suspended
  bool awaits_value_ = false;
  size_t gen_begin_ = 0;  // of the text that the call in flight writes
  TimePoint begin_{};     // of the operation at hand
  Lookahead ahead_;
  // Of a chat API's message, while it speculates: what it is made of, and its gens.
  std::vector<TemplateItem> deferred_;
  std::vector<std::pair<Operation, std::shared_ptr<const Gen>>> deferred_gens_;
  int message_tries_ = 0;
  // The last call's own count, by which spared input is estimated.
  int64_t last_prompt_tokens_ = 0;
  size_t last_prompt_chars_ = 0;
};

}  // namespace espalier::lang
