#include "lang/interpreter/live_stream.h"

#include <map>
#include <utility>

namespace espalier::lang {
namespace {

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

// Whether the program that writes is on another thread, and may still declare or append.
bool is_elsewhere(std::thread::id writer) {
  return writer != std::thread::id() && writer != std::this_thread::get_id();
}

Operation operation_of(Node node, VariableTable::Outputs outputs) {
  const Location where = node.where;
  return {.what = std::move(node),
          .target = std::move(outputs.target),
          .reasoning = std::move(outputs.reasoning),
          .where = where};
}

}  // namespace

std::shared_ptr<LiveStream> LiveStream::root(RunOptions options) {
  return std::shared_ptr<LiveStream>(
      new LiveStream(std::make_shared<Session>(std::move(options)), nullptr, false));
}

LiveStream::LiveStream(std::shared_ptr<Session> session, std::shared_ptr<LiveStream> parent,
                       bool cancelled)
    : session_(std::move(session)),
      index_(session_->add_stream()),
      parent_(std::move(parent)),
      queue_(monitor_, parent_ != nullptr, cancelled),
      text_(monitor_),
      runner_(*this, *session_, index_, parent_ != nullptr ? parent_->index_ : -1, queue_, text_) {}

LiveStream::~LiveStream() {
  if (const std::string id = queue_.call_in_flight(); !id.empty()) session_->backend()->cancel(id);
  variables_.fail_added(
      espalier::error(StatusCode::kAborted, "the prompt state was dropped before this was there"),
      queue_.failure().where);
}

// ---- appending ----

bool LiveStream::enqueue(Operation op, const Monitor::Lock& lock) {
  if (session_->options().recorder != nullptr) op.submitted = SteadyClock().now();
  return queue_.push(std::move(op), lock);
}

// The variable that a reference names. This stream's own queue does not keep the stream alive.
// Takes the other stream's lock, so it must not be called under this stream's.
ReferenceOp LiveStream::resolve(const Value& value) {
  ReferenceOp op;
  auto other = std::dynamic_pointer_cast<LiveStream>(value.stream());
  if (other == nullptr) return op;
  const Monitor::Lock lock = other->monitor_.lock();
  op.source = other->variables_.find(value.name());
  if (other.get() != this) op.keep = other;
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
    const Monitor::Lock lock = monitor_.lock();
    for (Node& node : nodes) {
      if (std::holds_alternative<Reference>(node.what)) {
        drains |= enqueue(std::move(*next++), lock);
        continue;
      }
      VariableTable::Outputs outputs = variables_.declare_outputs(node);
      drains |= enqueue(operation_of(std::move(node), std::move(outputs)), lock);
    }
  }
  monitor_.notify_all();
  if (drains) runner_.drain();
}

void LiveStream::set_variable(std::string name, Value value, Location where) {
  if (value.is_constant()) {
    const Monitor::Lock lock = monitor_.lock();
    variables_.declare(name)->fill({.text = value.text()});
    return;
  }
  ReferenceOp source = resolve(value);
  SetOp op{std::move(source.keep), std::move(source.source)};
  bool drains = false;
  {
    const Monitor::Lock lock = monitor_.lock();
    VariablePtr target = variables_.declare(name);
    drains = enqueue({.what = std::move(op), .target = std::move(target), .where = where}, lock);
  }
  if (drains) runner_.drain();
}

// ---- reading ----

VariablePtr LiveStream::find(std::string_view name, Monitor::Lock& lock) const {
  if (variables_.find(name) == nullptr && is_elsewhere(writer_))
    monitor_.wait(lock,
                  [&] { return variables_.find(name) != nullptr || writer_ == std::thread::id(); });
  return variables_.find(name);
}

Status LiveStream::check_variable(std::string_view name) const {
  Monitor::Lock lock = monitor_.lock();
  return find(name, lock) != nullptr ? Status() : variables_.unknown(name);
}

std::vector<std::string> LiveStream::variable_names() const {
  const Monitor::Lock lock = monitor_.lock();
  return variables_.names();
}

PromptStream::Read LiveStream::read(const std::string& name) {
  VariablePtr variable;
  {
    Monitor::Lock lock = monitor_.lock();
    variable = find(name, lock);
    if (variable == nullptr) return {espalier::fail(variables_.unknown(name)), {}};
    if (!variable->ready())
      if (Status status = variables_.check_readable(name, session_->defers_messages());
          !status.ok())
        return {espalier::fail(std::move(status)), {}};
  }
  return variable->read();
}

bool LiveStream::ready(const std::string& name) const {
  const Monitor::Lock lock = monitor_.lock();
  const VariablePtr variable = variables_.find(name);
  return variable != nullptr && variable->ready();
}

Result<MetaInfo> LiveStream::meta(const std::string& name) {
  if (const Read value = read(name); !value.content) return espalier::fail(value.content.error());
  VariablePtr variable;
  {
    Monitor::Lock lock = monitor_.lock();
    variable = find(name, lock);
  }
  return variable->meta();
}

Result<std::string> LiveStream::text() {
  ESP_RETURN_IF_ERROR(sync());
  return text_.all();
}

Result<std::vector<Message>> LiveStream::messages() {
  ESP_RETURN_IF_ERROR(sync());
  return text_.messages();
}

std::shared_ptr<TextStream::Source> LiveStream::open_text(const std::string& name) {
  auto self = std::static_pointer_cast<LiveStream>(shared_from_this());
  if (name.empty()) return std::make_shared<AllText>(std::move(self));
  Monitor::Lock lock = monitor_.lock();
  VariablePtr variable = find(name, lock);
  return std::make_shared<VariableText>(std::move(self), std::move(variable));
}

Result<bool> LiveStream::read_text(size_t offset, std::string& out) {
  {
    Monitor::Lock lock = monitor_.lock();
    const auto has_more = [&] { return text_.size(lock) > offset; };
    const auto has_ended = [&] { return queue_.is_idle(lock) && writer_ == std::thread::id(); };
    if (!monitor_.wait(lock, [&] { return has_more() || has_ended(); }))
      return espalier::fail(interrupted());
    if (has_more()) {
      out += text_.from(offset, lock);
      return true;
    }
  }
  if (Status why = error(); !why.ok()) return espalier::fail(std::move(why));
  return false;
}

Status LiveStream::sync() {
  {
    Monitor::Lock lock = monitor_.lock();
    if (!monitor_.wait(lock, [&] { return queue_.is_idle(lock) && !is_elsewhere(writer_); }))
      return interrupted();
  }
  return error();
}

// ---- forks and joins ----

std::vector<std::shared_ptr<PromptStream>> LiveStream::fork(int n, Location where) {
  if (n < 1) throw Error(invalid_argument("a fork needs one branch or more, not {}", n), where);
  std::vector<std::shared_ptr<PromptStream>> branches;
  ForkOp op;
  bool drains = false;
  {
    const auto self = std::static_pointer_cast<LiveStream>(shared_from_this());
    const Monitor::Lock lock = monitor_.lock();
    for (int i = 0; i < n; ++i) {
      std::shared_ptr<LiveStream> branch(new LiveStream(session_, self, queue_.is_cancelled(lock)));
      branch->variables_.inherit(variables_);
      op.branches.push_back(branch);
      branches_.push_back(branch);
      branches.push_back(std::move(branch));
    }
    drains = enqueue({.what = std::move(op), .where = where}, lock);
  }
  if (drains) runner_.drain();
  return branches;
}

void LiveStream::activate(WrittenPrompt written) {
  text_.start_from(std::move(written));
  std::shared_ptr<LiveStream> parent;  // released without the lock
  {
    const Monitor::Lock lock = monitor_.lock();
    parent = std::move(parent_);
  }
  runner_.drain();
}

// The branches as streams of this kind. kFailedPrecondition for others, and for joined ones.
Status LiveStream::take_branches(const std::vector<std::shared_ptr<PromptStream>>& branches,
                                 std::vector<std::shared_ptr<LiveStream>>& live) {
  for (const auto& branch : branches) {
    auto stream = std::dynamic_pointer_cast<LiveStream>(branch);
    if (stream == nullptr || stream.get() == this)
      return espalier::error(StatusCode::kFailedPrecondition,
                             "only branches of a running state can be joined");
    const Monitor::Lock lock = stream->monitor_.lock();
    if (stream->joined_)
      return espalier::error(StatusCode::kFailedPrecondition, "these branches were joined before");
    live.push_back(stream);
  }
  return {};
}

Status LiveStream::join(std::vector<std::shared_ptr<PromptStream>> branches, JoinMode mode,
                        Location where) {
  std::vector<std::shared_ptr<LiveStream>> live;
  ESP_RETURN_IF_ERROR(take_branches(branches, live));
  std::map<std::string, std::vector<VariablePtr>> found;
  for (const auto& stream : live) {
    const Monitor::Lock lock = stream->monitor_.lock();
    stream->joined_ = true;
    for (auto& [name, variable] : stream->variables_.added())
      found[name].push_back(std::move(variable));
  }
  bool drains = false;
  {
    const Monitor::Lock lock = monitor_.lock();
    if (mode == JoinMode::kConcatenateAndAppend) {
      drains = enqueue({.what = ConcatOp{std::move(live)}, .where = where}, lock);
    } else {
      GatherOp op{.branches = std::move(live)};
      for (auto& [name, variables] : found)
        op.lists.emplace_back(variables_.declare(name), std::move(variables));
      drains = enqueue({.what = std::move(op), .where = where}, lock);
    }
  }
  if (drains) runner_.drain();
  return {};
}

// ---- ends ----

void LiveStream::set_writer(std::thread::id writer) {
  {
    const Monitor::Lock lock = monitor_.lock();
    writer_ = writer;
  }
  monitor_.notify_all();
}

Status LiveStream::error() const { return queue_.failure().status; }
Location LiveStream::error_place() const { return queue_.failure().where; }

void LiveStream::fail_with(Status why, Location where) { queue_.fail(std::move(why), where); }

void LiveStream::cancel() {
  OperationQueue::Cancelled cancelled =
      queue_.cancel(espalier::error(StatusCode::kAborted, "the program was cancelled"));
  std::vector<std::shared_ptr<LiveStream>> branches;
  {
    const Monitor::Lock lock = monitor_.lock();
    for (const auto& weak : branches_)
      if (auto branch = weak.lock()) branches.push_back(std::move(branch));
  }
  if (!cancelled.call_id.empty()) session_->backend()->cancel(cancelled.call_id);
  if (cancelled.abandoned) runner_.abandon(*cancelled.abandoned);
  for (const auto& branch : branches) branch->cancel();
}

void LiveStream::when_idle(std::function<void()> callback) {
  queue_.when_idle(std::move(callback));
}

bool LiveStream::is_idle() const {
  const Monitor::Lock lock = monitor_.lock();
  return queue_.is_idle(lock);
}

}  // namespace espalier::lang
