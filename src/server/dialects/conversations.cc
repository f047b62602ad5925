// OpenAI's conversations: /v1/conversations and their items, which POST /v1/responses with
// `conversation` continues and extends. They lie beside the stored responses, in the same memory
// and for the same time.
#include <boost/json.hpp>
#include <optional>

#include "server/dialects/conversation_items.h"
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

TimePoint now() { return std::chrono::steady_clock::now(); }

StoredKey conversation_key(const Context& context, const HttpRequest& request) {
  return {StoredKey::Kind::kConversation, owner_of(context, request),
          std::string(request.param("id"))};
}

// The bodies. Each route's table has the fields that it takes.

struct ConversationBody {
  json::array items;
  std::optional<json::object> metadata;
};
using Body = ConversationBody;

Field<Body> items_field(bool required) {
  Field<Body> f = custom<Body>(
      "items", R"({"type":"array","items":{"type":"object"}})", "as the input of /v1/responses",
      [](const Json& value, std::string_view where, Body& out) -> Status {
        ESP_ASSIGN_OR_RETURN(out.items, read_conversation_items(value, where));
        return {};
      });
  f.required = required;
  return f;
}

Field<Body> metadata_field() {
  Field<Body> f =
      custom<Body>("metadata", R"({"type":"object","additionalProperties":{"type":"string"}})",
                   "of the conversation; null: none",
                   [](const Json& value, std::string_view where, Body& out) -> Status {
                     ESP_RETURN_IF_ERROR(check_metadata(value, where));
                     out.metadata = value.get_object();
                     return {};
                   });
  f.read_null = [](Body& out) { out.metadata.emplace(); };
  return f;
}

const Fields<Body>& create_conversation_fields() {
  static const Fields<Body> fields = {items_field(false), metadata_field()};
  return fields;
}
const Fields<Body>& update_conversation_fields() {
  static const Fields<Body> fields = {metadata_field()};
  return fields;
}
const Fields<Body>& items_fields() {
  static const Fields<Body> fields = {items_field(true)};
  return fields;
}
std::string create_conversation_schema() { return schema_of(create_conversation_fields()); }
std::string update_conversation_schema() { return schema_of(update_conversation_fields()); }
std::string items_schema() { return schema_of(items_fields()); }

// Reads the body, and answers with what `done` makes of it.
template <typename Done>
void with_body(const HttpRequest& request, const ResponsePtr& response, const Fields<Body>& fields,
               Done done) {
  bool malformed = false;
  auto body = parse_body(fields, request.body, malformed);
  if (!body && malformed) return response->send(malformed_response(body.error()));
  if (!body) return refuse_stored(response, body.error());
  Result<HttpResponse> answer = done(std::move(*body));
  if (!answer) return refuse_stored(response, answer.error());
  response->send(std::move(*answer));
}

// The conversation with the metadata as it is now.
HttpResponse conversation_response(const StoredResponse& stored) {
  json::object conversation = json::parse(stored.body).as_object();
  conversation["metadata"] = stored.metadata;
  return HttpResponse::json(200, json::serialize(conversation));
}

Result<HttpResponse> answer_conversation(const Context& context, const StoredKey& key) {
  const auto found = context.responses->get(key, now());
  if (found == nullptr) return fail(no_such_conversation(key.id));
  return conversation_response(*found);
}

// Changes a conversation that is there.
Status change(const Context& context, const StoredKey& key,
              const std::function<void(StoredResponse&)>& edit) {
  if (context.responses->get(key, now()) == nullptr) return no_such_conversation(key.id);
  if (!context.responses->change(key, edit)) return no_stored_memory();
  return {};
}

Result<HttpResponse> create(Context& context, StoredKey key, Body&& body) {
  key.id = "conv_" + context.make_rid();
  StoredResponse made;
  made.body = json::serialize(
      json::object{{"id", key.id}, {"object", "conversation"}, {"created_at", unix_now()}});
  append_conversation_items(made.messages, std::move(body.items),
                            [&] { return context.make_rid(); });
  if (body.metadata) made.metadata = std::move(*body.metadata);
  HttpResponse answer = conversation_response(made);
  if (!context.responses->put(key, std::move(made), now())) return fail(no_stored_memory());
  return answer;
}

void handle_create_conversation(const ContextPtr& context, HttpRequest&& request,
                                ResponsePtr response) {
  const StoredKey key = conversation_key(*context, request);
  with_body(request, response, create_conversation_fields(),
            [=](Body&& body) { return create(*context, key, std::move(body)); });
}

void handle_get_conversation(const ContextPtr& context, HttpRequest&& request,
                             ResponsePtr response) {
  const auto answer = answer_conversation(*context, conversation_key(*context, request));
  answer ? response->send(*answer) : refuse_stored(response, answer.error());
}

Result<HttpResponse> update(const Context& context, const StoredKey& key, const Body& body) {
  ESP_RETURN_IF_ERROR(change(context, key, [&](StoredResponse& conversation) {
    if (body.metadata) conversation.metadata = *body.metadata;
  }));
  return answer_conversation(context, key);
}

void handle_update_conversation(const ContextPtr& context, HttpRequest&& request,
                                ResponsePtr response) {
  const StoredKey key = conversation_key(*context, request);
  with_body(request, response, update_conversation_fields(),
            [=](Body&& body) { return update(*context, key, body); });
}

void handle_delete_conversation(const ContextPtr& context, HttpRequest&& request,
                                ResponsePtr response) {
  const StoredKey key = conversation_key(*context, request);
  if (!context->responses->erase(key)) return refuse_stored(response, no_such_conversation(key.id));
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("id", key.id).member("object", "conversation.deleted");
  w.member("deleted", true).end_object();
  response->send(HttpResponse::json(200, std::move(out)));
}

// The items.

struct ListedItem {
  std::string id;
  const json::value* item;
};

std::vector<ListedItem> items_from(const json::array& items, size_t begin) {
  std::vector<ListedItem> listed;
  for (; begin < items.size(); ++begin)
    listed.push_back({std::string(view(items[begin].at("id").as_string())), &items[begin]});
  return listed;
}

void write_listed(JsonWriter& w, const ListedItem& listed) { w.raw(json::serialize(*listed.item)); }

void handle_items(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const StoredKey key = conversation_key(*context, request);
  const auto query = read_list_query(request, kStoredPage, kStoredPageMax);
  if (!query) return refuse_stored(response, query.error());
  const auto found = context->responses->get(key, now());
  if (found == nullptr) return refuse_stored(response, no_such_conversation(key.id));
  const auto page = page_of(items_from(found->messages, 0), *query);
  if (!page) return refuse_stored(response, page.error());
  response->send(list_response(*page, write_listed));
}

// Answers with the items that are new, as the conversation has them.
Result<HttpResponse> add_items(Context& context, const StoredKey& key, Body&& body) {
  json::array added;
  ESP_RETURN_IF_ERROR(change(context, key, [&](StoredResponse& conversation) {
    const auto before = static_cast<ptrdiff_t>(conversation.messages.size());
    append_conversation_items(conversation.messages, std::move(body.items),
                              [&] { return context.make_rid(); });
    added = json::array(conversation.messages.begin() + before, conversation.messages.end());
  }));
  return list_response(ListPage<ListedItem>{items_from(added, 0)}, write_listed);
}

void handle_add_items(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const StoredKey key = conversation_key(*context, request);
  with_body(request, response, items_fields(),
            [=](Body&& body) { return add_items(*context, key, std::move(body)); });
}

Status no_such_item(const StoredKey& key, std::string_view id) {
  return error(StatusCode::kNotFound, "the conversation '{}' has no item '{}'", key.id, id);
}

void handle_item(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const StoredKey key = conversation_key(*context, request);
  const auto found = context->responses->get(key, now());
  if (found == nullptr) return refuse_stored(response, no_such_conversation(key.id));
  const std::string_view id = request.param("item");
  const auto item = find_conversation_item(found->messages, id);
  if (item == found->messages.end()) return refuse_stored(response, no_such_item(key, id));
  response->send(HttpResponse::json(200, json::serialize(*item)));
}

// Answers with the conversation, as OpenAI does.
void handle_delete_item(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const StoredKey key = conversation_key(*context, request);
  const std::string_view id = request.param("item");
  bool erased = false;
  const Status changed = change(*context, key, [&](StoredResponse& conversation) {
    const auto item = find_conversation_item(conversation.messages, id);
    erased = item != conversation.messages.end();
    if (erased) conversation.messages.erase(item);
  });
  if (!changed.ok()) return refuse_stored(response, changed);
  if (!erased) return refuse_stored(response, no_such_item(key, id));
  const auto answer = answer_conversation(*context, key);
  answer ? response->send(*answer) : refuse_stored(response, answer.error());
}

Route route(std::string method, std::string pattern, std::string summary, RouteHandler handler) {
  return {{std::move(method)},
          std::move(pattern),
          Access::kUser,
          std::move(summary),
          std::move(handler),
          "",
          nullptr};
}

Route with_schema(Route made, std::string name, std::string (*schema)()) {
  made.body_schema = std::move(name);
  made.schema = schema;
  return made;
}

}  // namespace

const std::vector<Route>& conversation_routes() {
  static const std::string all = "/v1/conversations", one = all + "/{id}", items = one + "/items";
  static const std::vector<Route> table = {
      with_schema(route("POST", all, "Make a conversation", handle_create_conversation),
                  "ConversationCreate", create_conversation_schema),
      route("GET", one, "A conversation", handle_get_conversation),
      with_schema(
          route("POST", one, "Change a conversation's metadata", handle_update_conversation),
          "ConversationUpdate", update_conversation_schema),
      route("DELETE", one, "Delete a conversation", handle_delete_conversation),
      route("GET", items, "The items of a conversation", handle_items),
      with_schema(route("POST", items, "Add items to a conversation", handle_add_items),
                  "ConversationItems", items_schema),
      route("GET", items + "/{item}", "An item of a conversation", handle_item),
      route("DELETE", items + "/{item}", "Delete an item of a conversation", handle_delete_item),
  };
  return table;
}

}  // namespace espalier::server
