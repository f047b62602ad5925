// /update_weights_from_disk and the version's name, as SGLang has them; /update_weights_from_tensor
// with safetensors in place of pickles, which are programs and are not run.
#include <sys/mman.h>
#include <unistd.h>

#include <boost/json/value.hpp>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/base64.h"
#include "engine/weights/weight_control.h"
#include "server/errors.h"
#include "server/json_fields.h"
#include "server/json_writer.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

struct UpdateBody {
  std::string path;
  std::string load_format = "auto";
  bool abort_all_requests = false;
  bool flush_cache = true;
  bool keep_pause = false;
  std::optional<std::string> version;
};

const Fields<UpdateBody>& update_fields() {
  using B = UpdateBody;
  static const Fields<B> fields = [] {
    Fields<B> f = {
        field<B>("model_path",
                 "a folder with config.json and safetensors of the same architecture and shapes, "
                 "or a .gguf file, on the server's computer",
                 &B::path),
        field<B>("load_format", "auto: what the path holds", &B::load_format),
        field<B>("abort_all_requests", "abort requests that have started instead of waiting",
                 &B::abort_all_requests),
        field<B>("weight_version", "the version's name from here on", &B::version),
        field<B>("flush_cache", "drop what the old weights have computed", &B::flush_cache),
        field<B>("keep_pause", "leave the engine paused afterwards", &B::keep_pause),
        refused<B>("is_async", "has no effect: the answer comes when the weights are replaced"),
        refused<B>("manifest", "is not read: checksums lie in no list beside the files"),
        ignored<B>("torch_empty_cache"),
        ignored<B>("recapture_cuda_graph"),
        ignored<B>("token_step"),
    };
    f[0].required = true;
    return f;
  }();
  return fields;
}

struct TensorBody {
  std::string safetensors;  // base64
  std::string load_format = "auto";
  bool abort_all_requests = false;
  bool flush_cache = true;
  std::optional<std::string> version;
};

const Fields<TensorBody>& tensor_fields() {
  using B = TensorBody;
  static const Fields<B> fields = {
      field<B>("safetensors",
               "a safetensors file with the tensors to be replaced, by their names in the "
               "checkpoint, as base64",
               &B::safetensors),
      field<B>("load_format", "auto", &B::load_format),
      field<B>("abort_all_requests", "abort requests that have started instead of waiting",
               &B::abort_all_requests),
      field<B>("weight_version", "the version's name from here on", &B::version),
      field<B>("flush_cache", "drop what the old weights have computed", &B::flush_cache),
      refused<B>("serialized_named_tensors",
                 "holds pickles, which can run any code: give safetensors, or the file itself as "
                 "application/octet-stream"),
      ignored<B>("disable_draft_model"),  // a draft head keeps its weights
      ignored<B>("torch_empty_cache"),
  };
  return fields;
}

struct SharedBody {
  std::vector<SharedTensor> tensors;
  bool flush_cache = true;
  bool abort_all_requests = false;
  std::optional<std::string> version;
};

Status read_number(const Json& value, std::string_view where, int64_t& out) {
  uint64_t number = 0;
  ESP_RETURN_IF_ERROR(read_value(value, where, number));
  out = static_cast<int64_t>(number);
  return Status();
}

Status read_shape(const Json& value, std::string_view where, std::vector<int64_t>& out) {
  if (!value.is_array()) return invalid_argument("{} must be a list of numbers", where);
  for (const Json& extent : value.get_array())
    ESP_RETURN_IF_ERROR(read_number(extent, where, out.emplace_back()));
  return Status();
}

// {"name", "dtype", "shape", "handle", "offset_bytes"}
Status read_shared(const Json& value, std::string_view where, SharedTensor& out) {
  std::string handle;
  const auto read_member = [&](std::string_view name, const Json& member) {
    const std::string place = fmt::format("{}.{}", where, name);
    if (name == "name") return read_value(member, place, out.name);
    if (name == "dtype") return read_value(member, place, out.dtype);
    if (name == "handle") return read_value(member, place, handle);
    if (name == "offset_bytes") return read_number(member, place, out.offset_bytes);
    return name == "shape" ? read_shape(member, place, out.shape) : Status();
  };
  ESP_RETURN_IF_ERROR(for_each_member(value, where, read_member));
  if (out.name.empty()) return invalid_argument("{}.name is missing", where);
  if (!handle.empty() && decode_base64(handle, out.handle)) return Status();
  return invalid_argument("{}.handle must be the 64 bytes of a cudaIpcMemHandle_t in base64",
                          where);
}

Status read_all_shared(const Json& value, std::string_view where, SharedBody& out) {
  if (!value.is_array() || value.get_array().empty())
    return invalid_argument("{} must be a list of one tensor or more", where);
  for (const Json& tensor : value.get_array())
    ESP_RETURN_IF_ERROR(read_shared(tensor, fmt::format("{}[{}]", where, out.tensors.size()),
                                    out.tensors.emplace_back()));
  return Status();
}

const Fields<SharedBody>& shared_fields() {
  using B = SharedBody;
  static const Fields<B> fields = [] {
    Fields<B> f = {
        custom<B>("tensors", R"({"type":"array","items":{"type":"object"}})",
                  "tensors in the memory of the same GPU, each with its name in the checkpoint, "
                  "dtype (F32, BF16, F16), shape, handle (cudaIpcMemHandle_t in base64) and "
                  "offset_bytes",
                  read_all_shared),
        field<B>("flush_cache", "drop what the old weights have computed", &B::flush_cache),
        field<B>("abort_all_requests", "abort requests that have started instead of waiting",
                 &B::abort_all_requests),
        field<B>("weight_version", "the version's name from here on", &B::version),
        refused<B>("zmq_handles", "leads to pickles, which can run any code: give tensors"),
        ignored<B>("torch_empty_cache"),
    };
    f[0].required = true;
    return f;
  }();
  return fields;
}

struct NameBody {
  std::string name;
  int32_t truncate_size = 100;
};

const Fields<NameBody>& name_fields() {
  using B = NameBody;
  static const Fields<B> fields = [] {
    Fields<B> f = {
        field<B>("name", "a tensor, by its name in the checkpoint", &B::name),
        field<B>("truncate_size", "values in the answer, at most", &B::truncate_size),
    };
    f[0].required = true;
    return f;
  }();
  return fields;
}

struct VersionBody {
  std::string version;
  bool abort_all_requests = false;
};

const Fields<VersionBody>& version_fields() {
  using B = VersionBody;
  static const Fields<B> fields = [] {
    Fields<B> f = {
        field<B>("new_version", "what answers report from here on", &B::version),
        field<B>("abort_all_requests", "abort all requests", &B::abort_all_requests),
    };
    f[0].required = true;
    return f;
  }();
  return fields;
}

std::string update_schema() { return schema_of(update_fields()); }
std::string tensor_schema() { return schema_of(tensor_fields()); }
std::string shared_schema() { return schema_of(shared_fields()); }
std::string name_schema() { return schema_of(name_fields()); }
std::string version_schema() { return schema_of(version_fields()); }

template <typename Body>
Status read_body(const HttpRequest& request, const Fields<Body>& fields, Body& body) {
  ESP_ASSIGN_OR_RETURN(const Json value, parse_json(request.body));
  return read_fields(fields, value, "", body);
}

// Null, after an answer, where the body was wrong or the engine has replicas.
WeightControl* begin(const ContextPtr& context, const Status& read, const ResponsePtr& response) {
  WeightControl* const weights = context->engine.weights();
  if (!read.ok()) {
    response->send(malformed_response(read));
  } else if (weights == nullptr) {
    response->send(
        http_error(501,
                   "replicas (--dp-size) of one server change no weights: start a server for each, "
                   "behind espalier router, and update each"));
  } else {
    return weights;
  }
  return nullptr;
}

HttpResponse update_answer(const Result<WeightUpdateReport>& done) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("success", done.has_value());
  w.member("message", done ? "Weights replaced." : done.error().to_string());
  w.member("num_paused_requests", done ? done->num_paused_requests : 0);
  if (done) w.member("seconds", done->seconds).member("cache_flushed", done->cache_flushed);
  w.end_object();
  const int code = done                                              ? 200
                   : done.error().code() == StatusCode::kUnavailable ? 503
                   : done.error().code() == StatusCode::kInternal    ? 500
                                                                     : 400;
  return HttpResponse::json(code, std::move(out));
}

Status check_format(const std::string& load_format) {
  if (load_format == "auto" || load_format == "safetensors") return Status();
  return invalid_argument(
      "load_format is \"{}\", but tensors are read as they are: leave it out, or give auto",
      load_format);
}

using RunUpdate = std::function<Result<WeightUpdateReport>()>;

Result<WeightUpdateReport> run_caught(const RunUpdate& update) {
  try {
    return update();
  } catch (const std::exception& problem) {  // bad_alloc
    return fail(error(StatusCode::kUnavailable, "the update ended early: {}", problem.what()));
  }
}

// An update reads files, and waits for requests.
void run_update(const ContextPtr& context, const ResponsePtr& response, RunUpdate update) {
  const bool queued = context->threads->weights.run([response, update = std::move(update)] {
    response->post([response, done = run_caught(update)] { response->send(update_answer(done)); });
  });
  if (!queued) response->send(http_error(503, "too much work is waiting: try again later"));
}

void handle_update(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  UpdateBody body;
  Status read = read_body(request, update_fields(), body);
  if (read.ok()) read = check_format(body.load_format);
  WeightControl* const weights = begin(context, read, response);
  if (weights == nullptr) return;
  WeightUpdate update{.path = body.path,
                      .abort_requests = body.abort_all_requests,
                      .flush_cache = body.flush_cache,
                      .keep_pause = body.keep_pause,
                      .version = std::move(body.version)};
  run_update(context, response,
             [weights, update = std::move(update)] { return weights->update(update); });
}

// A file in memory that has a path while it lives.
class MemoryFile {
 public:
  static Result<std::shared_ptr<MemoryFile>> make(std::string_view bytes) {
    std::shared_ptr<MemoryFile> file(new MemoryFile(::memfd_create("tensors", MFD_CLOEXEC)));
    for (size_t done = 0; file->fd_ >= 0 && done < bytes.size();) {
      const ssize_t wrote = ::write(file->fd_, bytes.data() + done, bytes.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) break;
      done += static_cast<size_t>(wrote);
      if (done == bytes.size()) return file;
    }
    return fail(error(StatusCode::kResourceExhausted,
                      "{} bytes of tensors cannot be kept in memory: {}", bytes.size(),
                      bytes.empty() ? "there are none" : std::strerror(errno)));
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  explicit MemoryFile(int fd) : fd_(fd) {}
  const int fd_;
};

// The file in base64 of a JSON body, or the body itself, whose other fields are in the query.
Status read_tensors(const HttpRequest& request, TensorBody& body, std::string& bytes) {
  const std::string* type = request.header("Content-Type");
  if (type == nullptr || !type->starts_with("application/octet-stream")) {
    ESP_RETURN_IF_ERROR(read_body(request, tensor_fields(), body));
    ESP_RETURN_IF_ERROR(check_format(body.load_format));
    if (!body.safetensors.empty() && decode_base64(body.safetensors, bytes)) return Status();
    return invalid_argument(
        "safetensors must be the bytes of a safetensors file in base64; or send the file itself "
        "as application/octet-stream");
  }
  bytes = request.body;
  body.version = request.query_param("weight_version");
  for (const auto& [name, to] : {std::pair("flush_cache", &body.flush_cache),
                                 std::pair("abort_all_requests", &body.abort_all_requests)}) {
    const auto stated = request.query_param(name);
    if (stated && *stated != "true" && *stated != "false")
      return invalid_argument("{} must be true or false, but it is \"{}\"", name, *stated);
    if (stated) *to = *stated == "true";
  }
  return Status();
}

void handle_tensors(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  TensorBody body;
  std::string bytes;
  const Status read = read_tensors(request, body, bytes);
  WeightControl* const weights = begin(context, read, response);
  if (weights == nullptr) return;
  run_update(context, response,
             [weights, body = std::move(body),
              bytes = std::move(bytes)]() mutable -> Result<WeightUpdateReport> {
               ESP_ASSIGN_OR_RETURN(const auto file, MemoryFile::make(bytes));
               bytes = {};
               return weights->update({.path = file->path(),
                                       .some = true,
                                       .abort_requests = body.abort_all_requests,
                                       .flush_cache = body.flush_cache,
                                       .version = std::move(body.version)});
             });
}

void handle_shared(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  SharedBody body;
  const Status read = read_body(request, shared_fields(), body);
  WeightControl* const weights = begin(context, read, response);
  if (weights == nullptr) return;
  WeightUpdate update{.shared = std::move(body.tensors),
                      .abort_requests = body.abort_all_requests,
                      .flush_cache = body.flush_cache,
                      .version = std::move(body.version)};
  run_update(context, response,
             [weights, update = std::move(update)] { return weights->update(update); });
}

constexpr int32_t kValuesMax = 1 << 20;

HttpResponse values_answer(const Result<std::vector<float>>& values) {
  if (!values) return malformed_response(values.error());
  std::string out;
  JsonWriter w(out);
  w.begin_array();
  for (const float value : *values) w.value(value);
  w.end_array();
  return HttpResponse::json(200, std::move(out));
}

void handle_values(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  NameBody body;
  Status read = read_body(request, name_fields(), body);
  if (read.ok() && (body.truncate_size < 0 || body.truncate_size > kValuesMax))
    read = invalid_argument("truncate_size is {}, but must be from 0 to {}", body.truncate_size,
                            kValuesMax);
  WeightControl* const weights = begin(context, read, response);
  if (weights == nullptr) return;
  const bool queued = context->threads->workers.run([weights, response, body] {
    response->post([response, values = weights->read(body.name, body.truncate_size)] {
      response->send(values_answer(values));
    });
  });
  if (!queued) response->send(http_error(503, "too much work is waiting: try again later"));
}

void send_version(const Context& context, const ResponsePtr& response) {
  std::string out;
  JsonWriter(out).begin_object().member("weight_version", context.weight_version()).end_object();
  response->send(HttpResponse::json(200, std::move(out)));
}

void handle_version(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  send_version(*context, response);
}

// SGLang's answer.
void handle_update_version(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  VersionBody body;
  WeightControl* const weights =
      begin(context, read_body(request, version_fields(), body), response);
  if (weights == nullptr) return;
  const Status named = weights->set_version(body.version, body.abort_all_requests);
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("success", named.ok());
  w.member("message", named.ok() ? "Weight version updated." : named.to_string());
  w.member("new_version", body.version).end_object();
  response->send(HttpResponse::json(named.ok() ? 200 : 503, std::move(out)));
}

}  // namespace

const std::vector<Route>& weight_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/update_weights_from_disk",
       kControl,
       "Replace the weights by those of another checkpoint",
       handle_update,
       "UpdateWeightsFromDisk",
       update_schema},
      {{"POST"},
       "/update_weights_from_tensor",
       kControl,
       "Replace some of the weights by name",
       handle_tensors,
       "UpdateWeightsFromTensor",
       tensor_schema},
      {{"POST"},
       "/update_weights_from_ipc",
       kControl,
       "Replace some of the weights by those of a process on the same GPU",
       handle_shared,
       "UpdateWeightsFromIpc",
       shared_schema},
      {{"POST"},
       "/get_weights_by_name",
       kAdmin,
       "The first values of a tensor",
       handle_values,
       "GetWeightsByName",
       name_schema},
      {{"POST"},
       "/update_weight_version",
       kControl,
       "Name the weights' version",
       handle_update_version,
       "UpdateWeightVersion",
       version_schema},
      {{"GET"}, "/weight_version", kUser, "The weights' version", handle_version},
      {{"GET"}, "/get_weight_version", kUser, "The weights' version", handle_version},
  };
  return table;
}

}  // namespace espalier::server
