// The answers of /v1/completions and /v1/chat/completions.
#pragma once

#include <memory>

#include "server/generation.h"
#include "server/openai_request.h"

namespace espalier::server {

std::shared_ptr<Generation> make_completion_generation(ContextPtr context,
                                                       net::ResponsePtr response,
                                                       CompletionRequest&& request);
// `prompt`: the rendered messages; unused where the request has input_ids.
std::shared_ptr<Generation> make_chat_generation(ContextPtr context, net::ResponsePtr response,
                                                 ChatRequest&& request, std::string prompt);

}  // namespace espalier::server
