#include "lang/state.h"

#include "lang/interpreter/stream.h"

namespace espalier::lang {
namespace {

// The value, or an Error at the line of the primitive that failed, else at the line that reads.
template <typename T>
T value_or_throw(Result<T> result, const PromptStream& stream, const Location& asked) {
  if (result) return std::move(*result);
  const Location failed = stream.error_place();
  throw Error(std::move(result).error(), failed.line != 0 ? failed : asked);
}

void check_name(const PromptStream& stream, const Name& name) {
  if (Status status = stream.check_variable(name.name); !status.ok())
    throw Error(std::move(status), name.where);
}

}  // namespace

Result<bool> TextStream::next(std::string& piece) {
  piece.clear();
  begin_ = offset_;
  ESP_ASSIGN_OR_RETURN(const bool more, source_->read(offset_, piece));
  offset_ += piece.size();
  return more;
}

TextStream::Iterator& TextStream::Iterator::operator++() {
  Result<bool> more = stream_->next(piece_);
  if (!more) throw Error(std::move(more).error(), {});
  if (!*more) stream_ = nullptr;
  return *this;
}

Scope::Scope(std::shared_ptr<PromptStream> stream, Node closing)
    : stream_(std::move(stream)), closing_(std::move(closing)) {}

Scope::~Scope() {
  if (stream_ != nullptr) stream_->append({std::move(closing_)});
}

State& State::operator+=(Expr expr) {
  if (!expr.empty()) stream_->append(std::move(expr).nodes());
  return *this;
}

Value State::operator[](const Name& name) const {
  check_name(*stream_, name);
  return Value(stream_, name.name, name.where);
}

Result<std::string> State::get(const Name& name) const {
  ESP_RETURN_IF_ERROR(stream_->check_variable(name.name));
  return Value(stream_, name.name, name.where).get();
}

bool State::has(std::string_view name) const { return stream_->check_variable(name).ok(); }

void State::set_var(const Name& name, Value value) {
  stream_->set_variable(name.name, std::move(value), name.where);
}

std::vector<std::string> State::variable_names() const { return stream_->variable_names(); }

MetaInfo State::meta_info(const Name& name) const {
  check_name(*stream_, name);
  return value_or_throw(stream_->meta(name.name), *stream_, name.where);
}

std::string State::text(Location where) const {
  return value_or_throw(stream_->text(), *stream_, where);
}

std::vector<Message> State::messages(Location where) const {
  return value_or_throw(stream_->messages(), *stream_, where);
}

Forks State::fork(int n, Location where) {
  std::vector<State> branches;
  for (auto& stream : stream_->fork(n, where)) branches.emplace_back(std::move(stream));
  return Forks(*this, std::move(branches));
}

State State::copy(Location where) { return State(std::move(stream_->fork(1, where).front())); }

TextStream State::stream(const Name& name) const {
  check_name(*stream_, name);
  return TextStream(stream_->open_text(name.name));
}

TextStream State::stream(Location) const { return TextStream(stream_->open_text("")); }

namespace {

Scope open_role(const std::shared_ptr<PromptStream>& stream, Role role, Location where) {
  stream->append({Node{RoleBegin{role}, where}});
  return Scope(stream, Node{RoleEnd{role}, where});
}

}  // namespace

Scope State::system(Location where) { return open_role(stream_, Role::kSystem, where); }
Scope State::user(Location where) { return open_role(stream_, Role::kUser, where); }
Scope State::assistant(Location where) { return open_role(stream_, Role::kAssistant, where); }

Scope State::var_scope(const Name& name) {
  stream_->append({Node{ScopeBegin{name.name}, name.where}});
  return Scope(stream_, Node{ScopeEnd{name.name}, name.where});
}

Status State::sync() const { return stream_->sync(); }
Status State::error() const { return stream_->error(); }
Location State::error_place() const { return stream_->error_place(); }
void State::cancel() { stream_->cancel(); }

Forks& Forks::operator+=(const Expr& expr) {
  for (State& branch : branches_) branch += expr;
  return *this;
}

Forks& Forks::operator+=(const std::vector<Expr>& exprs) {
  if (exprs.size() != size()) {
    const Location where =
        exprs.empty() || exprs[0].empty() ? Location() : exprs[0].nodes()[0].where;
    throw Error(invalid_argument("{} expressions for {} branches", exprs.size(), size()), where);
  }
  for (size_t i = 0; i < size(); ++i) branches_[i] += exprs[i];
  return *this;
}

std::vector<Value> Forks::operator[](const Name& name) const {
  std::vector<Value> values;
  for (const State& branch : branches_) values.push_back(branch[name]);
  return values;
}

void Forks::join(JoinMode mode, Location where) {
  std::vector<std::shared_ptr<PromptStream>> streams;
  for (const State& branch : branches_) streams.push_back(branch.handle());
  if (Status status = parent_.handle()->join(std::move(streams), mode, where); !status.ok())
    throw Error(std::move(status), where);
}

}  // namespace espalier::lang
