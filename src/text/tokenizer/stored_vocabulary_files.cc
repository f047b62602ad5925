#include "text/tokenizer/stored_vocabulary_files.h"

#include <algorithm>
#include <boost/json.hpp>

#include "text/tokenizer/named_splits.h"

namespace espalier {
namespace {

namespace json = boost::json;

// Types of tokens as GGUF numbers them.
constexpr int32_t kNormalType = 1, kControlType = 3, kUserType = 4, kUnusedType = 5;

template <typename... Args>
Status refused(fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::kUnimplemented, "tokenizer.json: {}",
               fmt::format(format, std::forward<Args>(args)...));
}

Result<json::object> parse_object(std::string_view text, std::string_view name) {
  boost::system::error_code wrong;
  json::value value = json::parse(text, wrong);
  if (wrong || !value.is_object())
    return fail(error(StatusCode::kDataLoss, "{} is no JSON object", name));
  return std::move(value.get_object());
}

// The member; null where it is absent or null.
const json::value* member(const json::value& of, std::string_view name) {
  const json::object* object = of.if_object();
  const json::value* value = object != nullptr ? object->if_contains(name) : nullptr;
  return value != nullptr && !value->is_null() ? value : nullptr;
}

std::string text_member(const json::value& of, std::string_view name) {
  const json::value* value = member(of, name);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

bool flag_of(const json::value& of, std::string_view name, bool otherwise = false) {
  const json::value* value = member(of, name);
  return value != nullptr && value->is_bool() ? value->get_bool() : otherwise;
}

// A step, or the steps of a Sequence.
std::vector<json::value> steps_of(const json::value* step, std::string_view list) {
  if (step == nullptr) return {};
  const json::value* inner = member(*step, list);
  if (text_member(*step, "type") != "Sequence" || inner == nullptr || !inner->is_array())
    return {*step};
  return {inner->get_array().begin(), inner->get_array().end()};
}

// The expressions that cut words before the bytes are taken.
Result<std::vector<std::string>> expressions_of(const json::value& tokenizer) {
  std::vector<std::string> out;
  bool takes_bytes = false;
  for (const json::value& step : steps_of(member(tokenizer, "pre_tokenizer"), "pretokenizers")) {
    const std::string type = text_member(step, "type");
    if (type == "ByteLevel" && !flag_of(step, "add_prefix_space")) {
      takes_bytes = true;
      // Without expressions of its own it cuts as GPT-2 does.
      if (flag_of(step, "use_regex", true))
        out.emplace_back(find_named_split("gpt-2").value()->expressions[0]);
      continue;
    }
    const json::value* pattern = member(step, "pattern");
    const std::string expression = pattern != nullptr ? text_member(*pattern, "Regex") : "";
    if (type != "Split" || expression.empty() || text_member(step, "behavior") != "Isolated" ||
        flag_of(step, "invert"))
      return fail(refused("a GGUF has no name for the pre-tokeniser {}", json::serialize(step)));
    out.push_back(expression);
  }
  if (!takes_bytes)
    return fail(refused("its pre-tokeniser does not take bytes, as byte-level BPE does"));
  return out;
}

Result<std::string> name_of_split(const json::value& tokenizer) {
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> expressions, expressions_of(tokenizer));
  const bool whole_words = flag_of(tokenizer.at("model"), "ignore_merges");
  for (const NamedSplit& split : named_splits())
    if (split.whole_words_first == whole_words &&
        std::ranges::equal(split.expressions, expressions))
      return std::string(split.names.front());
  return fail(refused("a GGUF has no name for cutting words by {}",
                      json::serialize(json::value_from(expressions))));
}

Status check_model(const json::value& tokenizer) {
  const json::value* model = member(tokenizer, "model");
  if (model == nullptr || text_member(*model, "type") != "BPE" ||
      flag_of(*model, "byte_fallback") || member(*model, "vocab") == nullptr ||
      !model->at("vocab").is_object() || member(*model, "merges") == nullptr ||
      !model->at("merges").is_array())
    return refused("only byte-level BPE vocabularies are converted, and this is no such one");
  for (const char* part : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!text_member(*model, part).empty())
      return refused("its model has a {}, which a GGUF cannot say", part);
  // NFC changes no text that is composed already, and programs that read GGUF files leave it out.
  const json::value* normalizer = member(tokenizer, "normalizer");
  if (normalizer != nullptr && text_member(*normalizer, "type") != "NFC")
    return refused("a GGUF cannot say its normaliser {}", json::serialize(*normalizer));
  return {};
}

// Puts a token at its place. Returns whether the id and the place are free or hold the same.
bool put_token(StoredVocabulary& out, const json::value& id, std::string_view text, int32_t type) {
  constexpr int64_t kTokensMax = 1 << 24;
  if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= kTokensMax) return false;
  const auto at = static_cast<size_t>(id.get_int64());
  if (at >= out.tokens.size()) {
    out.tokens.resize(at + 1);
    out.types.resize(at + 1, kUnusedType);
  }
  if (out.types[at] != kUnusedType && out.tokens[at] != text) return false;
  out.tokens[at] = text;
  out.types[at] = type;
  return true;
}

Status add_tokens(const json::value& tokenizer, StoredVocabulary& out) {
  for (const auto& [text, id] : tokenizer.at("model").at("vocab").get_object())
    if (!put_token(out, id, text, kNormalType))
      return error(StatusCode::kDataLoss, "tokenizer.json: the id of '{}' is taken or no id",
                   std::string_view(text));
  const json::value* added = member(tokenizer, "added_tokens");
  if (added == nullptr || !added->is_array()) return {};
  for (const json::value& token : added->get_array()) {
    const std::string text = text_member(token, "content");
    if (flag_of(token, "lstrip") || flag_of(token, "rstrip") || flag_of(token, "single_word"))
      return refused("the token '{}' takes white space beside it, which a GGUF cannot say", text);
    const json::value* id = member(token, "id");
    if (id == nullptr ||
        !put_token(out, *id, text, flag_of(token, "special") ? kControlType : kUserType))
      return error(StatusCode::kDataLoss, "tokenizer.json: the id of '{}' is taken or no id", text);
  }
  return {};
}

Status add_merges(const json::value& tokenizer, StoredVocabulary& out) {
  for (const json::value& merge : tokenizer.at("model").at("merges").get_array()) {
    if (merge.is_string()) {
      out.merges.emplace_back(merge.get_string());
      continue;
    }
    const json::array* pair = merge.if_array();
    if (pair == nullptr || pair->size() != 2 || !pair->at(0).is_string() ||
        !pair->at(1).is_string())
      return error(StatusCode::kDataLoss, "tokenizer.json: merge {} is no pair of texts",
                   out.merges.size());
    out.merges.push_back(std::string(pair->at(0).get_string()) + " " +
                         std::string(pair->at(1).get_string()));
  }
  return {};
}

// {"bos_token": "<s>"}, or {"content": "<s>"} in its place.
std::optional<int32_t> token_named_by(const json::value& config, std::string_view name,
                                      const StoredVocabulary& vocabulary) {
  const json::value* value = member(config, name);
  if (value == nullptr) return std::nullopt;
  const std::string text =
      value->is_string() ? std::string(value->get_string()) : text_member(*value, "content");
  const auto found = std::ranges::find(vocabulary.tokens, text);
  if (text.empty() || found == vocabulary.tokens.end()) return std::nullopt;
  return static_cast<int32_t>(found - vocabulary.tokens.begin());
}

// What the post-processor puts around a text: nothing, the first token before it, the last behind.
Status add_frame(const json::value& tokenizer, StoredVocabulary& out) {
  out.add_bos = out.add_eos = false;
  const auto is = [&](const std::string& name, std::optional<int32_t> id) {
    return id && out.tokens[static_cast<size_t>(*id)] == name;
  };
  for (const json::value& step : steps_of(member(tokenizer, "post_processor"), "processors")) {
    const json::value* single = member(step, "single");
    if (text_member(step, "type") == "ByteLevel") continue;
    if (text_member(step, "type") != "TemplateProcessing" || single == nullptr ||
        !single->is_array())
      return refused("a GGUF cannot say its post-processor {}", json::serialize(step));
    bool text_seen = false;
    for (const json::value& piece : single->get_array()) {
      if (member(piece, "Sequence") != nullptr) {
        text_seen = true;
        continue;
      }
      const json::value* special = member(piece, "SpecialToken");
      const std::string name = special != nullptr ? text_member(*special, "id") : "";
      std::optional<bool>& which = text_seen ? out.add_eos : out.add_bos;
      if (!is(name, text_seen ? out.eos_id : out.bos_id) || which == true)
        return refused("a GGUF cannot say that '{}' stands beside every text", name);
      which = true;
    }
  }
  return {};
}

json::object added_token_json(size_t id, const std::string& text, bool special) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

json::object post_processor(const StoredVocabulary& vocabulary, bool add_bos, bool add_eos) {
  json::array single, pair;
  json::object specials;
  const auto special = [&](std::optional<int32_t> id, int type_id) {
    const std::string& name = vocabulary.tokens[static_cast<size_t>(*id)];
    specials[name] = {{"id", name}, {"ids", json::array{*id}}, {"tokens", json::array{name}}};
    return json::object{{"SpecialToken", {{"id", name}, {"type_id", type_id}}}};
  };
  const auto add = [&](json::array& to, const char* sequence, int type_id) {
    if (add_bos) to.push_back(special(vocabulary.bos_id, type_id));
    to.push_back(json::object{{"Sequence", {{"id", sequence}, {"type_id", type_id}}}});
    if (add_eos) to.push_back(special(vocabulary.eos_id, type_id));
  };
  add(single, "A", 0);
  add(pair, "A", 0);
  add(pair, "B", 1);
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(specials)}};
}

json::object byte_level_step(bool trim_offsets) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", trim_offsets},
          {"use_regex", false}};
}

json::array merge_pairs(const StoredVocabulary& vocabulary) {
  json::array out;
  for (const std::string& line : vocabulary.merges) {
    // The first token may itself begin with a space.
    const size_t space = std::min(line.find(' ', 1), line.size());
    out.push_back(
        json::array{line.substr(0, space), line.substr(std::min(space + 1, line.size()))});
  }
  return out;
}

json::object tokenizer_config(const StoredVocabulary& vocabulary, bool add_bos) {
  json::object out{{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"add_bos_token", add_bos},
                   {"clean_up_tokenization_spaces", false}};
  for (const auto& [name, id] :
       {std::pair{"bos_token", vocabulary.bos_id}, {"eos_token", vocabulary.eos_id}})
    if (id) out[name] = vocabulary.tokens[static_cast<size_t>(*id)];
  if (!vocabulary.chat_template.empty()) out["chat_template"] = vocabulary.chat_template;
  return out;
}

}  // namespace

Result<StoredVocabulary> store_vocabulary(const VocabularyFiles& files, size_t size) {
  ESP_ASSIGN_OR_RETURN(const json::value tokenizer,
                       parse_object(files.tokenizer, "tokenizer.json"));
  ESP_ASSIGN_OR_RETURN(
      const json::value config,
      parse_object(files.config.empty() ? "{}" : files.config, "tokenizer_config.json"));
  if (const Status status = check_model(tokenizer); !status.ok()) return fail(status);
  StoredVocabulary out;
  out.model = "gpt2";
  ESP_ASSIGN_OR_RETURN(out.pre_tokenizer, name_of_split(tokenizer));
  ESP_RETURN_IF_ERROR(add_tokens(tokenizer, out));
  ESP_RETURN_IF_ERROR(add_merges(tokenizer, out));
  out.tokens.resize(std::max(size, out.tokens.size()));
  out.types.resize(out.tokens.size(), kUnusedType);
  for (size_t id = 0; id < out.tokens.size(); ++id)
    if (out.types[id] == kUnusedType) out.tokens[id] = fmt::format("[PAD{}]", id);
  out.bos_id = token_named_by(config, "bos_token", out);
  out.eos_id = token_named_by(config, "eos_token", out);
  out.chat_template = text_member(config, "chat_template");
  ESP_RETURN_IF_ERROR(add_frame(tokenizer, out));
  return out;
}

Result<VocabularyFiles> make_vocabulary_files(const StoredVocabulary& vocabulary) {
  if (vocabulary.model != "gpt2")
    return fail(
        error(StatusCode::kUnimplemented,
              "the vocabulary is of the kind '{}': only byte-level BPE (gpt2) is written as "
              "tokenizer.json",
              vocabulary.model));
  ESP_ASSIGN_OR_RETURN(const NamedSplit* split, find_named_split(vocabulary.pre_tokenizer));
  json::object vocab;
  json::array added;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int32_t type = vocabulary.types.empty() ? kNormalType : vocabulary.types[id];
    vocab[vocabulary.tokens[id]] = id;
    if (type == kControlType || type == kUserType)
      added.push_back(added_token_json(id, vocabulary.tokens[id], type == kControlType));
  }
  const bool add_bos = vocabulary.bos_id && vocabulary.add_bos.value_or(split->add_bos);
  const bool add_eos = vocabulary.eos_id && vocabulary.add_eos.value_or(false);
  json::array processors{byte_level_step(false)};
  if (add_bos || add_eos) processors.push_back(post_processor(vocabulary, add_bos, add_eos));
  const json::object tokenizer{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", nullptr},
      {"pre_tokenizer", split->pre_tokenizer()},
      {"post_processor", {{"type", "Sequence"}, {"processors", std::move(processors)}}},
      {"decoder", byte_level_step(true)},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", split->whole_words_first},
        {"vocab", std::move(vocab)},
        {"merges", merge_pairs(vocabulary)}}}};
  return VocabularyFiles{.tokenizer = json::serialize(tokenizer),
                         .config = json::serialize(tokenizer_config(vocabulary, add_bos))};
}

}  // namespace espalier
