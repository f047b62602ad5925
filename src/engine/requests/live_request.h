// A request from its admission to its last event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/beams/beam_state.h"
#include "engine/images/place_images.h"
#include "engine/requests/adapters.h"
#include "engine/requests/registry.h"
#include "engine/requests/request.h"
#include "engine/sampling/params.h"
#include "engine/scheduler/scheduler.h"
#include "engine/speculation/head_drafter.h"
#include "engine/speculation/speculator.h"
#include "engine/text_io/output_processor.h"
#include "grammar/grammar.h"
#include "seams/token_event.h"

namespace espalier {

struct LiveRequest;

// One of a request's n samples: one sequence of the scheduler's. What each token reads and writes
// comes first and lies together; see prefetch().
struct SampleState {
  LiveRequest* request = nullptr;
  bool has_pending_event = false;  // it is listed for emission
  bool finished = false;           // `event` is, or was, its last
  bool return_logprob = false;     // as its request
  bool return_origins = false;     // the same
  bool in_session = false;         // the same
  bool has_grammar = false;        // `matcher` is set
  bool heals = false;              // `healing` is not empty
  bool speculates = false;         // `speculative` or `head` is set
  int32_t num_tokens = 0;          // output tokens so far
  int32_t num_logprobs_due =
      0;  // trailing forced tokens of the event without log-probabilities yet
  OutputProcessor output;
  TokenEvent event;                              // what has not been emitted yet
  SequenceId sequence = 0;                       // 0: not in the scheduler
  int32_t num_input_logprobs = 0;                // reported so far
  std::optional<grammar::Matcher> matcher;       // where the request has a grammar
  std::unique_ptr<SpeculativeText> speculative;  // where draft tokens come from its text
  std::unique_ptr<HeadText> head;                // where they come from a draft head
  std::vector<TokenId> recent;                   // with a grammar: the last output tokens
  std::vector<TokenId> choices;                  // the few continuations behind `choices_at` tokens
  int32_t choices_at = -1;                       // -1: not computed yet
  int32_t beam = -1;    // of a step of a beam search: whose; -1: it is none
  int32_t budget = 0;   // output tokens within which the grammar ends; 0: it may not end
  std::string healing;  // text with which its output must still begin

  // Ahead of its next token: with hundreds of samples each one lies in a distant cache.
  void prefetch() const {
    const auto* const begin = reinterpret_cast<const std::byte*>(this);
    const auto* const end = reinterpret_cast<const std::byte*>(&sequence);
    for (const auto* at = begin; at < end; at += 64) __builtin_prefetch(at, 1);
    __builtin_prefetch(end - 1, 1);
  }
};

// Made by the thread that submits, then owned by the loop.
struct LiveRequest {
  EventSink sink;                         // with what each event reads, in one line of the cache
  std::vector<SampleState> samples;       // never resized once the loop has it
  size_t num_unfinished = 0;              // samples whose last event is not out
  std::unique_ptr<BeamState> beams;       // with beam search
  std::vector<SampleState> beam_samples;  // [beams], of its steps' sequences; never resized
  RequestId id = 0;
  int32_t weight_epoch = 0;  // of the weights that it runs with
  std::string rid;
  ResolvedSampling sampling;
  uint64_t seed = 0;
  std::vector<std::shared_ptr<LogitHook>> hooks;  // of its samples; empty: there are none
  bool return_logprob = false;
  bool return_token_origins = false;
  bool jump_forward = false;
  bool draft_tokens = false;  // with a grammar: taken from its earlier answers
  uint64_t draft_scope = 0;   // of its grammar and cache_namespace
  bool speculates = false;    // without a grammar: may have draft tokens
  bool token_healing = false;
  bool complete_within_budget = false;
  int32_t logprob_start_len = -1;
  bool embed = false;
  int32_t dimensions = 0;  // see GenerateRequest
  int32_t priority = 0;
  AdapterLease adapter;
  std::string cache_namespace;  // of the request's extra_key and of its adapter
  std::string tenant;           // empty: cache_namespace
  double tenant_weight = 1;
  std::optional<SessionParams> session;
  std::optional<Bootstrap> bootstrap;
  bool awaits_tokens = false;   // a TokensMessage is to come
  bool awaits_grammar = false;  // a GrammarMessage is to come
  bool awaits_images = false;   // an ImagesMessage is to come
  bool awaits_weights = false;  // they are being replaced: a ReleaseMessage is to come
  std::vector<TokenId> prompt_ids;
  std::vector<EncodedImage> images;          // until they are placed in prompt_ids
  std::shared_ptr<const PromptSpans> spans;  // of prompt_ids; null: text alone
  TimePoint arrived{};

  bool is_waiting() const {
    return awaits_tokens || awaits_grammar || awaits_images || awaits_weights;
  }
};

}  // namespace espalier
