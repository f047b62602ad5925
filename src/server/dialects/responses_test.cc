// /v1/responses over real sockets and a scripted engine, and the store of its answers.
#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <future>
#include <thread>

#include "server/dialects/response_store.h"
#include "server/test_server.h"

namespace espalier::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ResponsesTest = ServerTest;

std::string id_of(const std::string& body) {
  return std::string(boost::json::parse(body).at("id").as_string());
}

TEST_F(ResponsesTest, AWholeAnswer) {
  start();
  const Answer answer = post("/v1/responses", R"({"model":"m","input":"Hi","rid":"r",)"
                                              R"("metadata":{"k":"v"},"max_output_tokens":50})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const boost::json::value got = boost::json::parse(answer.body);
  EXPECT_EQ(got.at("id"), "resp_r");
  EXPECT_EQ(got.at("status"), "completed");
  EXPECT_EQ(got.at("output").at(0).at("content").at(0).at("text"), "Hi there.");
  EXPECT_EQ(got.at("usage").at("output_tokens"), 10);
  EXPECT_EQ(got.at("metadata").at("k"), "v");
  EXPECT_EQ(got.at("max_output_tokens"), 50);
  const Answer cut = post("/v1/responses", R"({"input":"Hi","max_output_tokens":2})");
  EXPECT_THAT(cut.body, HasSubstr(R"("incomplete_details":{"reason":"max_output_tokens"})"));
}

// The count is that of the answer's usage, with what is continued and with tools; nothing is
// stored.
TEST_F(ResponsesTest, InputTokensAreThoseOfTheUsage) {
  start();
  const auto number = [&](const std::string& path, const std::string& body, const char* field) {
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    const boost::json::value got = boost::json::parse(answer.body);
    return field == nullptr ? got.at("usage").at("input_tokens").as_int64()
                            : got.at(field).as_int64();
  };
  post("/v1/responses", R"({"input":"Hi","rid":"first"})");
  const std::string fields[] = {
      R"("input":"Hello, who is there?")",
      R"("input":"Now?","previous_response_id":"resp_first","instructions":"Be brief.")"};
  for (const std::string& body : fields) {
    const int64_t counted = number("/v1/responses/input_tokens", "{" + body + "}", "input_tokens");
    EXPECT_GT(counted, 3);
    EXPECT_EQ(counted, number("/v1/responses", "{" + body + "}", nullptr)) << body;
  }
  EXPECT_EQ(post("/v1/responses/input_tokens", R"({"input":3})").status, 400);
}

TEST_F(ResponsesTest, AStreamOfItems) {
  engine_.set_script({.reply = "Hi"});
  start();
  const std::vector<std::string> events =
      stream("/v1/responses", R"({"input":"x","stream":true,"rid":"r"})");
  std::vector<std::string> types;
  int64_t next = 0;
  for (const std::string& event : events) {
    const boost::json::value value = boost::json::parse(event);
    types.emplace_back(value.at("type").as_string());
    EXPECT_EQ(value.at("sequence_number"), next++);
  }
  EXPECT_THAT(types, ElementsAre("response.created", "response.in_progress",
                                 "response.output_item.added", "response.content_part.added",
                                 "response.output_text.delta", "response.output_text.delta",
                                 "response.output_text.done", "response.content_part.done",
                                 "response.output_item.done", "response.completed"));
  const boost::json::value last = boost::json::parse(events.back());
  EXPECT_EQ(last.at("response").at("output").at(0).at("content").at(0).at("text"), "Hi");
  EXPECT_EQ(post("/v1/responses", R"({"input":"x"})").status, 200);
}

// The tokens' texts joined, of a list of log-probabilities.
std::string tokens_of(const boost::json::value& logprobs) {
  std::string all;
  for (const auto& entry : logprobs.as_array()) all += entry.at("token").as_string();
  return all;
}

TEST_F(ResponsesTest, LogprobsAreThoseOfTheMessagesTokens) {
  engine_.set_script({.reply = "Hi"});
  start();
  const auto answer = [&](const std::string& fields) {
    const boost::json::value got =
        boost::json::parse(post("/v1/responses", R"({"input":"x",)" + fields + "}").body);
    return std::pair(got.at("top_logprobs"),
                     got.at("output").at(0).at("content").at(0).at("logprobs"));
  };
  const std::string include = R"("include":["message.output_text.logprobs"])";
  const auto [none, alone] = answer(include);
  EXPECT_EQ(none, 0);
  ASSERT_EQ(alone.as_array().size(), 2u);  // the end of the sequence is not one of them
  EXPECT_EQ(boost::json::serialize(alone.at(1)),
            R"({"token":"i","bytes":[105],"logprob":-6.59375E0,"top_logprobs":[]})");
  const auto [two, best] = answer(R"("top_logprobs":2,)" + include);
  EXPECT_EQ(two, 2);
  EXPECT_EQ(tokens_of(best), "Hi");
  EXPECT_EQ(tokens_of(best.at(0).at("top_logprobs")), "HI");
  EXPECT_EQ(answer(R"("top_logprobs":2)").second, best);
  EXPECT_TRUE(answer(R"("include":["reasoning.encrypted_content"])").second.as_array().empty());
  EXPECT_THAT(post("/v1/responses", R"({"input":"x","include":[1]})").body,
              HasSubstr("include[0] must be a string"));
}

// Neither reasoning nor marks are of the message, and a cut between the events changes nothing.
TEST_F(ResponsesTest, StreamedLogprobsAreThoseOfTheWholeAnswer) {
  config_.answers.reasoning_parser = "qwen3";
  engine_.set_script({.reply = "<think>A < b</think>\n\nc < d.", .context_length = 400});
  start();
  const std::string body = R"({"input":"x","top_logprobs":1,"stream":)";
  const boost::json::value whole =
      boost::json::parse(post("/v1/responses", body + "false}").body).at("output").at(1);
  const boost::json::value logprobs = whole.at("content").at(0).at("logprobs");
  EXPECT_EQ(logprobs.as_array().size(), whole.at("content").at(0).at("text").as_string().size());
  boost::json::array streamed;
  std::string text;
  for (const std::string& event : stream("/v1/responses", body + "true}")) {
    const boost::json::value value = boost::json::parse(event);
    if (value.at("type") == "response.output_text.done") {
      EXPECT_EQ(value.at("logprobs"), logprobs);
    }
    if (value.at("type") != "response.output_text.delta") continue;
    text += value.at("delta").as_string();
    for (const auto& entry : value.at("logprobs").as_array()) streamed.push_back(entry);
  }
  EXPECT_EQ(text, whole.at("content").at(0).at("text").as_string().c_str());
  EXPECT_EQ(boost::json::value(streamed), logprobs);
}

TEST_F(ResponsesTest, CompactionIsRefusedWithAdvice) {
  start();
  const Answer answer = post("/v1/responses/compact", R"({"model":"m","input":"x"})");
  EXPECT_EQ(answer.status, 501);
  EXPECT_THAT(answer.body, HasSubstr("ask the model for a summary"));
}

struct BackgroundTest : ResponsesTest {
  boost::json::value get(const std::string& id) {
    const Answer answer = call("GET", "/v1/responses/" + id);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return boost::json::parse(answer.body);
  }
  boost::json::value wait_for(const std::string& id, const char* status) {
    boost::json::value got;
    for (int i = 0; i < 1000; ++i) {
      got = get(id);
      if (got.at("status") == status) return got;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "never " << status << ": " << boost::json::serialize(got);
    return got;
  }
  // The events of a GET, as text.
  std::string events(const std::string& id, const std::string& query = "") {
    return call("GET", "/v1/responses/" + id + "?stream=true" + query).body;
  }
};

TEST_F(BackgroundTest, IsAnsweredAtOnceAndFetchedLater) {
  engine_.set_script({.reply = "Hi there.", .hold = true, .hold_after = 4});
  start();
  const Answer answer = post("/v1/responses", R"({"input":"x","background":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const boost::json::value begun = boost::json::parse(answer.body);
  EXPECT_EQ(begun.at("status"), "queued");
  EXPECT_EQ(begun.at("background"), true);
  EXPECT_TRUE(begun.at("usage").is_null());
  const std::string id = id_of(answer.body);
  wait_for(id, "in_progress");
  const boost::json::value cancelled =
      boost::json::parse(post("/v1/responses/" + id + "/cancel", "").body);
  EXPECT_EQ(cancelled.at("status"), "cancelled");
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; }));
  EXPECT_EQ(get(id).at("status"), "cancelled");
  EXPECT_EQ(boost::json::parse(post("/v1/responses/" + id + "/cancel", "").body), cancelled);
  EXPECT_THAT(events(id), HasSubstr("not kept"));
}

TEST_F(BackgroundTest, EndsAsAStoredResponse) {
  start();
  const std::string id =
      id_of(post("/v1/responses", R"({"input":"x","background":true,"rid":"b"})").body);
  EXPECT_EQ(id, "resp_b");
  const boost::json::value ended = wait_for(id, "completed");
  EXPECT_EQ(ended.at("output").at(0).at("content").at(0).at("text"), "Hi there.");
  EXPECT_EQ(ended.at("background"), true);
  const Answer next = post("/v1/responses", R"({"input":"Two","previous_response_id":"resp_b"})");
  EXPECT_EQ(next.status, 200) << next.body;
  EXPECT_EQ(call("DELETE", "/v1/responses/" + id).status, 200);
  EXPECT_EQ(call("GET", "/v1/responses/" + id).status, 404);
}

TEST_F(BackgroundTest, AStreamIsReadAgainFromAnyEvent) {
  engine_.set_script({.reply = "Hi"});
  start();
  const std::vector<std::string> first =
      stream("/v1/responses", R"({"input":"x","background":true,"stream":true,"rid":"s"})");
  ASSERT_EQ(first.size(), 10u);
  wait_for("resp_s", "completed");
  const std::string all = events("resp_s"), rest = events("resp_s", "&starting_after=7");
  for (const std::string& event : first) EXPECT_THAT(all, HasSubstr(event));
  EXPECT_TRUE(rest.starts_with("event: response.output_item.done\n")) << rest;
  EXPECT_TRUE(all.ends_with(rest));
  EXPECT_THAT(events("resp_s", "&starting_after=x"), HasSubstr("starting_after is 'x'"));
}

// A client that leaves its stream does not end the run, and a second one reads it from the begin.
TEST_F(BackgroundTest, GoesOnWithoutItsClient) {
  engine_.set_script({.reply = "Hi", .hold = true, .hold_after = 1});
  start();
  {
    auto left = client().post_stream("/v1/responses",
                                     R"({"input":"x","background":true,"stream":true,"rid":"s"})",
                                     [](std::string_view) { return false; });
  }
  wait_for("resp_s", "in_progress");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(engine_.num_running(), 1);
  auto reader = std::async(std::launch::async, [&] { return events("resp_s"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(call("DELETE", "/v1/responses/resp_s").status, 200);
  EXPECT_THAT(reader.get(), HasSubstr("response.output_text.delta"));
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; }));
}

TEST_F(BackgroundTest, AFailureIsTheStatusOfTheResponse) {
  for (const int after : {0, 2}) {
    engine_.set_script(
        {.error = error(StatusCode::kInternal, "the device is gone"), .error_after = after});
    if (server_ == nullptr) start();
    const std::string id =
        id_of(post("/v1/responses", R"({"input":"x","background":true,"stream":false})").body);
    const boost::json::value failed = wait_for(id, "failed");
    EXPECT_EQ(failed.at("error").at("code"), "server_error");
    EXPECT_EQ(failed.at("error").at("message"), "the device is gone");
  }
  engine_.set_script({.submit_error = invalid_argument("the prompt is too long")});
  const std::vector<std::string> streamed =
      stream("/v1/responses", R"({"input":"x","background":true,"stream":true,"rid":"f"})");
  EXPECT_THAT(streamed, ElementsAre(HasSubstr("response.failed")));
  EXPECT_EQ(wait_for("resp_f", "failed").at("error").at("code"), "invalid_prompt");
}

TEST_F(BackgroundTest, IsRefusedWhereItCannotBeFetched) {
  config_.storage.max_responses_bytes = 2000;
  start();
  EXPECT_THAT(post("/v1/responses", R"({"input":"x","background":true,"store":false})").body,
              HasSubstr("background needs store"));
  const Answer full = post("/v1/responses", R"({"input":"x","background":true})");
  EXPECT_EQ(full.status, 503);
  EXPECT_THAT(full.body, HasSubstr("--max-responses-bytes"));
  EXPECT_TRUE(engine_.submitted().empty());
}

TEST_F(BackgroundTest, AStopEndsWhatRuns) {
  engine_.set_script({.hold = true});
  start();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(post("/v1/responses", R"({"input":"x","background":true})").status, 200);
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 3; }));
  server_.reset();
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; }));
}

TEST_F(ResponsesTest, AStoredAnswerIsFetchedContinuedAndDeleted) {
  start();
  const std::string first =
      id_of(post("/v1/responses", R"({"input":"One","instructions":"Be brief."})").body);
  EXPECT_EQ(id_of(call("GET", "/v1/responses/" + first).body), first);
  EXPECT_THAT(call("GET", "/v1/responses/" + first + "/input_items").body, HasSubstr("One"));
  const Answer next = post("/v1/responses", R"({"input":[{"role":"user","content":"Two"}],)"
                                            R"("previous_response_id":")" +
                                                first + "\"}");
  ASSERT_EQ(next.status, 200) << next.body;
  EXPECT_THAT(engine_.submitted().back().text,
              HasSubstr("<|user|>One<|assistant|>Hi there.<|user|>Two"));
  EXPECT_THAT(engine_.submitted().back().text, ::testing::Not(HasSubstr("Be brief.")));
  EXPECT_EQ(call("DELETE", "/v1/responses/" + first).status, 200);
  EXPECT_EQ(call("GET", "/v1/responses/" + first).status, 404);
  EXPECT_EQ(post("/v1/responses", R"({"input":"x","previous_response_id":"resp_gone"})").status,
            404);
  const Answer wrong = post("/v1/responses", R"({"input":"x","previous_response_id":"gone"})");
  EXPECT_EQ(wrong.status, 400);
  const boost::json::object inside = boost::json::parse(wrong.body).at("error").as_object();
  EXPECT_EQ(inside.at("type"), "BadRequestError");
  EXPECT_EQ(inside.at("code"), 400);
  EXPECT_THAT(std::string(inside.at("message").as_string()), HasSubstr("begins with resp_"));
  const std::string unstored = id_of(post("/v1/responses", R"({"input":"x","store":false})").body);
  EXPECT_EQ(call("GET", "/v1/responses/" + unstored).status, 404);
}

TEST_F(ResponsesTest, CallsAndTheirResults) {
  engine_.set_script(
      {.reply = R"({"name": "add", "parameters": {"a": 1}})", .context_length = 4000});
  config_.answers.tool_call_parser = "json";
  start();
  const std::string tools =
      R"("tools":[{"type":"function","name":"add","parameters":{"type":"object"}}])";
  const Answer answer =
      post("/v1/responses", R"({"input":"1?","tool_choice":"required",)" + tools + "}");
  const boost::json::value call = boost::json::parse(answer.body).at("output").at(0);
  EXPECT_EQ(call.at("type"), "function_call");
  EXPECT_EQ(call.at("name"), "add");
  EXPECT_EQ(call.at("arguments"), R"({"a": 1})");
  const Answer next =
      post("/v1/responses",
           R"({"input":[{"role":"user","content":[{"type":"input_text","text":"1?"}]},)"
           R"({"type":"reasoning","summary":[]},)"
           R"({"type":"function_call","call_id":"c","name":"add","arguments":"{\"a\":1}"},)"
           R"({"type":"function_call_output","call_id":"c","output":"2"}],)" +
               tools + "}");
  EXPECT_EQ(next.status, 200) << next.body;
}

TEST_F(ResponsesTest, ErrorsNameTheField) {
  start();
  const auto message = [&](std::string_view body) {
    const Answer answer = post("/v1/responses", body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.body;
  };
  EXPECT_THAT(message("{}"), HasSubstr("input is missing"));
  EXPECT_THAT(message(R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})"),
              HasSubstr("input[0].content[0].image_url must have the picture"));
  EXPECT_THAT(message(R"({"input":"x","tools":[{"type":"web_search"}]})"),
              HasSubstr("tools[0].type is"));
  EXPECT_THAT(message(R"({"input":"x","conversation":3})"),
              HasSubstr("conversation must be a conversation's id"));
  EXPECT_THAT(message(R"({"input":"x","conversation":"c","previous_response_id":"r"})"),
              HasSubstr("send one of them"));
  EXPECT_THAT(message(R"({"input":"x","text":{"format":{"type":"json_schema"}}})"),
              HasSubstr("text.format.schema is missing"));
}

TEST_F(ResponsesTest, TakesTheSamplingFieldsOfChat) {
  start();
  const Answer answer =
      post("/v1/responses", R"({"input":"Hi","max_output_tokens":7,"temperature":0.5,"top_k":3,)"
                            R"("min_p":0.25,"frequency_penalty":0.5,"presence_penalty":-0.5,)"
                            R"("repetition_penalty":1.5,"min_tokens":2,"stop":["a","b"],)"
                            R"("stop_token_ids":[9],"ignore_eos":true,"seed":4,)"
                            R"("logit_bias":{"5":1},"extra_key":"k","use_beam_search":true,)"
                            R"("beam_width":3,"length_penalty":2,"early_stopping":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const GenerateRequest got = engine_.submitted().back();
  const SamplingParams& s = got.sampling;
  EXPECT_EQ(s.max_new_tokens, 7);
  EXPECT_EQ(s.min_new_tokens, 2);
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_k, 3);
  EXPECT_EQ(s.min_p, 0.25f);
  EXPECT_EQ(s.frequency_penalty, 0.5f);
  EXPECT_EQ(s.presence_penalty, -0.5f);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_THAT(s.stop, ElementsAre("a", "b"));
  EXPECT_THAT(s.stop_token_ids, ElementsAre(9));
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.sampling_seed, 4u);
  EXPECT_EQ(s.logit_bias.at(5), 1.0f);
  EXPECT_EQ(got.extra_key, "k");
  EXPECT_EQ(s.n, 1);
  const SamplingParams unset;  // a response is one answer: beam search's fields are not read
  EXPECT_FALSE(s.use_beam_search);
  EXPECT_EQ(s.beam_width, unset.beam_width);
  EXPECT_EQ(s.length_penalty, unset.length_penalty);
  const auto refusal = [&](std::string_view field) {
    return post("/v1/responses", fmt::format(R"({{"input":"x",{}}})", field)).body;
  };
  EXPECT_THAT(refusal(R"("token_healing":true)"), HasSubstr("use /v1/completions"));
  EXPECT_THAT(refusal(R"("ignore_eos":3)"), HasSubstr("ignore_eos must be"));
  EXPECT_THAT(refusal(R"("extra_key":["a","b"])"), HasSubstr("extra_key"));
}

TEST(ResponseStore, GivesUpTheLeastRecentlyUsedAndTheExpired) {
  const auto account = std::make_shared<MemoryAccount>("responses", 3000);
  ResponseStore store(account, std::chrono::seconds(10));
  const TimePoint start{};
  const auto key = [](const char* id) { return StoredKey{StoredKey::Kind::kResponse, "", id}; };
  const auto put = [&](const char* id, size_t bytes, int seconds) {
    return store.put(key(id), {std::string(bytes, 'x'), "[]", {}},
                     start + std::chrono::seconds(seconds));
  };
  const auto has = [&](const char* id, int seconds) {
    return store.get(key(id), start + std::chrono::seconds(seconds)) != nullptr;
  };
  EXPECT_TRUE(put("a", 500, 0));
  EXPECT_TRUE(put("b", 500, 1));
  EXPECT_TRUE(has("a", 2));  // now b is the least recently used
  EXPECT_TRUE(put("c", 1000, 3));
  EXPECT_FALSE(has("b", 3));
  EXPECT_TRUE(has("a", 3));
  EXPECT_FALSE(put("huge", 5000, 4));
  EXPECT_LE(account->used(), account->limit());
  EXPECT_FALSE(has("c", 14));
  EXPECT_FALSE(has("a", 14));
  EXPECT_EQ(account->used(), 0);
  EXPECT_FALSE(store.erase(key("a")));
}

TEST(ResponseStore, AnOwnerThatStoresMuchTakesNothingFromOthers) {
  const auto account = std::make_shared<MemoryAccount>("responses", 20'000);
  ResponseStore store(account, std::chrono::seconds(10));
  const auto key = [](const char* owner, int i) {
    return StoredKey{StoredKey::Kind::kResponse, owner, std::to_string(i)};
  };
  const auto put = [&](const char* owner, int i, size_t bytes) {
    return store.put(key(owner, i), {std::string(bytes, 'x'), "[]", {}}, {});
  };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(put("modest", i, 1000));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(put("greedy", i, 1000));
  for (int i = 0; i < 4; ++i) EXPECT_NE(store.get(key("modest", i), {}), nullptr);
  EXPECT_NE(store.get(key("greedy", 99), {}), nullptr);
  EXPECT_EQ(store.get(key("greedy", 0), {}), nullptr);
  EXPECT_FALSE(put("greedy", 100, 15'000));  // more than is left beside the modest one's
  for (int i = 4; i < 6; ++i) EXPECT_TRUE(put("modest", i, 1000));  // at the greedy one's expense
  for (int i = 0; i < 6; ++i) EXPECT_NE(store.get(key("modest", i), {}), nullptr);
  EXPECT_LE(account->used(), account->limit());
}

}  // namespace
}  // namespace espalier::server
