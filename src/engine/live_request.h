// A request from its admission to its last event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/output_processor.h"
#include "engine/registry.h"
#include "engine/request.h"
#include "engine/sampling/params.h"
#include "engine/scheduler/scheduler.h"
#include "grammar/grammar.h"
#include "seams/token_event.h"

namespace espalier {

struct LiveRequest;

// One of a request's n generations: a sequence of the scheduler's.
struct Sample {
  LiveRequest* request = nullptr;
  OutputProcessor output;
  std::optional<grammar::Matcher> matcher;  // where the request has a grammar
  std::vector<TokenId> recent;              // with a grammar: its last tokens, for jump-forward
  SequenceId sequence = 0;                  // 0: the scheduler has not got it
  int32_t num_input_logprobs = 0;           // reported so far
  int32_t num_tokens = 0;                   // of its output so far
  TokenEvent event;                         // what the caller has not heard yet
  bool has_news = false;                    // it is listed for emission
  bool finished = false;                    // the event is, or was, its last

  // Ahead of its next token: with hundreds of them each is found in a far cache.
  void prefetch() const {
    const auto* const begin = reinterpret_cast<const std::byte*>(this);
    for (size_t at = 0; at < sizeof(*this); at += 64) __builtin_prefetch(begin + at, 1);
  }
};

// Made by the thread that submits, then owned by the loop.
struct LiveRequest {
  RequestId id = 0;
  std::string rid;
  ResolvedSampling sampling;
  uint64_t seed = 0;
  bool return_logprob = false;
  bool jump_forward = false;
  int32_t logprob_start_len = -1;
  bool embed = false;
  int32_t dimensions = 0;  // see GenerateRequest
  int32_t priority = 0;
  std::string cache_namespace;
  std::optional<SessionParams> session;
  bool awaits_tokens = false;   // a TokensMessage is to come
  bool awaits_grammar = false;  // a GrammarMessage is to come
  std::vector<TokenId> prompt_ids;
  EventSink sink;
  TimePoint arrived{};
  std::vector<Sample> samples;  // never resized once the loop has it
  size_t num_unfinished = 0;    // samples whose last event is not out

  void prefetch_sink() const {
    __builtin_prefetch(&sink);
    __builtin_prefetch(&num_unfinished);
  }
};

}  // namespace espalier
