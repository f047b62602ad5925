#include "lang/graph/passes.h"

#include <algorithm>
#include <map>
#include <set>

namespace espalier::lang {
namespace {

// The graph of the nodes that `keep` names, with forks renumbered.
Graph filtered(const Graph& graph, const std::vector<bool>& keep) {
  Graph out = graph;
  out.nodes.clear();
  std::vector<int32_t> moved(graph.nodes.size(), -1);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!keep[i]) continue;
    moved[i] = static_cast<int32_t>(out.nodes.size());
    GraphNode node = graph.nodes[i];
    if (node.fork >= 0) node.fork = moved[static_cast<size_t>(node.fork)];
    out.nodes.push_back(std::move(node));
  }
  return out;
}

bool is_call(const GraphNode& node) {
  return node.kind == NodeKind::kGen || node.kind == NodeKind::kSelect;
}

}  // namespace

Graph fold_constants(const Graph& graph, const Arguments& known) {
  Graph out = graph;
  std::erase_if(out.parameters,
                [&](const std::string& name) { return known.find(name) != nullptr; });
  for (GraphNode& node : out.nodes) {
    if (node.kind == NodeKind::kArgument) {
      const Value* value = known.find(node.name);
      if (value == nullptr || !value->is_constant()) continue;
      node.kind = NodeKind::kConstantText;
      node.text = value->text();
      node.name.clear();
    } else if (node.source_is_argument) {
      const Value* value = known.find(node.source_name);
      if (value == nullptr || !value->is_constant()) continue;
      node.source_is_argument = false;
      node.source_name.clear();
      node.text = value->text();
    }
  }
  std::vector<bool> keep(out.nodes.size(), true);
  std::map<int32_t, size_t> text_before;  // of each stream, when its last node is a text
  for (size_t i = 0; i < out.nodes.size(); ++i) {
    GraphNode& node = out.nodes[i];
    if (node.kind != NodeKind::kConstantText) {
      // Setting a variable takes nothing from the text around it.
      if (node.kind != NodeKind::kSetVariable) text_before.erase(node.stream);
      continue;
    }
    const auto before = text_before.find(node.stream);
    if (node.text.empty()) {
      keep[i] = false;
    } else if (before != text_before.end()) {
      out.nodes[before->second].text += node.text;
      keep[i] = false;
    } else {
      text_before[node.stream] = i;
    }
  }
  return filtered(out, keep);
}

namespace {

// Which nodes and streams the outputs need. Nodes are visited backwards: a stream is wanted from
// its last wanted node on towards its beginning, for every text depends on all before it.
class Liveness {
 public:
  Liveness(const Graph& graph, const std::optional<std::vector<std::string>>& outputs)
      : graph_(graph), wants_root_(!outputs), keep_(graph.nodes.size(), false) {
    if (outputs) {
      for (const std::string& name : *outputs) needed_.emplace(0, name);
    } else {
      wanted_.insert(0);
    }
    for (const GraphNode& node : graph.nodes)
      if (!node.name.empty() && node.kind != NodeKind::kArgument)
        filled_by_[node.stream].insert(node.name);
    for (size_t i = graph.nodes.size(); i-- > 0;) visit(i);
  }

  const std::vector<bool>& keep() const { return keep_; }
  bool wants(int32_t stream) const { return wanted_.contains(stream); }

 private:
  void visit(size_t i) {
    const GraphNode& node = graph_.nodes[i];
    const bool live = is_live(node);
    keep_[i] = live;
    if (live) want_streams(node);
    if (live && node.source_stream >= 0) needed_.emplace(node.source_stream, node.source_name);
    if (node.kind == NodeKind::kGetForkItem) need_inherited(node);
  }

  bool is_live(const GraphNode& node) const {
    const bool all_of_root = node.stream == 0 && wants_root_;
    switch (node.kind) {
      case NodeKind::kGen:
      case NodeKind::kSelect:
      case NodeKind::kScopeEnd:
        return wants(node.stream) || needed_.contains({node.stream, node.name});
      case NodeKind::kSetVariable:
        return all_of_root || needed_.contains({node.stream, node.name});
      case NodeKind::kJoin:
        if (node.join_mode != JoinMode::kGatherVariables) return wants(node.stream);
        return all_of_root || gathers_needed(node);
      case NodeKind::kFork:
        return std::ranges::any_of(node.streams, [&](int32_t branch) { return wants(branch); });
      default:
        return wants(node.stream);
    }
  }

  bool gathers_needed(const GraphNode& join) const {
    for (const int32_t branch : join.streams) {
      const auto filled = filled_by_.find(branch);
      if (filled == filled_by_.end()) continue;
      for (const std::string& name : filled->second)
        if (needed_.contains({join.stream, name})) return true;
    }
    return false;
  }

  // The streams whose text a live node depends on.
  void want_streams(const GraphNode& node) {
    switch (node.kind) {
      case NodeKind::kGen:
      case NodeKind::kSelect:
      case NodeKind::kScopeEnd:
      case NodeKind::kFork:
        wanted_.insert(node.stream);
        break;
      case NodeKind::kJoin:
        wanted_.insert(node.streams.begin(), node.streams.end());
        break;
      default:
        break;
    }
  }

  // What a branch reads and does not fill itself comes from its parent.
  void need_inherited(const GraphNode& item) {
    const int32_t parent = graph_.nodes[static_cast<size_t>(item.fork)].stream;
    std::vector<std::string> inherited;
    for (const auto& [stream, name] : needed_)
      if (stream == item.stream && !filled_by_[stream].contains(name)) inherited.push_back(name);
    for (std::string& name : inherited) needed_.emplace(parent, std::move(name));
  }

  const Graph& graph_;
  const bool wants_root_;  // the whole text and all variables of stream 0
  std::vector<bool> keep_;
  std::set<int32_t> wanted_;                            // streams
  std::set<std::pair<int32_t, std::string>> needed_;    // variables
  std::map<int32_t, std::set<std::string>> filled_by_;  // names that each stream fills itself
};

}  // namespace

Graph eliminate_dead(const Graph& graph, const std::optional<std::vector<std::string>>& outputs) {
  const Liveness liveness(graph, outputs);
  Graph out = filtered(graph, liveness.keep());
  // Branches without a live node are removed from their forks.
  for (GraphNode& node : out.nodes) {
    if (node.kind == NodeKind::kFork || node.kind == NodeKind::kJoin)
      std::erase_if(node.streams, [&](int32_t branch) { return !liveness.wants(branch); });
    if (node.kind == NodeKind::kGetForkItem) {
      const auto& streams = out.nodes[static_cast<size_t>(node.fork)].streams;
      node.index = static_cast<int32_t>(std::find(streams.begin(), streams.end(), node.stream) -
                                        streams.begin());
    }
  }
  return out;
}

namespace {

// The bytes that all begin with, cut between characters.
size_t common_prefix(const std::vector<const GraphNode*>& nodes) {
  std::string_view common = nodes.front()->text;
  for (const GraphNode* node : nodes) {
    const auto differ =
        std::mismatch(common.begin(), common.end(), node->text.begin(), node->text.end());
    common = common.substr(0, static_cast<size_t>(differ.first - common.begin()));
  }
  size_t size = common.size();
  const std::string& first = nodes.front()->text;
  while (size > 0 && size < first.size() &&
         (static_cast<unsigned char>(first[size]) & 0xc0) == 0x80)
    --size;
  return size;
}

}  // namespace

Hoisted hoist_common_prefixes(const Graph& graph) {
  Hoisted result{.graph = fold_constants(graph)};
  Graph& g = result.graph;
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    if (g.nodes[i].kind != NodeKind::kFork || g.nodes[i].streams.size() < 2) continue;
    const std::vector<int32_t> branches = g.nodes[i].streams;
    // The first text of each branch, where it is what the branch begins with.
    std::vector<size_t> first;
    for (int32_t branch : branches) {
      size_t count = 0;
      for (size_t k = i + 1; k < g.nodes.size() && count < 2; ++k) {
        if (g.nodes[k].stream != branch) continue;
        if (++count == 2 && g.nodes[k].kind == NodeKind::kConstantText) first.push_back(k);
      }
    }
    if (first.size() != branches.size()) continue;
    std::vector<const GraphNode*> texts;
    for (size_t k : first) texts.push_back(&g.nodes[k]);
    const size_t size = common_prefix(texts);
    if (size == 0) continue;
    ++result.num_forks;
    result.chars_saved += static_cast<int64_t>(size * (branches.size() - 1));

    const std::string prefix = g.nodes[first[0]].text.substr(0, size);
    for (size_t k : first) g.nodes[k].text.erase(0, size);
    const int32_t between = g.num_streams++;
    GraphNode fork = g.nodes[i];
    fork.streams = {between};
    GraphNode item;
    item.kind = NodeKind::kGetForkItem;
    item.stream = between;
    item.fork = static_cast<int32_t>(i);
    item.where = fork.where;
    GraphNode text;
    text.kind = NodeKind::kConstantText;
    text.stream = between;
    text.text = prefix;
    text.where = fork.where;
    g.nodes[i].stream = between;  // the old fork now stands in the state between
    const auto at = g.nodes.begin() + static_cast<std::ptrdiff_t>(i);
    g.nodes.insert(at, {fork, item, text});
    for (size_t k = i + 3; k < g.nodes.size(); ++k)
      if (g.nodes[k].fork >= static_cast<int32_t>(i)) g.nodes[k].fork += 3;
    i += 3;
  }
  g = fold_constants(g);
  return result;
}

Plan plan(const Graph& graph) {
  std::vector<int32_t> stage(graph.nodes.size(), 0);  // calls up to and with each node
  std::map<int32_t, std::vector<int32_t>> before;
  for (const Edge& edge : graph.edges()) before[edge.to].push_back(edge.from);
  Plan out;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (int32_t from : before[static_cast<int32_t>(i)])
      stage[i] = std::max(stage[i], stage[static_cast<size_t>(from)]);
    if (!is_call(graph.nodes[i])) continue;
    ++out.num_calls;
    const auto at = static_cast<size_t>(stage[i]++);
    if (out.stages.size() <= at) out.stages.resize(at + 1);
    out.stages[at].push_back(static_cast<int32_t>(i));
    out.width = std::max(out.width, out.stages[at].size());
  }
  return out;
}

Graph optimize(const Graph& graph, const Arguments& known) {
  return hoist_common_prefixes(eliminate_dead(fold_constants(graph, known))).graph;
}

Program compiled(Graph graph) {
  const std::string name = graph.name;
  const std::vector<std::string> parameters = graph.parameters;
  auto prepared = std::make_shared<const Result<PreparedGraph>>(
      PreparedGraph::create(std::move(graph)));  // shared by the program's copies
  return Program(name, parameters, [prepared](State& state, const Arguments& arguments) {
    if (!*prepared) throw Error(prepared->error(), {});
    if (Status status = (*prepared)->apply(state, arguments); !status.ok())
      throw Error(std::move(status), {});
  });
}

}  // namespace espalier::lang
