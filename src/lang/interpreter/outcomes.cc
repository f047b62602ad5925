#include "lang/interpreter/outcomes.h"

#include "lang/recorder.h"

namespace espalier::lang {
namespace {

// The kind of a primitive, and `name` as a side result.
struct Kind {
  std::string operator()(const Text& t) { return named("text", t.text.substr(0, 40)); }
  std::string operator()(const std::shared_ptr<const Gen>& g) { return named("gen", g->name); }
  std::string operator()(const Select& s) { return named("select", s.name); }
  std::string operator()(const Media& m) {
    return named(m.kind == Media::Kind::kImage ? "image" : "video", m.path.substr(0, 40));
  }
  std::string operator()(const RoleBegin& r) { return named("role", role_name(r.role)); }
  std::string operator()(const RoleEnd& r) { return named("role", role_name(r.role)); }
  std::string operator()(const ScopeBegin& s) { return named("scope", s.name); }
  std::string operator()(const ScopeEnd& s) { return named("scope", s.name); }
  std::string operator()(const Reference& r) { return named("value", r.value.name()); }
  std::string operator()(const Reasoning& r) {
    return named("reasoning", r.gen != nullptr ? r.gen->name : "");
  }
  std::string named(std::string kind, std::string_view its_name) {
    name = its_name;
    return kind;
  }
  std::string name;
};

}  // namespace

void Outcomes::begin_operation() {
  if (session_.options().recorder != nullptr) begin_ = SteadyClock().now();
}

void Outcomes::record(const Operation& op, const MetaInfo* meta, const Status& status) {
  Recorder* recorder = session_.options().recorder.get();
  if (recorder == nullptr) return;
  Span span{.stream = stream_, .parent_stream = parent_stream_, .where = op.where};
  Kind kind;
  if (op.gen != nullptr) {
    span.kind = kind(op.gen);
  } else if (const auto* node = std::get_if<Node>(&op.what)) {
    span.kind = std::visit(kind, node->what);
  } else if (std::holds_alternative<ForkOp>(op.what)) {
    span.kind = "fork";
  } else if (std::holds_alternative<ReferenceOp>(op.what)) {
    span.kind = "value";
  } else {
    span.kind = std::holds_alternative<SetOp>(op.what) ? "set" : "join";
  }
  span.name = kind.name;
  span.submitted = op.submitted;
  span.begin = begin_;
  span.end = SteadyClock().now();
  if (meta != nullptr) {
    span.prompt_tokens = meta->prompt_tokens;
    span.cached_tokens = meta->cached_tokens;
    span.completion_tokens = meta->completion_tokens;
  }
  span.status = status;
  recorder->add(std::move(span));
}

Step Outcomes::refuse(Operation& op, Status why, Location where) {
  record(op, nullptr, why);
  queue_.fail(std::move(why), where.line != 0 ? where : op.where);
  skip(op);
  return Step::kDone;
}

void Outcomes::skip(Operation& op) {
  const auto [why, where] = queue_.failure();
  fail_outputs(op, why, where);
  message_.fail(why, where);
  for (const auto& [name, scope] : scopes_) scope.second->fail(why, where);
  scopes_.clear();
}

void Outcomes::open_scope(const std::string& name, size_t begin, VariablePtr variable) {
  scopes_.insert_or_assign(name, std::make_pair(begin, std::move(variable)));
}

std::optional<std::pair<size_t, VariablePtr>> Outcomes::close_scope(std::string_view name) {
  const auto it = scopes_.find(name);
  if (it == scopes_.end()) return std::nullopt;
  auto scope = std::move(it->second);
  scopes_.erase(it);
  return scope;
}

}  // namespace espalier::lang
