// Encoders of texts over sockets: what transformers makes of a query and documents
// (tests/golden/texts), and what these routes refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <boost/json/value_to.hpp>

#include "base/base64.h"
#include "base/mapped_file.h"
#include "engine/engine.h"
#include "net/client.h"
#include "server/server.h"

namespace espalier::server {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
const std::string kFolders = "tests/golden/texts/";

class TextEncoderServer : public ::testing::Test {
 protected:
  void start(const std::string& name) {
    server_.reset();
    auto engine = Engine::create({.model = {.model_path = kFolders + name},
                                  .compute = {.device = "cpu", .num_threads = 2},
                                  .schedule = {.chunked_prefill_size = 200}});
    ASSERT_TRUE(engine) << engine.error().to_string();
    engine_ = *std::move(engine);
    config_.port = 0;
    auto server = Server::create(config_, *engine_);
    ASSERT_TRUE(server) << server.error().to_string();
    server_ = *std::move(server);
    ASSERT_TRUE(server_->start().ok());
  }
  net::HttpResponse call(std::string_view path, const json::value& body) {
    auto client = net::HttpClient::create(fmt::format("http://127.0.0.1:{}", server_->port()));
    auto answer = client->post(path, json::serialize(body));
    EXPECT_TRUE(answer) << answer.error().to_string();
    return answer ? *answer : net::HttpResponse{};
  }
  json::value ask(std::string_view path, const json::value& body) {
    const net::HttpResponse answer = call(path, body);
    EXPECT_EQ(answer.status, 200) << path << ": " << answer.body;
    return answer.status == 200 ? json::parse(answer.body) : json::value();
  }
  void expect_refused(std::string_view path, const json::value& body, const char* message) {
    const net::HttpResponse answer = call(path, body);
    EXPECT_EQ(answer.status, 400) << path << ": " << answer.body;
    EXPECT_THAT(answer.body, HasSubstr(message));
  }
  // Scores of a query and documents, in their order, from the routes that have them.
  void expect_scores(const std::string& name) {
    const json::value golden =
        json::parse(read_text_file(kFolders + name + "/scores.json").value());
    const json::array& documents = golden.at("documents").as_array();
    const json::value query = golden.at("query");
    const auto expected = [&](size_t i) { return golden.at("scores").at(i).to_number<double>(); };
    const json::value scored = ask("/v1/score", {{"query", query}, {"items", documents}});
    ASSERT_EQ(scored.at("scores").as_array().size(), documents.size());
    for (size_t i = 0; i < documents.size(); ++i)
      EXPECT_NEAR(scored.at("scores").at(i).at(0).to_number<double>(), expected(i), 1e-4);
    const json::value ranked = ask("/rerank", {{"query", query}, {"documents", documents}});
    double before = 1e9;
    ASSERT_EQ(ranked.at("results").as_array().size(), documents.size());
    for (const json::value& result : ranked.at("results").as_array()) {
      const auto score = result.at("relevance_score").to_number<double>();
      EXPECT_NEAR(score, expected(static_cast<size_t>(result.at("index").as_int64())), 1e-4);
      EXPECT_LE(score, before);
      before = score;
    }
    const json::value best =
        ask("/v1/rerank", {{"query", query}, {"documents", documents}, {"top_n", 1}});
    EXPECT_EQ(best.as_array().size(), 1u);
    EXPECT_EQ(best.at(0).at("index"), ranked.at("results").at(0).at("index"));
  }
  void TearDown() override { server_.reset(); }

  ServerConfig config_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Server> server_;
};

TEST_F(TextEncoderServer, ACrossEncoderScoresPairsAsTransformers) {
  start("bert_rerank");
  expect_scores("bert_rerank");
  const json::value classes = ask("/v1/classify", {{"input", "the cat"}});
  const auto logit = ask("/classify", {{"text", "the cat"}}).at("embedding").at(0);
  EXPECT_NEAR(classes.at("data").at(0).at("probs").at(0).to_number<double>(),
              1 / (1 + std::exp(-logit.to_number<double>())), 1e-5);
  expect_refused("/v1/score", {{"query", {5}}, {"items", {{6}}}}, "send texts");
  expect_refused("/generate", {{"text", "the cat"}}, "does not generate text");
  expect_refused("/v1/rerank", {{"query", "a"}, {"documents", {"b"}}, {"instruct", "c"}},
                 "instruct");
}

// One request, 1,000 passages, in steps of 200 tokens.
TEST_F(TextEncoderServer, OneQueryWithAThousandPassages) {
  start("bert_rerank");
  json::array documents;
  for (int i = 0; i < 1000; ++i)
    documents.emplace_back(fmt::format("the {} eats {}", i % 2 == 0 ? "cat" : "dog", i % 10));
  const json::value ranked =
      ask("/rerank", {{"query", "what eats fish"}, {"documents", documents}});
  std::map<std::string, double> scores;  // equal documents have equal scores
  for (const json::value& result : ranked.at("results").as_array()) {
    const auto text = json::value_to<std::string>(result.at("document").at("text"));
    const auto score = result.at("relevance_score").to_number<double>();
    EXPECT_EQ(scores.emplace(text, score).first->second, score) << text;
  }
  EXPECT_EQ(ranked.at("results").as_array().size(), 1000u);
  EXPECT_EQ(scores.size(), 10u);
  EXPECT_LT(engine_->stats().steps.num_steps, 1000);
}

TEST_F(TextEncoderServer, LateInteractionComparesVectorsOfTokens) {
  start("colbert");
  expect_scores("colbert");
  const json::value pooled = ask("/pooling", {{"input", {"the cat", "a tree is green"}}});
  const json::array& data = pooled.at("data").as_array();
  ASSERT_EQ(data.size(), 2u);
  EXPECT_EQ(data[0].at("data").as_array().size(), 4u);  // [CLS] the cat [SEP]
  EXPECT_EQ(data[1].at("data").as_array().size(), 6u);
  EXPECT_EQ(data[1].at("data").at(0).as_array().size(), 16u);
  const json::value bytes = ask("/pooling", {{"input", "the cat"}, {"encoding_format", "base64"}});
  const auto text = json::value_to<std::string>(bytes.at("data").at(0).at("data"));
  std::string decoded;
  ASSERT_TRUE(decode_base64(text, decoded));
  EXPECT_EQ(decoded.size(), 4u * 16 * sizeof(float));
  expect_refused("/v1/embeddings", {{"input", "the cat"}}, "/pooling");
  expect_refused("/pooling", {{"input", "the cat"}, {"dimensions", 4}}, "cannot be shortened");
}

TEST_F(TextEncoderServer, EmbeddingsAreCutOnRequest) {
  start("bert_mean");
  std::string text;
  for (int i = 0; i < 60; ++i) text += "cat ";
  expect_refused("/v1/embeddings", {{"input", text}}, "62 tokens");
  const json::value cut = ask("/v1/embeddings", {{"input", text}, {"truncate_prompt_tokens", -1}});
  EXPECT_EQ(cut.at("usage").at("prompt_tokens"), 48);
  expect_refused("/v1/embeddings", {{"input", text}, {"truncate_prompt_tokens", 50}},
                 "truncate_prompt_tokens is 50");
  const json::value ids = ask("/v1/embeddings", {{"input", {{2, 40, 3}}}});
  EXPECT_EQ(ids.at("data").at(0).at("embedding").as_array().size(), 32u);
  const json::value ranked =
      ask("/v1/rerank", {{"query", "the cat"}, {"documents", {"a tree", "the cat"}}});
  EXPECT_EQ(ranked.at(0).at("index"), 1);  // the same text
  EXPECT_NEAR(ranked.at(0).at("score").to_number<double>(), 1, 1e-5);
  EXPECT_EQ(ask("/pooling", {{"input", "a"}}).at("data").at(0).at("data").as_array().size(), 32u);
}

}  // namespace
}  // namespace espalier::server
