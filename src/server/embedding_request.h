// The bodies of /v1/embeddings, /v1/classify, /v1/score and /v1/rerank.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/requests/score.h"
#include "server/openai_request.h"

namespace espalier::server {

// /v1/embeddings and /v1/classify.
struct EmbeddingRequest {
  std::string model;  // echoed
  std::vector<TextOrIds> input;
  bool base64 = false;  // encoding_format: little-endian float32 in base64, not a list of numbers
  int32_t dimensions = 0;
  int32_t truncate_to = 0;  // GenerateRequest's
  PerItem<std::string> rid;
  std::optional<int32_t> priority;
};

struct ScoreBody {
  std::string model;
  bool return_token_logprobs = false;  // beside the scores
  ScoreRequest score;
};

struct RerankRequest {
  std::string model;  // echoed
  std::string query;
  std::vector<std::string> documents;
  std::optional<int32_t> top_n;  // the best so many
  bool return_documents = true;
  int32_t truncate_to = 0;  // GenerateRequest's
  std::string instruct;     // what makes a document fit, of a model that generates
  // How the answer is written: SGLang's list, or the object of Jina, Cohere and llama.cpp. The
  // caller of parse_rerank() sets it.
  enum class Format { kSglang, kJina } format = Format::kSglang;
};

// As parse_native: `malformed` states the kind of failure.
Result<EmbeddingRequest> parse_embedding(std::string_view body, bool& malformed);
Result<EmbeddingRequest> parse_classify(std::string_view body, bool& malformed);
Result<ScoreBody> parse_score(std::string_view body, bool& malformed);
Result<RerankRequest> parse_rerank(std::string_view body, bool& malformed);

std::string embedding_schema();
std::string classify_schema();
std::string score_schema();
std::string rerank_schema();

}  // namespace espalier::server
