// OpenAI's Responses: POST /v1/responses, and what is stored of it by id. A stored answer keeps its
// conversation, so that previous_response_id continues it; instructions hold for one request only.
#include <charconv>

#include "server/dialects/background_responses.h"
#include "server/dialects/conversation_items.h"
#include "server/dialects/response_generation.h"
#include "server/dialects/response_request.h"
#include "server/dialects/stored_owner.h"
#include "server/openai_generation.h"
#include "server/routes.h"
#include "server/start_generation.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

// A compacted input is encrypted by who made it, so that another server could not read it.
void handle_compact(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr response) {
  response->send(
      http_error(501,
                 "/v1/responses/compact is not served here: ask the model for a summary with "
                 "/v1/responses, and continue with that as the input"));
}

StoredKey response_key(const ContextPtr& context, const net::HttpRequest& request) {
  return {StoredKey::Kind::kResponse, owner_of(*context, request),
          std::string(request.param("id"))};
}

Status no_such_response(std::string_view id) {
  return error(StatusCode::kNotFound,
               "there is no stored response '{}': it was not stored, was deleted, or has expired",
               id);
}

// Appends the messages of what the request continues: an answer or a conversation.
Status read_continued(const Context& context, const ResponseRequest& request,
                      json::array& messages) {
  const TimePoint now = std::chrono::steady_clock::now();
  if (!request.previous_response_id.empty()) {
    const auto previous = context.responses->get(
        {StoredKey::Kind::kResponse, request.owner, request.previous_response_id}, now);
    if (previous == nullptr) return no_such_response(request.previous_response_id);
    for (const Json& message : previous->messages) messages.push_back(message);
  }
  if (request.conversation.empty()) return {};
  const auto conversation = context.responses->get(
      {StoredKey::Kind::kConversation, request.owner, request.conversation}, now);
  if (conversation == nullptr) return no_such_conversation(request.conversation);
  return read_items(conversation->messages, "conversation", messages);
}

// Instructions, what is continued, and the input.
Status join_conversation(const Context& context, ResponseRequest& request) {
  json::array messages;
  if (!request.instructions.empty())
    messages.push_back(json::object{{"role", "system"}, {"content", request.instructions}});
  ESP_RETURN_IF_ERROR(read_continued(context, request, messages));
  for (Json& turn : request.turns) messages.push_back(std::move(turn));
  return finish_chat(std::move(messages), request);
}

Result<ChatPlan> response_plan(const Context& context, ResponseRequest& request) {
  ESP_RETURN_IF_ERROR(join_conversation(context, request));
  return plan_chat(context, request);
}

// Answers with the response as it begins, or with the stream of its events.
std::shared_ptr<Generation> start_in_background(const ContextPtr& context,
                                                const net::ResponsePtr& response,
                                                ResponseRequest&& request, GenerationItem item,
                                                const AnswerFormat& format) {
  const std::string id = "resp_" + item.request.rid;
  const bool streamed = std::exchange(request.stream, true);
  const auto bytes = static_cast<int64_t>(request.input.size() + item.request.text.size());
  const StoredKey key{StoredKey::Kind::kResponse, request.owner, id};
  const auto prepared = context->background->prepare(key, streamed, bytes);
  if (prepared.run == nullptr) {
    response->send(
        error_response(Dialect::kResponses,
                       error(StatusCode::kResourceExhausted,
                             "stored responses have no memory left (--max-responses-bytes)")));
    return nullptr;
  }
  auto generation = std::make_shared<ResponseGeneration>(
      context, prepared.call, std::move(item), std::move(request), format, id, prepared.run);
  const std::string begun = generation->snapshot();
  context->background->add(prepared, generation);
  if (!streamed) {
    response->send(net::HttpResponse::json(200, begun));
  } else {
    context->background->with(key, [response](BackgroundRun* run) { run->subscribe(response, 0); });
  }
  return generation;
}

std::shared_ptr<Generation> start_response(const ContextPtr& context,
                                           const net::ResponsePtr& response,
                                           ResponseRequest&& request) {
  auto plan = response_plan(*context, request);
  if (plan && request.background && !request.store)
    plan = fail(invalid_argument("background needs store, since the answer is fetched later"));
  if (!plan) {
    response->send(error_response(Dialect::kResponses, plan.error()));
    return nullptr;
  }
  GenerationItem item = chat_item(*context, request, *plan);
  if (item.request.rid.empty()) item.request.rid = context->make_rid();
  if (request.background)
    return start_in_background(context, response, std::move(request), std::move(item),
                               plan->answer);
  std::string id = "resp_" + item.request.rid;
  return std::make_shared<ResponseGeneration>(
      context, response, std::move(item), std::move(request), plan->answer, std::move(id), nullptr);
}

void handle_create_response(const ContextPtr& context, net::HttpRequest&& request,
                            net::ResponsePtr response) {
  const std::string owner = owner_of(*context, request);
  start_generation(
      context, std::move(request), std::move(response), Dialect::kResponses, parse_response_request,
      [owner](const ContextPtr& server, const net::ResponsePtr& answer, ResponseRequest&& body) {
        body.owner = owner;
        return start_response(server, answer, std::move(body));
      });
}

Result<size_t> count_input(const Context& context, ResponseRequest& request) {
  ESP_ASSIGN_OR_RETURN(const ChatPlan plan, response_plan(context, request));
  return count_prompt_tokens(context, plan);
}

// What the same request would be charged for as input; nothing is generated or stored.
void handle_input_tokens(const ContextPtr& context, net::HttpRequest&& request,
                         net::ResponsePtr response) {
  const std::string owner = owner_of(*context, request);
  start_generation(context, std::move(request), std::move(response), Dialect::kResponses,
                   parse_response_request,
                   [owner](const ContextPtr& server, const net::ResponsePtr& to,
                           ResponseRequest&& body) -> std::shared_ptr<Generation> {
                     body.owner = owner;
                     const auto count = count_input(*server, body);
                     to->send(count ? net::HttpResponse::json(
                                          200, fmt::format(R"({{"object":"response.input_tokens",)"
                                                           R"("input_tokens":{}}})",
                                                           *count))
                                    : error_response(Dialect::kResponses, count.error()));
                     return nullptr;
                   });
}

std::shared_ptr<const StoredResponse> stored(const ContextPtr& context, const StoredKey& key,
                                             const net::ResponsePtr& response) {
  auto found = context->responses->get(key, std::chrono::steady_clock::now());
  if (found == nullptr)
    response->send(error_response(Dialect::kResponses, no_such_response(key.id)));
  return found;
}

void refuse_response(const net::ResponsePtr& response, const Status& status) {
  response->send(error_response(Dialect::kResponses, status));
}

// What GET asks of a response.
struct Reading {
  StoredKey key;
  bool stream = false;
  size_t from = 0;  // the number of the first event
};

Result<Reading> read_query(const ContextPtr& context, const net::HttpRequest& request) {
  Reading reading{.key = response_key(context, request)};
  reading.stream = request.query_param("stream").value_or("false") == "true";
  const auto after = request.query_param("starting_after");
  if (!after) return reading;
  int64_t number = 0;
  const auto [end, problem] = std::from_chars(after->data(), after->data() + after->size(), number);
  if (problem != std::errc() || end != after->data() + after->size() || number < 0)
    return fail(
        invalid_argument("starting_after is '{}'; it must be an event's sequence_number", *after));
  reading.from = static_cast<size_t>(number) + 1;
  return reading;
}

Status no_events() {
  return invalid_argument(
      "the events of this response are not kept: it was not made with background and stream, or "
      "they had no memory");
}

void answer_stored(const ContextPtr& context, const Reading& reading,
                   const net::ResponsePtr& response) {
  const auto found = stored(context, reading.key, response);
  if (found == nullptr) return;
  if (!reading.stream) return response->send(net::HttpResponse::json(200, found->body));
  if (found->events.empty()) return refuse_response(response, no_events());
  response->start_stream(200, net::event_stream_headers());
  std::string events;
  for (size_t i = reading.from; i < found->events.size(); ++i) events += found->events[i];
  response->write(std::move(events));
  response->finish();
}

void handle_get_response(const ContextPtr& context, net::HttpRequest&& request,
                         net::ResponsePtr response) {
  const auto reading = read_query(context, request);
  if (!reading) return refuse_response(response, reading.error());
  context->background->with(reading->key, [=, reading = *reading](BackgroundRun* run) {
    // Without a snapshot the run has just ended, and its outcome is stored.
    std::string now = run != nullptr ? run->snapshot() : "";
    if (now.empty()) return answer_stored(context, reading, response);
    if (!reading.stream) return response->send(net::HttpResponse::json(200, std::move(now)));
    if (!run->subscribe(response, reading.from)) refuse_response(response, no_events());
  });
}

void handle_input_items(const ContextPtr& context, net::HttpRequest&& request,
                        net::ResponsePtr response) {
  const auto found = stored(context, response_key(context, request), response);
  if (found == nullptr) return;
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("object", "list").key("data").raw(found->input);
  w.key("first_id").null().key("last_id").null().member("has_more", false).end_object();
  response->send(net::HttpResponse::json(200, std::move(out)));
}

void handle_delete_response(const ContextPtr& context, net::HttpRequest&& request,
                            net::ResponsePtr response) {
  const StoredKey key = response_key(context, request);
  context->background->with(key, [=](BackgroundRun* run) {
    if (run != nullptr) run->cancel();
    if (!context->responses->erase(key)) return refuse_response(response, no_such_response(key.id));
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("id", key.id).member("object", "response").member("deleted", true);
    w.end_object();
    response->send(net::HttpResponse::json(200, std::move(out)));
  });
}

// Of one that has ended it changes nothing.
void handle_cancel_response(const ContextPtr& context, net::HttpRequest&& request,
                            net::ResponsePtr response) {
  const StoredKey key = response_key(context, request);
  context->background->with(key, [=](BackgroundRun* run) {
    if (run != nullptr) run->cancel();
    const auto found = stored(context, key, response);
    if (found == nullptr) return;
    if (!found->background)
      return refuse_response(response,
                             invalid_argument("only responses that were made with background can "
                                              "be cancelled"));
    response->send(net::HttpResponse::json(200, found->body));
  });
}

}  // namespace

const std::vector<Route>& responses_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/v1/responses",
       kUser,
       "Responses (OpenAI)",
       handle_create_response,
       "ResponseRequest",
       response_schema},
      {{"POST"},
       "/v1/responses/input_tokens",
       kUser,
       "Tokens of a response's input",
       handle_input_tokens,
       "ResponseRequest",
       response_schema},
      {{"POST"},
       "/v1/responses/compact",
       kUser,
       "Not served (501): ask the model for a summary",
       handle_compact,
       "",
       nullptr,
       501},
      {{"GET"}, "/v1/responses/{id}", kUser, "A stored response", handle_get_response, "", nullptr},
      {{"DELETE"},
       "/v1/responses/{id}",
       kUser,
       "Delete a stored response",
       handle_delete_response,
       "",
       nullptr},
      {{"GET"},
       "/v1/responses/{id}/input_items",
       kUser,
       "What a stored response answered",
       handle_input_items,
       "",
       nullptr},
      {{"POST"},
       "/v1/responses/{id}/cancel",
       kUser,
       "Cancel a response",
       handle_cancel_response,
       "",
       nullptr},
  };
  return table;
}

}  // namespace espalier::server
