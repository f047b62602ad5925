// The items of a stored conversation: what clients put into it and what responses add to it.
// Internal to the room; not thread-safe.
#pragma once

#include <boost/json.hpp>
#include <functional>
#include <string>
#include <string_view>

#include "server/json_fields.h"

namespace espalier::server {

// The items of a request as a conversation keeps them: each with a type and a status, a message's
// content as a list of parts. Errors are those of /v1/responses' input, and name `where`.
Result<boost::json::array> read_conversation_items(const Json& value, std::string_view where);

// Appends items. One without an id, or with one that is there, gets its type's prefix and what
// make_id returns.
void append_conversation_items(boost::json::array& conversation, boost::json::array items,
                               const std::function<std::string()>& make_id);

Status no_such_conversation(std::string_view id);

// The item of this id; the end where there is none.
boost::json::array::const_iterator find_conversation_item(const boost::json::array& conversation,
                                                          std::string_view id);

}  // namespace espalier::server
