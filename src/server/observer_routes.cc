// What an observer sees of a server at work: the radix tree of the prefix cache, the requests in
// flight, and the files of the playground that draws them.
#include <charconv>

#include "server/authorize.h"
#include "server/errors.h"
#include "server/json_writer.h"
#include "server/observations.h"
#include "server/playground/playground.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

constexpr int32_t kShownTokensMax = 64;  // of a node's text

Result<uint64_t> stated_number(const HttpRequest& request, std::string_view name) {
  const auto stated = request.query_param(name);
  if (!stated) return uint64_t{0};
  uint64_t out = 0;
  const char* const end = stated->data() + stated->size();
  const auto [at, failed] = std::from_chars(stated->data(), end, out);
  if (failed == std::errc() && at == end && !stated->empty()) return out;
  return fail(invalid_argument("{} must be a whole number, but it is \"{}\"", name, *stated));
}

void write_node(JsonWriter& w, const CacheNode& node) {
  w.begin_array().value(node.number).value(node.parent).value(node.num_tokens);
  w.value(node.num_locks).value(node.created).value(node.last_use).value(node.resident);
  w.value(uint32_t{node.tiers});
  if (!node.name_space.empty()) w.value(node.name_space);
  w.end_array();
}

std::string changes_json(const TreeMirror::Changes& changes) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("reading", changes.reading).member("whole", changes.whole);
  w.member("num_nodes", changes.num_nodes).member("now", changes.now);
  w.member("has_tiers", changes.has_tiers);
  w.key("columns").raw(
      R"(["number","parent","tokens","locks","created","last_use","resident","tiers","namespace"])");
  w.key("nodes").begin_array();
  for (const CacheNode* node : changes.nodes) write_node(w, *node);
  w.end_array().key("removed").begin_array();
  for (const uint32_t number : changes.removed) w.value(number);
  w.end_array().end_object();
  return out;
}

void handle_cache_tree(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const auto since = stated_number(request, "since");
  if (!since) return response->send(malformed_response(since.error()));
  context->observed->tree->read(*since, std::move(response));
}

HttpResponse node_answer(const Context& context, uint32_t number, const CacheNodes& read) {
  if (read.nodes.empty())
    return http_error(404,
                      fmt::format("the cache has no node {}; it may have been evicted", number));
  const CacheNode& node = read.nodes[0];
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("number", node.number).member("parent", node.parent);
  w.member("num_tokens", node.num_tokens).member("end", node.end);
  w.member("num_locks", node.num_locks).member("resident", node.resident);
  w.member("created", node.created).member("last_use", node.last_use).member("now", read.now);
  w.key("tokens").begin_array();
  for (const TokenId id : node.tokens) w.value(id);
  w.end_array().key("text");
  const Tokenizer* const tokenizer = context.engine.tokenizer();
  tokenizer == nullptr ? static_cast<void>(w.null())
                       : static_cast<void>(w.value(tokenizer->decode(node.tokens)));
  w.end_object();
  return HttpResponse::json(200, std::move(out));
}

void handle_cache_node(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const std::string stated(request.param("number"));
  uint32_t number = 0;
  const auto [at, failed] = std::from_chars(stated.data(), stated.data() + stated.size(), number);
  if (failed != std::errc() || at != stated.data() + stated.size() || number == 0)
    return response->send(malformed_response(
        invalid_argument("a node's number is a whole number above 0, but it is \"{}\"", stated)));
  context->engine.read_cache(
      {.from = number, .num_max = 1, .tokens_max = kShownTokensMax},
      [context, response, number](Result<CacheNodes> read) {
        response->post([context, response, number, read = std::move(read)] {
          response->send(read ? node_answer(*context, number, *read)
                              : error_response(Dialect::kNative, read.error()));
        });
      });
}

// Seconds before now; null for what has not happened.
void write_ago(JsonWriter& w, std::string_view name, TimePoint at, TimePoint now) {
  w.key(name);
  at == TimePoint{} ? w.null() : w.value(to_seconds(now - at));
}

void handle_requests(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const auto since = stated_number(request, "since");
  if (!since) return response->send(malformed_response(since.error()));
  const TimePoint now = std::chrono::steady_clock::now();
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("requests").begin_array();
  for (const LoggedRequestPtr& each : context->observed->requests.read(*since)) {
    w.begin_object().member("number", each->number).member("rid", each->rid);
    if (!each->tenant.empty()) w.member("tenant", each->tenant);
    w.member("stream", each->streams);
    w.member("prompt_tokens", each->prompt_tokens.load());
    w.member("cached_tokens", each->cached_tokens.load());
    w.member("completion_tokens", each->completion_tokens.load());
    write_ago(w, "arrived_s_ago", each->arrived, now);
    write_ago(w, "scheduled_s_ago", each->scheduled, now);
    write_ago(w, "first_token_s_ago", each->first_token, now);
    write_ago(w, "ended_s_ago", each->ended, now);
    w.member("end", each->end.load()).end_object();
  }
  w.end_array().end_object();
  response->send(HttpResponse::json(200, std::move(out)));
}

void handle_playground(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  if (!serves_playground(context->config))
    return response->send(http_error(404,
                                     "the playground is not served here: start the server with "
                                     "--enable-playground"));
  response->send(playground_file(request, request.param("file")));
}

}  // namespace

std::shared_ptr<TreeWatch> make_tree_watch(Engine& engine) {
  return std::make_shared<TreeWatch>(engine, changes_json);
}

const std::vector<Route>& observer_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"GET"}, "/playground/{file}", kOpen, "A file of the playground", handle_playground},
      {{"GET"},
       "/cache_tree",
       kPrompts,
       "The radix tree of the prefix cache, or what has changed in it (since)",
       handle_cache_tree},
      {{"GET"},
       "/cache_tree/{number}",
       kPrompts,
       "A node of that tree, with the beginning of its text",
       handle_cache_node},
      {{"GET"},
       "/requests",
       kPrompts,
       "The requests in flight, and the last ones that have ended (since)",
       handle_requests},
  };
  return table;
}

}  // namespace espalier::server
