// The body of POST /v1/responses: items become the messages of a chat. Internal to the room.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "server/dialects/chat_dialect.h"

namespace espalier::server {

struct ResponseRequest : ChatRequest {
  boost::json::array turns;  // of the input
  std::string input;         // its items as they were sent, a JSON array
  std::string instructions, previous_response_id;
  std::string conversation;  // its id; empty: none
  std::string owner;         // not of the body: the tenant whose key the request brought
  bool store = true;
  bool background = false;  // answered at once, and run without its client
  std::optional<std::string> effort;
  // Echoed, as JSON.
  std::string text_echo = R"({"format":{"type":"text"}})", tools_echo = "[]",
              choice_echo = "\"auto\"", metadata_echo = "{}";
};

// Appends what items say to a chat's messages; kInvalidArgument or kUnimplemented names the item.
Status read_items(const boost::json::array& items, std::string_view where,
                  boost::json::array& messages);

Result<ResponseRequest> parse_response_request(std::string_view body, bool& malformed);
std::string response_schema();

}  // namespace espalier::server
