// A picture of a graph: a column for each stream, the program's order downwards. Whole lines are
// dependencies within a stream, dashed ones between streams.
#include <algorithm>

#include "lang/graph/graph.h"

namespace espalier::lang {
namespace {

constexpr int kColumn = 230, kRow = 44, kBox = 200, kBoxHeight = 28, kMargin = 20;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\n':
        out += "\\n";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

// At most `max` bytes, cut between characters.
std::string shortened(std::string_view text, size_t max) {
  if (text.size() <= max) return std::string(text);
  while (max > 0 && (static_cast<unsigned char>(text[max]) & 0xc0) == 0x80) --max;
  return std::string(text.substr(0, max)) + "...";
}

std::string label(const GraphNode& n) {
  switch (n.kind) {
    case NodeKind::kConstantText:
      return "\"" + shortened(n.text, 22) + "\"";
    case NodeKind::kVariable:
      return fmt::format("Variable {}.{}", n.source_stream, n.source_name);
    case NodeKind::kFork:
      return fmt::format("Fork {}", n.streams.size());
    case NodeKind::kGetForkItem:
      return fmt::format("GetForkItem {}", n.index);
    case NodeKind::kRoleBegin:
    case NodeKind::kRoleEnd:
      return fmt::format("{} {}", node_kind_name(n.kind), role_name(n.role));
    case NodeKind::kMedia:
      return "Media " + shortened(n.media.path, 18);
    default:
      return fmt::format("{} {}", node_kind_name(n.kind), n.name);
  }
}

std::string_view color(NodeKind kind) {
  switch (kind) {
    case NodeKind::kGen:
    case NodeKind::kSelect:
      return "#ffd9a0";
    case NodeKind::kFork:
    case NodeKind::kGetForkItem:
    case NodeKind::kJoin:
      return "#cfe3ff";
    case NodeKind::kArgument:
    case NodeKind::kVariable:
    case NodeKind::kSetVariable:
      return "#d8f0d0";
    default:
      return "#f2f2f2";
  }
}

}  // namespace

std::string to_svg(const Graph& graph) {
  const auto x = [&](int32_t node) {
    return kMargin + graph.nodes[static_cast<size_t>(node)].stream * kColumn;
  };
  const auto y = [](int32_t node) { return kMargin + node * kRow; };
  const int width = 2 * kMargin + graph.num_streams * kColumn;
  const int height = 2 * kMargin + static_cast<int>(graph.nodes.size()) * kRow;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<title>{}</title>\n",
      width, height, escaped(graph.name));
  for (const Edge& edge : graph.edges())
    out += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#555\"{}/>\n",
                       x(edge.from) + kBox / 2, y(edge.from) + kBoxHeight, x(edge.to) + kBox / 2,
                       y(edge.to), edge.inter_stream ? " stroke-dasharray=\"4 3\"" : "");
  for (int32_t i = 0; i < static_cast<int32_t>(graph.nodes.size()); ++i) {
    const GraphNode& node = graph.nodes[static_cast<size_t>(i)];
    out += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"5\" fill=\"{}\" "
        "stroke=\"#555\"><title>{}</title></rect>\n<text x=\"{}\" y=\"{}\">{}</text>\n",
        x(i), y(i), kBox, kBoxHeight, color(node.kind),
        escaped(shortened(node.text.empty() ? label(node) : node.text, 400)), x(i) + 8, y(i) + 19,
        escaped(label(node)));
  }
  return out + "</svg>\n";
}

}  // namespace espalier::lang
