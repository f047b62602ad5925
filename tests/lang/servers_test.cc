// The HTTP back ends against our own server, and Anthropic's protocol against a server that speaks
// as much of it as a client sees.
#include <gtest/gtest.h>

#include <atomic>
#include <boost/json.hpp>
#include <fstream>

#include "net/http_server.h"
#include "running_server.h"

namespace espalier::lang {
namespace {

using lang::system;  // not the C library's

std::shared_ptr<Backend> connect(const RunningServer& running, HttpLimits limits = {}) {
  auto backend = runtime_endpoint({.base_url = running.url(), .limits = limits});
  EXPECT_TRUE(backend) << backend.error().to_string();
  return backend ? *backend : nullptr;
}

TEST(Endpoint, ProgramsRunAsInTheEngineItself) {
  const RunningServer running = run_server();
  const RunOptions options{.backend = connect(running), .defaults = {.max_tokens = 6}};
  State s = run(
      [](State& p) {
        p += "Tips:";
        auto forks = p.fork(3);
        forks += [](int i) { return std::to_string(i) + gen("tip"); };
        p += join(forks["tip"], ",") + "." + gen("end", {.stop = "zzz"});
      },
      options);
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  std::string text = "Tips:";
  for (int i = 0; i < 3; ++i)
    text += (i > 0 ? "," : "") + answer_of("Tips:" + std::to_string(i), 6);
  text += ".";
  EXPECT_EQ(s.text(), text + answer_of(text, 6));
  EXPECT_EQ(s.meta_info("end").completion_tokens, 6);
  EXPECT_EQ(options.backend->usage().completion_tokens, 24);
  EXPECT_TRUE(options.backend->server_info());
  EXPECT_TRUE(options.backend->flush_cache().ok());
}

TEST(Endpoint, SelectsByEveryMethodAsTheEngineDoes) {
  const RunningServer running = run_server();
  const auto endpoint = connect(running);
  const TestBackend engine = make_test_backend();
  for (ChoicesMethod method : {token_length_normalized, greedy_token_selection,
                               unconditional_likelihood_normalized, exact_likelihood}) {
    for (const std::string prompt : {"", "a", "Is that so? "}) {
      const auto ask = [&](State& p) {
        p += prompt + select("answer", {"yes", "no", "perhaps"}, method);
      };
      // An empty prompt has nothing that a server could compute first.
      if (prompt.empty()) continue;
      const State there = run(ask, {.backend = endpoint});
      const State here = run(ask, {.backend = engine.backend});
      ASSERT_TRUE(there.error().ok()) << there.error().to_string();
      EXPECT_EQ(there["answer"].str(), here["answer"].str()) << choices_method_name(method);
      EXPECT_EQ(there.meta_info("answer").json, here.meta_info("answer").json);
    }
  }
}

TEST(Endpoint, AServerWithoutTheRouteOfExactChoicesIsNamed) {
  net::Router router;
  ASSERT_TRUE(router
                  .add("GET", "/get_model_info",
                       [](net::HttpRequest&&, const net::ResponsePtr& response) {
                         response->send(net::HttpResponse::json(200, R"({"model_path":"other"})"));
                       })
                  .ok());
  const auto server = *net::HttpServer::start({}, std::move(router));
  const auto backend = runtime_endpoint("http://127.0.0.1:" + std::to_string(server->port()));
  ASSERT_TRUE(backend) << backend.error().to_string();
  const State s = run(
      [](State& p) {
        p += "x" + select("a", {"b", "c"}, exact_likelihood);
      },
      {.backend = *backend});
  EXPECT_EQ(s.error().code(), StatusCode::kUnimplemented);
  EXPECT_NE(s.error().message().find("/exact_likelihood"), std::string::npos);
}

TEST(Endpoint, TextComesAsItIsWritten) {
  // A second of work: who reads late gets what is there as one piece.
  const RunningServer running = run_server({}, std::chrono::milliseconds(10));
  RunOptions options{.backend = connect(running), .stream = true};
  State s = launch([](State& p) { p += "Once" + gen("a", {.max_tokens = 100}); }, options);
  std::string text;
  int pieces = 0;
  for (const std::string& piece : s.stream("a")) text += piece, ++pieces;
  EXPECT_EQ(text, answer_of("Once", 100));
  EXPECT_GT(pieces, 1);
}

TEST(Endpoint, CancellingAProgramEndsItsRequestsOnTheServer) {
  const RunningServer running = run_server({}, std::chrono::milliseconds(2));
  State s = start({.backend = connect(running)});
  s += "x" + gen("a", {.max_tokens = 3000});
  while (running.engine->stats().requests.num_running == 0) std::this_thread::yield();
  s.cancel();
  EXPECT_EQ(s.sync().code(), StatusCode::kAborted);
  while (running.engine->stats().requests.num_running > 0) std::this_thread::yield();
}

TEST(Endpoint, ALostServerIsAnErrorAtTheLineOfTheGen) {
  RunningServer running = run_server();
  const auto backend =
      connect(running, {.num_retries = 1, .backoff = std::chrono::milliseconds(1)});
  running.server->stop({});
  const int line = __LINE__ + 1;
  const State s = run([](State& p) { p += "x" + gen("a"); }, {.backend = backend});
  EXPECT_EQ(s.error().code(), StatusCode::kUnavailable);
  EXPECT_EQ(static_cast<int>(s.error_place().line), line);
  EXPECT_FALSE(runtime_endpoint(running.url()));
}

TEST(Endpoint, AServersRefusalIsTold) {
  const RunningServer running = run_server();
  const State s =
      run([](State& p) { p += "x" + gen("a", {.regex = "("}); }, {.backend = connect(running)});
  EXPECT_EQ(s.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(s.error().message().find("gen \"a\""), std::string::npos) << s.error().message();
}

TEST(OpenAi, CompletionsRun) {
  const RunningServer running = run_server();
  const auto backend = openai_backend({.model = "default",
                                       .base_url = running.url() + "/v1",
                                       .is_chat = false,
                                       .has_extensions = true,
                                       .prices = {.input = 2, .output = 10}});
  ASSERT_TRUE(backend);
  const RunOptions options{.backend = *backend, .defaults = {.max_tokens = 5}};
  const State s = run(
      [](State& p) {
        p += "Once" + gen("a") + " or " + select("b", {"yes", "no"});
      },
      options);
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  EXPECT_EQ(s["a"].str(), answer_of("Once", 5));
  EXPECT_EQ(s["b"].str(), "no");
  const Usage usage = (*backend)->usage();
  EXPECT_EQ(usage.num_calls, 2);
  EXPECT_NEAR(usage.dollars, (2.0 * static_cast<double>(usage.prompt_tokens) + 10.0 * 5.0) / 1e6,
              1e-12);
}

TEST(OpenAi, ChatRunsAndStreams) {
  const RunningServer running = run_server();
  const auto backend = openai_backend({.model = "default", .base_url = running.url() + "/v1"});
  for (const bool stream : {false, true}) {
    const State s = run(
        [](State& p) {
          p += system("Be brief.") + user("Hello") + assistant(gen("a", {.max_tokens = 5}));
        },
        {.backend = *backend, .stream = stream});
    ASSERT_TRUE(s.error().ok()) << s.error().to_string();
    EXPECT_EQ(s["a"].str(), answer_of("<system>Be brief.</><user>Hello</><assistant>", 5));
    EXPECT_EQ(s.meta_info("a").completion_tokens, 5);
    EXPECT_EQ(s.meta_info("a").finish_reason, "length");
  }
}

TEST(OpenAi, WhatTheApiCannotDoIsRefusedByName) {
  const RunningServer running = run_server();
  const auto backend = openai_backend({.model = "default", .base_url = running.url() + "/v1"});
  const auto error_of = [&](const Expr& expr) {
    const State s = run([&](State& p) { p += user("Hi") + expr; }, {.backend = *backend});
    return s.error();
  };
  EXPECT_EQ(error_of(assistant("Sure" + gen("a"))).code(), StatusCode::kUnimplemented);
  EXPECT_EQ(error_of(assistant(gen("a", {.regex = "a"}))).code(), StatusCode::kUnimplemented);
  EXPECT_EQ(error_of(assistant(select("a", {"b"}))).code(), StatusCode::kUnimplemented);
  EXPECT_EQ(error_of(gen("a")).code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(openai_backend({}));
}

// ---- Anthropic ----

// Answers POST /v1/messages: the reply repeats what was asked, as the documentation shapes answers
// and streams. Its first `num_busy` answers are 529.
class AnthropicServer {
 public:
  explicit AnthropicServer(int num_busy = 0) : num_busy_(num_busy) {
    net::Router router;
    EXPECT_TRUE(router
                    .add("POST", "/v1/messages",
                         [this](net::HttpRequest&& request, net::ResponsePtr response) {
                           answer(request, response);
                         })
                    .ok());
    server_ = *net::HttpServer::start({}, std::move(router));
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  std::vector<boost::json::object> bodies() {
    std::lock_guard lock(mutex_);
    return bodies_;
  }

 private:
  void answer(const net::HttpRequest& request, const net::ResponsePtr& response) {
    const auto* key = request.header("x-api-key");
    const auto* version = request.header("anthropic-version");
    if (key == nullptr || *key != "secret" || version == nullptr)
      return response->send(net::HttpResponse::json(
          401, R"({"type":"error","error":{"type":"authentication_error","message":"no key"}})"));
    if (num_busy_-- > 0)
      return response->send(net::HttpResponse::json(
          529, R"({"type":"error","error":{"type":"overloaded_error","message":"busy"}})"));
    const boost::json::object body = boost::json::parse(request.body).get_object();
    {
      std::lock_guard lock(mutex_);
      bodies_.push_back(body);
    }
    if (body.contains("stream")) {
      response->start_stream(200, {{"Content-Type", "text/event-stream"}});
      std::string out;
      for (
          const char* event :
          {R"({"type":"message_start","message":{"id":"m","usage":{"input_tokens":9,"output_tokens":1}}})",
           R"({"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}})",
           R"({"type":"ping"})",
           R"({"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hel"}})",
           R"({"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"lo"}})",
           R"({"type":"content_block_stop","index":0})",
           R"({"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}})",
           R"({"type":"message_stop"})"})
        net::append_sse(out, event);
      response->write(std::move(out));
      return response->finish();
    }
    response->send(net::HttpResponse::json(
        200, R"({"id":"m","type":"message","content":[{"type":"text","text":"Hello"}],)"
             R"("stop_reason":"stop_sequence","stop_sequence":".",)"
             R"("usage":{"input_tokens":7,"cache_read_input_tokens":3,"output_tokens":2}})"));
  }

  std::atomic<int> num_busy_;
  std::mutex mutex_;
  std::vector<boost::json::object> bodies_;
  std::unique_ptr<net::HttpServer> server_;
};

TEST(Anthropic, MessagesAreSentAndAnswersRead) {
  AnthropicServer server;
  const auto backend =
      anthropic_backend({.model = "m",
                         .base_url = server.url(),
                         .api_key = "secret",
                         .prices = {.input = 1, .cached_input = 0.1, .output = 5}});
  const State s = run(
      [](State& p) {
        p += system("Be brief.") + user("Hello") +
             assistant("Sure: " + gen("a", {.max_tokens = 9, .stop = "."}));
      },
      {.backend = *backend});
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  EXPECT_EQ(s["a"].str(), "Hello");
  EXPECT_EQ(s.meta_info("a").matched, ".");
  EXPECT_EQ(s.meta_info("a").prompt_tokens, 10);
  const boost::json::object body = server.bodies().at(0);
  EXPECT_EQ(body.at("system"), boost::json::value("Be brief."));
  EXPECT_EQ(body.at("max_tokens"), boost::json::value(9));
  EXPECT_EQ(body.at("stop_sequences"), boost::json::array{"."});
  const boost::json::array messages = body.at("messages").get_array();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[1].at("content"), boost::json::value("Sure:"));
  EXPECT_NEAR((*backend)->usage().dollars, (7 * 1.0 + 3 * 0.1 + 2 * 5.0) / 1e6, 1e-12);
}

TEST(Anthropic, StreamsAndRetries) {
  AnthropicServer server(2);
  const auto backend = anthropic_backend({.model = "m",
                                          .base_url = server.url(),
                                          .api_key = "secret",
                                          .limits = {.backoff = std::chrono::milliseconds(1)}});
  State s = run([](State& p) { p += user("Hi") + assistant(gen("a")); },
                {.backend = *backend, .stream = true});
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  EXPECT_EQ(s["a"].str(), "Hello");
  EXPECT_EQ(s.meta_info("a").completion_tokens, 2);
  EXPECT_EQ((*backend)->usage().num_retries, 2);
}

TEST(Anthropic, GivesUpAndSaysWhy) {
  AnthropicServer busy(100);
  const auto backend =
      anthropic_backend({.model = "m",
                         .base_url = busy.url(),
                         .api_key = "secret",
                         .limits = {.num_retries = 2, .backoff = std::chrono::milliseconds(1)}});
  const auto ask = [](State& p) { p += user("Hi") + assistant(gen("a")); };
  const State s = run(ask, {.backend = *backend});
  EXPECT_EQ(s.error().code(), StatusCode::kUnavailable);
  EXPECT_NE(s.error().message().find("busy"), std::string::npos);
  const auto keyless = anthropic_backend({.model = "m", .base_url = busy.url(), .api_key = "x"});
  EXPECT_EQ(run(ask, {.backend = *keyless}).error().code(), StatusCode::kUnauthenticated);
}

TEST(Anthropic, ImagesGoIntoMessages) {
  AnthropicServer server;
  const auto backend =
      anthropic_backend({.model = "m", .base_url = server.url(), .api_key = "secret"});
  const std::string path = ::testing::TempDir() + "lang_image.png";
  std::ofstream(path, std::ios::binary) << "PNG!";
  const State s =
      run([&](State& p) { p += user(image(path) + "What is it?") + assistant(gen("a")); },
          {.backend = *backend});
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  const std::string sent = boost::json::serialize(server.bodies().at(0));
  EXPECT_NE(sent.find(R"("media_type":"image/png","data":"UE5HIQ==")"), std::string::npos) << sent;
  const State missing = run([](State& p) { p += user(image("none.png")) + assistant(gen("a")); },
                            {.backend = *backend});
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
}

TEST(HttpLimits, CallsWaitForTheirTurn) {
  AnthropicServer server;
  const auto backend = anthropic_backend({.model = "m",
                                          .base_url = server.url(),
                                          .api_key = "secret",
                                          .limits = {.requests_per_minute = 60000.0 / 20}});
  const TimePoint begin = SteadyClock().now();
  State s = start({.backend = *backend});
  s += user("Hi");
  auto forks = s.fork(6);
  forks += assistant(gen("a"));
  for (State& f : forks) EXPECT_EQ(f["a"].str(), "Hello");
  // One every 20 ms: the sixth not before 100 ms.
  EXPECT_GE(to_seconds(SteadyClock().now() - begin), 0.099);
}

}  // namespace
}  // namespace espalier::lang
