// What POST /v1/chat/completions with `store` has kept: GET /v1/chat/completions, and one of them
// by its id.
#include <algorithm>
#include <boost/json.hpp>

#include "server/dialects/response_store.h"
#include "server/dialects/stored_owner.h"
#include "server/dialects/stored_page.h"
#include "server/json_view.h"
#include "server/openai_request.h"
#include "server/routes.h"

namespace espalier::server {

namespace json = boost::json;
using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

using Listed = ResponseStore::Listed;

TimePoint now() { return std::chrono::steady_clock::now(); }

StoredKey chat_key(const Context& context, const HttpRequest& request) {
  return {StoredKey::Kind::kChat, owner_of(context, request), std::string(request.param("id"))};
}

Status no_such_completion(std::string_view id) {
  return error(
      StatusCode::kNotFound,
      "there is no stored chat completion '{}': it was made without store, was deleted, or "
      "has expired",
      id);
}

// The completion with the metadata as it is now.
std::string completion_json(const StoredResponse& stored) {
  json::object completion = json::parse(stored.body).as_object();
  completion["metadata"] = stored.metadata;
  return json::serialize(completion);
}

// {"name": value} of a query's metadata[name]=value.
json::object metadata_filter(std::string_view query) {
  constexpr std::string_view kBegin = "metadata[";
  json::object filter;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equals = std::min(pair.find('='), pair.size());
    const auto name = net::percent_decode(pair.substr(0, equals), true);
    const auto value = net::percent_decode(pair.substr(std::min(equals + 1, pair.size())), true);
    if (name && value && name->starts_with(kBegin) && name->ends_with(']'))
      filter[name->substr(kBegin.size(), name->size() - kBegin.size() - 1)] = *value;
  }
  return filter;
}

bool passes(const StoredResponse& stored, const std::optional<std::string>& model,
            const json::object& metadata) {
  if (model && *model != stored.model) return false;
  return std::ranges::all_of(metadata, [&](const auto& wanted) {
    const json::value* found = stored.metadata.if_contains(wanted.key());
    return found != nullptr && *found == wanted.value();
  });
}

// As read_list_query(), with the oldest first unless the query states an order.
Result<ListQuery> read_page(const HttpRequest& request) {
  ESP_ASSIGN_OR_RETURN(ListQuery query, read_list_query(request, kStoredPage, kStoredPageMax));
  if (!request.query_param("order")) query.ascending = true;
  return query;
}

void write_completion(JsonWriter& w, const Listed& listed) {
  w.raw(completion_json(*listed.response));
}

void handle_list_chats(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const auto query = read_page(request);
  if (!query) return refuse_stored(response, query.error());
  const auto model = request.query_param("model");
  const json::object metadata = metadata_filter(request.query);
  auto all = context->responses->list(StoredKey::Kind::kChat, owner_of(*context, request), now());
  std::erase_if(all, [&](const Listed& l) { return !passes(*l.response, model, metadata); });
  const auto page = page_of(std::move(all), *query);
  if (!page) return refuse_stored(response, page.error());
  // Each completion is parsed: as much work as their bodies are long.
  size_t bytes = 0;
  for (const Listed& listed : page->records) bytes += listed.response->body.size();
  context->run_sized(bytes, response, [page = *page, response] {
    response->send(list_response(page, write_completion));
  });
}

void send_completion(const ContextPtr& context, const StoredKey& key, const ResponsePtr& response) {
  const auto found = context->responses->get(key, now());
  if (found == nullptr) return refuse_stored(response, no_such_completion(key.id));
  response->send(HttpResponse::json(200, completion_json(*found)));
}

void handle_get_chat(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  send_completion(context, chat_key(*context, request), response);
}

struct Message {
  std::string id;
  json::object message;
};

// Content in parts stands beside it as content_parts, as OpenAI has it.
void write_message(JsonWriter& w, const Message& message) {
  json::object out = message.message;
  out["id"] = message.id;
  if (json::value& content = out["content"]; content.is_array())
    out["content_parts"] = std::exchange(content, nullptr);
  w.raw(json::serialize(out));
}

void handle_chat_messages(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const StoredKey key = chat_key(*context, request);
  const auto query = read_page(request);
  if (!query) return refuse_stored(response, query.error());
  const auto found = context->responses->get(key, now());
  if (found == nullptr) return refuse_stored(response, no_such_completion(key.id));
  std::vector<Message> messages;
  for (const json::value& message : found->messages)
    messages.push_back({fmt::format("{}-{}", key.id, messages.size()), message.get_object()});
  const auto page = page_of(std::move(messages), *query);
  if (!page) return refuse_stored(response, page.error());
  response->send(list_response(*page, write_message));
}

struct UpdateBody {
  json::object metadata;
};

const Fields<UpdateBody>& update_chat_fields() {
  static const Fields<UpdateBody> fields = [] {
    Fields<UpdateBody> f = {custom<UpdateBody>(
        "metadata", R"({"type":"object","additionalProperties":{"type":"string"}})",
        "replaces the metadata of the completion",
        [](const Json& value, std::string_view where, UpdateBody& out) -> Status {
          ESP_RETURN_IF_ERROR(check_metadata(value, where));
          out.metadata = value.get_object();
          return {};
        })};
    f[0].required = true;
    return f;
  }();
  return fields;
}

std::string update_chat_schema() { return schema_of(update_chat_fields()); }

void handle_update_chat(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  bool malformed = false;
  const auto body = parse_body(update_chat_fields(), request.body, malformed);
  if (!body)
    return response->send(malformed ? malformed_response(body.error())
                                    : error_response(Dialect::kOpenAi, body.error()));
  const StoredKey key = chat_key(*context, request);
  if (context->responses->get(key, now()) == nullptr)
    return refuse_stored(response, no_such_completion(key.id));
  if (!context->responses->change(
          key, [&](StoredResponse& stored) { stored.metadata = body->metadata; }))
    return refuse_stored(response, no_stored_memory());
  send_completion(context, key, response);
}

void handle_delete_chat(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const StoredKey key = chat_key(*context, request);
  if (!context->responses->erase(key)) return refuse_stored(response, no_such_completion(key.id));
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("id", key.id).member("object", "chat.completion.deleted");
  w.member("deleted", true).end_object();
  response->send(HttpResponse::json(200, std::move(out)));
}

}  // namespace

const std::vector<Route>& stored_chat_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"GET"}, "/v1/chat/completions", kUser, "The stored chats", handle_list_chats, "", nullptr},
      {{"GET"}, "/v1/chat/completions/{id}", kUser, "A stored chat", handle_get_chat, "", nullptr},
      {{"POST"},
       "/v1/chat/completions/{id}",
       kUser,
       "Change the metadata of a stored chat",
       handle_update_chat,
       "ChatCompletionUpdate",
       update_chat_schema},
      {{"DELETE"},
       "/v1/chat/completions/{id}",
       kUser,
       "Delete a stored chat",
       handle_delete_chat,
       "",
       nullptr},
      {{"GET"},
       "/v1/chat/completions/{id}/messages",
       kUser,
       "The messages that a stored chat answered",
       handle_chat_messages,
       "",
       nullptr},
  };
  return table;
}

}  // namespace espalier::server
