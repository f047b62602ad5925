// Ollama's dialect: /api/chat, /api/generate, /api/embed and what its clients ask about models, so
// that Open WebUI and its kin connect. One model is served: names of models are echoed, and pulling
// any other one is refused. Streams are lines of JSON; they are the default.
#include <ctime>
#include <filesystem>

#include "server/dialects/chat_dialect.h"
#include "server/images.h"
#include "server/openai_generation.h"
#include "server/routes.h"
#include "server/served_models/model_registry.h"
#include "server/start_generation.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

struct OllamaRequest : ChatRequest {
  OllamaRequest() { stream = true; }
  bool is_chat = true;
  json::array turns;
  std::string prompt, system;
  std::vector<std::string> pictures;  // of /api/generate, in base64
  bool raw = false;                   // the prompt as it is, without the chat template
  bool empty() const { return is_chat ? turns.empty() : prompt.empty(); }
};

// A number of tokens; negative: up to the context.
Status read_num_predict(const Json& value, std::string_view where, OllamaRequest& out) {
  int32_t count = 0;
  ESP_RETURN_IF_ERROR(read_value(value, where, count));
  if (count >= 0) out.sampling.max_new_tokens = count;
  return {};
}

Status read_options(const Json& value, std::string_view where, OllamaRequest& out) {
  using O = OllamaRequest;
  static const Fields<O> fields = {
      custom<O>("num_predict", R"({"type":"integer"})", "tokens of the answer", read_num_predict),
      field<O>(
          "temperature", "", [](O & o) -> auto& { return o.sampling.temperature; }),
      field<O>(
          "top_k", "", [](O & o) -> auto& { return o.sampling.top_k; }),
      field<O>(
          "top_p", "", [](O & o) -> auto& { return o.sampling.top_p; }),
      field<O>(
          "min_p", "", [](O & o) -> auto& { return o.sampling.min_p; }),
      field<O>(
          "seed", "", [](O & o) -> auto& { return o.sampling.sampling_seed; }),
      field<O>(
          "stop", "", [](O & o) -> auto& { return o.sampling.stop; }),
      field<O>(
          "repeat_penalty", "", [](O & o) -> auto& { return o.sampling.repetition_penalty; }),
      field<O>(
          "presence_penalty", "", [](O & o) -> auto& { return o.sampling.presence_penalty; }),
      field<O>(
          "frequency_penalty", "", [](O & o) -> auto& { return o.sampling.frequency_penalty; }),
  };
  return read_fields(fields, value, std::string(where) + ".", out);
}

// "json", or a JSON Schema.
Status read_ollama_format(const Json& value, std::string_view where, OllamaRequest& out) {
  if (value == "json") {
    out.sampling.json_schema = R"({"type":"object"})";
    return {};
  }
  if (value == "") return {};
  if (!value.is_object()) return wrong_type(where, "\"json\" or a JSON Schema", value);
  out.sampling.json_schema = json::serialize(value);
  return {};
}

// true, false, or how much: "low", "medium", "high".
Status read_think(const Json& value, std::string_view where, OllamaRequest& out) {
  if (!value.is_bool() && !value.is_string())
    return wrong_type(where, "a boolean or a level", value);
  const bool on = !value.is_bool() || value.get_bool();
  if (value.is_string()) out.reasoning_effort = std::string(view(value.get_string()));
  out.template_kwargs =
      std::make_shared<const Json>(json::object{{"enable_thinking", on}, {"thinking", on}});
  return {};
}

Status read_calls(const Json& value, const std::string& where, json::array& out) {
  if (!value.is_array()) return wrong_type(where, "a list of calls", value);
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    const json::object* call = value.get_array()[i].if_object();
    const Json* function = call != nullptr ? call->if_contains("function") : nullptr;
    if (function == nullptr || !function->is_object())
      return invalid_argument("{}[{}].function is missing", where, i);
    const json::object& members = function->get_object();
    const Json* arguments = members.if_contains("arguments");
    out.push_back(function_call(fmt::format("call_{}", i), string_member(members, "name"),
                                arguments != nullptr ? json::serialize(*arguments) : "{}"));
  }
  return {};
}

// Pictures in base64 stand in front of the text.
Json with_pictures(std::string_view text, const std::vector<std::string>& sources) {
  json::array parts;
  for (const std::string& source : sources) parts.push_back(picture_part(source));
  if (!text.empty())
    parts.push_back(
        json::object{{"type", "text"}, {"text", json::string(text.data(), text.size())}});
  return parts;
}

Status read_ollama_turn(const Json& turn, const std::string& where, json::array& out) {
  const json::object* members = turn.if_object();
  if (members == nullptr) return wrong_type(where, "a message", turn);
  const std::string_view role = string_member(*members, "role");
  if (role != "system" && role != "user" && role != "assistant" && role != "tool")
    return invalid_argument("{}.role must be system, user, assistant or tool", where);
  const std::string_view content = string_member(*members, "content");
  json::object message{{"role", json::string(role.data(), role.size())},
                       {"content", json::string(content.data(), content.size())}};
  if (const Json* images = members->if_contains("images"); images != nullptr && is_set(*images)) {
    std::vector<std::string> sources;
    ESP_RETURN_IF_ERROR(read_value(*images, where + ".images", sources));
    message["content"] = with_pictures(content, sources);
  }
  if (const std::string_view thinking = string_member(*members, "thinking"); !thinking.empty())
    message["reasoning_content"] = json::string(thinking.data(), thinking.size());
  if (const std::string_view tool = string_member(*members, "tool_name"); !tool.empty())
    message["name"] = json::string(tool.data(), tool.size());
  if (const Json* calls = members->if_contains("tool_calls"); calls != nullptr && is_set(*calls)) {
    json::array translated;
    ESP_RETURN_IF_ERROR(read_calls(*calls, where + ".tool_calls", translated));
    message["tool_calls"] = std::move(translated);
  }
  out.push_back(std::move(message));
  return {};
}

Status read_ollama_turns(const Json& value, std::string_view where, OllamaRequest& out) {
  if (!value.is_array()) return wrong_type(where, "a list of messages", value);
  for (size_t i = 0; i < value.get_array().size(); ++i)
    ESP_RETURN_IF_ERROR(
        read_ollama_turn(value.get_array()[i], fmt::format("{}[{}]", where, i), out.turns));
  return {};
}

void append_shared(Fields<OllamaRequest>& fields) {
  using O = OllamaRequest;
  fields.push_back(field<O>("model", "echoed; one model is served", &O::model));
  fields.push_back(field<O>("stream", "answer as lines of JSON; default true", &O::stream));
  fields.push_back(
      custom<O>("options", R"({"type":"object"})", "sampling parameters", read_options));
  fields.push_back(custom<O>("format", R"({"anyOf":[{"type":"string"},{"type":"object"}]})",
                             "json, or a JSON Schema of the answer", read_ollama_format));
  fields.push_back(custom<O>("think", R"({"anyOf":[{"type":"boolean"},{"type":"string"}]})",
                             "whether the model thinks first", read_think));
  for (const char* name : {"keep_alive", "truncate", "shift", "logprobs", "top_logprobs"})
    fields.push_back(ignored<O>(name));
}

const Fields<OllamaRequest>& ollama_chat_fields() {
  using O = OllamaRequest;
  static const Fields<O> fields = [] {
    const std::string list = R"({"type":"array","items":{"type":"object"}})";
    Fields<O> f = {
        custom<O>("messages", list, "the conversation", read_ollama_turns),
        custom<O>("tools", list, "functions that the answer may call",
                  [](const Json& value, std::string_view where, O& out) {
                    return read_tools(value, where, out.tools);
                  }),
    };
    append_shared(f);
    return f;
  }();
  return fields;
}

const Fields<OllamaRequest>& generate_fields() {
  using O = OllamaRequest;
  static const Fields<O> fields = [] {
    Fields<O> f = {
        field<O>("prompt", "what to answer", &O::prompt),
        field<O>("system", "the system prompt", &O::system),
        field<O>("raw", "the prompt as it is, without the chat template", &O::raw),
        refused<O>("suffix"),
        field<O>("images", "pictures in base64, in front of the prompt", &O::pictures),
        ignored<O>("template"),
        ignored<O>("context"),
    };
    append_shared(f);
    return f;
  }();
  return fields;
}

Result<OllamaRequest> parse_chat_body(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(OllamaRequest request, parse_body(ollama_chat_fields(), body, malformed));
  if (!request.empty()) ESP_RETURN_IF_ERROR(finish_chat(request.turns, request));
  return request;
}

Result<OllamaRequest> parse_generate_body(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(OllamaRequest request, parse_body(generate_fields(), body, malformed));
  request.is_chat = false;
  if (request.empty()) return request;
  if (!request.system.empty())
    request.turns.push_back(json::object{{"role", "system"}, {"content", request.system}});
  json::object turn{{"role", "user"}, {"content", request.prompt}};
  if (!request.pictures.empty()) turn["content"] = with_pictures(request.prompt, request.pictures);
  request.turns.push_back(std::move(turn));
  ESP_RETURN_IF_ERROR(finish_chat(request.turns, request));
  return request;
}

std::string chat_body_schema() { return schema_of(ollama_chat_fields()); }
std::string generate_body_schema() { return schema_of(generate_fields()); }

// "2026-11-23T07:00:00.123456Z"
std::string ollama_time_text(std::chrono::system_clock::time_point time) {
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
  const auto seconds = static_cast<std::time_t>(micros / 1'000'000);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:06}Z", text, micros % 1'000'000);
}

int64_t nanoseconds(TimePoint from, TimePoint to) {
  return std::max<int64_t>(0,
                           std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}

void write_durations(JsonWriter& w, const RequestStats& s) {
  w.member("total_duration", nanoseconds(s.arrived, s.finished)).member("load_duration", 0);
  w.member("prompt_eval_count", s.prompt_tokens);
  w.member("prompt_eval_duration", nanoseconds(s.arrived, s.first_token));
  w.member("eval_count", s.completion_tokens);
  w.member("eval_duration", nanoseconds(s.first_token, s.finished));
}

class OllamaGeneration final : public ChatDialectGeneration {
 public:
  OllamaGeneration(ContextPtr context, net::ResponsePtr response, GenerationItem item,
                   const OllamaRequest& request, const AnswerFormat& format)
      : ChatDialectGeneration(std::move(context), std::move(response), std::move(item), request,
                              format),
        is_chat_(request.is_chat) {}

 protected:
  Dialect dialect() const override { return Dialect::kOllama; }
  Status in_client_names(const Status& status) const override {
    std::string text = renamed(status.message(), "max_new_tokens", "num_predict");
    return {status.code(), renamed(std::move(text), "repetition_penalty", "repeat_penalty")};
  }
  std::string_view stream_type() const override { return "application/x-ndjson"; }
  void append_end(std::string&) override {}
  void append_failure(std::string& out, const Status& status) override {
    out += stream_error(dialect(), status) + "\n";
  }

  // Calls come whole, in the line in front of the last one.
  void append_events(std::string& out, const Sample& sample) override {
    const ChatAnswer::Delta delta = answer().read(sample.text, sample.finish.has_value());
    if (!delta.text.empty() || !delta.reasoning.empty())
      append_line(out, delta.text, delta.reasoning, false, nullptr);
    if (!sample.finish) return;
    if (!answer().calls().empty()) append_line(out, "", "", true, nullptr);
    append_line(out, "", "", false, &sample);
  }

  std::string whole_body() override {
    const Sample& sample = samples()[0];
    answer().read(sample.text, true);
    std::string out;
    write(out, answer().text(), answer().reasoning(), true, &sample);
    return out;
  }

 private:
  void append_line(std::string& out, std::string_view text, std::string_view reasoning,
                   bool with_calls, const Sample* ended) {
    write(out, text, reasoning, with_calls, ended);
    out += "\n";
  }

  void write(std::string& out, std::string_view text, std::string_view reasoning, bool with_calls,
             const Sample* ended) {
    JsonWriter w(out);
    w.begin_object().member("model", model());
    w.member("created_at", ollama_time_text(std::chrono::system_clock::now()));
    if (is_chat_) {
      w.key("message").begin_object().member("role", "assistant").member("content", text);
      if (!reasoning.empty()) w.member("thinking", reasoning);
      if (with_calls) write_calls(w);
      w.end_object();
    } else {
      w.member("response", text);
      if (!reasoning.empty()) w.member("thinking", reasoning);
    }
    w.member("done", ended != nullptr);
    if (ended != nullptr) {
      const bool cut = ended->finish->type == FinishReason::Type::kLength;
      w.member("done_reason", cut ? "length" : "stop");
      write_durations(w, ended->stats);
    }
    w.end_object();
  }

  void write_calls(JsonWriter& w) {
    if (answer().calls().empty()) return;
    w.key("tool_calls").begin_array();
    for (size_t i = 0; i < answer().calls().size(); ++i) {
      const ChatAnswer::Call& call = answer().calls()[i];
      w.begin_object().member("id", call_id(i, "call_")).key("function").begin_object();
      w.member("index", i).member("name", call.name);
      w.key("arguments").raw(json::serialize(arguments_value(call.arguments)));
      w.end_object().end_object();
    }
    w.end_array();
  }

  const bool is_chat_;
};

// A request without a prompt asks for the model to be loaded, which it is.
void answer_loaded(const Context& context, const net::ResponsePtr& response,
                   const OllamaRequest& request) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("model", request.model.empty() ? context.model_name : request.model);
  w.member("created_at", ollama_time_text(std::chrono::system_clock::now()));
  if (request.is_chat) {
    w.key("message").begin_object().member("role", "assistant").member("content", "").end_object();
  } else {
    w.member("response", "");
  }
  w.member("done", true).member("done_reason", "load").end_object();
  response->send(net::HttpResponse::json(200, std::move(out)));
}

Result<ChatPlan> ollama_plan(const Context& context, OllamaRequest& request) {
  if (!request.raw) return plan_chat(context, request);
  ChatPlan plan;
  plan.prompt = request.prompt;  // with its placeholders
  plan.pictures = pictures_alone(request.pictures);
  return plan;
}

std::shared_ptr<Generation> start_ollama(const ContextPtr& context,
                                         const net::ResponsePtr& response,
                                         OllamaRequest&& request) {
  if (request.empty()) {
    answer_loaded(*context, response, request);
    return nullptr;
  }
  auto plan = ollama_plan(*context, request);
  if (!plan) {
    response->send(error_response(Dialect::kOllama, plan.error()));
    return nullptr;
  }
  GenerationItem item = chat_item(*context, request, *plan);
  item.request.add_special_tokens = request.raw;
  return std::make_shared<OllamaGeneration>(context, response, std::move(item), request,
                                            plan->answer);
}

void handle_ollama_chat(const ContextPtr& context, net::HttpRequest&& request,
                        net::ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOllama,
                   parse_chat_body, start_ollama);
}

void handle_ollama_generate(const ContextPtr& context, net::HttpRequest&& request,
                            net::ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOllama,
                   parse_generate_body, start_ollama);
}

struct OllamaEmbedRequest {
  std::string model;
  PerItem<std::string> input;
  std::optional<std::string> prompt;  // of /api/embeddings
  int32_t dimensions = 0;
};

const Fields<OllamaEmbedRequest>& ollama_embed_fields() {
  using E = OllamaEmbedRequest;
  static const Fields<E> fields = {
      field<E>("model", "echoed; one model is served", &E::model),
      field<E>("input", "a text, or a list of texts", &E::input),
      field<E>("prompt", "a text, in /api/embeddings", &E::prompt),
      field<E>("dimensions", "of the vectors; default all", &E::dimensions),
      ignored<E>("truncate"),
      ignored<E>("options"),
      ignored<E>("keep_alive"),
  };
  return fields;
}
std::string ollama_embed_schema() { return schema_of(ollama_embed_fields()); }

class OllamaEmbedGeneration final : public Generation {
 public:
  OllamaEmbedGeneration(ContextPtr context, net::ResponsePtr response,
                        std::vector<GenerationItem> items, const OllamaEmbedRequest& request)
      : Generation(context, std::move(response), std::move(items), false),
        model_(request.model.empty() ? context->model_name : request.model),
        single_(request.prompt.has_value()) {}

 protected:
  Dialect dialect() const override { return Dialect::kOllama; }
  void append_events(std::string&, const Sample&) override {}
  std::string whole_body() override {
    std::string out;
    JsonWriter w(out);
    w.begin_object();
    if (single_) {
      w.key("embedding");
      write_numbers(w, samples()[0].embedding);
      w.end_object();
      return out;
    }
    int64_t tokens = 0;
    TimePoint first = samples()[0].stats.arrived, last = first;
    w.member("model", model_).key("embeddings").begin_array();
    for (const Sample& sample : samples()) {
      write_numbers(w, sample.embedding);
      tokens += sample.stats.prompt_tokens;
      last = std::max(last, sample.stats.finished);
    }
    w.end_array().member("total_duration", nanoseconds(first, last)).member("load_duration", 0);
    w.member("prompt_eval_count", tokens).end_object();
    return out;
  }

 private:
  static void write_numbers(JsonWriter& w, const std::vector<float>& numbers) {
    w.begin_array();
    for (const float number : numbers) w.value(number);
    w.end_array();
  }

  const std::string model_;
  const bool single_;
};

Result<OllamaEmbedRequest> parse_ollama_embed(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(OllamaEmbedRequest request,
                       parse_body(ollama_embed_fields(), body, malformed));
  if (request.prompt) request.input.values = {*request.prompt};
  if (request.input.values.empty()) return fail(invalid_argument("input is missing"));
  return request;
}

std::shared_ptr<Generation> start_ollama_embed(const ContextPtr& context,
                                               const net::ResponsePtr& response,
                                               OllamaEmbedRequest&& request) {
  std::vector<GenerationItem> items;
  for (std::string& text : request.input.values) {
    GenerationItem& item = items.emplace_back();
    item.request.embed = true;
    item.request.dimensions = request.dimensions;
    item.request.text = std::move(text);
  }
  return std::make_shared<OllamaEmbedGeneration>(context, response, std::move(items), request);
}

void handle_ollama_embed(const ContextPtr& context, net::HttpRequest&& request,
                         net::ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOllama,
                   parse_ollama_embed, start_ollama_embed);
}

std::string size_text(int64_t parameters) {
  if (parameters >= 1'000'000'000)
    return fmt::format("{:.1f}B", static_cast<double>(parameters) / 1e9);
  return fmt::format("{:.1f}M", static_cast<double>(parameters) / 1e6);
}

void write_details(JsonWriter& w, const Context& context) {
  const ModelInfo& info = context.engine.model_info();
  const EngineConfig& config = context.engine.config();
  const bool gguf = config.model.model_path.extension() == ".gguf";
  w.key("details").begin_object().member("parent_model", "");
  w.member("format", gguf ? "gguf" : "safetensors").member("family", info.model_type);
  w.key("families").begin_array().value(info.model_type).end_array();
  w.member("parameter_size", size_text(info.num_parameters));
  w.member("quantization_level", config.model.dtype).end_object();
}

void write_ollama_model(JsonWriter& w, const Context& context, bool running) {
  const int64_t bytes = context.engine.model_info().weight_bytes;
  const auto started = std::chrono::system_clock::from_time_t(context.parts->created_unix);
  w.begin_object().member("name", context.model_name).member("model", context.model_name);
  w.member("size", bytes).member("digest", "");
  if (running) {
    w.member("size_vram", 0).member("context_length", context.engine.context_length());
    w.member("expires_at", ollama_time_text(started + std::chrono::hours(24 * 365 * 100)));
  } else {
    w.member("modified_at", ollama_time_text(started));
  }
  write_details(w, context);
  w.end_object();
}

// Of several models those that are ready run. What a model is like is known while it is.
void write_served_models(JsonWriter& w, const Context& front, const ModelRegistry& models,
                         bool running) {
  const std::string started =
      ollama_time_text(std::chrono::system_clock::from_time_t(front.parts->created_unix));
  const std::vector<ModelReport> reports = models.reports();
  for (size_t i = 0; i < models.size(); ++i) {
    const ContextPtr ready = models.look_at(i);
    if (ready != nullptr) {
      write_ollama_model(w, *ready, running);
    } else if (!running) {
      const std::string& name = models.model(i).name;
      w.begin_object().member("name", name).member("model", name).member("modified_at", started);
      w.member("size", reports[i].bytes).member("digest", "").end_object();
    }
  }
}

void answer_models(const Context& context, const net::ResponsePtr& response, bool running) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("models").begin_array();
  if (const ModelRegistry* const models = context.parts->models.get())
    write_served_models(w, context, *models, running);
  else
    write_ollama_model(w, context, running);
  w.end_array().end_object();
  response->send(net::HttpResponse::json(200, std::move(out)));
}

void handle_tags(const ContextPtr& context, net::HttpRequest&&, net::ResponsePtr response) {
  answer_models(*context, response, false);
}
void handle_ps(const ContextPtr& context, net::HttpRequest&&, net::ResponsePtr response) {
  answer_models(*context, response, true);
}
void handle_version(const ContextPtr&, net::HttpRequest&&, net::ResponsePtr response) {
  response->send(net::HttpResponse::json(
      200, fmt::format(R"({{"version":"{}"}})", std::string_view(ESPALIER_VERSION))));
}

void handle_show(const ContextPtr& context, net::HttpRequest&&, net::ResponsePtr response) {
  const ModelInfo& info = context->engine.model_info();
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("modelfile", "").member("parameters", "");
  w.member("template", context->chat ? std::string_view(context->chat->source()) : "");
  write_details(w, *context);
  w.key("model_info").begin_object().member("general.architecture", info.model_type);
  w.member("general.parameter_count", info.num_parameters);
  w.member(info.model_type + ".context_length", context->engine.context_length());
  w.member(info.model_type + ".block_count", info.num_layers).end_object();
  w.key("capabilities").begin_array();
  if (info.pooled) {
    w.value("embedding");
  } else {
    w.value("completion");
    if (context->chat) w.value("tools");
    if (context->reasoning_format) w.value("thinking");
  }
  w.end_array().end_object();
  response->send(net::HttpResponse::json(200, std::move(out)));
}

struct PullRequest {
  std::string model;
  bool stream = true;
};
const Fields<PullRequest>& pull_fields() {
  using P = PullRequest;
  static const Fields<P> fields = {
      field<P>("model", "the model that is served, or the local folder or file that it is in",
               &P::model),
      field<P>("name", "as model", &P::model),
      field<P>("stream", "default true; there is one line in either case", &P::stream),
      ignored<P>("insecure"),
  };
  return fields;
}
std::string pull_schema() { return schema_of(pull_fields()); }

// Whether a name means the model that is served: its name, with or without a tag, or the folder or
// file that it was loaded from.
bool is_served(const Context& context, const std::string& model) {
  if (model == context.model_name || model.substr(0, model.rfind(':')) == context.model_name)
    return true;
  const auto normal = [](std::string path) {
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    return std::filesystem::path(path).lexically_normal();
  };
  const std::string path = context.engine.config().model.model_path.string();
  return !path.empty() && normal(model) == normal(path);
}

// The model that is served is there already.
void handle_pull(const ContextPtr& context, net::HttpRequest&& request, net::ResponsePtr response) {
  bool malformed = false;
  const auto parsed = parse_body(pull_fields(), request.body, malformed);
  if (!parsed) return response->send(error_response(Dialect::kOllama, parsed.error()));
  if (!is_served(*context, parsed->model))
    return response->send(error_response(
        Dialect::kOllama,
        error(StatusCode::kNotFound,
              "model '{}' is not served here: this server has '{}'; start one with --model-path",
              parsed->model, context->model_name)));
  net::HttpResponse done = net::HttpResponse::json(200, "{\"status\":\"success\"}\n");
  response->send(std::move(done));
}

std::vector<Route> answers() {
  using enum Access;
  return {
      {{"POST"},
       "/api/chat",
       kUser,
       "Chat (Ollama)",
       handle_ollama_chat,
       "OllamaChatRequest",
       chat_body_schema},
      {{"POST"},
       "/api/generate",
       kUser,
       "Complete (Ollama)",
       handle_ollama_generate,
       "OllamaGenerateRequest",
       generate_body_schema},
      {{"POST"},
       "/api/embed",
       kUser,
       "Vectors of texts (Ollama)",
       handle_ollama_embed,
       "OllamaEmbedRequest",
       ollama_embed_schema},
      {{"POST"},
       "/api/embeddings",
       kUser,
       "A text's vector (Ollama)",
       handle_ollama_embed,
       "OllamaEmbedRequest",
       ollama_embed_schema},
  };
}

std::vector<Route> models() {
  using enum Access;
  return {
      {{"GET"}, "/api/tags", kUser, "Models (Ollama)", handle_tags, "", nullptr},
      {{"GET"}, "/api/ps", kUser, "Running models (Ollama)", handle_ps, "", nullptr},
      {{"GET"}, "/api/version", kUser, "Version (Ollama)", handle_version, "", nullptr},
      {{"POST"}, "/api/show", kUser, "What the model is (Ollama)", handle_show, "", nullptr},
      {{"POST"},
       "/api/pull",
       kUser,
       "Whether a model is there (Ollama)",
       handle_pull,
       "OllamaPullRequest",
       pull_schema},
  };
}

// What would change which models there are: 501 with what to do instead.
std::vector<Route> unserved() {
  constexpr std::pair<const char*, const char*> kAll[] = {
      {"/api/create", "write a model's folder or GGUF and start a server with --model-path"},
      {"/api/blobs/{digest}", "start a server with --model-path and the model's file"},
      {"/api/copy", "one model is served, whatever name a request states for it"},
      {"/api/delete", "delete the model's files, which the server does not own"},
      {"/api/push", "upload the model's files with the hub's own tools"}};
  std::vector<Route> all;
  for (const auto& [path, advice] : kAll) {
    std::string refusal;
    JsonWriter w(refusal);
    w.begin_object().member("error", fmt::format("{} is not served here: {}", path, advice));
    w.end_object();
    const auto refuse = [refusal](const ContextPtr&, net::HttpRequest&&, net::ResponsePtr to) {
      to->send(net::HttpResponse::json(501, refusal));
    };
    all.push_back({{"POST", "DELETE"},
                   path,
                   Access::kUser,
                   fmt::format("Not served (501): {}", advice),
                   refuse,
                   "",
                   nullptr,
                   501});
  }
  return all;
}

}  // namespace

const std::vector<Route>& ollama_routes() {
  static const std::vector<Route> table = [] {
    std::vector<Route> all = answers();
    for (Route& route : models()) all.push_back(std::move(route));
    for (Route& route : unserved()) all.push_back(std::move(route));
    return all;
  }();
  return table;
}

}  // namespace espalier::server
