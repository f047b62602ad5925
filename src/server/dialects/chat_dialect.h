// What the dialects of chat share: requests become a ChatRequest with messages and tools as OpenAI
// has them, and answers of one sample are read as reasoning, text and calls. Internal to the room.
//
// Not thread-safe; a generation belongs to its connection's I/O thread.
#pragma once

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat_plan.h"
#include "server/generation.h"
#include "server/json_fields.h"
#include "server/json_view.h"

namespace espalier::server {

// The string member `name`; "" where there is none.
std::string_view string_member(const boost::json::object& object, std::string_view name);

// kInvalidArgument that names `where`, what it is and what is expected.
Status wrong_type(std::string_view where, std::string_view expected, const Json& found);

// {"type": "function", "function": {...}}, and a call of it as an assistant's message has it.
boost::json::object function_tool(std::string_view name, const Json* description,
                                  const Json* parameters);
boost::json::object function_call(std::string_view id, std::string_view name,
                                  std::string_view arguments);

// Sets the messages of a request and checks what every chat needs: some message, and tools where a
// call is required.
Status finish_chat(boost::json::array messages, ChatRequest& request);

// `text` with a call's arguments as a JSON value: what is no JSON (a call that the length cut)
// becomes a string.
Json arguments_value(std::string_view text);

// Whether a text is white space alone, as it stands in front of and between calls.
bool is_blank(std::string_view text);

// A chat of one sample.
class ChatDialectGeneration : public Generation {
 public:
  ChatDialectGeneration(ContextPtr context, net::ResponsePtr response, GenerationItem item,
                        const ChatRequest& request, const AnswerFormat& format);

 protected:
  const std::string& model() const { return model_; }
  ChatAnswer& answer() { return answer_; }
  // The id of call `index`, the same in every event; made with `prefix`.
  const std::string& call_id(size_t index, std::string_view prefix);
  // Whether the answer stopped behind calls, and waits for their results.
  bool waits_for_results(const Sample& sample) const;

 private:
  const std::string model_;
  ChatAnswer answer_;
  std::vector<std::string> call_ids_;
};

}  // namespace espalier::server
