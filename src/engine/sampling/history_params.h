// Resolves the fields of a request that HistoryValues has: what they need of the vocabulary, and
// where they are refused. Pure but for an operator's processors, thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "seams/sampling.h"

namespace espalier {

class LogitLibrary;

// Where a request states none.
inline constexpr std::string_view kDryBreakers[] = {"\n", ":", "\"", "*"};
// Of a request: each is looked for in all tokens of the vocabulary.
inline constexpr size_t kDryBreakersMax = 64;

// What an engine has for these fields.
struct HistoryContext {
  std::span<const std::string_view> token_bytes;   // empty: there is no tokenizer
  TokenId thinking_begin = -1, thinking_end = -1;  // marks of reasoning; -1: there are none
  std::shared_ptr<const LogitLibrary> processors;  // null: none were loaded
};

// Completes a spec whose HistoryValues are set. kFailedPrecondition where the engine lacks what a
// field needs, which it names. The hook is made by make_hooks().
Status resolve_history(const SamplingParams& params, const HistoryContext& context,
                       SamplingSpec& spec);

// One hook for each of the request's n samples; empty where it names no processor.
Result<std::vector<std::shared_ptr<LogitHook>>> make_hooks(const SamplingParams& params,
                                                           const HistoryContext& context,
                                                           int32_t vocab_size);

}  // namespace espalier
