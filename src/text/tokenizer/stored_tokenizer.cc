#include "text/tokenizer/stored_tokenizer.h"

#include <fmt/ranges.h>

#include <boost/json.hpp>
#include <cmath>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tokenizer/sentencepiece_tokenizer.h"

namespace espalier {
namespace {

namespace json = boost::json;
using PieceType = SentencePieceModel::PieceType;

// Types of tokens as GGUF numbers them.
constexpr int32_t kControl = 3, kUserDefined = 4;

// The expressions of the models' own tokenizer.json files; each cuts a text into the words within
// which merges happen.
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kFalconSymbols = R"([\p{P}\$\+<=>\^~\|`]+)";
constexpr const char* kThreeDigits = "[0-9][0-9][0-9]";

// How a name cuts words: expressions, one after the other. Source: llama.cpp, llama-vocab.cpp.
struct NamedSplit {
  std::vector<std::string_view> names;
  std::vector<const char*> expressions;
  bool whole_words_first = false;  // a word that is a token needs no merges
  bool add_bos = false;            // where the file does not say
};

const std::vector<NamedSplit>& named_splits() {
  static const std::vector<NamedSplit> all = {
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0",
        "mellum", "mpt", "olmo", "jais", "trillion", "granite-docling", "roberta-bpe"},
       {kGpt2}},
      {{"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {kLlama3},
       /*whole_words_first=*/true,
       /*add_bos=*/true},
      {{"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, {kLlama3}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "stablelm2", "hunyuan", "megrez"}, {kQwen2}},
      {{"qwen35"}, {kQwen35}},
      {{"gpt-4o", "llama4"}, {kO200k}},
      {{"tekken"}, {kTekken}, /*whole_words_first=*/true, /*add_bos=*/true},
      {{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"},
       {R"(\p{N})", kGpt2}},
      {{"falcon"}, {kFalconSymbols, kGpt2, kThreeDigits}},
      {{"deepseek-coder"},
       {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"}},
      {{"deepseek-v3", "hunyuan-dense"},
       {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {{"bloom", "poro-chat", "gpt3-finnish"}, {" ?[^(\\s|.,!?…。，、।۔،)]+"}},
      {{"viking"}, {" ?[^(\\s|.,!?…。，、।۔،)]+", R"(\p{N})"}},
      {{"default", ""}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", kThreeDigits}},
  };
  return all;
}

// An unknown name is refused rather than cut by a default: other words give other ids without any
// sign of it.
Result<const NamedSplit*> find_split(const std::string& name) {
  std::vector<std::string_view> known;
  for (const NamedSplit& split : named_splits()) {
    for (const std::string_view one : split.names) {
      if (one == name) return &split;
      if (!one.empty()) known.push_back(one);
    }
  }
  return fail(error(StatusCode::kUnimplemented,
                    "the pre-tokeniser '{}' is not known; those that are: {}. Give the model's "
                    "tokenizer.json with --tokenizer-path",
                    name, fmt::join(known, ", ")));
}

Result<PreTokenizer> make_pre_tokenizer(const NamedSplit& split) {
  json::array steps;
  for (const char* expression : split.expressions) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", expression}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return PreTokenizer::parse({{"type", "Sequence"}, {"pretokenizers", std::move(steps)}},
                             "pre_tokenizer");
}

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
  ESP_ASSIGN_OR_RETURN(const NamedSplit* split, find_split(stored.pre_tokenizer));
  ESP_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, make_pre_tokenizer(*split));
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
