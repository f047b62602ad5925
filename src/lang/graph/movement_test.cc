// Code movement: what it moves, what it leaves, and that no content is lost whatever is proposed.
#include "lang/graph/movement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "lang/graph/tracer.h"

namespace espalier::lang {
namespace {

// "A {b} c" with arguments in braces, and a gen behind it.
Graph graph_of(const std::string& text) {
  Graph graph{.name = "template"};
  const auto add = [&](NodeKind kind, const std::string& what) {
    GraphNode& node = graph.nodes.emplace_back();
    node.kind = kind;
    (kind == NodeKind::kConstantText ? node.text : node.name) = what;
  };
  for (size_t i = 0; i < text.size();) {
    const size_t open = std::min(text.find('{', i), text.size());
    if (open > i) add(NodeKind::kConstantText, text.substr(i, open - i));
    if (open == text.size()) break;
    const size_t close = text.find('}', open);
    const std::string name = text.substr(open + 1, close - open - 1);
    add(NodeKind::kArgument, name);
    graph.parameters.push_back(name);
    i = close + 1;
  }
  add(NodeKind::kGen, "answer");
  return graph;
}

std::string shown(const Graph& graph) {
  std::string text;
  for (const GraphNode& node : graph.nodes) {
    if (node.kind == NodeKind::kConstantText) text += node.text;
    if (node.kind == NodeKind::kArgument) text += "{" + node.name + "}";
  }
  return text;
}

std::string safely(const std::string& text) {
  return shown(move_constants_safely(graph_of(text)).graph);
}

TEST(Movement, WholeLinesGoToTheFront) {
  EXPECT_EQ(safely("Text: {text}\nAnswer in one word.\nMood:"),
            "Answer in one word.\nText: {text}\nMood:");
  EXPECT_EQ(safely("Judge a review.\nReview: {r}\nUse one of three words.\nBe strict.\nVerdict:"),
            "Judge a review.\nUse one of three words.\nBe strict.\nReview: {r}\nVerdict:");
  EXPECT_EQ(safely("Context:\n{c}\n\nUse plain words.\nAnswer:"),
            "Use plain words.\nContext:\n{c}\n\nAnswer:");
}

TEST(Movement, LinesThatImplyAnOrderStay) {
  for (const std::string text :
       {"Text: {t}\nSummarize the text above.\nSummary:", "{t}\nThen translate it.\nEnglish:",
        "Text: {t}\nRules:\n1. Be short.\nAnswer:", "Text: {t}\nAnswer in one word.",
        "About {topic}. Write well.\nText:", "All is constant.\nAnswer:",
        "Text: {t}\nSay \"yes\" or \"no\".\nAnswer:"})
    EXPECT_EQ(safely(text), text);
}

TEST(Movement, NothingIsMovedOverACall) {
  Graph graph = graph_of("Text: {t}\n");
  Graph more = graph_of("Be short.\nEnd:");
  graph.nodes.insert(graph.nodes.end(), more.nodes.begin(), more.nodes.end());
  EXPECT_FALSE(move_constants_safely(graph).is_moved());
}

TEST(Movement, AnOrderMustNameEveryPartOnce) {
  const Graph graph = graph_of("A {x}\nB.\nC.\n");
  ASSERT_EQ(movable_parts(graph), (std::vector<std::string>{"A {x}\n", "B.\n", "C.\n"}));
  EXPECT_EQ(shown(reorder(graph, {2, 0, 1})->graph), "C.\nA {x}\nB.\n");
  for (const std::vector<int>& order :
       std::vector<std::vector<int>>{{}, {0, 1}, {0, 1, 1}, {0, 1, 3}, {0, 1, 2, 2}, {-1, 0, 1}})
    EXPECT_EQ(reorder(graph, order).error().code(), StatusCode::kInvalidArgument);
}

// Any order keeps all content: the parts of what comes out are those of what went in.
TEST(Movement, NoContentIsLost) {
  std::mt19937 rng(5);
  const std::vector<std::string> pieces = {
      "A label: ", "{x}", "{y}", "A line.\n", "So it is.\n", "Two. Sentences.\n", "\n", "tail"};
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (size_t n = 1 + rng() % 9; n > 0; --n) text += pieces[rng() % pieces.size()];
    SCOPED_TRACE(text);
    const Graph graph = graph_of(text);
    std::vector<int> order(movable_parts(graph).size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::shuffle(order.begin(), order.end(), rng);
    const auto moved = reorder(graph, order);
    ASSERT_TRUE(moved) << moved.error().to_string();
    const Movement safe = move_constants_safely(graph);
    for (const Graph* out : {&moved->graph, &safe.graph}) {
      EXPECT_TRUE(out->check().ok());
      std::string before = text, after = shown(*out);
      std::sort(before.begin(), before.end());
      std::sort(after.begin(), after.end());
      EXPECT_EQ(before, after);
    }
  }
}

// A model that writes a fixed answer.
class Scripted final : public Backend {
 public:
  explicit Scripted(std::string answer) : answer_(std::move(answer)) {}
  std::string name() const override { return "scripted"; }
  RoleFrame role_frame(Role, std::optional<Role>) const override { return {"<", ">", {}}; }
  void generate(GenerateCall call, CallEvents events) override {
    prompt = call.prompt.text;
    if (answer_.empty()) return events.on_done(fail(error(StatusCode::kUnavailable, "away")));
    events.on_done(Completion{.samples = {{answer_, {.finish_reason = "stop"}}}});
  }
  void score(ScoreCall, ScoreDone done) override { done(fail(Status(StatusCode::kInternal, ""))); }
  void cancel(const std::string&) override {}
  std::string prompt;

 private:
  const std::string answer_;
};

TEST(Movement, AModelsProposalIsTakenWhenItIsAPermutation) {
  const Graph graph = graph_of("Review: {r}\nIs it good? Say so.\nVerdict:");
  const auto ask = [&](const std::string& answer) {
    return move_with_model(graph, std::make_shared<Scripted>(answer));
  };
  const auto taken = ask("The order is 1, 2, 0, 3.");
  ASSERT_TRUE(taken);
  EXPECT_TRUE(taken->is_moved());
  EXPECT_EQ(taken->explanation, "");
  EXPECT_EQ(shown(taken->graph), "Is it good? Say so.\nReview: {r}\nVerdict:");
  for (const std::string answer :
       {"1,2,0", "1,2,0,3,3", "none", "0,1,2,9", "0,1,3,2", "99999999999999999999,1,2,3"}) {
    const auto refused = ask(answer);
    ASSERT_TRUE(refused) << answer;
    EXPECT_FALSE(refused->is_moved()) << answer;
    EXPECT_NE(refused->explanation, "") << answer;
    EXPECT_EQ(refused->proposal, answer);
    EXPECT_EQ(shown(refused->graph), shown(graph));
  }
  EXPECT_EQ(ask("").error().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace espalier::lang
