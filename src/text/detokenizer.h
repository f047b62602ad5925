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
  // A copy goes on by itself. O(bytes that are pending).
  Detokenizer(const Detokenizer& other) : stream_(other.stream_->clone()) {}
  Detokenizer(Detokenizer&&) noexcept = default;
  Detokenizer& operator=(Detokenizer&&) noexcept = default;
  ~Detokenizer() = default;

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
// within one. The cost is linear in the text. One matcher for each sequence that has stops. Not
// thread-safe: a matcher and its siblings are used on one thread at a time.
class StopMatcher {
 public:
  // Each stop string is UTF-8 of at most kStopBytesMax bytes; empty ones are ignored. Each regex
  // (RE2's syntax, as text/regex/syntax.h lists it) must compile: kInvalidArgument names the one
  // that does not, and says why. At most kStopsMax of each.
  static Result<StopMatcher> create(std::vector<std::string> stops,
                                    std::vector<std::string> stop_regexes);
  // A matcher of the same stops for another stream, from its beginning. It shares the compiled
  // automata, so that the samples of a request build them once.
  StopMatcher sibling() const;
  // A matcher that goes on from where this one is. O(text that is pending).
  StopMatcher fork() const;
  StopMatcher(StopMatcher&&) noexcept;
  StopMatcher& operator=(StopMatcher&&) noexcept;
  ~StopMatcher();

  static constexpr size_t kStopsMax = 256;
  static constexpr size_t kStopBytesMax = 4096;
  // Text that could begin a regex's match stays pending for this many characters; of a longer match
  // the characters before them have been shown when it is found.
  static constexpr size_t kRegexWindow = 1024;

  // Work of regexes, in units of StreamSearch::read(). A push may always use kWorkPerPush, and an
  // excess is taken from the next pushes; what it needs beyond, it takes from the caller's budget,
  // which is for all sequences of a step. Text that a push leaves unsearched stays pending and is
  // searched by the next one. More than kUnsearchedBytesMax of it ends the stream as `overloaded`.
  static constexpr int64_t kWorkPerPush = 1024, kWorkPerStep = 200'000;
  static constexpr size_t kUnsearchedBytesMax = 4096;

  struct Output {
    std::string text;                    // safe to show
    std::optional<std::string> matched;  // the stop string or the regex's pattern that matched; the
                                         // stream has ended
    std::string matched_text;            // the text that it matched (for no_stop_trim)
    bool overloaded = false;             // the regexes cost too much; the stream has ended
  };
  // Adds text (valid UTF-8, whole characters) and returns the text that can be shown. Text that
  // could begin a stop string, or (within the window) a regex's match, stays pending. The stream
  // ends with the first push after which something matches. The earliest match wins, then the
  // longest of those that start there, then a stop string before a regex. An empty match of a
  // regex does not count.
  Output push(std::string_view text, int64_t& step_work_left);
  Output push(std::string_view text) {
    int64_t work = kWorkPerStep;
    return push(text, work);
  }
  std::string flush();  // the pending text, for a generation that ends without a match

 private:
  struct Impl;
  explicit StopMatcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier
