// The "model", "added_tokens" and "post_processor" of a tokenizer.json, read into tables. The
// functions are thread-safe and keep nothing of the JSON. kDataLoss names the place of what is
// malformed, kUnimplemented what is known and not supported.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace espalier {

// `model`: the object at "model". `byte_level`: what the pre-tokeniser says.
struct HfModel {
  Vocabulary vocabulary;  // the model refers to its table, which outlives moves
  std::unique_ptr<WordModel> model;
};
Result<HfModel> parse_hf_model(const boost::json::value& model, bool byte_level);

// `value`: the array at "added_tokens", or null. Ids are the vocabulary's where it has the content.
Result<std::vector<AddedToken>> parse_added_tokens(const boost::json::value& value,
                                                   const Vocabulary& vocabulary);

// `value`: the object at "post_processor", or null.
Result<SequenceFrame> parse_post_processor(const boost::json::value& value,
                                           const std::string& path);

}  // namespace espalier
