// What each primitive does to a prompt state; the calls are in live_calls.cc.
#include <algorithm>

#include "lang/interpreter/live_stream.h"
#include "lang/pool.h"

namespace espalier::lang {
namespace {

// A prefix shorter than this is not worth a request of its own.
constexpr size_t kHintCharsMin = 64;

}  // namespace

LiveStream::Step LiveStream::step(Operation& op, const Text& text) {
  if (defers() && written_.open) {
    deferred_.push_back({.text = text.text});
    return Step::kDone;
  }
  ahead_.expect(text.text);
  write(text.text);
  record(op);
  return Step::kDone;
}

LiveStream::Step LiveStream::step(Operation& op, const Media& media) {
  {
    std::lock_guard lock(mutex_);
    written_.text += kMediaMark;
    written_.media.push_back(media);
    if (written_.open) written_.open->parts.push_back({.media = media});
  }
  ahead_.clear();
  record(op);
  return Step::kDone;
}

// Of the message before the open one, or before the next.
std::optional<Role> LiveStream::previous_role() const {
  if (written_.messages.empty()) return std::nullopt;
  return written_.messages.back().role;
}

LiveStream::Step LiveStream::step(Operation& op, const RoleBegin& begin) {
  if (written_.open)
    return refuse(op, espalier::error(StatusCode::kFailedPrecondition,
                                      "a message of the {} begins inside of the {}'s: end it first",
                                      role_name(begin.role), role_name(written_.open->role)));
  if (session_->options.backend == nullptr) {
    std::lock_guard lock(mutex_);
    written_.open = Message{begin.role, {}};
    return Step::kDone;
  }
  const RoleFrame frame = session_->options.backend->role_frame(begin.role, previous_role());
  ahead_.clear();
  write(frame.begin);
  std::lock_guard lock(mutex_);
  written_.open = Message{begin.role, {}};
  return Step::kDone;
}

LiveStream::Step LiveStream::step(Operation& op, const RoleEnd& end) {
  if (!written_.open || written_.open->role != end.role)
    return refuse(op, espalier::error(StatusCode::kFailedPrecondition,
                                      "the end of a message of the {} that was not begun",
                                      role_name(end.role)));
  if (!deferred_gens_.empty()) return send_message(op);
  for (const TemplateItem& item : deferred_) write(item.text);
  deferred_.clear();
  std::string frame_end;
  if (session_->options.backend != nullptr)
    frame_end = session_->options.backend->role_frame(end.role, previous_role()).end;
  {
    std::lock_guard lock(mutex_);
    written_.messages.push_back(std::move(*written_.open));
    written_.open.reset();
  }
  write(frame_end);
  ahead_.clear();
  record(op);
  return Step::kDone;
}

LiveStream::Step LiveStream::step(Operation& op, const ScopeBegin& scope) {
  if (defers() && written_.open)
    return refuse(op, espalier::error(StatusCode::kUnimplemented,
                                      "a var_scope inside of a message that API speculation writes "
                                      "whole: put it around the message"));
  scopes_.insert_or_assign(scope.name, std::make_pair(written_.text.size(), op.target));
  return Step::kDone;
}

LiveStream::Step LiveStream::step(Operation& op, const ScopeEnd& scope) {
  const auto it = scopes_.find(scope.name);
  if (it == scopes_.end())
    return refuse(op, espalier::error(StatusCode::kFailedPrecondition,
                                      "the var_scope \"{}\" ends and was not begun", scope.name));
  const auto [begin, variable] = it->second;
  scopes_.erase(it);
  variable->fill({.text = written_.text.substr(begin)});
  record(op);
  return Step::kDone;
}

LiveStream::Step LiveStream::step(Operation& op, ReferenceOp& reference) {
  if (reference.source == nullptr)
    return refuse(op, espalier::error(StatusCode::kFailedPrecondition,
                                      "a value of a traced program cannot go into one that runs"));
  if (!reference.source->ready()) return await(op, reference.source);
  const Read read = reference.source->read();
  if (!read.content) return refuse(op, read.content.error(), read.where);
  if (read.content->is_list)
    return refuse(op, invalid_argument("the value is a list of {} texts: append one of its items",
                                       read.content->items.size()));
  return step(op, Text{read.content->text});
}

LiveStream::Step LiveStream::step(Operation& op, SetOp& set) {
  if (set.source == nullptr)
    return refuse(op, espalier::error(StatusCode::kNotFound, "the value to set is of no variable"));
  if (!set.source->ready()) return await(op, set.source);
  const Read read = set.source->read();
  if (!read.content) return refuse(op, read.content.error(), read.where);
  op.target->fill(*read.content);
  record(op);
  return Step::kDone;
}

LiveStream::Step LiveStream::step(Operation& op, GatherOp& gather) {
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
      const Read read = source->read();
      if (read.content) {
        list.items.push_back(read.content->text);
      } else if (failed.ok()) {
        failed = read.content.error();
        where = read.where;
      }
    }
    // A branch that failed fails the lists that it is part of, not the parent.
    if (failed.ok()) {
      target->fill(std::move(list));
    } else {
      target->fail(failed, where);
    }
  }
  record(op);
  return Step::kDone;
}

LiveStream::Step LiveStream::step(Operation& op, ConcatOp& concat) {
  for (; concat.next < concat.branches.size(); ++concat.next) {
    const std::shared_ptr<LiveStream>& branch = concat.branches[concat.next];
    {
      std::unique_lock lock(branch->mutex_);
      if (branch->busy_) {
        lock.unlock();
        return await_idle(op, branch);
      }
      if (!branch->error_.ok()) {
        Status why = branch->error_;
        const Location where = branch->error_place_;
        lock.unlock();
        return refuse(op, std::move(why), where);
      }
    }
  }
  const std::vector<BranchText> texts = branch_texts(concat);
  ahead_.clear();
  if (joins_cached(concat, texts)) return send_join(op, texts);
  append_branches(texts);
  record(op);
  return Step::kDone;
}

std::vector<LiveStream::BranchText> LiveStream::branch_texts(const ConcatOp& concat) const {
  std::vector<BranchText> texts;
  for (const std::shared_ptr<LiveStream>& branch : concat.branches) {
    std::lock_guard lock(branch->mutex_);
    const Written& written = branch->written_;
    BranchText& one = texts.emplace_back();
    one.text = written.text.substr(branch->fork_chars_);
    one.messages.assign(
        written.messages.begin() + static_cast<std::ptrdiff_t>(branch->fork_messages_),
        written.messages.end());
  }
  return texts;
}

// The keys and values of branches stand for the joined text when each of them was computed behind
// all that stands before the first.
bool LiveStream::joins_cached(const ConcatOp& concat, const std::vector<BranchText>& texts) const {
  const RunOptions& options = session_->options;
  if (!options.parallel_encoding || options.backend == nullptr || !options.backend->can_join())
    return false;
  if (written_.text.empty() || !written_.media.empty()) return false;
  const auto num_written =
      std::ranges::count_if(texts, [](const BranchText& t) { return !t.text.empty(); });
  if (num_written < 2) return false;
  return std::ranges::all_of(concat.branches, [&](const std::shared_ptr<LiveStream>& branch) {
    std::lock_guard lock(branch->mutex_);
    return branch->fork_chars_ == written_.text.size() && branch->written_.media.empty() &&
           branch->written_.joined == written_.joined &&
           branch->written_.text.starts_with(written_.text);
  });
}

void LiveStream::append_branches(const std::vector<BranchText>& texts) {
  for (const BranchText& branch : texts) {
    if (branch.messages.empty()) {
      write(branch.text);
      continue;
    }
    std::lock_guard lock(mutex_);
    written_.text += branch.text;
    written_.messages.insert(written_.messages.end(), branch.messages.begin(),
                             branch.messages.end());
  }
}

LiveStream::Step LiveStream::step(Operation& op, ForkOp& fork) {
  const RunOptions& options = session_->options;
  const size_t uncached =
      written_.text.size() - std::min(written_.text.size(), written_.cached_chars);
  const bool ahead = options.fork_hint && fork.branches.size() > 1 && uncached >= kHintCharsMin &&
                     options.backend != nullptr && options.backend->can_prefetch();
  record(op);
  if (!ahead) {
    for (const auto& weak : fork.branches)
      if (auto branch = weak.lock()) branch->activate(written_);
    return Step::kDone;
  }
  {
    std::lock_guard lock(mutex_);
    written_.cached_chars = written_.text.size();
  }
  const std::string id = fmt::format("{}-h{}", session_->id, session_->num_calls++);
  // The branches come when the prefix is there, or when it could not be sent: it is a hint.
  options.backend->prefetch(id, prompt(),
                            [branches = fork.branches, written = written_,
                             pool = &options.backend->pool()](const Status&) {
                              pool->post([branches, written] {
                                for (const auto& weak : branches)
                                  if (auto branch = weak.lock()) branch->activate(written);
                              });
                            });
  return Step::kDone;
}

void LiveStream::activate(Written written) {
  std::shared_ptr<LiveStream> parent;  // released without the lock
  {
    std::lock_guard lock(mutex_);
    written_ = std::move(written);
    fork_chars_ = written_.text.size();
    fork_messages_ = written_.messages.size();
    parent = std::move(parent_);
  }
  drain();
}

void LiveStream::activate_failed(const Status& why, Location where) {
  std::shared_ptr<LiveStream> parent;
  {
    std::lock_guard lock(mutex_);
    if (error_.ok()) {
      error_ = why;
      error_place_ = where;
    }
    parent = std::move(parent_);
  }
  drain();
}

}  // namespace espalier::lang
