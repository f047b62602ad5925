#include "speech/whisper_config.h"

#include <algorithm>

#include "checkpoint/json_object.h"
#include "speech/languages.h"

namespace espalier::speech {
namespace {

constexpr int64_t kSizeMax = 1 << 20;
constexpr int32_t kEnglishVocabulary = 51864;

Result<int32_t> read_positive(const JsonObject& config, const char* field) {
  ESP_ASSIGN_OR_RETURN(const int64_t value, config.integer(field, 1, kSizeMax));
  return static_cast<int32_t>(value);
}

Result<LayersConfig> read_layers(const JsonObject& config, const std::string& part, int32_t width) {
  LayersConfig layers;
  ESP_ASSIGN_OR_RETURN(layers.num_layers, read_positive(config, (part + "_layers").c_str()));
  const std::string heads = part + "_attention_heads";
  ESP_ASSIGN_OR_RETURN(layers.num_heads, read_positive(config, heads.c_str()));
  ESP_ASSIGN_OR_RETURN(layers.intermediate_size,
                       read_positive(config, (part + "_ffn_dim").c_str()));
  if (width % layers.num_heads != 0) {
    return fail(config.field_error(heads, "must divide d_model"));
  }
  return layers;
}

// A token by its field in the configuration, else by its spelling.
Result<TokenId> read_token(const JsonObject& config, const char* field, const Tokenizer& tokenizer,
                           std::initializer_list<std::string_view> spellings, int32_t vocab_size) {
  TokenId token = -1;
  if (config.has(field)) {
    ESP_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, config.integers(field));
    if (!ids.empty()) token = static_cast<TokenId>(std::clamp<int64_t>(ids[0], -1, kSizeMax));
  }
  for (const std::string_view spelling : spellings) {
    if (token < 0) token = tokenizer.token_to_id(spelling).value_or(-1);
  }
  return token < vocab_size ? token : -1;
}

Result<std::vector<TokenId>> read_tokens(const JsonObject& config, const char* field,
                                         int32_t vocab_size) {
  std::vector<TokenId> tokens;
  if (!config.has(field)) return tokens;
  ESP_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, config.integers(field));
  for (const int64_t id : ids) {
    if (id < 0) continue;  // [-1] is OpenAI's name for the usual list, which files spell out
    if (id >= vocab_size) return fail(config.field_error(field, "names a token that is not there"));
    tokens.push_back(static_cast<TokenId>(id));
  }
  return tokens;
}

Status read_languages(const JsonObject& config, const Tokenizer& tokenizer, int32_t vocab_size,
                      WhisperTokens& tokens) {
  // Early folders do not state it; then the vocabulary does, for the English models have one token
  // less than the smallest of the others.
  ESP_ASSIGN_OR_RETURN(const bool multilingual,
                       config.boolean_or("is_multilingual", vocab_size != kEnglishVocabulary));
  if (!multilingual) return Status();
  std::optional<JsonObject> stated;
  if (config.has("lang_to_id")) {
    ESP_ASSIGN_OR_RETURN(stated, config.object("lang_to_id"));
  }
  for (const Language& language : languages()) {
    const std::string spelling = "<|" + std::string(language.code) + "|>";
    TokenId token = -1;
    if (stated && stated->has(spelling)) {
      ESP_ASSIGN_OR_RETURN(const int64_t id, stated->integer(spelling, 0, vocab_size - 1));
      token = static_cast<TokenId>(id);
    } else if (!stated) {
      token = tokenizer.token_to_id(spelling).value_or(-1);
    }
    if (token >= 0 && token < vocab_size) {
      tokens.languages.push_back({std::string(language.code), token});
    }
  }
  return Status();
}

Status read_tasks(const JsonObject& config, const Tokenizer& tokenizer, int32_t vocab_size,
                  WhisperTokens& tokens) {
  if (tokens.languages.empty()) return Status();
  JsonObject tasks = config;
  if (config.has("task_to_id")) {
    ESP_ASSIGN_OR_RETURN(tasks, config.object("task_to_id"));
  }
  ESP_ASSIGN_OR_RETURN(tokens.transcribe,
                       read_token(tasks, "transcribe", tokenizer, {"<|transcribe|>"}, vocab_size));
  ESP_ASSIGN_OR_RETURN(tokens.translate,
                       read_token(tasks, "translate", tokenizer, {"<|translate|>"}, vocab_size));
  if (tokens.transcribe < 0)
    return config.field_error("task_to_id", "lacks 'transcribe', and so does the tokenizer");
  return Status();
}

// generation_config.json where there is one, with what config.json alone has.
Result<JsonObject> read_rules(const std::filesystem::path& folder) {
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(folder / "config.json"));
  const auto rules = JsonObject::read(folder / "generation_config.json");
  if (rules) return config.merged(*rules);
  if (rules.error().code() == StatusCode::kNotFound) return config;
  return fail(rules.error());
}

Status read_special(const JsonObject& rules, const Tokenizer& tokenizer, int32_t vocab_size,
                    WhisperTokens& tokens) {
  ESP_ASSIGN_OR_RETURN(tokens.start, read_token(rules, "decoder_start_token_id", tokenizer,
                                                {"<|startoftranscript|>"}, vocab_size));
  ESP_ASSIGN_OR_RETURN(tokens.end,
                       read_token(rules, "eos_token_id", tokenizer, {"<|endoftext|>"}, vocab_size));
  ESP_ASSIGN_OR_RETURN(tokens.no_timestamps, read_token(rules, "no_timestamps_token_id", tokenizer,
                                                        {"<|notimestamps|>"}, vocab_size));
  ESP_ASSIGN_OR_RETURN(tokens.previous, read_token(rules, "prev_sot_token_id", tokenizer,
                                                   {"<|startofprev|>"}, vocab_size));
  tokens.no_speech = tokens.no_timestamps > 0 ? tokens.no_timestamps - 1 : -1;
  for (const auto& [token, field] :
       {std::pair(tokens.start, "decoder_start_token_id"), std::pair(tokens.end, "eos_token_id"),
        std::pair(tokens.no_timestamps, "no_timestamps_token_id")}) {
    if (token < 0) {
      return rules.field_error(
          field, "is missing, and the tokenizer has no such token: take the model's whole folder");
    }
  }
  return Status();
}

}  // namespace

TokenId WhisperTokens::language(std::string_view code) const {
  const auto found = std::ranges::find(languages, code, &LanguageToken::code);
  return found == languages.end() ? -1 : found->token;
}

bool is_whisper(const std::filesystem::path& folder) {
  const auto config = JsonObject::read(folder / "config.json");
  if (!config) return false;
  const auto type = config->string_or("model_type", "");
  return type && *type == "whisper";
}

Result<WhisperSizes> read_whisper_sizes(const std::filesystem::path& folder) {
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(folder / "config.json"));
  WhisperSizes sizes;
  sizes.architecture = "WhisperForConditionalGeneration";
  const char* const dtype = config.has("dtype") ? "dtype" : "torch_dtype";
  ESP_ASSIGN_OR_RETURN(sizes.dtype_name, config.string_or(dtype, ""));
  ESP_ASSIGN_OR_RETURN(sizes.width, read_positive(config, "d_model"));
  ESP_ASSIGN_OR_RETURN(sizes.encoder, read_layers(config, "encoder", sizes.width));
  ESP_ASSIGN_OR_RETURN(sizes.decoder, read_layers(config, "decoder", sizes.width));
  ESP_ASSIGN_OR_RETURN(sizes.vocab_size, read_positive(config, "vocab_size"));
  ESP_ASSIGN_OR_RETURN(sizes.num_mels, read_positive(config, "num_mel_bins"));
  ESP_ASSIGN_OR_RETURN(sizes.max_source_positions, read_positive(config, "max_source_positions"));
  ESP_ASSIGN_OR_RETURN(sizes.max_target_positions, read_positive(config, "max_target_positions"));
  ESP_ASSIGN_OR_RETURN(const std::string activation,
                       config.string_or("activation_function", "gelu"));
  if (activation != "gelu") {
    return fail(
        config.field_error("activation_function", "is '" + activation + "'; gelu alone is known"));
  }
  return sizes;
}

Result<WhisperConfig> read_whisper_config(const std::filesystem::path& folder,
                                          const Tokenizer& tokenizer) {
  WhisperConfig out;
  ESP_ASSIGN_OR_RETURN(out.sizes, read_whisper_sizes(folder));
  ESP_ASSIGN_OR_RETURN(const JsonObject rules, read_rules(folder));
  WhisperTokens& tokens = out.tokens;
  const int32_t vocab = out.sizes.vocab_size;
  ESP_RETURN_IF_ERROR(read_special(rules, tokenizer, vocab, tokens));
  ESP_RETURN_IF_ERROR(read_languages(rules, tokenizer, vocab, tokens));
  ESP_RETURN_IF_ERROR(read_tasks(rules, tokenizer, vocab, tokens));
  ESP_ASSIGN_OR_RETURN(tokens.suppressed, read_tokens(rules, "suppress_tokens", vocab));
  ESP_ASSIGN_OR_RETURN(tokens.suppressed_first, read_tokens(rules, "begin_suppress_tokens", vocab));
  if (rules.has("max_initial_timestamp_index")) {
    ESP_ASSIGN_OR_RETURN(const int64_t index,
                         rules.integer("max_initial_timestamp_index", 0, kSizeMax));
    tokens.max_initial_timestamp = static_cast<int32_t>(index);
  }
  return out;
}

}  // namespace espalier::speech
