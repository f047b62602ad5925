// cache_control of Anthropic's requests: where the last mark stands, and how many tokens of the
// prompt lie in front of it. The radix tree keeps every prefix, so a mark changes nothing in the
// cache; it decides what the answer's usage counts as written to the cache. Internal to the room.
//
// Pure functions; thread-safe.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "server/chat_plan.h"
#include "server/json_fields.h"

namespace espalier::server {

// A place in a chat's messages.
struct CacheMark {
  size_t num_messages = 0;           // that lie wholly in front of it
  std::optional<size_t> text_bytes;  // of the next message's content in front of it; none: nothing
  bool hour = false;                 // ttl "1h"
};

// The mark that `value` sets, without its place; none for null. kInvalidArgument names `where`.
Result<std::optional<CacheMark>> read_cache_control(const Json& value, std::string_view where);
// The mark of a block with a member cache_control; `where` is the block's.
Result<std::optional<CacheMark>> read_mark_of(const boost::json::object& block,
                                              const std::string& where);

// Tokens of `prompt` in front of `mark`. `request`: as it was before plan_chat() made the prompt of
// it. The template's own text between the mark and the next message counts as in front of it. Fails
// where the template refuses the messages in front of the mark by themselves.
Result<int64_t> tokens_before(const Context& context, ChatRequest request,
                              const std::string& prompt, const CacheMark& mark);

}  // namespace espalier::server
