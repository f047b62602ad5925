#include "text/template/chat_template.h"

#include <boost/json.hpp>

#include "base/mapped_file.h"
#include "text/json_fields.h"
#include "text/template/interpreter.h"

namespace espalier {

namespace json = boost::json;

struct ChatTemplate::Impl {
  jinja::Block block;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::compile(std::string_view source) {
  if (source.size() > kSourceBytesMax) {
    return fail(invalid_argument("the chat template has {} bytes; at most {} are accepted",
                                 source.size(), kSourceBytesMax));
  }
  Result<jinja::Block> block = jinja::parse_template(source);
  if (!block) return fail(block.error().with_context("chat template"));
  return ChatTemplate(std::make_unique<Impl>(Impl{std::move(*block)}));
}

Result<std::string> ChatTemplate::render(const json::object& variables,
                                         std::optional<std::time_t> now, double seconds_max) const {
  jinja::Dict dict;
  for (const auto& [key, value] : variables) {
    dict.entries.emplace_back(jinja::Value(std::string_view(key)), jinja::from_json(value));
  }
  jinja::Interpreter interpreter(jinja::Value(std::move(dict)), now.value_or(std::time(nullptr)),
                                 {.seconds_max = seconds_max});
  return interpreter.run(impl_->block);
}

namespace {

// "</s>" or {"content": "</s>"}.
std::string token_text(const json::object& config, std::string_view name) {
  const json::value* value = config.if_contains(name);
  if (value != nullptr && value->is_object()) value = value->get_object().if_contains("content");
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

// A template, or a list of named ones.
std::optional<std::string> template_text(const json::object& config) {
  const json::value* value = config.if_contains("chat_template");
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::string(value->get_string());
  if (!value->is_array()) return std::nullopt;
  std::optional<std::string> first;
  for (const json::value& entry : value->get_array()) {
    const json::object* named = entry.if_object();
    const json::value* source = named != nullptr ? named->if_contains("template") : nullptr;
    if (source == nullptr || !source->is_string()) continue;
    const json::value* name = named->if_contains("name");
    if (!first) first = std::string(source->get_string());
    if (name != nullptr && name->is_string() && name->get_string() == "default") {
      return std::string(source->get_string());
    }
  }
  return first;
}

Result<json::object> read_json_object(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return json::object();
  ESP_ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  json::error_code code;
  json::value value = json::parse(text, code);
  if (code || !value.is_object()) {
    return fail(error(StatusCode::kDataLoss, "{} is no JSON object: {}", file.string(),
                      code ? code.message() : "it holds something else"));
  }
  return std::move(value.get_object());
}

}  // namespace

Result<ChatTemplateSource> find_chat_template(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(folder, ignored)) {
    return fail(error(StatusCode::kNotFound,
                      "{} holds no chat template (tokenizer.chat_template); give one with "
                      "--chat-template",
                      folder.string()));
  }
  ESP_ASSIGN_OR_RETURN(const json::object config,
                       read_json_object(folder / "tokenizer_config.json"));
  ChatTemplateSource result;
  result.bos_token = token_text(config, "bos_token");
  result.eos_token = token_text(config, "eos_token");
  if (const json::value* const spec = config.if_contains("response_template"))
    if (!spec->is_null()) result.response_template = json::serialize(*spec);
  if (const auto file = folder / "chat_template.jinja"; std::filesystem::exists(file)) {
    ESP_ASSIGN_OR_RETURN(result.source, read_text_file(file));
    return result;
  }
  ESP_ASSIGN_OR_RETURN(const json::object own, read_json_object(folder / "chat_template.json"));
  std::optional<std::string> source = template_text(own);
  if (!source) source = template_text(config);
  if (!source) {
    return fail(error(StatusCode::kNotFound,
                      "{} has no chat template: neither chat_template.jinja nor 'chat_template' in "
                      "tokenizer_config.json; give one with --chat-template",
                      folder.string()));
  }
  result.source = *std::move(source);
  return result;
}

ChatTemplateSource stored_chat_template(const Tokenizer& tokenizer) {
  ChatTemplateSource result;
  result.source = tokenizer.chat_template();
  if (const auto bos = tokenizer.bos_id()) result.bos_token = tokenizer.id_to_token(*bos);
  const auto& eos = tokenizer.vocab().eos_ids;
  if (!eos.empty()) result.eos_token = tokenizer.id_to_token(eos[0]);
  return result;
}

}  // namespace espalier
