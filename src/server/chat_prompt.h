// The text of a chat's prompt, for those who have no engine: a router that tokenizes for its
// workers.
#pragma once

#include <string>

#include "base/status.h"
#include "server/chat_format.h"
#include "server/openai_request.h"

namespace espalier::server {

// As plan_chat (chat_plan.h) renders it for a request that brings messages without pictures and
// without describe_grammar. Pure; thread-safe. kInvalidArgument: a tool_choice that names no tool,
// or what the template refuses.
//
// REQUIRES request.messages.
Result<std::string> render_prompt(const ChatFormat& chat, const ChatRequest& request);

}  // namespace espalier::server
