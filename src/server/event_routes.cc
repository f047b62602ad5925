// GET /kv_events: what the prefix cache has come to hold and what it has given up, under the names
// and fields of vLLM's and SGLang's events; as one answer, or as a stream.
#include <algorithm>
#include <charconv>

#include "server/errors.h"
#include "server/json_writer.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

constexpr Duration kStreamInterval = std::chrono::milliseconds(20);
constexpr uint64_t kEventsMax = 1000;  // of one answer, and of one write to a stream

std::string_view type_name(CacheEvent::Type type) {
  switch (type) {
    case CacheEvent::Type::kStored:
      return "BlockStored";
    case CacheEvent::Type::kRemoved:
      return "BlockRemoved";
    case CacheEvent::Type::kCleared:
      return "AllBlocksCleared";
  }
  return "";
}

// As text: a number of 64 bits is none in every JSON.
std::string hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

void write_event(JsonWriter& w, const CacheEvent& event, int32_t page_size) {
  w.begin_object().member("type", type_name(event.type)).member("seq", event.number);
  if (event.type != CacheEvent::Type::kCleared) {
    w.key("block_hashes").begin_array();
    for (const PageName& page : event.pages) w.value(hex(page.prefix64()));
    w.end_array().member("medium", event.medium == CacheEvent::Medium::kHost ? "CPU" : "GPU");
  }
  if (event.type == CacheEvent::Type::kStored && event.medium == CacheEvent::Medium::kDevice) {
    w.key("parent_block_hash");
    event.parent.empty() ? w.null() : w.value(hex(event.parent.prefix64()));
    w.key("token_ids").begin_array();
    for (const TokenId token : event.tokens) w.value(token);
    w.end_array().member("block_size", page_size).member("extra_key", event.cache_namespace);
    if (!event.adapter.empty()) w.member("lora_name", event.adapter);
  }
  w.end_object();
}

Status read_number(const HttpRequest& request, std::string_view name, uint64_t& out) {
  const auto stated = request.query_param(name);
  if (!stated) return {};
  const char* const end = stated->data() + stated->size();
  const auto [at, failed] = std::from_chars(stated->data(), end, out);
  if (failed == std::errc() && at == end && !stated->empty()) return {};
  return invalid_argument("{} must be a whole number, but it is \"{}\"", name, *stated);
}

// Until the client goes or the server stops: what is new, every few milliseconds.
void stream(const ContextPtr& context, const Engine& replica, const ResponsePtr& response,
            uint64_t next) {
  if (response->closed()) return;
  const auto read = replica.read_cache(next, kEventsMax);
  if (!read) return response->finish();
  std::string out;
  for (const CacheEvent& event : read->events) {
    std::string data;
    JsonWriter w(data);
    write_event(w, event, context->engine.config().cache.page_size);
    net::append_sse(out, data);
  }
  if (!out.empty()) response->write(std::move(out));
  if (context->stopping) return response->finish();
  response->post_after(kStreamInterval, [context, &replica, response, next = read->next] {
    stream(context, replica, response, next);
  });
}

void handle_kv_events(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  uint64_t from = 0, limit = kEventsMax, dp_rank = 0;
  for (const auto& [name, number] :
       {std::pair{"from", &from}, std::pair{"limit", &limit}, std::pair{"dp_rank", &dp_rank}})
    if (const Status read = read_number(request, name, *number); !read.ok())
      return response->send(malformed_response(read));
  limit = std::clamp<uint64_t>(limit, 1, kEventsMax);
  const std::vector<const Engine*> replicas = context->engine.replicas();
  if (dp_rank >= replicas.size())
    return response->send(malformed_response(invalid_argument(
        "dp_rank is {}, but there are {} replicas (--dp-size)", dp_rank, replicas.size())));
  const Engine& replica = *replicas[dp_rank];
  const auto read = replica.read_cache(from, static_cast<size_t>(limit));
  if (!read) return response->send(error_response(Dialect::kNative, read.error()));
  const auto mode = request.query_param("stream");
  if (mode && *mode != "false" && *mode != "0") {
    response->start_stream(200, net::event_stream_headers());
    return stream(context, replica, response, from);
  }
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("events").begin_array();
  for (const CacheEvent& event : read->events)
    write_event(w, event, context->engine.config().cache.page_size);
  w.end_array().member("next", read->next).member("missed", read->num_missed).end_object();
  response->send(HttpResponse::json(200, std::move(out)));
}

}  // namespace

const std::vector<Route>& event_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"GET"},
       "/kv_events",
       kPrompts,
       "What the prefix cache holds since, and no longer (from, limit, stream, dp_rank)",
       handle_kv_events},
  };
  return table;
}

}  // namespace espalier::server
