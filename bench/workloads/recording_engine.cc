#include "bench/workloads/recording_engine.h"

#include <algorithm>
#include <unordered_set>

#include "base/rng.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier::workloads {

Optimum optimum_of(const std::vector<Call>& calls) {
  // Prefixes by a hash of 64 bits: of those that a cache may give, those that are computed in any
  // case, and those that outputs leave behind.
  std::unordered_set<uint64_t> reusable, computed, generated, all;
  Optimum best;
  for (const Call& call : calls) {
    uint64_t hash = 0;
    int32_t position = 0;
    for (const TokenId token : call.prompt) {
      hash = mix64(hash ^ static_cast<uint32_t>(token));
      (position++ < call.reusable ? reusable : computed).insert(hash);
      all.insert(hash);
    }
    // The last output token's keys and values are not computed.
    for (size_t i = 0; i + 1 < call.output.size(); ++i) {
      hash = mix64(hash ^ static_cast<uint32_t>(call.output[i]));
      generated.insert(hash);
      all.insert(hash);
    }
    const auto length = static_cast<int64_t>(call.prompt.size());
    best.prompt_tokens += length;
    best.computed_tokens += length - call.reusable;
    best.longest = std::max(best.longest, length + call.max_new_tokens);
  }
  for (const uint64_t prefix : reusable)
    if (!computed.contains(prefix) && !generated.contains(prefix)) ++best.computed_tokens;
  best.unique_tokens = static_cast<int64_t>(all.size());
  return best;
}

Result<std::string> RecordingEngine::submit(GenerateRequest request, EventSink sink) {
  auto call = std::make_shared<Call>();  // shared with the sink alone
  call->prompt = request.input_ids;
  if (call->prompt.empty()) {
    EncodeOptions options;
    options.add_special_tokens = request.add_special_tokens;
    call->prompt = engine_->tokenizer()->encode(request.text, options);
  }
  const auto length = static_cast<int32_t>(call->prompt.size());
  call->reusable = length - 1;
  call->max_new_tokens = request.sampling.max_new_tokens.value_or(128);
  if (request.return_logprob && request.logprob_start_len >= 0)
    call->reusable = std::min(call->reusable, std::max(request.logprob_start_len - 1, 0));
  return engine_->submit(std::move(request), [log = log_, call = std::move(call),
                                              sink = std::move(sink)](TokenEvent&& event) {
    call->output.insert(call->output.end(), event.ids.begin(), event.ids.end());
    if (event.finish) {
      call->cached = event.stats.cached_tokens;
      call->first_token_seconds = to_seconds(
          (event.stats.completion_tokens > 0 ? event.stats.first_token : event.stats.finished) -
          event.stats.arrived);
      std::lock_guard lock(log->mutex);
      log->calls.push_back(*call);
    }
    sink(std::move(event));
  });
}

std::vector<Call> RecordingEngine::calls() const {
  std::lock_guard lock(log_->mutex);
  return log_->calls;
}

}  // namespace espalier::workloads
