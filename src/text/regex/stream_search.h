// Searches a stream for regular expressions in linear time: each character is read once, whatever
// was read before. The automaton is deterministic and its states are built when a text first
// reaches them, as in RE2; beside its state a search knows where the matches in progress begin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

struct LazyState;

// Expressions compiled together, with the states built so far. Not thread-safe: all searches of one
// object run on one thread at a time.
class StreamRegex {
 public:
  // At least one pattern, in the syntax of parse_regex_syntax(). kInvalidArgument names the pattern
  // that is refused and says why.
  static Result<std::shared_ptr<StreamRegex>> compile(std::span<const std::string> patterns);
  ~StreamRegex();

  // States are dropped, and built again where a text reaches them, beyond so many bytes.
  static constexpr size_t kStateBytesMax = 1 << 20;

 private:
  friend class StreamSearch;
  struct Impl;
  explicit StreamRegex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// One stream. A copy continues on its own.
class StreamSearch {
 public:
  // Shared: the searches of all samples of a request use the same states.
  explicit StreamSearch(std::shared_ptr<StreamRegex> regex);

  // Reads valid UTF-8, whole characters, while `work_left` is positive, and takes from it what it
  // cost: about one unit for each state of an automaton that is visited (a few nanoseconds).
  // Returns how many bytes were read.
  size_t read(std::string_view text, int64_t& work_left);

  struct Match {
    size_t begin = 0, end = 0;  // bytes of the stream
    uint32_t pattern = 0;
  };
  // Of all that was read, the match that begins first, and of those the longest; none is empty. The
  // end of what was read counts as the text's end.
  std::optional<Match> match(int64_t& work_left);
  // Where the first match begins that characters to come could complete.
  std::optional<size_t> pending_begin() const {
    return begins_.empty() ? std::nullopt : std::optional(begins_.front());
  }
  size_t num_read() const { return num_read_; }  // bytes

 private:
  void offer(const Match& match);

  std::shared_ptr<StreamRegex> regex_;
  std::shared_ptr<LazyState> state_;  // shared with the cache of states, which may drop it
  std::vector<size_t> begins_;        // [group of state_] ascending
  std::vector<size_t> next_begins_;   // scratch
  size_t num_read_ = 0;
  std::optional<Match> best_;
};

}  // namespace espalier
