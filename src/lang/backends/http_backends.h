// Back ends behind HTTP: an Espalier or SGLang server, OpenAI-compatible APIs, Anthropic's. Each is
// thread-safe and owns its connections, which its destructor closes after it has cancelled all
// calls.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "lang/backend.h"
#include "lang/backends/http_calls.h"

namespace espalier::lang {

// ---- /generate: Espalier, SGLang ----
struct EndpointConfig {
  std::string base_url = "http://127.0.0.1:30000";
  std::string api_key;
  std::string chat_template;  // by name (chat_frames.h); "": by the model that the server reports
  HttpLimits limits;
};
// Asks the server for its model. kUnavailable when there is none.
Result<std::shared_ptr<Backend>> runtime_endpoint(const EndpointConfig& config);
Result<std::shared_ptr<Backend>> runtime_endpoint(const std::string& base_url);

// Dollars for a million tokens.
struct Prices {
  double input = 0, cached_input = 0, output = 0;
};

// ---- /v1/completions and /v1/chat/completions ----
struct OpenAiConfig {
  std::string model;
  std::string base_url = "https://api.openai.com/v1";
  std::string api_key;
  bool is_chat = true;
  // Servers that take more than OpenAI's fields (ours, SGLang's): regex, ebnf, top_k, min_p, and
  // continue_final_message, by which a chat message may begin with text before its gen. Completion
  // models then select by the log-probabilities of an echo.
  bool has_extensions = false;
  Prices prices;
  HttpLimits limits;
};
Result<std::shared_ptr<Backend>> openai_backend(const OpenAiConfig& config);

// ---- /v1/messages ----
struct AnthropicConfig {
  std::string model;
  std::string base_url = "https://api.anthropic.com";
  std::string api_key;
  Prices prices;
  HttpLimits limits;
};
// A message may begin with text before its gen: the API goes on with it.
Result<std::shared_ptr<Backend>> anthropic_backend(const AnthropicConfig& config);

}  // namespace espalier::lang
