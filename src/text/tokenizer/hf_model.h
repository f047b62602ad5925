// The "model" and "added_tokens" of a tokenizer.json, read into tables.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"

namespace espalier {

// The strings of a vocabulary by id. A byte-level vocabulary is kept as the bytes that its strings
// spell; those that spell none ("<|a token|>" with its space) are kept apart.
class HfVocabulary {
 public:
  static Result<HfVocabulary> parse(const boost::json::object& vocab, bool byte_level);

  std::optional<TokenId> find(std::string_view token) const;
  std::string token_of(TokenId id) const;  // as the file spells it
  // Byte-level vocabularies: the bytes of a token as ByteLevel decodes it.
  std::string_view bytes_of(TokenId id) const;
  bool has(TokenId id) const { return tokens_->has(id) || odd_tokens_.contains(id); }
  TokenId id_end() const { return id_end_; }
  const TokenTable& table() const { return *tokens_; }

 private:
  HfVocabulary() = default;
  bool byte_level_ = false;
  TokenId id_end_ = 0;
  std::unique_ptr<TokenTable> tokens_;  // its address outlives a move: the model refers to it
  std::unordered_map<TokenId, std::string> odd_tokens_;
  std::unordered_map<std::string, TokenId> odd_ids_;
};

// `model`: the object at "model". `byte_level`: what the pre-tokeniser says.
struct HfModel {
  HfVocabulary vocabulary;
  BpeOptions options;
  std::vector<BpeModel::Merge> merges;
};
Result<HfModel> parse_hf_model(const boost::json::value& model, bool byte_level);

// `value`: the array at "added_tokens", or null. Ids are the vocabulary's where it has the content.
Result<std::vector<AddedToken>> parse_added_tokens(const boost::json::value& value,
                                                   const HfVocabulary& vocabulary);

// The ids that a post-processor puts around a sequence.
struct SequenceFrame {
  std::vector<TokenId> before, after;
};
Result<SequenceFrame> parse_post_processor(const boost::json::value& value,
                                           const std::string& path);

}  // namespace espalier
