// llama.cpp's routes over real sockets and a scripted engine.
#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <cfloat>

#include "server/test_server.h"
#include "text/tokenizer/stored_tokenizer.h"

namespace espalier::server {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class LlamaCppTest : public ServerTest {
 protected:
  json::object object(std::string_view path, std::string_view body) const {
    const Answer answer = body.empty() ? call("GET", path) : post(path, body);
    EXPECT_EQ(answer.status, 200) << path << ": " << answer.body;
    return answer.status == 200 ? json::parse(answer.body).as_object() : json::object();
  }
  void expect_error(std::string_view path, std::string_view body, int status, std::string_view type,
                    std::string_view message) const {
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, status) << answer.body;
    const json::value value = json::parse(answer.body);
    ASSERT_TRUE(value.is_object() && value.as_object().contains("error")) << answer.body;
    EXPECT_EQ(value.at("error").at("code"), status);
    EXPECT_EQ(value.at("error").at("type").as_string(), type);
    EXPECT_THAT(std::string(value.at("error").at("message").as_string()),
                HasSubstr(std::string(message)));
  }
  SamplingParams sampling(std::string_view body) const {
    post("/completion", body);
    return engine_.submitted().back().sampling;
  }
};

TEST_F(LlamaCppTest, CompletesWithItsMembers) {
  start();
  const json::object got =
      object("/completion", R"({"prompt":"abc","model":"m","n_predict":20,"temperature":0})");
  for (const auto& [name, expected] :
       std::initializer_list<std::pair<const char*, json::value>>{{"content", "Hi there."},
                                                                  {"tokens", json::array()},
                                                                  {"stop", true},
                                                                  {"stop_type", "eos"},
                                                                  {"stopping_word", ""},
                                                                  {"model", "scripted-1b"},
                                                                  {"prompt", "abc"},
                                                                  {"tokens_predicted", 10},
                                                                  {"tokens_evaluated", 4},
                                                                  {"tokens_cached", 13},
                                                                  {"truncated", false},
                                                                  {"has_new_line", false},
                                                                  {"index", 0}})
    EXPECT_EQ(got.at(name), expected) << name;
  EXPECT_FALSE(got.contains("completion_probabilities"));
  const json::value& settings = got.at("generation_settings");
  EXPECT_EQ(settings.at("n_predict"), 20);
  EXPECT_EQ(settings.at("top_k"), 40);
  EXPECT_EQ(settings.at("seed"), 4294967295);
  const json::value& timings = got.at("timings");
  EXPECT_EQ(timings.at("cache_n"), 2);
  EXPECT_EQ(timings.at("prompt_n"), 2);
  EXPECT_EQ(timings.at("predicted_n"), 10);
  EXPECT_TRUE(timings.as_object().contains("predicted_per_second"));
}

TEST_F(LlamaCppTest, EndsByLimitAndByWord) {
  start();
  EXPECT_EQ(object("/completions", R"({"prompt":"x","n_predict":2})").at("stop_type"), "limit");
  const json::object word = object("/completion", R"({"prompt":"x","stop":["","t"]})");
  EXPECT_EQ(word.at("stop_type"), "word");
  EXPECT_EQ(word.at("stopping_word"), "t");
  EXPECT_EQ(word.at("content"), "Hi ");
}

TEST_F(LlamaCppTest, StreamsPartsAndTheEnd) {
  engine_.set_script({.reply = "Hi"});
  start();
  const auto got = stream("/completion", R"({"prompt":"x","stream":true,"n_probs":1,
                                             "timings_per_token":true})");
  ASSERT_EQ(got.size(), 4u);
  const json::value first = json::parse(got[0]), last = json::parse(got[3]);
  EXPECT_EQ(first.at("content"), "H");
  EXPECT_EQ(first.at("tokens"), json::array({72}));
  EXPECT_EQ(first.at("stop"), false);
  EXPECT_EQ(first.at("completion_probabilities").at(0).at("id"), 72);
  EXPECT_TRUE(first.as_object().contains("timings"));
  EXPECT_EQ(last.at("content"), "");
  EXPECT_EQ(last.at("stop"), true);
  EXPECT_EQ(last.at("stop_type"), "eos");
  EXPECT_FALSE(last.as_object().contains("completion_probabilities"));
}

TEST_F(LlamaCppTest, TranslatesTheSamplers) {
  start();
  const SamplingParams defaults = sampling(R"({"prompt":"x"})");
  EXPECT_FLOAT_EQ(*defaults.temperature, 0.8f);
  EXPECT_EQ(defaults.top_k, 40);
  EXPECT_FLOAT_EQ(*defaults.top_p, 0.95f);
  EXPECT_FLOAT_EQ(*defaults.min_p, 0.05f);
  EXPECT_TRUE(defaults.to_context);
  EXPECT_FALSE(defaults.sampling_seed);
  const SamplingParams given = sampling(
      R"({"prompt":"x","n_predict":3,"temperature":-1,"top_k":0,"top_p":2,"seed":7,"ignore_eos":true,
          "repeat_penalty":1.5,"presence_penalty":0.5,"logit_bias":[[65,1.5],["BC",false]]})");
  EXPECT_EQ(given.max_new_tokens, 3);
  EXPECT_EQ(given.temperature, 0.0f);
  EXPECT_EQ(given.top_k, -1);
  EXPECT_EQ(given.top_p, 1.0f);
  EXPECT_EQ(given.sampling_seed, 7u);
  EXPECT_EQ(given.repetition_penalty, 1.5f);
  EXPECT_TRUE(given.ignore_eos);
  EXPECT_THAT(given.logit_bias,
              ElementsAre(Pair(65, 1.5f), Pair(66, -FLT_MAX), Pair(67, -FLT_MAX)));
  EXPECT_THAT(sampling(R"({"prompt":"x","logit_bias":{"5":1,"A":-1}})").logit_bias,
              ElementsAre(Pair(5, 1.0f), Pair(65, -1.0f)));
  const SamplingParams off = sampling(
      R"({"prompt":"x","seed":-1,"samplers":["top_k"],"repeat_last_n":0,"presence_penalty":1})");
  EXPECT_EQ(off.top_p, 1.0f);
  EXPECT_EQ(off.min_p, 0.0f);
  EXPECT_EQ(off.temperature, 1.0f);
  EXPECT_EQ(off.presence_penalty, 0.0f);
  EXPECT_EQ(off.top_k, 40);
  EXPECT_FALSE(off.sampling_seed);
  EXPECT_EQ(sampling(R"({"prompt":"x","samplers":"pt"})").top_k, -1);
  EXPECT_EQ(sampling(R"({"prompt":"x","top_p":0})").top_k, 1);
}

TEST_F(LlamaCppTest, ConstrainsByGrammarOrSchema) {
  start();
  EXPECT_EQ(*sampling(R"({"prompt":"x","json_schema":{"type":"object"}})").json_schema,
            R"({"type":"object"})");
  const SamplingParams both =
      sampling(R"({"prompt":"x","grammar":"root ::= \"a\"","json_schema":{}})");
  EXPECT_EQ(*both.ebnf, "root ::= \"a\"");
  EXPECT_FALSE(both.json_schema);
}

TEST_F(LlamaCppTest, TakesPromptsOfEveryKind) {
  start();
  post("/completion", R"({"prompt":[72,105]})");
  EXPECT_THAT(engine_.submitted().back().input_ids, ElementsAre(72, 105));
  EXPECT_EQ(object("/completion", R"({"prompt":["H",105,"!"]})").at("prompt"), "<s>Hi!");
  EXPECT_THAT(engine_.submitted().back().input_ids, ElementsAre(256, 72, 105, 33));
  post("/completion", R"({"prompt":{"prompt_string":"Hi"}})");
  EXPECT_EQ(engine_.submitted().back().text, "Hi");
  const json::array two = json::parse(post("/completion", R"({"prompt":["a",[98]],"response_fields":
                  ["index","prompt","generation_settings/top_k","nothing/there"]})")
                                          .body)
                              .as_array();
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1],
            (json::object{{"index", 1}, {"prompt", "b"}, {"generation_settings/top_k", 40}}));
}

TEST_F(LlamaCppTest, ReturnsProbabilitiesAndTokens) {
  engine_.set_script({.reply = "A"});
  start();
  const json::object got =
      object("/completion", R"({"prompt":"x","n_probs":2,"return_tokens":true})");
  EXPECT_EQ(got.at("tokens").at(0), 65);
  const json::value& first = got.at("completion_probabilities").at(0);
  EXPECT_EQ(first.at("token"), "A");
  EXPECT_EQ(first.at("bytes"), json::array({65}));
  EXPECT_FLOAT_EQ(first.at("logprob").to_number<float>(), ScriptedEngine::logprob(65));
  EXPECT_EQ(first.at("top_logprobs").as_array().size(), 2u);
  EXPECT_EQ(first.at("top_logprobs").at(1).at("id"), 66);
}

TEST_F(LlamaCppTest, DryAndXtcAreItsOwn) {
  start();
  const auto sampled = [&](const std::string& fields) {
    const json::object got = object("/completion", R"({"prompt":"x","n_predict":2)" + fields + "}");
    EXPECT_TRUE(got.contains("generation_settings"));
    return engine_.submitted().back().sampling;
  };
  EXPECT_FALSE(sampled("").dry_multiplier.has_value()) << "off, so that a GPU takes it";
  EXPECT_EQ(sampled("").xtc_probability.value_or(0), 0);
  SamplingParams p = sampled(R"(,"dry_multiplier":0.8,"xtc_probability":0.5,"xtc_threshold":0.2)");
  EXPECT_EQ(p.dry_multiplier, 0.8f);
  EXPECT_EQ(p.dry_base, 1.75f);
  EXPECT_EQ(p.dry_allowed_length, 2);
  EXPECT_EQ(p.dry_range, 64);
  EXPECT_THAT(p.dry_sequence_breakers, ElementsAre("\n", ":", "\"", "*"));
  EXPECT_EQ(p.xtc_probability, 0.5f);
  EXPECT_EQ(p.xtc_threshold, 0.2f);
  p = sampled(R"(,"dry_multiplier":1,"dry_base":2,"dry_allowed_length":3,"dry_penalty_last_n":-1,)"
              R"("dry_sequence_breakers":["."])");
  EXPECT_EQ(p.dry_base, 2.0f);
  EXPECT_EQ(p.dry_allowed_length, 3);
  EXPECT_EQ(p.dry_range, -1);
  EXPECT_THAT(p.dry_sequence_breakers, ElementsAre("."));
  for (const char* off :
       {R"("dry_penalty_last_n":0)", R"("dry_base":0.5)", R"("samplers":["xtc"])"})
    EXPECT_FALSE(sampled(std::string(R"(,"dry_multiplier":1,)") + off).dry_multiplier) << off;
  EXPECT_FALSE(sampled(R"(,"xtc_probability":1,"samplers":"d")").xtc_probability);
  expect_error("/completion", R"({"prompt":"x","dry_sequence_breakers":[]})", 400,
               "invalid_request_error", "dry_sequence_breakers must not be empty");
}

TEST_F(LlamaCppTest, RefusesByNameInItsShape) {
  start();
  expect_error("/completion", R"({"n_predict":2})", 400, "invalid_request_error",
               "prompt is missing");
  expect_error("/completion", R"({"prompt":"x","n_predict":"two"})", 400, "invalid_request_error",
               "n_predict must be an integer");
  expect_error("/completion", R"({"prompt":"x","n_predict":-2})", 400, "invalid_request_error",
               "n_predict is -2");
  expect_error("/completion", R"({"prompt":[]})", 400, "invalid_request_error", "not be empty");
  for (const char* off : {"dynatemp_range", "typical_p", "mirostat", "post_sampling_probs",
                          "grammar_lazy", "n", "n_indent"})
    expect_error("/completion", fmt::format(R"({{"prompt":"x","{}":2}})", off), 501,
                 "not_supported_error", off);
  expect_error("/completion", R"({"prompt":"x","image_data":[{"id":1}]})", 501,
               "not_supported_error", "image_data");
  expect_error("/infill", R"({"input_prefix":"a"})", 501, "not_supported_error", "/infill needs");
  expect_error("/apply-template", "{}", 400, "invalid_request_error", "messages is missing");
  EXPECT_EQ(post("/completion", R"({"prompt":"x","typical_p":1.0,"mirostat":0,"lora":[],"n":1,
      "id_slot":3,"cache_prompt":false,"n_keep":5,"t_max_predict_ms":100,"dry_base":2})")
                .status,
            200);
}

TEST_F(LlamaCppTest, AFailureInAStreamIsAnEvent) {
  engine_.set_script({.error = Status(StatusCode::kInternal, "lost"), .error_after = 1});
  start();
  const auto got = stream("/completion", R"({"prompt":"x","stream":true})");
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[1], R"({"error":{"code":500,"message":"lost","type":"server_error"}})");
}

TEST_F(LlamaCppTest, FillsGaps) {
  StoredVocabulary stored;
  stored.model = "gpt2";
  stored.pre_tokenizer = "starcoder";
  stored.tokens = {"a", "b", "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|endoftext|>"};
  stored.types = {1, 1, 3, 3, 3, 3};
  stored.eos_id = 5;
  engine_.set_tokenizer(make_stored_tokenizer(std::move(stored)).value());
  start();
  post("/infill", R"({"input_prefix":"a","prompt":"b","input_suffix":"a","n_predict":1})");
  EXPECT_THAT(engine_.submitted().back().input_ids, ElementsAre(2, 0, 1, 3, 0, 4));
  EXPECT_THAT(engine_.submitted().back().sampling.stop_token_ids, ElementsAre(5));
  post("/infill", R"({"input_extra":[{"text":"ab","filename":"x"}],"n_predict":0})");
  const auto with_file = engine_.submitted().back().input_ids;
  EXPECT_THAT(std::vector(with_file.end() - 5, with_file.end()), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(engine_.submitted().back().sampling.max_new_tokens, 0);
}

TEST_F(LlamaCppTest, TokenizesInItsShape) {
  start();
  expect("/tokenize", R"({"content":"Hi"})", 200, R"({"tokens":[72,105]})");
  expect(
      "/tokenize", R"({"content":["H",5],"add_special":true,"with_pieces":true})", 200,
      R"({"tokens":[{"id":256,"piece":"<s>"},{"id":72,"piece":"H"},{"id":5,"piece":"\u0005"}]})");
  expect("/llama.cpp/tokenize", R"({"content":"é","with_pieces":true})", 200,
         R"({"tokens":[{"id":195,"piece":[195]},{"id":169,"piece":[169]}]})");
  expect("/llama.cpp/tokenize", "{}", 200, R"({"tokens":[]})");
  expect("/llama.cpp/detokenize", R"({"tokens":[256,72,105]})", 200, R"({"content":"<s>Hi"})");
  expect_error("/llama.cpp/detokenize", R"({"tokens":[-1]})", 400, "invalid_request_error", "-1");
  EXPECT_EQ(post("/tokenize", R"({"content":{}})").status, 400);
}

TEST_F(LlamaCppTest, SaysWhatItServes) {
  config_.answers.served_model_name = "tiny";
  engine_.set_script({.hold = true});
  start();
  const json::object props = object("/props", "");
  EXPECT_EQ(props.at("total_slots"), 8);
  EXPECT_EQ(props.at("model_alias"), "tiny");
  EXPECT_EQ(props.at("chat_template"), json::string(kTestTemplate));
  EXPECT_EQ(props.at("bos_token"), "<s>");
  EXPECT_EQ(props.at("default_generation_settings").at("n_ctx"), 100);
  EXPECT_EQ(props.at("default_generation_settings").at("params").at("n_predict"), -1);
  EXPECT_EQ(
      object("/apply-template", R"({"messages":[{"role":"user","content":"Hi"}]})").at("prompt"),
      "<s><|user|>Hi<|assistant|>");
  EXPECT_EQ(call("GET", "/lora-adapters").body, "[]");
  EXPECT_EQ(object("/llama.cpp/health", "").at("status"), "ok");
  EXPECT_EQ(object("/llama.cpp/props", "").at("model_alias"), "tiny");
  EXPECT_EQ(object("/llama.cpp/v1/models", "").at("data").at(0).at("id"), "tiny");
}

TEST_F(LlamaCppTest, SlotsShowHowManyAreBusy) {
  engine_.set_script({.hold = true});
  start();
  const auto busy = [&] {
    const json::value slots = json::parse(call("GET", "/slots").body);
    EXPECT_EQ(slots.as_array().size(), 8u);
    return std::ranges::count_if(slots.as_array(), [](const json::value& slot) {
      return slot.at("is_processing").as_bool();
    });
  };
  EXPECT_EQ(busy(), 0);
  std::thread client([&] { post("/completion", R"({"prompt":"secret"})"); });
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 1; }));
  EXPECT_EQ(busy(), 1);
  EXPECT_THAT(call("GET", "/slots").body, ::testing::Not(HasSubstr("secret")));
  engine_.abort("", Engine::AbortScope::kAll);
  client.join();
}

}  // namespace
}  // namespace espalier::server
