// /generate over real sockets, answer by answer.
#include <gmock/gmock.h>

#include <semaphore>
#include <thread>

#include "net/test_socket.h"
#include "server/test_server.h"

namespace espalier::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// meta_info of a finished answer, with what all of them share left out.
std::string meta(std::string_view id, std::string_view finish, int prompt, int completion,
                 std::string_view more = "") {
  return fmt::format(
      R"({{"id":"{}","finish_reason":{},"prompt_tokens":{},"completion_tokens":{},"cached_tokens":{},)"
      R"("cached_tokens_details":null,"reasoning_tokens":0,"weight_version":"default",)"
      R"("num_retractions":0,"dp_rank":0{}{}}})",
      id, finish, prompt, completion, prompt / 2, finish == "null" ? "" : R"(,"e2e_latency":0)",
      more);
}

using NativeTest = ServerTest;

TEST_F(NativeTest, One) {
  start();
  // "<s>Hi" is three tokens; the reply is nine bytes and the end.
  expect("/generate", R"({"text":"Hi","rid":"r1"})", 200,
         R"({"text":"Hi there.","output_ids":[72,105,32,116,104,101,114,101,46,257],"meta_info":)" +
             meta("r1", R"({"type":"stop","matched":257})", 3, 10) + "}");
  expect("/generate", R"({"text":"Hi","rid":"r1","sampling_params":{"max_new_tokens":3}})", 200,
         R"({"text":"Hi ","output_ids":[72,105,32],"meta_info":)" +
             meta("r1", R"({"type":"length","length":3})", 3, 3) + "}");
  expect("/generate", R"({"input_ids":[1,2,3,4,5],"rid":"r1","sampling_params":{"stop":"e"}})", 200,
         R"({"text":"Hi th","output_ids":[72,105,32,116,104,101],"meta_info":)" +
             meta("r1", R"({"type":"stop","matched":"e"})", 5, 6) + "}");
  // Prefill only.
  expect("/generate", R"({"text":"Hi","rid":"r1","sampling_params":{"max_new_tokens":0}})", 200,
         R"({"text":"","output_ids":[],"meta_info":)" +
             meta("r1", R"({"type":"length","length":0})", 3, 0) + "}");
}

TEST_F(NativeTest, EveryFieldReachesTheEngine) {
  start();
  EXPECT_EQ(
      post("/generate", R"({"text":"x","rid":"all","priority":3,"extra_key":"k","cache_salt":"s",
    "return_logprob":true,"logprob_start_len":1,"top_logprobs_num":2,"token_ids_logprob":[5,6],
    "sampling_params":{"max_new_tokens":7,"min_new_tokens":1,"temperature":0.5,"top_p":0.25,"top_k":4,
    "min_p":0.125,"frequency_penalty":0.5,"presence_penalty":-0.5,"repetition_penalty":1.5,"n":2,
    "stop":["a","b"],"stop_token_ids":[9],"stop_regex":"z+","ignore_eos":true,
    "skip_special_tokens":false,"spaces_between_special_tokens":false,"no_stop_trim":true,
    "logit_bias":{"7":-1.5},"sampling_seed":42,"regex":"[ab]"}})")
          .status,
      200);
  const GenerateRequest r = engine_.submitted().at(0);
  EXPECT_EQ(r.rid, "all");
  EXPECT_EQ(r.priority, 3);
  EXPECT_EQ(r.extra_key, "k/s");
  EXPECT_TRUE(r.return_logprob);
  EXPECT_EQ(r.logprob_start_len, 1);
  EXPECT_EQ(r.top_logprobs_num, 2);
  EXPECT_THAT(r.token_ids_logprob, ElementsAre(5, 6));
  const SamplingParams& s = r.sampling;
  EXPECT_EQ(s.max_new_tokens, 7);
  EXPECT_EQ(s.min_new_tokens, 1);
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_p, 0.25f);
  EXPECT_EQ(s.top_k, 4);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.frequency_penalty, 0.5f);
  EXPECT_EQ(s.presence_penalty, -0.5f);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.n, 2);
  EXPECT_THAT(s.stop, ElementsAre("a", "b"));
  EXPECT_THAT(s.stop_token_ids, ElementsAre(9));
  EXPECT_THAT(s.stop_regex, ElementsAre("z+"));
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_FALSE(s.skip_special_tokens);
  EXPECT_FALSE(s.spaces_between_special_tokens);
  EXPECT_TRUE(s.no_stop_trim);
  EXPECT_THAT(s.logit_bias, ElementsAre(std::pair(7, -1.5f)));
  EXPECT_EQ(s.sampling_seed, 42u);
  EXPECT_EQ(s.regex, "[ab]");
}

TEST_F(NativeTest, BeamSearchHasScores) {
  start();
  const Answer answer = post("/generate", R"({"text":"Hi","sampling_params":{"n":2,
    "use_beam_search":true,"best_of":3,"beam_width":3,"length_penalty":0.5,
    "early_stopping":"never","max_new_tokens":2}})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, HasSubstr(R"("beam_score":-0.5,"cumulative_logprob":-4,)"));
  EXPECT_THAT(answer.body, HasSubstr(R"("beam_score":-1.5,"cumulative_logprob":-4,)"));
  const SamplingParams s = engine_.submitted().at(0).sampling;
  EXPECT_TRUE(s.use_beam_search);
  EXPECT_EQ(s.best_of, 3);
  EXPECT_EQ(s.beam_width, 3);
  EXPECT_EQ(s.length_penalty, 0.5f);
  EXPECT_EQ(s.early_stopping, EarlyStopping::kNever);
  post("/generate", R"({"text":"Hi","sampling_params":{"early_stopping":true}})");
  EXPECT_EQ(engine_.submitted().at(1).sampling.early_stopping, EarlyStopping::kYes);
  const Answer refused =
      post("/generate", R"({"text":"Hi","sampling_params":{"early_stopping":1}})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr(R"(must be true, false or \"never\")"));
  EXPECT_THAT(post("/generate", R"({"text":"Hi"})").body, testing::Not(HasSubstr("beam_score")));
}

TEST_F(NativeTest, IdsOfOnePromptAreAFlatList) {
  start();
  const Answer nested = post("/generate", R"({"text":"Hi","token_ids_logprob":[[0]]})");
  EXPECT_EQ(nested.status, 400);
  EXPECT_THAT(nested.body, HasSubstr("flat list of integers"));
  EXPECT_EQ(post("/generate", R"({"text":["Hi"],"token_ids_logprob":[[0]]})").status, 200);
}

TEST_F(NativeTest, NullsAndEmptyListsAreDefaults) {
  start();
  // What the frontend sends, word for word but for its prompt.
  EXPECT_EQ(post("/generate", R"({"text":"x","sampling_params":{"skip_special_tokens":true,
    "spaces_between_special_tokens":true,"max_new_tokens":128,"min_new_tokens":0,"n":1,"stop":[],
    "stop_token_ids":[],"stop_regex":[],"temperature":1.0,"top_p":1.0,"top_k":-1,"min_p":0.0,
    "frequency_penalty":0.0,"presence_penalty":0.0,"ignore_eos":false,"regex":null,
    "json_schema":null},"return_logprob":null,"logprob_start_len":null,"top_logprobs_num":null,
    "return_text_in_logprobs":null,"image_data":null,"lora_path":[],"stream":false,
    "unknown_field":{"a":1}})")
                .status,
            200);
  EXPECT_EQ(engine_.submitted().at(0).sampling.top_k, -1);
  EXPECT_FALSE(engine_.submitted().at(0).sampling.to_context);
  EXPECT_EQ(
      post("/generate", R"({"text":"x","input_ids":[],"sampling_params":{"max_new_tokens":null}})")
          .status,
      200);
  EXPECT_TRUE(engine_.submitted().at(1).sampling.to_context);
  EXPECT_EQ(post("/generate", R"({"text":"x","sampling_params":null})").status, 200);
  EXPECT_EQ(engine_.submitted().at(2).sampling.max_new_tokens, std::nullopt);
  EXPECT_FALSE(engine_.submitted().at(2).sampling.to_context);
}

// Clients read the counts of every answer of a server that speculates, of one without drafts too.
TEST_F(NativeTest, DraftCountsAreThereWhereTheServerSpeculates) {
  engine_.set_speculative_algorithm("NGRAM");
  start();
  const Answer answer = post("/generate", R"({"text":"x"})");
  EXPECT_THAT(answer.body,
              HasSubstr(R"("drafted_tokens":0,"accepted_drafts":0,"spec_verify_ct":0)"));
  EXPECT_THAT(answer.body, Not(HasSubstr("spec_accept_rate")));
}

TEST_F(NativeTest, NoDraftCountsWithoutSpeculation) {
  start();
  EXPECT_THAT(post("/generate", R"({"text":"x"})").body, Not(HasSubstr("spec_verify_ct")));
}

TEST_F(NativeTest, Batch) {
  engine_.set_script({.reply = "ok"});
  start();
  const auto item = [](std::string_view id, int prompt) {
    return R"({"text":"ok","output_ids":[111,107,257],"meta_info":)" +
           meta(id, R"({"type":"stop","matched":257})", prompt, 3) + "}";
  };
  expect("/generate", R"({"text":["a","bcd"],"rid":["x","y"]})", 200,
         "[" + item("x", 2) + "," + item("y", 4) + "]");
  expect("/generate", R"({"input_ids":[[1,2],[3]],"rid":"b"})", 200,
         "[" + item("b_0", 2) + "," + item("b_1", 1) + "]");
  expect("/generate", R"({"text":["a"],"rid":"b"})", 200, "[" + item("b", 2) + "]");
  // Parameters for each.
  const Answer answer =
      post("/generate", R"({"text":["a","b"],"sampling_params":[{"max_new_tokens":1},null]})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, testing::HasSubstr(R"("output_ids":[111],)"));
  EXPECT_THAT(answer.body, testing::HasSubstr(R"("output_ids":[111,107,257],)"));
}

TEST_F(NativeTest, Samples) {
  engine_.set_script({.reply = "k"});
  start();
  const auto item = [](std::string_view id) {
    return R"({"text":"k","output_ids":[107,257],"meta_info":)" +
           meta(id, R"({"type":"stop","matched":257})", 2, 2) + "}";
  };
  expect("/generate", R"({"text":"a","rid":"r","sampling_params":{"n":2}})", 200,
         "[" + item("r_0") + "," + item("r_1") + "]");
  expect("/generate", R"({"text":["a","b"],"rid":["p","q"],"sampling_params":{"n":2}})", 200,
         "[" + item("p_0") + "," + item("p_1") + "," + item("q_0") + "," + item("q_1") + "]");
}

TEST_F(NativeTest, Stream) {
  engine_.set_script({.reply = "a\"\n"});
  start();
  const std::string stop = R"({"type":"stop","matched":257})";
  expect_stream(
      "/generate", R"({"text":"Hi","rid":"r","stream":true})",
      {R"({"text":"a","output_ids":[97],"meta_info":)" + meta("r", "null", 3, 1) + "}",
       R"({"text":"a\"","output_ids":[97,34],"meta_info":)" + meta("r", "null", 3, 2) + "}",
       R"({"text":"a\"\n","output_ids":[97,34,10],"meta_info":)" + meta("r", "null", 3, 3) + "}",
       R"({"text":"a\"\n","output_ids":[97,34,10,257],"meta_info":)" + meta("r", stop, 3, 4) + "}",
       "[DONE]"});
  // Every second token, and the end.
  expect_stream(
      "/generate",
      R"({"text":"Hi","rid":"r","stream":true,"sampling_params":{"stream_interval":2}})",
      {R"({"text":"a","output_ids":[97],"meta_info":)" + meta("r", "null", 3, 1) + "}",
       R"({"text":"a\"\n","output_ids":[97,34,10],"meta_info":)" + meta("r", "null", 3, 3) + "}",
       R"({"text":"a\"\n","output_ids":[97,34,10,257],"meta_info":)" + meta("r", stop, 3, 4) + "}",
       "[DONE]"});
}

TEST_F(NativeTest, IncrementalStream) {
  config_.answers.incremental_streaming_output = true;
  engine_.set_script({.reply = "ab"});
  start();
  expect_stream("/generate", R"({"text":"Hi","rid":"r","stream":true})",
                {R"({"text":"a","output_ids":[97],"meta_info":)" + meta("r", "null", 3, 1) + "}",
                 R"({"text":"b","output_ids":[98],"meta_info":)" + meta("r", "null", 3, 2) + "}",
                 R"({"text":"","output_ids":[257],"meta_info":)" +
                     meta("r", R"({"type":"stop","matched":257})", 3, 3) + "}",
                 "[DONE]"});
}

TEST_F(NativeTest, BatchStreamHasIndices) {
  engine_.set_script({.reply = ""});
  start();
  const auto event = [](std::string_view id, int index) {
    return R"({"text":"","output_ids":[257],"meta_info":)" +
           meta(id, R"({"type":"stop","matched":257})", 2, 1) +
           fmt::format(R"(,"index":{}}})", index);
  };
  expect_stream("/generate", R"({"text":["a","b"],"rid":["x","y"],"stream":true})",
                {event("x", 0), event("y", 1), "[DONE]"});
  expect_stream("/generate",
                R"({"text":["a","b"],"rid":["x","y"],"stream":true,"sampling_params":{"n":2}})",
                {event("x_0", 0), event("x_1", 1), event("y_0", 2), event("y_1", 3), "[DONE]"});
}

TEST_F(NativeTest, Logprobs) {
  engine_.set_script({.reply = "a"});
  start();
  const std::string stop = R"({"type":"stop","matched":257})";
  const std::string output =
      R"("output_token_logprobs":[[-6.09375,97,null],[-16.09375,257,null]],"output_token_logprobs_length":2)";
  const auto answer = [&](const std::string& more, int completion = 2) {
    return R"({"text":"a","output_ids":[97,257],"meta_info":)" +
           meta("r", stop, 3, completion, "," + more) + "}";
  };
  // Output only, by default and by -1.
  expect("/generate", R"({"text":"Hi","rid":"r","return_logprob":true})", 200,
         answer(R"("input_token_logprobs":[],)" + output));
  expect("/generate", R"({"text":"Hi","rid":"r","return_logprob":true,"logprob_start_len":-1})",
         200, answer(R"("input_token_logprobs":[],)" + output));
  // From the start: nothing precedes position 0.
  expect(
      "/generate", R"({"text":"Hi","rid":"r","return_logprob":true,"logprob_start_len":0})", 200,
      answer(R"("input_token_logprobs":[[null,256,null],[-4.53125,72,null],[-6.59375,105,null]],)" +
             output));
  // From 1: a real number at index 0.
  expect(
      "/generate",
      R"({"text":"Hi","rid":"r","return_logprob":true,"logprob_start_len":1,
            "return_text_in_logprobs":true})",
      200,
      answer(
          R"("input_token_logprobs":[[-4.53125,72,"H"],[-6.59375,105,"i"]],)"
          R"("output_token_logprobs":[[-6.09375,97,"a"],[-16.09375,257,"</s>"]],"output_token_logprobs_length":2)"));
  // At the prompt's end: none. Beyond: an error.
  expect("/generate", R"({"text":"Hi","rid":"r","return_logprob":true,"logprob_start_len":3})", 200,
         answer(R"("input_token_logprobs":[],)" + output));
  expect("/generate", R"({"text":"Hi","rid":"r","return_logprob":true,"logprob_start_len":4})", 400,
         R"({"error":{"message":"logprob_start_len 4 is beyond the prompt of 3 tokens"}})");
  // Best tokens, and tokens asked for by id.
  expect(
      "/generate",
      R"({"input_ids":[1,2],"rid":"r","return_logprob":true,"logprob_start_len":0,
            "top_logprobs_num":2,"token_ids_logprob":[0],"sampling_params":{"max_new_tokens":1}})",
      200,
      R"({"text":"a","output_ids":[97],"meta_info":)" +
          meta("r", R"({"type":"length","length":1})", 2, 1,
               R"(,"input_token_logprobs":[[null,1,null],[-0.15625,2,null]],)"
               R"("output_token_logprobs":[[-6.09375,97,null]],"output_token_logprobs_length":1,)"
               R"("input_top_logprobs":[null,[[-0.15625,2,null],[-1.15625,3,null]]],)"
               R"("output_top_logprobs":[[[-6.09375,97,null],[-7.09375,98,null]]],)"
               R"("input_token_ids_logprobs":[null,[[-0.03125,0,null]]],)"
               R"("output_token_ids_logprobs":[[[-0.03125,0,null]]])") +
          "}");
}

// A call for prefill only gives the distribution behind the prompt, beside no output tokens.
TEST_F(NativeTest, PrefillOnlyLogprobs) {
  start();
  expect("/generate",
         R"({"input_ids":[1,2],"rid":"r","return_logprob":true,"logprob_start_len":-1,
            "top_logprobs_num":2,"token_ids_logprob":[0],"sampling_params":{"max_new_tokens":0}})",
         200,
         R"({"text":"","output_ids":[],"meta_info":)" +
             meta("r", R"({"type":"length","length":0})", 2, 0,
                  R"(,"input_token_logprobs":[],)"
                  R"("output_token_logprobs":[],"output_token_logprobs_length":0,)"
                  R"("input_top_logprobs":[],)"
                  R"("output_top_logprobs":[[[-6.09375,97,null],[-7.09375,98,null]]],)"
                  R"("input_token_ids_logprobs":[],)"
                  R"("output_token_ids_logprobs":[[[-0.03125,0,null]]])") +
             "}");
}

// The calls by which the frontend chooses among options.
TEST_F(NativeTest, SelectContracts) {
  start();
  const std::string length = R"({"type":"length","length":0})";
  // (b): scores of each option, from two tokens before the common prompt's end.
  expect(
      "/generate",
      R"({"text":["ab","abc"],"rid":"s","sampling_params":{"max_new_tokens":0,"temperature":0},
            "return_logprob":true,"return_text_in_logprobs":true,"logprob_start_len":1})",
      200,
      R"([{"text":"","output_ids":[],"meta_info":)" +
          meta(
              "s_0", length, 3, 0,
              R"(,"input_token_logprobs":[[-6.09375,97,"a"],[-6.15625,98,"b"]],"output_token_logprobs":[],"output_token_logprobs_length":0)") +
          R"(},{"text":"","output_ids":[],"meta_info":)" +
          meta(
              "s_1", length, 4, 0,
              R"(,"input_token_logprobs":[[-6.09375,97,"a"],[-6.15625,98,"b"],[-6.21875,99,"c"]],"output_token_logprobs":[],"output_token_logprobs_length":0)") +
          "}]");
  // (c): prefill only without a start gives them all.
  expect(
      "/generate",
      R"({"input_ids":[[5,6]],"rid":"s","sampling_params":{"max_new_tokens":0},"return_logprob":true})",
      200,
      R"([{"text":"","output_ids":[],"meta_info":)" +
          meta(
              "s", length, 2, 0,
              R"(,"input_token_logprobs":[[null,5,null],[-0.40625,6,null]],"output_token_logprobs":[],"output_token_logprobs_length":0)") +
          "}]");
}

TEST_F(NativeTest, LogprobsInAStreamAreCumulative) {
  engine_.set_script({.reply = "a"});
  start();
  expect_stream(
      "/generate",
      R"({"input_ids":[1],"rid":"r","stream":true,"return_logprob":true,"logprob_start_len":0})",
      {R"({"text":"a","output_ids":[97],"meta_info":)" +
           meta(
               "r", "null", 1, 1,
               R"(,"input_token_logprobs":[[null,1,null]],"output_token_logprobs":[[-6.09375,97,null]],"output_token_logprobs_length":1)") +
           "}",
       R"({"text":"a","output_ids":[97,257],"meta_info":)" +
           meta(
               "r", R"({"type":"stop","matched":257})", 1, 2,
               R"(,"input_token_logprobs":[[null,1,null]],"output_token_logprobs":[[-6.09375,97,null],[-16.09375,257,null]],"output_token_logprobs_length":2)") +
           "}",
       "[DONE]"});
}

TEST_F(NativeTest, CacheHitRateIsInTheHeaders) {
  start();
  EXPECT_EQ(post("/generate", R"({"input_ids":[1,2,3,4,5]})").header("X-Cache-Hit-Rate"), "0.4000");
  Answer answer;
  stream("/generate", R"({"input_ids":[1,2,3,4],"stream":true})", &answer);
  EXPECT_EQ(answer.header("X-Cache-Hit-Rate"), "0.5000");
  EXPECT_EQ(answer.header("Cache-Control"), "no-cache");
}

TEST_F(NativeTest, TimingsWithMetricsEnabled) {
  config_.answers.enable_metrics = true;
  start();
  const std::string body = post("/generate", R"({"text":"x"})").body;
  for (const char* name : {"queue_time", "time_to_first_token", "decode_throughput"}) {
    EXPECT_THAT(body, testing::HasSubstr(name));
  }
}

// Each event holds the log-probabilities of all tokens so far: the client cannot read them as fast
// as they are made, and misses nothing where some are left out.
TEST_F(NativeTest, AClientThatIsBehindGetsFewerEvents) {
  config_.limits.max_pending_output_bytes = 64 << 10;
  const std::string reply(40, 'r');
  engine_.set_script({.reply = reply});
  start();
  net::TestSocket socket(server_->port(), 4096);
  const std::string body =
      R"({"text":"a","stream":true,"return_logprob":true,"top_logprobs_num":10000})";
  ASSERT_TRUE(socket.write(
      fmt::format("POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
                  body.size(), body)));
  const std::string answer = socket.read_until(
      [](const std::string& text) { return text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"); },
      std::chrono::seconds(60));
  EXPECT_TRUE(answer.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n")) << answer.size();
  EXPECT_THAT(answer, HasSubstr(fmt::format(R"(data: {{"text":"{}","output_ids":)", reply)));
}

// A call's log-probabilities stay in memory until it is answered. Those of its prompts are counted
// before anything is computed, those of its answers as they are generated.
TEST_F(NativeTest, ACallMayNotAskForAnyNumberOfLogprobs) {
  engine_.set_script({.reply = "abcdef"});
  start();
  const auto ask = [&](std::string_view text, int start, int top, int n) {
    return post("/generate",
                fmt::format(R"({{"text":"{}","return_logprob":true,"logprob_start_len":{},)"
                            R"("top_logprobs_num":{},"sampling_params":{{"n":{}}}}})",
                            text, start, top, n));
  };
  const std::string text(60, 'x');
  for (const Answer& refused : {ask(text, 0, 300'000, 1), ask(text, 0, 3000, 100)}) {
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.body, HasSubstr("more than 16777216 log-probabilities"));
  }
  EXPECT_TRUE(engine_.submitted().empty());
  EXPECT_EQ(ask(text, 0, 3, 100).status, 200);
  const Answer refused = ask("a", -1, 6'000'000, 1);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("more than 16777216 log-probabilities"));
}

TEST_F(NativeTest, Errors) {
  config_.limits.max_body_bytes = 2048;
  start();
  const auto malformed = [](std::string_view message) {
    return fmt::format(
        R"({{"object":"error","message":"{}","type":"Bad Request","param":null,"code":400}})",
        message);
  };
  const auto plain = [](std::string_view message) {
    return fmt::format(R"({{"error":{{"message":"{}"}}}})", message);
  };
  const std::string one_or_each = ": give one value for all, or a list with one for each";
  const std::string one_rid_each =
      "Duplicate request IDs detected within the request: ['x']: give each prompt a rid of its "
      "own, or one for all of them";
  struct Case {
    std::string body, expected;
  };
  for (const Case& c : std::vector<Case>{
           {"", malformed("the body is empty: JSON is expected")},
           {"{", malformed("the body is not valid JSON: incomplete JSON at byte 1")},
           {R"({"text":"a"} x)", malformed("the body is not valid JSON: extra data at byte 13")},
           {"{\"text\":\"\xff\"}", malformed("the body is not valid JSON: syntax error at byte 9")},
           {"[]", malformed("the body must be a JSON object, but it is an empty list")},
           {R"({"text":5})", malformed("text must be a string, but it is the number 5")},
           {R"({"text":["a",5]})", malformed("text[1] must be a string, but it is the number 5")},
           {R"({"input_ids":["a"]})",
            malformed(R"(input_ids[0] must be a token id, but it is the string \"a\")")},
           {R"({"input_ids":[-1]})",
            malformed("input_ids[0] is -1, an out-of-vocabulary token id")},
           {R"({"input_ids":[[1],2]})",
            malformed("input_ids[1] must be a list of token ids, but it is the number 2")},
           {R"({"text":"a","stream":"yes"})",
            malformed(R"(stream must be true or false, but it is the string \"yes\")")},
           {R"({"text":"a","sampling_params":{"temperature":"hot"}})",
            malformed(
                R"(sampling_params.temperature must be a number, but it is the string \"hot\")")},
           {R"({"text":"a","sampling_params":{"max_new_tokens":1.5}})",
            malformed(
                "sampling_params.max_new_tokens must be an integer, but it is the number 1.5")},
           {R"({"text":"a","sampling_params":{"n":99999999999}})",
            malformed("sampling_params.n must be an integer of 32 bits, but it is the number "
                      "99999999999")},
           {R"({"text":"a","sampling_params":{"logit_bias":{"x":1}}})",
            malformed(R"(sampling_params.logit_bias has the key \"x\": keys must be token ids)")},
           {R"({"text":"a","sampling_params":"hot"})",
            malformed(R"(sampling_params must be a JSON object, but it is the string \"hot\")")},
           {R"({})", plain("text or input_ids is missing")},
           {R"({"text":"a","input_ids":[1]})", plain("give either text or input_ids, not both")},
           {R"({"text":["a","b"],"rid":["x"]})",
            plain("rid has 1 entry for 2 prompts" + one_or_each)},
           {R"({"text":["a","b"],"sampling_params":[{},{},{}]})",
            plain("sampling_params has 3 entries for 2 prompts" + one_or_each)},
           {R"({"text":"a","sampling_params":[]})",
            plain("sampling_params has 0 entries for 1 prompt" + one_or_each)},
           {R"({"input_ids":[1],"sampling_params":[]})",
            plain("sampling_params has 0 entries for 1 prompt" + one_or_each)},
           {R"({"text":["a"],"rid":[]})", plain("rid has 0 entries for 1 prompt" + one_or_each)},
           {R"({"text":"a","rid":["x","y"],"sampling_params":{"n":2}})",
            plain("rid has 2 entries for 1 prompt" + one_or_each)},
           {R"({"text":["a","b","c"],"rid":["x","y","x"]})", plain(one_rid_each)},
           {R"({"text":"a","return_logprob":[]})",
            plain("return_logprob has 0 entries for 1 prompt" + one_or_each)},
           {R"({"text":["a","b"],"sampling_params":[{"n":1},{"n":2}]})",
            plain("sampling_params.n must be the same for all prompts of a batch")},
           {R"({"text":"a","sampling_params":{"n":100000}})",
            plain("n is 100000: 1 prompt with 100000 samples each are more than one call may ask "
                  "for: 65536")},
           {R"({"text":"a","sampling_params":{"n":0}})", plain("n must be at least 1")},
           {R"({"text":["a","b"],"image_data":["x"]})",
            plain("image_data has entries for 1 prompts, but there are 2: give a list with an "
                  "entry for each prompt")},
           {R"({"text":["a","b"],"video_data":["x"]})",
            plain("video_data has entries for 1 prompts, but there are 2: give a list with an "
                  "entry for each prompt")},
           {R"({"text":"a","video_data":[{"url":"x","fps":0}]})",
            malformed("video_data[0].fps must be a number from 0.01 to 1000")},
           {R"({"text":"a","lora_path":["x","y"]})",
            plain("lora_path has 2 entries for 1 prompt: give one value for all, or a list with "
                  "one for each")},
           {R"({"text":"a","session_params":{"rid":"x"}})",
            malformed("session_params.id is missing")},
           {R"({"text":"a","session_params":{"id":"x","offset":"3"}})",
            malformed(R"(session_params.offset must be an integer, but it is the string \"3\")")},
           {R"({"input_ids":[1e30]})",
            malformed("input_ids[0] must be a token id, but it is the number 1e+30")},
       }) {
    expect("/generate", c.body, 400, c.expected);
  }
  EXPECT_EQ(post("/generate", R"({"text":")" + std::string(4000, 'a') + "\"}").status, 413);
  // The prompt turns out too long only once the engine has its tokens.
  expect("/generate", R"({"text":")" + std::string(150, 'a') + "\"}", 400,
         plain("the prompt has 151 tokens, the context 100"));
  Answer answer;
  EXPECT_TRUE(
      stream("/generate", R"({"stream":true,"text":")" + std::string(150, 'a') + "\"}", &answer)
          .empty());
  EXPECT_EQ(answer.status, 400);  // nothing was sent yet: a real status
}

TEST_F(NativeTest, EngineErrors) {
  start();
  struct Case {
    StatusCode code;
    int status;
    const char* retry;
  };
  for (const Case& c : {Case{StatusCode::kResourceExhausted, 503, "1"},
                        {StatusCode::kUnavailable, 503, "1"},
                        {StatusCode::kDeadlineExceeded, 503, "1"},
                        {StatusCode::kInvalidArgument, 400, ""},
                        {StatusCode::kUnimplemented, 400, ""},
                        {StatusCode::kAlreadyExists, 400, ""},
                        {StatusCode::kInternal, 500, ""}}) {
    const Status status(c.code, "because");
    engine_.set_script({.submit_error = status});
    Answer answer = post("/generate", R"({"text":["a","b"]})");
    EXPECT_EQ(answer.status, c.status);
    EXPECT_THAT(answer.body, HasSubstr(R"("error":{"message":"because"}})"));
    const bool has_openai_members =
        answer.body.starts_with(R"({"object":"error","message":"because",)");
    EXPECT_EQ(has_openai_members, c.status == 503);
    EXPECT_EQ(answer.header("Retry-After"), c.retry);
    engine_.set_script({.error = status, .error_after = 1});
    EXPECT_EQ(post("/generate", R"({"text":"a"})").status, c.status);
  }
  // In a stream that has begun.
  engine_.set_script(
      {.reply = "ab", .error = Status(StatusCode::kInternal, "lost"), .error_after = 1});
  const auto events = stream("/generate", R"({"text":"a","stream":true})");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1], R"({"error":{"message":"lost"}})");
  EXPECT_EQ(events[2], "[DONE]");
}

// A grammar that takes long holds neither the workers nor without bound the grammars behind it.
TEST_F(NativeTest, GrammarsAreExplainedOneAtATime) {
  std::counting_semaphore<> may_end{0};
  std::atomic<int> inside{0}, inside_most{0};
  engine_.set_compile([&]() -> Result<GrammarReport> {
    inside_most = std::max(inside_most.load(), ++inside);
    may_end.acquire();
    --inside;
    return GrammarReport{};
  });
  engine_.set_script({.reply = "ok", .context_length = 1 << 20});
  start();
  constexpr int kCalls = 12;
  std::atomic<int> answered{0}, refused{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kCalls; ++i) {
    clients.emplace_back([&, i] {
      const char* path = i % 2 == 0 ? "/v1/grammar/explain" : "/v1/grammar/compile";
      const Answer answer = post(path, R"({"regex":"a"})");
      if (answer.status == 503 && answer.header("Retry-After") == "1") ++refused;
      if (answer.status == 200) ++answered;
    });
    if (i == 0) {
      EXPECT_TRUE(engine_.wait_for([&] { return inside == 1; }));
    }
  }
  // One is compiled and four wait; which calls these are is the threads' chance.
  EXPECT_TRUE(engine_.wait_for([&] { return refused == kCalls - 5; }));
  const std::string text(64 << 10, 'a');  // a worker's
  EXPECT_EQ(post("/generate", R"({"text":")" + text + "\"}").status, 200);
  EXPECT_EQ(answered, 0);
  may_end.release(kCalls);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answered, 5);
  EXPECT_EQ(inside_most, 1);
}

TEST_F(NativeTest, LargeBodiesTakeTheWorker) {
  config_.limits.max_body_bytes = 8 << 20;
  engine_.set_script({.reply = "ok", .context_length = 10 << 20});
  start();
  const std::string text(2 << 20, 'a');
  const Answer answer = post("/generate", R"({"text":")" + text + "\"}");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(engine_.submitted().at(0).text.size(), text.size());
  const Answer bad = post("/generate", "[" + text);
  EXPECT_EQ(bad.status, 400) << bad.body;
}

// A million zeros take 48 MB while they are read.
TEST_F(NativeTest, LargeBodiesAreChargedWithTheirJson) {
  config_.limits.max_bodies_bytes = 24 << 20;
  engine_.set_script({.reply = "ok"});
  start();
  std::string zeros = R"({"text":"a","x":[0)";
  for (int i = 1; i < 1'000'000; ++i) zeros += ",0";
  zeros += "]}";
  for (const char* path : {"/generate", "/tokenize", "/v1/chat/completions", "/open_session",
                           "/v1/grammar/compile", "/exact_likelihood", "/vertex_generate"}) {
    const Answer refused = post(path, zeros);
    EXPECT_EQ(refused.status, 400) << path;
    EXPECT_THAT(refused.body, HasSubstr("--max-bodies-bytes")) << path;
  }
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(post("/generate", R"({"text":"a","x":")" + text + "\"}").status, 200);
  const Answer tokens = post("/tokenize", R"({"prompt":")" + text + "\"}");
  EXPECT_EQ(tokens.status, 400);
  EXPECT_THAT(tokens.body, HasSubstr("the prompt's tokens"));
  // A worker gives back what it holds after it has answered.
  const auto none = testing::ContainsRegex("espalier:memory_bodies_bytes[^ ]* 0\n");
  for (int i = 0; i < 5000 && !testing::Value(call("GET", "/metrics").body, none); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THAT(call("GET", "/metrics").body, none);
}

TEST_F(NativeTest, AListOfInputsHasABound) {
  start();
  std::string texts = R"({"text":["a")";
  for (int i = 0; i < 65'536; ++i) texts += R"(,"a")";
  const Answer refused = post("/generate", texts + "]}");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("text has 65537 entries, and one call may have 65536"));
}

}  // namespace
}  // namespace espalier::server
