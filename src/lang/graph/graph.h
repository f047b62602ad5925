// A program as data: the graph of the SGLang paper's appendix D. Nodes stand in the program's
// order, which is a topological one; each belongs to a stream (a prompt state).
//
//   stream 0   ConstantText -> Fork -> ..........-> Variable -> Gen
//                               \  inter-stream    /
//   stream 1                     GetForkItem -> Gen
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "lang/expr.h"
#include "lang/program.h"

namespace espalier::lang {

enum class NodeKind {
  kConstantText,  // text
  kArgument,      // name
  kGen,           // name, options
  kSelect,        // name, options.choices, options.choices_method
  kVariable,      // name of source_stream, appended
  kSetVariable,   // name = that of another (source_stream, source_name), an argument's or text
  kFork,          // streams: its branches
  kGetForkItem,   // the first node of a branch: index of the fork that is node `fork`
  kJoin,          // streams, join_mode
  kMedia,         // media
  kRoleBegin,     // role
  kRoleEnd,       // role
  kScopeBegin,    // name
  kScopeEnd,      // name
};
std::string_view node_kind_name(NodeKind kind);  // "ConstantText"

struct GraphNode {
  NodeKind kind = NodeKind::kConstantText;
  int32_t stream = 0;
  std::string text, name;
  GenOptions options;
  int32_t source_stream = -1;  // -1: a constant or an argument (source_is_argument)
  std::string source_name;
  bool source_is_argument = false;
  std::vector<int32_t> streams;
  int32_t fork = -1;  // index of a node
  int32_t index = 0;
  JoinMode join_mode = JoinMode::kGatherVariables;
  Media media;
  Role role = Role::kUser;
  std::string where;  // "tips.cc:12"
};

struct Edge {
  int32_t from = 0, to = 0;  // indices of nodes
  bool inter_stream = false;
};

struct Graph {
  std::string name;
  std::vector<std::string> parameters;
  int32_t num_streams = 1;
  std::vector<GraphNode> nodes;

  // Intra-stream: from each node to the next of its stream. Inter-stream: from the node that fills
  // a variable to those that read it, from a fork to its items, from a branch's end to its join.
  std::vector<Edge> edges() const;
  // What a hand-written graph may get wrong: streams that no fork makes, variables that nothing
  // fills before they are read, a stream that is joined twice.
  Status check() const;
};

// ---- JSON and pictures ----
std::string to_json(const Graph& graph);
Result<Graph> parse_graph(std::string_view json);
std::string to_svg(const Graph& graph);  // a column for each stream, time downwards

// ---- running it, without the host function ----
// Appends the whole program to `root`; waits for nothing. kInvalidArgument for arguments that are
// missing or unknown, and for what check() finds.
Status apply_graph(const Graph& graph, State& root, const Arguments& arguments);
State run_graph(const Graph& graph, const Arguments& arguments, const RunOptions& options);
// A graph that is run often: checked, and its constant nodes made, once. Immutable, thread-safe.
class PreparedGraph {
 public:
  // What check() finds.
  static Result<PreparedGraph> create(Graph graph);
  // As apply_graph. What follows each other in a stream is appended at once.
  Status apply(State& root, const Arguments& arguments) const;

 private:
  class Run;
  Graph graph_;
  std::vector<Expr> exprs_;  // by node; empty: made anew each time
};
// The constant text with which stream 0 begins, messages framed by the back end. run_graph can send
// it ahead before any argument is known.
std::string constant_prefix(const Graph& graph, const Backend& backend);

}  // namespace espalier::lang
