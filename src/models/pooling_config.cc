#include "models/pooling_config.h"

#include <algorithm>
#include <vector>

#include "base/mapped_file.h"

namespace espalier {
namespace {

struct Suffix {
  std::string_view text;
  PooledUse use;
};
constexpr Suffix kSuffixes[] = {
    {"ForSequenceClassification", PooledUse::kClasses},
    {"ForRewardModel", PooledUse::kReward},
    {"LMHeadModel", PooledUse::kNone},  // GPT-2 generates
    {"Model", PooledUse::kModel},
};

constexpr int64_t kMaxLabels = 1 << 20;

Result<int32_t> read_num_labels(const JsonObject& config, int64_t otherwise) {
  int64_t count = otherwise;
  if (config.has("id2label")) {
    ESP_ASSIGN_OR_RETURN(const JsonObject labels, config.object("id2label"));
    count = std::ssize(labels.keys());
  }
  ESP_ASSIGN_OR_RETURN(count, config.integer_or("num_labels", count, 1, kMaxLabels));
  return static_cast<int32_t>(count);
}

Result<std::vector<std::string>> name_labels(const JsonObject& config, int32_t count) {
  std::vector<std::string> names;
  for (int32_t i = 0; i < count; ++i) names.push_back(fmt::format("LABEL_{}", i));
  if (!config.has("id2label")) return names;
  ESP_ASSIGN_OR_RETURN(const JsonObject labels, config.object("id2label"));
  for (int32_t i = 0; i < count; ++i) {
    std::string& name = names[static_cast<size_t>(i)];
    ESP_ASSIGN_OR_RETURN(name, labels.string_or(std::to_string(i), name));
  }
  return names;
}

Status refuse_both_sides(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const bool causal, config.boolean_or("is_causal", true));
  ESP_ASSIGN_OR_RETURN(const bool both, config.boolean_or("use_bidirectional_attention", false));
  if (causal && !both) return Status();
  return error(StatusCode::kUnimplemented,
               "{}: '{}' means attention to both sides, which is not supported: every token sees "
               "those before it",
               config.name(), causal ? "use_bidirectional_attention" : "is_causal");
}

struct NamedKind {
  std::string_view name;
  PoolingSpec::Kind kind;
  bool of_encoders;  // of texts, alone
};
constexpr NamedKind kPoolingKinds[] = {
    {"lasttoken", PoolingSpec::Kind::kLast, false},
    {"mean_tokens", PoolingSpec::Kind::kMean, false},
    {"mean", PoolingSpec::Kind::kMean, false},
    {"cls_token", PoolingSpec::Kind::kFirst, true},
    {"cls", PoolingSpec::Kind::kFirst, true},
    {"max_tokens", PoolingSpec::Kind::kMax, true},
    {"max", PoolingSpec::Kind::kMax, true},
};

// The Pooling module's config.json names the ways that are switched on.
Result<PoolingSpec::Kind> read_kind(const std::filesystem::path& path, bool of_encoder) {
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(path));
  constexpr std::string_view kPrefix = "pooling_mode_";
  std::vector<std::string> modes;
  for (const std::string_view key : config.keys()) {
    if (!key.starts_with(kPrefix)) continue;
    ESP_ASSIGN_OR_RETURN(const bool on, config.boolean_or(key, false));
    if (on) modes.emplace_back(key.substr(kPrefix.size()));
  }
  if (config.has("pooling_mode")) {
    ESP_ASSIGN_OR_RETURN(modes.emplace_back(), config.string("pooling_mode"));
  }
  std::string found, known;
  for (const NamedKind& named : kPoolingKinds) {
    if (named.of_encoders && !of_encoder) continue;
    if (modes.size() == 1 && modes[0] == named.name) return named.kind;
    if (named.name.find('_') != std::string_view::npos || named.kind == PoolingSpec::Kind::kLast)
      known += (known.empty() ? "" : ", ") + std::string(named.name);
  }
  for (const std::string& mode : modes) found += (found.empty() ? "" : ", ") + mode;
  return fail(error(StatusCode::kUnimplemented,
                    "{}: the pooling is '{}'; supported are {}, one of them", path.string(), found,
                    known));
}

Result<TextsSpec::HeadLayer> read_dense(const std::filesystem::path& folder,
                                        const std::string& at) {
  using Activation = TextsSpec::HeadLayer::Activation;
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(folder / at / "config.json"));
  TextsSpec::HeadLayer layer{.name = "linear", .folder = at};
  ESP_ASSIGN_OR_RETURN(const int64_t outputs, config.integer("out_features", 1, 1 << 20));
  layer.outputs = static_cast<int32_t>(outputs);
  ESP_ASSIGN_OR_RETURN(layer.bias, config.boolean_or("bias", true));
  ESP_ASSIGN_OR_RETURN(const std::string name,
                       config.string_or("activation_function", "torch.nn.modules.activation.Tanh"));
  for (const auto& [known, activation] :
       {std::pair{"Identity", Activation::kNone}, std::pair{"Tanh", Activation::kTanh},
        std::pair{"ReLU", Activation::kRelu}, std::pair{"GELU", Activation::kGelu}}) {
    if (!name.ends_with(std::string(".") + known)) continue;
    layer.activation = activation;
    return layer;
  }
  return fail(config.field_error("activation_function",
                                 "is '" + name + "'; known are Identity, Tanh, ReLU and GELU"));
}

// "Pooling" of "sentence_transformers.models.Pooling".
std::string_view last_part(std::string_view type) { return type.substr(type.rfind('.') + 1); }

Status follow_modules(const std::filesystem::path& folder, const JsonObject& list,
                      DecoderSpec& spec) {
  PoolingSpec& pooling = *spec.pooling;
  ESP_ASSIGN_OR_RETURN(const std::vector<JsonObject> modules, list.objects("modules"));
  pooling.normalize = false;
  bool pools = false;
  for (const JsonObject& module : modules) {
    ESP_ASSIGN_OR_RETURN(const std::string type, module.string("type"));
    const std::string_view kind = last_part(type);
    if (kind == "Transformer") continue;
    if (kind == "Normalize") {
      pooling.normalize = true;
    } else if (kind == "Pooling") {
      ESP_ASSIGN_OR_RETURN(const std::string at, module.string("path"));
      ESP_ASSIGN_OR_RETURN(pooling.kind,
                           read_kind(folder / at / "config.json", spec.texts.has_value()));
      pools = true;
    } else if (kind == "Dense" && pools && !pooling.normalize && spec.texts) {
      ESP_ASSIGN_OR_RETURN(const std::string at, module.string("path"));
      ESP_ASSIGN_OR_RETURN(spec.texts->head.emplace_back(), read_dense(folder, at));
    } else {
      return error(StatusCode::kUnimplemented,
                   "{}: the module '{}' is not supported{}; Transformer, Pooling, {}and Normalize "
                   "are",
                   module.name(), type, kind == "Dense" && spec.texts ? " at its place" : "",
                   spec.texts ? "Dense " : "");
    }
  }
  if (pools) return Status();
  return invalid_argument("{}: there is no Pooling among the modules", list.name());
}

// Of a folder that sentence-transformers or ColBERT wrote.
Status read_text_settings(const std::filesystem::path& folder, DecoderSpec& spec) {
  if (const auto path = folder / "sentence_bert_config.json";
      std::filesystem::is_regular_file(path)) {
    ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(path));
    const int64_t own = spec.context_length;
    ESP_ASSIGN_OR_RETURN(const int64_t most, config.integer_or("max_seq_length", own, 1, 1 << 26));
    spec.context_length = static_cast<int32_t>(std::min(own, most));
  }
  if (spec.pooling->kind != PoolingSpec::Kind::kEach) return Status();
  const auto path = folder / "artifact.metadata";
  if (!std::filesystem::is_regular_file(path)) return Status();
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(path));
  ESP_ASSIGN_OR_RETURN(const int64_t width,
                       config.integer_or("dim", spec.projector->layers[0].outputs, 1, 1 << 16));
  spec.projector->layers[0].outputs = static_cast<int32_t>(width);
  ESP_ASSIGN_OR_RETURN(spec.texts->query_mark, config.string_or("query_token_id", ""));
  ESP_ASSIGN_OR_RETURN(spec.texts->document_mark, config.string_or("doc_token_id", ""));
  return Status();
}

void drop_generating_head(DecoderSpec& spec) {
  spec.tied_embeddings = false;
  spec.names.unused_prefixes.push_back(spec.names.head + ".");
}

}  // namespace

PooledArchitecture pooled_architecture(std::string_view architecture) {
  for (const Suffix& suffix : kSuffixes) {
    if (!architecture.ends_with(suffix.text)) continue;
    return {suffix.use, architecture.substr(0, architecture.size() - suffix.text.size())};
  }
  return {};
}

Result<std::vector<std::string>> read_labels(const JsonObject& config, int64_t otherwise) {
  ESP_ASSIGN_OR_RETURN(const int32_t count, read_num_labels(config, otherwise));
  return name_labels(config, count);
}

Status set_pooling(const JsonObject& config, PooledUse use, DecoderSpec& spec) {
  ESP_RETURN_IF_ERROR(refuse_both_sides(config));
  PoolingSpec pooling;
  if (use == PooledUse::kModel) {
    pooling.normalize = true;
  } else if (use == PooledUse::kClasses) {
    ESP_ASSIGN_OR_RETURN(pooling.labels, read_labels(config, 2));
    pooling.head = {{"score", static_cast<int32_t>(pooling.labels.size())}};
  } else {
    // Qwen 2.5 Math RM: one number unless config.json says otherwise.
    ESP_ASSIGN_OR_RETURN(const int64_t count, config.integer_or("num_labels", 1, 1, kMaxLabels));
    pooling.head = {{"score.0", spec.hidden_size, true},
                    {"score.2", static_cast<int32_t>(count), true}};
    ESP_ASSIGN_OR_RETURN(pooling.labels, name_labels(config, static_cast<int32_t>(count)));
  }
  drop_generating_head(spec);
  spec.pooling = std::move(pooling);
  return Status();
}

Status set_pooling_modules(const std::filesystem::path& folder, const JsonObject& config,
                           bool forced, DecoderSpec& spec) {
  if (spec.texts) ESP_RETURN_IF_ERROR(read_text_settings(folder, spec));
  if (spec.pooling && !spec.pooling->labels.empty()) return Status();
  if (spec.pooling && spec.pooling->kind == PoolingSpec::Kind::kEach) return Status();
  const std::filesystem::path path = folder / "modules.json";
  const bool has_modules = std::filesystem::is_regular_file(path);
  if (!has_modules && !forced) return Status();
  if (!spec.pooling) ESP_RETURN_IF_ERROR(set_pooling(config, PooledUse::kModel, spec));
  if (!has_modules) return Status();
  ESP_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  // The file is a list; JsonObject reads objects.
  ESP_ASSIGN_OR_RETURN(const JsonObject list,
                       JsonObject::parse("{\"modules\":" + text + "}", path.string()));
  return follow_modules(folder, list, spec);
}

}  // namespace espalier
