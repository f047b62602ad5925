// OpenAI's files: POST and GET /v1/files, and one of them by its id.
#include <algorithm>
#include <charconv>

#include "net/multipart.h"
#include "server/batches/batch_routes.h"
#include "server/batches/batches.h"
#include "server/errors.h"
#include "server/json_writer.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

constexpr std::string_view kPurposes[] = {"assistants", "batch",     "evals",
                                          "fine-tune",  "user_data", "vision"};

HttpResponse file_response(const FileRecord& file) {
  std::string out;
  JsonWriter w(out);
  write_file(w, file);
  return HttpResponse::json(200, std::move(out));
}

struct UploadedFile {
  FileRecord described;
  std::string_view content;
};

Result<int64_t> read_seconds(std::string_view text) {
  int64_t seconds = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (problem != std::errc() || end != text.data() + text.size() || seconds < kMinExpirySeconds ||
      seconds > kMaxExpirySeconds)
    return fail(invalid_argument("expires_after[seconds] must be a whole number between {} and {}",
                                 kMinExpirySeconds, kMaxExpirySeconds));
  return seconds;
}

Result<UploadedFile> read_upload(const HttpRequest& request) {
  const std::string* type = request.header("Content-Type");
  ESP_ASSIGN_OR_RETURN(const auto parts,
                       net::parse_form_data(type != nullptr ? *type : "", request.body));
  UploadedFile upload;
  bool has_file = false;
  for (const net::FormPart& part : parts) {
    if (part.name == "file") {
      has_file = true;
      upload.content = part.content;
      upload.described.filename = part.filename;
    } else if (part.name == "purpose") {
      upload.described.purpose = part.content;
    } else if (part.name == "expires_after[anchor]") {
      if (part.content != "created_at")
        return fail(invalid_argument("expires_after[anchor] must be created_at"));
    } else if (part.name == "expires_after[seconds]") {
      ESP_ASSIGN_OR_RETURN(const int64_t seconds, read_seconds(part.content));
      upload.described.expires_at = unix_now() + seconds;
    }
  }
  if (!has_file) return fail(invalid_argument("file is missing: a part of the form"));
  ESP_RETURN_IF_ERROR(check_purpose(upload.described.purpose));
  ESP_RETURN_IF_ERROR(check_filename(upload.described.filename));
  if (upload.described.filename.empty()) upload.described.filename = "file";
  return upload;
}

void handle_upload(const BatchCall& call) {
  auto upload = read_upload(call.request);
  if (!upload) return call.response->send(error_response(Dialect::kOpenAi, upload.error()));
  upload->described.owner = call.filter.owner;
  const auto kept = call.batches.files->add(std::move(upload->described), upload->content);
  call.response->send(kept ? file_response(*kept) : error_response(Dialect::kOpenAi, kept.error()));
}

void handle_list_files(const BatchCall& call) {
  const auto query = read_list_query(call.request, 10'000, 10'000);
  if (!query) return call.response->send(error_response(Dialect::kOpenAi, query.error()));
  const auto page = call.batches.files->list(call.request.query_param("purpose").value_or(""),
                                             *query, call.filter);
  if (!page) return call.response->send(error_response(Dialect::kOpenAi, page.error()));
  call.response->send(list_response(*page, write_file));
}

void handle_get_file(const BatchCall& call) {
  const auto file = call.batches.files->get(call.request.param("id"), call.filter);
  call.response->send(file ? file_response(*file) : error_response(Dialect::kOpenAi, file.error()));
}

void handle_delete_file(const BatchCall& call) {
  const std::string id(call.request.param("id"));
  if (const Status erased = call.batches.files->erase(id, call.filter); !erased.ok())
    return call.response->send(error_response(Dialect::kOpenAi, erased));
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("id", id).member("object", "file").member("deleted", true).end_object();
  call.response->send(HttpResponse::json(200, std::move(out)));
}

// Sends a content as fast as its client reads, without a copy of the whole.
class ContentStream : public std::enable_shared_from_this<ContentStream> {
 public:
  ContentStream(MappedFile content, ResponsePtr response)
      : content_(std::move(content)), response_(std::move(response)) {}

  void begin() {
    response_->start_stream(200, {{"Content-Type", "application/octet-stream"}});
    response_->post([self = shared_from_this()] { self->send_more(); });
  }

 private:
  static constexpr size_t kPiece = 256 << 10, kAhead = 1 << 20;

  void send_more() {
    while (!response_->closed() && response_->pending_output() < kAhead) {
      const std::string_view rest = content_.text().substr(sent_);
      if (rest.empty()) return response_->finish();
      const std::string_view piece = rest.substr(0, kPiece);
      sent_ += piece.size();
      response_->write(std::string(piece));
      content_.release(content_.bytes().subspan(0, sent_));
    }
    if (response_->closed()) return;
    response_->post_after(std::chrono::milliseconds(1),
                          [self = shared_from_this()] { self->send_more(); });
  }

  const MappedFile content_;
  const ResponsePtr response_;
  size_t sent_ = 0;
};

void handle_content(const BatchCall& call) {
  auto content = call.batches.files->content(call.request.param("id"), call.filter);
  if (!content) return call.response->send(error_response(Dialect::kOpenAi, content.error()));
  std::make_shared<ContentStream>(std::move(*content), call.response)->begin();
}

const std::vector<Route>& own_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/v1/files",
       kUser,
       "Upload a file (multipart/form-data: file, purpose)",
       on_worker(handle_upload),
       "",
       nullptr},
      {{"GET"}, "/v1/files", kUser, "The files", on_worker(handle_list_files), "", nullptr},
      {{"GET"},
       "/v1/files/{id}",
       kUser,
       "What is known of a file",
       on_worker(handle_get_file),
       "",
       nullptr},
      {{"DELETE"},
       "/v1/files/{id}",
       kUser,
       "Delete a file",
       on_worker(handle_delete_file),
       "",
       nullptr},
      {{"GET"},
       "/v1/files/{id}/content",
       kUser,
       "The content of a file",
       on_worker(handle_content),
       "",
       nullptr},
  };
  return table;
}

}  // namespace

void write_file(JsonWriter& w, const FileRecord& file) {
  w.begin_object().member("id", file.id).member("object", "file").member("bytes", file.bytes);
  w.member("created_at", file.created_at).member("expires_at", file.expires_at);
  w.member("filename", file.filename).member("purpose", file.purpose);
  w.member("status", "processed").key("status_details").null().end_object();
}

Status check_purpose(std::string_view purpose) {
  if (std::ranges::count(kPurposes, purpose) > 0) return {};
  return invalid_argument("purpose is '{}'; it must be one of {}", purpose,
                          fmt::join(kPurposes, ", "));
}

const std::vector<Route>& file_routes() {
  static const std::vector<Route> table = [] {
    std::vector<Route> all = own_routes();
    all.insert(all.end(), upload_routes().begin(), upload_routes().end());
    return all;
  }();
  return table;
}

}  // namespace espalier::server
