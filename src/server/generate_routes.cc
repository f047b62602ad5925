// POST /generate, /v1/completions, /v1/chat/completions, and the routes that make vectors and
// scores of texts: read the body, start its generation; and the call by which SGLang's frontend
// joins branches.
#include <boost/json/value.hpp>

#include "server/chat_plan.h"
#include "server/embedding_generation.h"
#include "server/errors.h"
#include "server/json_fields.h"
#include "server/native_generation.h"
#include "server/openai_generation.h"
#include "server/routes.h"
#include "server/start_generation.h"

namespace espalier::server {

using net::HttpRequest;
using net::ResponsePtr;

namespace {

std::shared_ptr<Generation> start_chat(const ContextPtr& context, const ResponsePtr& response,
                                       ChatRequest&& request) {
  auto plan = plan_chat(*context, request);
  if (!plan) {
    response->send(error_response(Dialect::kOpenAi, plan.error()));
    return nullptr;
  }
  return make_chat_generation(context, response, std::move(request), std::move(*plan));
}

struct ConcatenateBody {
  std::vector<std::string> src_rids;
  std::string dst_rid;
};

const Fields<ConcatenateBody>& concatenate_fields() {
  static const Fields<ConcatenateBody> fields = {
      field<ConcatenateBody>("src_rids", "the branches' states, in order",
                             &ConcatenateBody::src_rids),
      field<ConcatenateBody>("dst_rid", "the state that they are appended to",
                             &ConcatenateBody::dst_rid),
  };
  return fields;
}

// The ids name states of the client that no request has stated, and the client sends the joined
// text whole with its next call: it is computed then, exactly, from the cached common prefix on.
void handle_concatenate(const ContextPtr&, HttpRequest&& request, ResponsePtr response) {
  auto value = parse_json(request.body);
  if (!value) return response->send(malformed_response(value.error()));
  ConcatenateBody body;
  Status read = read_fields(concatenate_fields(), *value, "", body);
  if (read.ok() && (body.src_rids.empty() || body.dst_rid.empty()))
    read = invalid_argument("src_rids and dst_rid must name states");
  if (!read.ok()) return response->send(malformed_response(read));
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("success", true);
  w.member("message", "the joined text is computed with the next call").end_object();
  response->send(net::HttpResponse::json(200, std::move(out)));
}

std::string concatenate_schema() { return schema_of(concatenate_fields()); }

void handle_generate(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kNative, parse_native,
                   make_native_generation);
}

void handle_completions(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOpenAi,
                   parse_completion, make_completion_generation);
}

void handle_chat(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOpenAi, parse_chat,
                   start_chat);
}

void handle_encode(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kNative, parse_native,
                   make_encode_generation);
}

void handle_embeddings(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOpenAi,
                   parse_embedding, make_embedding_generation);
}

void handle_pooling(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOpenAi,
                   parse_embedding, make_pooling_generation);
}

void handle_classify(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOpenAi,
                   parse_classify, make_classify_generation);
}

void handle_score(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOpenAi, parse_score,
                   make_score_generation);
}

std::shared_ptr<Generation> start_rerank(const ContextPtr& context, const ResponsePtr& response,
                                         RerankRequest&& request) {
  if (context->config.answers.rerank_format == "jina")
    request.format = RerankRequest::Format::kJina;
  return make_rerank_generation(context, response, std::move(request));
}

void handle_rerank(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOpenAi, parse_rerank,
                   start_rerank);
}

std::vector<Route> text_answers() {
  using enum Access;
  return {
      {{"POST", "PUT"},
       "/generate",
       kUser,
       "Generate (native)",
       handle_generate,
       "GenerateRequest",
       native_schema},
      {{"POST"},
       "/v1/chat/completions",
       kUser,
       "Chat (OpenAI)",
       handle_chat,
       "ChatCompletionRequest",
       chat_schema},
      {{"POST"},
       "/invocations",
       kUser,
       "Chat (SageMaker), as /v1/chat/completions",
       handle_chat,
       "ChatCompletionRequest",
       chat_schema},
      {{"POST"},
       "/v1/completions",
       kUser,
       "Complete (OpenAI)",
       handle_completions,
       "CompletionRequest",
       completion_schema},
      {{"POST"},
       "/concate_and_append_request",
       kUser,
       "Join branches of SGLang's frontend",
       handle_concatenate,
       "ConcatenateRequest",
       concatenate_schema},
  };
}

std::vector<Route> vector_answers() {
  using enum Access;
  return {
      {{"POST", "PUT"},
       "/encode",
       kUser,
       "A text's vector (native)",
       handle_encode,
       "GenerateRequest",
       native_schema},
      {{"POST", "PUT"},
       "/classify",
       kUser,
       "A text's scores (native), as /encode",
       handle_encode,
       "GenerateRequest",
       native_schema},
      {{"POST"},
       "/v1/embeddings",
       kUser,
       "Embeddings (OpenAI)",
       handle_embeddings,
       "EmbeddingRequest",
       embedding_schema},
      {{"POST"},
       "/pooling",
       kUser,
       "Vectors of texts, or of their tokens (vLLM)",
       handle_pooling,
       "EmbeddingRequest",
       embedding_schema},
      {{"POST"},
       "/v1/classify",
       kUser,
       "Classes of texts",
       handle_classify,
       "ClassifyRequest",
       classify_schema},
      {{"POST"},
       "/v1/score",
       kUser,
       "How well items go with a query",
       handle_score,
       "ScoreRequest",
       score_schema},
      {{"POST", "PUT"},
       "/v1/rerank",
       kUser,
       "Documents in order of their worth for a query",
       handle_rerank,
       "RerankRequest",
       rerank_schema},
  };
}

}  // namespace

const std::vector<Route>& generate_routes() {
  static const std::vector<Route> table = [] {
    std::vector<Route> all = text_answers();
    for (Route& route : vector_answers()) all.push_back(std::move(route));
    return all;
  }();
  return table;
}

}  // namespace espalier::server
