#include "text/tokenizer/stored_tokenizer.h"

#include <boost/json.hpp>
#include <cmath>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/named_splits.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tokenizer/sentencepiece_tokenizer.h"

namespace espalier {
namespace {

namespace json = boost::json;
using PieceType = SentencePieceModel::PieceType;

// Types of tokens as GGUF numbers them.
constexpr int32_t kControl = 3, kUserDefined = 4;

Status check_id(std::optional<int32_t> id, std::string_view what, size_t size) {
  if (!id || (*id >= 0 && static_cast<size_t>(*id) < size)) return {};
  return error(StatusCode::kDataLoss, "the {} token is {}, and the vocabulary has {}", what, *id,
               size);
}

// A file's arrays must agree before they are indexed by each other; kDataLoss, for the file is
// wrong, not the request.
Status check(const StoredVocabulary& vocabulary) {
  const size_t size = vocabulary.tokens.size();
  if (size == 0) return error(StatusCode::kDataLoss, "the vocabulary is empty");
  for (const auto& [what, length] :
       {std::pair{"scores", vocabulary.scores.size()}, {"types", vocabulary.types.size()}}) {
    if (length == 0 || length == size) continue;
    return error(StatusCode::kDataLoss, "there are {} {} for {} tokens", length, what, size);
  }
  ESP_RETURN_IF_ERROR(check_id(vocabulary.bos_id, "first", size));
  ESP_RETURN_IF_ERROR(check_id(vocabulary.eos_id, "last", size));
  ESP_RETURN_IF_ERROR(check_id(vocabulary.eot_id, "end-of-turn", size));
  for (const auto id :
       {vocabulary.fim_prefix_id, vocabulary.fim_suffix_id, vocabulary.fim_middle_id})
    ESP_RETURN_IF_ERROR(check_id(id, "fill-in-the-middle", size));
  return check_id(vocabulary.unk_id, "unknown", size);
}

std::optional<FimTokens> fim_tokens(const StoredVocabulary& vocabulary) {
  if (!vocabulary.fim_prefix_id || !vocabulary.fim_suffix_id || !vocabulary.fim_middle_id)
    return std::nullopt;
  return FimTokens{.prefix = *vocabulary.fim_prefix_id,
                   .suffix = *vocabulary.fim_suffix_id,
                   .middle = *vocabulary.fim_middle_id};
}

int32_t type_of(const StoredVocabulary& vocabulary, size_t id) {
  return vocabulary.types.empty() ? 1 : vocabulary.types[id];
}

// Where the file does not say, the defaults are those of the library that wrote it: BPE models
// (llama) add the first token, keep white space and fall back to bytes, Unigram ones (t5) add the
// last token and collapse white space.
Result<std::unique_ptr<Tokenizer>> make_sentencepiece(StoredVocabulary vocabulary,
                                                      SentencePieceModel::Type type) {
  SentencePieceModel model;
  model.type = type;
  const bool bpe = type == SentencePieceModel::Type::kBpe;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int32_t piece_type = type_of(vocabulary, id);
    const float score = vocabulary.scores.empty() ? 0 : vocabulary.scores[id];
    if (piece_type < 1 || piece_type > 6 || std::isnan(score) || vocabulary.tokens[id].empty()) {
      return fail(error(StatusCode::kDataLoss,
                        "token {} ('{}') is empty, of the unknown type {}, or its score no number",
                        id, vocabulary.tokens[id], piece_type));
    }
    model.pieces.push_back(
        {std::move(vocabulary.tokens[id]), score, static_cast<PieceType>(piece_type)});
  }
  if (vocabulary.unk_id) model.pieces[*vocabulary.unk_id].type = PieceType::kUnknown;
  const bool has_unknown =
      std::any_of(model.pieces.begin(), model.pieces.end(),
                  [](const auto& piece) { return piece.type == PieceType::kUnknown; });
  if (!has_unknown) return fail(error(StatusCode::kDataLoss, "there is no unknown token"));
  model.byte_fallback = bpe;
  if (vocabulary.bos_id) model.bos_piece = model.pieces[*vocabulary.bos_id].text;
  if (vocabulary.eos_id) model.eos_piece = model.pieces[*vocabulary.eos_id].text;
  ESP_ASSIGN_OR_RETURN(model.charsmap, Charsmap::parse(vocabulary.charsmap));
  model.add_dummy_prefix = vocabulary.add_space_prefix.value_or(true);
  model.remove_extra_whitespaces = vocabulary.remove_extra_whitespaces.value_or(!bpe);
  const SentencePieceFrame frame{.add_bos = vocabulary.add_bos.value_or(bpe),
                                 .add_eos = vocabulary.add_eos.value_or(!bpe),
                                 .parse_control = true,
                                 .chat_template = std::move(vocabulary.chat_template),
                                 .fim_tokens = fim_tokens(vocabulary)};
  return make_sentencepiece_tokenizer(std::move(model), frame);
}

// A line is two tokens with a space between. The search begins at the second byte, since the first
// token may itself begin with one.
Result<std::vector<BpeModel::Merge>> read_merges(const StoredVocabulary& stored,
                                                 const Vocabulary& vocabulary) {
  std::vector<BpeModel::Merge> merges;
  merges.reserve(stored.merges.size());
  for (const std::string& line : stored.merges) {
    const size_t space = line.find(' ', 1);
    const auto left = vocabulary.find(line.substr(0, space));
    const auto right = space < line.size() ? vocabulary.find(line.substr(space + 1)) : std::nullopt;
    const auto merged = left && right
                            ? vocabulary.find(line.substr(0, space) + line.substr(space + 1))
                            : std::nullopt;
    if (!merged) {
      return fail(error(StatusCode::kDataLoss,
                        "merge {} ('{}'): a token of it, or what it makes, is not in the "
                        "vocabulary",
                        merges.size(), line));
    }
    merges.push_back({*left, *right, *merged});
  }
  return merges;
}

Result<std::unique_ptr<Tokenizer>> make_byte_level(StoredVocabulary stored) {
  ESP_ASSIGN_OR_RETURN(const NamedSplit* split, find_named_split(stored.pre_tokenizer));
  ESP_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer,
                       PreTokenizer::parse(split->pre_tokenizer(), "pre_tokenizer"));
  ESP_ASSIGN_OR_RETURN(Decoder decoder,
                       Decoder::parse(json::object{{"type", "ByteLevel"}}, "decoder"));
  PipelineTokenizer::Parts parts{
      .pre_tokenizer = std::move(pre_tokenizer),
      .vocabulary = Vocabulary(/*byte_level=*/true, stored.tokens.size()),
      .decoder = std::move(decoder)};
  for (size_t i = 0; i < stored.tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    ESP_RETURN_IF_ERROR(parts.vocabulary.add(stored.tokens[i], id));
    const int32_t type = type_of(stored, i);
    if (type != kControl && type != kUserDefined) continue;
    parts.added.push_back({.id = id, .content = stored.tokens[i], .special = type == kControl});
  }
  ESP_ASSIGN_OR_RETURN(const auto merges, read_merges(stored, parts.vocabulary));
  parts.model = std::make_unique<BpeModel>(
      BpeOptions{.byte_level = true, .ignore_merges = split->whole_words_first},
      parts.vocabulary.table(), merges);
  const auto name_of = [&](std::optional<int32_t> id, std::vector<std::string>& names) {
    if (id) names.push_back(stored.tokens[*id]);
  };
  name_of(stored.bos_id, parts.bos_tokens);
  name_of(stored.eos_id, parts.eos_tokens);
  name_of(stored.eot_id, parts.eos_tokens);
  if (stored.bos_id && stored.add_bos.value_or(split->add_bos)) {
    parts.frame.before = {*stored.bos_id};
  }
  if (stored.eos_id && stored.add_eos.value_or(false)) parts.frame.after = {*stored.eos_id};
  parts.chat_template = std::move(stored.chat_template);
  parts.fim_tokens = fim_tokens(stored);
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_stored_tokenizer(StoredVocabulary vocabulary) {
  ESP_RETURN_IF_ERROR(check(vocabulary));
  if (vocabulary.model == "llama") {
    return make_sentencepiece(std::move(vocabulary), SentencePieceModel::Type::kBpe);
  }
  if (vocabulary.model == "t5") {
    return make_sentencepiece(std::move(vocabulary), SentencePieceModel::Type::kUnigram);
  }
  if (vocabulary.model == "gpt2") return make_byte_level(std::move(vocabulary));
  return fail(error(StatusCode::kUnimplemented,
                    "the vocabulary is of the kind '{}', which is not known; those that are: "
                    "llama, gpt2, t5. Give the model's tokenizer.json with --tokenizer-path",
                    vocabulary.model));
}

}  // namespace espalier
