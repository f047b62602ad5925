#include "lang/graph/graph.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "lang/interpreter/stream.h"

namespace espalier::lang {
namespace {

bool fills(const GraphNode& node) {
  switch (node.kind) {
    case NodeKind::kGen:
    case NodeKind::kSelect:
    case NodeKind::kSetVariable:
    case NodeKind::kScopeBegin:
      return !node.name.empty();
    default:
      return false;
  }
}

// Who last filled each variable, as seen by each stream at a place of the program.
class Filled {
 public:
  void step(const Graph& graph, int32_t at) {
    const GraphNode& node = graph.nodes[static_cast<size_t>(at)];
    if (fills(node)) by_stream_[node.stream][node.name] = at;
    if (node.kind == NodeKind::kScopeEnd) by_stream_[node.stream][node.name] = at;
    if (node.kind == NodeKind::kFork)
      for (int32_t branch : node.streams) by_stream_[branch] = by_stream_[node.stream];
    if (node.kind == NodeKind::kJoin && node.join_mode == JoinMode::kGatherVariables)
      for (int32_t branch : node.streams)
        for (const auto& [name, from] : by_stream_[branch])
          if (graph.nodes[static_cast<size_t>(from)].stream == branch)
            by_stream_[node.stream][name] = at;
  }
  int32_t who(int32_t stream, const std::string& name) const {
    const auto it = by_stream_.find(stream);
    if (it == by_stream_.end()) return -1;
    const auto found = it->second.find(name);
    return found == it->second.end() ? -1 : found->second;
  }

 private:
  std::map<int32_t, std::map<std::string, int32_t>> by_stream_;
};

}  // namespace

std::string_view node_kind_name(NodeKind kind) {
  constexpr std::string_view kNames[] = {
      "ConstantText", "Argument", "Gen",   "Select",    "Variable", "SetVariable", "Fork",
      "GetForkItem",  "Join",     "Media", "RoleBegin", "RoleEnd",  "ScopeBegin",  "ScopeEnd"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<Edge> Graph::edges() const {
  std::vector<Edge> all;
  std::map<int32_t, int32_t> last;  // node of each stream
  Filled filled;
  for (int32_t i = 0; i < static_cast<int32_t>(nodes.size()); ++i) {
    const GraphNode& node = nodes[static_cast<size_t>(i)];
    if (const auto before = last.find(node.stream); before != last.end())
      all.push_back({before->second, i, false});
    if (node.kind == NodeKind::kGetForkItem) all.push_back({node.fork, i, true});
    if (node.source_stream >= 0) {
      const int32_t from = filled.who(node.source_stream, node.source_name);
      if (from >= 0 && (nodes[static_cast<size_t>(from)].stream != node.stream))
        all.push_back({from, i, true});
    }
    if (node.kind == NodeKind::kJoin)
      for (int32_t branch : node.streams)
        if (const auto end = last.find(branch); end != last.end())
          all.push_back({end->second, i, true});
    last[node.stream] = i;
    filled.step(*this, i);
  }
  return all;
}

Status Graph::check() const {
  std::set<int32_t> made = {0}, joined;
  Filled filled;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const GraphNode& node = nodes[i];
    const auto wrong = [&](std::string_view what) {
      return invalid_argument("node {} ({}) {}", i, node_kind_name(node.kind), what);
    };
    if (node.kind == NodeKind::kFork)
      for (int32_t branch : node.streams)
        if (branch <= 0 || branch >= num_streams || !made.insert(branch).second)
          return wrong(fmt::format("makes stream {}, which is not a new one", branch));
    if (!made.contains(node.stream))
      return wrong(fmt::format("is of stream {}, which no fork before it makes", node.stream));
    if (node.kind == NodeKind::kFork && node.streams.empty()) return wrong("has no branches");
    if (node.kind == NodeKind::kGetForkItem) {
      const bool is_fork = node.fork >= 0 && static_cast<size_t>(node.fork) < i &&
                           nodes[static_cast<size_t>(node.fork)].kind == NodeKind::kFork;
      if (!is_fork) return wrong("names no fork before it");
      const auto& streams = nodes[static_cast<size_t>(node.fork)].streams;
      if (node.index < 0 || static_cast<size_t>(node.index) >= streams.size() ||
          streams[static_cast<size_t>(node.index)] != node.stream)
        return wrong("is not the item of its fork that is this stream");
    }
    const std::string& argument = node.kind == NodeKind::kArgument ? node.name : node.source_name;
    if ((node.kind == NodeKind::kArgument || node.source_is_argument) &&
        std::find(parameters.begin(), parameters.end(), argument) == parameters.end())
      return wrong(fmt::format("names \"{}\", which is no parameter", argument));
    if (node.kind == NodeKind::kVariable && node.source_stream < 0)
      return wrong("names no stream that it reads");
    if (node.source_stream >= 0 && filled.who(node.source_stream, node.source_name) < 0)
      return wrong(fmt::format("reads \"{}\" of stream {}, which nothing fills before it",
                               node.source_name, node.source_stream));
    if (node.kind == NodeKind::kJoin)
      for (int32_t branch : node.streams)
        if (!made.contains(branch) || branch == node.stream || !joined.insert(branch).second)
          return wrong(fmt::format("joins stream {}, which is not there or joined before", branch));
    filled.step(*this, static_cast<int32_t>(i));
  }
  return {};
}

std::string constant_prefix(const Graph& graph, const Backend& backend) {
  std::string prefix;
  std::optional<Role> previous;
  for (const GraphNode& node : graph.nodes) {
    if (node.stream != 0) continue;
    switch (node.kind) {
      case NodeKind::kConstantText:
        prefix += node.text;
        break;
      case NodeKind::kRoleBegin:
        prefix += backend.role_frame(node.role, previous).begin;
        break;
      case NodeKind::kRoleEnd:
        prefix += backend.role_frame(node.role, previous).end;
        previous = node.role;
        break;
      case NodeKind::kSetVariable:
      case NodeKind::kScopeBegin:
      case NodeKind::kScopeEnd:
        break;
      default:
        return prefix;
    }
  }
  return prefix;
}

namespace {

// The program may no longer exist, so errors name nodes instead of lines.
const Location kNowhere;

// What a node appends whatever the arguments are; empty where that is for a run to say.
Expr expr_of(const GraphNode& node) {
  switch (node.kind) {
    case NodeKind::kConstantText:
      return Expr(node.text, kNowhere);
    case NodeKind::kGen:
      return gen(node.name, node.options, kNowhere);
    case NodeKind::kSelect:
      return select(node.name, node.options.choices, node.options.choices_method, kNowhere);
    case NodeKind::kMedia:
      return node.media.kind == Media::Kind::kImage
                 ? image(node.media.path, kNowhere)
                 : video(node.media.path, node.media.num_frames, kNowhere);
    case NodeKind::kRoleBegin:
      return Expr(Node{RoleBegin{node.role}, kNowhere});
    case NodeKind::kRoleEnd:
      return Expr(Node{RoleEnd{node.role}, kNowhere});
    case NodeKind::kScopeBegin:
      return Expr(Node{ScopeBegin{node.name}, kNowhere});
    case NodeKind::kScopeEnd:
      return Expr(Node{ScopeEnd{node.name}, kNowhere});
    default:
      return {};
  }
}

Status check_arguments(const Graph& graph, const Arguments& arguments) {
  for (const std::string& name : graph.parameters)
    if (arguments.find(name) == nullptr)
      return invalid_argument("{} is not given its argument \"{}\"", graph.name, name);
  for (const auto& [name, value] : arguments.all())
    if (std::find(graph.parameters.begin(), graph.parameters.end(), name) == graph.parameters.end())
      return invalid_argument("{} has no argument \"{}\"", graph.name, name);
  return {};
}

}  // namespace

// One application. Text is buffered until another stream's nodes follow, or until a
// node needs the text to be appended.
class PreparedGraph::Run {
 public:
  Run(const PreparedGraph& prepared, State& root, const Arguments& arguments)
      : prepared_(prepared), graph_(prepared.graph_), arguments_(arguments) {
    streams_.resize(static_cast<size_t>(graph_.num_streams));
    streams_[0] = root;
  }

  void run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const GraphNode& node = graph_.nodes[i];
      const Expr& expr = prepared_.exprs_[i];
      if (!expr.empty()) {
        hold(node.stream, expr);
      } else if (node.kind == NodeKind::kArgument) {
        hold(node.stream, Expr(*arguments_.find(node.name), kNowhere));
      } else if (node.kind == NodeKind::kVariable) {
        if (node.source_stream == pending_stream_) append_pending();
        hold(node.stream, Expr(value(node), kNowhere));
      } else if (node.kind != NodeKind::kConstantText) {  // which appends nothing when it is empty
        append_pending();
        apply(static_cast<int32_t>(i), node);
      }
    }
    append_pending();
  }

 private:
  State& stream(int32_t number) { return *streams_[static_cast<size_t>(number)]; }
  Value value(const GraphNode& node) {
    return stream(node.source_stream)[Name(node.source_name, kNowhere)];
  }

  void hold(int32_t number, Expr expr) {
    if (number != pending_stream_) append_pending();
    pending_stream_ = number;
    pending_ += std::move(expr);
  }
  void append_pending() {
    if (!pending_.empty()) stream(pending_stream_) += std::exchange(pending_, {});
    pending_stream_ = -1;
  }

  void apply(int32_t number, const GraphNode& node) {
    switch (node.kind) {
      case NodeKind::kSetVariable: {
        const Name name(node.name, kNowhere);
        if (node.source_is_argument) {
          stream(node.stream).set_var(name, *arguments_.find(node.source_name));
        } else if (node.source_stream >= 0) {
          stream(node.stream).set_var(name, value(node));
        } else {
          stream(node.stream).set_var(name, Value(node.text));
        }
        break;
      }
      case NodeKind::kFork:
        forks_.emplace(number,
                       stream(node.stream).fork(static_cast<int>(node.streams.size()), kNowhere));
        break;
      case NodeKind::kGetForkItem:
        streams_[static_cast<size_t>(node.stream)] = forks_.at(node.fork)[node.index];
        break;
      case NodeKind::kJoin: {
        std::vector<State> branches;
        for (int32_t branch : node.streams) branches.push_back(stream(branch));
        Forks(stream(node.stream), std::move(branches)).join(node.join_mode, kNowhere);
        break;
      }
      default:
        break;
    }
  }

  const PreparedGraph& prepared_;
  const Graph& graph_;
  const Arguments& arguments_;
  std::vector<std::optional<State>> streams_;
  std::map<int32_t, Forks> forks_;
  Expr pending_;
  int32_t pending_stream_ = -1;
};

Result<PreparedGraph> PreparedGraph::create(Graph graph) {
  ESP_RETURN_IF_ERROR(graph.check());
  PreparedGraph prepared;
  for (const GraphNode& node : graph.nodes) prepared.exprs_.push_back(expr_of(node));
  prepared.graph_ = std::move(graph);
  return prepared;
}

Status PreparedGraph::apply(State& root, const Arguments& arguments) const {
  ESP_RETURN_IF_ERROR(check_arguments(graph_, arguments));
  Run(*this, root, arguments).run();
  return {};
}

Status apply_graph(const Graph& graph, State& root, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const PreparedGraph prepared, PreparedGraph::create(graph));
  return prepared.apply(root, arguments);
}

State run_graph(const Graph& graph, const Arguments& arguments, const RunOptions& options) {
  State root = start(options);
  if (Status status = apply_graph(graph, root, arguments); !status.ok())
    root.handle()->fail_with(std::move(status), {});
  (void)finish(root);  // what failed is in root.error()
  return root;
}

}  // namespace espalier::lang
