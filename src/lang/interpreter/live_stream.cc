#include "lang/interpreter/live_stream.h"

#include <algorithm>
#include <random>

#include "lang/pool.h"
#include "lang/waiting.h"

namespace espalier::lang {
namespace {

std::string make_session_id() {
  static const uint64_t process = std::random_device{}() * 0x9e3779b97f4a7c15ull;
  static std::atomic<uint64_t> next{0};
  return fmt::format("lang-{:08x}-{}", process >> 32, next++);
}

Status unknown_variable(std::string_view name, const std::vector<std::string>& known) {
  std::string list;
  for (const std::string& n : known) list += (list.empty() ? "" : ", ") + n;
  return error(StatusCode::kNotFound, "there is no variable \"{}\" (there {})", name,
               list.empty() ? "is none yet" : "are: " + list);
}

class VariableText final : public TextStream::Source {
 public:
  VariableText(std::shared_ptr<PromptStream> keep, VariablePtr variable)
      : keep_(std::move(keep)), variable_(std::move(variable)) {}
  Result<bool> read(size_t offset, std::string& out) override {
    return variable_->read_text(offset, out);
  }
  std::optional<Progress> progress(size_t begin, size_t end) override {
    return variable_->progress(begin, end);
  }

 private:
  std::shared_ptr<PromptStream> keep_;
  VariablePtr variable_;
};

class AllText final : public TextStream::Source {
 public:
  explicit AllText(std::shared_ptr<LiveStream> stream) : stream_(std::move(stream)) {}
  Result<bool> read(size_t offset, std::string& out) override {
    return stream_->read_text(offset, out);
  }

 private:
  std::shared_ptr<LiveStream> stream_;
};

}  // namespace

Session::Session(RunOptions o) : options(std::move(o)), id(make_session_id()) {}

std::shared_ptr<LiveStream> LiveStream::root(RunOptions options) {
  return std::shared_ptr<LiveStream>(new LiveStream(std::make_shared<Session>(std::move(options))));
}

LiveStream::LiveStream(std::shared_ptr<Session> session)
    : session_(std::move(session)), index_(session_->num_streams++) {}

LiveStream::~LiveStream() {
  if (!call_id_.empty()) session_->options.backend->cancel(call_id_);
  const Status dropped =
      espalier::error(StatusCode::kAborted, "the prompt state was dropped before this was there");
  for (const auto& [name, variable] : variables_)
    if (!inherited_.contains(name)) variable->fail(dropped, error_place_);
}

// ---- appending ----

VariablePtr LiveStream::declare(const std::string& name) {
  auto variable = std::make_shared<Variable>();
  if (!name.empty()) variables_.insert_or_assign(name, variable);
  return variable;
}

LiveStream::Operation LiveStream::prepare(Node node) {
  Operation op;
  op.where = node.where;
  if (const auto* gen = std::get_if<std::shared_ptr<const Gen>>(&node.what)) {
    op.target = declare((*gen)->name);
    if (is_role_open_) open_role_gens_.push_back((*gen)->name);
  } else if (const auto* reasoning = std::get_if<Reasoning>(&node.what)) {
    if (reasoning->gen != nullptr) {
      op.target = declare(reasoning->gen->name);
      op.reasoning = declare(reasoning->gen->name + "_reasoning_content");
    }
  } else if (const auto* select = std::get_if<Select>(&node.what)) {
    op.target = declare(select->name);
  } else if (const auto* scope = std::get_if<ScopeBegin>(&node.what)) {
    op.target = declare(scope->name);
    open_scopes_.push_back(scope->name);
  } else if (const auto* end = std::get_if<ScopeEnd>(&node.what)) {
    std::erase(open_scopes_, end->name);
  } else if (std::holds_alternative<RoleBegin>(node.what)) {
    is_role_open_ = true;
  } else if (std::holds_alternative<RoleEnd>(node.what)) {
    is_role_open_ = false;
    open_role_gens_.clear();
  }
  op.what = std::move(node);
  return op;
}

bool LiveStream::enqueue(Operation op) {
  if (session_->options.recorder != nullptr) op.submitted = SteadyClock().now();
  queue_.push_back(std::move(op));
  if (busy_) return false;
  busy_ = true;
  return true;
}

// The variable that a reference names. What this stream computes itself its own queue does not keep
// alive. Takes the other stream's lock, never while this one's is held.
LiveStream::ReferenceOp LiveStream::resolve(const Value& value) {
  ReferenceOp op;
  auto other = std::dynamic_pointer_cast<LiveStream>(value.stream());
  if (other == nullptr) return op;
  std::lock_guard lock(other->mutex_);
  const auto it = other->variables_.find(value.name());
  if (it != other->variables_.end()) op.source = it->second;
  if (other.get() != this) op.keep = std::move(other);
  return op;
}

void LiveStream::append(std::vector<Node> nodes) {
  // An expression names variables that were there before it, so all can be resolved first.
  std::vector<Operation> references;
  for (const Node& node : nodes)
    if (const auto* reference = std::get_if<Reference>(&node.what))
      references.push_back({.what = resolve(reference->value), .where = node.where});
  bool drains = false;
  auto next = references.begin();
  {
    std::lock_guard lock(mutex_);
    for (Node& node : nodes) {
      const bool is_reference = std::holds_alternative<Reference>(node.what);
      drains |= enqueue(is_reference ? std::move(*next++) : prepare(std::move(node)));
    }
  }
  changed_.notify_all();
  if (drains) drain();
}

VariablePtr LiveStream::find(std::string_view name, std::unique_lock<std::mutex>& lock) const {
  const auto is_there = [&] { return variables_.contains(name); };
  if (!is_there() && writer_ != std::thread::id() && writer_ != std::this_thread::get_id()) {
    auto& changed = const_cast<std::condition_variable&>(changed_);
    wait_until(lock, changed, [&] { return is_there() || writer_ == std::thread::id(); });
  }
  const auto it = variables_.find(name);
  return it != variables_.end() ? it->second : nullptr;
}

// What would wait for ever, for the reader is the one who must append its end.
Status LiveStream::unreadable(std::string_view name) const {
  if (std::find(open_scopes_.begin(), open_scopes_.end(), name) != open_scopes_.end())
    return espalier::error(StatusCode::kFailedPrecondition,
                           "the var_scope \"{}\" is still open: read it after its end", name);
  if (defers() &&
      std::find(open_role_gens_.begin(), open_role_gens_.end(), name) != open_role_gens_.end())
    return espalier::error(StatusCode::kFailedPrecondition,
                           "\"{}\" is part of a message that is still open: with API speculation a "
                           "chat message is written whole, so read it after the role has ended",
                           name);
  return {};
}

Status LiveStream::check_variable(std::string_view name) const {
  std::unique_lock lock(mutex_);
  if (find(name, lock) != nullptr) return {};
  std::vector<std::string> known;
  for (const auto& [other, variable] : variables_) known.push_back(other);
  return unknown_variable(name, known);
}

std::vector<std::string> LiveStream::variable_names() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, variable] : variables_) names.push_back(name);
  return names;
}

void LiveStream::set_variable(std::string name, Value value, Location where) {
  if (value.is_constant()) {
    std::lock_guard lock(mutex_);
    declare(name)->fill({.text = value.text()});
    return;
  }
  ReferenceOp source = resolve(value);
  SetOp op{std::move(source.keep), std::move(source.source)};
  bool drains = false;
  {
    std::lock_guard lock(mutex_);
    VariablePtr target = declare(name);
    drains = enqueue({.what = std::move(op), .target = std::move(target), .where = where});
  }
  if (drains) drain();
}

PromptStream::Read LiveStream::read(const std::string& name) {
  VariablePtr variable;
  {
    std::unique_lock lock(mutex_);
    variable = find(name, lock);
    if (variable != nullptr && !variable->ready())
      if (Status status = unreadable(name); !status.ok())
        return {espalier::fail(std::move(status)), {}};
  }
  if (variable == nullptr) return {espalier::fail(check_variable(name)), {}};
  return variable->read();
}

bool LiveStream::ready(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto it = variables_.find(name);
  return it != variables_.end() && it->second->ready();
}

Result<MetaInfo> LiveStream::meta(const std::string& name) {
  if (const Read value = read(name); !value.content) return espalier::fail(value.content.error());
  VariablePtr variable;
  {
    std::unique_lock lock(mutex_);
    variable = find(name, lock);
  }
  return variable->meta();
}

Result<std::string> LiveStream::text() {
  ESP_RETURN_IF_ERROR(sync());
  std::lock_guard lock(mutex_);
  return written_.text;
}

Result<std::vector<Message>> LiveStream::messages() {
  ESP_RETURN_IF_ERROR(sync());
  std::lock_guard lock(mutex_);
  std::vector<Message> all = written_.messages;
  if (written_.open) all.push_back(*written_.open);
  return all;
}

std::shared_ptr<TextStream::Source> LiveStream::open_text(const std::string& name) {
  auto self = std::static_pointer_cast<LiveStream>(shared_from_this());
  if (name.empty()) return std::make_shared<AllText>(std::move(self));
  std::unique_lock lock(mutex_);
  VariablePtr variable = find(name, lock);
  return std::make_shared<VariableText>(std::move(self), std::move(variable));
}

Result<bool> LiveStream::read_text(size_t offset, std::string& out) {
  std::unique_lock lock(mutex_);
  if (!wait_until(lock, changed_, [&] {
        return written_.text.size() > offset || (!busy_ && writer_ == std::thread::id());
      }))
    return espalier::fail(interrupted());
  if (written_.text.size() > offset) {
    out.append(written_.text, offset);
    return true;
  }
  if (!error_.ok()) return espalier::fail(error_);
  return false;
}

std::vector<std::shared_ptr<PromptStream>> LiveStream::fork(int n, Location where) {
  if (n < 1) throw Error(invalid_argument("a fork needs one branch or more, not {}", n), where);
  std::vector<std::shared_ptr<PromptStream>> branches;
  ForkOp op;
  bool drains = false;
  {
    std::lock_guard lock(mutex_);
    for (int i = 0; i < n; ++i) {
      std::shared_ptr<LiveStream> branch(new LiveStream(session_));
      branch->parent_index_ = index_;
      branch->parent_ = std::static_pointer_cast<LiveStream>(shared_from_this());
      branch->busy_ = true;  // until this stream comes to the fork
      branch->variables_ = branch->inherited_ = variables_;
      branch->is_role_open_ = is_role_open_;
      branch->cancelled_ = cancelled_;
      op.branches.push_back(branch);
      branches_.push_back(branch);
      branches.push_back(std::move(branch));
    }
    drains = enqueue({.what = std::move(op), .where = where});
  }
  if (drains) drain();
  return branches;
}

Status LiveStream::join(std::vector<std::shared_ptr<PromptStream>> branches, JoinMode mode,
                        Location where) {
  std::vector<std::shared_ptr<LiveStream>> live;
  for (auto& branch : branches) {
    auto stream = std::dynamic_pointer_cast<LiveStream>(branch);
    if (stream == nullptr || stream.get() == this)
      return espalier::error(StatusCode::kFailedPrecondition,
                             "only branches of a running state can be joined");
    std::lock_guard lock(stream->mutex_);
    if (stream->joined_)
      return espalier::error(StatusCode::kFailedPrecondition, "these branches were joined before");
    live.push_back(std::move(stream));
  }
  std::map<std::string, std::vector<VariablePtr>> found;
  for (const auto& stream : live) {
    std::lock_guard lock(stream->mutex_);
    stream->joined_ = true;
    for (const auto& [name, variable] : stream->variables_) {
      const auto before = stream->inherited_.find(name);
      if (before == stream->inherited_.end() || before->second != variable)
        found[name].push_back(variable);
    }
  }
  bool drains = false;
  {
    std::lock_guard lock(mutex_);
    if (mode == JoinMode::kConcatenateAndAppend) {
      drains = enqueue({.what = ConcatOp{std::move(live)}, .where = where});
    } else {
      GatherOp op{.branches = std::move(live)};
      for (auto& [name, variables] : found)
        op.lists.emplace_back(declare(name), std::move(variables));
      drains = enqueue({.what = std::move(op), .where = where});
    }
  }
  if (drains) drain();
  return {};
}

void LiveStream::hold(std::thread::id writer) {
  std::lock_guard lock(mutex_);
  writer_ = writer;
}

void LiveStream::release() {
  {
    std::lock_guard lock(mutex_);
    writer_ = {};
  }
  changed_.notify_all();
}

Status LiveStream::sync() {
  std::unique_lock lock(mutex_);
  if (!wait_until(lock, changed_, [&] {
        return !busy_ && (writer_ == std::thread::id() || writer_ == std::this_thread::get_id());
      }))
    return interrupted();
  return error_;
}

Status LiveStream::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

Location LiveStream::error_place() const {
  std::lock_guard lock(mutex_);
  return error_place_;
}

void LiveStream::fail_with(Status why, Location where) {
  std::lock_guard lock(mutex_);
  if (!error_.ok()) return;
  error_ = std::move(why);
  error_place_ = where;
}

void LiveStream::cancel() {
  const Status why = espalier::error(StatusCode::kAborted, "the program was cancelled");
  std::vector<std::shared_ptr<LiveStream>> branches;
  std::string call_id;
  bool drains = false;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (error_.ok()) error_ = why;
    for (const auto& weak : branches_)
      if (auto branch = weak.lock()) branches.push_back(std::move(branch));
    call_id = call_id_;
    if (awaits_value_) {  // nobody needs it any more
      ++turn_;
      awaits_value_ = false;
      drains = true;
    }
  }
  if (!call_id.empty()) session_->options.backend->cancel(call_id);
  if (drains) {
    skip(current_);
    drain();
  }
  for (const auto& branch : branches) branch->cancel();
}

void LiveStream::when_idle(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (busy_) {
      idle_callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

// ---- the strand ----

void LiveStream::drain() {
  while (true) {
    Operation op;
    bool failed = false;
    {
      std::unique_lock lock(mutex_);
      if (queue_.empty()) {
        busy_ = false;
        const auto callbacks = std::move(idle_callbacks_);
        idle_callbacks_.clear();
        changed_.notify_all();
        lock.unlock();
        for (const auto& callback : callbacks) callback();
        return;
      }
      op = std::move(queue_.front());
      queue_.pop_front();
      failed = !error_.ok();
    }
    if (failed) {
      skip(op);
      continue;
    }
    if (session_->options.recorder != nullptr) begin_ = SteadyClock().now();
    if (step(op) == Step::kSuspended) return;
  }
}

void LiveStream::run_later(std::function<void()> task) {
  if (session_->options.backend != nullptr) {
    session_->options.backend->pool().post(std::move(task));
  } else {
    task();
  }
}

uint64_t LiveStream::suspend(Operation& op) {
  std::lock_guard lock(mutex_);
  current_ = std::move(op);
  return ++turn_;
}

std::function<void()> LiveStream::resumption(uint64_t turn) {
  return [weak = weak_from_this(), turn] {
    const auto self = std::static_pointer_cast<LiveStream>(weak.lock());
    if (self == nullptr) return;
    self->run_later([weak, turn] {
      if (auto stream = std::static_pointer_cast<LiveStream>(weak.lock())) stream->resume(turn);
    });
  };
}

LiveStream::Step LiveStream::await(Operation& op, const VariablePtr& variable) {
  const VariablePtr awaited = variable;  // `op`, which may hold it, is moved
  const uint64_t turn = suspend(op);
  {
    std::lock_guard lock(mutex_);
    awaits_value_ = true;
  }
  awaited->when_ready(resumption(turn));
  return Step::kSuspended;
}

LiveStream::Step LiveStream::await_idle(Operation& op, const std::shared_ptr<LiveStream>& stream) {
  const std::shared_ptr<LiveStream> awaited = stream;
  const uint64_t turn = suspend(op);
  {
    std::lock_guard lock(mutex_);
    awaits_value_ = true;
  }
  awaited->when_idle(resumption(turn));
  return Step::kSuspended;
}

void LiveStream::resume(uint64_t turn) {
  Operation op;
  bool failed = false;
  {
    std::lock_guard lock(mutex_);
    if (turn != turn_ || !awaits_value_) return;
    awaits_value_ = false;
    op = std::move(current_);
    failed = !error_.ok();
  }
  if (failed) {
    skip(op);
  } else if (step(op) == Step::kSuspended) {
    return;
  }
  drain();
}

LiveStream::Step LiveStream::step(Operation& op) {
  return std::visit(
      [&](auto& what) -> Step {
        using T = std::remove_cvref_t<decltype(what)>;
        if constexpr (std::is_same_v<T, Node>) {
          const Node node = what;  // a step that suspends moves the operation
          return std::visit(
              [&](const auto& primitive) -> Step {
                if constexpr (std::is_same_v<std::remove_cvref_t<decltype(primitive)>, Reference>) {
                  ReferenceOp reference = resolve(primitive.value);
                  return step(op, reference);
                } else {
                  return step(op, primitive);
                }
              },
              node.what);
        } else {
          return step(op, what);
        }
      },
      op.what);
}

void LiveStream::write(std::string_view text) {
  {
    std::lock_guard lock(mutex_);
    written_.text += text;
    if (written_.open) {
      std::vector<Part>& parts = written_.open->parts;
      if (parts.empty() || parts.back().media) parts.emplace_back();
      parts.back().text += text;
    }
  }
  changed_.notify_all();
}

void LiveStream::skip(Operation& op) {
  Status why;
  Location where;
  {
    std::lock_guard lock(mutex_);
    why = error_;
    where = error_place_;
  }
  if (op.target != nullptr) op.target->fail(why, where);
  if (op.reasoning != nullptr) op.reasoning->fail(why, where);
  for (auto& [deferred, gen] : deferred_gens_) deferred.target->fail(why, where);
  deferred_gens_.clear();
  for (const auto& [name, scope] : scopes_) scope.second->fail(why, where);
  scopes_.clear();
  if (const auto* fork = std::get_if<ForkOp>(&op.what)) {
    for (const auto& weak : fork->branches)
      if (auto branch = weak.lock()) branch->activate_failed(why, where);
  } else if (const auto* gather = std::get_if<GatherOp>(&op.what)) {
    for (const auto& [target, sources] : gather->lists) target->fail(why, where);
  }
}

void LiveStream::fail_op(Operation& op, Status why, Location where) {
  record(op, nullptr, why);
  {
    std::lock_guard lock(mutex_);
    if (error_.ok()) {
      error_ = std::move(why);
      error_place_ = where.line != 0 ? where : op.where;
    }
  }
  skip(op);
}

LiveStream::Step LiveStream::refuse(Operation& op, Status why, Location where) {
  fail_op(op, std::move(why), where);
  return Step::kDone;
}

}  // namespace espalier::lang
