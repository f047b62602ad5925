// From one sample's tokens to its text: detokenised as they come, cut at stop strings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/requests/request.h"
#include "text/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier {

// Knows what ends a sample with a given token, in the API's order: its length, a stop string or
// regex, a stop token. It reports the second; the first and the last are the scheduler's, and only
// shape the text here: at the length the text is not searched any more, and a stop token's own text
// is left out (unless no_stop_trim). Not thread-safe.
class OutputProcessor {
 public:
  // Fails as StopMatcher::create does. `tokenizer` outlives the object; null: no text at all.
  static Result<OutputProcessor> create(const Tokenizer* tokenizer, const SamplingParams& params,
                                        std::vector<TokenId> stop_ids);

  // The same for another sample of the request, which shares the compiled stop expressions.
  // REQUIRES: nothing was pushed yet.
  OutputProcessor sibling() const;
  // Goes on from where this one is. O(text that is pending), not of what was pushed.
  OutputProcessor fork() const;

  // Before the first push; known only when the prompt is.
  void set_max_new_tokens(int32_t max_new_tokens) { max_new_tokens_ = max_new_tokens; }

  // The text begins with this, which the prompt has already: it is not shown. Before the first
  // push.
  void skip(std::string text) { skip_ = std::move(text); }

  struct Output {
    std::string text;  // to show now
    // A stop string or regex matched, or the regexes cost too much: no token may follow.
    std::optional<FinishReason> finish;
  };
  // `stop_work_left`: of StopMatcher::push(), for all samples of a step.
  Output push(TokenId token, int64_t& stop_work_left);

  // Returns the text that was still withheld, whatever ended the request. Called once.
  std::string flush();

 private:
  OutputProcessor() = default;
  OutputProcessor like_this() const;  // before the first push, without text and stops
  const std::string* special_stop(TokenId token) const;
  Output stop_at_special(const std::string& stop);
  std::string without_skipped(std::string text);

  bool has_text_ = false;
  bool no_stop_trim_ = false;
  bool matched_ = false;
  bool skipping_ = false;  // part of it is skipped
  std::string skip_;       // what is left of it
  int32_t max_new_tokens_ = 0, num_tokens_ = 0;
  std::vector<TokenId> stop_ids_;  // sorted
  // Stop strings that are the name of a special token, which the text may not show.
  std::vector<std::pair<TokenId, std::string>> special_stops_;
  const Tokenizer* tokenizer_ = nullptr;
  DecodeOptions decode_options_;
  std::optional<Detokenizer> detokenizer_;
  std::optional<StopMatcher> matcher_;
};

}  // namespace espalier
