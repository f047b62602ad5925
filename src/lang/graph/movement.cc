#include "lang/graph/movement.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>
#include <string_view>

#include "lang/graph/passes.h"
#include "lang/program.h"

namespace espalier::lang {
namespace {

// A line or sentence: nodes of text, arguments and values.
struct Piece {
  std::vector<GraphNode> nodes;

  bool is_constant() const {
    return std::all_of(nodes.begin(), nodes.end(),
                       [](const GraphNode& node) { return node.kind == NodeKind::kConstantText; });
  }
  std::string shown() const {
    std::string text;
    for (const GraphNode& node : nodes)
      text += node.kind == NodeKind::kConstantText
                  ? node.text
                  : "{" + (node.name.empty() ? node.source_name : node.name) + "}";
    return text;
  }
};

// The nodes [begin, end) of a graph in parts. Empty when there is nothing to move.
struct Stretch {
  size_t begin = 0, end = 0;
  std::vector<Piece> parts;
};

bool is_prompt(const GraphNode& node) {
  return node.kind == NodeKind::kConstantText || node.kind == NodeKind::kArgument ||
         node.kind == NodeKind::kVariable;
}

// Bytes of `text` up to and with the first end of a line or sentence; npos when it has none.
size_t end_of_part(std::string_view text, size_t from) {
  for (size_t i = from; i < text.size(); ++i) {
    if (text[i] == '\n') {
      while (i + 1 < text.size() && text[i + 1] == '\n') ++i;  // a blank line ends it, too
      return i + 1;
    }
    const bool ends = text[i] == '.' || text[i] == '?' || text[i] == '!';
    const bool is_number = i > 0 && std::isdigit(static_cast<unsigned char>(text[i - 1])) != 0;
    if (ends && !is_number && i + 1 < text.size() && text[i + 1] == ' ') return i + 2;
  }
  return std::string_view::npos;
}

std::vector<Piece> parts_of(const std::vector<GraphNode>& nodes) {
  std::vector<Piece> parts;
  Piece part;
  for (const GraphNode& node : nodes) {
    if (node.kind != NodeKind::kConstantText) {
      part.nodes.push_back(node);
      continue;
    }
    std::string_view rest = node.text;
    while (!rest.empty()) {
      const size_t size = std::min(end_of_part(rest, 0), rest.size());
      const bool is_whole = end_of_part(rest, 0) != std::string_view::npos;
      part.nodes.push_back(node);
      part.nodes.back().text = rest.substr(0, size);
      rest.remove_prefix(size);
      if (is_whole) parts.push_back(std::exchange(part, {}));
    }
  }
  if (!part.nodes.empty()) parts.push_back(std::move(part));
  return parts;
}

// Of stream 0, where the first argument stands.
Stretch stretch_of(const Graph& graph) {
  Stretch stretch;
  const auto is_open = [](const GraphNode& node) { return node.stream == 0 && is_prompt(node); };
  const auto first = std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    return node.stream == 0 && (node.kind == NodeKind::kArgument || node.kind == NodeKind::kGen ||
                                node.kind == NodeKind::kSelect || node.kind == NodeKind::kFork);
  });
  if (first == graph.nodes.end() || first->kind != NodeKind::kArgument) return stretch;
  stretch.begin = stretch.end = static_cast<size_t>(first - graph.nodes.begin());
  while (stretch.begin > 0 && is_open(graph.nodes[stretch.begin - 1])) --stretch.begin;
  while (stretch.end < graph.nodes.size() && is_open(graph.nodes[stretch.end])) ++stretch.end;
  const auto at = [&](size_t i) { return graph.nodes.begin() + static_cast<std::ptrdiff_t>(i); };
  stretch.parts = parts_of({at(stretch.begin), at(stretch.end)});
  return stretch;
}

bool refers_to_others(std::string_view text) {
  static const std::set<std::string, std::less<>> kWords = {
      "above",  "below",  "following", "previous",  "preceding", "next",      "before", "after",
      "first",  "second", "third",     "then",      "finally",   "last",      "here",   "this",
      "these",  "that",   "those",     "it",        "its",       "they",      "them",   "their",
      "so",     "also",   "now",       "therefore", "thus",      "otherwise", "again",  "earlier",
      "latter", "former", "he",        "she",       "his",       "her"};
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    const int c = i < text.size() ? int{static_cast<unsigned char>(text[i])} : 0;
    if (std::isalpha(c) != 0) {
      word += static_cast<char>(std::tolower(c));
    } else {
      if (kWords.contains(word)) return true;
      word.clear();
    }
  }
  return false;
}

// A whole line that says something by itself, wherever it stands.
bool stands_alone(std::string_view text) {
  if (text.empty() || text.back() != '\n') return false;
  if (std::isupper(static_cast<unsigned char>(text.front())) == 0) return false;
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0)
    text.remove_suffix(1);
  if (text.empty() || std::string_view(".!?").find(text.back()) == std::string_view::npos)
    return false;
  return text.find_first_of("`\"<>:") == std::string_view::npos && !refers_to_others(text);
}

// Constant bytes that a template of these parts begins with.
size_t constant_size(const std::vector<Piece>& parts, const std::vector<int>& order) {
  size_t size = 0;
  for (const int i : order) {
    for (const GraphNode& node : parts[static_cast<size_t>(i)].nodes) {
      if (node.kind != NodeKind::kConstantText) return size;
      size += node.text.size();
    }
  }
  return size;
}

std::vector<int> identity(size_t size) {
  std::vector<int> order(size);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Movement moved(const Graph& graph, const Stretch& stretch, std::vector<int> order) {
  Movement movement{.graph = graph, .order = std::move(order)};
  if (!movement.is_moved()) return movement;
  std::vector<GraphNode> nodes;
  for (const int i : movement.order)
    for (const GraphNode& node : stretch.parts[static_cast<size_t>(i)].nodes) nodes.push_back(node);
  std::vector<GraphNode>& all = movement.graph.nodes;
  const auto grown =
      static_cast<int32_t>(nodes.size()) - static_cast<int32_t>(stretch.end - stretch.begin);
  for (size_t i = stretch.end; i < all.size(); ++i)
    if (all[i].fork >= static_cast<int32_t>(stretch.end)) all[i].fork += grown;
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(stretch.begin);
  const auto at =
      all.erase(begin, begin + static_cast<std::ptrdiff_t>(stretch.end - stretch.begin));
  all.insert(at, nodes.begin(), nodes.end());
  movement.graph = fold_constants(movement.graph);
  return movement;
}

constexpr std::string_view kTask =
    "A prompt template is cut into numbered parts. Parts in {braces} are filled in later; the rest "
    "is constant. Put constant parts first where the prompt keeps its meaning: instructions may go "
    "before the data, but a label stays before what it introduces, and what refers to the text "
    "above stays after it. Write the numbers of all parts in the new order, separated by commas.\n";

std::string question(const std::vector<Piece>& parts) {
  std::string text(kTask);
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string shown = parts[i].shown();
    for (size_t at = 0; (at = shown.find('\n', at)) != std::string::npos; at += 2)
      shown.replace(at, 1, "\\n");
    text += fmt::format("{}: {}\n", i, shown);
  }
  return text;
}

std::vector<int> numbers_in(std::string_view text) {
  std::vector<int> numbers;
  for (size_t i = 0; i < text.size();) {
    if (std::isdigit(static_cast<unsigned char>(text[i])) == 0) {
      ++i;
      continue;
    }
    int number = 0;
    for (; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0; ++i)
      number = std::min(number * 10 + (text[i] - '0'), 1'000'000);
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

bool Movement::is_moved() const { return order != identity(order.size()); }

std::vector<std::string> movable_parts(const Graph& graph) {
  std::vector<std::string> shown;
  for (const Piece& part : stretch_of(graph).parts) shown.push_back(part.shown());
  return shown;
}

Movement move_constants_safely(const Graph& graph) {
  const Stretch stretch = stretch_of(graph);
  std::vector<int> front, rest;
  bool is_after_argument = false, is_line_begin = true;
  for (size_t i = 0; i < stretch.parts.size(); ++i) {
    const std::string text = stretch.parts[i].shown();
    const bool is_constant = stretch.parts[i].is_constant();
    const bool moves =
        is_constant && is_line_begin && i + 1 < stretch.parts.size() && stands_alone(text);
    is_after_argument |= !is_constant;
    (moves && is_after_argument ? front : rest).push_back(static_cast<int>(i));
    is_line_begin = text.ends_with('\n');
  }
  // Behind what stands before the first argument, in whole lines: a label stays with its argument.
  size_t place = 0;
  for (size_t i = 0; i < rest.size(); ++i) {
    const Piece& part = stretch.parts[static_cast<size_t>(rest[i])];
    if (!part.is_constant()) break;
    const std::string text = part.shown();
    if (text.ends_with('\n') && !text.ends_with(":\n")) place = i + 1;
  }
  rest.insert(rest.begin() + static_cast<std::ptrdiff_t>(place), front.begin(), front.end());
  return moved(graph, stretch, std::move(rest));
}

Result<Movement> reorder(const Graph& graph, const std::vector<int>& order) {
  const Stretch stretch = stretch_of(graph);
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != identity(stretch.parts.size()))
    return fail(invalid_argument(
        "an order of {} parts names each of 0 to {} exactly once; this one has {} numbers",
        stretch.parts.size(), static_cast<int>(stretch.parts.size()) - 1, order.size()));
  return moved(graph, stretch, order);
}

Result<Movement> move_with_model(const Graph& graph, const std::shared_ptr<Backend>& model) {
  const Stretch stretch = stretch_of(graph);
  Movement unchanged{.graph = graph, .order = identity(stretch.parts.size())};
  if (stretch.parts.size() < 2) {
    unchanged.explanation = "there is nothing to move";
    return unchanged;
  }
  const State asked = run(
      [&](State& s) {
        s += user(question(stretch.parts));
        s += assistant(gen("order", {.max_tokens = 128, .temperature = 0}));
      },
      {.backend = model});
  ESP_ASSIGN_OR_RETURN(unchanged.proposal, asked.get("order"));
  const std::vector<int> order = numbers_in(unchanged.proposal);
  Result<Movement> proposed = reorder(graph, order);
  if (!proposed) {
    unchanged.explanation = proposed.error().message();
    return unchanged;
  }
  if (constant_size(stretch.parts, order) <= constant_size(stretch.parts, unchanged.order)) {
    unchanged.explanation = "the constant beginning does not grow by it";
    return unchanged;
  }
  proposed->proposal = std::move(unchanged.proposal);
  return proposed;
}

}  // namespace espalier::lang
