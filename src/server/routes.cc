#include "server/routes.h"

#include "server/embedding_request.h"
#include "server/json_writer.h"
#include "server/native_request.h"
#include "server/openai_request.h"

namespace espalier::server {

const std::vector<Route>& routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"GET"}, "/", kOpen, "What is served here", handle_root, ""},
      {{"POST", "PUT"},
       "/generate",
       kUser,
       "Generate (native)",
       handle_generate,
       "GenerateRequest"},
      {{"POST"},
       "/v1/chat/completions",
       kUser,
       "Chat (OpenAI)",
       handle_chat,
       "ChatCompletionRequest"},
      {{"POST"},
       "/v1/completions",
       kUser,
       "Complete (OpenAI)",
       handle_completions,
       "CompletionRequest"},
      {{"POST", "PUT"},
       "/encode",
       kUser,
       "A text's vector (native)",
       handle_encode,
       "GenerateRequest"},
      {{"POST", "PUT"},
       "/classify",
       kUser,
       "A text's scores (native), as /encode",
       handle_encode,
       "GenerateRequest"},
      {{"POST"},
       "/v1/embeddings",
       kUser,
       "Embeddings (OpenAI)",
       handle_embeddings,
       "EmbeddingRequest"},
      {{"POST"}, "/v1/classify", kUser, "Classes of texts", handle_classify, "ClassifyRequest"},
      {{"POST"},
       "/v1/score",
       kUser,
       "How well items go with a query",
       handle_score,
       "ScoreRequest"},
      {{"POST", "PUT"},
       "/v1/rerank",
       kUser,
       "Documents in order of their worth for a query",
       handle_rerank,
       "RerankRequest"},
      {{"POST"},
       "/v1/grammar/compile",
       kUser,
       "Compile a grammar, or say what is wrong with it",
       handle_grammar_compile,
       "GrammarCompileRequest"},
      {{"GET"}, "/v1/models", kUser, "The model that is served", handle_models, ""},
      {{"GET"}, "/v1/models/{model*}", kUser, "One model", handle_model, ""},
      {{"POST"}, "/tokenize", kUser, "Text to token ids", handle_tokenize, "TokenizeRequest"},
      {{"POST"}, "/v1/tokenize", kUser, "Text to token ids", handle_tokenize, "TokenizeRequest"},
      {{"POST"}, "/detokenize", kUser, "Token ids to text", handle_detokenize, "DetokenizeRequest"},
      {{"POST"},
       "/v1/detokenize",
       kUser,
       "Token ids to text",
       handle_detokenize,
       "DetokenizeRequest"},
      {{"POST"},
       "/parse_function_call",
       kUser,
       "Read tool calls out of a text",
       handle_parse_function_call,
       "ParseFunctionCallRequest"},
      {{"POST"},
       "/separate_reasoning",
       kUser,
       "Split a text into reasoning and answer",
       handle_separate_reasoning,
       "SeparateReasoningRequest"},
      {{"POST"},
       "/exact_likelihood",
       kUser,
       "The probability of choices after a prompt, over all their spellings",
       handle_exact_likelihood,
       "ExactLikelihood"},
      {{"GET", "POST"},
       "/open_session",
       kUser,
       "Open a session, whose requests continue each other's tokens",
       handle_open_session,
       "OpenSession"},
      {{"GET", "POST"},
       "/close_session",
       kUser,
       "Close a session",
       handle_close_session,
       "CloseSession"},
      {{"GET"},
       "/kv_events",
       kAdmin,
       "What the prefix cache holds since, and no longer (from, limit, stream)",
       handle_kv_events,
       ""},
      {{"GET"}, "/health", kOpen, "200 while the server takes work", handle_health, ""},
      {{"GET"}, "/ping", kOpen, "As /health", handle_health, ""},
      {{"GET"},
       "/health_generate",
       kOpen,
       "200 once a token was generated",
       handle_health_generate,
       ""},
      {{"GET"}, "/model_info", kUser, "The model", handle_model_info, ""},
      {{"GET"}, "/get_model_info", kUser, "The model", handle_model_info, ""},
      {{"GET"}, "/server_info", kUser, "Settings and state", handle_server_info, ""},
      {{"GET"}, "/get_server_info", kUser, "Settings and state", handle_server_info, ""},
      {{"GET"}, "/v1/loads", kUser, "Load", handle_loads, ""},
      {{"GET"}, "/get_load", kUser, "Load, in few figures", handle_get_load, ""},
      {{"GET"}, "/metrics", kOpen, "Prometheus metrics", handle_metrics, ""},
      {{"GET"}, "/openapi.json", kOpen, "This description", handle_openapi, ""},
      {{"POST"},
       "/concate_and_append_request",
       kUser,
       "Join branches of SGLang's frontend",
       handle_concatenate,
       "ConcatenateRequest"},
      {{"GET", "POST"}, "/flush_cache", kAdmin, "Drop all cached prefixes", handle_flush_cache, ""},
      {{"POST"}, "/pause_generation", kAdmin, "Stop generating", handle_pause, "PauseGeneration"},
      {{"POST"}, "/continue_generation", kAdmin, "Go on generating", handle_continue, ""},
      {{"POST"}, "/abort_request", kAdmin, "Abort requests by rid", handle_abort, "AbortRequest"},
  };
  return table;
}

std::string openapi_json() {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("openapi", "3.1.0").key("info").begin_object();
  w.member("title", "Espalier").member("version", ESPALIER_VERSION).end_object();
  w.key("paths").begin_object();
  for (const Route& route : routes()) {
    std::string path = route.pattern;
    std::string param;
    if (const size_t open = path.find('{'); open != std::string::npos) {
      if (const size_t star = path.find("*}"); star != std::string::npos) path.erase(star, 1);
      param = path.substr(open + 1, path.find('}') - open - 1);
    }
    w.key(path).begin_object();
    for (std::string method : route.methods) {
      for (char& c : method) c = static_cast<char>(c - 'A' + 'a');
      w.key(method).begin_object().member("summary", route.summary);
      if (!param.empty()) {
        w.key("parameters").begin_array().begin_object().member("name", param);
        w.member("in", "path").member("required", true).key("schema").begin_object();
        w.member("type", "string").end_object().end_object().end_array();
      }
      if (!route.body_schema.empty()) {
        w.key("requestBody").begin_object().member("required", true).key("content").begin_object();
        w.key("application/json").begin_object().key("schema").begin_object();
        w.member("$ref", "#/components/schemas/" + route.body_schema);
        w.end_object().end_object().end_object().end_object();
      }
      if (route.access != Access::kOpen) {
        w.key("security").begin_array().begin_object().key("bearer").begin_array().end_array();
        w.end_object().end_array();
      }
      w.key("responses").begin_object().key("200").begin_object();
      w.member("description", "OK").end_object().end_object().end_object();
    }
    w.end_object();
  }
  w.end_object().key("components").begin_object().key("schemas").begin_object();
  w.key("GenerateRequest").raw(native_schema()).key("SamplingParams").raw(native_sampling_schema());
  w.key("CompletionRequest").raw(completion_schema());
  w.key("ChatCompletionRequest").raw(chat_schema());
  w.key("EmbeddingRequest").raw(embedding_schema()).key("ClassifyRequest").raw(classify_schema());
  w.key("ScoreRequest").raw(score_schema()).key("RerankRequest").raw(rerank_schema());
  w.key("TokenizeRequest").raw(tokenize_schema()).key("DetokenizeRequest").raw(detokenize_schema());
  w.key("GrammarCompileRequest").raw(grammar_compile_schema());
  w.key("ParseFunctionCallRequest").raw(parse_function_call_schema());
  w.key("SeparateReasoningRequest").raw(separate_reasoning_schema());
  w.key("AbortRequest").raw(abort_schema());
  w.key("ConcatenateRequest").raw(concatenate_schema());
  w.key("ExactLikelihood").raw(exact_likelihood_schema());
  w.key("OpenSession").raw(open_session_schema()).key("CloseSession").raw(close_session_schema());
  w.key("PauseGeneration").raw(pause_schema()).end_object();
  w.key("securitySchemes").begin_object().key("bearer").begin_object().member("type", "http");
  w.member("scheme", "bearer").end_object().end_object().end_object().end_object();
  return out;
}

}  // namespace espalier::server
