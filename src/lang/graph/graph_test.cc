#include "lang/graph/graph.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "lang/graph/passes.h"
#include "lang/test_backend.h"

namespace espalier::lang {
namespace {

// Figure 14 of the paper: tips suggested one after the other, each expanded on its own.
Program tips() {
  return Program("tips", {"topic"}, [](State& s, const Value& topic) {
    s += "Here are two tips for " + topic + ": 1. " + gen("one", {.max_tokens = 3}) + " 2. " +
         gen("two", {.max_tokens = 3});
    auto forks = s.fork(2);
    forks[0] += " Expand the tip " + s["one"] + ":" + gen("text", {.max_tokens = 4});
    forks[1] += " Expand the tip " + s["two"] + ":" + gen("text", {.max_tokens = 4});
    s += "\nTip 1: " + forks[0]["text"] + "\nTip 2: " + forks[1]["text"] + "\nIn summary" +
         gen("summary", {.max_tokens = 4});
  });
}

class GraphTest : public ::testing::Test {
 protected:
  const TestBackend made_ = make_test_backend();
  const RunOptions options_{.backend = made_.backend};
};

TEST_F(GraphTest, TracingWritesTheProgramDown) {
  const Result<Graph> graph = trace(tips());
  ASSERT_TRUE(graph) << graph.error().to_string();
  EXPECT_EQ(graph->num_streams, 3);
  EXPECT_EQ(graph->parameters, (std::vector<std::string>{"topic"}));
  std::map<NodeKind, int> count;
  for (const GraphNode& node : graph->nodes) ++count[node.kind];
  EXPECT_EQ(count[NodeKind::kGen], 5);
  EXPECT_EQ(count[NodeKind::kArgument], 1);
  EXPECT_EQ(count[NodeKind::kFork], 1);
  EXPECT_EQ(count[NodeKind::kGetForkItem], 2);
  EXPECT_EQ(count[NodeKind::kVariable], 4);
  // Two forks' items, and two values that come back.
  int num_inter = 0;
  for (const Edge& edge : graph->edges()) num_inter += edge.inter_stream ? 1 : 0;
  EXPECT_EQ(num_inter, 2 + 2 + 2);
  EXPECT_TRUE(graph->nodes[0].where.starts_with("graph_test.cc:")) << graph->nodes[0].where;
}

TEST_F(GraphTest, AGraphRunsAsTheProgramDoes) {
  const Arguments arguments{{"topic", "sailing"}};
  const State interpreted = tips().run(arguments, options_);
  const Graph graph = *trace(tips());
  const State executed = run_graph(graph, arguments, options_);
  ASSERT_TRUE(executed.error().ok()) << executed.error().to_string();
  EXPECT_EQ(executed.text(), interpreted.text());
  EXPECT_EQ(executed["summary"].str(), interpreted["summary"].str());
  EXPECT_FALSE(run_graph(graph, {}, options_).error().ok());
  EXPECT_FALSE(run_graph(graph, {{"topic", "a"}, {"other", "b"}}, options_).error().ok());
}

TEST_F(GraphTest, WhatDependsOnDataIsRefusedAtItsLine) {
  int line = 0;
  const Program decides("decides", {"question"}, [&](State& s, const Value& question) {
    s += question + select("answer", {"yes", "no"});
    line = __LINE__ + 1;
    if (s["answer"] == "yes") s += gen("why");
  });
  const auto graph = trace(decides);
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(graph.error().message().find(fmt::format("graph_test.cc:{}", line)), std::string::npos)
      << graph.error().message();
  EXPECT_NE(graph.error().message().find("\"answer\""), std::string::npos);

  const Program reads("reads", {"question"}, [](State& s, const Value& question) {
    if (question == "?") s += "x";
  });
  EXPECT_NE(trace(reads).error().message().find("its argument \"question\""), std::string::npos);
  EXPECT_TRUE(trace(reads.bind({{"question", "?"}})));  // known: it may be read
}

TEST_F(GraphTest, ReadsBackWhatItWrites) {
  const Program all("all", {"a"}, [](State& s, const Value& a) {
    s += lang::system("Be \"brief\".\n") + user(image("sea.png") + a);
    s += assistant(gen("x", {.max_tokens = 5,
                             .stop = {"\n", "END"},
                             .temperature = 0.25f,
                             .top_k = 4,
                             .regex = "[a-z]+",
                             .early_stopping = EarlyStopping::kNever}) +
                   gen_int("n") + select("c", {"p", "q"}, greedy_token_selection));
    s.set_var("v", a);
    s.set_var("w", "text");
    auto forks = s.fork(2);
    {
      auto scope = forks[0].var_scope("scope");
      forks[0] += "in";
    }
    forks.join(JoinMode::kConcatenateAndAppend);
  });
  const Result<Graph> graph = trace(all);
  ASSERT_TRUE(graph) << graph.error().to_string();
  const std::string text = to_json(*graph);
  const Result<Graph> again = parse_graph(text);
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_EQ(to_json(*again), text);
  const auto gen = std::find_if(again->nodes.begin(), again->nodes.end(),
                                [](const GraphNode& n) { return n.name == "x"; });
  EXPECT_EQ(gen->options.stop, (std::vector<std::string>{"\n", "END"}));
  EXPECT_EQ(gen->options.temperature, 0.25f);
  EXPECT_EQ(gen->options.early_stopping, EarlyStopping::kNever);
}

TEST_F(GraphTest, RefusesGraphsThatCannotRun) {
  const auto parse = [](std::string nodes) {
    return parse_graph(R"({"name":"g","parameters":["a"],"num_streams":3,"nodes":[)" + nodes + "]}")
        .error()
        .message();
  };
  EXPECT_NE(parse(R"({"kind":"Nothing","stream":0})").find("no kind of node"), std::string::npos);
  EXPECT_NE(parse(R"({"stream":0})").find("program.nodes[0].kind is missing"), std::string::npos);
  EXPECT_NE(parse(R"({"kind":"Gen","stream":1})").find("no fork before it makes"),
            std::string::npos);
  EXPECT_NE(parse(R"({"kind":"Argument","stream":0,"name":"b"})").find("no parameter"),
            std::string::npos);
  EXPECT_NE(parse(R"({"kind":"Variable","stream":0,"source_stream":0,"source_name":"x"})")
                .find("nothing fills"),
            std::string::npos);
  EXPECT_NE(parse(R"({"kind":"Gen","stream":0,"options":{"max_tokens":"many"}})")
                .find("program.nodes[0].options.max_tokens must be a number"),
            std::string::npos);
  EXPECT_NE(parse(R"({"kind":"Gen","stream":0,"options":{"early_stopping":"soon"}})")
                .find("early_stopping must be true, false or \"never\""),
            std::string::npos);
  EXPECT_NE(parse(R"({"kind":"Fork","stream":0,"streams":[1]},)"
                  R"({"kind":"GetForkItem","stream":1,"fork":0,"index":0},)"
                  R"({"kind":"Join","stream":0,"streams":[1]},)"
                  R"({"kind":"Join","stream":0,"streams":[1]})")
                .find("joined before"),
            std::string::npos);
  EXPECT_FALSE(parse_graph("[]"));
  EXPECT_FALSE(parse_graph("{"));
}

TEST_F(GraphTest, IsDrawn) {
  const std::string svg = to_svg(*trace(tips()));
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_NE(svg.find("Gen summary"), std::string::npos);
  EXPECT_NE(svg.find("stroke-dasharray"), std::string::npos);
  Graph odd;
  odd.nodes.push_back({.kind = NodeKind::kConstantText, .text = "a < b & \"c\"\xc3\xa9"});
  EXPECT_NE(to_svg(odd).find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
}

TEST_F(GraphTest, ConstantsAreFolded) {
  const Graph graph = fold_constants(*trace(tips()), {{"topic", "sailing"}});
  EXPECT_TRUE(graph.parameters.empty());
  EXPECT_EQ(graph.nodes[0].text, "Here are two tips for sailing: 1. ");
  EXPECT_EQ(constant_prefix(graph, *made_.backend), "Here are two tips for sailing: 1. ");
  EXPECT_EQ(constant_prefix(*trace(tips()), *made_.backend), "Here are two tips for ");
}

TEST_F(GraphTest, DeadBranchesAndEndsAreRemoved) {
  const Program program("p", {}, [](State& s) {
    s += "x";
    auto forks = s.fork(3);
    forks[0] += gen("a", {.max_tokens = 2}) + "tail" + gen("unread", {.max_tokens = 2});
    forks[1] += gen("a", {.max_tokens = 2});  // nobody reads it
    forks[2] += gen("a", {.max_tokens = 2});
    s += forks[0]["a"] + "-" + forks[2]["a"];
  });
  const Graph before = *trace(program);
  const Graph after = eliminate_dead(before);
  ASSERT_TRUE(after.check().ok()) << after.check().to_string();
  EXPECT_EQ(plan(before).num_calls, 4);
  EXPECT_EQ(plan(after).num_calls, 2);
  EXPECT_EQ(run_graph(after, {}, options_).text(), run_graph(before, {}, options_).text());
  // Nothing of the root is wanted but a variable.
  const Program early("early", {}, [](State& s) {
    s += "x" + gen("a", {.max_tokens = 2}) + "y" + gen("b", {.max_tokens = 2});
  });
  EXPECT_EQ(plan(eliminate_dead(*trace(early), {{"a"}})).num_calls, 1);
}

TEST_F(GraphTest, WhatAllBranchesBeginWithIsHoisted) {
  const Program program("p", {}, [](State& s) {
    s += "x";
    auto forks = s.fork(3);
    forks += [](int i) {
      return "Judge by this dimension: " + std::to_string(i) + gen("a", {.max_tokens = 2});
    };
    s += join(forks["a"], ",");
  });
  const Graph before = *trace(program);
  const Hoisted hoisted = hoist_common_prefixes(before);
  EXPECT_EQ(hoisted.num_forks, 1);
  EXPECT_EQ(hoisted.chars_saved, 2 * 25);
  ASSERT_TRUE(hoisted.graph.check().ok()) << hoisted.graph.check().to_string();
  EXPECT_EQ(run_graph(hoisted.graph, {}, options_).text(), run_graph(before, {}, options_).text());
}

TEST_F(GraphTest, ThePlanShowsWhatRunsAtOnce) {
  const Plan p = plan(*trace(tips()));
  EXPECT_EQ(p.num_calls, 5);
  ASSERT_EQ(p.stages.size(), 4u);  // one, two, both expansions, the summary
  EXPECT_EQ(p.stages[2].size(), 2u);
  EXPECT_EQ(p.width, 2u);
}

// Random programs: interpreted, executed, optimised and read back from JSON they write the same.
TEST_F(GraphTest, PassesKeepWhatRandomProgramsMean) {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(seed);
    const Program program("random", {"a", "b"},
                          [seed](State& root, const Value& a, const Value& b) {
                            Rng rng(seed);
                            std::vector<State> states{root};
                            std::vector<std::vector<Value>> known(1);
                            root += "#";
                            for (int i = 0; i < 30; ++i) {
                              const size_t at = rng.below(states.size());
                              State s = states[at];
                              switch (rng.below(6)) {
                                case 0:
                                  s += "text " + std::to_string(rng.below(3));
                                  break;
                                case 1:
                                  s += rng.below(2) == 0 ? Expr(a) : Expr(b);
                                  break;
                                case 2: {
                                  const std::string name = fmt::format("v{}", i);
                                  s += gen(name, {.max_tokens = 2});
                                  known[at].push_back(s[name]);
                                  break;
                                }
                                case 3: {
                                  const int n = 2 + static_cast<int>(rng.below(2));
                                  Forks forks = s.fork(n);
                                  const std::string common = rng.below(2) == 0 ? "Branch " : "";
                                  for (int k = 0; k < n; ++k) {
                                    forks[k] += common + std::to_string(k);
                                    states.push_back(forks[k]);
                                    known.push_back({});
                                  }
                                  break;
                                }
                                case 4: {
                                  const auto& values = known[rng.below(known.size())];
                                  if (!values.empty()) s += values[rng.below(values.size())];
                                  break;
                                }
                                case 5:
                                  s.set_var(fmt::format("s{}", i), a);
                                  break;
                              }
                            }
                            root += "." + gen("end", {.max_tokens = 2});
                          });
    const Arguments arguments{{"a", "alpha"}, {"b", "beta"}};
    const std::string expected = program.run(arguments, options_).text();
    const Result<Graph> traced = trace(program);
    ASSERT_TRUE(traced) << traced.error().to_string();
    ASSERT_TRUE(traced->check().ok()) << traced->check().to_string();
    ASSERT_EQ(run_graph(*traced, arguments, options_).text(), expected);
    const Graph dead = eliminate_dead(*traced);
    ASSERT_TRUE(dead.check().ok()) << dead.check().to_string() << to_json(dead);
    ASSERT_EQ(run_graph(dead, arguments, options_).text(), expected);
    const Graph optimized = optimize(*traced, {{"a", "alpha"}});
    ASSERT_TRUE(optimized.check().ok()) << optimized.check().to_string() << to_json(optimized);
    ASSERT_LE(plan(optimized).num_calls, plan(*traced).num_calls);
    const Result<Graph> again = parse_graph(to_json(optimized));
    ASSERT_TRUE(again) << again.error().to_string();
    ASSERT_EQ(run_graph(*again, {{"b", "beta"}}, options_).text(), expected);
    ASSERT_EQ(compiled(*again).run({{"b", "beta"}}, options_).text(), expected);
  }
}

}  // namespace
}  // namespace espalier::lang
