// /encode, /classify, /v1/embeddings, /v1/classify, /v1/score and /v1/rerank over sockets, with
// real models: those of tests/golden/pooled (ids in), and the one that ships, configured to make
// embeddings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <boost/json/value_to.hpp>
#include <cstring>

#include "base/base64.h"
#include "engine/engine.h"
#include "net/client.h"
#include "server/server.h"

namespace espalier::server {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

class EmbeddingServer : public ::testing::Test {
 protected:
  void start(const std::string& model, bool is_embedding = false, bool with_tokenizer = false,
             const std::string& chat_template = "") {
    config_.answers.chat_template = chat_template;
    start({.model = {.model_path = model,
                     .skip_tokenizer_init = !with_tokenizer,
                     .is_embedding = is_embedding},
           .compute = {.device = "cpu", .num_threads = 2},
           .cache = {.max_total_tokens = 1024}});
  }
  // The model that ships with random weights and a head for classes.
  void start_classifier(std::string_view labels) {
    start({.model = {.model_path = "share/default_model",
                     .load_format = LoadFormat::kDummy,
                     .json_model_override_args = fmt::format(
                         R"({{"architectures":["LlamaForSequenceClassification"],"id2label":{}}})",
                         labels)},
           .compute = {.device = "cpu", .num_threads = 2},
           .cache = {.max_total_tokens = 1024}});
  }
  void start(const EngineConfig& engine_config) {
    auto engine = Engine::create(engine_config);
    ASSERT_TRUE(engine) << engine.error().to_string();
    engine_ = *std::move(engine);
    config_.port = 0;
    auto server = Server::create(config_, *engine_);
    ASSERT_TRUE(server) << server.error().to_string();
    server_ = std::move(*server);
    ASSERT_TRUE(server_->start().ok());
  }
  net::HttpResponse call(std::string_view path, std::string_view body) {
    auto client = net::HttpClient::create(fmt::format("http://127.0.0.1:{}", server_->port()));
    auto answer = body.empty() ? client->get(path) : client->post(path, body);
    EXPECT_TRUE(answer) << answer.error().to_string();
    return answer ? *answer : net::HttpResponse{};
  }
  json::value ask(std::string_view path, std::string_view body = {}) {
    const net::HttpResponse answer = call(path, body);
    EXPECT_EQ(answer.status, 200) << path << ": " << answer.body;
    return answer.status == 200 && !answer.body.empty() ? json::parse(answer.body) : json::value();
  }
  void expect_refused(std::string_view path, std::string_view body, const char* message) {
    const net::HttpResponse answer = call(path, body);
    EXPECT_EQ(answer.status, 400) << path << ": " << answer.body;
    EXPECT_THAT(answer.body, HasSubstr(message));
  }
  std::vector<float> encode(std::vector<TokenId> ids) {
    return espalier::encode(*engine_, {.input_ids = std::move(ids)})->embedding;
  }
  static std::vector<float> floats(const json::value& list) {
    std::vector<float> out;
    for (const json::value& v : list.as_array()) out.push_back(v.to_number<float>());
    return out;
  }
  void TearDown() override { server_.reset(); }

  ServerConfig config_;
  std::unique_ptr<Engine> engine_;  // outlives the server
  std::unique_ptr<Server> server_;
};

TEST_F(EmbeddingServer, VectorsAsNumbersAndAsBase64) {
  start("tests/golden/pooled/qwen3_embedding");
  const json::value one = ask("/v1/embeddings", R"({"input":[5,6,7],"model":"mine"})");
  EXPECT_EQ(one.at("object"), "list");
  EXPECT_EQ(one.at("model"), "mine");
  EXPECT_EQ(one.at("data").at(0).at("object"), "embedding");
  EXPECT_EQ(floats(one.at("data").at(0).at("embedding")), encode({5, 6, 7}));
  EXPECT_EQ(one.at("usage").at("prompt_tokens"), 3);
  EXPECT_EQ(one.at("usage").at("total_tokens"), 3);

  const json::value two =
      ask("/v1/embeddings", R"({"input":[[5,6,7],[9,10]],"encoding_format":"base64","user":"u"})");
  for (const auto& [i, ids] : {std::pair{0, std::vector<TokenId>{5, 6, 7}}, {1, {9, 10}}}) {
    std::string bytes;
    ASSERT_TRUE(decode_base64(
        std::string(two.at("data").at(static_cast<size_t>(i)).at("embedding").as_string()), bytes));
    std::vector<float> numbers(bytes.size() / 4);
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    EXPECT_EQ(numbers, encode(ids));
    EXPECT_EQ(two.at("data").at(static_cast<size_t>(i)).at("index"), i);
  }
  EXPECT_EQ(ask("/v1/embeddings", R"({"input":[5,6],"dimensions":4})")
                .at("data")
                .at(0)
                .at("embedding")
                .as_array()
                .size(),
            4u);
  EXPECT_EQ(ask("/get_model_info").at("is_generation"), false);
  EXPECT_EQ(call("/health_generate", {}).status, 200);

  expect_refused("/v1/embeddings", R"({"input":[5],"dimensions":99})", "vectors have 32");
  expect_refused("/v1/embeddings", R"({"input":[5],"encoding_format":"int8"})",
                 "it must be float or base64");
  expect_refused("/v1/embeddings", R"({"model":"x"})", "input is missing");
  expect_refused("/v1/embeddings", R"({"input":[]})", "input must be");
  expect_refused("/v1/embeddings", R"({"input":[[]]})", "holds no token");
  expect_refused("/v1/embeddings", R"({"input":["a"," \n"]})", "input[1] is empty or white space");
  expect_refused("/v1/embeddings", R"({"input":[[5],[6]],"rid":["x"]})", "rid has 1 entry for 2");
  expect_refused("/v1/embeddings", R"({"input":[[5],[6]],"rid":["x","x"]})",
                 "Duplicate request IDs");
  expect_refused("/v1/embeddings", R"({"input":"text"})", "without a tokenizer");
  expect_refused("/generate", R"({"input_ids":[5,6]})", "does not generate text");
  expect_refused("/v1/completions", R"({"prompt":[5,6]})", "does not generate text");
  expect_refused("/v1/classify", R"({"input":[5,6]})", "no head for classes");
  expect_refused("/v1/score", R"({"query":[5],"items":[[6]]})", "/v1/rerank");
}

TEST_F(EmbeddingServer, NativeVectors) {
  start("tests/golden/pooled/mistral_mean");
  const json::value one = ask("/encode", R"({"input_ids":[5,6,7],"rid":"r"})");
  EXPECT_EQ(floats(one.at("embedding")), encode({5, 6, 7}));
  EXPECT_EQ(one.at("meta_info").at("id"), "r");
  EXPECT_EQ(one.at("meta_info").at("prompt_tokens"), 3);
  EXPECT_EQ(one.at("meta_info").at("finish_reason").at("type"), "length");
  const json::value batch = ask("/encode", R"({"input_ids":[[5,6,7],[9]],"dimensions":3})");
  EXPECT_EQ(batch.as_array().size(), 2u);
  EXPECT_EQ(floats(batch.at(1).at("embedding")).size(), 3u);
  expect_refused("/encode", R"({})", "text or input_ids is missing");
}

TEST_F(EmbeddingServer, Classes) {
  start("tests/golden/pooled/llama_classes");
  const std::vector<float> scores = encode({5, 6, 7});
  EXPECT_EQ(floats(ask("/classify", R"({"input_ids":[5,6,7]})").at("embedding")), scores);
  const json::value answer = ask("/v1/classify", R"({"input":[5,6,7]})");
  const json::value& first = answer.at("data").at(0);
  const std::vector<float> probabilities = floats(first.at("probs"));
  EXPECT_EQ(probabilities, softmax(scores));
  const char* labels[] = {"calm", "glad", "wild"};
  EXPECT_EQ(first.at("label"),
            labels[std::ranges::max_element(probabilities) - probabilities.begin()]);
  EXPECT_EQ(first.at("num_classes"), 3);
  expect_refused("/v1/classify", R"({"input":[[5],[6]],"rid":[]})", "rid has 0 entries for 2");
  const json::value both = ask("/v1/score", R"({"query":[5],"items":[[6,7],[8]]})");
  EXPECT_EQ(floats(both.at("scores").at(0)), scores);
  expect_refused("/v1/rerank", R"({"query":"a","documents":["b"]})", "/v1/rerank needs");
}

TEST_F(EmbeddingServer, RanksByTheAngleBetweenTexts) {
  start("share/default_model", true, true);
  const json::value ranked = ask("/v1/rerank", R"({"query":"the cat sat on the mat","documents":
      ["Zürich 1914!! {}","the cat sat on the mat","a dog lay on the rug"]})");
  ASSERT_EQ(ranked.as_array().size(), 3u);
  EXPECT_EQ(ranked.at(0).at("index"), 1);
  EXPECT_NEAR(ranked.at(0).at("score").to_number<float>(), 1.0f, 1e-5f);
  EXPECT_EQ(ranked.at(0).at("document"), "the cat sat on the mat");
  EXPECT_GE(ranked.at(1).at("score").to_number<float>(),
            ranked.at(2).at("score").to_number<float>());
  const json::value best = ask("/v1/rerank", R"({"query":"the cat","documents":["x","the cat"],
      "top_n":1,"return_documents":false})");
  ASSERT_EQ(best.as_array().size(), 1u);
  EXPECT_EQ(best.at(0).at("index"), 1);
  EXPECT_EQ(best.at(0).as_object().if_contains("document"), nullptr);
  const std::vector<float> text =
      floats(ask("/v1/embeddings", R"({"input":"the cat"})").at("data").at(0).at("embedding"));
  EXPECT_EQ(text, espalier::encode(*engine_, {.text = "the cat"})->embedding);
  expect_refused("/v1/rerank", R"({"query":"a","documents":[]})", "documents is empty");
  expect_refused("/v1/rerank", R"({"query":"a","documents":["b"],"top_n":0})", "at least 1");
  expect_refused("/v1/rerank", R"({"query":"a","documents":["b"],"instruct":"x"})", "instruct");
}

// Jina's, Cohere's and llama.cpp's shape, under their paths, and that of /v1/rerank where
// --rerank-format asks for it.
TEST_F(EmbeddingServer, RanksInOneObject) {
  const std::string body =
      R"({"model":"m","query":"the cat","documents":["x",{"text":"the cat"}]})";
  const auto expect_object = [&](std::string_view path) {
    const json::value answer = ask(path, body);
    ASSERT_TRUE(answer.is_object()) << path;
    EXPECT_EQ(answer.at("model"), "m");
    EXPECT_GT(answer.at("usage").at("total_tokens").to_number<int>(), 0);
    EXPECT_EQ(answer.at("results").as_array().size(), 2u);
    const json::value& best = answer.at("results").at(0);
    EXPECT_EQ(best.at("index"), 1);
    EXPECT_NEAR(best.at("relevance_score").to_number<float>(), 1.0f, 1e-5f);
    EXPECT_EQ(best.at("document").at("text"), "the cat");
  };
  start("share/default_model", true, true);
  for (const char* path :
       {"/rerank", "/reranking", "/v1/reranking", "/v2/rerank", "/llama.cpp/v1/rerank"})
    expect_object(path);
  EXPECT_TRUE(ask("/v1/rerank", body).is_array());
  const json::value one = ask("/rerank", R"({"query":"a","documents":["b","c"],"top_n":1,
      "return_documents":false})");
  EXPECT_EQ(one.at("results").as_array().size(), 1u);
  EXPECT_EQ(one.at("results").at(0).as_object().if_contains("document"), nullptr);
  expect_refused("/rerank", R"({"query":"a","documents":[{"title":"b"}]})",
                 "documents[0].text is missing");
  expect_refused("/rerank", R"({"query":"a","documents":["b"],"return_embeddings":true})",
                 "return_embeddings");
  TearDown();
  config_.answers.rerank_format = "jina";
  start("share/default_model", true, true);
  expect_object("/v1/rerank");
}

TEST_F(EmbeddingServer, ModerationsFlagTheLabelsThatAreNotSafe) {
  start_classifier(R"({"0":"hate","1":"SAFE"})");
  const json::value answer =
      ask("/v1/moderations", R"({"input":["one text","another one here","a third"],"model":"m"})");
  EXPECT_EQ(answer.at("model"), "m");
  EXPECT_THAT(std::string(answer.at("id").as_string()), HasSubstr("modr-"));
  ASSERT_EQ(answer.at("results").as_array().size(), 3u);
  const std::vector<float> expected =
      softmax(espalier::encode(*engine_, {.text = "another one here"})->embedding);
  const json::value& second = answer.at("results").at(1);
  EXPECT_EQ(second.at("category_scores").at("hate").to_number<float>(), expected[0]);
  EXPECT_EQ(second.at("category_scores").at("SAFE").to_number<float>(), expected[1]);
  EXPECT_EQ(second.at("categories").at("hate"), expected[0] >= 0.5f);
  EXPECT_EQ(second.at("flagged"), expected[0] >= 0.5f);
  EXPECT_EQ(second.at("category_applied_input_types").at("hate"), json::array({"text"}));
  const json::value parts =
      ask("/v1/moderations", R"({"input":[{"type":"text","text":"another one here"}]})");
  EXPECT_EQ(parts.at("results").at(0), second);

  // The same text with the other label safe has the opposite verdict.
  TearDown();
  config_.answers.moderation_safe_labels = "x,Hate";
  start_classifier(R"({"0":"hate","1":"SAFE"})");
  EXPECT_EQ(
      ask("/v1/moderations", R"({"input":"another one here"})").at("results").at(0).at("flagged"),
      expected[1] >= 0.5f);
  expect_refused("/v1/moderations", R"({"input":[]})", "input is empty");
  expect_refused("/v1/moderations", R"({})", "input is missing");
  expect_refused("/v1/moderations", R"({"input":[{"type":"image_url","image_url":{"url":"x"}}]})",
                 "input[0] is an image");
  TearDown();
  start("share/default_model", false, true);
  expect_refused("/v1/moderations", R"({"input":"a"})", "has no head for classes");
}

// The chance of yes against no behind a question, which is a chat or the template's own.
TEST_F(EmbeddingServer, AModelThatGeneratesIsAskedForYesOrNo) {
  constexpr auto kChat =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<{{ enable_thinking }}>";
  constexpr auto kReranker =
      "Only \"yes\" or \"no\". {{ instruct | default('Fits?') }} {{ messages[0]['content'] }}: "
      "{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}";
  const auto chance = [&](const std::string& prompt) {
    const Tokenizer& tokenizer = *engine_->tokenizer();
    const auto id = [&](const char* word) {
      return tokenizer.encode(word, {.add_special_tokens = false}).at(0);
    };
    const auto scores =
        score(*engine_, {.query_ids = tokenizer.encode(prompt, {.add_special_tokens = false}),
                         .item_ids = {{}},
                         .label_token_ids = {id("Yes"), id("No")},
                         .apply_softmax = true});
    EXPECT_TRUE(scores) << scores.error().to_string();
    return (*scores)[0][0];
  };
  const auto expect_ranked = [&](const std::string& extra, const auto& prompt_of) {
    const json::value ranked = ask("/v1/rerank", R"({"query":"the cat","documents":["a dog","the )"
                                                 R"(cat sat","rain"])" +
                                                     extra + "}");
    const std::vector<std::string> documents = {"a dog", "the cat sat", "rain"};
    ASSERT_EQ(ranked.as_array().size(), 3u);
    float before = 1;
    for (const json::value& entry : ranked.as_array()) {
      const auto score = entry.at("score").to_number<float>();
      const auto index = static_cast<size_t>(entry.at("index").as_int64());
      EXPECT_LE(score, before);
      EXPECT_NEAR(score, chance(prompt_of(documents.at(index))), 1e-5f);
      EXPECT_EQ(json::value_to<std::string>(entry.at("document")), documents.at(index));
      before = score;
    }
  };
  start("share/default_model", false, true, kChat);
  for (const std::string instruct : {"", "Which names an animal?"}) {
    const std::string task =
        instruct.empty()
            ? "Given a web search query, retrieve relevant passages that answer the query"
            : instruct;
    expect_ranked(instruct.empty() ? "" : R"(,"instruct":")" + instruct + "\"",
                  [&](const std::string& document) {
                    return "<system>Judge whether the Document meets the requirements based on the "
                           "Query and the Instruct provided. Note that the answer can only be "
                           "\"yes\" or \"no\".<user><Instruct>: " +
                           task + "\n<Query>: the cat\n<Document>: " + document + "<False>";
                  });
  }
  TearDown();
  start("share/default_model", false, true, kReranker);
  expect_ranked("", [](const std::string& document) {
    return "Only \"yes\" or \"no\". Fits? the cat: " + document;
  });
  expect_ranked(R"(,"instruct":"Animal?")", [](const std::string& document) {
    return "Only \"yes\" or \"no\". Animal? the cat: " + document;
  });
  TearDown();
  start("tests/golden/models/llama_tied_llama3");
  expect_refused("/v1/rerank", R"({"query":"a","documents":["b"]})", "needs a tokenizer");
}

TEST_F(EmbeddingServer, AModelThatGeneratesScoresLabels) {
  start("tests/golden/models/llama_tied_llama3");
  const json::value answer =
      ask("/v1/score", R"({"query":[5,6],"items":[[7],[8,9]],"label_token_ids":[20,30]})");
  const auto scores = score(
      *engine_, {.query_ids = {5, 6}, .item_ids = {{7}, {8, 9}}, .label_token_ids = {20, 30}});
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(floats(answer.at("scores").at(i)), (*scores)[i]);
  EXPECT_EQ(ask("/get_model_info").at("is_generation"), true);
  expect_refused("/v1/score", R"({"query":[5],"items":[[6]]})", "label_token_ids is missing");
  expect_refused("/v1/score", R"({"query":"a","items":[[6]],"label_token_ids":[1]})", "both");
  expect_refused("/v1/embeddings", R"({"input":[5]})", "start with --is-embedding");
  expect_refused("/encode", R"({"input_ids":[5]})", "start with --is-embedding");
}

TEST_F(EmbeddingServer, ADecoderCutsNoTexts) {
  start("tests/golden/pooled/qwen3_embedding");
  expect_refused("/v1/embeddings", R"({"input":[5,6],"truncate_prompt_tokens":1})",
                 "truncate_prompt_tokens is for encoders of texts");
}

}  // namespace
}  // namespace espalier::server
