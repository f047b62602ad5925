#include "lang/interpreter/calls.h"

#include <mutex>
#include <optional>
#include <utility>

#include "lang/pool.h"

namespace espalier::lang {

// One gen's events, from the back end's threads to the stream on the pool: many pieces of text with
// one task, in order. Shared by the callbacks of the call and the posted task.
class Calls::Mailbox : public std::enable_shared_from_this<Calls::Mailbox> {
 public:
  Mailbox(Calls& calls, uint64_t turn, Continuation<Completion> then)
      : stream_(calls.owner_.weak_from_this()),
        calls_(calls),
        turn_(turn),
        then_(std::move(then)),
        pool_(calls.session_.backend()->pool()) {}

  void add(std::string_view delta) {
    std::lock_guard lock(mutex_);
    text_ += delta;
    if (next_progress_)
      progress_ = progress_ ? merged(*progress_, *next_progress_) : std::move(*next_progress_);
    next_progress_.reset();
    post();
  }
  void add_progress(Progress progress) {
    std::lock_guard lock(mutex_);
    next_progress_ = std::move(progress);
  }
  void finish(Result<Completion> answer) {
    std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
    post();
  }

 private:
  void post() {  // under the lock
    if (!std::exchange(is_posted_, true)) post_task();
  }
  void post_task() {
    pool_.post([self = shared_from_this()] { self->deliver(); });
  }
  void deliver() {
    std::string delta;
    std::optional<Progress> progress;
    std::optional<Result<Completion>> answer;
    {
      std::lock_guard lock(mutex_);
      delta.swap(text_);
      progress.swap(progress_);
      answer.swap(answer_);
    }
    const auto stream = stream_.lock();
    if (stream == nullptr) return;
    if (!delta.empty()) calls_.grow(turn_, delta, std::move(progress));
    if (answer) calls_.finish(turn_, std::move(*answer), then_);
    std::lock_guard lock(mutex_);
    is_posted_ = !text_.empty() || answer_;
    if (is_posted_) post_task();
  }

  const std::weak_ptr<PromptStream> stream_;
  Calls& calls_;  // a part of the stream: used while that is locked
  const uint64_t turn_;
  const Continuation<Completion> then_;
  Pool& pool_;  // outlives the back end's calls

  std::mutex mutex_;  // guards the rest
  std::string text_;
  std::optional<Progress> next_progress_;  // of the text that comes next
  std::optional<Progress> progress_;       // of text_
  std::optional<Result<Completion>> answer_;
  bool is_posted_ = false;  // a task delivers, or will: never two at once
};

Prompt Calls::prompt() const {
  const WrittenPrompt& written = text_.written();
  Prompt p;
  p.text = written.text;
  p.open = written.open;
  p.media = written.media;
  p.joined = written.joined;
  if (session_.backend()->is_chat() || !p.media.empty()) p.messages = written.messages;
  return p;
}

// The turn of the call; 0 when the stream has failed (the program was cancelled), and `op` with it.
template <typename Call>
uint64_t Calls::begin(Operation& op, Call& call) {
  call.id = session_.make_call_id();
  begin_chars_ = text_.written().text.size();
  const uint64_t turn = queue_.begin_call(op, call.id);
  if (turn == 0) {
    outcomes_.skip(op);
  } else {
    call.prompt = prompt();
  }
  return turn;
}

// A cancel between begin() and the back end's knowledge of the call takes effect here.
void Calls::after_send(uint64_t turn) {
  const std::string id = queue_.cancelled_call(turn);
  if (!id.empty()) session_.backend()->cancel(id);
}

// The answer may come, and the stream go on and end, before the back end's method returns, so each
// call below keeps its stream alive.
Step Calls::generate(Operation& op, GenerateCall call, Continuation<Completion> then) {
  const auto self = owner_.shared_from_this();
  const uint64_t turn = begin(op, call);
  if (turn == 0) return Step::kDone;
  const auto mailbox = std::make_shared<Mailbox>(*this, turn, std::move(then));
  CallEvents events{.on_done = [mailbox](Result<Completion> r) { mailbox->finish(std::move(r)); }};
  if (call.stream) {
    events.on_text = [mailbox](std::string_view delta) { mailbox->add(delta); };
    events.on_progress = [mailbox](Progress p) { mailbox->add_progress(std::move(p)); };
  }
  session_.backend()->generate(std::move(call), std::move(events));
  after_send(turn);
  return Step::kSuspended;
}

Step Calls::score(Operation& op, ScoreCall call, Continuation<std::vector<ChoiceScore>> then) {
  const auto self = owner_.shared_from_this();
  const uint64_t turn = begin(op, call);
  if (turn == 0) return Step::kDone;
  session_.backend()->score(std::move(call), on_pool(turn, std::move(then)));
  after_send(turn);
  return Step::kSuspended;
}

Step Calls::join(Operation& op, JoinCall call,
                 Continuation<std::shared_ptr<const JoinedPrefix>> then) {
  const auto self = owner_.shared_from_this();
  const uint64_t turn = begin(op, call);
  if (turn == 0) return Step::kDone;
  session_.backend()->join(std::move(call), on_pool(turn, std::move(then)));
  after_send(turn);
  return Step::kSuspended;
}

template <typename T>
std::function<void(Result<T>)> Calls::on_pool(uint64_t turn, Continuation<T> then) {
  return [this, weak = owner_.weak_from_this(), turn, then = std::move(then),
          pool = &session_.backend()->pool()](Result<T> answer) {
    pool->post([this, weak, turn, then, answer = std::move(answer)]() mutable {
      if (const auto stream = weak.lock()) finish(turn, std::move(answer), then);
    });
  };
}

void Calls::grow(uint64_t turn, std::string_view delta, std::optional<Progress> progress) {
  VariablePtr target;
  if (!queue_.find_target(turn, target)) return;
  text_.append(delta);
  if (target != nullptr) target->append(delta, std::move(progress));
}

template <typename T>
void Calls::finish(uint64_t turn, Result<T> answer, const Continuation<T>& then) {
  std::optional<OperationQueue::Next> next = queue_.end_call(turn);
  if (!next) return;
  text_.rewind(begin_chars_);  // what was streamed is part of the whole answer
  if (next->failed) {
    outcomes_.skip(next->op);
  } else if (then(next->op, std::move(answer)) == Step::kSuspended) {
    return;
  }
  drain_();
}

}  // namespace espalier::lang
