// The whole line over real sockets: this server, the real engine, and a device whose tokens are
// known from the text before them.
#include <gmock/gmock.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/rng.h"
#include "engine/testing/test_engine.h"
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
  void start(TestEngineOptions options = {}, const std::string& api_keys_file = "") {
    parts_ = make_test_engine(std::move(options));
    ServerConfig config;
    config.port = 0;
    config.access.api_keys_file = api_keys_file;
    auto server = Server::create(config, *parts_.engine);
    ASSERT_TRUE(server) << server.error().to_string();
    server_ = std::move(*server);
    ASSERT_TRUE(server_->start().ok());
  }
  net::HttpResponse post(std::string_view path, std::string_view body,
                         const net::Headers& headers = {}) {
    auto client = net::HttpClient::create(fmt::format("http://127.0.0.1:{}", server_->port()),
                                          {.headers = headers});
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
  int num_in_engine() {
    const EngineStats s = parts_.engine->stats();
    return s.requests.num_running + s.requests.num_waiting;
  }
  bool becomes_idle() {
    for (int i = 0; i < 5000; ++i) {
      if (num_in_engine() == 0) return true;
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

TEST_F(EndToEnd, ASessionContinuesItsTokens) {
  start();
  const net::HttpResponse opened = post("/open_session", R"({"capacity_of_str_len":1000})");
  ASSERT_EQ(opened.status, 200) << opened.body;
  const std::string id(json::parse(opened.body).as_string());
  const auto turn = [&](std::string_view text, std::string_view rid, std::string_view more) {
    return fmt::format(
        R"({{"text":"{}","rid":"{}","session_params":{{"id":"{}"{}}},)"
        R"("sampling_params":{{"max_new_tokens":4,"temperature":0}},"return_logprob":true,)"
        R"("logprob_start_len":0}})",
        text, rid, id, more);
  };
  const std::string first = answer_of("Once upon", 4);
  EXPECT_EQ(post_json("/generate", turn("Once upon", "1", "")).at("text").get_string(), first);
  const json::value second = post_json("/generate", turn(" and", "2", R"(,"rid":"1")"));
  const std::string whole = "Once upon" + first + " and";
  EXPECT_EQ(second.at("text").get_string(), answer_of(whole, 4));
  const json::object& meta = second.at("meta_info").get_object();
  EXPECT_EQ(meta.at("prompt_tokens"), static_cast<int>(whole.size()));
  EXPECT_EQ(meta.at("input_token_logprobs").get_array().size(), whole.size());
  // The same again without log-probabilities of what is cached, in OpenAI's dialect.
  const json::value third = post_json(
      "/v1/completions", fmt::format(R"({{"prompt":" and","rid":"3","max_tokens":4,"temperature":0,
        "session_params":{{"id":"{}","rid":"1"}}}})",
                                     id));
  EXPECT_EQ(third.at("choices").at(0).at("text").get_string(), answer_of(whole, 4));
  EXPECT_GE(parts_.engine->stats().tokens.cached, static_cast<int64_t>(whole.size()) - 1);

  EXPECT_EQ(post("/generate", turn("x", "4", R"(,"rid":"nobody")")).status, 400);
  EXPECT_EQ(post("/generate", turn("x", "5", R"(,"rid":"1","offset":99)")).status, 400);
  EXPECT_EQ(post("/close_session", fmt::format(R"({{"session_id":"{}"}})", id)).status, 200);
  const net::HttpResponse closed = post("/generate", turn("x", "6", ""));
  EXPECT_EQ(closed.status, 400);
  EXPECT_THAT(closed.body, HasSubstr("is not open: open it with /open_session first"));
  EXPECT_EQ(post("/close_session", fmt::format(R"({{"session_id":"{}"}})", id)).status, 400);
  EXPECT_EQ(post("/open_session", "{}").status, 400);
  EXPECT_EQ(post("/open_session", R"({"capacity_of_str_len":0})").status, 400);
}

TEST_F(EndToEnd, ASessionIsItsTenantsAlone) {
  const std::filesystem::path keys =
      std::filesystem::temp_directory_path() / fmt::format("espalier_sessions_{}.json", ::getpid());
  std::ofstream(keys) << R"([{"name":"a","key":"sk-a"},{"name":"b","key":"sk-b"}])";
  start({}, keys.string());
  std::filesystem::remove(keys);
  const net::Headers a{{"Authorization", "Bearer sk-a"}}, b{{"Authorization", "Bearer sk-b"}};
  constexpr const char* kOpen = R"({"capacity_of_str_len":1000,"session_id":"mine"})";
  EXPECT_EQ(post("/open_session", kOpen, a).body, R"("mine")");
  EXPECT_EQ(post("/open_session", kOpen, a).status, 400);
  const auto turn = [](std::string_view more) {
    return fmt::format(R"({{"text":"x","session_params":{{"id":"mine"{}}},"rid":"{}",)"
                       R"("sampling_params":{{"max_new_tokens":4}}}})",
                       more, more.size());
  };
  EXPECT_EQ(post("/generate", turn(""), a).status, 200);
  EXPECT_EQ(post("/generate", turn(""), b).status, 400);
  EXPECT_EQ(post("/close_session", R"({"session_id":"mine"})", b).status, 400);
  EXPECT_EQ(post("/close_session", R"({"session_id":"a/mine"})", b).status, 400);
  EXPECT_EQ(post("/open_session", kOpen, b).body, R"("mine")");
  EXPECT_EQ(post("/generate", turn(R"(,"rid":"0")"), b).status, 400);  // a's request
  EXPECT_EQ(post("/generate", turn(R"(,"rid":"0")"), a).status, 200);
  EXPECT_EQ(post("/close_session", R"({"session_id":"mine"})", a).status, 200);
}

TEST_F(EndToEnd, TheCachesEventsAreStreamed) {
  start({.config = {.cache = {.num_cache_events = 100}}});
  const std::string body = R"({"text":"abc","sampling_params":{"max_new_tokens":2}})";
  EXPECT_EQ(post("/generate", body).status, 200);
  ASSERT_TRUE(becomes_idle());
  EXPECT_EQ(post("/flush_cache", "").status, 200);
  auto client = net::HttpClient::create(fmt::format("http://127.0.0.1:{}", server_->port()));
  const auto get = [&](std::string_view path) {
    auto answer = client->get(path);
    EXPECT_TRUE(answer && answer->status == 200);
    return json::parse(answer->body);
  };
  const json::value all = get("/kv_events");
  const json::array& events = all.at("events").get_array();
  ASSERT_EQ(events.size(), 3u) << json::serialize(all);  // the prompt, the output, the flush
  EXPECT_EQ(events[0].at("type"), "BlockStored");
  EXPECT_EQ(events[0].at("seq"), 1);
  EXPECT_EQ(events[0].at("medium"), "GPU");
  EXPECT_EQ(events[0].at("token_ids"), (json::array{97, 98, 99}));
  EXPECT_TRUE(events[0].at("parent_block_hash").is_null());
  EXPECT_EQ(events[1].at("parent_block_hash"), events[0].at("block_hashes").at(2));
  EXPECT_EQ(events[2].at("type"), "AllBlocksCleared");
  EXPECT_EQ(all.at("next"), 4);
  EXPECT_EQ(all.at("missed"), 0);
  EXPECT_EQ(get("/kv_events?from=3&limit=5").at("events").get_array().size(), 1u);
  EXPECT_EQ(get("/kv_events?from=77").at("missed"), 3);
  EXPECT_EQ(client->get("/kv_events?from=x")->status, 400);
}

TEST_F(EndToEnd, TheCachesEventsAsAStream) {
  start({.config = {.cache = {.num_cache_events = 100}}});
  const std::string body = R"({"text":"abc","sampling_params":{"max_new_tokens":2}})";
  std::string received;
  std::thread reader([&] {
    net::TestSocket socket(server_->port());
    socket.write("GET /kv_events?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\n");
    received = socket.read_until(
        [](const std::string& text) { return text.find("BlockStored") != std::string::npos; });
  });
  EXPECT_EQ(post("/generate", body).status, 200);
  reader.join();
  EXPECT_THAT(received, HasSubstr("text/event-stream"));
  EXPECT_THAT(received, HasSubstr("data: {\"type\":\"BlockStored"));
  server_->stop(1s);  // the stream ends
}

TEST_F(EndToEnd, WithoutListenersNoEventsAreKept) {
  start();
  auto client = net::HttpClient::create(fmt::format("http://127.0.0.1:{}", server_->port()));
  const auto answer = client->get("/kv_events");
  EXPECT_EQ(answer->status, 400);
  EXPECT_THAT(answer->body, HasSubstr("--kv-events-config"));
}

TEST_F(EndToEnd, GenerationIsPausedAndGoesOn) {
  start({.step_delay = 1ms});
  std::string text;
  std::thread caller([&] {
    text = post_json("/generate",
                     R"({"text":"Once","sampling_params":{"max_new_tokens":60,"temperature":0}})")
               .at("text")
               .get_string();
  });
  while (parts_.engine->stats().tokens.generated < 5) std::this_thread::yield();
  for (const char* mode : {"in_place", "retract"}) {
    const std::string body = fmt::format(R"({{"mode":"{}"}})", mode);
    EXPECT_EQ(post_json("/pause_generation", body).at("status"), "ok");
    const int64_t steps = parts_.engine->stats().steps.num_steps;
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(parts_.engine->stats().steps.num_steps, steps) << mode;
  }
  EXPECT_EQ(post("/flush_cache", "").status, 200);  // nothing runs: its memory is free
  EXPECT_EQ(post_json("/continue_generation", "{}").at("status"), "ok");
  caller.join();
  EXPECT_EQ(text, answer_of("Once", 60));

  // The default ends what runs, and what comes later waits.
  net::HttpResponse aborted;
  std::thread second([&] {
    aborted = post("/generate", R"({"text":"x","sampling_params":{"max_new_tokens":3000}})");
  });
  while (parts_.engine->stats().requests.num_running == 0) std::this_thread::yield();
  EXPECT_EQ(post("/pause_generation", "").status, 200);
  second.join();
  EXPECT_THAT(aborted.body, HasSubstr(R"("type":"abort")"));
  EXPECT_EQ(post("/continue_generation", "").status, 200);
  EXPECT_EQ(post("/generate", R"({"text":"x","sampling_params":{"max_new_tokens":3}})").status,
            200);
  const net::HttpResponse bad = post("/pause_generation", R"({"mode":"slowly"})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_THAT(bad.body, HasSubstr("must be abort, retract or in_place"));
}

TEST_F(EndToEnd, PrioritiesAreAnErrorWhereTheyAreOff) {
  start();
  const std::string body = R"({"text":"x","priority":3,"sampling_params":{"max_new_tokens":3}})";
  const net::HttpResponse refused = post("/generate", body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("priorities are off: start with --schedule-policy priority"));
  server_.reset();
  start({.config = {.schedule = {.schedule_policy = "priority"}}});
  EXPECT_EQ(post("/generate", body).status, 200);
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
  options.config.schedule.chunked_prefill_size = 7;
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
  EXPECT_THAT(answer.body, HasSubstr(R"("forced_tokens":8,"forwards_saved":8)"));
  answer = post("/generate", R"({"text":"x","sampling_params":{"choices":["aa","ab"],
                                "jump_forward":false}})");
  EXPECT_THAT(answer.body, HasSubstr(R"("text":"a)"));
  EXPECT_THAT(answer.body, Not(HasSubstr("forced_tokens")));
  // Tokens of one byte: there is nothing to heal, and the text begins behind the prompt.
  answer = post("/generate", R"({"text":"xy","sampling_params":{"regex":"abc[0-9]",
                                "token_healing":true}})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.body, HasSubstr(R"("text":"abc)"));
  answer = post("/v1/completions", R"({"prompt":"xy","max_tokens":3,"token_healing":true})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  answer = post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],
                                            "token_healing":true})");
  EXPECT_EQ(answer.status, 400) << answer.body;
  EXPECT_THAT(answer.body, HasSubstr("continue_final_message"));
}

TEST_F(EndToEnd, EachTokenSaysWhereItComesFrom) {
  start();
  const json::value answer = post_json("/generate", R"({"text":"x","return_token_origins":true,
      "sampling_params":{"regex":"abc[0-9][0-9]"}})");
  EXPECT_EQ(json::serialize(answer.at("meta_info").at("output_token_origins")),
            R"(["forced","forced","forced","sampled","sampled"])");
  EXPECT_THAT(post("/generate", R"({"text":"x","sampling_params":{"max_new_tokens":2}})").body,
              Not(HasSubstr("output_token_origins")));
}

TEST_F(EndToEnd, AGrammarIsExplainedWithAPicture) {
  start();
  const json::value made = post_json("/v1/grammar/explain", R"({"regex":"abc[0-9]"})");
  EXPECT_THAT(std::string(made.at("svg").get_string()), HasSubstr("<svg"));
  EXPECT_EQ(made.at("forced"), "abc");
  EXPECT_EQ(made.at("rule_names").get_array().size(), made.at("rules").to_number<size_t>());
  EXPECT_EQ(post("/v1/grammar/explain", R"({"regex":"("})").status, 400);
  EXPECT_EQ(post("/v1/grammar/explain", "{}").status, 400);
}

TEST_F(EndToEnd, TheCachesTreeIsReadAndItsChanges) {
  start();
  const auto get = [&](const std::string& path) {
    auto client = net::HttpClient::create(fmt::format("http://127.0.0.1:{}", server_->port()));
    return json::parse(client->get(path)->body);
  };
  EXPECT_TRUE(get("/cache_tree").at("nodes").get_array().empty());
  post("/generate", R"({"text":"abcdef","sampling_params":{"max_new_tokens":1}})");
  post("/generate", R"({"text":"abcxyz","sampling_params":{"max_new_tokens":1}})");
  ASSERT_TRUE(becomes_idle());
  const json::value tree = get("/cache_tree");
  EXPECT_EQ(tree.at("num_nodes"), 3) << json::serialize(tree);
  EXPECT_EQ(tree.at("nodes").get_array().size(), 4u) << "and the root";
  const std::string since =
      fmt::format("/cache_tree?since={}", tree.at("reading").to_number<int>());
  EXPECT_TRUE(get(since).at("nodes").get_array().empty()) << "nothing has changed";
  std::vector<std::string> texts;
  for (const json::value& node : tree.at("nodes").get_array())
    if (node.at(1) != 0)
      texts.emplace_back(
          get(fmt::format("/cache_tree/{}", node.at(0).to_number<int>())).at("text").get_string());
  EXPECT_THAT(texts, ::testing::UnorderedElementsAre("abc", "def", "xyz"));
  EXPECT_EQ(post("/flush_cache", "").status, 200);
  const json::value flushed = get(since);
  EXPECT_FALSE(flushed.at("whole").get_bool());
  EXPECT_EQ(flushed.at("removed").get_array().size(), 4u);
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
  start();
  // The owner surely has not ended when the second comes.
  EXPECT_EQ(post("/pause_generation", R"({"mode":"in_place"})").status, 200);
  const std::string body = R"({"text":"a","rid":"same","sampling_params":{"max_new_tokens":40}})";
  std::thread owner([&] { EXPECT_EQ(post("/generate", body).status, 200); });
  while (parts_.engine->stats().requests.num_waiting == 0) std::this_thread::sleep_for(1ms);
  const net::HttpResponse second = post("/generate", body);
  EXPECT_EQ(second.status, 400) << second.body;
  EXPECT_EQ(post("/continue_generation", "{}").status, 200);
  owner.join();
  EXPECT_EQ(parts_.engine->stats().requests.num_aborted, 0);
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
      socket.write(
          fmt::format("POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
                      body.size(), body));
      while (parts_.engine->stats().requests.num_running == 0) std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(becomes_idle());
  }
  EXPECT_EQ(parts_.engine->stats().requests.num_aborted, 3);
}

TEST_F(EndToEnd, AFullQueueAnswers503) {
  TestEngineOptions options;
  options.step_delay = 5ms;
  options.config.schedule.max_running_requests = 1;
  options.config.schedule.max_queued_requests = 1;
  start(std::move(options));
  std::vector<net::TestSocket> sockets;
  const std::string body =
      R"({"text":"a","sampling_params":{"max_new_tokens":1000,"ignore_eos":true}})";
  for (int count = 1; count <= 2; ++count) {  // one runs, one waits
    sockets.emplace_back(server_->port());
    sockets.back().write(
        fmt::format("POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
                    body.size(), body));
    while (num_in_engine() < count) std::this_thread::sleep_for(1ms);
  }
  const net::HttpResponse refused = post("/generate", body);
  EXPECT_EQ(refused.status, 503);
  ASSERT_NE(net::find_header(refused.headers, "Retry-After"), nullptr);
  sockets.clear();
  EXPECT_TRUE(becomes_idle());
}

TEST_F(EndToEnd, AFullQueueGivesWayToAHigherPriority) {
  TestEngineOptions options;
  options.step_delay = 5ms;
  options.config.schedule.max_running_requests = 1;
  options.config.schedule.max_queued_requests = 1;
  options.config.schedule.schedule_policy = "priority";
  options.config.schedule.disable_priority_preemption = true;
  start(std::move(options));
  const auto body = [](int priority, int tokens, bool stream) {
    return fmt::format(
        R"({{"text":"a","priority":{},"stream":{},"sampling_params":{{"max_new_tokens":{},"ignore_eos":true}}}})",
        priority, stream, tokens);
  };
  std::vector<std::future<net::HttpResponse>> answers;
  for (int count = 1; count <= 2; ++count) {  // one runs, one waits
    answers.push_back(std::async(
        std::launch::async, [&, count] { return post("/generate", body(1, 200, count == 2)); }));
    while (num_in_engine() < count) std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(post("/generate", body(1, 2, false)).status, 503);
  const net::HttpResponse urgent = post("/generate", body(5, 2, false));
  EXPECT_EQ(urgent.status, 200) << urgent.body;
  const net::HttpResponse evicted = answers[1].get();
  EXPECT_EQ(evicted.status, 503);
  EXPECT_EQ(evicted.body,
            R"({"object":"error","message":"The request is aborted by a higher priority request.",)"
            R"("type":"ServiceUnavailableError","param":null,"code":503,)"
            R"("error":{"message":"The request is aborted by a higher priority request."}})");
  EXPECT_EQ(answers[0].get().status, 200);
  EXPECT_TRUE(becomes_idle());
}

TEST_F(EndToEnd, FiveHundredStreams) {
  constexpr int kStreams = 500, kTokens = 24;
  TestEngineOptions options;
  options.config.schedule.max_running_requests = kStreams;
  options.config.schedule.max_queued_requests = 2 * kStreams;
  options.config.cache.max_total_tokens = 100000;
  start(std::move(options));
  std::vector<net::TestSocket> sockets;
  sockets.reserve(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    const std::string body =
        fmt::format(R"({{"prompt":"stream {:03}","stream":true,"max_tokens":{}}})", i, kTokens);
    sockets.emplace_back(server_->port());
    ASSERT_TRUE(sockets.back().connected());
    sockets.back().write(
        fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
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
