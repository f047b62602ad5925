// OpenAI's batches: POST and GET /v1/batches, one of them by its id, and its cancellation.
#include "server/batches/batch_routes.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>

#include "server/dialects/stored_owner.h"
#include "server/errors.h"
#include "server/json_fields.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

constexpr std::string_view kEndpoints[] = {
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings",  "/v1/messages",
    "/v1/classify",         "/v1/score",       "/v1/rerank",    "/v1/moderations", "/generate"};
constexpr size_t kMaxMetadataBytes = 16 << 10;

HttpResponse refused(const Status& status) { return error_response(Dialect::kOpenAi, status); }

HttpResponse batch_response(const Batch& batch) {
  std::string out;
  JsonWriter w(out);
  write_batch(w, batch);
  return HttpResponse::json(200, std::move(out));
}

struct BatchBody {
  std::string input_file_id, endpoint, completion_window = "24h", metadata = "null";
  int64_t hours = 24, output_expires_after = 0;
};

Status read_window(const Json& value, std::string_view where, BatchBody& out) {
  ESP_RETURN_IF_ERROR(read_value(value, where, out.completion_window));
  const std::string& text = out.completion_window;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), out.hours);
  const bool ends_in_h = end + 1 == text.data() + text.size() && *end == 'h';
  if (problem != std::errc() || !ends_in_h || out.hours < 1 || out.hours > 720)
    return invalid_argument(
        "{} is \"{}\"; it must be hours between \"1h\" and \"720h\", such as "
        "\"24h\"",
        where, text);
  return {};
}

Status read_metadata(const Json& value, std::string_view where, BatchBody& out) {
  if (!value.is_object()) return invalid_argument("{} must be an object", where);
  out.metadata = boost::json::serialize(value);
  if (out.metadata.size() > kMaxMetadataBytes)
    return invalid_argument("{} has more than {} bytes", where, kMaxMetadataBytes);
  return {};
}

Status read_expiry(const Json& value, std::string_view where, BatchBody& out) {
  ESP_ASSIGN_OR_RETURN(out.output_expires_after, read_expiry_seconds(value, where));
  return {};
}

const Fields<BatchBody>& batch_fields() {
  using B = BatchBody;
  static const Fields<B> fields = [] {
    const std::string object = R"({"type":"object"})";
    Fields<B> f = {
        field<B>("input_file_id", "a file of lines {custom_id, method, url, body}",
                 &B::input_file_id),
        field<B>("endpoint", "the route of all lines", &B::endpoint),
        custom<B>("completion_window", R"({"type":"string"})",
                  "after which lines that have not run fail: \"24h\"", read_window),
        custom<B>("metadata", object, "echoed", read_metadata),
        custom<B>("output_expires_after", object,
                  "when the files of results are deleted: anchor and seconds", read_expiry),
    };
    f[0].required = f[1].required = true;
    return f;
  }();
  return fields;
}

std::string batch_schema() { return schema_of(batch_fields()); }

Result<Batch> make_batch(const BatchCall& call) {
  bool malformed = false;
  ESP_ASSIGN_OR_RETURN(const BatchBody body,
                       parse_body(batch_fields(), call.request.body, malformed));
  if (std::ranges::count(kEndpoints, body.endpoint) == 0)
    return fail(invalid_argument("endpoint is \"{}\"; it must be one of {}", body.endpoint,
                                 fmt::join(kEndpoints, ", ")));
  ESP_RETURN_IF_ERROR(status_of(call.batches.files->get(body.input_file_id, call.filter))
                          .with_context("input_file_id"));
  Batch batch;
  batch.owner = call.filter.owner;
  batch.status = "validating";
  batch.endpoint = body.endpoint;
  batch.input_file_id = body.input_file_id;
  batch.completion_window = body.completion_window;
  batch.metadata = body.metadata;
  batch.output_expires_after = body.output_expires_after;
  batch.times["expires_at"] = unix_now() + body.hours * 3600;
  return call.batches.store.add(std::move(batch));
}

void handle_create(const BatchCall& call) {
  const auto batch = make_batch(call);
  if (!batch) return call.response->send(refused(batch.error()));
  call.batches.runner.add(batch->id, batch->owner);
  call.response->send(batch_response(*batch));
}

void handle_list(const BatchCall& call) {
  const auto query = read_list_query(call.request, 20, 100);
  if (!query) return call.response->send(refused(query.error()));
  const auto page = call.batches.store.list(*query, call.filter);
  call.response->send(page ? list_response(*page, write_batch) : refused(page.error()));
}

void handle_get(const BatchCall& call) {
  const auto batch = call.batches.store.get(call.request.param("id"), call.filter);
  call.response->send(batch ? batch_response(*batch) : refused(batch.error()));
}

void handle_cancel(const BatchCall& call) {
  const auto batch = call.batches.store.get(call.request.param("id"), call.filter);
  if (!batch) return call.response->send(refused(batch.error()));
  call.batches.runner.cancel(batch->id, [response = call.response](Result<Batch> cancelled) {
    response->send(cancelled ? batch_response(*cancelled) : refused(cancelled.error()));
  });
}

}  // namespace

Result<int64_t> read_expiry_seconds(const Json& value, std::string_view where) {
  const auto* object = value.if_object();
  const Json* anchor = object != nullptr ? object->if_contains("anchor") : nullptr;
  const Json* seconds = object != nullptr ? object->if_contains("seconds") : nullptr;
  if (anchor == nullptr || *anchor != "created_at" || seconds == nullptr)
    return fail(invalid_argument("{} must have an anchor, \"created_at\", and seconds", where));
  int32_t number = 0;
  ESP_RETURN_IF_ERROR(read_value(*seconds, std::string(where) + ".seconds", number));
  if (number < kMinExpirySeconds || number > kMaxExpirySeconds)
    return fail(invalid_argument("{}.seconds is {}; it must be between {} and {}", where, number,
                                 kMinExpirySeconds, kMaxExpirySeconds));
  return number;
}

OwnerFilter filter_of(const Context& context, const HttpRequest& request) {
  return {.owner = owner_of(context, request),
          .sees_all = is_admin(context.config.access, context.tenants.get(), request)};
}

RouteHandler on_worker(BatchHandler handler, Dialect dialect) {
  return [handler, dialect](const ContextPtr& context, HttpRequest&& request,
                            ResponsePtr response) {
    if (context->batches == nullptr)
      return response->send(error_response(
          dialect,
          error(StatusCode::kUnimplemented,
                "this server keeps no files and runs no batches: start it with --storage-path")));
    auto moved = std::make_shared<HttpRequest>(std::move(request));  // the task is copyable
    context->run_sized(SIZE_MAX, response, [=, filter = filter_of(*context, *moved)] {
      handler({*context->batches, filter, *moved, response});
    });
  };
}

Result<int64_t> read_limit(const HttpRequest& request, int64_t default_limit, int64_t max_limit) {
  const auto text = request.query_param("limit");
  if (!text) return default_limit;
  int64_t limit = 0;
  const auto [end, problem] = std::from_chars(text->data(), text->data() + text->size(), limit);
  if (problem != std::errc() || end != text->data() + text->size() || limit < 1 ||
      limit > max_limit)
    return fail(invalid_argument("limit is '{}'; it must be between 1 and {}", *text, max_limit));
  return limit;
}

Result<ListQuery> read_list_query(const HttpRequest& request, int64_t default_limit,
                                  int64_t max_limit) {
  ListQuery query{.after = request.query_param("after").value_or("")};
  ESP_ASSIGN_OR_RETURN(query.limit, read_limit(request, default_limit, max_limit));
  const std::string order = request.query_param("order").value_or("desc");
  if (order != "asc" && order != "desc")
    return fail(invalid_argument("order is '{}'; it must be asc or desc", order));
  query.ascending = order == "asc";
  return query;
}

const std::vector<Route>& batch_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/v1/batches",
       kUser,
       "Run a file of requests (OpenAI)",
       on_worker(handle_create),
       "BatchRequest",
       batch_schema},
      {{"GET"}, "/v1/batches", kUser, "The batches", on_worker(handle_list), "", nullptr},
      {{"GET"},
       "/v1/batches/{id}",
       kUser,
       "How far a batch is",
       on_worker(handle_get),
       "",
       nullptr},
      {{"POST"},
       "/v1/batches/{id}/cancel",
       kUser,
       "End a batch early",
       on_worker(handle_cancel),
       "",
       nullptr},
  };
  return table;
}

}  // namespace espalier::server
