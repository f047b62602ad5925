#include "text/tokenizer/hf_model.h"

#include <limits>

#include "text/json_fields.h"
#include "text/tokenizer/byte_alphabet.h"

namespace espalier {
namespace {

namespace json = boost::json;

// A bound that no real vocabulary reaches, so that a wrong id cannot ask for all memory.
constexpr int64_t kVocabularyMax = 1 << 24;

Result<TokenId> parse_id(const json::value& value, std::string_view what) {
  const int64_t* id = value.if_int64();
  if (id == nullptr || *id < 0 || *id >= kVocabularyMax) {
    return fail(error(StatusCode::kDataLoss, "the id of {} should be an integer in [0, {})", what,
                      kVocabularyMax));
  }
  return static_cast<TokenId>(*id);
}

// The two tokens of a merge: "a b" or ["a", "b"].
struct MergeStrings {
  std::string_view left, right;
};
Result<MergeStrings> parse_merge(const json::value& value, size_t rank) {
  if (const json::string* line = value.if_string()) {
    const std::string_view text(*line);
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return MergeStrings{text.substr(0, space), text.substr(space + 1)};
    }
  } else if (const json::array* pair = value.if_array(); pair != nullptr && pair->size() == 2) {
    const json::string* left = (*pair)[0].if_string();
    const json::string* right = (*pair)[1].if_string();
    if (left != nullptr && right != nullptr) return MergeStrings{*left, *right};
  }
  return fail(error(StatusCode::kDataLoss,
                    "'model.merges[{}]' should be two tokens: \"a b\" or [\"a\", \"b\"]", rank));
}

Status check_supported(const JsonFields& fields) {
  ESP_ASSIGN_OR_RETURN(const std::string type, fields.string_or("type", "BPE"));
  if (type != "BPE") {
    return error(StatusCode::kUnimplemented,
                 "'model.type' is '{}', which is not supported (supported: BPE)", type);
  }
  for (const std::string_view name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ESP_ASSIGN_OR_RETURN(const std::string affix, fields.string_or(name, ""));
    if (!affix.empty()) {
      return error(StatusCode::kUnimplemented, "'model.{}' ('{}') is not supported", name, affix);
    }
  }
  const json::value* dropout = fields.find("dropout");
  if (dropout != nullptr && !(dropout->is_number() && dropout->to_number<double>() == 0.0)) {
    return error(StatusCode::kUnimplemented,
                 "'model.dropout' is set: tokens would be drawn at random; set it to null");
  }
  return {};
}

}  // namespace

Result<HfVocabulary> HfVocabulary::parse(const json::object& vocab, bool byte_level) {
  HfVocabulary result;
  result.byte_level_ = byte_level;
  result.tokens_ = std::make_unique<TokenTable>(vocab.size(), vocab.size() * 8);
  std::string bytes;
  for (const auto& [key, value] : vocab) {
    const std::string_view token = key;
    if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() >= kVocabularyMax) {
      return fail(parse_id(value, fmt::format("'model.vocab[\"{}\"]'", token)).error());
    }
    const auto id = static_cast<TokenId>(value.get_int64());
    if (result.has(id)) {
      return fail(error(StatusCode::kDataLoss, "'model.vocab': '{}' and '{}' have the same id {}",
                        result.token_of(id), token, id));
    }
    result.id_end_ = std::max(result.id_end_, id + 1);
    bytes.clear();
    if (!byte_level) {
      result.tokens_->add(token, id);
    } else if (append_spelled_bytes(token, bytes)) {
      result.tokens_->add(bytes, id);
    } else {
      result.odd_tokens_.emplace(id, token);
      result.odd_ids_.emplace(token, id);
    }
  }
  return result;
}

std::optional<TokenId> HfVocabulary::find(std::string_view token) const {
  if (!byte_level_) return tokens_->find(token);
  std::string bytes;
  if (append_spelled_bytes(token, bytes)) return tokens_->find(bytes);
  const auto it = odd_ids_.find(std::string(token));
  if (it == odd_ids_.end()) return std::nullopt;
  return it->second;
}

std::string HfVocabulary::token_of(TokenId id) const {
  if (const auto it = odd_tokens_.find(id); it != odd_tokens_.end()) return it->second;
  return byte_level_ ? spell_bytes(tokens_->of(id)) : std::string(tokens_->of(id));
}

std::string_view HfVocabulary::bytes_of(TokenId id) const {
  if (const auto it = odd_tokens_.find(id); it != odd_tokens_.end()) return it->second;
  return tokens_->of(id);
}

Result<HfModel> parse_hf_model(const json::value& model, bool byte_level) {
  ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of(model, "model"));
  ESP_RETURN_IF_ERROR(check_supported(fields));
  ESP_ASSIGN_OR_RETURN(const json::object* vocab, fields.object("vocab"));
  ESP_ASSIGN_OR_RETURN(HfVocabulary vocabulary, HfVocabulary::parse(*vocab, byte_level));
  HfModel result{std::move(vocabulary), {}, {}};
  result.options.byte_level = byte_level;
  ESP_ASSIGN_OR_RETURN(result.options.byte_fallback, fields.boolean_or("byte_fallback", false));
  ESP_ASSIGN_OR_RETURN(result.options.fuse_unk, fields.boolean_or("fuse_unk", false));
  ESP_ASSIGN_OR_RETURN(result.options.ignore_merges, fields.boolean_or("ignore_merges", false));
  if (fields.find("unk_token") != nullptr) {
    ESP_ASSIGN_OR_RETURN(const std::string unk, fields.string("unk_token"));
    result.options.unk_id = result.vocabulary.find(unk);
  }
  ESP_ASSIGN_OR_RETURN(const json::array* merges, fields.array("merges"));
  result.merges.reserve(merges->size());
  std::string left_bytes, right_bytes;
  const TokenTable& table = result.vocabulary.table();
  for (size_t rank = 0; rank < merges->size(); ++rank) {
    const json::value& value = (*merges)[rank];
    if (rank == 0 && value.is_string() && value.get_string().starts_with("#version")) continue;
    ESP_ASSIGN_OR_RETURN(const MergeStrings strings, parse_merge(value, rank));
    left_bytes.clear();
    right_bytes.clear();
    const bool spelled = byte_level ? append_spelled_bytes(strings.left, left_bytes) &&
                                          append_spelled_bytes(strings.right, right_bytes)
                                    : true;
    if (!byte_level) {
      left_bytes = strings.left;
      right_bytes = strings.right;
    }
    const std::optional<TokenId> left = table.find(left_bytes);
    const std::optional<TokenId> right = table.find(right_bytes);
    const std::optional<TokenId> merged = table.find(left_bytes.append(right_bytes));
    if (!spelled || !left || !right || !merged) {
      return fail(error(StatusCode::kDataLoss,
                        "'model.merges[{}]' ('{}' and '{}'): a token of it, or what it makes, is "
                        "not in the vocabulary",
                        rank, strings.left, strings.right));
    }
    result.merges.push_back({*left, *right, *merged});
  }
  return result;
}

Result<std::vector<AddedToken>> parse_added_tokens(const json::value& value,
                                                   const HfVocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  if (value.is_null()) return tokens;
  const json::array* entries = value.if_array();
  if (entries == nullptr) return fail(error(StatusCode::kDataLoss, "'added_tokens' is no array"));
  for (size_t i = 0; i < entries->size(); ++i) {
    const std::string path = fmt::format("added_tokens[{}]", i);
    ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of((*entries)[i], path));
    AddedToken token;
    ESP_ASSIGN_OR_RETURN(token.content, fields.string("content"));
    if (token.content.empty()) continue;
    const json::value* id = fields.find("id");
    ESP_ASSIGN_OR_RETURN(token.id, parse_id(id != nullptr ? *id : json::value(), path));
    token.id = vocabulary.find(token.content).value_or(token.id);
    ESP_ASSIGN_OR_RETURN(token.special, fields.boolean_or("special", false));
    ESP_ASSIGN_OR_RETURN(token.normalized, fields.boolean_or("normalized", !token.special));
    ESP_ASSIGN_OR_RETURN(token.single_word, fields.boolean_or("single_word", false));
    ESP_ASSIGN_OR_RETURN(token.lstrip, fields.boolean_or("lstrip", false));
    ESP_ASSIGN_OR_RETURN(token.rstrip, fields.boolean_or("rstrip", false));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

namespace {

Result<std::vector<TokenId>> template_ids(const JsonFields& fields, std::string_view name) {
  ESP_ASSIGN_OR_RETURN(const json::object* specials, fields.object("special_tokens"));
  const std::string path = fmt::format("{}.special_tokens", fields.path());
  const json::value* entry = specials->if_contains(name);
  if (entry == nullptr) {
    return fail(error(StatusCode::kDataLoss, "'{}' has no '{}'", path, name));
  }
  ESP_ASSIGN_OR_RETURN(const JsonFields token,
                       JsonFields::of(*entry, fmt::format("{}.{}", path, name)));
  ESP_ASSIGN_OR_RETURN(const json::array* ids, token.array("ids"));
  std::vector<TokenId> result;
  for (const json::value& value : *ids) {
    ESP_ASSIGN_OR_RETURN(const TokenId id, parse_id(value, token.path()));
    result.push_back(id);
  }
  return result;
}

Result<SequenceFrame> parse_template(const JsonFields& fields) {
  SequenceFrame frame;
  ESP_ASSIGN_OR_RETURN(const json::array* pieces, fields.array("single"));
  int num_sequences = 0;
  for (size_t i = 0; i < pieces->size(); ++i) {
    const std::string path = fmt::format("{}.single[{}]", fields.path(), i);
    ESP_ASSIGN_OR_RETURN(const JsonFields piece, JsonFields::of((*pieces)[i], path));
    if (piece.find("Sequence") != nullptr) {
      ++num_sequences;
      continue;
    }
    const json::value* special = piece.find("SpecialToken");
    ESP_ASSIGN_OR_RETURN(const JsonFields token,
                         JsonFields::of(special != nullptr ? *special : json::value(),
                                        piece.path_to("SpecialToken")));
    ESP_ASSIGN_OR_RETURN(const std::string name, token.string("id"));
    ESP_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, template_ids(fields, name));
    std::vector<TokenId>& side = num_sequences == 0 ? frame.before : frame.after;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (num_sequences != 1) {
    return fail(error(StatusCode::kUnimplemented,
                      "'{}.single' should have the sequence once, and has it {} times",
                      fields.path(), num_sequences));
  }
  return frame;
}

// "sep" and "cls" of BertProcessing and RobertaProcessing: ["</s>", 2].
Result<TokenId> parse_named_id(const JsonFields& fields, std::string_view name) {
  ESP_ASSIGN_OR_RETURN(const json::array* pair, fields.array(name));
  return parse_id(pair->size() == 2 ? (*pair)[1] : json::value(), fields.path_to(name));
}

}  // namespace

Result<SequenceFrame> parse_post_processor(const json::value& value, const std::string& path) {
  SequenceFrame frame;
  if (value.is_null()) return frame;
  ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of(value, path));
  ESP_ASSIGN_OR_RETURN(const std::string type, fields.string("type"));
  if (type == "ByteLevel") return frame;  // moves offsets alone
  if (type == "TemplateProcessing") return parse_template(fields);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    ESP_ASSIGN_OR_RETURN(const TokenId cls, parse_named_id(fields, "cls"));
    ESP_ASSIGN_OR_RETURN(const TokenId sep, parse_named_id(fields, "sep"));
    return SequenceFrame{{cls}, {sep}};
  }
  if (type == "Sequence") {
    ESP_ASSIGN_OR_RETURN(const json::array* parts, fields.array("processors"));
    for (size_t i = 0; i < parts->size(); ++i) {  // each frames what the one before made
      const std::string part_path = fmt::format("{}.processors[{}]", path, i);
      ESP_ASSIGN_OR_RETURN(const SequenceFrame part, parse_post_processor((*parts)[i], part_path));
      frame.before.insert(frame.before.begin(), part.before.begin(), part.before.end());
      frame.after.insert(frame.after.end(), part.after.begin(), part.after.end());
    }
    return frame;
  }
  return fail(error(StatusCode::kUnimplemented,
                    "'{}' is of type '{}', which is not supported (supported: Sequence, ByteLevel, "
                    "TemplateProcessing, RobertaProcessing, BertProcessing)",
                    path, type));
}

}  // namespace espalier
