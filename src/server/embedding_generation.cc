#include "server/embedding_generation.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/base64.h"
#include "server/images.h"
#include "server/request_ids.h"

namespace espalier::server {
namespace {

static_assert(std::endian::native == std::endian::little, "base64 vectors are little-endian");

// What they share: one sample of each prompt, and no stream.
class VectorGeneration : public Generation {
 public:
  VectorGeneration(ContextPtr context, net::ResponsePtr response, std::vector<GenerationItem> items,
                   const std::string& model)
      : Generation(std::move(context), std::move(response), std::move(items), false),
        model_(model.empty() ? this->context().model_name : model) {}

 protected:
  Dialect dialect() const override { return Dialect::kOpenAi; }
  void append_events(std::string&, const Sample&) override {}
  // There is no part of a vector: one that was aborted is none.
  bool is_failure(const FinishReason& finish) const override {
    return finish.type == FinishReason::Type::kAbort || Generation::is_failure(finish);
  }

  void begin_list(JsonWriter& w, std::string_view object = "list") const {
    w.begin_object().member("object", object).member("model", model_);
  }
  void end_list(JsonWriter& w) const {
    int64_t tokens = 0;
    for (const Sample& sample : samples()) tokens += sample.stats.prompt_tokens;
    w.key("usage").begin_object().member("prompt_tokens", tokens);
    w.member("completion_tokens", 0).member("total_tokens", tokens).end_object().end_object();
  }
  static void write_numbers(JsonWriter& w, const std::vector<float>& numbers) {
    w.begin_array();
    for (const float number : numbers) w.value(number);
    w.end_array();
  }
  static void write_base64(JsonWriter& w, const std::vector<float>& numbers) {
    const auto* const bytes = reinterpret_cast<const char*>(numbers.data());
    w.value(encode_base64({bytes, numbers.size() * sizeof(float)}));
  }
  void write_meta_info(JsonWriter& w, const Sample& sample) const {
    const RequestStats& s = sample.stats;
    w.begin_object().member("id", sample.rid).key("finish_reason").begin_object();
    w.member("type", "length").member("length", 0).end_object();
    w.member("prompt_tokens", s.prompt_tokens).member("cached_tokens", s.cached_tokens);
    w.member("weight_version", context().weight_version(s.weight_epoch));
    w.member("e2e_latency", to_seconds(s.finished - s.arrived)).end_object();
  }
  static int64_t now_unix() {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::seconds>(since).count();
  }

 private:
  const std::string model_;
};

// /encode and /classify.
class EncodeGeneration final : public VectorGeneration {
 public:
  EncodeGeneration(ContextPtr context, net::ResponsePtr response, std::vector<GenerationItem> items,
                   bool is_list)
      : VectorGeneration(std::move(context), std::move(response), std::move(items), ""),
        is_list_(is_list) {}

 protected:
  Dialect dialect() const override { return Dialect::kNative; }
  std::string whole_body() override {
    std::string out;
    JsonWriter w(out);
    if (is_list_) w.begin_array();
    for (const Sample& sample : samples()) {
      w.begin_object().key("embedding");
      write_numbers(w, sample.embedding);
      w.key("meta_info");
      write_meta_info(w, sample);
      w.end_object();
    }
    if (is_list_) w.end_array();
    return out;
  }

 private:
  const bool is_list_;
};

class EmbeddingGeneration final : public VectorGeneration {
 public:
  EmbeddingGeneration(ContextPtr context, net::ResponsePtr response,
                      std::vector<GenerationItem> items, const EmbeddingRequest& request)
      : VectorGeneration(std::move(context), std::move(response), std::move(items), request.model),
        base64_(request.base64) {}

 protected:
  std::string whole_body() override {
    std::string out;
    JsonWriter w(out);
    begin_list(w);
    w.key("data").begin_array();
    for (const Sample& sample : samples()) {
      w.begin_object().member("object", "embedding").member("index", sample.index);
      w.key("embedding");
      base64_ ? write_base64(w, sample.embedding) : write_numbers(w, sample.embedding);
      w.end_object();
    }
    w.end_array();
    end_list(w);
    return out;
  }

 private:
  const bool base64_;
};

// vLLM's /pooling: a vector, scores, or a vector of each token.
class PoolingGeneration final : public VectorGeneration {
 public:
  PoolingGeneration(ContextPtr context, net::ResponsePtr response,
                    std::vector<GenerationItem> items, const EmbeddingRequest& request)
      : VectorGeneration(std::move(context), std::move(response), std::move(items), request.model),
        base64_(request.base64) {}

 protected:
  std::string whole_body() override {
    std::string out;
    JsonWriter w(out);
    begin_list(w);
    w.member("id", "pool-" + samples()[0].rid).member("created", now_unix());
    w.key("data").begin_array();
    for (const Sample& sample : samples()) {
      w.begin_object().member("index", sample.index).member("object", "pooling").key("data");
      write_data(w, sample.embedding);
      w.end_object();
    }
    w.end_array();
    end_list(w);
    return out;
  }

 private:
  void write_data(JsonWriter& w, const std::vector<float>& numbers) const {
    const PooledInfo& pooled = *context().engine.model_info().pooled;
    if (base64_) return write_base64(w, numbers);
    if (!pooled.each_token) return write_numbers(w, numbers);
    w.begin_array();
    const auto width = static_cast<std::ptrdiff_t>(pooled.size);
    for (auto at = numbers.begin(); at != numbers.end(); at += width)
      write_numbers(w, std::vector<float>(at, at + width));
    w.end_array();
  }

  const bool base64_;
};

class ClassifyGeneration final : public VectorGeneration {
 public:
  using VectorGeneration::VectorGeneration;

 protected:
  std::string whole_body() override {
    const PooledInfo& pooled = *context().engine.model_info().pooled;
    const std::vector<std::string>& labels = pooled.labels;
    std::string out;
    JsonWriter w(out);
    begin_list(w);
    w.member("id", "classify-" + samples()[0].rid).member("created", now_unix());
    w.key("data").begin_array();
    for (const Sample& sample : samples()) {
      const std::vector<float> probabilities =
          pooled.sigmoid ? std::vector{fitting_score(sample.embedding, pooled)}
                         : softmax(sample.embedding);
      const auto best = std::ranges::max_element(probabilities) - probabilities.begin();
      w.begin_object().member("index", sample.index);
      w.member("label", labels.at(static_cast<size_t>(best))).key("probs");
      write_numbers(w, probabilities);
      w.member("num_classes", probabilities.size()).end_object();
    }
    w.end_array();
    end_list(w);
    return out;
  }
};

class ScoreGeneration final : public VectorGeneration {
 public:
  ScoreGeneration(ContextPtr context, net::ResponsePtr response, std::vector<GenerationItem> items,
                  ScoreBody&& body)
      : VectorGeneration(std::move(context), std::move(response), std::move(items), body.model),
        score_(std::move(body.score)),
        with_logprobs_(body.return_token_logprobs) {}

 protected:
  std::string whole_body() override {
    std::string out;
    JsonWriter w(out);
    begin_list(w, "scoring");
    w.key("scores").begin_array();
    const auto& pooled = context().engine.model_info().pooled;
    const bool late = pooled && pooled->each_token;  // the first sample is the query
    for (const Sample& sample : std::span(samples()).subspan(late ? 1 : 0)) {
      write_numbers(
          w, late ? std::vector{max_sim(samples()[0].embedding, sample.embedding, pooled->size)}
             : pooled && pooled->sigmoid
                 ? std::vector{fitting_score(sample.embedding, *pooled)}
                 : scores_of(score_, sample.embedding, sample.next_logprobs));
    }
    w.end_array();
    if (with_logprobs_) write_logprobs(w);
    end_list(w);
    return out;
  }

 private:
  void write_logprobs(JsonWriter& w) const {
    w.key("token_logprobs").begin_array();
    for (const Sample& sample : samples()) {
      std::vector<float> logprobs;
      for (const auto& [id, logprob] : sample.next_logprobs->wanted) logprobs.push_back(logprob);
      write_numbers(w, logprobs);
    }
    w.end_array();
  }

  const ScoreRequest score_;
  const bool with_logprobs_;
};

// By the cosine to the query's vector, which is the first sample, or by the best matches of its
// tokens' vectors; by the head's score of query and document together; by how much likelier the
// answer yes is than no.
enum class RankBy { kCosine, kTokens, kHead, kAnswer };

bool has_query(RankBy by) { return by == RankBy::kCosine || by == RankBy::kTokens; }

class RerankGeneration final : public VectorGeneration {
 public:
  RerankGeneration(ContextPtr context, net::ResponsePtr response, std::vector<GenerationItem> items,
                   RerankRequest&& request, RankBy by)
      : VectorGeneration(std::move(context), std::move(response), std::move(items), request.model),
        request_(std::move(request)),
        by_(by) {}

 protected:
  std::string whole_body() override {
    const size_t count = request_.documents.size();
    std::vector<float> scores(count);
    for (size_t i = 0; i < count; ++i) scores[i] = score_of(i);
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    if (request_.top_n) {
      order.resize(std::min(count, static_cast<size_t>(*request_.top_n)));
    }
    std::string out;
    JsonWriter w(out);
    request_.format == RerankRequest::Format::kJina ? write_object(w, order, scores)
                                                    : write_list(w, order, scores);
    return out;
  }

 private:
  void write_list(JsonWriter& w, const std::vector<size_t>& order,
                  const std::vector<float>& scores) const {
    w.begin_array();
    for (const size_t i : order) {
      w.begin_object().member("score", scores[i]);
      if (request_.return_documents) w.member("document", request_.documents[i]);
      w.member("index", i).key("meta_info");
      write_meta_info(w, sample_of(i));
      w.end_object();
    }
    w.end_array();
  }
  void write_object(JsonWriter& w, const std::vector<size_t>& order,
                    const std::vector<float>& scores) const {
    begin_list(w);
    w.member("id", "rerank-" + samples()[0].rid).key("results").begin_array();
    for (const size_t i : order) {
      w.begin_object().member("index", i).member("relevance_score", scores[i]);
      if (request_.return_documents)
        w.key("document").begin_object().member("text", request_.documents[i]).end_object();
      w.end_object();
    }
    w.end_array();
    end_list(w);
  }
  const Sample& sample_of(size_t document) const {
    return samples()[document + (has_query(by_) ? 1 : 0)];
  }
  float score_of(size_t document) const {
    const Sample& sample = sample_of(document);
    const std::vector<float>& vector = sample.embedding;
    const auto& pooled = context().engine.model_info().pooled;
    if (by_ == RankBy::kCosine) return cosine(samples()[0].embedding, vector);
    if (by_ == RankBy::kTokens) return max_sim(samples()[0].embedding, vector, pooled->size);
    if (by_ == RankBy::kAnswer)
      return scores_of({.apply_softmax = true}, {}, sample.next_logprobs)[0];
    return fitting_score(vector, *pooled);
  }

  const RerankRequest request_;
  const RankBy by_;
};

// The tokens of yes and no, as the vocabulary has them.
Result<std::vector<TokenId>> answer_tokens(const Tokenizer& tokenizer) {
  for (const auto& [yes, no] : {std::pair{"yes", "no"}, std::pair{"Yes", "No"}}) {
    std::vector<TokenId> ids;
    for (const char* word : {yes, no}) {
      const auto of_word = tokenizer.encode(word, {.add_special_tokens = false});
      if (of_word.size() == 1) ids.push_back(of_word[0]);
    }
    if (ids.size() == 2) return ids;
  }
  return fail(error(StatusCode::kFailedPrecondition,
                    "/v1/rerank asks for yes or no, and the vocabulary has no single tokens for "
                    "them; /v1/score takes label_token_ids"));
}

Result<std::vector<GenerationItem>> questions(const Context& context,
                                              const RerankRequest& request) {
  const Tokenizer* tokenizer = context.engine.tokenizer();
  if (tokenizer == nullptr) {
    return fail(error(StatusCode::kFailedPrecondition, "/v1/rerank needs a tokenizer"));
  }
  if (!context.chat) return fail(context.chat_missing);
  ScoreRequest score;
  score.items = {""};
  ESP_ASSIGN_OR_RETURN(score.label_token_ids, answer_tokens(*tokenizer));
  ESP_ASSIGN_OR_RETURN(const auto prompts, score_prompts(score, context.engine.model_info()));
  std::vector<GenerationItem> items(request.documents.size(), {.request = prompts[0]});
  for (size_t i = 0; i < items.size(); ++i) {
    GenerateRequest& question = items[i].request;
    ESP_ASSIGN_OR_RETURN(question.text, context.chat->render_rerank(
                                            request.query, request.documents[i], request.instruct));
    question.add_special_tokens = false;  // the template has put them
  }
  return items;
}

GenerationItem text_item(std::string text) {
  GenerationItem item;
  item.request.embed = true;
  item.request.text = std::move(text);
  return item;
}

// The query, where it has a vector of its own, and the documents, each behind the query where that
// has none.
std::vector<GenerationItem> rerank_items(const RerankRequest& request, const PooledInfo& pooled,
                                         bool has_query) {
  using TextRole = GenerateRequest::TextRole;
  std::vector<GenerationItem> items;
  if (has_query) {
    items.push_back(text_item(request.query));
    items[0].request.text_role = TextRole::kQuery;
  }
  for (const std::string& document : request.documents) {
    items.push_back(text_item(has_query      ? document
                              : pooled.pairs ? request.query
                                             : request.query + document));
    if (has_query) items.back().request.text_role = TextRole::kDocument;
    if (!has_query && pooled.pairs) items.back().request.text_pair = document;
  }
  for (GenerationItem& item : items) item.request.truncate_to = request.truncate_to;
  return items;
}

std::vector<GenerationItem> items_of(EmbeddingRequest& request) {
  std::vector<GenerationItem> items;
  const size_t n = request.input.size();
  for (size_t i = 0; i < n; ++i) {
    GenerationItem& item = items.emplace_back(text_item(std::move(request.input[i].text)));
    item.request.input_ids = std::move(request.input[i].ids);
    item.request.dimensions = request.dimensions;
    item.request.truncate_to = request.truncate_to;
    item.request.priority = request.priority.value_or(0);
    item.request.rid = rid_of(request.rid, i, n);
  }
  return items;
}

std::nullptr_t refuse(const net::ResponsePtr& response, const Status& why) {
  response->send(error_response(Dialect::kOpenAi, why));
  return nullptr;
}

}  // namespace

std::shared_ptr<Generation> make_encode_generation(ContextPtr context, net::ResponsePtr response,
                                                   NativeRequest&& request) {
  std::vector<GenerationItem> items;
  for (NativeItem& native : request.items) {
    GenerationItem& item = items.emplace_back();
    item.request = std::move(native.request);
    item.request.images = image_inputs(media_access(*context), std::move(native.pictures));
    item.request.embed = true;
    item.request.sampling = {};
    item.request.return_logprob = false;
  }
  return std::make_shared<EncodeGeneration>(std::move(context), std::move(response),
                                            std::move(items), request.is_list);
}

std::shared_ptr<Generation> make_embedding_generation(ContextPtr context, net::ResponsePtr response,
                                                      EmbeddingRequest&& request) {
  const ModelInfo& info = context->engine.model_info();
  if (info.pooled && info.pooled->each_token) {
    return refuse(response, error(StatusCode::kFailedPrecondition,
                                  "{} makes a vector of each token; /pooling gives them, and "
                                  "/v1/rerank and /v1/score compare them",
                                  info.architecture));
  }
  std::vector<GenerationItem> items = items_of(request);
  return std::make_shared<EmbeddingGeneration>(std::move(context), std::move(response),
                                               std::move(items), request);
}

std::shared_ptr<Generation> make_pooling_generation(ContextPtr context, net::ResponsePtr response,
                                                    EmbeddingRequest&& request) {
  std::vector<GenerationItem> items = items_of(request);
  return std::make_shared<PoolingGeneration>(std::move(context), std::move(response),
                                             std::move(items), request);
}

std::shared_ptr<Generation> make_classify_generation(ContextPtr context, net::ResponsePtr response,
                                                     EmbeddingRequest&& request) {
  const ModelInfo& info = context->engine.model_info();
  if (!info.pooled || !info.pooled->is_scores) {
    return refuse(response, error(StatusCode::kFailedPrecondition,
                                  "{} has no head for classes; /v1/classify needs a model for "
                                  "sequence classification",
                                  info.architecture));
  }
  std::vector<GenerationItem> items = items_of(request);
  return std::make_shared<ClassifyGeneration>(std::move(context), std::move(response),
                                              std::move(items), request.model);
}

std::shared_ptr<Generation> make_score_generation(ContextPtr context, net::ResponsePtr response,
                                                  ScoreBody&& body) {
  const bool generates = !context->engine.model_info().pooled;
  if (body.return_token_logprobs && !generates) {
    return refuse(response, invalid_argument("return_token_logprobs is for models that generate"));
  }
  if (body.score.items.empty() && body.score.item_ids.empty()) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("object", "scoring");
    w.member("model", body.model.empty() ? context->model_name : body.model);
    w.key("scores").begin_array().end_array().key("usage").begin_object();
    w.member("prompt_tokens", 0).member("completion_tokens", 0).member("total_tokens", 0);
    w.end_object().end_object();
    response->send(net::HttpResponse::json(200, std::move(out)));
    return nullptr;
  }
  auto prompts = score_prompts(body.score, context->engine.model_info());
  if (!prompts) return refuse(response, prompts.error());
  std::vector<GenerationItem> items;
  for (GenerateRequest& prompt : *prompts) items.emplace_back().request = std::move(prompt);
  return std::make_shared<ScoreGeneration>(std::move(context), std::move(response),
                                           std::move(items), std::move(body));
}

std::shared_ptr<Generation> make_rerank_generation(ContextPtr context, net::ResponsePtr response,
                                                   RerankRequest&& request) {
  const ModelInfo& info = context->engine.model_info();
  if (!info.pooled) {
    auto items = questions(*context, request);
    if (!items) return refuse(response, items.error());
    return std::make_shared<RerankGeneration>(std::move(context), std::move(response),
                                              *std::move(items), std::move(request),
                                              RankBy::kAnswer);
  }
  if (info.pooled->is_scores && info.pooled->size > 2) {
    return refuse(response, error(StatusCode::kFailedPrecondition,
                                  "/v1/rerank needs a model that generates, makes embeddings or "
                                  "one score of a text, and {} does not",
                                  info.architecture));
  }
  if (!request.instruct.empty()) {
    return refuse(response, invalid_argument(
                                "instruct is for models that generate; put it before the query"));
  }
  const RankBy by = info.pooled->is_scores    ? RankBy::kHead
                    : info.pooled->each_token ? RankBy::kTokens
                                              : RankBy::kCosine;
  std::vector<GenerationItem> items = rerank_items(request, *info.pooled, has_query(by));
  return std::make_shared<RerankGeneration>(std::move(context), std::move(response),
                                            std::move(items), std::move(request), by);
}

}  // namespace espalier::server
