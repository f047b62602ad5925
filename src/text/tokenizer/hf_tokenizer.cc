#include "text/tokenizer/hf_tokenizer.h"

#include <algorithm>

#include "text/json_fields.h"
#include "text/tokenizer/hf_model.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace espalier {
namespace {

namespace json = boost::json;

// The token under `name` in tokenizer_config.json: "</s>" or {"content": "</s>"}.
void append_named_token(const json::value& config, std::string_view name,
                        std::vector<std::string>& tokens) {
  const json::object* fields = config.if_object();
  const json::value* value = fields != nullptr ? fields->if_contains(name) : nullptr;
  if (value == nullptr) return;
  if (const json::object* object = value->if_object()) value = object->if_contains("content");
  if (value == nullptr) return;
  if (const json::string* text = value->if_string()) tokens.emplace_back(std::string_view(*text));
}

Result<json::value> parse_json(std::string_view text, json::storage_ptr memory) {
  json::error_code code;
  json::value value = json::parse(text, code, std::move(memory));
  if (code) {
    return fail(error(StatusCode::kDataLoss, "this is no JSON: {}", code.message()));
  }
  return value;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> parse_hf_tokenizer(std::string_view text,
                                                      std::string_view config_text) {
  // One arena for the document, which lives until the tables are built.
  json::monotonic_resource memory(std::max<size_t>(text.size() * 4, 4096));
  ESP_ASSIGN_OR_RETURN(const json::value document, parse_json(text, &memory));
  ESP_ASSIGN_OR_RETURN(const JsonFields root, JsonFields::of(document, ""));
  const auto field = [&](std::string_view name) {
    const json::value* value = root.find(name);
    return value != nullptr ? *value : json::value();
  };
  const json::value* model = root.find("model");
  if (model == nullptr) {
    return fail(error(StatusCode::kDataLoss, "'model' is missing: this is no tokenizer.json"));
  }
  ESP_ASSIGN_OR_RETURN(Normalizer normalizer, Normalizer::parse(field("normalizer"), "normalizer"));
  ESP_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer,
                       PreTokenizer::parse(field("pre_tokenizer"), "pre_tokenizer"));
  ESP_ASSIGN_OR_RETURN(HfModel hf_model, parse_hf_model(*model, pre_tokenizer.byte_level()));
  ESP_ASSIGN_OR_RETURN(std::vector<AddedToken> added,
                       parse_added_tokens(field("added_tokens"), hf_model.vocabulary));
  ESP_ASSIGN_OR_RETURN(SequenceFrame frame,
                       parse_post_processor(field("post_processor"), "post_processor"));
  ESP_ASSIGN_OR_RETURN(Decoder decoder, Decoder::parse(field("decoder"), "decoder"));
  PipelineTokenizer::Parts parts{.normalizer = std::move(normalizer),
                                 .pre_tokenizer = std::move(pre_tokenizer),
                                 .vocabulary = std::move(hf_model.vocabulary),
                                 .model = std::move(hf_model.model),
                                 .added = std::move(added),
                                 .frame = std::move(frame),
                                 .decoder = std::move(decoder),
                                 .bos_tokens = {},
                                 .eos_tokens = {},
                                 .chat_template = {}};
  if (!config_text.empty()) {
    ESP_ASSIGN_OR_RETURN(const json::value config, parse_json(config_text, {}));
    append_named_token(config, "bos_token", parts.bos_tokens);
    append_named_token(config, "eos_token", parts.eos_tokens);
  }
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace espalier
