#include "grammar/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

namespace espalier::grammar {
namespace {

constexpr int kColumn = 80, kRow = 64, kRadius = 14, kMargin = 40, kLabelMax = 28;
constexpr size_t kSpaceStatesMax = 1000;
constexpr double kLetter = 7.3;  // width of a label's letter, in pixels

void append_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
}

std::string byte_text(uint8_t byte) {
  if (byte == ' ') return "␣";
  if (byte == '\n') return "\\n";
  if (byte == '\t') return "\\t";
  if (byte > 0x20 && byte < 0x7f) return std::string(1, static_cast<char>(byte));
  return fmt::format("\\x{:02x}", byte);
}

std::string range_text(uint8_t low, uint8_t high) {
  if (low == high) return byte_text(low);
  return byte_text(low) + (high == low + 1 ? "" : "-") + byte_text(high);
}

std::string shortened(const std::string& label) {
  if (label.size() <= kLabelMax) return label;
  size_t end = kLabelMax;
  while (end > 0 && (static_cast<uint8_t>(label[end]) & 0xc0) == 0x80) --end;
  return label.substr(0, end) + "…";
}

std::string times_text(const IrRules::Counter& counter) {
  if (counter.max == IrRules::kNoMax) return fmt::format("at least {}", counter.min);
  return fmt::format("{} to {}", counter.min, counter.max);
}

bool is_space(const Network::ByteEdge& edge) {
  const auto in = [&](uint8_t low, uint8_t high) { return edge.low >= low && edge.high <= high; };
  return in('\t', '\n') || in('\r', '\r') || in(' ', ' ');
}

struct Edge {
  NodeId to = 0;
  std::string label;
};

// The states of one rule with the edges that are drawn: chains are merged into one edge, and
// optional white space is omitted.
class RuleGraph {
 public:
  RuleGraph(const Network& network, NodeId start, size_t nodes_max) : network_(network) {
    collect(start, nodes_max);
    connect(start);
  }
  struct Drawn {
    NodeId node;
    int column, row;
    std::vector<Edge> edges;
  };
  std::vector<Drawn> nodes;
  bool cut = false;
  bool without_space = false;  // some optional white space is not drawn
  int num_rows = 0;
  std::vector<int> column_x;  // [column] and, behind the last column, the width

  const Drawn* find(NodeId node) const {
    const auto it = place_.find(node);
    return it == place_.end() ? nullptr : &nodes[it->second];
  }

 private:
  void collect(NodeId start, size_t nodes_max) {
    std::vector<NodeId> work = {start};
    ways_in_[start] = 2;  // the start is never inside a chain
    for (size_t i = 0; i < work.size(); ++i) {
      const auto visit = [&](NodeId to) {
        if (++ways_in_[to] > 1) return;
        if (work.size() < 64 * nodes_max) work.push_back(to);
      };
      for (const auto& edge : bytes_of(work[i])) visit(edge.target);
      for (const auto& call : network_.calls_of(work[i])) visit(call.target);
      for (const auto& count : network_.counts_of(work[i])) visit(count.target);
    }
    nodes_max_ = nodes_max;
  }

  std::vector<Network::ByteEdge> bytes_of(NodeId id) {
    const auto all = network_.bytes_of(id);
    std::vector<Network::ByteEdge> edges(all.begin(), all.end());
    const auto spaces = std::ranges::partition(edges, [](auto& e) { return !is_space(e); });
    if (spaces.empty() || !space_may_be_left_out(id)) return {all.begin(), all.end()};
    without_space = true;
    edges.erase(spaces.begin(), spaces.end());
    return edges;
  }

  // Returns whether everything that may follow white space here may also stand without it and leads
  // to the same state.
  bool space_may_be_left_out(NodeId id) const {
    const auto here = network_.bytes_of(id);
    const auto also_here = [&](const Network::ByteEdge& edge) {
      return std::ranges::any_of(here, [&](const Network::ByteEdge& own) {
        return own.target == edge.target && own.low <= edge.low && edge.high <= own.high;
      });
    };
    std::vector<NodeId> within = {id};
    for (size_t i = 0; i < within.size(); ++i) {
      if (within.size() > kSpaceStatesMax) return false;
      if (network_.nodes[within[i]].final && !network_.nodes[id].final) return false;
      if (!network_.counts_of(within[i]).empty()) return false;
      for (const auto& edge : network_.bytes_of(within[i])) {
        if (is_space(edge)) {
          if (std::ranges::find(within, edge.target) == within.end()) within.push_back(edge.target);
        } else if (!also_here(edge)) {
          return false;
        }
      }
      for (const auto& call : network_.calls_of(within[i])) {
        if (!std::ranges::any_of(network_.calls_of(id), [&](const Network::CallEdge& own) {
              return own.rule == call.rule && own.target == call.target;
            }))
          return false;
      }
    }
    return within.size() > 1;
  }

  // A state with one edge in and one byte out is part of an edge's label.
  bool inside_chain(NodeId id) {
    const Network::Node& node = network_.nodes[id];
    if (node.final || ways_in_.at(id) != 1) return false;
    const auto bytes = bytes_of(id);
    return network_.calls_of(id).empty() && network_.counts_of(id).empty() && bytes.size() == 1 &&
           bytes[0].low == bytes[0].high;
  }

  Edge follow(Edge edge) {
    while (ways_in_.contains(edge.to) && inside_chain(edge.to)) {
      const Network::ByteEdge next = bytes_of(edge.to)[0];
      edge.label += byte_text(next.low);
      edge.to = next.target;
    }
    return edge;
  }

  std::vector<Edge> edges_of(NodeId id) {
    std::map<NodeId, std::string> sets;
    std::vector<Edge> out;
    for (const auto& edge : bytes_of(id)) {
      if (edge.low == edge.high && ways_in_.contains(edge.target) && inside_chain(edge.target)) {
        out.push_back(follow({edge.target, byte_text(edge.low)}));
      } else {
        std::string& label = sets[edge.target];
        label += (label.empty() ? "" : " ") + range_text(edge.low, edge.high);
      }
    }
    for (auto& [to, label] : sets) out.push_back(follow({to, label}));
    for (const auto& call : network_.calls_of(id)) {
      const bool nothing = call.rule == Network::kNoRule;
      out.push_back({call.target, nothing ? "" : "⟨" + network_.rule_names[call.rule] + "⟩"});
    }
    for (const auto& count : network_.counts_of(id)) {
      const int32_t counter = network_.nodes[id].counter;
      const std::string times =
          counter < 0 ? "" : " " + times_text(network_.counters[static_cast<size_t>(counter)]);
      out.push_back({count.target, count.tick ? "(count)" : "(if" + times + ")"});
    }
    return out;
  }

  void connect(NodeId start) {
    std::vector<int> rows;  // [column] rows used
    const auto add = [&](NodeId node, int column) {
      if (place_.contains(node)) return;
      if (nodes.size() >= nodes_max_) {
        cut = true;
        return;
      }
      if (static_cast<size_t>(column) >= rows.size()) rows.push_back(0);
      place_[node] = nodes.size();
      nodes.push_back({node, column, rows[static_cast<size_t>(column)]++, {}});
    };
    add(start, 0);
    for (size_t i = 0; i < nodes.size(); ++i) {
      nodes[i].edges = edges_of(nodes[i].node);
      const int column = nodes[i].column;
      for (const Edge& edge : std::vector<Edge>(nodes[i].edges)) add(edge.to, column + 1);
    }
    for (const int count : rows) num_rows = std::max(num_rows, count);
    place_columns(rows.size());
  }

  // A column is as wide as the labels that begin there.
  void place_columns(size_t num_columns) {
    std::vector<int> widths(num_columns, kColumn);
    for (const Drawn& node : nodes) {
      for (const Edge& edge : node.edges) {
        const auto letters = std::ranges::count_if(
            shortened(edge.label), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; });
        int& width = widths[static_cast<size_t>(node.column)];
        width = std::max(width, static_cast<int>(kLetter * static_cast<double>(letters)) + 60);
      }
    }
    column_x.assign(1, 0);
    for (const int width : widths) column_x.push_back(column_x.back() + width);
  }

  const Network& network_;
  size_t nodes_max_ = 0;
  std::map<NodeId, int> ways_in_;
  std::map<NodeId, size_t> place_;
};

void draw_edge(std::string& out, double x1, double y1, double x2, double y2,
               const std::string& label, int bend) {
  double mx = (x1 + x2) / 2, my = (y1 + y2) / 2 - 14.0 * bend;
  if (x1 == x2 && y1 == y2) {  // a self-loop, above
    out +=
        fmt::format("<path d=\"M{:.0f} {:.0f} C {:.0f} {:.0f} {:.0f} {:.0f} {:.0f} {:.0f}\"/>",
                    x1 - 6, y1 - kRadius, x1 - 30, y1 - 46, x1 + 30, y1 - 46, x1 + 6, y1 - kRadius);
    mx = x1;
    my = y1 - 38;
  } else if (x2 <= x1) {  // a back edge, below
    my = std::max(y1, y2) + 30;
    out += fmt::format("<path d=\"M{:.0f} {:.0f} Q {:.0f} {:.0f} {:.0f} {:.0f}\"/>", x1,
                       y1 + kRadius, mx, my + 12, x2, y2 + kRadius);
  } else {
    out += fmt::format("<path d=\"M{:.0f} {:.0f} Q {:.0f} {:.0f} {:.0f} {:.0f}\"/>", x1 + kRadius,
                       y1, mx, my, x2 - kRadius - 2, y2);
  }
  out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">", mx, my - 4);
  append_escaped(out, shortened(label));
  out += "<title>";
  append_escaped(out, label);
  out += "</title></text>\n";
}

void draw_rule(std::string& out, const RuleGraph& graph, const Network& network, int top) {
  const auto x = [&](const RuleGraph::Drawn& n) {
    return kMargin + kRadius + graph.column_x[static_cast<size_t>(n.column)];
  };
  const auto y = [&](const RuleGraph::Drawn& n) { return top + kRow / 2 + n.row * kRow; };
  for (const RuleGraph::Drawn& node : graph.nodes) {
    std::map<NodeId, int> parallel;
    for (const Edge& edge : node.edges) {
      const RuleGraph::Drawn* const to = graph.find(edge.to);
      if (to != nullptr)
        draw_edge(out, x(node), y(node), x(*to), y(*to), edge.label, parallel[edge.to]++);
    }
  }
  for (const RuleGraph::Drawn& node : graph.nodes) {
    out += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\"/>\n", x(node), y(node), kRadius);
    if (network.nodes[node.node].final)
      out += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\"/>\n", x(node), y(node), kRadius - 4);
  }
}

}  // namespace

std::string draw_svg(const Network& network, size_t nodes_max) {
  std::string body;
  int top = kMargin, width = 0;
  for (size_t rule = 0; rule < network.starts.size(); ++rule) {
    const RuleGraph graph(network, network.starts[rule], nodes_max);
    body += fmt::format("<text class=\"rule\" x=\"{}\" y=\"{}\">", kMargin, top);
    append_escaped(body, network.rule_names[rule]);
    if (graph.cut) body += fmt::format(" (the first {} states)", graph.nodes.size());
    if (graph.without_space) body += " (without the white space that may be left out)";
    body += "</text>\n";
    draw_rule(body, graph, network, top + kRow / 2);
    top += (graph.num_rows + 1) * kRow + kRow / 2;
    width = std::max(width, graph.column_x.back());
  }
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
             "viewBox=\"0 0 {0} {1}\">\n"
             "<style>text{{font:12px monospace;text-anchor:middle}}"
             ".rule{{font-weight:bold;text-anchor:start}}"
             "path{{fill:none;stroke:#667;marker-end:url(#arrow)}}"
             "circle{{fill:#fff;stroke:#223;stroke-width:1.5}}</style>\n"
             "<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" "
             "markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" "
             "style=\"fill:#667;marker-end:none\"/></marker></defs>\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
             width + 2 * kMargin, top + kMargin) +
         body + "</svg>\n";
}

}  // namespace espalier::grammar
