// What a chat request's tools and reasoning mean for its prompt, its grammar and the reading of its
// answer. Internal to the room.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "server/chat_answer.h"
#include "server/context.h"
#include "server/images.h"
#include "server/openai_request.h"

namespace espalier::server {

// Renders the prompt (unless the request brings input_ids), sets the grammar that its tools ask for
// and where reasoning ends, and says how the answer is to be read. kInvalidArgument: a tool_choice
// that names no tool, or that contradicts another grammar.
struct ChatPlan {
  std::string prompt;
  std::vector<PictureSource> pictures;  // in the order of their placeholders
  AnswerFormat answer;
};
Result<ChatPlan> plan_chat(const Context& context, ChatRequest& request);

// A failure to compile the structural tag that was made of a request's tools, in terms of the tools
// that the client sent; any other status unchanged.
Status in_names_of_tools(const Status& status, bool tools_make_grammar);

// What a template that takes no parts writes for a picture.
std::string picture_mark(const Context& context, const ImagesInfo& images);

// The model's response template; null: it has none.
std::shared_ptr<const ResponseTemplate> response_template_of(const Context& context);

// Tokens of a rendered prompt with its pictures, as a generation counts them. kFailedPrecondition:
// this server has no tokenizer.
Result<size_t> count_prompt_tokens(const Context& context, const ChatPlan& plan);

}  // namespace espalier::server
