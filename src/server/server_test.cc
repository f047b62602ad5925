// Everything but generation's shapes: keys, information, admin routes, disconnects, stopping.
#include "server/server.h"

#include <gmock/gmock.h>

#include <thread>

#include "net/test_socket.h"
#include "server/json_fields.h"
#include "server/metrics.h"
#include "server/test_server.h"

namespace espalier::server {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

net::Headers bearer(std::string key) { return {{"Authorization", "Bearer " + key}}; }

std::string raw_post(std::string_view path, std::string_view body) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", path,
                     body.size(), body);
}

TEST_F(ServerTest, Keys) {
  config_.access.api_key = "user-key";
  config_.access.admin_api_key = "admin-key";
  start();
  struct Case {
    const char *method, *path, *key;
    int status;
  };
  for (const Case& c : {Case{"GET", "/v1/models", "", 401},
                        {"GET", "/v1/models", "wrong", 401},
                        {"GET", "/v1/models", "user-ke", 401},
                        {"GET", "/v1/models", "user-keyy", 401},
                        {"GET", "/v1/models", "user-key", 200},
                        {"GET", "/v1/models", "admin-key", 200},
                        {"POST", "/flush_cache", "", 401},
                        {"POST", "/flush_cache", "user-key", 403},
                        {"POST", "/flush_cache", "admin-key", 200},
                        {"POST", "/generate", "", 401},
                        {"GET", "/health", "", 200},
                        {"GET", "/health_generate", "", 200},
                        {"GET", "/metrics", "", 200},
                        {"OPTIONS", "/generate", "", 204}}) {
    const bool has_key = *c.key != '\0';
    const Answer answer = call(c.method, c.path, "", has_key ? bearer(c.key) : net::Headers{});
    EXPECT_EQ(answer.status, c.status) << c.method << " " << c.path << " " << c.key;
    if (c.status == 401) {
      EXPECT_EQ(answer.body, R"({"error":"Unauthorized"})");
    }
  }
}

TEST_F(ServerTest, FiguresOfGpusAreOnesOfMetrics) {
  const Metrics metrics("m", false);
  EXPECT_THAT(metrics.scrape(engine_, {}), Not(HasSubstr("espalier:gpu_")));
  const cuda::GpuFigures whole{.index = 1,
                               .name = "NVIDIA H100",
                               .memory_used_bytes = 60,
                               .memory_total_bytes = 80,
                               .utilisation = 0.5,
                               .temperature_celsius = 64,
                               .power_watts = 412.5,
                               .power_limit_watts = 700};
  const std::string text = metrics.scrape(engine_, {.gpus = {whole, {.index = 2, .name = "T4"}}});
  const auto series = [](std::string_view name, int gpu, std::string_view model) {
    return fmt::format("\nespalier:{}{{model_name=\"m\",gpu=\"{}\",gpu_name=\"{}\"}} ", name, gpu,
                       model);
  };
  EXPECT_THAT(text, HasSubstr(series("gpu_memory_used_bytes", 1, "NVIDIA H100") + "60\n"));
  EXPECT_THAT(text, HasSubstr(series("gpu_utilization", 1, "NVIDIA H100") + "0.5\n"));
  EXPECT_THAT(text, HasSubstr(series("gpu_power_limit_watts", 1, "NVIDIA H100") + "700\n"));
  EXPECT_THAT(text, HasSubstr(series("gpu_memory_total_bytes", 2, "T4") + "0\n"));
  EXPECT_THAT(text, Not(HasSubstr(series("gpu_power_watts", 2, "T4"))));
}

TEST_F(ServerTest, AdminRoutesTakeTheOrdinaryKeyWhereThereIsNoOther) {
  config_.access.api_key = "k";
  start();
  EXPECT_EQ(call("POST", "/flush_cache").status, 401);
  EXPECT_EQ(call("POST", "/flush_cache", "", bearer("k")).status, 200);
  for (const auto& [sent, status] : std::vector<std::pair<std::string, int>>{
           {"bearer k", 200}, {"BEARER k", 200}, {"Bearer", 401}, {"Bearerk", 401}, {"k", 401}})
    EXPECT_EQ(call("GET", "/v1/models", "", {{"Authorization", sent}}).status, status) << sent;
}

TEST_F(ServerTest, BranchesOfSglangsFrontendAreJoined) {
  start();
  const auto status = [&](std::string_view body) {
    return call("POST", "/concate_and_append_request", std::string(body)).status;
  };
  EXPECT_EQ(status(R"({"src_rids":["a","b"],"dst_rid":"c"})"), 200);
  EXPECT_EQ(status(R"({"src_rids":[],"dst_rid":"c"})"), 400);
  EXPECT_EQ(status(R"({"src_rids":["a"]})"), 400);
  EXPECT_EQ(status(R"({"src_rids":3,"dst_rid":"c"})"), 400);
  EXPECT_EQ(status("{"), 400);
}

TEST_F(ServerTest, ExactLikelihoodsThatCannotBeAreRefused) {
  start();
  const auto status = [&](std::string_view body) {
    return call("POST", "/exact_likelihood", std::string(body)).status;
  };
  EXPECT_EQ(status(R"({"text":"a","choices":[]})"), 400);
  EXPECT_EQ(status(R"({"text":"a","choices":["b",""]})"), 400);
  EXPECT_EQ(status(R"({"choices":["b"]})"), 400);
  EXPECT_EQ(status(R"({"text":"a","input_ids":[1],"choices":["b"]})"), 400);
  EXPECT_EQ(status(R"({"text":"a","choices":3})"), 400);
  EXPECT_EQ(status("{"), 400);
}

TEST_F(ServerTest, Models) {
  config_.answers.served_model_name = "org/model";
  start();
  const std::string card =
      R"({"id":"org/model","object":"model","created":0,"owned_by":"sglang","root":"org/model",)"
      R"("parent":null,"max_model_len":100})";
  EXPECT_EQ(normalise(call("GET", "/v1/models").body),
            normalise(R"({"object":"list","data":[)" + card + "]}"));
  EXPECT_EQ(normalise(call("GET", "/v1/models/org/model").body), normalise(card));
  const Answer other = call("GET", "/v1/models/other");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(
      other.body,
      R"({"error":{"message":"The model 'other' does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}})");
}

TEST_F(ServerTest, AModelIsNotDeleted) {
  config_.answers.served_model_name = "org/model";
  config_.access.api_key = "secret";
  start();
  EXPECT_EQ(call("DELETE", "/v1/models/org/model").status, 401);
  const Answer answer =
      call("DELETE", "/v1/models/org/model", "", {{"Authorization", "Bearer secret"}});
  EXPECT_EQ(answer.status, 501);
  EXPECT_THAT(answer.body, HasSubstr("DELETE /v1/models/{id} is not served here: "));
  EXPECT_THAT(answer.body, HasSubstr("'org/model'; end the server"));
}

TEST_F(ServerTest, Information) {
  config_.extra_info = {{"more", "of it"}};
  start();
  for (const char* path : {"/model_info", "/get_model_info"}) {
    EXPECT_EQ(normalise(call("GET", path).body),
              normalise(
                  R"({"model_path":"/models/scripted-1b/","tokenizer_path":"/models/scripted-1b/",
                "is_generation":true,"preferred_sampling_params":null,"weight_version":"default",
                "has_image_understanding":false,"has_audio_understanding":false,
                "model_type":"llama","architectures":["LlamaForCausalLM"]})"));
  }
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const std::string body = call("GET", path).body;
    for (
        const char* part :
        {R"("model_path":"/models/scripted-1b/")", R"("max_total_num_tokens":1000)",
         R"("max_req_input_len":99)", R"("internal_states":[{"last_gen_throughput":12.5)",
         R"("effective_max_running_requests_per_dp":8)", R"("avg_spec_accept_length":null)",
         R"("spec_drafters":{"radix":{"spec_verify_ct":2,"drafted_tokens":8,"accepted_drafts":6}})",
         R"("graph":0.25,"scratch":0.5)", R"("num_failed":4,"num_not_finite":3)",
         R"("served_model_name":"scripted-1b")", R"("quantization":null)", R"("more":"of it")",
         R"("version":")"}) {
      EXPECT_THAT(body, HasSubstr(part));
    }
    EXPECT_THAT(body, Not(HasSubstr("api_key\"")));  // a key; the path of a file of keys is none
  }
  EXPECT_EQ(normalise(call("GET", "/get_load").body),
            normalise(R"([{"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":250}])"));
  EXPECT_THAT(call("GET", "/v1/loads").body, HasSubstr(R"("token_usage":0.25)"));
  EXPECT_THAT(call("GET", "/v1/loads?include=queues").body, Not(HasSubstr("token_usage")));
  EXPECT_THAT(call("GET", "/v1/loads?format=prometheus").body, HasSubstr("sglang:token_usage"));
  EXPECT_EQ(call("GET", "/v1/loads?format=xml").status, 400);
  EXPECT_THAT(call("GET", "/").body, HasSubstr("espalier"));
  EXPECT_EQ(call("HEAD", "/").status, 200);
}

TEST_F(ServerTest, UnknownPathsAndMethods) {
  start();
  const Answer missing = call("GET", "/none\"");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(
      missing.body,
      R"({"object":"error","message":"there is no /none\" here","type":"NotFoundError","param":null,"code":404})");
  EXPECT_EQ(call("GET", "/generate").status, 405);
  EXPECT_EQ(call("GET", "/generate").header("Allow"), "POST, PUT, OPTIONS");
  EXPECT_EQ(call("PUT", "/generate", R"({"text":"x"})").status, 200);
}

TEST_F(ServerTest, OpenApiListsWhatTheParsersRead) {
  start();
  const std::string body = normalise(call("GET", "/openapi.json").body);
  for (const char* part :
       {R"("/v1/chat/completions":{"get")", "schemas/ChatCompletionRequest",
        R"("/v1/completions":{"post")", R"("/v1/models/{model}")", "GenerateRequest",
        "chat_template_kwargs", "logprob_start_len", "sampling_seed", R"("required":["prompt"])"}) {
    EXPECT_THAT(body, HasSubstr(part));
  }
  EXPECT_TRUE(body.starts_with("{\"components\"")) << body.substr(0, 100);
}

// Clients choose priorities, so there are not as many series as they like.
TEST_F(ServerTest, MetricsOfPriorities) {
  engine_.set_schedule_policy("priority");
  start();
  for (int priority = 1; priority <= 70; ++priority)
    ASSERT_EQ(post("/generate", fmt::format(R"({{"text":"Hi","priority":{}}})", priority)).status,
              200);
  ASSERT_EQ(post("/generate", R"({"text":"Hi","priority":5})").status, 200);
  const std::string body = call("GET", "/metrics").body;
  const std::string count = "sglang:e2e_request_latency_seconds_count{model_name=\"scripted-1b\",";
  EXPECT_THAT(body, HasSubstr(count + "priority=\"1\"} 1\n"));
  EXPECT_THAT(body, HasSubstr(count + "priority=\"5\"} 2\n"));
  EXPECT_THAT(body, HasSubstr(count + "priority=\"64\"} 1\n"));
  EXPECT_THAT(body, HasSubstr(count + "priority=\"other\"} 6\n"));
  EXPECT_THAT(body, Not(HasSubstr("priority=\"65\"")));
}

TEST_F(ServerTest, Metrics) {
  start();
  ASSERT_EQ(post("/generate", R"({"text":"Hi"})").status, 200);
  const Answer answer = call("GET", "/metrics");
  EXPECT_THAT(answer.header("Content-Type"), HasSubstr("text/plain; version=0.0.4"));
  const std::string label = "{model_name=\"scripted-1b\"} ";
  const auto of_radix = [](const std::string& more = "") {
    return "{model_name=\"scripted-1b\",drafter=\"radix\"" + more + "} ";
  };
  for (const std::string& line :
       {"espalier:spec_drafted_tokens_total" + of_radix() + "8",
        "espalier:spec_accepted_tokens_total" + of_radix() + "6",
        "espalier:spec_verify_ct_total" + of_radix() + "2",
        "espalier:spec_accept_rate" + of_radix() + "0.75",
        "espalier:spec_accept_length" + of_radix() + "4",
        "espalier:spec_accepted_tokens_bucket" + of_radix(",le=\"2\"") + "0",
        "espalier:spec_accepted_tokens_bucket" + of_radix(",le=\"3\"") + "2",
        "espalier:spec_accepted_tokens_bucket" + of_radix(",le=\"+Inf\"") + "2",
        "espalier:spec_accepted_tokens_sum" + of_radix() + "6",
        std::string("espalier:spec_accept_rate{model_name=\"scripted-1b\",drafter=\"ngram\"} 0"),
        "sglang:num_running_reqs" + label + "0", "sglang:num_queue_reqs" + label + "0",
        "sglang:token_usage" + label + "0.25", "sglang:cache_hit_rate" + label + "0.25",
        "sglang:gen_throughput" + label + "12.5", "sglang:prompt_tokens_total" + label + "40",
        "sglang:generation_tokens_total" + label + "70",
        "sglang:cached_tokens_total" + label + "10", "sglang:num_requests_total" + label + "1",
        "espalier:failed_requests_total" + label + "4", "espalier:not_finite_total" + label + "3",
        "sglang:time_to_first_token_seconds_count" + label + "1",
        // Ten tokens have nine gaps.
        "sglang:inter_token_latency_seconds_count" + label + "9",
        "sglang:e2e_request_latency_seconds_count" + label + "1",
        "sglang:prompt_tokens_histogram_sum" + label + "3",
        // Under vLLM's names the same (docs/vllm_metrics.md).
        "vllm:num_requests_running" + label + "0", "vllm:num_requests_waiting" + label + "0",
        "vllm:kv_cache_usage_perc" + label + "0.25", "vllm:prefix_cache_hits_total" + label + "10",
        "vllm:time_to_first_token_seconds_count" + label + "1",
        "vllm:inter_token_latency_seconds_count" + label + "9",
        std::string("# TYPE vllm:num_preemptions_total counter"),
        std::string("# TYPE sglang:prompt_tokens_total counter"),
        std::string("# TYPE sglang:num_running_reqs gauge")}) {
    EXPECT_THAT(answer.body, HasSubstr(line + "\n"));
  }
}

TEST_F(ServerTest, MetricsOfRoutesAndRoutingKeys) {
  engine_.set_script({.hold = true});
  start();
  const auto metrics = [&] { return call("GET", "/metrics").body; };
  const auto of = [](const char* name, const char* endpoint, const char* method, int value,
                     const char* status = "") {
    return fmt::format(
        "sglang:http_{}{{model_name=\"scripted-1b\",endpoint=\"{}\",method=\"{}\"{}}} "
        "{}\n",
        name, endpoint, method, *status == 0 ? "" : fmt::format(",status_code=\"{}\"", status),
        value);
  };
  const std::string keys = "sglang:routing_keys_active{model_name=\"scripted-1b\"} ";
  // Three requests of two keys and one without; of the streams one has begun to answer.
  std::vector<net::TestSocket> sockets;
  for (const std::string key : {"a", "b", "b", ""}) {
    sockets.emplace_back(server_->port());
    const std::string body = R"({"text":"x","stream":true})";
    sockets.back().write(
        fmt::format("POST /generate HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n{}",
                    key.empty() ? "" : "X-SMG-Routing-Key: " + key + "\r\n", body.size(), body));
  }
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 4; }));
  std::string body = metrics();
  EXPECT_THAT(body, HasSubstr(of("requests_total", "/generate", "POST", 4)));
  EXPECT_THAT(body, HasSubstr(of("requests_active", "/generate", "POST", 4)));
  EXPECT_THAT(body, HasSubstr(of("requests_active", "/metrics", "GET", 1)));  // this one
  EXPECT_THAT(body, HasSubstr(keys + "2\n"));
  // One leaves, one answer is an error, and a path is counted by its pattern.
  sockets.pop_back();
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 3; }));
  EXPECT_EQ(post("/generate", "x").status, 400);
  EXPECT_EQ(call("GET", "/v1/responses/none").status, 404);
  EXPECT_EQ(post("/abort_request", R"({"abort_all":true})").status, 200);
  for (net::TestSocket& socket : sockets)
    socket.read_until([](const std::string& t) { return t.find("[DONE]") != std::string::npos; });
  // What a client has read may still be on its way out of the handler.
  const std::string ended = of("requests_active", "/generate", "POST", 0);
  for (int i = 0; i < 500 && (body = metrics()).find(ended) == std::string::npos; ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_THAT(body, HasSubstr(ended));
  EXPECT_THAT(body, HasSubstr(of("requests_total", "/generate", "POST", 5)));
  EXPECT_THAT(body, HasSubstr(of("responses_total", "/generate", "POST", 1, "400")));
  EXPECT_THAT(body, HasSubstr(of("responses_total", "/v1/responses/{id}", "GET", 1, "404")));
  EXPECT_THAT(body, HasSubstr(keys + "0\n"));
}

TEST_F(ServerTest, Health) {
  start();
  EXPECT_EQ(call("GET", "/health").body, "");
  EXPECT_EQ(call("GET", "/ping").status, 200);
  EXPECT_EQ(call("GET", "/ready").status, 200);
  EXPECT_EQ(call("GET", "/health_generate").status, 200);
  EXPECT_EQ(engine_.submitted().back().sampling.max_new_tokens, 1);
  // An engine that does nothing is sick, and the attempt is not left behind.
  config_.limits.health_timeout = 50ms;
  server_.reset();
  start();
  engine_.set_script({.hold = true});
  EXPECT_EQ(call("GET", "/health_generate").status, 503);
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; }));
  engine_.set_script({.submit_error = Status(StatusCode::kUnavailable, "draining")});
  EXPECT_EQ(call("GET", "/health_generate").status, 503);
  engine_.set_script({.submit_error = Status(StatusCode::kResourceExhausted, "full")});
  EXPECT_EQ(call("GET", "/health_generate").status, 200);
}

TEST_F(ServerTest, FlushCache) {
  start();
  for (const char* method : {"GET", "POST"}) {
    const Answer flushed = call(method, "/flush_cache");
    EXPECT_EQ(flushed.status, 200);
    EXPECT_TRUE(flushed.body.starts_with("Cache flushed.\n"));
  }
  engine_.set_script({.hold = true});
  net::TestSocket busy(server_->port());
  busy.write(raw_post("/generate", R"({"text":"a","rid":"busy"})"));
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 1; }));
  EXPECT_EQ(call("POST", "/flush_cache").status, 400);
  EXPECT_EQ(call("POST", "/flush_cache?timeout=0.05").status, 400);
  EXPECT_EQ(call("POST", "/flush_cache?timeout=x").status, 400);
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    engine_.abort("busy", Engine::AbortScope::kExact);
  });
  EXPECT_EQ(call("POST", "/flush_cache?timeout=10").status, 200);
  later.join();
}

TEST_F(ServerTest, AbortRequest) {
  engine_.set_script({.reply = "abc", .hold = true, .hold_after = 2});
  start();
  std::vector<net::TestSocket> sockets;
  for (const char* rid : {"a1", "a2", "b"}) {
    sockets.emplace_back(server_->port());
    sockets.back().write(raw_post("/generate", fmt::format(R"({{"text":"x","rid":"{}"}})", rid)));
  }
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 3; }));
  EXPECT_EQ(post("/abort_request", R"({"rid":""})").status, 200);
  EXPECT_EQ(post("/abort_request", R"({"rid":"none"})").status, 200);
  EXPECT_EQ(post("/abort_request", R"({"rid":"a"})").status, 200);
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 1; }));
  const std::string answer =
      sockets[0].read_until([](const std::string& t) { return t.ends_with("}}"); });
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr(R"("text":"ab")"));
  EXPECT_THAT(
      answer,
      HasSubstr(
          R"("finish_reason":{"type":"abort","message":"aborted by its client","status_code":400,"err_type":"AbortError"})"));
  EXPECT_EQ(post("/abort_request", R"({"abort_all":true})").status, 200);
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; }));
  EXPECT_EQ(post("/abort_request", "x").status, 400);
}

// There is no part of a score: the numbers of one that was aborted are not there.
TEST_F(ServerTest, AnAbortedScoreIsAnError) {
  engine_.set_script({.hold = true});
  start();
  net::TestSocket socket(server_->port());
  socket.write(raw_post("/v1/score", R"({"query":"a","items":["b"],"label_token_ids":[1,2],)"
                                     R"("return_token_logprobs":true})"));
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 1; }));
  EXPECT_EQ(post("/abort_request", R"({"abort_all":true})").status, 200);
  const std::string answer =
      socket.read_until([](const std::string& t) { return t.ends_with("}"); });
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 400"));
  EXPECT_THAT(answer, HasSubstr("aborted by its client"));
}

TEST_F(ServerTest, AClientThatLeavesIsAborted) {
  config_.limits.max_body_bytes = 1 << 20;
  engine_.set_script({.reply = "abc", .hold = true, .hold_after = 1});
  start();
  const std::string long_text(100 << 10, 'a');  // taken by a worker
  for (const std::string& body : {std::string(R"({"text":"x","rid":"a"})"),
                                  std::string(R"({"text":"x","rid":"a","stream":true})"),
                                  std::string(R"({"text":["x","y"],"sampling_params":{"n":2}})")}) {
    {
      net::TestSocket socket(server_->port());
      socket.write(raw_post("/generate", body));
      ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() > 0; }));
    }
    EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; })) << body;
  }
  {
    engine_.set_script({.hold = true, .context_length = 1 << 20});
    net::TestSocket socket(server_->port());
    socket.write(raw_post("/generate", R"({"text":")" + long_text + "\"}"));
    ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 1; }));
  }
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; }));
}

TEST_F(ServerTest, LeavingEndsNobodyElse) {
  engine_.set_script({.hold = true});
  start();
  net::TestSocket other(server_->port());
  other.write(raw_post("/generate", R"({"text":"x","rid":"ab"})"));
  {
    net::TestSocket socket(server_->port());
    socket.write(raw_post("/generate", R"({"text":"x","rid":"a"})"));
    ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 2; }));
  }
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 1; }));
  EXPECT_EQ(engine_.submitted().size(), 2u);
}

// One prompt of a batch fails: the whole call does, and its other prompts end; nobody else's do.
TEST_F(ServerTest, AFailedBatchLeavesNothingBehind) {
  engine_.set_script({.hold = true});
  start();
  net::TestSocket other(server_->port());
  other.write(raw_post("/generate", R"({"text":"x","rid":"other"})"));
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 1; }));
  engine_.set_script({.hold = true, .context_length = 3});
  expect("/generate", R"({"text":["x","yyyyyy"],"rid":["r","s"]})", 400,
         R"({"error":{"message":"the prompt has 7 tokens, the context 3"}})");
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 1; }));
  // An id in use is refused, and its owner goes on.
  engine_.set_script({.submit_error = Status(StatusCode::kAlreadyExists, "rid other is in use")});
  EXPECT_EQ(post("/generate", R"({"text":"x","rid":"other"})").status, 400);
  EXPECT_EQ(engine_.num_running(), 1);
}

TEST_F(ServerTest, StopDrains) {
  engine_.set_script({.reply = "abc", .hold = true, .hold_after = 1});
  start();
  net::TestSocket socket(server_->port());
  socket.write(raw_post("/generate", R"({"text":"x","rid":"a"})"));
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 1; }));
  std::thread stopper([&] { server_->stop(10s); });
  engine_.abort("a", Engine::AbortScope::kExact);  // its end comes while the server drains
  EXPECT_THAT(socket.read_to_end(), HasSubstr(R"("type":"abort")"));
  stopper.join();
  EXPECT_EQ(engine_.num_running(), 0);
}

TEST_F(ServerTest, StopAbortsWhatIsLeft) {
  engine_.set_script({.hold = true});
  start();
  net::TestSocket socket(server_->port());
  socket.write(raw_post("/generate", R"({"text":"x"})"));
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 1; }));
  server_->stop(10ms);
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; }));
  socket.read_to_end();
  EXPECT_TRUE(socket.at_end());
  server_.reset();
}

TEST_F(ServerTest, BadSettings) {
  config_.port = 70000;
  EXPECT_EQ(Server::create(config_, engine_).error().code(), StatusCode::kInvalidArgument);
  config_.port = 0;
  config_.answers.chat_template = "/no/such/file.jinja";
  EXPECT_EQ(Server::create(config_, engine_).error().code(), StatusCode::kNotFound);
  config_.answers.chat_template = kTestTemplate;
  start();
  ServerConfig second = config_;
  second.port = server_->port();
  auto server = Server::create(second, engine_);
  ASSERT_TRUE(server);
  const Status busy = (*server)->start();
  EXPECT_EQ(busy.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(busy.message(), HasSubstr(std::to_string(second.port)));
  EXPECT_THAT(busy.message(), HasSubstr("--port"));
}

TEST_F(ServerTest, AnswersAreUtf8WhateverWasSent) {
  start();
  for (const char* path : {"/%ff%fe", "/v1/models/%ff"}) {
    const Answer answer = call("GET", path);
    EXPECT_EQ(answer.status, 404);
    EXPECT_TRUE(parse_json(answer.body)) << path;  // which refuses invalid UTF-8
  }
}

// Every check that needs no engine runs without one.
TEST_F(ServerTest, ReserveReportsErrorsBeforeThereIsAnEngine) {
  start();
  const auto reserve_error = [](const ServerConfig& config) {
    return Server::reserve(config).error();
  };
  ServerConfig busy = config_;
  busy.port = server_->port();
  EXPECT_EQ(reserve_error(busy).code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(reserve_error(busy).message(),
              HasSubstr(fmt::format("port {} of 127.0.0.1", busy.port)));
  ServerConfig elsewhere = config_;
  elsewhere.host = "192.0.2.1";  // reserved for documentation, so no host has this address
  EXPECT_THAT(reserve_error(elsewhere).message(), HasSubstr("192.0.2.1"));
  EXPECT_THAT(reserve_error(elsewhere).message(), HasSubstr("(--host, --port)"));
  elsewhere.host = "";
  EXPECT_THAT(reserve_error(elsewhere).message(), HasSubstr("is empty"));
  ServerConfig templates = config_;
  templates.answers.chat_template = "/no/such/file.jinja";
  EXPECT_EQ(reserve_error(templates).code(), StatusCode::kNotFound);
  EXPECT_THAT(reserve_error(templates).message(), HasSubstr("--chat-template"));
  templates.answers.chat_template = "{% if %}";
  EXPECT_EQ(reserve_error(templates).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(reserve_error(templates).message(), HasSubstr("--chat-template"));
}

TEST_F(ServerTest, AReservedAddressRefusesUntilItIsServed) {
  auto address = Server::reserve(config_);
  ASSERT_TRUE(address) << address.error().to_string();
  const int port = address->port();
  ASSERT_GT(port, 0);
  EXPECT_FALSE(net::TestSocket(port).connected());
  auto server = Server::create(config_, engine_, std::move(*address));
  ASSERT_TRUE(server) << server.error().to_string();
  server_ = std::move(*server);
  ASSERT_TRUE(server_->start().ok());
  EXPECT_EQ(server_->port(), port);
  EXPECT_EQ(call("GET", "/health").status, 200);
}

// Two that bound the same address while neither listened: the later one gets an error.
TEST_F(ServerTest, AnAddressThatIsTakenMeanwhileIsAnError) {
  auto first = Server::reserve(config_);
  ASSERT_TRUE(first);
  config_.port = first->port();
  auto second = Server::reserve(config_);
  ASSERT_TRUE(second);
  auto server = Server::create(config_, engine_, std::move(*first));
  ASSERT_TRUE((*server)->start().ok());
  auto late = Server::create(config_, engine_, std::move(*second));
  EXPECT_EQ((*late)->start().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace espalier::server
