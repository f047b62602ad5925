// An engine's answer as the native API's meta_info. Pure; thread-safe. Internal to the room and its
// bindings.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "lang/backend.h"

namespace espalier::lang {

// `input_ids`: the prompt's tokens from where its log-probabilities are wanted. `tokenizer`: for
// the texts of tokens in log-probabilities; null: without them.
MetaInfo meta_of(const GenerateResult& r, const std::vector<TokenId>& input_ids,
                 const Tokenizer* tokenizer);

// What is new of a sample that goes on, after the first `num_reported` log-probabilities.
Progress progress_of(const GenerateResult& r, const RequestStats& stats, int64_t num_reported,
                     const Tokenizer* tokenizer);

}  // namespace espalier::lang
