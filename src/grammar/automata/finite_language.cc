#include "grammar/automata/finite_language.h"

#include <algorithm>
#include <set>
#include <utility>

namespace espalier::grammar {
namespace {

constexpr int kDepthMax = 100;          // of expressions, and edges of one path
constexpr size_t kTextBytesMax = 4096;  // of one text
constexpr size_t kStepsMax = 20'000;

class Enumerator {
 public:
  using Texts = std::set<std::string>;
  Enumerator(const Ir& ir, size_t texts_max) : ir_(ir), texts_max_(texts_max) {}

  std::optional<Texts> texts_of(ExprId expr, int depth) {
    if (depth > kDepthMax || ++steps_ > kStepsMax) return std::nullopt;
    const Ir::Node& node = ir_.node(expr);
    switch (node.op) {
      case Ir::Op::kNever:
        return Texts();
      case Ir::Op::kEmpty:
        return Texts{""};
      case Ir::Op::kBytes:
        return bytes(ir_.byte_set(expr));
      case Ir::Op::kSequence:
        return sequence(expr, depth);
      case Ir::Op::kChoice:
        return choice(expr, depth);
      case Ir::Op::kRepeat:
        return repeat(expr, depth);
      case Ir::Op::kRule:
        return rule(ir_.rules()[node.first], depth);
      case Ir::Op::kGraph:
        return graph(ir_.graph_of(expr), depth);
      case Ir::Op::kTick:
      case Ir::Op::kEnough:
        break;
    }
    return std::nullopt;
  }

 private:
  std::optional<Texts> bytes(const ByteSet& set) const {
    if (set.count() > texts_max_) return std::nullopt;
    Texts out;
    for (size_t b = 0; b < set.size(); ++b) {
      if (set[b]) out.emplace(1, static_cast<char>(b));
    }
    return out;
  }

  std::optional<Texts> product(const Texts& a, const Texts& b) const {
    if (a.size() * b.size() > texts_max_) return std::nullopt;
    Texts out;
    for (const std::string& x : a) {
      for (const std::string& y : b) {
        if (x.size() + y.size() > kTextBytesMax) return std::nullopt;
        out.insert(x + y);
      }
    }
    return out;
  }

  std::optional<Texts> sequence(ExprId expr, int depth) {
    std::optional<Texts> out = Texts{""};
    for (const ExprId child : ir_.children(expr)) {
      const auto part = texts_of(child, depth + 1);
      if (!part) return std::nullopt;
      out = product(*out, *part);
      if (!out) return std::nullopt;
    }
    return out;
  }

  std::optional<Texts> choice(ExprId expr, int depth) {
    Texts out;
    for (const ExprId child : ir_.children(expr)) {
      auto part = texts_of(child, depth + 1);
      if (!part) return std::nullopt;
      out.merge(*part);
      if (out.size() > texts_max_) return std::nullopt;
    }
    return out;
  }

  std::optional<Texts> repeat(ExprId expr, int depth) {
    const Ir::Node& node = ir_.node(expr);
    if (node.max == kUnbounded || node.max > kDepthMax) return std::nullopt;
    const auto part = texts_of(ir_.children(expr)[0], depth + 1);
    if (!part) return std::nullopt;
    Texts out;
    std::optional<Texts> power = Texts{""};
    for (int32_t times = 0; times <= node.max; ++times) {
      if (times >= node.min) out.insert(power->begin(), power->end());
      if (out.size() > texts_max_) return std::nullopt;
      if (times < node.max) power = product(*power, *part);
      if (!power) return std::nullopt;
    }
    return out;
  }

  std::optional<Texts> rule(const IrRules::Rule& rule, int depth) {
    if (rule.check >= 0 || rule.counter >= 0) return std::nullopt;
    return texts_of(rule.body, depth + 1);
  }

  // Follows every path; one of more than kDepthMax edges counts as a loop.
  std::optional<Texts> graph(const Ir::Graph& graph, int depth) {
    struct Path {
      uint32_t state;
      Texts texts;
      int edges;
    };
    Texts out;
    std::vector<Path> paths = {{0, {""}, 0}};
    while (!paths.empty()) {
      const Path path = std::move(paths.back());
      paths.pop_back();
      if (path.edges > kDepthMax || ++steps_ > kStepsMax) return std::nullopt;
      if (std::ranges::find(graph.finals, path.state) != graph.finals.end())
        out.insert(path.texts.begin(), path.texts.end());
      if (out.size() > texts_max_) return std::nullopt;
      const auto extend = [&](const std::optional<Texts>& edge, uint32_t to) {
        auto texts = edge ? product(path.texts, *edge) : std::nullopt;
        if (texts && !texts->empty()) paths.push_back({to, std::move(*texts), path.edges + 1});
        return texts.has_value();
      };
      for (const Ir::GraphEdge& edge : graph.edges) {
        if (edge.from == path.state && !extend(texts_of(edge.expr, depth + 1), edge.to))
          return std::nullopt;
      }
      for (const Ir::Arc& arc : graph.arcs) {
        if (arc.from != path.state) continue;
        if (arc.symbol != Ir::Arc::Symbol::kBytes) return std::nullopt;
        ByteSet set;
        for (int b = arc.low; b <= arc.high; ++b) set.set(static_cast<size_t>(b));
        if (!extend(bytes(set), arc.to)) return std::nullopt;
      }
    }
    return out;
  }

  const Ir& ir_;
  const size_t texts_max_;
  size_t steps_ = 0;
};

}  // namespace

std::optional<std::vector<std::string>> finite_language(const Ir& ir, ExprId expr,
                                                        size_t texts_max) {
  const auto texts = Enumerator(ir, texts_max).texts_of(expr, 0);
  if (!texts) return std::nullopt;
  return std::vector<std::string>(texts->begin(), texts->end());
}

}  // namespace espalier::grammar
