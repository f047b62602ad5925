#include "engine/images/video_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace espalier {
namespace {

// Tokens in front of a time that are encoded together with it. A tokenizer's rules reach no further
// than words, and this bounds the cost.
constexpr size_t kJoinedMost = 64;

// The text at the prompt's end, from the last special token on.
std::vector<TokenId> text_before(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt) {
  auto begin = prompt.end();
  while (begin != prompt.begin() && !tokenizer.is_special(*std::prev(begin)) &&
         static_cast<size_t>(prompt.end() - begin) < kJoinedMost)
    --begin;
  return {begin, prompt.end()};
}

}  // namespace

AppendTime time_appender(const Tokenizer& tokenizer) {
  return [&tokenizer](double seconds, std::vector<TokenId>& prompt) {
    constexpr EncodeOptions kText{.add_special_tokens = false, .parse_special = false};
    const std::string time = fmt::format("<{:.1f} seconds>", seconds);
    const std::vector<TokenId> before = text_before(tokenizer, prompt);
    const std::string text = tokenizer.decode(before);
    // Ids that are no tokenizer's own stay as they are.
    const bool joined = !before.empty() && tokenizer.encode(text, kText) == before;
    if (joined) prompt.resize(prompt.size() - before.size());
    const std::vector<TokenId> tokens = tokenizer.encode(joined ? text + time : time, kText);
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  };
}

}  // namespace espalier
