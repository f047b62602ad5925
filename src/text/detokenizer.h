// Incremental detokenisation: tokens in, text out, never half a character, never text that a stop
// string could still claim.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace espalier {

// Turns a stream of tokens into a stream of text. The concatenation of all that push() and flush()
// return equals Tokenizer::decode of all the tokens. Bytes that do not end a UTF-8 character yet
// are pending; bytes that cannot become one are replaced by U+FFFD, as decode does. (A vocabulary
// with byte fallback decodes a run of byte tokens as a whole: the run is pending until it ends.)
// Amortised O(bytes). Not thread-safe; one for each sequence.
class Detokenizer {
 public:
  // `tokenizer` outlives the object.
  Detokenizer(const Tokenizer& tokenizer, DecodeOptions options)
      : stream_(tokenizer.decode_stream(options)) {}

  std::string push(TokenId id) {
    std::string text;
    stream_->push(id, text);
    return text;
  }
  // Returns the pending text, incomplete characters as U+FFFD. No push() may follow.
  std::string flush() {
    std::string text;
    stream_->flush(text);
    return text;
  }

 private:
  std::unique_ptr<DecodeStream> stream_;
};

// Finds stop strings and stop expressions in a stream of text, also where a token boundary lies
// within one. Not thread-safe; one for each sequence that has stops.
class StopMatcher {
 public:
  // Each stop string is UTF-8 of at most kStopBytesMax bytes; empty ones are ignored. Each regex
  // (PCRE2 syntax, UTF-8) must compile: kInvalidArgument names the one that does not. At most
  // kStopsMax of each.
  static Result<StopMatcher> create(std::vector<std::string> stops,
                                    std::vector<std::string> stop_regexes);
  StopMatcher(StopMatcher&&) noexcept;
  StopMatcher& operator=(StopMatcher&&) noexcept;
  ~StopMatcher();

  static constexpr size_t kStopsMax = 256;
  static constexpr size_t kStopBytesMax = 4096;
  // A regex is searched in the new text and this many characters before it. All of them together
  // may take kRegexStepsMax steps (PCRE2's match limit), each at least kRegexStepsMin. A search
  // that would take more finds nothing, and after kRegexFailuresMax such searches the regex is
  // dropped.
  static constexpr size_t kRegexWindow = 1024;
  static constexpr uint32_t kRegexStepsMax = 100'000, kRegexStepsMin = 10'000;
  static constexpr int kRegexFailuresMax = 16;

  struct Output {
    std::string text;                    // safe to show
    std::optional<std::string> matched;  // the stop string or the regex's pattern that matched; the
                                         // stream has ended
    std::string matched_text;            // the text that it matched (for no_stop_trim)
  };
  // Adds text (valid UTF-8, whole characters) and returns the text that can be shown. Text that
  // could begin a stop string, or (within the window) a regex's match, stays pending. The stream
  // ends with the first push after which something matches. The earliest match wins, then the
  // longest of those that start there, then a stop string before a regex. An empty match of a
  // regex does not count. The cost is linear in the text for stop strings.
  Output push(std::string_view text);
  std::string flush();  // the pending text, for a generation that ends without a match

 private:
  struct Impl;
  explicit StopMatcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier
