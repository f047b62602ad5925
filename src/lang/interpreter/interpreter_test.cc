#include <gtest/gtest.h>

#include <thread>

#include "base/rng.h"
#include "lang/test_backend.h"
#include "lang/waiting.h"

namespace espalier::lang {
namespace {

using lang::system;  // not the C library's

class Interpreter : public ::testing::Test {
 protected:
  void use(Script script, Duration step_delay = {}) {
    const TestBackend made = make_test_backend(std::move(script), step_delay);
    backend_ = made.backend;
    engine_ = made.engine;
  }
  RunOptions options() {
    if (backend_ == nullptr) use({});
    return {.backend = backend_, .defaults = {.max_tokens = 8}};
  }

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Backend> backend_;
};

int line_of(const Location& where) { return static_cast<int>(where.line); }

TEST_F(Interpreter, GenContinuesTheText) {
  const State s = run([](State& p) { p += "Once upon" + gen("more"); }, options());
  EXPECT_TRUE(s.error().ok()) << s.error().to_string();
  const std::string more = answer_of("Once upon", 8);
  EXPECT_EQ(s["more"].str(), more);
  EXPECT_EQ(s.text(), "Once upon" + more);
  const MetaInfo meta = s.meta_info("more");
  EXPECT_EQ(meta.prompt_tokens, 9);
  EXPECT_EQ(meta.completion_tokens, 8);
  EXPECT_EQ(meta.finish_reason, "length");
  EXPECT_NE(meta.json.find(R"("finish_reason":{"type":"length","length":8},"prompt_tokens":9,)"),
            std::string::npos)
      << meta.json;
}

TEST_F(Interpreter, LogprobsAreInTheMetaInformation) {
  State s = start(options());
  s += "ab" + gen("c", {.max_tokens = 1,
                        .return_logprob = true,
                        .logprob_start_len = 0,
                        .return_text_in_logprobs = true});
  // The device's log-probability of byte b is -0.01 (1 + b mod 100); the first has none.
  const std::string json = s.meta_info("c").json;
  EXPECT_NE(json.find(R"("input_token_logprobs":[[null,97,"a"],[-)"), std::string::npos) << json;
  EXPECT_NE(json.find(R"(,98,"b"]])"), std::string::npos) << json;
  EXPECT_NE(
      json.find(fmt::format(R"(,{},"{}"]])", static_cast<int>(s["c"].str()[0]), s["c"].str())),
      std::string::npos)
      << json;
}

TEST_F(Interpreter, StopsAreHonoured) {
  Script script;
  script.add("A:", "one. two");
  use(std::move(script));
  const State s = run([](State& p) { p += "A:" + gen("a", {.stop = "."}) + "!"; }, options());
  EXPECT_EQ(s["a"].str(), "one");
  EXPECT_EQ(s.text(), "A:one!");
  EXPECT_EQ(s.meta_info("a").matched, ".");
}

TEST_F(Interpreter, RolesFrameMessages) {
  const State s = run(
      [](State& p) {
        p += system("Be brief.") + user("Hello") + assistant("Sure. " + gen("a"));
        auto turn = p.user();
        p += "Bye";
      },
      options());
  const std::string prompt = "SYSTEM:Be brief.\nUSER:Hello\nASSISTANT:Sure. ";
  EXPECT_EQ(s["a"].str(), answer_of(prompt, 8));
  EXPECT_EQ(s.text(), prompt + answer_of(prompt, 8) + "\nUSER:Bye\n");
  const auto messages = s.messages();
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[2].role, Role::kAssistant);
  EXPECT_EQ(messages[2].text(), "Sure. " + answer_of(prompt, 8));
}

TEST_F(Interpreter, AMessageWithinAMessageIsAnErrorAtItsLine) {
  const int line = __LINE__ + 1;
  const State s = run([](State& p) { p += user("a" + assistant("b")); }, options());
  EXPECT_EQ(s.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(line_of(s.error_place()), line);
}

TEST_F(Interpreter, SelectTakesTheMostProbable) {
  // The device's log-probability of byte b is -0.01 (1 + b mod 100): "no" -0.115, "yes" -0.133.
  for (ChoicesMethod method : {token_length_normalized, greedy_token_selection, exact_likelihood}) {
    const State s = run(
        [&](State& p) {
          p += "Well? " + select("a", {"yes", "no"}, method);
        },
        options());
    EXPECT_TRUE(s.error().ok()) << s.error().to_string();
    EXPECT_EQ(s["a"].str(), "no") << choices_method_name(method);
    EXPECT_EQ(s.text(), "Well? no");
  }
}

TEST_F(Interpreter, UnconditionalSelectIsRightAtTheStartOfTheText) {
  // Nothing stands before the choice, where others raise: the first token has no log-probability.
  const State s = run(
      [](State& p) {
        p += select("a", {"ab", "cd"}, unconditional_likelihood_normalized);
      },
      options());
  EXPECT_TRUE(s.error().ok()) << s.error().to_string();
  EXPECT_FALSE(s["a"].str().empty());
}

TEST_F(Interpreter, BadChoicesAreErrorsAtTheirLine) {
  for (const std::vector<std::string>& choices :
       {std::vector<std::string>{}, {"a", "a"}, {"a", ""}}) {
    const State s = run([&](State& p) { p += "x" + select("a", choices); }, options());
    EXPECT_EQ(s.error().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(s.get("a").error().code(), StatusCode::kInvalidArgument);
    EXPECT_THROW((void)s["a"].str(), Error);
  }
}

TEST_F(Interpreter, UnknownVariablesAreErrorsWhereTheyAreNamed) {
  const State s = run([](State& p) { p += "x" + gen("a"); }, options());
  try {
    (void)s["b"];
    FAIL() << "it has no b";
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code(), StatusCode::kNotFound);
    EXPECT_NE(std::string(e.what()).find("interpreter_test.cc"), std::string::npos);
    EXPECT_NE(e.status().message().find("there are: a"), std::string::npos);
  }
  EXPECT_FALSE(s.get("b"));
}

TEST_F(Interpreter, AGenWithoutABackEndIsAnErrorAtItsLine) {
  const State s = run([](State& p) { p += "x" + gen("a") + "y"; }, RunOptions{});
  EXPECT_EQ(s.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_GT(line_of(s.error_place()), 0);
  EXPECT_THROW((void)s["a"].str(), Error);
}

TEST_F(Interpreter, TheDefaultBackendServesProgramsThatNameNone) {
  (void)options();
  set_default_backend(backend_);
  const State s = run([](State& p) { p += "x" + gen("a", {.max_tokens = 3}); }, RunOptions{});
  set_default_backend(nullptr);
  EXPECT_EQ(s["a"].str(), answer_of("x", 3));
}

TEST_F(Interpreter, BranchesGoOnFromTheFork) {
  const State s = run(
      [](State& p) {
        p += "Tips:";
        auto forks = p.fork(3);
        forks += [](int i) { return Expr(std::to_string(i) + ")"); };
        forks += gen("tip", {.max_tokens = 4});
        p += join(forks["tip"], ", ");  // waits for nothing
        p += "." + gen("end", {.max_tokens = 2});
      },
      options());
  std::string text = "Tips:";
  for (int i = 0; i < 3; ++i)
    text += (i > 0 ? ", " : "") + answer_of("Tips:" + std::to_string(i) + ")", 4);
  text += ".";
  EXPECT_EQ(s.text(), text + answer_of(text, 2));
}

TEST_F(Interpreter, ABranchThatFailsLeavesTheOthersAlive) {
  State s = start(options());
  s += "x";
  auto forks = s.fork(3);
  forks[0] += gen("a");
  forks[1] += gen("a", {.max_tokens = -1});
  const int line = __LINE__ - 1;
  forks[2] += gen("a");
  EXPECT_EQ(forks[0]["a"].str(), answer_of("x", 8));
  EXPECT_EQ(forks[2]["a"].str(), answer_of("x", 8));
  EXPECT_TRUE(s.sync().ok());
  try {
    (void)forks[1]["a"].str();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(line_of(e.where()), line);
  }
  // A state that appends a failed value fails too, at that line.
  s += forks[1]["a"];
  EXPECT_FALSE(s.sync().ok());
  EXPECT_EQ(line_of(s.error_place()), line);
}

TEST_F(Interpreter, JoinGathersVariables) {
  State s = start(options());
  s += "x";
  auto forks = s.fork(2);
  forks += gen("a", {.max_tokens = 2});
  forks.join();
  EXPECT_EQ(s["a"].items(), (std::vector<std::string>{answer_of("x", 2), answer_of("x", 2)}));
  EXPECT_FALSE(s["a"].get());  // a list is no text
  EXPECT_THROW(forks.join(), Error);
}

TEST_F(Interpreter, JoinAppendsWhatBranchesWrote) {
  RunOptions exact = options();
  exact.parallel_encoding = false;
  State s = start(exact);
  s += "x";
  auto forks = s.fork(2);
  forks += [](int i) { return "<" + std::to_string(i) + gen("a", {.max_tokens = 2}) + ">"; };
  forks.join(JoinMode::kConcatenateAndAppend);
  s += gen("end", {.max_tokens = 2});
  const std::string text = "x<0" + answer_of("x<0", 2) + "><1" + answer_of("x<1", 2) + ">";
  EXPECT_EQ(s.text(), text + answer_of(text, 2));
}

// The device's next token comes of the history behind the last one: of the last branch's alone
// where the branches' cache stands for the joined text.
TEST_F(Interpreter, JoinKeepsWhatTheBranchesHaveComputed) {
  State s = start(options());
  s += "Tips: ";
  auto forks = s.fork(3);
  forks += [](int i) { return "<" + std::to_string(i) + gen("a", {.max_tokens = 4}) + ">"; };
  forks.join(JoinMode::kConcatenateAndAppend);
  auto after = s.copy();
  s += gen("end", {.max_tokens = 3});
  after += "!" + gen("end", {.max_tokens = 3});
  std::string text = "Tips: ", last;
  for (const char* begin : {"<0", "<1", "<2"}) {
    last = std::string(begin) + answer_of("Tips: " + std::string(begin), 4) + ">";
    text += last;
  }
  EXPECT_EQ(s["end"].str(), answer_of("Tips: " + last, 3));
  EXPECT_EQ(s.text(), text + s["end"].str());
  EXPECT_EQ(s.meta_info("end").cached_tokens + 1, static_cast<int64_t>(text.size()));
  EXPECT_EQ(after["end"].str(), answer_of("Tips: " + last + "!", 3));
  // Chosen behind it, and joined again.
  s += select("choice", {"x", "y"}) + "#";
  auto more = s.fork(2);
  more += [](int i) { return std::to_string(i) + ";"; };
  more.join(JoinMode::kConcatenateAndAppend);
  s += gen("last", {.max_tokens = 3});
  EXPECT_EQ(s["last"].str(),
            answer_of("Tips: " + last + s["end"].str() + s["choice"].str() + "#1;", 3));
}

// Branches that did not begin where the parent stands are text.
TEST_F(Interpreter, JoinOfBranchesThatBeganElsewhereIsExact) {
  State s = start(options());
  s += "Tips: ";
  auto forks = s.fork(2);
  forks += [](int i) { return std::to_string(i) + ";"; };
  s += "(all) ";
  forks.join(JoinMode::kConcatenateAndAppend);
  s += gen("end", {.max_tokens = 3});
  EXPECT_EQ(s["end"].str(), answer_of("Tips: (all) 0;1;", 3));
}

TEST_F(Interpreter, ACancelledJoinEnds) {
  const TestBackend slow = make_test_backend({}, std::chrono::milliseconds(2));
  for (int i = 0; i < 20; ++i) {
    RunOptions o;
    o.backend = slow.backend;
    State s = start(o);
    s += "Tips " + std::to_string(i);
    auto forks = s.fork(3);
    forks += [](int k) { return std::to_string(k) + gen("a", {.max_tokens = 1}); };
    forks.join(JoinMode::kConcatenateAndAppend);
    std::this_thread::sleep_for(std::chrono::milliseconds(i));
    s.cancel();
    EXPECT_EQ(s.sync().code(), StatusCode::kAborted);
  }
  while (slow.engine->stats().requests.num_running > 0) std::this_thread::yield();
}

TEST_F(Interpreter, ScopesNameWhatIsAppendedInThem) {
  State s = start(options());
  s += "x";
  {
    auto scope = s.var_scope("all");
    s += "a" + gen("b", {.max_tokens = 2});
    EXPECT_EQ(s.get("all").error().code(), StatusCode::kFailedPrecondition);  // still open
  }
  s += "y";
  EXPECT_EQ(s["all"].str(), "a" + s["b"].str());
}

TEST_F(Interpreter, VariablesCanBeSet) {
  State s = start(options());
  s.set_var("a", "text");
  EXPECT_EQ(s["a"].str(), "text");
  s += "x" + gen("b", {.max_tokens = 2});
  s.set_var("c", s["b"]);
  s += "-" + s["c"];
  EXPECT_EQ(s.text(), "x" + answer_of("x", 2) + "-" + answer_of("x", 2));
}

TEST_F(Interpreter, SeveralSamplesAreAList) {
  State s = start(options());
  s += "x" + gen("a", {.max_tokens = 3, .n = 2});
  EXPECT_EQ(s["a"].items().size(), 2u);
  EXPECT_EQ(s.text(), "x" + s["a"].items()[0]);
}

TEST_F(Interpreter, NumbersAreConstrainedToTheirForm) {
  State s = start(options());
  s += "x" + gen_int("a", {.max_tokens = 4});
  const std::string digits = s["a"];
  EXPECT_EQ(digits.find_first_not_of("+-0123456789"), std::string::npos) << digits;
}

TEST_F(Interpreter, ReasoningIsSplitOff) {
  Script script;
  auto ids = bytes_of("<think>hm</think>yes");
  ids.push_back(kByteEosId);
  script.add(bytes_of("Q"), ids);
  use(std::move(script));
  State s = start(options());
  s += "Q" + separate_reasoning(gen("a", {.max_tokens = 64}), "qwen3");
  EXPECT_EQ(s["a"].str(), "yes");
  EXPECT_EQ(s["a_reasoning_content"].str(), "hm");
  EXPECT_EQ(s.text(), "Qyes");
  State bad = start(options());
  bad += "Q" + separate_reasoning(gen("a"), "nobody");
  EXPECT_EQ(bad.sync().code(), StatusCode::kInvalidArgument);
}

TEST_F(Interpreter, ImagesAreRecordedAndRefusedByName) {
  State s = start(options());
  s += user(image("sea.png") + "What is it?");
  EXPECT_EQ(s.messages().front().parts.front().media->path, "sea.png");
  s += gen("a");
  EXPECT_EQ(s.sync().code(), StatusCode::kUnimplemented);
  EXPECT_NE(s.error().message().find("sea.png"), std::string::npos);
}

TEST_F(Interpreter, TextComesAsItIsWritten) {
  RunOptions o = options();
  o.stream = true;
  State s = launch([](State& p) { p += "Once" + gen("a", {.max_tokens = 20}) + "!"; }, o);
  std::string all, one;
  int pieces = 0;
  for (const std::string& piece : s.stream("a")) one += piece, ++pieces;
  for (const std::string& piece : s.stream()) all += piece;
  EXPECT_EQ(one, answer_of("Once", 20));
  EXPECT_EQ(all, "Once" + one + "!");
  EXPECT_GE(pieces, 1);
}

// Pieces come on the pool's threads, so an earlier piece may arrive later.
TEST_F(Interpreter, NoPieceOvertakesTheOneBefore) {
  RunOptions o = options();
  o.stream = true;
  const std::string answer = answer_of("Once", 300);
  for (int i = 0; i < 200; ++i) {
    State s = launch([](State& p) { p += "Once" + gen("a", {.max_tokens = 300}); }, o);
    std::string text;
    for (const std::string& piece : s.stream("a")) text += piece;
    ASSERT_EQ(text, answer) << "program " << i;
  }
}

TEST_F(Interpreter, AProgramThatThrowsIsAnErrorAndLeavesNothingRunning) {
  use({}, std::chrono::milliseconds(2));
  const State s = run(
      [](State& p) {
        p += "x" + gen("long", {.max_tokens = 2000});
        auto forks = p.fork(3);
        forks += gen("b", {.max_tokens = 2000});
        throw std::runtime_error("my mistake");
      },
      options());
  EXPECT_NE(s.error().message().find("my mistake"), std::string::npos);
  EXPECT_EQ(s.get("long").error().code(), StatusCode::kAborted);
  while (engine_->stats().requests.num_running + engine_->stats().requests.num_waiting > 0)
    std::this_thread::yield();
}

TEST_F(Interpreter, CancelAbortsTheCallsOfAStateAndItsBranches) {
  use({}, std::chrono::milliseconds(2));
  State s = start(options());
  s += "x";
  auto forks = s.fork(2);
  forks += gen("a", {.max_tokens = 3000});
  s += forks[0]["a"] + gen("b");
  s.cancel();
  EXPECT_EQ(s.sync().code(), StatusCode::kAborted);
  EXPECT_EQ(forks[1].sync().code(), StatusCode::kAborted);
  EXPECT_EQ(s.get("b").error().code(), StatusCode::kAborted);
  EXPECT_EQ(engine_->stats().requests.num_running, 0);
}

TEST_F(Interpreter, WhatNobodyCanReadIsCancelled) {
  use({}, std::chrono::milliseconds(2));
  {
    State s = start(options());
    s += "x" + gen("a", {.max_tokens = 3000});
    while (engine_->stats().requests.num_running == 0) std::this_thread::yield();
  }
  while (engine_->stats().requests.num_running + engine_->stats().requests.num_waiting > 0)
    std::this_thread::yield();
  EXPECT_EQ(engine_->stats().requests.num_aborted, 1);
}

TEST_F(Interpreter, AValueKeepsItsStateAlive) {
  Value value;
  {
    State s = start(options());
    s += "x" + gen("a");
    value = s["a"];
  }
  EXPECT_EQ(value.str(), answer_of("x", 8));
}

TEST_F(Interpreter, AForkSendsItsPrefixAhead) {
  const std::string prefix(300, 'p');
  for (const bool hint : {true, false}) {
    use({});
    RunOptions o = options();
    o.fork_hint = hint;
    State s = start(o);
    s += prefix;
    auto forks = s.fork(4);
    forks += [](int i) { return std::to_string(i) + gen("a", {.max_tokens = 2}); };
    for (State& f : forks) {
      const MetaInfo meta = f.meta_info("a");
      EXPECT_EQ(f["a"].str().size(), 2u);
      if (hint) {
        EXPECT_GE(meta.cached_tokens, 299);
      }
    }
  }
}

// Random programs against the definition: what each prompt state must hold, computed one primitive
// after the other.
TEST_F(Interpreter, RandomProgramsAgreeWithTheirDefinition) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    struct Model {
      State state;
      std::string text;
      std::vector<std::pair<std::string, std::string>> variables;
    };
    std::vector<Model> models;
    models.push_back({start(options()), "", {}});
    models[0].state += "#";
    models[0].text = "#";
    for (int i = 0; i < 40; ++i) {
      Model& m = models[rng.below(models.size())];
      switch (rng.below(5)) {
        case 0: {
          const std::string text(1 + rng.below(90), static_cast<char>('a' + rng.below(26)));
          m.state += text;
          m.text += text;
          break;
        }
        case 1: {
          const std::string name = fmt::format("v{}", i);
          const int length = static_cast<int>(rng.below(5)) + 1;
          m.state += gen(name, {.max_tokens = length, .temperature = 0.0f});
          m.variables.emplace_back(name, answer_of(m.text, length));
          m.text += m.variables.back().second;
          break;
        }
        case 2: {
          const int n = 1 + static_cast<int>(rng.below(3));
          const Model copy = m;
          Forks forks = State(copy.state).fork(n);
          for (int k = 0; k < n; ++k) models.push_back({forks[k], copy.text, copy.variables});
          break;
        }
        case 3: {
          const Model& other = models[rng.below(models.size())];
          if (other.variables.empty()) break;
          const auto [name, value] = other.variables[rng.below(other.variables.size())];
          m.state += "[" + other.state[name] + "]";
          m.text += "[" + value + "]";
          break;
        }
        case 4: {
          const std::string name = fmt::format("s{}", i);
          auto scope = m.state.var_scope(name);
          m.state += "scope";
          m.text += "scope";
          m.variables.emplace_back(name, "scope");
          break;
        }
      }
    }
    for (Model& m : models) {
      ASSERT_TRUE(m.state.sync().ok()) << m.state.error().to_string();
      ASSERT_EQ(m.state.text(), m.text);
      for (const auto& [name, value] : m.variables) ASSERT_EQ(m.state[name].str(), value);
    }
  }
}

TEST_F(Interpreter, ManyProgramsRunAtOnceOnFewThreads) {
  const Program program("tips", {"topic"}, [](State& s, const Value& topic) {
    s += "About " + topic + ":";
    auto forks = s.fork(4);
    forks += [](int i) { return std::to_string(i) + gen("tip", {.max_tokens = 2}); };
    s += join(forks["tip"], ",");
  });
  std::vector<Arguments> arguments;
  for (int i = 0; i < 200; ++i) arguments.push_back({{"topic", std::to_string(i)}});
  std::vector<size_t> progress;
  const auto states =
      run_batch(program, arguments,
                {.run = options(), .num_threads = 2, .progress = [&](size_t done, size_t total) {
                   EXPECT_EQ(total, 200u);
                   progress.push_back(done);
                 }});
  ASSERT_EQ(states.size(), 200u);
  for (int i = 0; i < 200; ++i) {
    const std::string prefix = "About " + std::to_string(i) + ":";
    std::string text = prefix;
    for (int k = 0; k < 4; ++k)
      text += (k > 0 ? "," : "") + answer_of(prefix + std::to_string(k), 2);
    ASSERT_EQ(states[static_cast<size_t>(i)].text(), text);
  }
  ASSERT_EQ(progress.size(), 200u);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
}

TEST_F(Interpreter, MoreCallsThanTheEngineTakesWaitForTheirTurn) {
  TestEngine small = make_test_engine(
      {.config = {.schedule = {.max_running_requests = 2, .max_queued_requests = 3}}});
  const std::shared_ptr<Engine> engine = std::move(small.engine);
  backend_ = *engine_backend(engine, ChatFrames());
  State s = start(options());
  s += "x";
  Forks forks = s.fork(40);
  forks += gen("a", {.max_tokens = 2});
  for (State& f : forks) EXPECT_EQ(f["a"].str(), answer_of("x", 2));
  // Those that wait can be cancelled, too.
  Forks more = s.fork(40);
  more += gen("a", {.max_tokens = 500});
  s.cancel();
  for (State& f : more) EXPECT_EQ(f.sync().code(), StatusCode::kAborted);
  EXPECT_EQ(engine->stats().requests.num_running + engine->stats().requests.num_waiting, 0);
}

TEST_F(Interpreter, ABatchComputesItsConstantPrefixFirst) {
  const std::string prefix = "You answer questions about the sea, in one short sentence, kindly. ";
  const Program program("ask", {"question"}, [&](State& s, const Value& question) {
    s += prefix + question;
    s += gen("a", {.max_tokens = 2});
    if (s["a"] == "zz") s += "never";  // cannot be traced to its end; its prefix can
  });
  const auto states =
      run_batch(program, {{{"question", "1"}}, {{"question", "2"}}, {{"question", "3"}}},
                {.run = options(), .num_threads = 3});
  for (const State& s : states) {
    ASSERT_TRUE(s.error().ok()) << s.error().to_string();
    EXPECT_GE(s.meta_info("a").cached_tokens, static_cast<int64_t>(prefix.size()) - 1);
  }
}

// User errors name their line, and nothing continues to run.
TEST_F(Interpreter, BadInputIsAnErrorAndLeavesNothingRunning) {
  use({}, std::chrono::milliseconds(1));
  struct Case {
    std::string_view said;
    std::function<int(State&)> program;  // the line that is wrong
  };
  const std::vector<Case> cases = {
      {"no variable \"b\"",
       [](State& s) {
         s += gen("a", {.max_tokens = 2000});
         const int line = __LINE__ + 1;
         s += "x" + s["b"];
         return line;
       }},
      {"joined before",
       [](State& s) {
         auto forks = s.fork(2);
         forks += gen("a", {.max_tokens = 2000});
         forks.join();
         const int line = __LINE__ + 1;
         forks.join();
         return line;
       }},
      {"has no choices",
       [](State& s) {
         const int line = __LINE__ + 1;
         s += select("c", {});
         s += gen("a", {.max_tokens = 2000});
         return line;
       }},
      {"are equal: \"x\"",
       [](State& s) {
         const int line = __LINE__ + 1;
         s += select("c", {"x", "y", "x"});
         s += gen("a", {.max_tokens = 2000});
         return line;
       }},
      {"choice 1 of the select is empty",
       [](State& s) {
         const int line = __LINE__ + 1;
         s += select("c", {"x", ""});
         s += gen("a", {.max_tokens = 2000});
         return line;
       }},
      {"one branch or more",
       [](State& s) {
         s += gen("a", {.max_tokens = 2000});
         const int line = __LINE__ + 1;
         (void)s.fork(0);
         return line;
       }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.said);
    State s = start(options());
    s += "x";
    int line = 0;
    std::string said;
    Location where;
    try {
      line = c.program(s);
      said = s.sync().message();
      where = s.error_place();
      EXPECT_EQ(line_of(where), line);
    } catch (const Error& error) {
      said = error.status().message();
      where = error.where();
      EXPECT_GT(line_of(where), 0);
    }
    EXPECT_NE(said.find(c.said), std::string::npos) << said;
    EXPECT_NE(std::string_view(where.file).find("interpreter_test"), std::string_view::npos);
    s.cancel();
    while (engine_->stats().requests.num_running + engine_->stats().requests.num_waiting > 0)
      std::this_thread::yield();
  }
}

TEST_F(Interpreter, AWaitCanBeBrokenOff) {
  use({}, std::chrono::milliseconds(2));
  State s = start(options());
  s += "x" + gen("a", {.max_tokens = 3000});
  int times = 0;
  {
    const Interruptible interruptible([&] { return ++times >= 2; });
    EXPECT_EQ(s.get("a").error().code(), StatusCode::kAborted);
    EXPECT_EQ(s.sync().code(), StatusCode::kAborted);
  }
  EXPECT_EQ(times, 3);
  EXPECT_TRUE(s.error().ok());  // the wait has ended, the program goes on
  s.cancel();
  while (engine_->stats().requests.num_running + engine_->stats().requests.num_waiting > 0)
    std::this_thread::yield();
}

TEST_F(Interpreter, ABatchThatIsBrokenOffLeavesNothingRunning) {
  use({}, std::chrono::milliseconds(2));
  const Program program("long", {"i"}, [](State& s, const Value& i) {
    s += "x" + i + gen("a", {.max_tokens = 3000});
    (void)s.get("a");
  });
  std::vector<Arguments> batch;
  for (int i = 0; i < 50; ++i) batch.push_back({{"i", std::to_string(i)}});
  const Interruptible interruptible([] { return true; });
  const auto states = run_batch(program, batch, {.run = options(), .num_threads = 4});
  ASSERT_EQ(states.size(), batch.size());
  for (const State& s : states) EXPECT_EQ(s.error().code(), StatusCode::kAborted);
  while (engine_->stats().requests.num_running + engine_->stats().requests.num_waiting > 0)
    std::this_thread::yield();
}

TEST_F(Interpreter, ProgramsCheckTheirArguments) {
  const Program program("ask", {"question"},
                        [](State& s, const Value& question) { s += question; });
  EXPECT_EQ(program.run({}, options()).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(program.run({{"question", "a"}, {"other", "b"}}, options()).error().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(program.bind({{"question", "a"}}).run({}, options()).text(), "a");
}

}  // namespace
}  // namespace espalier::lang
