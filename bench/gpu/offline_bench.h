// Workloads whose requests all arrive at the start, run by an engine in this process on the GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/watch/step_profile.h"

namespace espalier::bench {

struct OfflineWorkload {
  std::string name;
  int32_t num_requests = 0;
  int32_t max_running = 0;
  int32_t input_tokens = 0;  // of a request, what it shares included
  int32_t output_tokens = 0;
  int32_t groups = 0;         // of requests that share a prefix; 0: nothing is shared
  int32_t shared_tokens = 0;  // the prefix's length
  bool cache = true;
  double temperature = 0;
  // Above 0: answers of two tokens, drawn so that each is like an independent draw before it with
  // this probability, which n-grams then predict it with.
  double predictable = 0;
  bool alternates = false;  // every second request has a temperature of 1 and any tokens
  std::string json_schema;  // that all answers obey; empty: none
  bool guess = true;        // jump-forward and draft tokens are used
  std::string speculative_algorithm = "none";
  bool profiles = false;  // what its steps took is kept
};

struct OfflineResult {
  double seconds = 0;  // from the first request's submission to the last token
  double prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  double forward_seconds = 0, host_seconds = 0, steps = 0;
  double tokens_per_verification = 0;  // of an entry with draft tokens; 0: there was none
  StepProfile profile;                 // of a workload that `profiles`
};

// part: "offline" (1000 in, 1000 out at several batches), "lengths" (other lengths), "shared",
// "grammars" (the same work without a schema, with one, and with jump-forward and draft tokens) or
// "drafters" (answers that repeat themselves, for they are greedy and the weights are drawn,
// answers that do not, answers that n-grams predict with a given probability, and half of each,
// without draft tokens and with them; a draft head, whose weights are drawn too, is never right).
// In mixes of halves requests that end are followed by others.
std::vector<OfflineWorkload> offline_workloads(const std::string& part, bool quick);

// `config`: a folder with config.json; weights are drawn from the seed, prompts from fixed ones.
// `tokenizer`: what workloads with a schema need.
// `dtype`, `kv_cache_dtype`: EngineConfig's.
Result<OfflineResult> run_offline(const OfflineWorkload& workload, const std::string& config,
                                  const std::string& dtype, const std::string& kv_cache_dtype,
                                  const std::string& tokenizer, uint64_t seed);

}  // namespace espalier::bench
