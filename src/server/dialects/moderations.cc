// OpenAI's /v1/moderations over a model with a head for classes: its labels are the categories, and
// a text is flagged by the labels that --moderation-safe-labels does not name.
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "engine/requests/score.h"
#include "server/dialects/chat_dialect.h"
#include "server/routes.h"
#include "server/start_generation.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

constexpr float kThreshold = 0.5f;  // the score from which on a category applies

struct ModerationRequest {
  std::string model;  // echoed
  std::vector<std::string> inputs;
};

// [{"type": "text", "text": ...}, ...]: the parts of one input.
Status read_parts(const json::array& parts, std::string_view where, std::string& out) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    const json::object* part = parts[i].if_object();
    if (part == nullptr) return wrong_type(place, "a part with a type", parts[i]);
    const std::string_view type = string_member(*part, "type");
    if (type == "image_url")
      return error(StatusCode::kUnimplemented,
                   "{} is an image, and models for moderation read text alone", place);
    const Json* text = part->if_contains("text");
    if (type != "text" || text == nullptr || !text->is_string())
      return invalid_argument("{} must be {{\"type\": \"text\", \"text\": ...}}", place);
    if (!out.empty()) out += '\n';
    out += view(text->get_string());
  }
  return {};
}

Status read_moderation_input(const Json& value, std::string_view where, ModerationRequest& out) {
  const json::array* list = value.if_array();
  if (list != nullptr && !list->empty() && list->front().is_object())
    return read_parts(*list, where, out.inputs.emplace_back());
  return read_value(value, where, out.inputs);
}

const Fields<ModerationRequest>& moderation_fields() {
  using M = ModerationRequest;
  static const Fields<M> fields = [] {
    Fields<M> f = {custom<M>("input", R"({"anyOf":[{"type":"string"},{"type":"array"}]})",
                             "a text, a list of texts, or the parts of one", read_moderation_input),
                   field<M>("model", "echoed; one model is served", &M::model)};
    f[0].required = true;
    return f;
  }();
  return fields;
}
std::string moderation_schema() { return schema_of(moderation_fields()); }

Result<ModerationRequest> parse_moderation(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(ModerationRequest request, parse_body(moderation_fields(), body, malformed));
  if (request.inputs.empty()) return fail(invalid_argument("input is empty"));
  ESP_RETURN_IF_ERROR(check_samples(request.inputs.size(), 1));
  return request;
}

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

bool is_safe(std::string_view label, std::string_view safe_labels) {
  for (size_t begin = 0; begin <= safe_labels.size();) {
    const size_t end = std::min(safe_labels.find(',', begin), safe_labels.size());
    if (equal_without_case(label, safe_labels.substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

// The probability of each label; of a single one that of its score alone.
std::vector<float> probabilities(const std::vector<float>& scores) {
  if (scores.size() == 1) return {1 / (1 + std::exp(-scores[0]))};
  return softmax(scores);
}

class ModerationGeneration final : public Generation {
 public:
  ModerationGeneration(const ContextPtr& context, net::ResponsePtr response,
                       std::vector<GenerationItem> items, const ModerationRequest& request)
      : Generation(context, std::move(response), std::move(items), false),
        model_(request.model.empty() ? context->model_name : request.model) {}

 protected:
  Dialect dialect() const override { return Dialect::kOpenAi; }
  void append_events(std::string&, const Sample&) override {}
  // An aborted text has no scores.
  bool is_failure(const FinishReason& finish) const override {
    return finish.type == FinishReason::Type::kAbort || Generation::is_failure(finish);
  }
  std::string whole_body() override {
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("id", "modr-" + samples()[0].rid).member("model", model_);
    w.key("results").begin_array();
    for (const Sample& sample : samples()) write_result(w, probabilities(sample.embedding));
    w.end_array().end_object();
    return out;
  }

 private:
  // {label: value} for each label; `write` writes the value.
  template <typename Write>
  void write_labels(JsonWriter& w, std::string_view name, Write write) const {
    const std::vector<std::string>& labels = context().engine.model_info().pooled->labels;
    w.key(name).begin_object();
    for (size_t i = 0; i < labels.size(); ++i) {
      w.key(labels[i]);
      write(i);
    }
    w.end_object();
  }

  void write_result(JsonWriter& w, const std::vector<float>& scores) const {
    const std::vector<std::string>& labels = context().engine.model_info().pooled->labels;
    bool flagged = false;
    for (size_t i = 0; i < labels.size(); ++i)
      flagged |= scores[i] >= kThreshold &&
                 !is_safe(labels[i], context().config.answers.moderation_safe_labels);
    w.begin_object().member("flagged", flagged);
    write_labels(w, "categories", [&](size_t i) { w.value(scores[i] >= kThreshold); });
    write_labels(w, "category_scores", [&](size_t i) { w.value(scores[i]); });
    write_labels(w, "category_applied_input_types",
                 [&](size_t) { w.begin_array().value("text").end_array(); });
    w.end_object();
  }

  const std::string model_;
};

std::shared_ptr<Generation> start_moderation(const ContextPtr& context,
                                             const net::ResponsePtr& response,
                                             ModerationRequest&& request) {
  const ModelInfo& info = context->engine.model_info();
  if (!info.pooled || !info.pooled->is_scores ||
      info.pooled->labels.size() != static_cast<size_t>(info.pooled->size)) {
    response->send(error_response(
        Dialect::kOpenAi,
        error(StatusCode::kFailedPrecondition,
              "{} has no head for classes; /v1/moderations needs a model for sequence "
              "classification whose labels are the categories: start a server with one",
              info.architecture)));
    return nullptr;
  }
  std::vector<GenerationItem> items;
  for (std::string& text : request.inputs) {
    GenerationItem& item = items.emplace_back();
    item.request.embed = true;
    item.request.text = std::move(text);
  }
  return std::make_shared<ModerationGeneration>(context, response, std::move(items), request);
}

void handle_moderations(const ContextPtr& context, net::HttpRequest&& request,
                        net::ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOpenAi,
                   parse_moderation, start_moderation);
}

}  // namespace

const std::vector<Route>& moderation_routes() {
  static const std::vector<Route> table = {{{"POST"},
                                            "/v1/moderations",
                                            Access::kUser,
                                            "Whether texts are to be flagged (OpenAI)",
                                            handle_moderations,
                                            "ModerationRequest",
                                            moderation_schema}};
  return table;
}

}  // namespace espalier::server
