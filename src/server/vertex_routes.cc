// POST /vertex_generate, as Vertex AI sends predictions: {"instances": [{"text"}], "parameters"} is
// /generate's body, its texts one list; the answer stands in "predictions".
#include <algorithm>
#include <boost/json.hpp>

#include "server/errors.h"
#include "server/json_fields.h"
#include "server/native_generation.h"
#include "server/routes.h"
#include "server/start_generation.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

struct VertexRequest {
  std::vector<json::object> instances;
  json::object parameters;
};

const Fields<VertexRequest>& vertex_fields() {
  using V = VertexRequest;
  static const Fields<V> fields = {
      custom<V>("instances", R"({"type":"array","items":{"type":"object"}})",
                "each with text or input_ids",
                [](const Json& value, std::string_view where, V& out) -> Status {
                  const json::array* const list = value.if_array();
                  if (list == nullptr)
                    return invalid_argument("{} must be a list, not {}", where, describe(value));
                  for (const json::value& each : *list) {
                    if (!each.is_object())
                      return invalid_argument("{} must hold objects, not {}", where,
                                              describe(each));
                    out.instances.push_back(each.get_object());
                  }
                  return {};
                }),
      custom<V>("parameters", R"({"type":"object"})", "the other members of /generate's body",
                [](const Json& value, std::string_view where, V& out) -> Status {
                  if (!value.is_object())
                    return invalid_argument("{} must be an object, not {}", where, describe(value));
                  out.parameters = value.get_object();
                  return {};
                }),
  };
  return fields;
}

std::string vertex_schema() { return schema_of(vertex_fields()); }

constexpr const char* kInputs[] = {"text", "input_ids"};

// The first instance says which member holds the inputs of all.
json::object to_generate(VertexRequest&& request) {
  json::object body = std::move(request.parameters);
  for (const char* name : kInputs) {
    const json::value* const first = request.instances.front().if_contains(name);
    if (first == nullptr || !is_set(*first)) continue;
    json::array inputs;
    for (json::object& instance : request.instances) inputs.push_back(instance[name]);
    body[name] = std::move(inputs);
    break;
  }
  return body;
}

// Passes an answer on; a whole one that succeeded stands in "predictions".
class Predictions final : public net::ResponseWriter {
 public:
  explicit Predictions(net::ResponsePtr client) : client_(std::move(client)) {}

  void send(net::HttpResponse response) override {
    if (response.status == 200) response.body = R"({"predictions":)" + response.body + "}";
    client_->send(std::move(response));
  }
  void start_stream(int status, net::Headers headers) override {
    client_->start_stream(status, std::move(headers));
  }
  void write(std::string bytes) override { client_->write(std::move(bytes)); }
  size_t pending_output() const override { return client_->pending_output(); }
  void finish() override { client_->finish(); }
  void on_disconnect(std::function<void()> callback) override {
    client_->on_disconnect(std::move(callback));
  }
  void post(std::function<void()> task) override { client_->post(std::move(task)); }
  void post_after(Duration delay, std::function<void()> task) override {
    client_->post_after(delay, std::move(task));
  }
  bool closed() const override { return client_->closed(); }

 private:
  const net::ResponsePtr client_;
};

void handle_vertex(const ContextPtr& context, net::HttpRequest&& request,
                   net::ResponsePtr response) {
  bool malformed = false;
  auto parsed = parse_body(vertex_fields(), request.body, malformed);
  if (!parsed)
    return response->send(malformed ? malformed_response(parsed.error())
                                    : error_response(Dialect::kNative, parsed.error()));
  if (parsed->instances.empty()) return response->send(net::HttpResponse::json(200, "[]"));
  const json::object& first = parsed->instances.front();
  if (std::ranges::none_of(kInputs, [&](const char* name) {
        const json::value* const input = first.if_contains(name);
        return input != nullptr && is_set(*input);
      }))
    return response->send(
        malformed_response(invalid_argument("instances[0] has neither text nor input_ids")));
  request.body = json::serialize(to_generate(std::move(*parsed)));
  request.path = "/generate";  // whose body it has now
  start_generation(context, std::move(request), std::make_shared<Predictions>(std::move(response)),
                   Dialect::kNative, parse_native, make_native_generation);
}

}  // namespace

const std::vector<Route>& vertex_routes() {
  static const std::vector<Route> table = {{{"POST"},
                                            "/vertex_generate",
                                            Access::kUser,
                                            "Predictions (Vertex AI)",
                                            handle_vertex,
                                            "VertexRequest",
                                            vertex_schema}};
  return table;
}

}  // namespace espalier::server
