// The answers of /v1/completions and /v1/chat/completions.
#pragma once

#include <memory>

#include "server/chat_plan.h"
#include "server/generation.h"
#include "server/openai_request.h"

namespace espalier::server {

std::shared_ptr<Generation> make_completion_generation(ContextPtr context,
                                                       net::ResponsePtr response,
                                                       CompletionRequest&& request);
// The members token, bytes and logprob of a token. The bytes are the token's own, which its text
// cannot show where they are part of a character.
void write_token(JsonWriter& w, const Context& context, TokenId id, float logprob);
// A token's log-probability with those of the best tokens in its place: {"token", "bytes",
// "logprob", "top_logprobs"}.
// origin: where it is stated, it is written with the ids of the token and of its alternatives.
void write_logprob_entry(JsonWriter& w, const Context& context, const LogprobEntry& entry,
                         std::optional<TokenOrigin> origin = std::nullopt);
// The one item of a chat's generation, in any dialect. The prompt is moved out of both.
GenerationItem chat_item(const Context& context, ChatRequest& request, ChatPlan& plan);
// `plan`: what plan_chat() made of the request; its prompt is unused where there are input_ids.
std::shared_ptr<Generation> make_chat_generation(ContextPtr context, net::ResponsePtr response,
                                                 ChatRequest&& request, ChatPlan&& plan);

}  // namespace espalier::server
