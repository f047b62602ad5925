#include "engine/constrained/jump_forward.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace espalier {
namespace {

// Text that names a special token has no bytes then, so nothing is forced over it.
constexpr EncodeOptions kPlain{.add_special_tokens = false};

// Bytes behind the last forced one's start that a longer token could begin at: tokens that matter
// are shorter, and an older token stays whatever comes (two tokens were enough in 10,000 cases).
constexpr size_t kTokensAtRisk = 3;

// Texts that are tried where the continuations are few, in bytes: enough to determine the first
// token.
constexpr size_t kWaysMax = 24, kWayBytesMax = 48;

// Continuations that are tried with the tokenizer; with more the token at risk is left out unseen.
constexpr size_t kProbesMax = 12;

}  // namespace

void JumpForward::append_forced(grammar::Matcher& matcher, std::span<const TokenId> output,
                                std::vector<TokenId>& forced) {
  const std::string bytes = matcher.forced_bytes(kForcedBytesMax);
  if (bytes.empty()) return;
  const int32_t window = encode_behind_window(output, bytes);
  if (window < 0) return;
  ESP_CHECK(matcher.accept_bytes(bytes), "forced bytes are not of the grammar");
  const size_t certain = num_certain(matcher, static_cast<size_t>(window));
  matcher.rollback(1);
  for (auto i = static_cast<size_t>(window); i < certain; ++i) forced.push_back(ids_[i]);
}

void JumpForward::append_choices(grammar::Matcher& matcher, std::span<const TokenId> output,
                                 std::vector<TokenId>& choices) {
  if (matcher.can_end()) return;
  const size_t begin = choices.size();
  ways_.assign(1, {});
  for (size_t i = 0; i < ways_.size(); ++i) {
    const Way way = continuation(matcher, output, ways_[i]);
    if (way.token < 0 && way.next.empty() && !way.leaves) return choices.resize(begin);
    if (way.token >= 0) choices.push_back(way.token);
    for (const char byte : way.next) ways_.push_back(way.text + byte);
  }
  const auto first = choices.begin() + static_cast<std::ptrdiff_t>(begin);
  std::sort(first, choices.end());
  choices.erase(std::unique(first, choices.end()), choices.end());
}

// Follows a text as far as it is forced: its canonical token, if it is certain by then, else the
// bytes that may come next, none of them where they are too many or the token is never determined.
JumpForward::Way JumpForward::continuation(grammar::Matcher& matcher,
                                           std::span<const TokenId> output, std::string text) {
  Way way{.text = std::move(text)};
  const size_t steps = matcher.steps();
  ESP_CHECK(way.text.empty() || matcher.accept_bytes(way.text));
  const std::string forced = matcher.forced_bytes(kWayBytesMax - way.text.size());
  ESP_CHECK(forced.empty() || matcher.accept_bytes(forced));
  way.text += forced;
  if (!way.text.empty()) {
    const int32_t window = encode_behind_window(output, way.text);
    const auto num_known = static_cast<size_t>(std::max(window, 0));
    if (window < 0)
      way.leaves = leaves_output(matcher, output);
    else if (num_certain(matcher, num_known) > num_known)
      way.token = ids_[num_known];
  }
  if (way.token < 0 && !way.leaves && way.text.size() < kWayBytesMax && !matcher.can_end())
    add_next_bytes(matcher, way.next);
  matcher.rollback(matcher.steps() - steps);
  if (way.token >= 0 && !matcher.may_take(way.token)) way.token = -1;
  return way;
}

// Where the longest window's end is not canonical with text_ behind it: whether that is so whatever
// follows. A difference at the window's begin may be that of a word that it cuts.
bool JumpForward::leaves_output(grammar::Matcher& matcher, std::span<const TokenId> output) {
  const auto recent = output.last(std::min(output.size(), kWindowMax));
  const auto same = static_cast<size_t>(std::ranges::mismatch(recent, ids_).in1 - recent.begin());
  return spells_text() && same < recent.size() && same + kTokensAtRisk >= recent.size() &&
         num_certain(matcher, same) > same;
}

void JumpForward::add_next_bytes(grammar::Matcher& matcher, std::string& next) const {
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    if (!matcher.accept_bytes({&byte, 1})) continue;
    matcher.rollback(1);
    next.push_back(byte);
    if (ways_.size() + next.size() > kWaysMax) return next.clear();
  }
}

bool JumpForward::forces_behind_all(grammar::Matcher& matcher, std::span<const TokenId> output,
                                    std::span<const TokenId> choices) {
  return std::ranges::all_of(choices, [&](TokenId token) {
    ESP_CHECK(matcher.accept_token(token), "a choice is not of the grammar");
    const auto recent = output.last(std::min(output.size(), kWindowMax));
    way_output_.assign(recent.begin(), recent.end());
    way_output_.push_back(token);
    way_forced_.clear();
    if (!matcher.must_end()) append_forced(matcher, way_output_, way_forced_);
    const bool forces = matcher.must_end() || !way_forced_.empty();
    matcher.rollback(1);
    return forces;
  });
}

int32_t JumpForward::encode_behind_window(std::span<const TokenId> output, std::string_view bytes) {
  // A window that begins within a word may be cut otherwise than the whole is: a longer one helps.
  const size_t most = std::min(output.size(), kWindowMax);
  size_t window = std::min<size_t>(output.size(), 4);
  while (!encode_behind(output.last(window), bytes)) {
    if (window >= most) return -1;
    window = std::min(most, 2 * window);
  }
  return static_cast<int32_t>(window);
}

// Whether the text of `output` and `bytes` encodes to `output` and more, which is then in ids_.
bool JumpForward::encode_behind(std::span<const TokenId> output, std::string_view bytes) {
  text_.clear();
  for (const TokenId id : output) text_ += bytes_of(id);
  text_ += bytes;
  ids_ = tokenizer_.encode(text_, kPlain);
  if (ids_.size() <= output.size() || !std::equal(output.begin(), output.end(), ids_.begin()))
    return false;
  return spells_text();
}

// Vocabularies that put a space before a text, say, do not encode it as what it is.
bool JumpForward::spells_text() const {
  size_t at = 0;
  for (const TokenId id : ids_) {
    const std::string_view token = bytes_of(id);
    if (token.empty() || text_.compare(at, token.size(), token) != 0) return false;
    at += token.size();
  }
  return at == text_.size();
}

// How many of ids_ stay whatever follows. The matcher stands behind text_.
size_t JumpForward::num_certain(grammar::Matcher& matcher, size_t num_known) {
  size_t certain = ids_.size();
  size_t begin = text_.size(), at_risk = 0;
  while (at_risk < kTokensAtRisk && at_risk < ids_.size() - num_known)
    begin -= bytes_of(ids_[ids_.size() - ++at_risk]).size();
  for (; begin < text_.size(); ++begin) {
    if (!limit_by_tokens_from(matcher, begin, certain)) {
      // Not all continuations could be tried: what reaches beyond `begin` is left out.
      size_t end = 0, count = 0;
      while (count < certain && (end += bytes_of(ids_[count]).size()) <= begin) ++count;
      certain = std::min(certain, count);
      break;
    }
    if (certain <= num_known) break;
  }
  return std::max(certain, num_known);
}

// Tries the tokens that begin at `begin`, reach beyond the text and go on as the grammar may:
// `certain` is lowered to what each of them leaves. False when there are too many.
bool JumpForward::limit_by_tokens_from(grammar::Matcher& matcher, size_t begin, size_t& certain) {
  const std::string_view tail = std::string_view(text_).substr(begin);
  size_t probes = 0;
  tokens_.walk_longer(
      tail,
      [&](char byte) {
        return matcher.accept_bytes({&byte, 1});
      },
      [&](size_t count) { matcher.rollback(count); },
      [&](TokenId id) {
        if (++probes > kProbesMax) return false;
        probe_ = text_;
        probe_ += bytes_of(id).substr(tail.size());
        const std::vector<TokenId> other = tokenizer_.encode(probe_, kPlain);
        const auto same =
            std::mismatch(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(certain),
                          other.begin(), other.end());
        certain = static_cast<size_t>(same.first - ids_.begin());
        return true;
      });
  return probes <= kProbesMax;
}

}  // namespace espalier
