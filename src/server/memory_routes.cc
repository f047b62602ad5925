// /release_memory_occupation, /resume_memory_occupation and /weights_checker, as SGLang has them.
#include "server/memory_routes.h"

#include <algorithm>
#include <boost/json/value.hpp>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/weights/weight_control.h"
#include "server/errors.h"
#include "server/json_fields.h"
#include "server/json_writer.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

struct MemoryBody {
  std::vector<MemoryPart> parts = {MemoryPart::kKvCache, MemoryPart::kWeights};
};

// A CPU has no CUDA graphs, which SGLang's clients name too.
Status read_tags(const Json& value, std::string_view where, MemoryBody& out) {
  if (value.is_null()) return Status();
  if (!value.is_array()) return invalid_argument("{} must be a list of tags", where);
  out.parts.clear();
  for (const Json& tag : value.get_array()) {
    std::string name;
    ESP_RETURN_IF_ERROR(read_value(tag, fmt::format("{}[]", where), name));
    const auto part = parse_memory_part(name);
    if (part) out.parts.push_back(*part);
    if (part || name == "cuda_graph") continue;
    return invalid_argument("{} has \"{}\", but a tag is kv_cache, weights or cuda_graph", where,
                            name);
  }
  return Status();
}

const Fields<MemoryBody>& memory_fields() {
  using B = MemoryBody;
  static const Fields<B> fields = {
      custom<B>("tags",
                R"({"type":["array","null"],"items":{"enum":["kv_cache","weights","cuda_graph"]}})",
                "which memory: kv_cache, weights; without it both. cuda_graph has no effect",
                read_tags),
  };
  return fields;
}

std::string memory_schema() { return schema_of(memory_fields()); }

int code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kFailedPrecondition:
      return 409;
    case StatusCode::kUnavailable:
    case StatusCode::kResourceExhausted:
      return 503;
    case StatusCode::kUnimplemented:
      return 501;
    default:
      return 500;
  }
}

HttpResponse memory_answer(const Result<MemoryReport>& done) {
  if (!done) return http_error(code_of(done.error().code()), done.error().message());
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("released").begin_array();
  for (const MemoryPart part : done->released) w.value(name_of(part));
  w.end_array().member("released_bytes", done->released_bytes);
  w.member("seconds", done->seconds).end_object();
  return HttpResponse::json(200, std::move(out));
}

// The body is empty, or an object. Null, after an answer, where it is wrong or there are replicas.
template <typename Body>
WeightControl* begin_call(const ContextPtr& context, const HttpRequest& request,
                          const ResponsePtr& response, const Fields<Body>& fields, Body& body) {
  Status read;
  const auto value = parse_json(request.body.empty() ? "{}" : request.body);
  read = value ? read_fields(fields, *value, "", body) : value.error();
  WeightControl* const weights = context->engine.weights();
  if (!read.ok()) {
    response->send(malformed_response(read));
    return nullptr;
  }
  if (weights == nullptr)
    response->send(
        http_error(501,
                   "replicas (--dp-size) of one server do not take this call: start a server for "
                   "each, behind espalier router"));
  return weights;
}

// On a thread that may wait for requests, and read files.
void answer_later(const ContextPtr& context, const ResponsePtr& response,
                  std::function<HttpResponse()> answer) {
  const bool queued = context->threads->weights.run([response, answer = std::move(answer)] {
    HttpResponse made;
    try {
      made = answer();
    } catch (const std::exception& problem) {  // bad_alloc
      made = http_error(503, fmt::format("the call ended early: {}", problem.what()));
    }
    response->post(
        [response, made = std::move(made)]() mutable { response->send(std::move(made)); });
  });
  if (!queued) response->send(http_error(503, "too much work is waiting: try again later"));
}

template <typename Call>
void handle_memory(const ContextPtr& context, const HttpRequest& request,
                   const ResponsePtr& response, Call call) {
  MemoryBody body;
  WeightControl* const weights = begin_call(context, request, response, memory_fields(), body);
  if (weights == nullptr) return;
  answer_later(context, response, [weights, call, parts = std::move(body.parts)] {
    return memory_answer((weights->*call)(parts));
  });
}

void handle_release(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  handle_memory(context, request, response, &WeightControl::release_memory);
}

void handle_resume(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  handle_memory(context, request, response, &WeightControl::resume_memory);
}

struct CheckerBody {
  std::string action;
};

const Fields<CheckerBody>& checker_fields() {
  using B = CheckerBody;
  static const Fields<B> fields = [] {
    Fields<B> f = {field<B>(
        "action",
        "snapshot: digests of all tensors are kept; reset_tensors: random values replace them; "
        "compare: fails where a tensor is not as the snapshot; checksum: digests in the answer",
        &B::action)};
    f[0].required = true;
    return f;
  }();
  return fields;
}

std::string checker_schema() { return schema_of(checker_fields()); }

std::string hex_of(const Sha256::Digest& digest) {
  std::string out;
  for (const uint8_t byte : digest) out += fmt::format("{:02x}", byte);
  return out;
}

HttpResponse checker_answer(const Status& status, std::string_view message,
                            const std::vector<TensorDigest>& digests = {}) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("success", status.ok());
  w.member("message", status.ok() ? message : status.message());
  if (!digests.empty()) {
    w.key("checksums").begin_object();
    for (const TensorDigest& tensor : digests) w.member(tensor.name, hex_of(tensor.digest));
    w.end_object();
  }
  w.end_object();
  const bool invalid = status.code() == StatusCode::kInvalidArgument;
  return HttpResponse::json(status.ok() ? 200
                            : invalid   ? 400
                                        : code_of(status.code()),
                            std::move(out));
}

// Names some of the tensors, for there may be hundreds.
Status compare_tensors(WeightControl& weights) {
  constexpr size_t kNamedMax = 5;
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> differ, weights.compare());
  if (differ.empty()) return Status();
  std::string names;
  for (size_t i = 0; i < std::min(kNamedMax, differ.size()); ++i)
    names += (i == 0 ? "" : ", ") + differ[i];
  return invalid_argument("{} tensors differ from the snapshot: {}{}", differ.size(), names,
                          differ.size() > kNamedMax ? " and others" : "");
}

HttpResponse check_weights(WeightControl& weights, const std::string& action) {
  if (action == "snapshot") return checker_answer(weights.take_snapshot(), "Snapshot taken.");
  if (action == "compare")
    return checker_answer(compare_tensors(weights), "All tensors are equal.");
  if (action == "reset_tensors") {
    const auto done = weights.update({.random = true});
    return checker_answer(done ? Status() : done.error(), "Tensors are random.");
  }
  if (action != "checksum")
    return checker_answer(
        invalid_argument("action is \"{}\", but must be snapshot, reset_tensors, compare or "
                         "checksum",
                         action),
        "");
  const auto digests = weights.digests();
  if (!digests) return checker_answer(digests.error(), "");
  return checker_answer(Status(), "SHA-256 of each tensor's bytes.", *digests);
}

void handle_checker(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  CheckerBody body;
  WeightControl* const weights = begin_call(context, request, response, checker_fields(), body);
  if (weights == nullptr) return;
  answer_later(context, response, [weights, action = std::move(body.action)] {
    return check_weights(*weights, action);
  });
}

}  // namespace

const std::vector<Route>& memory_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/release_memory_occupation",
       kControl,
       "Give the memory of weights and cache back to the system",
       handle_release,
       "ReleaseMemoryOccupation",
       memory_schema},
      {{"POST"},
       "/resume_memory_occupation",
       kControl,
       "Take the memory of weights and cache again",
       handle_resume,
       "ResumeMemoryOccupation",
       memory_schema},
      {{"POST"},
       "/weights_checker",
       kControl,
       "Compare the weights with those of an earlier time",
       handle_checker,
       "WeightsChecker",
       checker_schema},
  };
  return table;
}

}  // namespace espalier::server
