#include "server/dialects/cache_mark.h"

#include <algorithm>

#include "server/dialects/chat_dialect.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

// What no message begins with, so that the prompts of two chats part where it stands.
constexpr std::string_view kElse = "\x01";

// The messages in front of the mark, and kElse in the place of what follows it.
json::array cut_at(const json::array& messages, const CacheMark& mark) {
  json::array out(messages.begin(), messages.begin() + static_cast<int64_t>(mark.num_messages));
  json::object last{{"role", "user"}, {"content", ""}};
  if (mark.text_bytes) {
    const json::object& marked = messages[mark.num_messages].get_object();
    last["role"] = marked.at("role");
    last["content"] = marked.at("content").get_string().subview(0, *mark.text_bytes);
    if (const Json* reasoning = marked.if_contains("reasoning_content"))
      last["reasoning_content"] = *reasoning;
  }
  last["content"].get_string().append(json::string_view(kElse.data(), kElse.size()));
  out.push_back(std::move(last));
  return out;
}

}  // namespace

Result<std::optional<CacheMark>> read_cache_control(const Json& value, std::string_view where) {
  if (value.is_null()) return std::optional<CacheMark>();
  const json::object* members = value.if_object();
  const std::string_view ttl = members != nullptr ? string_member(*members, "ttl") : "";
  const bool has_ttl = members != nullptr && members->contains("ttl");
  if (members == nullptr || string_member(*members, "type") != "ephemeral" ||
      (has_ttl && ttl != "5m" && ttl != "1h"))
    return fail(
        wrong_type(where, R"({"type": "ephemeral"}, with a ttl of "5m" or "1h" or none)", value));
  return std::optional(CacheMark{.text_bytes = {}, .hour = ttl == "1h"});
}

Result<std::optional<CacheMark>> read_mark_of(const json::object& block, const std::string& where) {
  const Json* value = block.if_contains("cache_control");
  if (value == nullptr) return std::optional<CacheMark>();
  return read_cache_control(*value, where + ".cache_control");
}

Result<int64_t> tokens_before(const Context& context, ChatRequest request,
                              const std::string& prompt, const CacheMark& mark) {
  request.messages = std::make_shared<const Json>(cut_at(request.messages->get_array(), mark));
  request.continue_final_message = false;
  ESP_ASSIGN_OR_RETURN(ChatPlan plan, plan_chat(context, request));
  auto end = std::ranges::mismatch(prompt, plan.prompt).in1;
  // A character's bytes stay together.
  while (end != prompt.begin() && end != prompt.end() &&
         (static_cast<unsigned char>(*end) >> 6) == 2)
    --end;
  plan.prompt.assign(prompt.begin(), end);
  ESP_ASSIGN_OR_RETURN(const size_t tokens, count_prompt_tokens(context, plan));
  return static_cast<int64_t>(tokens);
}

}  // namespace espalier::server
