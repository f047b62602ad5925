// How many tokens an answer states that it took, read from its bytes as they pass, without a tree
// of its JSON. Internal to the room.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace espalier::router {

// What a member of an answer counts: Anthropic's dialect counts tokens that were read from a cache,
// and written to it, beside those of the prompt.
enum class UsageCount { kPrompt, kRead, kWritten, kAnswer };

// One answer. Usage is found by its members' names in any dialect: a text of the model cannot hold
// them, for its quotes are escaped there. A whole answer has one for each sample, so they are added
// (of one prompt's samples, each repeats the prompt's); in a stream they are running totals, so the
// highest counts, of each sample where an index behind it says whose it is.
class UsageReader {
 public:
  void begin(std::string_view content_type, bool has_several_prompts = true);
  // Whole messages of a stream; any part of another answer.
  void add(std::string_view bytes);

  std::optional<int64_t> prompt_tokens() const;
  // Of a stream that states none, how many messages it had: each has a token or more, but for a few
  // at its ends; one of many bytes is taken for several. Nothing where it is not known.
  std::optional<int64_t> answer_tokens() const;

 private:
  bool is_stream() const { return is_events_ || is_lines_; }
  const std::optional<int64_t>& of(UsageCount count) const {
    return counts_[static_cast<size_t>(count)];
  }
  void take(UsageCount count, int64_t tokens);
  // How many of the bytes cannot be a part of what follows.
  size_t read(std::string_view bytes);

  bool is_events_ = false, is_lines_ = false, has_several_prompts_ = true;
  std::string rest_;  // of an answer in parts: its last bytes, where a name may be cut
  std::array<std::optional<int64_t>, 4> counts_;  // by UsageCount
  int64_t num_messages_ = 0, num_stated_ = 0;  // of a stream; with a count of the answer's tokens
  int64_t num_bytes_ = 0;                      // of a stream
  std::map<int64_t, int64_t> by_index_;        // of a stream: tokens of each sample, where stated
};

}  // namespace espalier::router
