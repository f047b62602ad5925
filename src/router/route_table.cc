#include "router/route_table.h"

namespace espalier::router {

std::span<const PassedRoute> passed_routes() {
  using enum ErrorStyle;
  // A session's prompt is what stands behind its earlier ones. Pictures stand at places of a text.
  static const IdsPlace native = {"text",
                                  "input_ids",
                                  {"input_ids", "input_embeds", "image_data", "video_data",
                                   "audio_data", "session_params", "session_id"}};
  static const IdsPlace completion = {
      "prompt", "prompt", {"echo", "suffix", "prompt_embeds", "session_params", "session_id"}};
  static const IdsPlace chat = {
      "", "input_ids", {"input_ids", "describe_grammar", "session_params", "session_id"}};
  static const std::vector<PassedRoute> table = {
      {"POST", "/generate", kOpenAi, {"text", "input_ids"}, true, true, &native},
      {"POST", "/v1/completions", kOpenAi, {"prompt"}, true, true, &completion},
      {"POST",
       "/v1/chat/completions",
       kOpenAi,
       {"tools", "messages", "input_ids"},
       true,
       true,
       &chat},
      {"POST", "/v1/responses", kOpenAi, {"tools", "instructions", "input"}},
      {"POST", "/v1/messages", kAnthropic, {"tools", "system", "messages"}},
      {"POST", "/v1/messages/count_tokens", kAnthropic, {"tools", "system", "messages"}, false},
      {"POST", "/api/chat", kOllama, {"tools", "messages"}},
      {"POST", "/api/generate", kOllama, {"system", "prompt"}},
      {"POST", "/api/embed", kOllama, {"input"}},
      {"POST", "/api/embeddings", kOllama, {"prompt"}},
      {"POST", "/api/show", kOllama, {}, false},
      {"GET", "/api/tags", kOllama, {}, false},
      {"GET", "/api/version", kOllama, {}, false},
      {"POST", "/completion", kOpenAi, {"prompt"}},
      {"POST", "/completions", kOpenAi, {"prompt"}},
      {"POST", "/chat/completions", kOpenAi, {"tools", "messages"}},
      {"POST", "/infill", kOpenAi, {"input_prefix", "prompt"}},
      {"POST", "/encode", kOpenAi, {"text", "input_ids"}},
      {"POST", "/classify", kOpenAi, {"text", "input_ids"}},
      {"POST", "/v1/embeddings", kOpenAi, {"input"}},
      {"POST", "/v1/classify", kOpenAi, {"input"}},
      {"POST", "/pooling", kOpenAi, {"input"}},
      {"POST", "/v1/moderations", kOpenAi, {"input"}},
      {"POST", "/v1/score", kOpenAi, {"query", "items"}},
      {"POST", "/v1/rerank", kOpenAi, {"query", "documents"}},
      {"POST", "/v2/rerank", kOpenAi, {"query", "documents"}},
      {"POST", "/rerank", kOpenAi, {"query", "documents"}},
      {"POST", "/reranking", kOpenAi, {"query", "documents"}},
      {"POST", "/tokenize", kOpenAi, {}, false},
      {"POST", "/v1/tokenize", kOpenAi, {}, false},
      {"POST", "/detokenize", kOpenAi, {}, false},
      {"POST", "/v1/detokenize", kOpenAi, {}, false},
      {"GET", "/get_model_info", kOpenAi, {}, false},
      {"GET", "/model_info", kOpenAi, {}, false},
      {"GET", "/get_server_info", kOpenAi, {}, false},
      {"GET", "/server_info", kOpenAi, {}, false},
  };
  return table;
}

}  // namespace espalier::router
