// OpenAI's uploads: POST /v1/uploads, its parts, its completion and its cancellation.
#include <boost/json.hpp>
#include <limits>

#include "net/multipart.h"
#include "server/batches/batch_routes.h"
#include "server/batches/batches.h"
#include "server/errors.h"
#include "server/json_fields.h"
#include "server/json_writer.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

// Answers with the status of a failure, or with the JSON of a success.
struct UploadCall {
  UploadStore& uploads;
  const OwnerFilter& filter;
  const HttpRequest& request;
};
using UploadHandler = Result<std::string> (*)(const UploadCall&);

RouteHandler uploading(UploadHandler handler) {
  return [handler](const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
    if (context->batches == nullptr)
      return response->send(error_response(
          Dialect::kOpenAi, error(StatusCode::kUnimplemented,
                                  "this server keeps no files: start it with --storage-path")));
    auto moved = std::make_shared<HttpRequest>(std::move(request));  // the task is copyable
    context->run_sized(SIZE_MAX, response, [=, filter = filter_of(*context, *moved)] {
      auto body = handler({*context->batches->uploads, filter, *moved});
      response->send(body ? HttpResponse::json(200, std::move(*body))
                          : error_response(Dialect::kOpenAi, body.error()));
    });
  };
}

// file: null where there is none yet.
std::string upload_json(const Upload& upload, const FileRecord* file = nullptr) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("id", upload.id).member("object", "upload");
  w.member("bytes", upload.bytes).member("created_at", upload.created_at);
  w.member("expires_at", upload.expires_at).member("filename", upload.filename);
  w.member("purpose", upload.purpose).member("status", upload.status).key("file");
  file != nullptr ? write_file(w, *file) : static_cast<void>(w.null());
  w.end_object();
  return out;
}

Status read_bytes(const Json& value, std::string_view where, Upload& out) {
  uint64_t bytes = 0;
  ESP_RETURN_IF_ERROR(read_value(value, where, bytes));
  if (bytes == 0 || bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return invalid_argument("{} must be the length of the file, at least 1", where);
  out.bytes = static_cast<int64_t>(bytes);
  return {};
}

const Fields<Upload>& create_upload_fields() {
  static const Fields<Upload> fields = [] {
    using U = Upload;
    Fields<U> f = {
        custom<U>("bytes", R"({"type":"integer"})", "the length of the whole file", read_bytes),
        field<U>("filename", "of the file", &U::filename),
        field<U>("purpose", "of the file: as POST /v1/files", &U::purpose),
        custom<U>("expires_after", R"({"type":"object"})", "of the file: anchor, seconds",
                  [](const Json& value, std::string_view where, U& out) -> Status {
                    ESP_ASSIGN_OR_RETURN(out.file_expires_after, read_expiry_seconds(value, where));
                    return {};
                  }),
        ignored<U>("mime_type"),
    };
    for (int i = 0; i < 3; ++i) f[static_cast<size_t>(i)].required = true;
    return f;
  }();
  return fields;
}
std::string create_upload_schema() { return schema_of(create_upload_fields()); }

Result<std::string> create(const UploadCall& call) {
  bool malformed = false;
  ESP_ASSIGN_OR_RETURN(Upload upload,
                       parse_body(create_upload_fields(), call.request.body, malformed));
  ESP_RETURN_IF_ERROR(check_purpose(upload.purpose));
  ESP_RETURN_IF_ERROR(check_filename(upload.filename));
  upload.owner = call.filter.owner;
  ESP_ASSIGN_OR_RETURN(upload, call.uploads.create(std::move(upload)));
  return upload_json(upload);
}

// multipart/form-data with one part, "data".
Result<std::string> add_part(const UploadCall& call) {
  const std::string* type = call.request.header("Content-Type");
  ESP_ASSIGN_OR_RETURN(const auto form,
                       net::parse_form_data(type != nullptr ? *type : "", call.request.body));
  const auto data = std::ranges::find(form, "data", &net::FormPart::name);
  if (data == form.end()) return fail(invalid_argument("data is missing: a part of the form"));
  const auto id = call.request.param("id");
  ESP_ASSIGN_OR_RETURN(const UploadPart part,
                       call.uploads.add_part(call.filter, id, data->content));
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("id", part.id).member("object", "upload.part");
  w.member("created_at", part.created_at).member("upload_id", id).end_object();
  return out;
}

struct CompleteBody {
  std::vector<std::string> part_ids;
  std::string md5;
};

const Fields<CompleteBody>& complete_fields() {
  static const Fields<CompleteBody> fields = [] {
    Fields<CompleteBody> f = {
        field<CompleteBody>("part_ids", "the parts in their order", &CompleteBody::part_ids),
        field<CompleteBody>("md5", "of the whole file, hexadecimal; checked where it is sent",
                            &CompleteBody::md5)};
    f[0].required = true;
    return f;
  }();
  return fields;
}
std::string complete_schema() { return schema_of(complete_fields()); }

Result<std::string> complete(const UploadCall& call) {
  bool malformed = false;
  ESP_ASSIGN_OR_RETURN(const CompleteBody body,
                       parse_body(complete_fields(), call.request.body, malformed));
  ESP_ASSIGN_OR_RETURN(
      const UploadStore::Completed made,
      call.uploads.complete(call.filter, call.request.param("id"), body.part_ids, body.md5));
  return upload_json(made.upload, &made.file);
}

Result<std::string> cancel(const UploadCall& call) {
  ESP_ASSIGN_OR_RETURN(const Upload upload,
                       call.uploads.cancel(call.filter, call.request.param("id")));
  return upload_json(upload);
}

}  // namespace

const std::vector<Route>& upload_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/v1/uploads",
       kUser,
       "Begin a file that is uploaded in parts",
       uploading(create),
       "UploadRequest",
       create_upload_schema},
      {{"POST"},
       "/v1/uploads/{id}/parts",
       kUser,
       "A part of an upload (multipart/form-data: data)",
       uploading(add_part),
       "",
       nullptr},
      {{"POST"},
       "/v1/uploads/{id}/complete",
       kUser,
       "Make a file of an upload's parts",
       uploading(complete),
       "UploadCompletion",
       complete_schema},
      {{"POST"},
       "/v1/uploads/{id}/cancel",
       kUser,
       "Give up an upload",
       uploading(cancel),
       "",
       nullptr},
  };
  return table;
}

}  // namespace espalier::server
