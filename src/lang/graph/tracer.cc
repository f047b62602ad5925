#include "lang/graph/tracer.h"

#include <map>
#include <set>

#include "lang/interpreter/stream.h"

namespace espalier::lang {
namespace {

Status depends_on_data(std::string_view what) {
  return error(StatusCode::kFailedPrecondition,
               "the program reads {}, which is not known while it is traced: control flow that "
               "depends on data cannot be compiled. Append the value without reading it, bind it "
               "before tracing, or interpret the program",
               what);
}

// What all streams of one trace write to. A trace has one thread.
struct Trace {
  Graph graph;
  Status error;
  Location where;

  void refuse(Status why, Location place) {
    if (!error.ok()) return;
    error = std::move(why);
    where = place;
  }
};

class TraceStream final : public PromptStream {
 public:
  TraceStream(std::shared_ptr<Trace> trace, int32_t index)
      : trace_(std::move(trace)), index_(index) {}

  void append(std::vector<Node> nodes) override {
    for (Node& node : nodes) {
      where_ = node.where;
      std::visit([&](auto& what) { add(what); }, node.what);
    }
  }

  Status check_variable(std::string_view name) const override {
    if (names_.contains(name)) return {};
    return espalier::error(StatusCode::kNotFound, "there is no variable \"{}\"", name);
  }
  std::vector<std::string> variable_names() const override {
    return {names_.begin(), names_.end()};
  }

  void set_variable(std::string name, Value value, Location where) override {
    where_ = where;
    GraphNode& node = make(NodeKind::kSetVariable);
    node.name = name;
    if (value.is_constant()) {
      node.text = value.text();
    } else if (value.is_argument()) {
      node.source_is_argument = true;
      node.source_name = value.name();
    } else if (const auto* source = dynamic_cast<TraceStream*>(value.stream().get())) {
      node.source_stream = source->index_;
      node.source_name = value.name();
    }
    names_.insert(std::move(name));
  }

  Read read(const std::string& name) override { return {espalier::fail(refuse_read(name)), {}}; }
  bool ready(const std::string& name) const override {
    (void)const_cast<TraceStream*>(this)->refuse_read(name);
    return true;
  }
  Result<MetaInfo> meta(const std::string& name) override {
    return espalier::fail(refuse("the meta information of \"" + name + "\""));
  }
  Result<std::string> text() override { return espalier::fail(refuse("its own text")); }
  Result<std::vector<Message>> messages() override {
    return espalier::fail(refuse("its own messages"));
  }
  std::shared_ptr<TextStream::Source> open_text(const std::string&) override {
    class Nothing final : public TextStream::Source {
     public:
      explicit Nothing(Status why) : why_(std::move(why)) {}
      Result<bool> read(size_t, std::string&) override { return espalier::fail(why_); }

     private:
      Status why_;
    };
    return std::make_shared<Nothing>(refuse("text as it is written"));
  }

  std::vector<std::shared_ptr<PromptStream>> fork(int n, Location where) override {
    if (n < 1) throw Error(invalid_argument("a fork needs one branch or more, not {}", n), where);
    where_ = where;
    const auto fork_node = static_cast<int32_t>(trace_->graph.nodes.size());
    make(NodeKind::kFork);
    std::vector<std::shared_ptr<PromptStream>> branches;
    for (int i = 0; i < n; ++i) {
      auto branch = std::make_shared<TraceStream>(trace_, trace_->graph.num_streams++);
      branch->names_ = names_;
      branch->inherited_ = names_;
      branch->where_ = where;
      trace_->graph.nodes[static_cast<size_t>(fork_node)].streams.push_back(branch->index_);
      GraphNode& item = branch->make(NodeKind::kGetForkItem);
      item.fork = fork_node;
      item.index = i;
      branches.push_back(std::move(branch));
    }
    return branches;
  }

  Status join(std::vector<std::shared_ptr<PromptStream>> branches, JoinMode mode,
              Location where) override {
    where_ = where;
    GraphNode& node = make(NodeKind::kJoin);
    node.join_mode = mode;
    for (const auto& branch : branches) {
      auto* stream = dynamic_cast<TraceStream*>(branch.get());
      if (stream == nullptr || stream->joined_)
        return espalier::error(StatusCode::kFailedPrecondition,
                               "these branches were joined before");
      stream->joined_ = true;
      node.streams.push_back(stream->index_);
      if (mode == JoinMode::kGatherVariables)
        for (const std::string& name : stream->names_)
          if (!stream->inherited_.contains(name)) names_.insert(name);
    }
    return {};
  }

  Status sync() override { return {}; }  // nothing runs
  Status error() const override { return trace_->error; }
  Location error_place() const override { return trace_->where; }
  void fail_with(Status why, Location where) override { trace_->refuse(std::move(why), where); }
  void cancel() override {}

 private:
  GraphNode& make(NodeKind kind) {
    GraphNode& node = trace_->graph.nodes.emplace_back();
    node.kind = kind;
    node.stream = index_;
    node.where = to_string(where_);
    return node;
  }
  void add(Text& text) { make(NodeKind::kConstantText).text = std::move(text.text); }
  void add(std::shared_ptr<const Gen>& gen) {
    GraphNode& node = make(NodeKind::kGen);
    node.name = gen->name;
    node.options = gen->options;
    names_.insert(gen->name);
  }
  void add(Select& select) {
    GraphNode& node = make(NodeKind::kSelect);
    node.name = select.name;
    node.options.choices = std::move(select.choices);
    node.options.choices_method = select.method;
    names_.insert(node.name);
  }
  void add(Media& media) { make(NodeKind::kMedia).media = std::move(media); }
  void add(RoleBegin& begin) { make(NodeKind::kRoleBegin).role = begin.role; }
  void add(RoleEnd& end) { make(NodeKind::kRoleEnd).role = end.role; }
  void add(ScopeBegin& scope) {
    make(NodeKind::kScopeBegin).name = scope.name;
    names_.insert(scope.name);
  }
  void add(ScopeEnd& scope) { make(NodeKind::kScopeEnd).name = scope.name; }
  void add(Reference& reference) {
    const Value& value = reference.value;
    if (value.is_argument()) {
      make(NodeKind::kArgument).name = value.name();
    } else if (const auto* source = dynamic_cast<TraceStream*>(value.stream().get())) {
      GraphNode& node = make(NodeKind::kVariable);
      node.source_stream = source->index_;
      node.source_name = value.name();
    } else {
      trace_->refuse(espalier::error(StatusCode::kFailedPrecondition,
                                     "a value of a running program cannot go into a trace"),
                     where_);
    }
  }
  void add(Reasoning&) {
    trace_->refuse(espalier::error(StatusCode::kUnimplemented,
                                   "separate_reasoning cannot be compiled: interpret the program"),
                   where_);
  }

  Status refuse(std::string_view what) {
    Status why = depends_on_data(what);
    trace_->refuse(why, where_);
    return why;
  }
  Status refuse_read(const std::string& name) {
    return refuse(names_.contains(name) ? "the value of \"" + name + "\""
                                        : "its argument \"" + name + "\"");
  }

  const std::shared_ptr<Trace> trace_;
  const int32_t index_;
  std::set<std::string, std::less<>> names_, inherited_;
  Location where_;
  bool joined_ = false;
};

}  // namespace

Result<Graph> trace(const Program& program, Graph* partial) {
  auto trace = std::make_shared<Trace>();
  trace->graph.name = program.name();
  auto root = std::make_shared<TraceStream>(trace, 0);
  Arguments arguments;
  for (const std::string& name : program.parameters()) {
    if (const Value* bound = program.bound().find(name)) {
      arguments.set(name, *bound);
    } else {
      trace->graph.parameters.push_back(name);
      arguments.set(name, Value::argument(root, name));
    }
  }
  State state(root);
  try {
    program(state, arguments);
  } catch (const Error& why) {
    trace->refuse(why.status(), why.where());
    if (why.where().line != 0) trace->where = why.where();  // where it was read
  } catch (const std::exception& why) {
    trace->refuse(error(StatusCode::kAborted, "the program threw: {}", why.what()), {});
  }
  if (trace->error.ok()) return std::move(trace->graph);
  if (partial != nullptr) *partial = std::move(trace->graph);
  const std::string place = to_string(trace->where);
  return fail(place.empty() ? trace->error : trace->error.with_context(place));
}

std::string constant_prefix(const Program& program, const Backend& backend) {
  Graph partial;
  const Result<Graph> whole = trace(program, &partial);
  return constant_prefix(whole ? *whole : partial, backend);
}

}  // namespace espalier::lang
