// /v1/completions, /v1/chat/completions, /tokenize and /detokenize over real sockets.
#include <gmock/gmock.h>

#include "server/test_server.h"
#include "text/tokenizer/stored_tokenizer.h"

namespace espalier::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using OpenAiTest = ServerTest;

constexpr std::string_view kStop = R"("finish_reason":"stop","matched_stop":257)";

std::string usage(int prompt, int completion, std::string_view details = "null") {
  return fmt::format(
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{},)"
      R"("reasoning_tokens":0}})",
      prompt, completion, prompt + completion, details);
}

std::string whole(std::string_view object, std::string_view choices, std::string_view usage_json,
                  std::string_view model = "scripted-1b") {
  return fmt::format(
      R"({{"id":"r","object":"{}","created":0,"model":"{}","choices":[{}],"usage":{},)"
      R"("metadata":{{"weight_version":"default"}}}})",
      object, model, choices, usage_json);
}

std::string chunk(std::string_view object, std::string_view choices,
                  std::string_view usage_json = "null") {
  return fmt::format(
      R"({{"id":"r","object":"{}","created":0,"model":"scripted-1b","choices":[{}],"usage":{}}})",
      object, choices, usage_json);
}

std::string text_choice(int index, std::string_view text, std::string_view end,
                        std::string_view logprobs = "null") {
  return fmt::format(R"({{"index":{},"text":"{}","logprobs":{},{}}})", index, text, logprobs, end);
}

std::string chat_choice(int index, std::string_view text, std::string_view end,
                        std::string_view logprobs = "null") {
  return fmt::format(
      R"({{"index":{},"message":{{"role":"assistant","content":"{}","reasoning_content":null,)"
      R"("tool_calls":null}},"logprobs":{},{}}})",
      index, text, logprobs, end);
}

// What a chunk without text says: clients read reasoning_content from every chunk.
constexpr std::string_view kLastDelta = R"({"reasoning_content":null})";

std::string delta_choice(int index, std::string_view delta, std::string_view end,
                         std::string_view logprobs = "null") {
  return fmt::format(R"({{"index":{},"delta":{},"logprobs":{},{}}})", index, delta, logprobs, end);
}

constexpr std::string_view kOpen = R"("finish_reason":null,"matched_stop":null)";

// By `model` or lora_path; the engine says what it thinks of a name that is not loaded.
TEST_F(OpenAiTest, RequestsNameAdapters) {
  engine_.set_adapters(
      {{.name = "fr", .path = {}, .info = {}}, {.name = "de", .path = {}, .info = {}}});
  start();
  const std::pair<const char*, const char*> cases[] = {{R"("model":"fr")", "fr"},
                                                       {R"("model":"scripted-1b:de")", "de"},
                                                       {R"("model":"llama3:fr")", "fr"},
                                                       {R"("model":"scripted-1b:no")", "no"},
                                                       {R"("model":"llama3:8b")", ""},
                                                       {R"("model":"scripted-1b")", ""},
                                                       {R"("model":"fr","lora_path":"de")", "de"}};
  size_t count = 0;
  for (const auto& [fields, adapter] : cases) {
    EXPECT_EQ(post("/v1/completions", fmt::format(R"({{"prompt":"a",{}}})", fields)).status, 200);
    EXPECT_EQ(engine_.submitted().at(count++).lora, adapter) << fields;
    const std::string chat = R"({"messages":[{"role":"user","content":"a"}],)";
    EXPECT_EQ(post("/v1/chat/completions", chat + fields + "}").status, 200);
    EXPECT_EQ(engine_.submitted().at(count++).lora, adapter) << fields;
  }
  const std::string two = R"({"prompt":["a","b"],"lora_path":["fr","de"]})";
  EXPECT_EQ(post("/v1/completions", two).status, 200);
  EXPECT_EQ(engine_.submitted().at(count).lora, "fr");
  EXPECT_EQ(engine_.submitted().at(count + 1).lora, "de");
  EXPECT_EQ(call("GET", "/v1/models/fr").status, 200);
  EXPECT_EQ(call("GET", "/v1/models/no").status, 404);
}

// An adapter that is named while there are none is the engine's to refuse; Ollama's tag is no
// adapter.
TEST_F(OpenAiTest, AdaptersThatAreNotEnabledReachTheEngine) {
  start();
  const std::pair<const char*, const char*> cases[] = {
      {"scripted-1b:fr", "fr"}, {"scripted-1b:latest", ""}, {"llama3:8b", ""}, {"scripted-1b", ""}};
  for (const auto& [model, adapter] : cases) {
    EXPECT_EQ(
        post("/v1/completions", fmt::format(R"({{"prompt":"a","model":"{}"}})", model)).status,
        200);
    EXPECT_EQ(engine_.submitted().back().lora, adapter) << model;
  }
}

TEST_F(OpenAiTest, Completion) {
  start();
  expect("/v1/completions", R"({"prompt":"Hi","rid":"r"})", 200,
         whole("text_completion", text_choice(0, "Hi there.", kStop), usage(3, 10)));
  expect("/v1/completions", R"({"model":"any","prompt":"Hi","rid":"r","max_tokens":2})", 200,
         whole("text_completion",
               text_choice(0, "Hi", R"("finish_reason":"length","matched_stop":null)"), usage(3, 2),
               "any"));
  expect("/v1/completions", R"({"prompt":"Hi","rid":"r","stop":["e"],"echo":true})", 200,
         whole("text_completion",
               text_choice(0, "HiHi th", R"("finish_reason":"stop","matched_stop":"e")"),
               usage(3, 6)));
  // The four forms of a prompt.
  engine_.set_script({.reply = "k"});
  expect("/v1/completions", R"({"prompt":["a","bc"],"rid":["r","s"]})", 200,
         whole("text_completion", text_choice(0, "k", kStop) + "," + text_choice(1, "k", kStop),
               usage(5, 4)));
  expect("/v1/completions", R"({"prompt":[72,105],"rid":"r","echo":true})", 200,
         whole("text_completion", text_choice(0, "Hik", kStop), usage(2, 2)));
  EXPECT_THAT(engine_.submitted().back().input_ids, ElementsAre(72, 105));
  expect("/v1/completions", R"({"prompt":[[72],[105,105]],"rid":["r","s"],"n":2})", 200,
         whole("text_completion",
               text_choice(0, "k", kStop) + "," + text_choice(1, "k", kStop) + "," +
                   text_choice(2, "k", kStop) + "," + text_choice(3, "k", kStop),
               usage(3, 8)));
}

TEST_F(OpenAiTest, CompletionDefaults) {
  start();
  post("/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(engine_.submitted().back().sampling.max_new_tokens, 16);
  EXPECT_TRUE(engine_.submitted().back().add_special_tokens);
  post("/v1/completions", R"({"prompt":"x","max_tokens":null,"temperature":null,"suffix":null,
    "best_of":3,"user":"me","seed":-1,"logit_bias":{"5":1},"stop":"a","min_tokens":2,"top_k":3})");
  const SamplingParams s = engine_.submitted().back().sampling;
  EXPECT_EQ(s.max_new_tokens, 16);
  EXPECT_EQ(s.temperature, std::nullopt);
  EXPECT_EQ(s.sampling_seed, ~0ull);
  EXPECT_THAT(s.logit_bias, ElementsAre(std::pair(5, 1.0f)));
  EXPECT_THAT(s.stop, ElementsAre("a"));
  EXPECT_EQ(s.min_new_tokens, 2);
  EXPECT_EQ(s.top_k, 3);
  post("/v1/completions", R"({"prompt":"x","response_format":{"type":"json_schema",
    "json_schema":{"name":"n","schema":{"type":"array"}}}})");
  EXPECT_EQ(engine_.submitted().back().sampling.json_schema, R"({"type":"array"})");
  post("/v1/completions", R"({"prompt":"x","response_format":{"type":"json_object"}})");
  EXPECT_EQ(engine_.submitted().back().sampling.json_schema, R"({"type":"object"})");
}

// What clients of vLLM send sets the grammar of regex, ebnf, choices and response_format.
TEST_F(OpenAiTest, GrammarsAsVllmTakesThem) {
  start();
  const auto sampling_of = [&](const std::string& fields) {
    for (const char* whose : {R"("prompt":"x")", R"("messages":[{"role":"user","content":"x"}])"}) {
      const bool is_chat = std::string_view(whose).starts_with("\"m");
      const Answer answer = post(is_chat ? "/v1/chat/completions" : "/v1/completions",
                                 fmt::format("{{{},{}}}", whose, fields));
      EXPECT_EQ(answer.status, 200) << answer.body;
    }
    return engine_.submitted().back().sampling;
  };
  for (const char* schema : {R"({"type":"array"})", R"("{\"type\":\"array\"}")"})
    for (const char* name : {R"("guided_json":{})", R"("structured_outputs":{{"json":{}}})"})
      EXPECT_EQ(sampling_of(fmt::format(fmt::runtime(name), schema)).json_schema,
                R"({"type":"array"})");
  EXPECT_EQ(sampling_of(R"("guided_regex":"a|b")").regex, "a|b");
  EXPECT_EQ(sampling_of(R"("guided_grammar":"root ::= \"a\"")").ebnf, R"(root ::= "a")");
  EXPECT_THAT(sampling_of(R"("guided_choice":["a","b"])").choices, ElementsAre("a", "b"));
  EXPECT_EQ(sampling_of(R"("structured_outputs":{"regex":"a","json":null,"disable_fallback":true})")
                .regex,
            "a");
  EXPECT_THAT(sampling_of(R"("structured_outputs":{"choice":["a"]})").choices, ElementsAre("a"));
  EXPECT_EQ(sampling_of(R"("structured_outputs":{"grammar":"root ::= \"a\""})").ebnf,
            R"(root ::= "a")");
  EXPECT_EQ(sampling_of(R"("structured_outputs":{"json_object":true})").json_schema,
            R"({"type":"object"})");
  EXPECT_EQ(sampling_of(R"("structured_outputs":{"structural_tag":"{}"})").structural_tag, "{}");
  const std::pair<const char*, const char*> wrong[] = {
      {R"("guided_choice":[])",
       "guided_choice must be a list of at least one text, but it is empty"},
      {R"("guided_json":[1])", "guided_json must be a JSON Schema or its text, but it is a list"},
      {R"("structured_outputs":{"regex":5})",
       "structured_outputs.regex must be a string, but it is the number 5"},
      {R"("structured_outputs":{"structural_tag":5})",
       "structured_outputs.structural_tag must be structural tags or their text, but it is the "
       "number 5"}};
  for (const auto& [fields, message] : wrong) {
    const Answer answer = post("/v1/completions", fmt::format(R"({{"prompt":"x",{}}})", fields));
    EXPECT_EQ(answer.status, 400) << fields;
    EXPECT_THAT(answer.body, HasSubstr(message));
  }
}

// A small vocabulary with StarCoder's tokens for fill in the middle.
TEST_F(OpenAiTest, BeamSearchHasScores) {
  start();
  const Answer completion = post(
      "/v1/completions",
      R"({"prompt":"Hi","n":2,"use_beam_search":true,"beam_width":4,"length_penalty":2,"early_stopping":true,"max_tokens":2})");
  EXPECT_EQ(completion.status, 200);
  EXPECT_THAT(completion.body, HasSubstr(R"("beam_score":-1.5,"cumulative_logprob":-4})"));
  const SamplingParams s = engine_.submitted().at(0).sampling;
  EXPECT_TRUE(s.use_beam_search);
  EXPECT_EQ(s.beam_width, 4);
  EXPECT_EQ(s.length_penalty, 2.0f);
  EXPECT_EQ(s.early_stopping, EarlyStopping::kYes);
  const std::string chat =
      R"({"messages":[{"role":"user","content":"Hi"}],"use_beam_search":true,"stream":)";
  EXPECT_THAT(post("/v1/chat/completions", chat + "false}").body,
              HasSubstr(R"("beam_score":-0.5,"cumulative_logprob":-4)"));
  EXPECT_THAT(post("/v1/chat/completions", chat + "true}").body,
              HasSubstr(R"("beam_score":-0.5,"cumulative_logprob":-4)"));
}

TEST_F(OpenAiTest, SuffixMakesAPromptOfFillInTheMiddle) {
  StoredVocabulary stored;
  stored.model = "gpt2";
  stored.pre_tokenizer = "starcoder";
  stored.tokens = {"a", "b", "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|endoftext|>"};
  stored.types = {1, 1, 3, 3, 3, 3};
  stored.eos_id = 5;
  engine_.set_tokenizer(make_stored_tokenizer(std::move(stored)).value());
  start();
  post("/v1/completions", R"({"prompt":["ab","b"],"suffix":"a","max_tokens":1})");
  ASSERT_EQ(engine_.submitted().size(), 2u);
  EXPECT_THAT(engine_.submitted()[0].input_ids, ElementsAre(2, 0, 1, 3, 0, 4));
  EXPECT_THAT(engine_.submitted()[1].input_ids, ElementsAre(2, 1, 3, 0, 4));
  EXPECT_THAT(engine_.submitted()[0].sampling.stop_token_ids, ElementsAre(5));
  post("/v1/completions", R"({"prompt":"ab","suffix":"","max_tokens":1})");
  EXPECT_EQ(engine_.submitted().back().text, "ab");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":[0],"suffix":"a"})").status, 400);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a","suffix":"a","token_healing":true})").status,
            400);
}

TEST_F(OpenAiTest, CompletionLogprobs) {
  engine_.set_script({.reply = "a"});
  start();
  expect("/v1/completions", R"({"prompt":"Hi","rid":"r","logprobs":2,"max_tokens":1})", 200,
         whole("text_completion",
               text_choice(0, "a", R"("finish_reason":"length","matched_stop":null)",
                           R"({"text_offset":[-1],"token_logprobs":[-6.09375],"tokens":["a"],)"
                           R"("top_logprobs":[{"a":-6.09375,"b":-7.09375}]})"),
               usage(3, 1)));
  // Scores of a text: echoed, nothing generated; the first token has nothing before it.
  expect("/v1/completions", R"({"prompt":"Hi","rid":"r","logprobs":1,"max_tokens":0,"echo":true})",
         200,
         whole("text_completion",
               text_choice(0, "Hi", R"("finish_reason":"length","matched_stop":null)",
                           R"({"text_offset":[-1,-1,-1],"token_logprobs":[null,-4.53125,-6.59375],)"
                           R"("tokens":["<s>","H","i"],)"
                           R"("top_logprobs":[null,{"H":-4.53125},{"i":-6.59375}]})"),
               usage(3, 0)));
  expect("/v1/completions", R"({"prompt":[1],"rid":"r","logprobs":0,"max_tokens":1})", 200,
         whole("text_completion",
               text_choice(0, "a", R"("finish_reason":"length","matched_stop":null)",
                           R"({"text_offset":[-1],"token_logprobs":[-6.09375],"tokens":["a"],)"
                           R"("top_logprobs":[]})"),
               usage(1, 1)));
}

TEST_F(OpenAiTest, CompletionStream) {
  engine_.set_script({.reply = "ab"});
  start();
  const std::string object = "text_completion";
  expect_stream(
      "/v1/completions", R"({"prompt":"Hi","rid":"r","stream":true,"echo":true})",
      {chunk(object, text_choice(0, "Hia", kOpen)), chunk(object, text_choice(0, "b", kOpen)),
       chunk(object, text_choice(0, "", kStop)), "[DONE]"});
  expect_stream(
      "/v1/completions",
      R"({"prompt":"Hi","rid":"r","stream":true,"max_tokens":1,"logprobs":1,
         "stream_options":{"include_usage":true,"continuous_usage_stats":true}})",
      {chunk(object,
             text_choice(0, "a", R"("finish_reason":"length","matched_stop":null)",
                         R"({"text_offset":[-1],"token_logprobs":[-6.09375],"tokens":["a"],)"
                         R"("top_logprobs":[{"a":-6.09375}]})"),
             usage(3, 1)),
       chunk(object, "", usage(3, 1)), "[DONE]"});
}

TEST_F(OpenAiTest, Chat) {
  start();
  expect("/v1/chat/completions", R"({"messages":[{"role":"user","content":"Hi"}],"rid":"r"})", 200,
         whole("chat.completion", chat_choice(0, "Hi there.", kStop), usage(5, 10)));
  // <s><|user|>Hi<|assistant|>
  const GenerateRequest r = engine_.submitted().back();
  EXPECT_EQ(r.text, "<s><|user|>Hi<|assistant|>");
  EXPECT_FALSE(r.add_special_tokens);
  EXPECT_TRUE(r.sampling.to_context);
  expect(
      "/v1/chat/completions",
      R"({"messages":[{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
             {"role":"assistant","content":null}],"rid":"r","n":2,"max_tokens":9,
             "max_completion_tokens":1,"chat_template_kwargs":{"x":1},"tools":[],"tool_choice":"auto",
             "parallel_tool_calls":true,"response_format":{"type":"text"}})",
      200,
      whole("chat.completion",
            chat_choice(0, "H", R"("finish_reason":"length","matched_stop":null)") + "," +
                chat_choice(1, "H", R"("finish_reason":"length","matched_stop":null)"),
            // "<|system|>" and the brackets of no special token are bytes
            usage(16, 2)));
  EXPECT_EQ(engine_.submitted().back().text, "<s><|system|>a b<|assistant|><|assistant|>");
  post("/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"So"}],
           "continue_final_message":true})");
  EXPECT_EQ(engine_.submitted().back().text, "<s><|user|>Hi<|assistant|>So");
  post("/v1/chat/completions", R"({"input_ids":[4,5]})");
  EXPECT_THAT(engine_.submitted().back().input_ids, ElementsAre(4, 5));
}

TEST_F(OpenAiTest, ChatStream) {
  engine_.set_script({.reply = "ab"});
  start();
  const std::string object = "chat.completion.chunk";
  const std::string role = R"({"role":"assistant","content":"","reasoning_content":null})";
  const auto text = [](std::string_view t) {
    return fmt::format(R"({{"content":"{}","reasoning_content":null}})", t);
  };
  expect_stream("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"Hi"}],"rid":"r","stream":true})",
                {chunk(object, delta_choice(0, role, kOpen)),
                 chunk(object, delta_choice(0, text("a"), kOpen)),
                 chunk(object, delta_choice(0, text("b"), kOpen)),
                 chunk(object, delta_choice(0, kLastDelta, kStop)), "[DONE]"});
  // Two choices, log-probabilities, usage.
  const std::string logprobs =
      R"({"content":[{"token":"a","bytes":[97],"logprob":-6.09375,"top_logprobs":[)"
      R"({"token":"a","bytes":[97],"logprob":-6.09375},{"token":"b","bytes":[98],"logprob":-7.09375}]}]})";
  const std::string end = R"("finish_reason":"length","matched_stop":null)";
  std::vector<std::string> expected;
  for (const int i : {0, 1}) {
    expected.push_back(chunk(object, delta_choice(i, role, kOpen)));
    expected.push_back(chunk(object, delta_choice(i, text("a"), kOpen, logprobs)));
    expected.push_back(chunk(object, delta_choice(i, kLastDelta, end)));
  }
  expected.push_back(chunk(object, "", usage(5, 2)));
  expected.push_back("[DONE]");
  expect_stream("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"Hi"}],"rid":"r","stream":true,"n":2,
                    "max_tokens":1,"logprobs":true,"top_logprobs":2,
                    "stream_options":{"include_usage":true}})",
                expected);
}

TEST_F(OpenAiTest, ChatLogprobs) {
  engine_.set_script({.reply = "\xc3\xa9"});  // two tokens, neither a character
  start();
  const Answer answer = post("/v1/chat/completions",
                             R"({"messages":[{"role":"user","content":"Hi"}],"logprobs":true,
                                 "max_tokens":2})");
  EXPECT_THAT(answer.body,
              HasSubstr(R"({"token":"�","bytes":[195],"logprob":-12.21875,"top_logprobs":[]})"));
}

TEST_F(OpenAiTest, CacheReport) {
  config_.answers.enable_cache_report = true;
  engine_.set_script({.reply = "k"});
  start();
  expect("/v1/completions", R"({"prompt":[1,2,3,4],"rid":"r","n":2})", 200,
         whole("text_completion", text_choice(0, "k", kStop) + "," + text_choice(1, "k", kStop),
               usage(4, 4, R"({"cached_tokens":2})")));
  EXPECT_EQ(post("/v1/completions", R"({"prompt":[1,2,3,4]})").header("X-Cache-Hit-Rate"),
            "0.5000");
}

TEST_F(OpenAiTest, Errors) {
  start();
  const auto shaped = [](std::string_view type, std::string_view message) {
    return fmt::format(R"({{"object":"error","message":"{}","type":"{}","param":null,"code":400}})",
                       message, type);
  };
  struct Case {
    std::string path, body, type, message;
  };
  const std::string chat = "/v1/chat/completions", text = "/v1/completions";
  const std::string bad = "Bad Request", refused = "BadRequestError";
  for (
      const Case& c : std::vector<Case>{
          {text, "{", bad, "the body is not valid JSON: incomplete JSON at byte 1"},
          {text, "{}", bad, "prompt is missing"},
          {text, R"({"prompt":null})", bad, "prompt is missing"},
          {text, R"({"prompt":5})", bad,
           "prompt must be a string, a list of strings, a list of token ids or a list of such "
           "lists, but it is the number 5"},
          {text, R"({"prompt":["a",1]})", bad,
           "prompt[1] must be a string, but it is the number 1"},
          {text, R"({"prompt":[[1],"a"]})", bad,
           R"(prompt[1] must be a list of token ids, but it is the string \"a\")"},
          {text, R"({"prompt":"a","max_tokens":"x"})", bad,
           R"(max_tokens must be an integer, but it is the string \"x\")"},
          {text, R"({"prompt":"a","stream_options":{"include_usage":1}})", bad,
           "stream_options.include_usage must be true or false, but it is the number 1"},
          {text, R"({"prompt":"a","logprobs":-1})", refused,
           "logprobs is -1: it must not be negative"},
          {text, R"({"prompt":"a","suffix":"b"})", refused,
           "suffix (fill in the middle) needs a model whose vocabulary has tokens for it, and this "
           "one's has none: leave it out"},
          {text, R"({"prompt":"a","lora_path":1})", bad,
           "lora_path must be a string, but it is the number 1"},
          {text, R"({"prompt":"a","n":0})", refused, "n must be at least 1"},
          {text, R"({"prompt":"a","response_format":{"type":"xml"}})", bad,
           R"(response_format.type is \"xml\": it must be text, json_object, json_schema or structural_tag)"},
          {chat, "{}", bad, "messages is missing"},
          {chat, R"({"messages":[]})", refused, "messages is empty"},
          {chat, R"({"messages":"hi"})", bad,
           R"(messages must be a list of messages, but it is the string \"hi\")"},
          {chat, R"({"messages":[{"content":"a"}]})", bad,
           "messages[0].role is missing: system, user, assistant, tool or developer"},
          {chat, R"({"messages":[{"role":"king","content":"a"}]})", bad,
           R"(messages[0].role is \"king\": it must be system, user, assistant, tool or developer)"},
          {chat, R"({"messages":[{"role":"user"}]})", bad, "messages[0].content is missing"},
          {chat, R"({"messages":[{"role":"user","content":5}]})", bad,
           "messages[0].content must be a string or a list of parts, but it is the number 5"},
          {chat,
           R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":5}}]}]})",
           bad,
           "messages[0].content[0].image_url must have the picture's URL, such as "
           "data:image/png;base64,DIGITS"},
          {chat, R"({"messages":[{"role":"user","content":[{"type":"video_url"}]}]})", bad,
           "messages[0].content[0] must have its file as video_url with a url, or its frames "
           "as video: [URL, ...] or video_url: data:video/jpeg;base64,FRAME,FRAME..."},
          {chat, R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", bad,
           "messages[0].content[0].text must be a string"},
          {chat, R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]})",
           bad, "tools[0].function is missing: an object with name and parameters"},
          {chat,
           R"({"messages":[{"role":"user","content":"a"}],"tools":[{"function":{"name":"f"}}],
               "tool_choice":{"type":"function","function":{"name":"g"}}})",
           refused, "Tool 'g' not found in tools list: tool_choice names it"},
          {chat,
           R"({"messages":[{"role":"user","content":"a"}],"tools":[{"function":{"name":"f"}}],
               "tool_choice":"required","regex":"a"})",
           refused,
           "tool_choice asks for a call and response_format (or another grammar) for something "
           "else; leave one out"},
          {chat, R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required"})",
           refused, "tool_choice asks for a call, but there are no tools"},
          {chat, R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":2})", refused,
           "top_logprobs needs logprobs: true"},
          {chat, R"({"messages":[{"role":"user","content":"a"}],"continue_final_message":true})",
           refused, "continue_final_message needs a last message whose role is assistant"},
      }) {
    expect(c.path, c.body, 400, shaped(c.type, c.message));
  }
  // The engine's names are the native ones.
  engine_.set_script({.submit_error = invalid_argument("max_new_tokens is -1, and so on")});
  expect(text, R"({"prompt":"a","max_tokens":-1})", 400,
         shaped(refused, "max_tokens is -1, and so on"));
  engine_.set_script({.submit_error = invalid_argument(
                          "min_new_tokens is 5, but must be in [0, max_new_tokens], which is 4")});
  expect(chat, R"({"messages":[{"role":"user","content":"a"}],"min_tokens":5,"max_tokens":4})", 400,
         shaped(refused, "min_tokens is 5, but must be in [0, max_tokens], which is 4"));
  engine_.set_script({.submit_error = invalid_argument("top_logprobs_num is 9, but so on")});
  expect(chat, R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":9})",
         400, shaped(refused, "top_logprobs is 9, but so on"));
  engine_.set_script({.submit_error = invalid_argument("max_new_tokens is too large: 500")});
  expect(text, R"({"prompt":"a","max_tokens":500})", 400,
         shaped(refused, "max_tokens is too large: 500"));
  expect(chat, R"({"messages":[{"role":"user","content":"a"}],"max_completion_tokens":500})", 400,
         shaped(refused, "max_completion_tokens is too large: 500"));
  expect(chat, R"({"messages":[{"role":"user","content":"a"}],"max_tokens":500})", 400,
         shaped(refused, "max_tokens / max_completion_tokens is too large: 500"));
  engine_.set_script({.submit_error = Status(StatusCode::kResourceExhausted, "full")});
  const Answer full = post(text, R"({"prompt":"a"})");
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.header("Retry-After"), "1");
  EXPECT_EQ(
      full.body,
      R"({"object":"error","message":"full","type":"ServiceUnavailableError","param":null,"code":503})");
  engine_.set_script({.error = Status(StatusCode::kInternal, "lost"), .error_after = 1});
  const auto events = stream(chat, R"({"messages":[{"role":"user","content":"a"}],"stream":true})");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(
      events[2],
      R"({"error":{"object":"error","message":"lost","type":"InternalServerError","param":null,"code":500}})");
}

// What would change the answer is refused by name; hints and accounting have no effect.
TEST_F(OpenAiTest, FieldsOfOpenAisOwnServersAreTakenOrRefused) {
  start();
  const auto ask = [&](std::string_view field) {
    return post("/v1/chat/completions",
                fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],{}}})", field));
  };
  for (const char* field :
       {R"("function_call":"auto")", R"("functions":[{"name":"f"}])",
        R"("moderation":{"model":"m"})", R"("web_search_options":{"search_context_size":"low"})",
        R"("modalities":["text","audio"])", R"("audio":{"voice":"alloy"})"}) {
    const Answer answer = ask(field);
    EXPECT_EQ(answer.status, 400) << field;
    const std::string name(field + 1, std::string_view(field).find('"', 1) - 1);
    EXPECT_THAT(answer.body, HasSubstr(name)) << field;
  }
  for (const char* field :
       {R"("modalities":["text"])", R"("prediction":{"type":"content","content":"x"})",
        R"("prompt_cache_key":"k")", R"("verbosity":"low")", R"("safety_identifier":"u")",
        R"("functions":[])", R"("function_call":null)", R"("store":true)"})
    EXPECT_EQ(ask(field).status, 200) << field;
}

TEST_F(OpenAiTest, NoChatTemplate) {
  config_.answers.chat_template.clear();
  start();
  const Answer answer =
      post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("--chat-template"));
}

// Asking again would be no better: the request is at fault, not a busy server.
TEST_F(OpenAiTest, WhatIsTooMuchForTheChatTemplateIsABadRequest) {
  config_.answers.chat_template = "{{ messages[0].content * 999999999 }}";
  start();
  const Answer answer =
      post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})");
  EXPECT_EQ(answer.status, 400) << answer.body;
  EXPECT_THAT(answer.body, HasSubstr("send fewer or shorter messages"));
}

TEST_F(OpenAiTest, Tokenize) {
  start();
  for (const char* path : {"/tokenize", "/v1/tokenize"}) {
    expect(path, R"({"prompt":"Hi"})", 200,
           R"({"tokens":[256,72,105],"count":3,"max_model_len":100})");
  }
  expect("/tokenize", R"({"prompt":["H",""],"add_special_tokens":false,"model":"x"})", 200,
         R"({"tokens":[[72],[]],"count":[1,0],"max_model_len":100})");
  expect("/tokenize", R"({"messages":[{"role":"user","content":"H"}]})", 200,
         R"({"tokens":[256,258,72,259],"count":4,"max_model_len":100})");
  for (const char* path : {"/detokenize", "/v1/detokenize"}) {
    expect(path, R"({"tokens":[256,72,105]})", 200, R"({"text":"Hi"})");
  }
  expect("/detokenize", R"({"tokens":[[72],[256,105]],"skip_special_tokens":false})", 200,
         R"({"text":["H","<s>i"]})");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[260]})").status, 400);
  EXPECT_EQ(post("/detokenize", "{}").status, 400);
  EXPECT_EQ(post("/tokenize", "{}").status, 400);
  EXPECT_EQ(post("/tokenize", R"({"prompt":5})").status, 400);
}

}  // namespace
}  // namespace espalier::server
