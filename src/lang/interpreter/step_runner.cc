#include "lang/interpreter/step_runner.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "lang/interpreter/live_stream.h"
#include "lang/pool.h"

namespace espalier::lang {
namespace {

constexpr size_t kHintCharsMin = 64;  // a shorter prefix is not worth a request of its own

std::vector<BranchText> texts_of(const ConcatOp& concat) {
  std::vector<BranchText> texts;
  for (const auto& branch : concat.branches) texts.push_back(branch->written().since_fork());
  return texts;
}

}  // namespace

StepRunner::StepRunner(PromptStream& owner, Session& session, int32_t stream, int32_t parent_stream,
                       OperationQueue& queue, PromptText& text)
    : owner_(owner),
      session_(session),
      queue_(queue),
      text_(text),
      outcomes_(session, stream, parent_stream, queue, message_),
      calls_(owner, session, queue, text, outcomes_, [this] { drain(); }),
      gens_(session, text, outcomes_, calls_, message_) {}

// ---- the strand ----

void StepRunner::drain() {
  while (std::optional<OperationQueue::Next> next = queue_.take()) {
    if (next->failed) {
      outcomes_.skip(next->op);
      continue;
    }
    outcomes_.begin_operation();
    if (step(next->op) == Step::kSuspended) return;
  }
}

void StepRunner::abandon(Operation& op) {
  outcomes_.skip(op);
  drain();
}

void StepRunner::resume(uint64_t turn) {
  std::optional<OperationQueue::Next> next = queue_.resume(turn);
  if (!next) return;
  if (next->failed) {
    outcomes_.skip(next->op);
  } else if (step(next->op) == Step::kSuspended) {
    return;
  }
  drain();
}

void StepRunner::run_later(std::function<void()> task) {
  if (session_.backend() != nullptr) {
    session_.backend()->pool().post(std::move(task));
  } else {
    task();
  }
}

// Keeps the stream alive only while it runs: a value that nobody reads any more is not awaited.
std::function<void()> StepRunner::resumption(uint64_t turn) {
  return [this, weak = owner_.weak_from_this(), turn] {
    const auto alive = weak.lock();
    if (alive == nullptr) return;
    run_later([this, weak, turn] {
      if (const auto stream = weak.lock()) resume(turn);
    });
  };
}

Step StepRunner::await(Operation& op, const VariablePtr& variable) {
  const VariablePtr awaited = variable;  // `op`, which may own it, is moved
  const uint64_t turn = queue_.suspend(std::move(op));
  awaited->when_ready(resumption(turn));
  return Step::kSuspended;
}

Step StepRunner::await_idle(Operation& op, const std::shared_ptr<LiveStream>& stream) {
  const std::shared_ptr<LiveStream> awaited = stream;
  const uint64_t turn = queue_.suspend(std::move(op));
  awaited->when_idle(resumption(turn));
  return Step::kSuspended;
}

Step StepRunner::step(Operation& op) {
  return std::visit(
      [&](auto& what) -> Step {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(what)>, Node>) {
          const Node node = what;  // a step that suspends moves the operation
          return step(op, node);
        } else {
          return step(op, what);
        }
      },
      op.what);
}

Step StepRunner::step(Operation& op, const Node& node) {
  return std::visit([&](const auto& primitive) { return step(op, primitive); }, node.what);
}

// ---- text, messages and scopes ----

Step StepRunner::step(Operation& op, const Text& text) {
  if (session_.defers_messages() && text_.written().open) {
    message_.add_text(text.text);
    return Step::kDone;
  }
  gens_.expect(text.text);
  text_.append(text.text);
  outcomes_.record(op);
  return Step::kDone;
}

Step StepRunner::step(Operation& op, const Media& media) {
  text_.append(media);
  gens_.drop_ahead();
  outcomes_.record(op);
  return Step::kDone;
}

Step StepRunner::step(Operation& op, const RoleBegin& begin) {
  if (const auto& open = text_.written().open)
    return outcomes_.refuse(op, error(StatusCode::kFailedPrecondition,
                                      "a message of the {} begins inside of the {}'s: end it first",
                                      role_name(begin.role), role_name(open->role)));
  if (session_.backend() != nullptr) {
    const RoleFrame frame = session_.backend()->role_frame(begin.role, text_.previous_role());
    gens_.drop_ahead();
    text_.append(frame.begin);
  }
  text_.begin_message(begin.role);
  return Step::kDone;
}

Step StepRunner::step(Operation& op, const RoleEnd& end) {
  const auto& open = text_.written().open;
  if (!open || open->role != end.role)
    return outcomes_.refuse(
        op, error(StatusCode::kFailedPrecondition,
                  "the end of a message of the {} that was not begun", role_name(end.role)));
  if (message_.has_gens())
    return gens_.send_message(
        op, [this, role = end.role](Operation& sent) { return close_message(sent, role); });
  for (const TemplateItem& item : message_.items()) text_.append(item.text);
  message_.clear();
  return close_message(op, end.role);
}

Step StepRunner::close_message(Operation& op, Role role) {
  std::string frame_end;
  if (session_.backend() != nullptr)
    frame_end = session_.backend()->role_frame(role, text_.previous_role()).end;
  text_.end_message();
  text_.append(frame_end);
  gens_.drop_ahead();
  outcomes_.record(op);
  return Step::kDone;
}

Step StepRunner::step(Operation& op, const ScopeBegin& scope) {
  if (session_.defers_messages() && text_.written().open)
    return outcomes_.refuse(
        op, error(StatusCode::kUnimplemented,
                  "a var_scope inside of a message that API speculation writes whole: put it "
                  "around the message"));
  outcomes_.open_scope(scope.name, text_.written().text.size(), op.target);
  return Step::kDone;
}

Step StepRunner::step(Operation& op, const ScopeEnd& scope) {
  const auto closed = outcomes_.close_scope(scope.name);
  if (!closed)
    return outcomes_.refuse(op, error(StatusCode::kFailedPrecondition,
                                      "the var_scope \"{}\" ends and was not begun", scope.name));
  const auto& [begin, variable] = *closed;
  variable->fill({.text = text_.written().text.substr(begin)});
  outcomes_.record(op);
  return Step::kDone;
}

// ---- calls ----

Step StepRunner::step(Operation& op, const std::shared_ptr<const Gen>& gen) {
  return gens_.gen(op, gen);
}
Step StepRunner::step(Operation& op, const Reasoning& reasoning) {
  return gens_.reasoning(op, reasoning);
}
Step StepRunner::step(Operation& op, const Select& select) { return gens_.select(op, select); }

// ---- values of this stream and of others ----

// Appending resolves each reference to a ReferenceOp, so none is left in the queue.
Step StepRunner::step(Operation& op, const Reference&) {
  return outcomes_.refuse(op, error(StatusCode::kInternal, "a reference that was not resolved"));
}

Step StepRunner::step(Operation& op, ReferenceOp& reference) {
  if (reference.source == nullptr)
    return outcomes_.refuse(op, error(StatusCode::kFailedPrecondition,
                                      "a value of a traced program cannot go into one that runs"));
  if (!reference.source->ready()) return await(op, reference.source);
  const PromptStream::Read read = reference.source->read();
  if (!read.content) return outcomes_.refuse(op, read.content.error(), read.where);
  if (read.content->is_list)
    return outcomes_.refuse(
        op, invalid_argument("the value is a list of {} texts: append one of its items",
                             read.content->items.size()));
  return step(op, Text{read.content->text});
}

Step StepRunner::step(Operation& op, SetOp& set) {
  if (set.source == nullptr)
    return outcomes_.refuse(op, error(StatusCode::kNotFound, "the value to set is of no variable"));
  if (!set.source->ready()) return await(op, set.source);
  const PromptStream::Read read = set.source->read();
  if (!read.content) return outcomes_.refuse(op, read.content.error(), read.where);
  op.target->fill(*read.content);
  outcomes_.record(op);
  return Step::kDone;
}

// A branch that failed fails the lists that it is part of, not the parent.
Step StepRunner::step(Operation& op, GatherOp& gather) {
  for (; gather.next_list < gather.lists.size(); ++gather.next_list, gather.next_item = 0) {
    const auto& sources = gather.lists[gather.next_list].second;
    for (; gather.next_item < sources.size(); ++gather.next_item)
      if (!sources[gather.next_item]->ready()) return await(op, sources[gather.next_item]);
  }
  for (const auto& [target, sources] : gather.lists) {
    Content list{.is_list = true};
    Status failed;
    Location where;
    for (const VariablePtr& source : sources) {
      const PromptStream::Read read = source->read();
      if (read.content) {
        list.items.push_back(read.content->text);
      } else if (failed.ok()) {
        failed = read.content.error();
        where = read.where;
      }
    }
    if (failed.ok()) {
      target->fill(std::move(list));
    } else {
      target->fail(failed, where);
    }
  }
  outcomes_.record(op);
  return Step::kDone;
}

// ---- forks and joins ----

Step StepRunner::step(Operation& op, ConcatOp& concat) {
  for (; concat.next < concat.branches.size(); ++concat.next) {
    const std::shared_ptr<LiveStream>& branch = concat.branches[concat.next];
    if (!branch->is_idle()) return await_idle(op, branch);
    if (Status why = branch->error(); !why.ok())
      return outcomes_.refuse(op, std::move(why), branch->error_place());
  }
  const std::vector<BranchText> texts = texts_of(concat);
  gens_.drop_ahead();
  if (can_join(concat, texts)) return send_join(op, texts);
  for (const BranchText& branch : texts) text_.append(branch);
  outcomes_.record(op);
  return Step::kDone;
}

// The keys and values of branches stand for the joined text when each of them was computed behind
// all that stands before the first.
bool StepRunner::can_join(const ConcatOp& concat, const std::vector<BranchText>& texts) const {
  const WrittenPrompt& written = text_.written();
  const Backend* const backend = session_.backend();
  if (!session_.options().parallel_encoding || backend == nullptr || !backend->can_join())
    return false;
  if (written.text.empty() || !written.media.empty()) return false;
  const auto num_written =
      std::ranges::count_if(texts, [](const BranchText& t) { return !t.text.empty(); });
  if (num_written < 2) return false;
  return std::ranges::all_of(concat.branches, [&](const std::shared_ptr<LiveStream>& branch) {
    return branch->written().continues(written);
  });
}

// The texts are appended when the back end has answered; where it could not join the cached keys
// and values, the joined text is computed anew.
Step StepRunner::send_join(Operation& op, const std::vector<BranchText>& texts) {
  JoinCall call;
  for (const BranchText& branch : texts)
    if (!branch.text.empty()) call.branches.push_back(branch.text);
  return calls_.join(op, std::move(call),
                     [this](Operation& sent, Result<std::shared_ptr<const JoinedPrefix>> joined) {
                       for (const BranchText& branch : texts_of(std::get<ConcatOp>(sent.what)))
                         text_.append(branch);
                       if (joined) text_.set_joined(std::move(*joined));
                       outcomes_.record(sent);
                       return Step::kDone;
                     });
}

bool StepRunner::can_prefetch(const ForkOp& fork) const {
  const WrittenPrompt& written = text_.written();
  const size_t num_uncached =
      written.text.size() - std::min(written.text.size(), written.cached_chars);
  return session_.options().fork_hint && fork.branches.size() > 1 &&
         num_uncached >= kHintCharsMin && session_.backend() != nullptr &&
         session_.backend()->can_prefetch();
}

Step StepRunner::step(Operation& op, ForkOp& fork) {
  outcomes_.record(op);
  const auto activate = [branches = fork.branches](const WrittenPrompt& written) {
    for (const auto& weak : branches)
      if (const auto branch = weak.lock()) branch->activate(written);
  };
  if (!can_prefetch(fork)) {
    activate(text_.written());
    return Step::kDone;
  }
  text_.set_cached();
  // The branches begin when the prefix is cached, or when it could not be sent: it is a hint.
  session_.backend()->prefetch(
      session_.make_call_id("h"), calls_.prompt(),
      [activate, written = text_.written(), pool = &session_.backend()->pool()](const Status&) {
        pool->post([activate, written] { activate(written); });
      });
  return Step::kDone;
}

}  // namespace espalier::lang
