#include "engine/requests/embedding.h"

#include <cmath>

namespace espalier {

Status check_use(const GenerateRequest& request, const ModelInfo& info) {
  if (!request.embed) {
    if (!info.pooled) return {};
    return error(StatusCode::kFailedPrecondition,
                 "{} does not generate text: it makes {} (/v1/embeddings, /encode, /classify, "
                 "/v1/score, /v1/rerank)",
                 info.architecture, info.pooled->is_scores ? "scores" : "embeddings");
  }
  if (!info.pooled)
    return error(StatusCode::kFailedPrecondition,
                 "{} generates text and makes no embeddings; start with --is-embedding to use it "
                 "so, or with an embedding model",
                 info.architecture);
  if (request.dimensions < 0 || request.dimensions > info.pooled->size)
    return invalid_argument("dimensions is {}, but the model's vectors have {}", request.dimensions,
                            info.pooled->size);
  if (request.dimensions > 0 && info.pooled->each_token)
    return invalid_argument("dimensions is {}, but vectors of tokens cannot be shortened",
                            request.dimensions);
  if (request.text_pair && !info.pooled->pairs)
    return error(StatusCode::kFailedPrecondition, "{} reads no pairs of texts", info.architecture);
  if (request.dimensions > 0 && info.pooled->is_scores)
    return invalid_argument("dimensions is {}, but scores cannot be shortened", request.dimensions);
  return {};
}

void shape_embedding(std::vector<float>& vector, const PooledInfo& info, int32_t dimensions) {
  if (dimensions > 0) vector.resize(static_cast<size_t>(dimensions));
  if (!info.normalize) return;
  double sum = 0;
  for (const float v : vector) sum += double{v} * double{v};
  if (sum == 0) return;  // no direction
  const double scale = 1 / std::sqrt(sum);
  for (float& v : vector) v = static_cast<float>(v * scale);
}

}  // namespace espalier
