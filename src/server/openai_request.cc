#include "server/openai_request.h"

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "server/cache_namespace.h"
#include "server/images.h"
#include "server/json_view.h"
#include "server/request_ids.h"
#include "server/session_fields.h"
#include "server/vllm_grammars.h"

namespace espalier::server {

namespace json = boost::json;

namespace {

constexpr std::string_view kIdsSchema = R"({"type":"array","items":{"type":"integer"}})";

// {"include_usage": bool, "continuous_usage_stats": bool}
template <typename T>
Status read_stream_options(const Json& value, std::string_view where, T& out) {
  static const Fields<T> fields = {
      field<T>("include_usage", "a last chunk with the usage", &T::include_usage),
      field<T>("continuous_usage_stats", "the usage so far in each chunk",
               &T::continuous_usage_stats),
  };
  return read_fields(fields, value, std::string(where) + ".", out);
}

template <typename T>
void append_common(Fields<T>& fields, FieldPlaces place) {
  append_sampling_fields(
      fields, place, [](T & t) -> auto& { return t.sampling; });
  fields.push_back(field<T>(
      "model", "echoed; a loaded LoRA adapter's name, or MODEL:ADAPTER, takes it", &T::model));
  fields.push_back(field<T>("stream", "answer as server-sent events", &T::stream));
  fields.push_back(custom<T>(
      "stream_options",
      R"({"type":"object","properties":{"include_usage":{"type":"boolean"},"continuous_usage_stats":{"type":"boolean"}}})",
      "usage in streams", read_stream_options<T>));
  fields.push_back(custom<T>("response_format", R"({"type":"object"})",
                             "text, json_object, json_schema or structural_tag",
                             [](const Json& value, std::string_view where, T& out) {
                               return read_response_format(value, where, out.sampling);
                             }));
  append_vllm_grammar_fields(fields);
  fields.push_back(field<T>("rid", "request id, for /abort_request", &T::rid));
  fields.push_back(
      field<T>("extra_key", "requests of different keys share no cached prefixes", &T::extra_key));
  fields.push_back(field<T>("cache_salt", "as extra_key; the two are joined", &T::cache_salt));
  fields.push_back(
      field<T>("priority", "larger is sooner, where the scheduler has priorities", &T::priority));
  fields.push_back(field<T>("lora_path", "the name of a loaded LoRA adapter", &T::lora_path));
  fields.push_back(control_vector_field<T>([](T & t) -> auto& { return t.control_vector; }));
  fields.push_back(session_field<T>(&T::session));
  fields.push_back(session_id_field<T>(&T::session_id));
  append_bootstrap_fields(fields);
  for (const char* name :
       {"custom_logit_processor", "custom_params", "return_hidden_states", "return_routed_experts",
        "return_cached_tokens_details", "images_config"}) {
    fields.push_back(refused<T>(name));
  }
  for (const char* name : {"user", "custom_labels", "routed_dp_rank", "data_parallel_rank"}) {
    fields.push_back(ignored<T>(name));
  }
}

const Fields<CompletionRequest>& completion_fields() {
  using C = CompletionRequest;
  static const Fields<C> fields = [] {
    Fields<C> f = {
        custom<C>("prompt", prompts_schema(), "what to complete",
                  [](const Json& value, std::string_view where, C& out) {
                    return read_prompts(value, where, out.prompts);
                  }),
        field<C>("echo", "the prompt before the completion", &C::echo),
        field<C>("logprobs", "log-probabilities, with this many best tokens", &C::logprobs),
        field<C>("suffix", "text behind the completion, which then fills the gap", &C::suffix),
        ignored<C>("best_of"),
    };
    f[0].required = true;
    append_common(f, kInCompletions);
    return f;
  }();
  return fields;
}

Status check_content_part(const Json& part, std::string_view where) {
  const Json* type = part.is_object() ? part.get_object().if_contains("type") : nullptr;
  if (type == nullptr || !type->is_string()) {
    return invalid_argument("{} must be an object with a type, but it is {}", where,
                            describe(part));
  }
  const std::string_view name = view(type->get_string());
  if (name == "text") {
    const Json* text = part.get_object().if_contains("text");
    if (text == nullptr || !text->is_string()) {
      return invalid_argument("{}.text must be a string", where);
    }
    return {};
  }
  if (is_picture_part(part)) {
    const auto source = picture_source(part, where);
    return source ? Status() : source.error();
  }
  if (is_video_part(part)) return check_video(part, where);
  if (is_sound_part(part)) {
    const auto source = sound_source(part, where);
    return source ? Status() : source.error();
  }
  return invalid_argument(
      "{}.type is \"{}\": it must be text, image_url, input_image, video, video_url, input_audio "
      "or audio_url",
      where, name);
}

Status check_message(const Json& message, std::string_view where) {
  if (!message.is_object()) {
    return invalid_argument("{} must be an object, but it is {}", where, describe(message));
  }
  const Json* role = message.get_object().if_contains("role");
  if (role == nullptr || !role->is_string()) {
    return invalid_argument("{}.role is missing: system, user, assistant, tool or developer",
                            where);
  }
  const std::string_view name = view(role->get_string());
  bool known = false;
  for (const char* r : {"system", "user", "assistant", "tool", "developer", "function"}) {
    known |= name == r;
  }
  if (!known) {
    return invalid_argument(
        "{}.role is \"{}\": it must be system, user, assistant, tool or developer", where, name);
  }
  const Json* content = message.get_object().if_contains("content");
  if (content == nullptr || content->is_null()) {
    if (name == "assistant" || name == "tool") return {};
    return invalid_argument("{}.content is missing", where);
  }
  if (content->is_string()) return {};
  if (!content->is_array()) {
    return invalid_argument("{}.content must be a string or a list of parts, but it is {}", where,
                            describe(*content));
  }
  for (size_t i = 0; i < content->get_array().size(); ++i) {
    ESP_RETURN_IF_ERROR(
        check_content_part(content->get_array()[i], fmt::format("{}.content[{}]", where, i)));
  }
  return {};
}

template <typename T>
Status read_messages(const Json& value, std::string_view where, T& out) {
  if (!value.is_array()) {
    return invalid_argument("{} must be a list of messages, but it is {}", where, describe(value));
  }
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    ESP_RETURN_IF_ERROR(check_message(value.get_array()[i], fmt::format("{}[{}]", where, i)));
  }
  out.messages = std::make_shared<const Json>(value);
  return {};
}

template <typename T>
Status read_template_kwargs(const Json& value, std::string_view where, T& out) {
  if (!value.is_object()) {
    return invalid_argument("{} must be an object, but it is {}", where, describe(value));
  }
  out.template_kwargs = std::make_shared<const Json>(value);
  return {};
}

// "none" | "auto" | "required" | {"type": "function", "function": {"name": ...}}
// The name in {"type": "function", "function": {"name": ...}}; null when it is no such object.
const json::string* function_name(const Json& value) {
  const Json* function = value.is_object() ? value.get_object().if_contains("function") : nullptr;
  const Json* name = function != nullptr && function->is_object()
                         ? function->get_object().if_contains("name")
                         : nullptr;
  return name != nullptr ? name->if_string() : nullptr;
}

// {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": [...]}}
Status read_allowed_tools(const json::object& choice, std::string_view where, ChatRequest& out) {
  using Choice = ChatRequest::ToolChoice;
  const Json* allowed = choice.if_contains("allowed_tools");
  const json::object* members = allowed != nullptr ? allowed->if_object() : nullptr;
  const Json* mode = members != nullptr ? members->if_contains("mode") : nullptr;
  const Json* tools = members != nullptr ? members->if_contains("tools") : nullptr;
  if (mode == nullptr || (*mode != "auto" && *mode != "required"))
    return invalid_argument("{}.allowed_tools.mode must be auto or required", where);
  if (tools == nullptr || !tools->is_array() || tools->get_array().empty())
    return invalid_argument("{}.allowed_tools.tools must be a list of functions, not empty", where);
  for (const Json& tool : tools->get_array()) {
    const json::string* name = function_name(tool);
    if (name == nullptr)
      return invalid_argument(
          "{}.allowed_tools.tools must hold {{\"type\": \"function\", \"function\": {{\"name\": "
          "...}}}}, but there is {}",
          where, describe(tool));
    out.allowed_tool_names.emplace_back(view(*name));
  }
  out.tool_choice = *mode == "auto" ? Choice::kAuto : Choice::kRequired;
  return {};
}

Status read_tool_choice(const Json& value, std::string_view where, ChatRequest& out) {
  using Choice = ChatRequest::ToolChoice;
  if (value.is_string()) {
    const std::string_view choice = view(value.get_string());
    for (const auto& [name, meant] :
         {std::pair("none", Choice::kNone), std::pair("auto", Choice::kAuto),
          std::pair("required", Choice::kRequired)}) {
      if (choice == name) {
        out.tool_choice = meant;
        return {};
      }
    }
    return invalid_argument("{} is \"{}\": it must be none, auto, required or a function", where,
                            choice);
  }
  const Json* type = value.is_object() ? value.get_object().if_contains("type") : nullptr;
  if (type != nullptr && *type == "allowed_tools")
    return read_allowed_tools(value.get_object(), where, out);
  const json::string* name = function_name(value);
  if (name == nullptr) {
    return invalid_argument(
        "{} must be none, auto, required or {{\"type\": \"function\", "
        "\"function\": {{\"name\": ...}}}}, but it is {}",
        where, describe(value));
  }
  out.tool_choice = Choice::kNamed;
  out.tool_name = std::string(view(*name));
  return {};
}

Status check_tool(const Json& tool, std::string_view where) {
  if (!tool.is_object()) {
    return invalid_argument("{} must be an object, but it is {}", where, describe(tool));
  }
  const Json* type = tool.get_object().if_contains("type");
  if (type != nullptr && *type != "function") {
    return invalid_argument("{}.type must be \"function\", but it is {}", where, describe(*type));
  }
  const Json* function = tool.get_object().if_contains("function");
  if (function == nullptr || !function->is_object()) {
    return invalid_argument("{}.function is missing: an object with name and parameters", where);
  }
  const Json* name = function->get_object().if_contains("name");
  if (name == nullptr || !name->is_string() || name->get_string().empty()) {
    return invalid_argument("{}.function.name must be a string, not empty", where);
  }
  const Json* parameters = function->get_object().if_contains("parameters");
  if (parameters != nullptr && !parameters->is_object() && !parameters->is_null()) {
    return invalid_argument("{}.function.parameters must be a JSON Schema object, but it is {}",
                            where, describe(*parameters));
  }
  return {};
}

constexpr const char* kMessagesSchema =
    R"({"type":"array","items":{"type":"object","properties":{"role":{"type":"string"},"content":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"object"}}]}},"required":["role"]}})";

// ["text"]: an answer has no other.
Status read_modalities(const Json& value, std::string_view where, ChatRequest&) {
  std::vector<std::string> names;
  ESP_RETURN_IF_ERROR(server::read_value(value, where, names));
  for (const std::string& name : names)
    if (name != "text")
      return error(StatusCode::kUnimplemented, "{} holds \"{}\", and only text is supported", where,
                   name);
  return {};
}

// What OpenAI's own servers take beside the above: hints and accounting are without effect here,
// and what would change the answer is refused.
void append_openai_only(Fields<ChatRequest>& fields) {
  using C = ChatRequest;
  fields.push_back(custom<C>("modalities", R"({"type":"array","items":{"enum":["text"]}})",
                             "[\"text\"]; others are refused", read_modalities));
  for (const char* name : {"function_call", "functions"})
    fields.push_back(refused<C>(name, "is not supported: send tools and tool_choice"));
  for (const char* name : {"moderation", "web_search_options"}) fields.push_back(refused<C>(name));
  for (const char* name :
       {"prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "verbosity"})
    fields.push_back(ignored<C>(name));
}

const Fields<ChatRequest>& chat_fields() {
  using C = ChatRequest;
  static const Fields<C> fields = [] {
    Fields<C> f = {
        custom<C>("messages", kMessagesSchema, "the conversation", read_messages<C>),
        field<C>("max_completion_tokens", "goes before max_tokens", &C::max_completion_tokens),
        field<C>("logprobs", "log-probabilities of the answer's tokens", &C::logprobs),
        field<C>("top_logprobs", "with this many best tokens", &C::top_logprobs),
        field<C>("return_token_origins",
                 "with logprobs: each token's id, and whether it was sampled, forced or drafted",
                 &C::return_token_origins),
        field<C>("input_ids",
                 "the prompt as token ids, instead of the rendered messages; pictures of the "
                 "messages stand at its placeholders",
                 &C::input_ids),
        field<C>("continue_final_message", "the last message is the answer's beginning",
                 &C::continue_final_message),
        field<C>("reasoning_effort", "handed to the chat template", &C::reasoning_effort),
        custom<C>("chat_template_kwargs", R"({"type":"object"})",
                  "more variables for the chat template", read_template_kwargs<C>),
        custom<C>("tools", R"({"type":"array","items":{"type":"object"}})",
                  "functions that the answer may call",
                  [](const Json& value, std::string_view where, C& out) {
                    return read_tools(value, where, out.tools);
                  }),
        custom<C>("tool_choice", R"({"anyOf":[{"type":"string"},{"type":"object"}]})",
                  "auto, none, required, the function to call, or the allowed_tools",
                  read_tool_choice),
        field<C>("parallel_tool_calls", "whether an answer may call more than one; default true",
                 &C::parallel_tool_calls),
        field<C>("separate_reasoning", "reasoning as reasoning_content; default true",
                 &C::separate_reasoning),
        field<C>("stream_reasoning", "reasoning as it comes; default true", &C::stream_reasoning),
        field<C>("describe_grammar", "state in the prompt what the answer is constrained to",
                 &C::describe_grammar),
        field<C>("store", "keep the answer for GET /v1/chat/completions/{id}; default false",
                 &C::store_completion),
        custom<C>("metadata", R"({"type":"object"})", "strings that are kept with a stored answer",
                  [](const Json& value, std::string_view, C& out) {
                    out.metadata = std::make_shared<const Json>(value);
                    return Status();
                  }),
        refused<C>("return_meta_info"),
        refused<C>("return_prompt_token_ids"),
        refused<C>("audio"),
        ignored<C>("use_audio_in_video"),
    };
    append_openai_only(f);
    append_common(f, kInChat);
    return f;
  }();
  return fields;
}

const Fields<TokenizeRequest>& tokenize_fields() {
  using T = TokenizeRequest;
  static const Fields<T> fields = {
      field<T>("prompt", "a text, or a list of texts", &T::prompt),
      custom<T>("messages", kMessagesSchema, "a conversation, rendered first", read_messages<T>),
      field<T>("add_special_tokens", "default true", &T::add_special_tokens),
      field<T>("continue_final_message", "no prompt for an answer", &T::continue_final_message),
      custom<T>("chat_template_kwargs", R"({"type":"object"})",
                "more variables for the chat template", read_template_kwargs<T>),
      custom<T>("tools", R"({"type":"array","items":{"type":"object"}})",
                "functions that the rendered conversation describes",
                [](const Json& value, std::string_view where, T& out) {
                  return read_tools(value, where, out.tools);
                }),
      custom<T>("tool_choice", R"({"anyOf":[{"type":"string"},{"type":"object"}]})",
                "none leaves the tools out",
                [](const Json& value, std::string_view, T& out) {
                  out.without_tools = value == "none";
                  return Status();
                }),
      ignored<T>("reasoning_effort"),
      ignored<T>("model"),
  };
  return fields;
}

const Fields<DetokenizeRequest>& detokenize_fields() {
  using D = DetokenizeRequest;
  static const Fields<D> fields = [] {
    Fields<D> f = {
        field<D>("tokens", "ids, or a list of lists of ids", &D::tokens),
        field<D>("skip_special_tokens", "default true", &D::skip_special_tokens),
        ignored<D>("model"),
    };
    f[0].required = true;
    return f;
  }();
  return fields;
}

std::string item_text(const PerItem<std::string>& values, size_t i) {
  const std::string* value = values.at(i);
  return value != nullptr ? *value : std::string();
}

}  // namespace

Status check_common(const OpenAiCommon& common, size_t n) {
  ESP_RETURN_IF_ERROR(check_rids(common.rid, n));
  ESP_RETURN_IF_ERROR(common.extra_key.check_size("extra_key", n));
  ESP_RETURN_IF_ERROR(common.lora_path.check_size("lora_path", n));
  ESP_RETURN_IF_ERROR(common.bootstrap.check_size(n));
  return common.cache_salt.check_size("cache_salt", n);
}

Status read_tools(const Json& value, std::string_view where,
                  std::shared_ptr<const boost::json::value>& out) {
  if (!value.is_array()) {
    return invalid_argument("{} must be a list of tools, but it is {}", where, describe(value));
  }
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    ESP_RETURN_IF_ERROR(check_tool(value.get_array()[i], fmt::format("{}[{}]", where, i)));
  }
  if (!value.get_array().empty()) out = std::make_shared<const Json>(value);
  return {};
}

Status check_metadata(const Json& value, std::string_view where) {
  constexpr size_t kMembersMax = 16, kNameMax = 64, kValueMax = 512;
  if (!value.is_object() || value.get_object().size() > kMembersMax)
    return invalid_argument("{} must be an object of at most {} strings, but it is {}", where,
                            kMembersMax, describe(value));
  for (const auto& [name, member] : value.get_object()) {
    if (name.size() > kNameMax)
      return invalid_argument("{} has a name of {} bytes; at most {} are kept", where, name.size(),
                              kNameMax);
    if (!member.is_string() || member.get_string().size() > kValueMax)
      return invalid_argument("{}.{} must be a string of at most {} bytes, but it is {}", where,
                              std::string_view(name.data(), name.size()), kValueMax,
                              describe(member));
  }
  return {};
}

Status read_response_format(const Json& value, std::string_view where, SamplingParams& out) {
  if (!value.is_object()) {
    return invalid_argument("{} must be an object, but it is {}", where, describe(value));
  }
  const json::object& format = value.get_object();
  const Json* type = format.if_contains("type");
  if (type == nullptr || !type->is_string()) {
    return invalid_argument("{}.type is missing: text, json_object or json_schema", where);
  }
  const std::string_view name = view(type->get_string());
  if (name == "text") return {};
  if (name == "json_object") {
    out.json_schema = R"({"type":"object"})";
    return {};
  }
  if (name == "structural_tag") {
    out.structural_tag = json::serialize(value);
    return {};
  }
  if (name != "json_schema") {
    return invalid_argument(
        "{}.type is \"{}\": it must be text, json_object, json_schema or structural_tag", where,
        name);
  }
  const Json* inner = format.if_contains("json_schema");
  const Json* schema =
      inner != nullptr && inner->is_object() ? inner->get_object().if_contains("schema") : nullptr;
  if (schema == nullptr || !(schema->is_object() || schema->is_bool())) {
    return invalid_argument("{}.json_schema.schema is missing: a JSON Schema object", where);
  }
  out.json_schema = json::serialize(*schema);
  return {};
}

GenerateRequest OpenAiCommon::make_request(size_t i, size_t n) const {
  GenerateRequest request;
  request.rid = rid_of(rid, i, n);
  request.extra_key = cache_namespace(item_text(extra_key, i), item_text(cache_salt, i));
  request.lora = item_text(lora_path, i);
  request.control_vector = control_vector;
  request.priority = priority.value_or(0);
  request.sampling = sampling;
  request.session = session_of(session, session_id);
  request.bootstrap = bootstrap.at(i);
  return request;
}

Status read_prompts(const Json& value, std::string_view where, std::vector<TextOrIds>& out) {
  out.clear();
  const auto add_text = [&](const Json& text) {
    out.push_back({std::string(view(text.get_string())), {}, true});
  };
  if (value.is_string()) {
    add_text(value);
    return {};
  }
  if (!value.is_array() || value.get_array().empty()) {
    return invalid_argument(
        "{} must be a string, a list of strings, a list of token ids or a list of such lists, but "
        "it is {}",
        where, describe(value));
  }
  const json::array& list = value.get_array();
  if (list[0].is_number()) {
    TextOrIds prompt{{}, {}, false};
    ESP_RETURN_IF_ERROR(read_value(value, where, prompt.ids));
    out.push_back(std::move(prompt));
    return {};
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    if (list[i].is_string() && list[0].is_string()) {
      add_text(list[i]);
    } else if (list[i].is_array() && list[0].is_array()) {
      TextOrIds prompt{{}, {}, false};
      ESP_RETURN_IF_ERROR(read_value(list[i], place, prompt.ids));
      if (prompt.ids.empty()) return invalid_argument("{} holds no token", place);
      out.push_back(std::move(prompt));
    } else {
      return invalid_argument("{} must be {}, but it is {}", place,
                              list[0].is_array() ? "a list of token ids" : "a string",
                              describe(list[i]));
    }
  }
  return {};
}

std::string prompts_schema() {
  return R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}},)" +
         std::string(kIdsSchema) + R"(,{"type":"array","items":)" + std::string(kIdsSchema) + "}]}";
}

Result<CompletionRequest> parse_completion(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(CompletionRequest request, parse_body(completion_fields(), body, malformed));
  ESP_RETURN_IF_ERROR(check_samples(request.prompts.size(), request.sampling.n));
  ESP_RETURN_IF_ERROR(check_common(request, request.prompts.size()));
  if (request.logprobs.value_or(0) < 0) {
    return fail(invalid_argument("logprobs is {}: it must not be negative", *request.logprobs));
  }
  if (!request.sampling.max_new_tokens) request.sampling.max_new_tokens = 16;
  return request;
}

Result<ChatRequest> parse_chat(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(ChatRequest request, parse_body(chat_fields(), body, malformed));
  ESP_RETURN_IF_ERROR(check_common(request, 1));
  if (request.messages == nullptr && request.input_ids.empty()) {
    malformed = true;
    return fail(invalid_argument("messages is missing"));
  }
  if (request.input_ids.empty() && request.messages->get_array().empty()) {
    return fail(invalid_argument("messages is empty"));
  }
  if (request.store_completion && request.metadata != nullptr)
    ESP_RETURN_IF_ERROR(check_metadata(*request.metadata, "metadata"));
  if (request.top_logprobs > 0 && !request.logprobs) {
    return fail(invalid_argument("top_logprobs needs logprobs: true"));
  }
  if (request.return_token_origins && !request.logprobs) {
    return fail(invalid_argument("return_token_origins needs logprobs: true"));
  }
  if (request.max_completion_tokens) {
    request.sampling.max_new_tokens = request.max_completion_tokens;
  }
  request.sampling.to_context = !request.sampling.max_new_tokens;
  const bool asks_for_a_call = request.tool_choice == ChatRequest::ToolChoice::kRequired ||
                               request.tool_choice == ChatRequest::ToolChoice::kNamed;
  if (asks_for_a_call && request.tools == nullptr) {
    return fail(invalid_argument("tool_choice asks for a call, but there are no tools"));
  }
  if (request.sampling.token_healing && !request.continue_final_message) {
    return fail(
        invalid_argument("token_healing is for prompts that an answer goes on from: a chat's needs "
                         "continue_final_message"));
  }
  return request;
}

Result<TokenizeRequest> parse_tokenize(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(TokenizeRequest request, parse_body(tokenize_fields(), body, malformed));
  const bool has_prompt = request.prompt.is_list || !request.prompt.values.empty();
  if (has_prompt == (request.messages != nullptr)) {
    return fail(invalid_argument("{}", has_prompt ? "give either prompt or messages, not both"
                                                  : "prompt or messages is missing"));
  }
  return request;
}

Result<DetokenizeRequest> parse_detokenize(std::string_view body, bool& malformed) {
  return parse_body(detokenize_fields(), body, malformed);
}

std::string completion_schema() { return schema_of(completion_fields()); }
std::string chat_schema() { return schema_of(chat_fields()); }
std::string tokenize_schema() { return schema_of(tokenize_fields()); }
std::string detokenize_schema() { return schema_of(detokenize_fields()); }

}  // namespace espalier::server
