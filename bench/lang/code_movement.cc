// Code movement on twenty prompt templates: how many the safe mode and a model reorder, and by how
// many tokens their constant beginnings grow.
//
//   build/release/code_movement [--show] [--model-path share/default_model]
//                               [--url http://.../v1 --model NAME [--api-key KEY]]
//
// Without --url the model at --model-path is asked; with it an OpenAI-compatible endpoint. Tokens
// are those of the tokenizer at --model-path. The paper asked GPT-4 about 15 templates: it
// reordered 12 of them, and their constant beginnings grew by 60 tokens on average.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/lang.h"
#include "lang/backends/engine_backend.h"

namespace {

using namespace espalier;
using namespace espalier::lang;

// "A {b} c": text and arguments, and a gen behind them.
Graph graph_of(const std::string& name, std::string_view text) {
  Graph graph{.name = name};
  const auto add = [&](NodeKind kind, std::string_view what) {
    GraphNode& node = graph.nodes.emplace_back();
    node.kind = kind;
    (kind == NodeKind::kConstantText ? node.text : node.name) = what;
  };
  while (!text.empty()) {
    const size_t open = std::min(text.find('{'), text.size());
    if (open > 0) add(NodeKind::kConstantText, text.substr(0, open));
    text.remove_prefix(open);
    if (text.empty()) break;
    const size_t close = text.find('}');
    add(NodeKind::kArgument, text.substr(1, close - 1));
    graph.parameters.push_back(graph.nodes.back().name);
    text.remove_prefix(close + 1);
  }
  add(NodeKind::kGen, "answer");
  return graph;
}

std::vector<Graph> read_templates(const std::string& path) {
  std::ifstream in(path);
  std::vector<Graph> graphs;
  std::string name, text;
  const auto end = [&] {
    if (name.empty()) return;
    text.pop_back();  // the last line's end: the gen follows
    graphs.push_back(graph_of(name, text));
    text.clear();
  };
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("=== ")) {
      end();
      name = line.substr(4);
    } else {
      text += line + "\n";
    }
  }
  end();
  return graphs;
}

// Every template's prompt begins with this.
std::string beginning(const Graph& graph) {
  std::string text;
  for (const GraphNode& node : graph.nodes) {
    if (node.kind != NodeKind::kConstantText) break;
    text += node.text;
  }
  return text;
}

class Table {
 public:
  Table(const Tokenizer& tokenizer, bool shows) : tokenizer_(tokenizer), shows_(shows) {}

  void add(const Graph& before, const Movement& movement) {
    ++num_;
    const auto tokens = [&](const Graph& graph) {
      return static_cast<int>(tokenizer_.encode(beginning(graph)).size());
    };
    const int gained = tokens(movement.graph) - tokens(before);
    if (movement.is_moved()) ++num_moved_, num_gained_ += gained;
    if (!movement.explanation.empty()) ++num_refused_;
    if (!shows_) return;
    fmt::print("{}: {} tokens gained{}\n", before.name, gained,
               movement.explanation.empty() ? "" : "; refused: " + movement.explanation);
    if (!movement.proposal.empty()) fmt::print("  proposal: {}\n", movement.proposal);
    const auto parts = movable_parts(before);
    if (movement.is_moved())
      for (const int i : movement.order) fmt::print("  {} {}\n", i, parts[static_cast<size_t>(i)]);
  }
  void print(std::string_view mode) const {
    fmt::print("{:<44} {} of {} reordered, {:.1f} tokens gained each, {} proposals refused\n", mode,
               num_moved_, num_,
               num_moved_ == 0 ? 0.0 : static_cast<double>(num_gained_) / num_moved_, num_refused_);
  }

 private:
  const Tokenizer& tokenizer_;
  const bool shows_;
  int num_ = 0, num_moved_ = 0, num_gained_ = 0, num_refused_ = 0;
};

int told(const Status& status) {
  fmt::print(stderr, "{}\n", status.to_string());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string model_path = "share/default_model", url, model = "default", key;
  std::string templates = "bench/lang/templates.txt";
  bool shows = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const bool has_value = i + 1 < argc;
    if (flag == "--show") {
      shows = true;
    } else if (flag == "--model-path" && has_value) {
      model_path = argv[++i];
    } else if (flag == "--url" && has_value) {
      url = argv[++i];
    } else if (flag == "--model" && has_value) {
      model = argv[++i];
    } else if (flag == "--api-key" && has_value) {
      key = argv[++i];
    } else if (flag == "--templates" && has_value) {
      templates = argv[++i];
    } else {
      fmt::print(stderr, "unknown option {}, or its value is missing\n", flag);
      return 2;
    }
  }
  const std::vector<Graph> graphs = read_templates(templates);
  if (graphs.empty()) return told(error(StatusCode::kNotFound, "no templates in {}", templates));
  const auto local = engine_backend(EngineConfig{.model = {.model_path = model_path}});
  if (!local) return told(local.error());
  auto asked = *local;
  if (!url.empty()) {
    const auto api = openai_backend({.model = model, .base_url = url, .api_key = key});
    if (!api) return told(api.error());
    asked = *api;
  }
  const Tokenizer& tokenizer = *engine_of(**local)->tokenizer();
  Table safe(tokenizer, shows), assisted(tokenizer, shows);
  for (const Graph& graph : graphs) safe.add(graph, move_constants_safely(graph));
  safe.print("safe mode");
  for (const Graph& graph : graphs) {
    const auto movement = move_with_model(graph, asked);
    if (!movement) return told(movement.error());
    assisted.add(graph, *movement);
  }
  assisted.print("model-assisted, by " + (url.empty() ? model_path : model + " at " + url));
  return 0;
}
