// /hicache/storage-backend, as SGLang has it: the tiers' storage shown, attached, detached,
// emptied.
#include <boost/json/value.hpp>
#include <functional>
#include <utility>

#include "engine/tiers/storage_control.h"
#include "server/errors.h"
#include "server/json_fields.h"
#include "server/json_writer.h"
#include "server/routes.h"
#include "server/storage_config.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

using Action = StorageRequest::Action;

struct AttachBody {
  std::string backend;
  std::string config;  // JSON in text, as SGLang has it
  std::string prefetch_policy, write_policy;
};

const Fields<AttachBody>& attach_fields() {
  static const Fields<AttachBody> fields = {
      field<AttachBody>("hicache_storage_backend", "file, redis or s3", &AttachBody::backend),
      field<AttachBody>(
          "hicache_storage_backend_extra_config_json",
          "of redis and s3: an object as --hicache-storage-backend-extra-config takes it, "
          "in text",
          &AttachBody::config),
      field<AttachBody>("hicache_storage_prefetch_policy",
                        "as the server was started with; another one is refused",
                        &AttachBody::prefetch_policy),
      field<AttachBody>("hicache_write_policy",
                        "as the server was started with; another one is refused",
                        &AttachBody::write_policy),
  };
  return fields;
}

std::string attach_schema() { return schema_of(attach_fields()); }

HttpResponse report_of(const std::vector<StorageReport>& reports) {
  std::string out, names;
  JsonWriter w(out);
  for (const StorageReport& report : reports) names += (names.empty() ? "" : ",") + report.backend;
  w.begin_object().key("hicache_storage_backend");
  names.empty() ? static_cast<void>(w.null()) : static_cast<void>(w.value(names));
  w.key("attached").begin_array();
  for (const StorageReport& report : reports) {
    w.begin_object().member("backend", report.backend);
    w.member("is_usable", report.problem.empty()).member("problem", report.problem).end_object();
  }
  w.end_array().end_object();
  return HttpResponse::json(200, std::move(out));
}

// `name` is of a setting that stays as it was at the start.
Status check_unchanged(std::string_view name, std::string_view wanted, std::string_view present) {
  if (wanted.empty() || wanted == present) return {};
  return invalid_argument(
      "{} is '{}', but this server has '{}': it is chosen at the start; leave the field out, or "
      "start the server with another policy",
      name, wanted, present);
}

Status check_policies(const AttachBody& body, const TierSettings& settings) {
  ESP_RETURN_IF_ERROR(check_unchanged("hicache_storage_prefetch_policy", body.prefetch_policy,
                                      settings.hicache_storage_prefetch_policy));
  return check_unchanged("hicache_write_policy", body.write_policy, settings.hicache_write_policy);
}

// Attaching and detaching block, so they run on a worker.
void control(const ContextPtr& context, const ResponsePtr& response, StorageRequest request) {
  const bool queued =
      context->threads->workers.run([context, response, request = std::move(request)] {
        const auto reports = context->engine.storage(request);
        HttpResponse answer = reports ? report_of(*reports) : malformed_response(reports.error());
        response->post([response, answer = std::move(answer)] { response->send(answer); });
      });
  if (!queued) response->send(http_error(503, "too much work is waiting: try again later"));
}

void handle_show(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  control(context, response, {.action = Action::kShow});
}

void handle_attach(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  AttachBody body;
  const auto value = parse_json(request.body);
  if (!value) return response->send(malformed_response(value.error()));
  if (const Status read = read_fields(attach_fields(), *value, "", body); !read.ok())
    return response->send(malformed_response(read));
  if (const Status same = check_policies(body, context->engine.config().tiers); !same.ok())
    return response->send(malformed_response(same));
  TierSettings settings = context->engine.config().tiers;
  // A file of the server's is the operator's to name, at the start.
  if (!body.config.empty())
    if (const Status read = read_storage_config(body.config, false, settings); !read.ok())
      return response->send(
          malformed_response(read.with_context("hicache_storage_backend_extra_config_json")));
  control(context, response,
          {.action = Action::kAttach,
           .backend = body.backend,
           .redis = std::move(settings.redis),
           .s3 = std::move(settings.s3)});
}

void handle_detach(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  control(context, response,
          {.action = Action::kDetach, .backend = request.query_param("backend").value_or("")});
}

void handle_clear(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  control(context, response,
          {.action = Action::kClear, .backend = request.query_param("backend").value_or("")});
}

}  // namespace

const std::vector<Route>& storage_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"GET"}, "/hicache/storage-backend", kAdmin, "The tiers' storage", handle_show},
      {{"PUT"},
       "/hicache/storage-backend",
       kAdmin,
       "Attach storage to the tiers",
       handle_attach,
       "AttachStorage",
       attach_schema},
      {{"DELETE"},
       "/hicache/storage-backend",
       kAdmin,
       "Detach the tiers' storage (?backend=: one of two)",
       handle_detach},
      {{"POST"},
       "/hicache/storage-backend/clear",
       kAdmin,
       "Remove this model's pages from the tiers' storage",
       handle_clear},
      {{"POST"},
       "/clear_hicache_storage_backend",
       kAdmin,
       "The same, under its former name",
       handle_clear},
  };
  return table;
}

}  // namespace espalier::server
