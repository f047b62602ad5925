// The whole line over real sockets: this server, the real engine, and a device whose tokens are
// known from the text before them.
#include <gmock/gmock.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <thread>

#include "base/rng.h"
#include "engine/test_engine.h"
#include "net/client.h"
#include "net/test_socket.h"
#include "server/server.h"

namespace espalier::server {
namespace {

namespace json = boost::json;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

class EndToEnd : public ::testing::Test {
 protected:
  void start(TestEngineOptions options = {}) {
    parts_ = make_test_engine(std::move(options));
    ServerConfig config;
    config.port = 0;
    auto server = Server::create(config, *parts_.engine);
    ASSERT_TRUE(server) << server.error().to_string();
    server_ = std::move(*server);
    ASSERT_TRUE(server_->start().ok());
  }
  net::HttpResponse post(std::string_view path, std::string_view body) {
    auto client = net::HttpClient::create(fmt::format("http://127.0.0.1:{}", server_->port()));
    auto answer = client->post(path, body);
    EXPECT_TRUE(answer) << answer.error().to_string();
    return answer ? *answer : net::HttpResponse{};
  }
  json::value post_json(std::string_view path, std::string_view body) {
    const net::HttpResponse answer = post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  std::string answer_of(std::string_view prompt, int count) {
    const std::vector<TokenId> ids = Script().answer(bytes_of(prompt), count);
    return {ids.begin(), ids.end()};
  }
  bool becomes_idle() {
    for (int i = 0; i < 1000; ++i) {
      const EngineStats s = parts_.engine->stats();
      if (s.num_running + s.num_waiting == 0) return true;
      std::this_thread::sleep_for(2ms);
    }
    return false;
  }
  void TearDown() override { server_.reset(); }

  TestEngine parts_;  // outlives the server
  std::unique_ptr<Server> server_;
};

TEST_F(EndToEnd, TextIsWhatTheDeviceSays) {
  start();
  const json::value one =
      post_json("/generate", R"({"text":"Once upon","sampling_params":{"max_new_tokens":20}})");
  EXPECT_EQ(one.at("text").get_string(), answer_of("Once upon", 20));
  EXPECT_EQ(one.at("meta_info").at("prompt_tokens"), 9);
  EXPECT_EQ(one.at("meta_info").at("finish_reason").at("type"), "length");
  const json::value completion =
      post_json("/v1/completions", R"({"prompt":["Once","upon"],"max_tokens":5})");
  EXPECT_EQ(completion.at("choices").at(0).at("text").get_string(), answer_of("Once", 5));
  EXPECT_EQ(completion.at("choices").at(1).at("text").get_string(), answer_of("upon", 5));
  const std::string text = answer_of("Once upon", 20);
  const std::string stop = text.substr(5, 3);
  const json::value stopped = post_json(
      "/generate",
      fmt::format(
          R"({{"text":"Once upon","sampling_params":{{"max_new_tokens":20,"stop":["{}"]}}}})",
          stop));
  EXPECT_EQ(stopped.at("text").get_string(), text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped.at("meta_info").at("finish_reason").at("matched").get_string(), stop);
}

TEST_F(EndToEnd, TheCacheShowsInTheHeaders) {
  start();
  const std::string body =
      R"({"text":")" + std::string(99, 'x') + R"(y","sampling_params":{"max_new_tokens":4}})";
  EXPECT_EQ(*net::find_header(post("/generate", body).headers, "X-Cache-Hit-Rate"), "0.0000");
  EXPECT_EQ(*net::find_header(post("/generate", body).headers, "X-Cache-Hit-Rate"), "0.9900");
  EXPECT_EQ(post("/flush_cache", "").status, 200);
  EXPECT_EQ(*net::find_header(post("/generate", body).headers, "X-Cache-Hit-Rate"), "0.0000");
}

TEST_F(EndToEnd, LogprobListsHaveTheLengthsThatTheyPromise) {
  TestEngineOptions options;
  options.config.chunked_prefill_size = 7;
  start(std::move(options));
  Rng rng(11);
  for (int round = 0; round < 60; ++round) {
    const int64_t prompt = rng.between(1, 40), start_len = rng.between(-1, prompt);
    const int64_t max_new = rng.between(0, 3);
    std::string ids;
    for (int64_t i = 0; i < prompt; ++i) {
      ids += fmt::format("{}{}", i == 0 ? "" : ",", 'a' + (round % 3 == 0 ? i % 5 : rng.below(26)));
    }
    const std::string body = fmt::format(
        R"({{"input_ids":[{}],"return_logprob":true,"logprob_start_len":{},"top_logprobs_num":2,)"
        R"("sampling_params":{{"max_new_tokens":{}}}}})",
        ids, start_len, max_new);
    SCOPED_TRACE(body);
    const json::value answer = post_json("/generate", body);
    const json::object& meta = answer.at("meta_info").get_object();
    const json::array& input = meta.at("input_token_logprobs").get_array();
    ASSERT_EQ(static_cast<int64_t>(input.size()), start_len < 0 ? 0 : prompt - start_len);
    for (size_t i = 0; i < input.size(); ++i) {
      const bool is_first_of_all = start_len == 0 && i == 0;
      ASSERT_EQ(input[i].at(0).is_null(), is_first_of_all);
      if (is_first_of_all) continue;
      const auto token = static_cast<TokenId>(input[i].at(1).get_int64());
      ASSERT_FLOAT_EQ(static_cast<float>(input[i].at(0).to_number<double>()),
                      NullExecutor::logprob_of(token));
    }
    ASSERT_EQ(meta.at("output_token_logprobs").get_array().size(), static_cast<size_t>(max_new));
    ASSERT_EQ(meta.at("input_top_logprobs").get_array().size(), input.size());
  }
  EXPECT_EQ(
      post("/generate", R"({"text":"abc","return_logprob":true,"logprob_start_len":4})").status,
      400);
}

TEST_F(EndToEnd, GrammarsAreCompiledAheadAndForceTokens) {
  start();
  const auto compile = [&](const char* body) { return post("/v1/grammar/compile", body); };
  net::HttpResponse answer = compile(R"({"regex":"abc[0-9]"})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.body, HasSubstr(R"("compiled":true)"));
  EXPECT_THAT(answer.body, HasSubstr(R"("forced":"abc")"));
  EXPECT_EQ(compile(R"({"json_schema":{"type":"integer"}})").status, 200);
  EXPECT_EQ(compile(R"({"json_schema":"{\"type\":\"integer\"}"})").status, 200);
  EXPECT_EQ(compile(R"({"response_format":{"type":"json_object"}})").status, 200);
  EXPECT_EQ(compile(R"({"choices":["a","b"]})").status, 200);
  answer = compile(R"({"json_schema":{"type":"array","minItems":"x"}})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("minItems"));
  EXPECT_EQ(compile("{}").status, 400);
  EXPECT_EQ(compile(R"({"regex":"a","ebnf":"root ::= \"a\""})").status, 400);
  EXPECT_EQ(compile(R"({"regex":1})").status, 400);
  EXPECT_EQ(compile("{").status, 400);

  answer = post("/generate", R"({"text":"x","sampling_params":{"regex":"abcdefgh[0-9]"}})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.body, HasSubstr(R"("text":"abcdefgh)"));
  EXPECT_THAT(answer.body, HasSubstr(R"("forced_tokens":7,"forwards_saved":)"));
  answer = post("/generate", R"({"text":"x","sampling_params":{"choices":["aa","ab"],
                                "jump_forward":false}})");
  EXPECT_THAT(answer.body, HasSubstr(R"("text":"a)"));
  EXPECT_THAT(answer.body, Not(HasSubstr("forced_tokens")));
}

TEST_F(EndToEnd, BadInputIsRefusedAndDisturbsNothing) {
  TestEngineOptions options;
  options.context_length = 64;
  start(std::move(options));
  for (const char* sampling :
       {R"("temperature":-1)", R"("top_p":0)", R"("top_k":0)", R"("min_p":2)", R"("n":0)",
        R"("frequency_penalty":3)", R"("repetition_penalty":0)", R"("max_new_tokens":-1)",
        R"("stop_regex":"(")", R"("max_new_tokens":1000)", R"("json_schema":"[")",
        R"("structural_tag":"{}")", R"("json_whitespace":"much")",
        R"("regex":"a","choices":["a"])"}) {
    const net::HttpResponse answer =
        post("/generate", fmt::format(R"({{"text":"a","sampling_params":{{{}}}}})", sampling));
    EXPECT_EQ(answer.status, 400) << sampling << answer.body;
    EXPECT_THAT(answer.body, HasSubstr(R"({"error":{"message":")")) << sampling;
  }
  EXPECT_EQ(post("/generate", R"({"text":")" + std::string(100, 'a') + "\"}").status, 400);
  EXPECT_EQ(post("/generate", R"({"input_ids":[100000]})").status, 400);
  EXPECT_EQ(post("/generate", R"({"text":""})").status, 400);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a","max_tokens":3})").status, 200);
}

TEST_F(EndToEnd, ARidInUseIsRefusedAndItsOwnerGoesOn) {
  TestEngineOptions options;
  options.step_delay = 5ms;
  start(std::move(options));
  const std::string body = R"({"text":"a","rid":"same","sampling_params":{"max_new_tokens":40}})";
  std::thread owner([&] { EXPECT_EQ(post("/generate", body).status, 200); });
  while (parts_.engine->stats().num_running == 0) std::this_thread::sleep_for(1ms);
  const net::HttpResponse second = post("/generate", body);
  EXPECT_EQ(second.status, 400) << second.body;
  owner.join();
  EXPECT_EQ(parts_.engine->stats().num_aborted_total, 0);
}

TEST_F(EndToEnd, AClientThatLeavesFreesItsPlace) {
  TestEngineOptions options;
  options.step_delay = 2ms;
  start(std::move(options));
  for (const char* more : {"", R"(,"stream":true)", R"(,"n":1)"}) {
    {
      net::TestSocket socket(server_->port());
      const std::string body = fmt::format(
          R"({{"text":"a","sampling_params":{{"max_new_tokens":2000,"ignore_eos":true}}{}}})",
          more);
      socket.write(fmt::format("POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{}",
                               body.size(), body));
      while (parts_.engine->stats().num_running == 0) std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(becomes_idle());
  }
  EXPECT_EQ(parts_.engine->stats().num_aborted_total, 3);
}

TEST_F(EndToEnd, AFullQueueAnswers503) {
  TestEngineOptions options;
  options.step_delay = 5ms;
  options.config.max_running_requests = 1;
  options.config.max_queued_requests = 1;
  start(std::move(options));
  std::vector<net::TestSocket> sockets;
  const std::string body =
      R"({"text":"a","sampling_params":{"max_new_tokens":1000,"ignore_eos":true}})";
  net::HttpResponse refused;
  for (int i = 0; i < 10 && refused.status != 503; ++i) {
    sockets.emplace_back(server_->port());
    sockets.back().write(fmt::format(
        "POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
    if (i < 2) continue;
    auto client = net::HttpClient::create(fmt::format("http://127.0.0.1:{}", server_->port()),
                                          {.read_timeout = 200ms});
    if (auto answer = client->post("/generate", body)) refused = *answer;
  }
  EXPECT_EQ(refused.status, 503);
  ASSERT_NE(net::find_header(refused.headers, "Retry-After"), nullptr);
  sockets.clear();
  EXPECT_TRUE(becomes_idle());
}

TEST_F(EndToEnd, FiveHundredStreams) {
  constexpr int kStreams = 500, kTokens = 24;
  TestEngineOptions options;
  options.config.max_running_requests = kStreams;
  options.config.max_queued_requests = 2 * kStreams;
  options.config.max_total_tokens = 100000;
  start(std::move(options));
  std::vector<net::TestSocket> sockets;
  sockets.reserve(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    const std::string body =
        fmt::format(R"({{"prompt":"stream {:03}","stream":true,"max_tokens":{}}})", i, kTokens);
    sockets.emplace_back(server_->port());
    ASSERT_TRUE(sockets.back().connected());
    sockets.back().write(
        fmt::format("POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                    "Content-Length: {}\r\n\r\n{}",
                    body.size(), body));
  }
  for (int i = 0; i < kStreams; ++i) {
    const std::string bytes = sockets[static_cast<size_t>(i)].read_to_end(60s);
    std::string text;
    for (size_t at = 0; (at = bytes.find("data: {", at)) != std::string::npos; ++at) {
      const std::string event = bytes.substr(at + 6, bytes.find("\n\n", at) - at - 6);
      text += json::parse(event).at("choices").at(0).at("text").get_string();
    }
    ASSERT_EQ(text, answer_of(fmt::format("stream {:03}", i), kTokens)) << bytes;
    ASSERT_THAT(bytes, HasSubstr("data: [DONE]\n\n"));
  }
}

}  // namespace
}  // namespace espalier::server
