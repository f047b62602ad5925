// A request as a user's program states it, before any of it is interpreted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "seams/token_event.h"

namespace espalier {

// API.md section 4, field for field; absent means the default (the model's generation defaults
// where it has one, else the value named here).
struct SamplingParams {
  std::optional<int32_t>
      max_new_tokens;       // absent: 128 in the native API; null there: to the context
  bool to_context = false;  // max_new_tokens was an explicit null: up to the context
  std::optional<int32_t> min_new_tokens;    // 0
  std::optional<float> temperature;         // 1; below 1e-6 is greedy
  std::optional<float> top_p;               // 1
  std::optional<int32_t> top_k;             // -1
  std::optional<float> min_p;               // 0
  std::optional<float> frequency_penalty;   // 0
  std::optional<float> presence_penalty;    // 0
  std::optional<float> repetition_penalty;  // 1
  int32_t n = 1;
  std::vector<std::string> stop;
  std::vector<std::string> stop_regex;
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;
  bool no_stop_trim = false;
  std::map<TokenId, float> logit_bias;
  std::optional<uint64_t> sampling_seed;  // absent: drawn from the engine's generator

  // A grammar, at most one of them: what the output must be, exactly.
  std::optional<std::string> json_schema, regex, ebnf, structural_tag;
  std::vector<std::string> choices;            // one of these
  std::optional<std::string> json_whitespace;  // compact, bounded or any; absent: the engine's
  // What a grammar does not hold for: from reasoning_begin (empty: from the start) to the first
  // reasoning_end (empty: there is no such part).
  std::string reasoning_begin, reasoning_end;
  bool jump_forward = true;  // where the engine does; off: every token is sampled
  bool drafts = true;        // the same: guess at what a grammar's answers have said before
  // The prompt's last tokens, where longer ones could stand, are generated anew: the output's
  // tokens begin with their text (which its text does not repeat).
  bool token_healing = false;
};

// What a session is opened with (/open_session).
struct SessionOptions {
  std::string id;              // empty: one is made
  int64_t capacity = 0;        // bytes of text that its requests may hold together
  bool streaming = false;      // a request that names no rid continues the last one
  double timeout_seconds = 0;  // closed after so long without a request; 0: never
};

// How a request continues one of its session. What is continued is the prompt and the output of
// `rid`: all of it, its first `offset` tokens, or without the output.
struct SessionParams {
  std::string id;                     // the session's
  std::string rid;                    // of the request that is continued; empty: from nothing
  int32_t offset = 0;                 // tokens kept of what is continued; 0: all
  bool replace = false;               // drop all that continued `rid` before (empty: all there is)
  bool drop_previous_output = false;  // continue the prompt of `rid` alone
};

struct GenerateRequest {
  std::string rid;   // empty: the engine makes one
  std::string text;  // used when input_ids is empty
  std::vector<TokenId> input_ids;
  SamplingParams sampling;
  bool return_logprob = false;
  int32_t logprob_start_len = -1;  // -1: output only; else from this prompt position
  int32_t top_logprobs_num = 0;
  std::vector<TokenId> token_ids_logprob;
  int32_t priority = 0;
  std::string extra_key;           // requests with different keys never share cache entries
  bool add_special_tokens = true;  // of the tokenizer, for `text` (false after a chat template)
  std::optional<SessionParams> session;  // text or input_ids are what is new
  // The text's vector instead of what follows it: embedding, classes or reward, as the model makes
  // them. `sampling` counts for nothing then.
  bool embed = false;
  int32_t dimensions = 0;  // of an embedding: its first so many numbers; 0: all
};

// Called on the engine's scheduler thread, in order, never concurrently for one request, the last
// time with a terminal event. Must not block and must not call the engine back, submit and abort
// excepted.
using EventSink = std::function<void(TokenEvent&&)>;

}  // namespace espalier
