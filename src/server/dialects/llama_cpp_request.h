// The bodies of llama.cpp's /completion and /infill, read by one table that also writes an answer's
// `generation_settings`. Values keep llama.cpp's names and defaults; sampling() translates them.
// Plain data: no thread safety of its own, owns what it holds. Internal to the room.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "seams/sampling.h"
#include "server/json_writer.h"
#include "server/openai_request.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier::server {

// A prompt as llama.cpp takes it: texts and token ids, one after another.
using MixedPrompt = std::vector<TextOrIds>;

// A string, a list of strings and token ids, or {"prompt_string": ...}.
Status read_mixed_prompt(const Json& value, std::string_view where, MixedPrompt& out);
// The ids of all parts. Only a text at the beginning gets the tokenizer's special tokens.
std::vector<TokenId> encode_mixed_prompt(const Tokenizer& tokenizer, const MixedPrompt& prompt,
                                         EncodeOptions options);

struct LlamaCppSamplers {
  float temperature = 0.8f, top_p = 0.95f, min_p = 0.05f;
  float top_n_sigma = -1;  // below 0: off
  int32_t top_k = 40;      // below 1: off
  int32_t repeat_last_n = 64;
  float repeat_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  float xtc_probability = 0, xtc_threshold = 0.1f;
  float dry_multiplier = 0, dry_base = 1.75f;
  int32_t dry_allowed_length = 2;
  int32_t dry_penalty_last_n = 64;  // 0: DRY is off; -1: all tokens
  std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};
  uint64_t seed = 0xffffffff;      // this one, and -1: drawn
  std::vector<std::string> names;  // the filters that apply; empty: all

  bool applies(std::string_view name) const;
  void set_history_rules(SamplingParams& params) const;  // DRY and XTC
};

// A bias of a token, or of every token of a text. -infinity bans it.
struct LlamaCppBias {
  std::string text;
  TokenId id = -1;  // used when `text` is empty
  float bias = 0;
};

// What stands around a gap (/infill).
struct LlamaCppInfill {
  std::string prefix, suffix, prompt;
  std::vector<std::string> extra;  // texts of other files
};

struct LlamaCppRequest {
  std::vector<MixedPrompt> prompts;
  LlamaCppInfill infill;
  LlamaCppSamplers samplers;
  std::vector<LlamaCppBias> logit_bias;
  int32_t n_predict = -1;  // -1: up to the context
  int32_t n_probs = 0;     // likeliest tokens to return at each position
  std::vector<std::string> stop;
  std::string grammar, json_schema;  // the grammar goes first
  bool ignore_eos = false, stream = false;
  bool return_tokens = false, timings_per_token = false;
  std::vector<std::string> response_fields;  // members of the answer; empty: all

  // Without logit_bias, whose texts need a tokenizer.
  SamplingParams sampling() const;
};

// As parse_native: `malformed` states the kind of failure.
Result<LlamaCppRequest> parse_llama_cpp_completion(std::string_view body, bool& malformed);
Result<LlamaCppRequest> parse_llama_cpp_infill(std::string_view body, bool& malformed);
std::string llama_cpp_completion_schema();
std::string llama_cpp_infill_schema();

// The object `generation_settings` of an answer; of LlamaCppRequest{} it is the defaults.
void write_generation_settings(JsonWriter& w, const LlamaCppRequest& request);

}  // namespace espalier::server
