#include "text/tokenizer/hf_model.h"

#include <algorithm>

#include "text/json_fields.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/unigram.h"
#include "text/tokenizer/word_piece.h"

namespace espalier {
namespace {

namespace json = boost::json;

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

// The id of the token that a field names; nothing where it is absent or names none.
Result<std::optional<TokenId>> named_token(const JsonFields& fields, std::string_view name,
                                           const Vocabulary& vocabulary) {
  if (fields.find(name) == nullptr) return std::optional<TokenId>();
  ESP_ASSIGN_OR_RETURN(const std::string token, fields.string(name));
  return vocabulary.find(token);
}

Result<Vocabulary> parse_vocabulary(const JsonFields& fields, bool byte_level) {
  ESP_ASSIGN_OR_RETURN(const json::object* vocab, fields.object("vocab"));
  Vocabulary vocabulary(byte_level, vocab->size());
  for (const auto& [key, value] : *vocab) {
    const std::string_view token = key;
    const int64_t* number = value.if_int64();
    if (number == nullptr || *number < 0 || *number >= kVocabularyMax) {
      return fail(parse_id(value, fmt::format("'model.vocab[\"{}\"]'", token)).error());
    }
    if (Status status = vocabulary.add(token, static_cast<TokenId>(*number)); !status.ok()) {
      return fail(status.with_context("'model.vocab'"));
    }
  }
  return vocabulary;
}

Result<BpeOptions> parse_bpe_options(const JsonFields& fields, const Vocabulary& vocabulary,
                                     bool byte_level) {
  const json::value* dropout = fields.find("dropout");
  if (dropout != nullptr && !(dropout->is_number() && dropout->to_number<double>() == 0.0)) {
    return fail(error(StatusCode::kUnimplemented,
                      "'model.dropout' is set: tokens would be drawn at random; set it to null"));
  }
  BpeOptions options;
  options.byte_level = byte_level;
  ESP_ASSIGN_OR_RETURN(options.byte_fallback, fields.boolean_or("byte_fallback", false));
  ESP_ASSIGN_OR_RETURN(options.fuse_unk, fields.boolean_or("fuse_unk", false));
  ESP_ASSIGN_OR_RETURN(options.ignore_merges, fields.boolean_or("ignore_merges", false));
  ESP_ASSIGN_OR_RETURN(options.unk_id, named_token(fields, "unk_token", vocabulary));
  ESP_ASSIGN_OR_RETURN(options.continuing_prefix,
                       fields.string_or("continuing_subword_prefix", ""));
  ESP_ASSIGN_OR_RETURN(options.end_suffix, fields.string_or("end_of_word_suffix", ""));
  return options;
}

// The id of what a merge makes. Files list merges in the order of what they make, so it is mostly
// what the one before made, or the token after that: found without a search of the whole table.
TokenId merged_id(const TokenTable& table, std::string_view merged, TokenId before) {
  for (const TokenId near : {before, before + 1}) {
    if (table.of(near) == merged) return near;
  }
  return table.find_id(merged);
}

Result<std::vector<BpeModel::Merge>> parse_merges(const JsonFields& fields,
                                                  const Vocabulary& vocabulary,
                                                  const BpeOptions& options) {
  ESP_ASSIGN_OR_RETURN(const json::array* entries, fields.array("merges"));
  std::vector<BpeModel::Merge> merges;
  merges.reserve(entries->size());
  std::string left_bytes, right_bytes;
  const TokenTable& table = vocabulary.table();
  const size_t prefix_size = options.continuing_prefix.size();
  for (size_t rank = 0; rank < entries->size(); ++rank) {
    const json::value& value = (*entries)[rank];
    if (rank == 0 && value.is_string() && value.get_string().starts_with("#version")) continue;
    ESP_ASSIGN_OR_RETURN(const MergeStrings strings, parse_merge(value, rank));
    left_bytes.clear();
    right_bytes.clear();
    const bool spelled = options.byte_level ? append_spelled_bytes(strings.left, left_bytes) &&
                                                  append_spelled_bytes(strings.right, right_bytes)
                                            : true;
    if (!options.byte_level) {
      left_bytes = strings.left;
      right_bytes = strings.right;
    }
    const TokenId left = table.find_id(left_bytes), right = table.find_id(right_bytes);
    left_bytes.append(right_bytes, std::min(prefix_size, right_bytes.size()));
    const TokenId before = merges.empty() ? 0 : merges.back().merged;
    const TokenId merged = merged_id(table, left_bytes, before);
    if (!spelled || left < 0 || right < 0 || merged < 0) {
      return fail(error(StatusCode::kDataLoss,
                        "'model.merges[{}]' ('{}' and '{}'): a token of it, or what it makes, is "
                        "not in the vocabulary",
                        rank, strings.left, strings.right));
    }
    merges.push_back({left, right, merged});
  }
  return merges;
}

Result<HfModel> parse_bpe(const JsonFields& fields, bool byte_level) {
  ESP_ASSIGN_OR_RETURN(Vocabulary vocabulary, parse_vocabulary(fields, byte_level));
  ESP_ASSIGN_OR_RETURN(BpeOptions options, parse_bpe_options(fields, vocabulary, byte_level));
  ESP_ASSIGN_OR_RETURN(const auto merges, parse_merges(fields, vocabulary, options));
  auto model = std::make_unique<BpeModel>(std::move(options), vocabulary.table(), merges);
  return HfModel{std::move(vocabulary), std::move(model)};
}

// "vocab": [["token", score], ...], the ids in order.
Result<HfModel> parse_unigram(const JsonFields& fields) {
  ESP_ASSIGN_OR_RETURN(const json::array* entries, fields.array("vocab"));
  Vocabulary vocabulary(/*byte_level=*/false, entries->size());
  std::vector<double> scores;
  scores.reserve(entries->size());
  for (size_t id = 0; id < entries->size(); ++id) {
    const json::array* pair = (*entries)[id].if_array();
    const json::string* token =
        pair != nullptr && pair->size() == 2 ? (*pair)[0].if_string() : nullptr;
    if (token == nullptr || !(*pair)[1].is_number()) {
      return fail(error(StatusCode::kDataLoss,
                        "'model.vocab[{}]' should be a token and its score: [\"a\", -1.5]", id));
    }
    ESP_RETURN_IF_ERROR(vocabulary.add(*token, static_cast<TokenId>(id)));
    scores.push_back((*pair)[1].to_number<double>());
  }
  std::optional<TokenId> unk_id;
  if (fields.find("unk_id") != nullptr) {
    ESP_ASSIGN_OR_RETURN(const int64_t id, fields.integer("unk_id"));
    if (id < 0 || id >= static_cast<int64_t>(scores.size())) {
      return fail(error(StatusCode::kDataLoss, "'model.unk_id' is {} and the vocabulary has {}", id,
                        scores.size()));
    }
    unk_id = static_cast<TokenId>(id);
  }
  ESP_ASSIGN_OR_RETURN(const bool byte_fallback, fields.boolean_or("byte_fallback", false));
  auto model =
      std::make_unique<UnigramModel>(vocabulary.table(), std::move(scores), unk_id, byte_fallback);
  return HfModel{std::move(vocabulary), std::move(model)};
}

Result<HfModel> parse_word_piece(const JsonFields& fields) {
  ESP_ASSIGN_OR_RETURN(Vocabulary vocabulary, parse_vocabulary(fields, false));
  WordPieceModel::Options options;
  ESP_ASSIGN_OR_RETURN(options.unk_id, named_token(fields, "unk_token", vocabulary));
  ESP_ASSIGN_OR_RETURN(options.continuing_prefix,
                       fields.string_or("continuing_subword_prefix", "##"));
  if (fields.find("max_input_chars_per_word") != nullptr) {
    ESP_ASSIGN_OR_RETURN(const int64_t count, fields.integer("max_input_chars_per_word"));
    options.characters_max = static_cast<size_t>(std::max<int64_t>(count, 0));
  }
  auto model = std::make_unique<WordPieceModel>(vocabulary.table(), std::move(options));
  return HfModel{std::move(vocabulary), std::move(model)};
}

Result<HfModel> parse_word_level(const JsonFields& fields) {
  ESP_ASSIGN_OR_RETURN(Vocabulary vocabulary, parse_vocabulary(fields, false));
  ESP_ASSIGN_OR_RETURN(const auto unk_id, named_token(fields, "unk_token", vocabulary));
  auto model = std::make_unique<WordLevelModel>(vocabulary.table(), unk_id);
  return HfModel{std::move(vocabulary), std::move(model)};
}

// Older files have no type; their fields identify it.
std::string_view type_by_fields(const JsonFields& fields) {
  const json::value* vocab = fields.find("vocab");
  if (fields.find("merges") != nullptr) return "BPE";
  if (vocab != nullptr && vocab->is_array()) return "Unigram";
  return fields.find("continuing_subword_prefix") != nullptr ? "WordPiece" : "WordLevel";
}

}  // namespace

Result<HfModel> parse_hf_model(const json::value& model, bool byte_level) {
  ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of(model, "model"));
  ESP_ASSIGN_OR_RETURN(const std::string type, fields.string_or("type", type_by_fields(fields)));
  if (type == "BPE") return parse_bpe(fields, byte_level);
  if (byte_level) {
    return fail(error(StatusCode::kUnimplemented,
                      "'model.type' is '{}' after a ByteLevel pre-tokeniser, which only BPE has",
                      type));
  }
  if (type == "Unigram") return parse_unigram(fields);
  if (type == "WordPiece") return parse_word_piece(fields);
  if (type == "WordLevel") return parse_word_level(fields);
  return fail(error(StatusCode::kUnimplemented,
                    "'model.type' is '{}', which is not supported (supported: BPE, Unigram, "
                    "WordPiece, WordLevel)",
                    type));
}

Result<std::vector<AddedToken>> parse_added_tokens(const json::value& value,
                                                   const Vocabulary& vocabulary) {
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

// {"SpecialToken": {"id": "[SEP]", "type_id": 0}} or {"Sequence": {"id": "B", "type_id": 1}}.
Result<SequenceFrame::Piece> parse_template_piece(const JsonFields& fields,
                                                  const JsonFields& piece) {
  SequenceFrame::Piece out;
  const json::value* const sequence = piece.find("Sequence");
  const char* const kind = sequence != nullptr ? "Sequence" : "SpecialToken";
  const json::value* const value = piece.find(kind);
  static const json::value kMissing;
  ESP_ASSIGN_OR_RETURN(const JsonFields part,
                       JsonFields::of(value != nullptr ? *value : kMissing, piece.path_to(kind)));
  ESP_ASSIGN_OR_RETURN(const std::string name, part.string("id"));
  const json::value* const type = part.find("type_id");
  if (type != nullptr) {
    ESP_ASSIGN_OR_RETURN(out.type, parse_id(*type, part.path_to("type_id")));
  }
  if (sequence != nullptr) {
    out.sequence = name == "A" ? 0 : 1;
    return out;
  }
  ESP_ASSIGN_OR_RETURN(out.ids, template_ids(fields, name));
  return out;
}

// Nothing where a text is missing or comes twice.
Result<std::vector<SequenceFrame::Piece>> parse_template_pair(const JsonFields& fields) {
  std::vector<SequenceFrame::Piece> out;
  if (fields.find("pair") == nullptr) return out;
  ESP_ASSIGN_OR_RETURN(const json::array* pieces, fields.array("pair"));
  int counts[2] = {0, 0};
  for (size_t i = 0; i < pieces->size(); ++i) {
    const std::string path = fmt::format("{}.pair[{}]", fields.path(), i);
    ESP_ASSIGN_OR_RETURN(const JsonFields piece, JsonFields::of((*pieces)[i], path));
    ESP_ASSIGN_OR_RETURN(out.emplace_back(), parse_template_piece(fields, piece));
    if (out.back().sequence >= 0) ++counts[out.back().sequence];
  }
  if (counts[0] != 1 || counts[1] != 1) out.clear();
  return out;
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
    ESP_ASSIGN_OR_RETURN(const SequenceFrame::Piece token, parse_template_piece(fields, piece));
    const std::vector<TokenId>& ids = token.ids;
    std::vector<TokenId>& side = num_sequences == 0 ? frame.before : frame.after;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (num_sequences != 1) {
    return fail(error(StatusCode::kUnimplemented,
                      "'{}.single' should have the sequence once, and has it {} times",
                      fields.path(), num_sequences));
  }
  ESP_ASSIGN_OR_RETURN(frame.pair, parse_template_pair(fields));
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
    const bool bert = type == "BertProcessing";
    std::vector<TokenId> between = {sep};
    if (!bert) between.push_back(sep);
    const int32_t second = bert ? 1 : 0;
    return SequenceFrame{{cls},
                         {sep},
                         {{.ids = {cls}},
                          {.sequence = 0},
                          {.ids = between},
                          {.sequence = 1, .type = second},
                          {.ids = {sep}, .type = second}}};
  }
  if (type == "Sequence") {
    ESP_ASSIGN_OR_RETURN(const json::array* parts, fields.array("processors"));
    for (size_t i = 0; i < parts->size(); ++i) {  // each frames what the one before made
      const std::string part_path = fmt::format("{}.processors[{}]", path, i);
      ESP_ASSIGN_OR_RETURN(const SequenceFrame part, parse_post_processor((*parts)[i], part_path));
      frame.before.insert(frame.before.begin(), part.before.begin(), part.before.end());
      frame.after.insert(frame.after.end(), part.after.begin(), part.after.end());
      if (!part.pair.empty()) frame.pair = part.pair;
    }
    return frame;
  }
  return fail(error(StatusCode::kUnimplemented,
                    "'{}' is of type '{}', which is not supported (supported: Sequence, ByteLevel, "
                    "TemplateProcessing, RobertaProcessing, BertProcessing)",
                    path, type));
}

}  // namespace espalier
