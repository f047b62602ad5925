// Reranking as Jina, Cohere and llama.cpp's server have it: one object with the documents in order
// of their worth, where SGLang's /v1/rerank answers with a list.
#include "server/dialects/llama_cpp.h"
#include "server/embedding_generation.h"
#include "server/start_generation.h"

namespace espalier::server {
namespace {

std::shared_ptr<Generation> start_jina_rerank(const ContextPtr& context,
                                              const net::ResponsePtr& response,
                                              RerankRequest&& request) {
  request.format = RerankRequest::Format::kJina;
  return make_rerank_generation(context, response, std::move(request));
}

void handle_rerank_dialects(const ContextPtr& context, net::HttpRequest&& request,
                            net::ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOpenAi, parse_rerank,
                   start_jina_rerank);
}

}  // namespace

const std::vector<Route>& rerank_routes() {
  static const std::vector<Route> table = [] {
    const std::string prefix(kLlamaCppPrefix);
    std::vector<Route> all;
    for (const std::string& path :
         {std::string("/rerank"), std::string("/reranking"), std::string("/v1/reranking"),
          std::string("/v2/rerank"), prefix + "/rerank", prefix + "/reranking",
          prefix + "/v1/rerank", prefix + "/v1/reranking"})
      all.push_back({{"POST"},
                     path,
                     Access::kUser,
                     "Documents in order of their worth (Jina, Cohere, llama.cpp)",
                     handle_rerank_dialects,
                     "RerankRequest",
                     rerank_schema});
    return all;
  }();
  return table;
}

}  // namespace espalier::server
