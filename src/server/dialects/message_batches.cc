// Anthropic's message batches: POST and GET /v1/messages/batches, one of them by its id, its
// results, cancellation and deletion. A batch is one of /v1/batches' store over the endpoint
// /v1/messages, so the same runner serves both; its requests are a file that clients do not see.
#include <fmt/chrono.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <unordered_set>

#include "server/batches/batch_routes.h"
#include "server/errors.h"
#include "server/json_fields.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

namespace json = boost::json;

constexpr int64_t kDay = 86'400;
constexpr int64_t kKeptSeconds = 29 * kDay;  // requests and results, as Anthropic keeps them
constexpr size_t kMaxCustomIdBytes = 64;

HttpResponse refused_messages(const Status& status) {
  return error_response(Dialect::kAnthropic, status);
}

std::string_view batch_text_member(const json::object& object, std::string_view name) {
  const Json* value = object.if_contains(name);
  if (value == nullptr || !value->is_string()) return {};
  return {value->get_string().data(), value->get_string().size()};
}

std::string batch_time_text(int64_t unix_seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

struct CreateBody {
  std::string lines;  // as /v1/batches has them in its input
  int64_t num_lines = 0;
};

bool is_id_byte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         c == '-';
}

Status read_one(const Json& value, const std::string& where,
                std::unordered_set<std::string>& custom_ids, CreateBody& out) {
  const json::object* object = value.if_object();
  if (object == nullptr)
    return invalid_argument("{} must be an object with custom_id and params", where);
  const std::string id(batch_text_member(*object, "custom_id"));
  if (id.empty() || id.size() > kMaxCustomIdBytes || !std::ranges::all_of(id, is_id_byte))
    return invalid_argument("{}.custom_id must be 1 to {} letters, digits, '_' or '-'", where,
                            kMaxCustomIdBytes);
  if (!custom_ids.insert(id).second)
    return invalid_argument("{}.custom_id \"{}\" stands in an earlier request", where, id);
  const Json* params = object->if_contains("params");
  if (params == nullptr || !params->is_object())
    return invalid_argument("{}.params must be an object, the body of POST /v1/messages", where);
  const Json* stream = params->get_object().if_contains("stream");
  if (stream != nullptr && stream->is_bool() && stream->get_bool())
    return invalid_argument("{}.params.stream must not be true in a batch", where);
  JsonWriter w(out.lines);
  w.begin_object().member("custom_id", id).member("method", "POST").member("url", "/v1/messages");
  w.key("body").raw(json::serialize(*params)).end_object();
  out.lines += '\n';
  ++out.num_lines;
  return {};
}

Status read_requests(const Json& value, std::string_view where, CreateBody& out) {
  const json::array* requests = value.if_array();
  if (requests == nullptr || requests->empty() || requests->size() > BatchRunner::kMaxLines)
    return invalid_argument("{} must be a list of 1 to {} requests", where, BatchRunner::kMaxLines);
  std::unordered_set<std::string> custom_ids;
  for (size_t i = 0; i < requests->size(); ++i)
    ESP_RETURN_IF_ERROR(read_one((*requests)[i], fmt::format("{}[{}]", where, i), custom_ids, out));
  return {};
}

const Fields<CreateBody>& create_messages_fields() {
  static const Fields<CreateBody> fields = [] {
    Fields<CreateBody> f = {custom<CreateBody>(
        "requests",
        R"({"type":"array","items":{"type":"object","required":["custom_id","params"],)"
        R"("properties":{"custom_id":{"type":"string"},"params":{"type":"object"}}}})",
        "each a custom_id and params, the body of /v1/messages", read_requests)};
    f[0].required = true;
    return f;
  }();
  return fields;
}

std::string create_messages_schema() { return schema_of(create_messages_fields()); }

// Of a status of the store, as Anthropic names it.
std::string_view processing_status(const Batch& batch) {
  if (batch.ended()) return "ended";
  return batch.times.contains("cancelling_at") ? "canceling" : "in_progress";
}

bool is_archived(const Batch& batch) {
  return batch.times.at("created_at") + kKeptSeconds <= unix_now();
}

// Calls `use` with each line of a file; nothing where the file is gone.
template <typename Use>
void for_each_line(FileStore& files, const std::string& id, Use use) {
  if (id.empty()) return;
  const auto content = files.content(id, OwnerFilter::everyone());
  if (!content) return;
  for (std::string_view text = content->text(); !text.empty();) {
    const size_t end = std::min(text.find('\n'), text.size());
    use(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool is_expired_record(const json::object& record) {
  const Json* error = record.if_contains("error");
  return error != nullptr && error->is_object() &&
         batch_text_member(error->get_object(), "code") == "batch_expired";
}

int64_t count_expired(FileStore& files, const Batch& batch) {
  int64_t count = 0;
  if (batch.status != "expired") return count;
  for_each_line(files, batch.error_file_id, [&](std::string_view line) {
    const auto record = parse_json(line);
    if (record && record->is_object() && is_expired_record(record->get_object())) ++count;
  });
  return count;
}

// Anthropic counts nothing but what is in progress until all of it has ended.
void write_counts(JsonWriter& w, FileStore& files, const Batch& batch) {
  const bool ended = batch.ended();
  const int64_t expired = ended ? count_expired(files, batch) : 0;
  const int64_t rest = batch.num_total - batch.num_completed - batch.num_failed;
  const bool failed = batch.status == "failed";
  w.begin_object().member("processing", ended ? 0 : batch.num_total);
  w.member("succeeded", ended ? batch.num_completed : 0);
  w.member("errored", ended ? batch.num_failed - expired + (failed ? rest : 0) : 0);
  w.member("canceled", ended && !failed ? rest : 0).member("expired", expired).end_object();
}

void write_time(JsonWriter& w, std::string_view key, const Batch& batch, std::string_view name) {
  const auto at = batch.times.find(std::string(name));
  w.key(key);
  at == batch.times.end() ? w.null() : w.value(batch_time_text(at->second));
}

// The address that the client has used, so that the results are where it found the batch.
std::string results_url(const HttpRequest& request, const Batch& batch) {
  const std::string path = fmt::format("/v1/messages/batches/{}/results", batch.id);
  const std::string* host = request.header("host");
  if (host == nullptr || host->empty()) return path;
  const std::string* proxy = request.header("x-forwarded-proto");
  return fmt::format("{}://{}{}", proxy != nullptr && *proxy == "https" ? "https" : "http", *host,
                     path);
}

void write_message_batch(JsonWriter& w, const BatchCall& call, const Batch& batch) {
  const bool archived = is_archived(batch);
  w.begin_object().member("id", batch.id).member("type", "message_batch");
  w.member("processing_status", processing_status(batch)).key("request_counts");
  write_counts(w, *call.batches.files, batch);
  write_time(w, "created_at", batch, "created_at");
  write_time(w, "expires_at", batch, "expires_at");
  write_time(w, "cancel_initiated_at", batch, "cancelling_at");
  write_time(w, "ended_at", batch, batch.ended() ? batch.status + "_at" : "");
  w.key("archived_at");
  archived ? w.value(batch_time_text(batch.times.at("created_at") + kKeptSeconds)) : w.null();
  w.key("results_url");
  batch.ended() && !archived ? w.value(results_url(call.request, batch)) : w.null();
  w.end_object();
}

void send_batch(const BatchCall& call, const Result<Batch>& batch) {
  if (!batch) return call.response->send(refused_messages(batch.error()));
  std::string out;
  JsonWriter w(out);
  write_message_batch(w, call, *batch);
  call.response->send(HttpResponse::json(200, std::move(out)));
}

Result<Batch> find_batch(const BatchCall& call, std::string_view id) {
  if (!id.starts_with(kMessageBatchPrefix))
    return fail(error(StatusCode::kNotFound, "there is no message batch '{}'", id));
  return call.batches.store.get(id, call.filter);
}

Result<Batch> find_batch(const BatchCall& call) {
  return find_batch(call, call.request.param("id"));
}

Result<Batch> make_message_batch(const BatchCall& call, const CreateBody& body) {
  FileStore& files = *call.batches.files;
  Batch batch;
  batch.id = random_id(kMessageBatchPrefix);
  batch.owner = call.filter.owner;
  batch.status = "validating";
  batch.endpoint = "/v1/messages";
  batch.completion_window = "24h";
  batch.metadata = "null";
  batch.output_expires_after = kKeptSeconds;
  batch.num_total = body.num_lines;
  batch.times["expires_at"] = unix_now() + kDay;
  FileRecord described{.owner = batch.owner,
                       .filename = batch.id + "_input.jsonl",
                       .purpose = std::string(kMessageBatchPurpose)};
  described.expires_at = unix_now() + kKeptSeconds;
  ESP_ASSIGN_OR_RETURN(const FileRecord input, files.add(std::move(described), body.lines));
  batch.input_file_id = input.id;
  auto added = call.batches.store.add(std::move(batch));
  if (!added) (void)files.erase(input.id, OwnerFilter::everyone());
  return added;
}

void handle_create_messages(const BatchCall& call) {
  bool malformed = false;
  const auto body = parse_body(create_messages_fields(), call.request.body, malformed);
  if (!body) return call.response->send(refused_messages(body.error()));
  const auto batch = make_message_batch(call, *body);
  if (batch) call.batches.runner.add(batch->id, batch->owner);
  send_batch(call, batch);
}

void handle_get_messages(const BatchCall& call) { send_batch(call, find_batch(call)); }

Result<ListQuery> read_batch_query(const BatchCall& call) {
  ListQuery query{.after = call.request.query_param("after_id").value_or(""),
                  .before = call.request.query_param("before_id").value_or("")};
  if (!query.after.empty() && !query.before.empty())
    return fail(invalid_argument("after_id and before_id exclude each other"));
  for (const std::string& id : {query.after, query.before})
    if (!id.empty()) ESP_RETURN_IF_ERROR(status_of(find_batch(call, id)));
  ESP_ASSIGN_OR_RETURN(query.limit, read_limit(call.request, 20, 1000));
  return query;
}

void handle_list_messages(const BatchCall& call) {
  const auto query = read_batch_query(call);
  if (!query) return call.response->send(refused_messages(query.error()));
  const auto page = call.batches.store.list(*query, call.filter, kMessageBatchPrefix);
  if (!page) return call.response->send(refused_messages(page.error()));
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("data").begin_array();
  for (const Batch& batch : page->records) write_message_batch(w, call, batch);
  w.end_array().member("has_more", page->has_more);
  const bool empty = page->records.empty();
  w.key("first_id");
  empty ? w.null() : w.value(page->records.front().id);
  w.key("last_id");
  empty ? w.null() : w.value(page->records.back().id);
  w.end_object();
  call.response->send(HttpResponse::json(200, std::move(out)));
}

void handle_cancel_messages(const BatchCall& call) {
  const auto batch = find_batch(call);
  if (!batch) return call.response->send(refused_messages(batch.error()));
  if (batch->ended())
    return call.response->send(refused_messages(
        invalid_argument("message batch '{}' has ended: only one that is in progress can "
                         "be canceled",
                         batch->id)));
  // What the answer needs of the request; a task is copyable, a request is not.
  const auto request = std::make_shared<HttpRequest>();
  request->headers = call.request.headers;
  call.batches.runner.cancel(batch->id, [&batches = call.batches, filter = call.filter, request,
                                         response = call.response](const Result<Batch>& cancelled) {
    send_batch({batches, filter, *request, response}, cancelled);
  });
}

void handle_delete_messages(const BatchCall& call) {
  const auto batch = find_batch(call);
  if (!batch) return call.response->send(refused_messages(batch.error()));
  if (!batch->ended())
    return call.response->send(refused_messages(invalid_argument(
        "message batch '{}' has not ended: cancel it before it is deleted", batch->id)));
  if (const Status erased = call.batches.store.erase(*batch); !erased.ok())
    return call.response->send(refused_messages(erased));
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("id", batch->id).member("type", "message_batch_deleted").end_object();
  call.response->send(HttpResponse::json(200, std::move(out)));
}

void append_error(std::string& out, std::string_view custom_id, const json::object* body) {
  JsonWriter w(out);
  w.begin_object().member("custom_id", custom_id).key("result").begin_object();
  w.member("type", "errored").key("error");
  if (body != nullptr && batch_text_member(*body, "type") == "error") {
    w.raw(json::serialize(*body));
  } else {
    const Json* inner = body != nullptr ? body->if_contains("error") : nullptr;
    if (inner != nullptr && inner->is_object()) body = &inner->get_object();
    const std::string_view said = body != nullptr ? batch_text_member(*body, "message") : "";
    w.begin_object().member("type", "error").key("error").begin_object();
    w.member("type", "api_error").member("message", said.empty() ? "the request failed" : said);
    w.end_object().key("request_id").null().end_object();
  }
  w.end_object().end_object();
  out += '\n';
}

void append_ended(std::string& out, std::string_view custom_id, std::string_view type) {
  JsonWriter w(out);
  w.begin_object().member("custom_id", custom_id).key("result").begin_object();
  w.member("type", type).end_object().end_object();
  out += '\n';
}

// A record of the store's files, as a result of Anthropic's.
void append_result(std::string& out, const json::object& record) {
  const std::string_view id = batch_text_member(record, "custom_id");
  if (is_expired_record(record)) return append_ended(out, id, "expired");
  const Json* response = record.if_contains("response");
  const Json* body = response != nullptr && response->is_object()
                         ? response->get_object().if_contains("body")
                         : nullptr;
  const json::object* object = body != nullptr ? body->if_object() : nullptr;
  if (object == nullptr || batch_text_member(*object, "type") != "message")
    return append_error(out, id, object);
  JsonWriter w(out);
  w.begin_object().member("custom_id", id).key("result").begin_object();
  w.member("type", "succeeded").key("message").raw(json::serialize(*object));
  w.end_object().end_object();
  out += '\n';
}

// Writes the results as fast as the client reads: those that have an answer, then the requests of
// the input without one. Lives on the thread of its connection.
class ResultStream : public std::enable_shared_from_this<ResultStream> {
 public:
  // The files may be gone since the batch was read.
  ResultStream(FileStore& files, const Batch& batch, ResponsePtr response)
      : rest_(batch.status == "failed" ? "errored" : "canceled"), response_(std::move(response)) {
    const std::array ids = {&batch.output_file_id, &batch.error_file_id, &batch.input_file_id};
    const bool all_answered = batch.num_completed + batch.num_failed == batch.num_total;
    for (size_t i = 0; i < (all_answered ? 2 : 3); ++i)
      if (auto content = files.content(*ids[i], OwnerFilter::everyone()); content)
        contents_[i] = std::move(*content);
  }

  void begin() {
    response_->start_stream(200, {{"Content-Type", "application/x-jsonl"}});
    response_->post([self = shared_from_this()] { self->send_more(); });
  }

 private:
  static constexpr size_t kPiece = 256 << 10, kAhead = 1 << 20;

  void send_more() {
    while (!response_->closed() && response_->pending_output() < kAhead) {
      std::string piece;
      while (piece.size() < kPiece && next_ < contents_.size()) append_line(piece);
      if (piece.empty()) return response_->finish();
      response_->write(std::move(piece));
    }
    if (response_->closed()) return;
    response_->post_after(std::chrono::milliseconds(1),
                          [self = shared_from_this()] { self->send_more(); });
  }

  void append_line(std::string& out) {
    const auto& content = contents_[next_];
    const std::string_view text = content ? content->text().substr(read_) : std::string_view();
    if (text.empty()) {
      ++next_;
      read_ = 0;
      return;
    }
    const size_t end = std::min(text.find('\n'), text.size());
    read_ += std::min(end + 1, text.size());
    const auto record = parse_json(text.substr(0, end));
    if (!record || !record->is_object()) return;
    const std::string_view id = batch_text_member(record->get_object(), "custom_id");
    if (next_ < 2) {
      if (contents_[2]) answered_.emplace(id);
      append_result(out, record->get_object());
    } else if (!answered_.contains(std::string(id))) {
      rest_ == "errored" ? append_error(out, id, nullptr) : append_ended(out, id, rest_);
    }
  }

  const std::string_view rest_;  // what became of requests without an answer
  const ResponsePtr response_;
  std::array<std::optional<MappedFile>, 3> contents_;  // answers, errors, requests
  std::unordered_set<std::string> answered_;           // custom_ids, where requests are read too
  size_t next_ = 0, read_ = 0;                         // the content, and bytes of it
};

void handle_results(const BatchCall& call) {
  const auto batch = find_batch(call);
  if (!batch) return call.response->send(refused_messages(batch.error()));
  if (!batch->ended())
    return call.response->send(refused_messages(invalid_argument(
        "message batch '{}' has no results until its processing_status is ended", batch->id)));
  if (is_archived(*batch))
    return call.response->send(refused_messages(
        error(StatusCode::kNotFound, "the results of message batch '{}' were kept for 29 days",
              batch->id)));
  std::make_shared<ResultStream>(*call.batches.files, *batch, call.response)->begin();
}

Route route_of(const char* method, const char* pattern, const char* summary, BatchHandler handler) {
  return {{method}, pattern, Access::kUser, summary, on_worker(handler, Dialect::kAnthropic),
          "",       nullptr};
}

}  // namespace

const std::vector<Route>& message_batch_routes() {
  static const std::vector<Route> table = [] {
    std::vector<Route> routes = {
        route_of("POST", "/v1/messages/batches", "Run a list of requests (Anthropic)",
                 handle_create_messages),
        route_of("GET", "/v1/messages/batches", "The batches of messages", handle_list_messages),
        route_of("GET", "/v1/messages/batches/{id}", "How far a batch of messages is",
                 handle_get_messages),
        route_of("DELETE", "/v1/messages/batches/{id}", "Delete a batch of messages",
                 handle_delete_messages),
        route_of("GET", "/v1/messages/batches/{id}/results", "Its results, as lines of JSON",
                 handle_results),
        route_of("POST", "/v1/messages/batches/{id}/cancel", "End a batch of messages early",
                 handle_cancel_messages),
    };
    routes[0].body_schema = "MessageBatchRequest";
    routes[0].schema = create_messages_schema;
    return routes;
  }();
  return table;
}

}  // namespace espalier::server
