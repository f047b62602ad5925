#include "grammar/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

namespace espalier::grammar {
namespace {

constexpr int kColumn = 150, kRow = 64, kRadius = 14, kMargin = 40, kLabelMax = 28;

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

struct Edge {
  NodeId to = 0;
  std::string label;
};

// The states of one rule with the edges that are drawn: chains are one edge.
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
  int num_columns = 0, num_rows = 0;

  const Drawn* find(NodeId node) const {
    const auto it = place_.find(node);
    return it == place_.end() ? nullptr : &nodes[it->second];
  }

 private:
  void collect(NodeId start, size_t nodes_max) {
    std::vector<NodeId> work = {start};
    ways_in_[start] = 2;  // never inside a chain
    for (size_t i = 0; i < work.size(); ++i) {
      const auto visit = [&](NodeId to) {
        if (++ways_in_[to] > 1) return;
        if (work.size() < 64 * nodes_max) work.push_back(to);
      };
      for (const auto& edge : network_.bytes_of(work[i])) visit(edge.target);
      for (const auto& call : network_.calls_of(work[i])) visit(call.target);
    }
    nodes_max_ = nodes_max;
  }

  // One way in, one way on by one byte: its place is in the label of an edge.
  bool inside_chain(NodeId id) const {
    const Network::Node& node = network_.nodes[id];
    const auto bytes = network_.bytes_of(id);
    return !node.final && network_.calls_of(id).empty() && bytes.size() == 1 &&
           bytes[0].low == bytes[0].high && ways_in_.at(id) == 1;
  }

  Edge follow(Edge edge) const {
    while (ways_in_.contains(edge.to) && inside_chain(edge.to)) {
      const auto& next = network_.bytes_of(edge.to)[0];
      edge.label += byte_text(next.low);
      edge.to = next.target;
    }
    return edge;
  }

  std::vector<Edge> edges_of(NodeId id) const {
    std::map<NodeId, std::string> sets;
    std::vector<Edge> out;
    for (const auto& edge : network_.bytes_of(id)) {
      if (edge.low == edge.high && ways_in_.contains(edge.target) && inside_chain(edge.target)) {
        out.push_back(follow({edge.target, byte_text(edge.low)}));
      } else {
        std::string& label = sets[edge.target];
        label += (label.empty() ? "" : " ") + range_text(edge.low, edge.high);
      }
    }
    for (auto& [to, label] : sets) out.push_back(follow({to, label}));
    for (const auto& call : network_.calls_of(id)) {
      const std::string& name = network_.rule_names[call.rule];
      out.push_back({call.target, "⟨" + name + "⟩"});
    }
    return out;
  }

  void connect(NodeId start) {
    std::vector<int> rows;  // used in each column
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
    num_columns = static_cast<int>(rows.size());
    for (const int count : rows) num_rows = std::max(num_rows, count);
  }

  const Network& network_;
  size_t nodes_max_ = 0;
  std::map<NodeId, int> ways_in_;
  std::map<NodeId, size_t> place_;
};

std::string shortened(const std::string& label) {
  if (label.size() <= kLabelMax) return label;
  size_t end = kLabelMax;
  while (end > 0 && (static_cast<uint8_t>(label[end]) & 0xc0) == 0x80) --end;
  return label.substr(0, end) + "…";
}

void draw_edge(std::string& out, double x1, double y1, double x2, double y2,
               const std::string& label, int bend) {
  double mx = (x1 + x2) / 2, my = (y1 + y2) / 2 - 14.0 * bend;
  if (x1 == x2 && y1 == y2) {  // to itself: a loop above
    out +=
        fmt::format("<path d=\"M{:.0f} {:.0f} C {:.0f} {:.0f} {:.0f} {:.0f} {:.0f} {:.0f}\"/>",
                    x1 - 6, y1 - kRadius, x1 - 30, y1 - 46, x1 + 30, y1 - 46, x1 + 6, y1 - kRadius);
    mx = x1;
    my = y1 - 38;
  } else if (x2 <= x1) {  // back: below
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
  const auto x = [](const RuleGraph::Drawn& n) { return kMargin + kRadius + n.column * kColumn; };
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
    body += "</text>\n";
    draw_rule(body, graph, network, top + kRow / 2);
    top += (graph.num_rows + 1) * kRow + kRow / 2;
    width = std::max(width, graph.num_columns * kColumn);
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
