// The answers of the routes that make vectors or scores of texts. None of them streams.
#pragma once

#include <memory>

#include "server/embedding_request.h"
#include "server/generation.h"
#include "server/native_request.h"

namespace espalier::server {

std::shared_ptr<Generation> make_encode_generation(ContextPtr context, net::ResponsePtr response,
                                                   NativeRequest&& request);
std::shared_ptr<Generation> make_embedding_generation(ContextPtr context, net::ResponsePtr response,
                                                      EmbeddingRequest&& request);
std::shared_ptr<Generation> make_pooling_generation(ContextPtr context, net::ResponsePtr response,
                                                    EmbeddingRequest&& request);
// These answer with an error, and are null, where the model cannot do it.
std::shared_ptr<Generation> make_classify_generation(ContextPtr context, net::ResponsePtr response,
                                                     EmbeddingRequest&& request);
std::shared_ptr<Generation> make_score_generation(ContextPtr context, net::ResponsePtr response,
                                                  ScoreBody&& body);
std::shared_ptr<Generation> make_rerank_generation(ContextPtr context, net::ResponsePtr response,
                                                   RerankRequest&& request);

}  // namespace espalier::server
