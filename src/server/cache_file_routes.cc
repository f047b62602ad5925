// /cache/export and /cache/import: what the prefix cache has, as a file for another server of the
// same model.
#include <boost/json/value.hpp>
#include <filesystem>
#include <future>
#include <limits>
#include <memory>
#include <utility>

#include "engine/tiers/storage_control.h"
#include "server/errors.h"
#include "server/json_fields.h"
#include "server/json_writer.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

constexpr uint32_t kNodesPerRead = 1024;  // between two steps of the engine
constexpr size_t kFileNameMax = 200;

struct CacheFileBody {
  std::string file, text;
  std::vector<TokenId> input_ids;
  std::optional<std::string> extra_key;
};

const Fields<CacheFileBody>& import_fields() {
  static const Fields<CacheFileBody> fields = {
      field<CacheFileBody>("file", "the file's name in the folder --cache-file-dir",
                           &CacheFileBody::file),
  };
  return fields;
}

const Fields<CacheFileBody>& export_fields() {
  static const Fields<CacheFileBody> fields = {
      import_fields().front(),
      field<CacheFileBody>("text",
                           "only prefixes that begin with this text, or that it begins with; its "
                           "last token, which text behind it may change, is left out",
                           &CacheFileBody::text),
      field<CacheFileBody>("input_ids", "the same by token ids, instead of text",
                           &CacheFileBody::input_ids),
      field<CacheFileBody>("extra_key",
                           "only prefixes of requests with this extra_key; \"\": of those without "
                           "one",
                           &CacheFileBody::extra_key),
  };
  return fields;
}

std::string export_schema() { return schema_of(export_fields()); }
std::string import_schema() { return schema_of(import_fields()); }

// A name in the folder, so that a caller reaches no other file.
Result<std::filesystem::path> path_in(const std::string& folder, const std::string& name) {
  if (name.empty() || name.size() > kFileNameMax || name.starts_with('.') ||
      name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
    return fail(invalid_argument(
        "file is \"{}\", but must be the name of a file in the folder --cache-file-dir: up to {} "
        "bytes without '/' that do not begin with '.'",
        name, kFileNameMax));
  std::error_code problem;
  if (!std::filesystem::is_directory(folder, problem))
    return fail(error(StatusCode::kFailedPrecondition,
                      "the folder --cache-file-dir, {}, is missing: make it", folder));
  return std::filesystem::path(folder) / name;
}

Result<std::vector<TokenId>> tokens_of(const Engine& engine, const CacheFileBody& body) {
  if (body.text.empty()) return body.input_ids;
  if (!body.input_ids.empty())
    return fail(invalid_argument("text and input_ids are both set: give one of them"));
  if (engine.tokenizer() == nullptr)
    return fail(invalid_argument(
        "text: this server runs without a tokenizer (--skip-tokenizer-init): give input_ids"));
  std::vector<TokenId> tokens = engine.tokenizer()->encode(body.text, {});
  if (!tokens.empty()) tokens.pop_back();
  // What every text begins with would select all prefixes.
  if (tokens.size() <= engine.tokenizer()->encode("", {}).size())
    return fail(invalid_argument(
        "text: nothing is left of it without its last token, which text behind it may change: "
        "give a longer text, or input_ids"));
  return tokens;
}

// All nodes of the cache's tree with their tokens. Blocks; the engine's steps go on meanwhile.
Result<std::vector<CacheNode>> read_tree(Engine& engine) {
  std::vector<CacheNode> nodes;
  for (uint32_t from = 1; from != 0;) {
    // Shared with the engine's thread, which may answer while this one goes.
    const auto answer = std::make_shared<std::promise<Result<CacheNodes>>>();
    std::future<Result<CacheNodes>> read = answer->get_future();
    engine.read_cache(
        {.from = from, .num_max = kNodesPerRead, .tokens_max = std::numeric_limits<int32_t>::max()},
        [answer](Result<CacheNodes> part) { answer->set_value(std::move(part)); });
    ESP_ASSIGN_OR_RETURN(CacheNodes part, read.get());
    std::move(part.nodes.begin(), part.nodes.end(), std::back_inserter(nodes));
    from = part.next;
  }
  return nodes;
}

HttpResponse file_report(const std::string& name, const StorageReport& report) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("file", name).member("num_pages", report.num_pages);
  w.member("num_tokens", report.num_tokens).member("num_missing", report.num_missing);
  w.member("num_bytes", report.num_bytes).end_object();
  return HttpResponse::json(200, std::move(out));
}

Result<StorageReport> transfer(const ContextPtr& context, const CacheFileBody& body,
                               StorageRequest request) {
  Engine& engine = context->engine;
  ESP_ASSIGN_OR_RETURN(request.file, path_in(context->config.storage.cache_file_dir, body.file));
  if (request.action == StorageRequest::Action::kExport) {
    request.filter.extra_key = body.extra_key;
    ESP_ASSIGN_OR_RETURN(request.filter.tokens, tokens_of(engine, body));
    ESP_ASSIGN_OR_RETURN(request.nodes, read_tree(engine));
  }
  ESP_ASSIGN_OR_RETURN(const std::vector<StorageReport> reports, engine.storage(request));
  return reports.front();
}

// Reads and writes whole files, which may take minutes, so it runs where updates of weights do: the
// workers are for requests.
void handle_file(const ContextPtr& context, HttpRequest&& request, const ResponsePtr& response,
                 StorageRequest::Action action, const Fields<CacheFileBody>& fields) {
  if (context->config.storage.cache_file_dir.empty())
    return response->send(http_error(
        501,
        "this server has no files of cached pages: start it with --cache-file-dir, their "
        "folder"));
  auto body = std::make_shared<CacheFileBody>();
  const auto value = parse_json(request.body);
  if (!value) return response->send(malformed_response(value.error()));
  if (const Status read = read_fields(fields, *value, "", *body); !read.ok())
    return response->send(malformed_response(read));
  const bool queued = context->threads->weights.run([context, response, body, action] {
    const auto report = transfer(context, *body, {.action = action});
    HttpResponse answer = report ? file_report(body->file, *report)
                          : report.error().code() == StatusCode::kUnavailable
                              ? http_error(500, report.error().message())
                              : malformed_response(report.error());
    response->post([response, answer = std::move(answer)] { response->send(answer); });
  });
  if (!queued) response->send(http_error(503, "too much work is waiting: try again later"));
}

void handle_export(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  handle_file(context, std::move(request), response, StorageRequest::Action::kExport,
              export_fields());
}

void handle_import(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  handle_file(context, std::move(request), response, StorageRequest::Action::kImport,
              import_fields());
}

}  // namespace

const std::vector<Route>& cache_file_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/cache/export",
       kControl,
       "Write what the prefix cache has to a file",
       handle_export,
       "ExportCache",
       export_schema},
      {{"POST"},
       "/cache/import",
       kControl,
       "Take the pages of such a file into the tiers",
       handle_import,
       "ImportCache",
       import_schema},
  };
  return table;
}

}  // namespace espalier::server
