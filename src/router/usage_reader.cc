#include "router/usage_reader.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace espalier::router {

namespace {

// A member's name, its quotes, the colon and the number: what may be cut.
constexpr size_t kMemberBytesMax = 64;
constexpr int64_t kTokensMax = int64_t{1} << 40;
constexpr size_t kIndicesMax = 65'536;
// A message of one token has fewer; of what is beyond, every fourth byte counts as a token.
constexpr int64_t kMessageBytes = 512;

struct Member {
  std::string_view name;
  UsageCount count;
};

constexpr std::array<Member, 10> kMembers = {{
    {"prompt_tokens", UsageCount::kPrompt},
    {"prompt_eval_count", UsageCount::kPrompt},
    {"tokens_evaluated", UsageCount::kPrompt},
    {"input_tokens", UsageCount::kPrompt},
    {"cache_read_input_tokens", UsageCount::kRead},
    {"cache_creation_input_tokens", UsageCount::kWritten},
    {"completion_tokens", UsageCount::kAnswer},
    {"output_tokens", UsageCount::kAnswer},
    {"eval_count", UsageCount::kAnswer},
    {"tokens_predicted", UsageCount::kAnswer},
}};

int64_t count_of(std::string_view bytes, std::string_view what) {
  int64_t count = 0;
  for (size_t at = bytes.find(what); at != std::string_view::npos;
       at = bytes.find(what, at + what.size()))
    ++count;
  return count;
}

// The number behind a colon; nothing where it is none, or may go on behind the bytes.
std::optional<int64_t> number_at(std::string_view bytes, size_t at) {
  while (at < bytes.size() && bytes[at] == ' ') ++at;
  int64_t number = 0;
  const char* const end = bytes.data() + bytes.size();
  const auto [stop, failed] = std::from_chars(bytes.data() + at, end, number);
  if (failed != std::errc() || stop == end || number < 0 || number > kTokensMax)
    return std::nullopt;
  return number;
}

}  // namespace

void UsageReader::begin(std::string_view content_type, bool has_several_prompts) {
  has_several_prompts_ = has_several_prompts;
  is_events_ = content_type.starts_with("text/event-stream");
  is_lines_ = content_type.starts_with("application/x-ndjson");
}

void UsageReader::add(std::string_view bytes) {
  if (is_events_) num_messages_ += count_of(bytes, "\n\n") + count_of(bytes, "\r\n\r\n");
  if (is_lines_) num_messages_ += count_of(bytes, "\n");
  if (is_stream()) {
    num_bytes_ += static_cast<int64_t>(bytes.size());
    read(bytes);
    return;
  }
  rest_ += bytes;
  rest_.erase(0, read(rest_));
}

size_t UsageReader::read(std::string_view bytes) {
  size_t done = bytes.size() - std::min(bytes.size(), kMemberBytesMax);
  size_t answer_at = std::string_view::npos;  // of an answer's tokens whose index is not known yet
  int64_t answer = 0;
  for (size_t at = bytes.find("\":"); at != std::string_view::npos;
       at = bytes.find("\":", at + 2)) {
    const size_t quote = at == 0 ? std::string_view::npos : bytes.rfind('"', at - 1);
    if (quote == std::string_view::npos) continue;
    const std::string_view name = bytes.substr(quote + 1, at - quote - 1);
    const auto member = std::ranges::find(kMembers, name, &Member::name);
    const bool is_index = is_stream() && name == "index" && answer_at != std::string_view::npos;
    if (member == kMembers.end() && !is_index) continue;
    const auto number = number_at(bytes, at + 2);
    if (!number) continue;
    if (is_index) {  // a message is one line
      const bool same_message = bytes.substr(answer_at, at - answer_at).find('\n') == bytes.npos;
      if (same_message && (by_index_.size() < kIndicesMax || by_index_.count(*number) > 0))
        by_index_[*number] = std::max(by_index_[*number], answer);
      answer_at = std::string_view::npos;
      continue;
    }
    take(member->count, *number);
    if (member->count == UsageCount::kAnswer) answer_at = at, answer = *number;
    done = std::max(done, at + 2);
  }
  return done;
}

void UsageReader::take(UsageCount count, int64_t tokens) {
  if (count == UsageCount::kAnswer) ++num_stated_;
  std::optional<int64_t>& total = counts_[static_cast<size_t>(count)];
  const bool repeats = is_stream() || (count != UsageCount::kAnswer && !has_several_prompts_);
  total = repeats ? std::max(total.value_or(0), tokens) : total.value_or(0) + tokens;
}

std::optional<int64_t> UsageReader::prompt_tokens() const {
  if (!of(UsageCount::kPrompt)) return std::nullopt;
  return *of(UsageCount::kPrompt) + of(UsageCount::kRead).value_or(0) +
         of(UsageCount::kWritten).value_or(0);
}

// Messages that each state a running total are those of several answers at once, or of one: each
// brings a token.
std::optional<int64_t> UsageReader::answer_tokens() const {
  if (const auto stated = of(UsageCount::kAnswer)) {
    int64_t sum = 0;
    for (const auto& [index, tokens] : by_index_) sum += tokens;
    return std::max({*stated, is_stream() ? num_stated_ : 0, sum});
  }
  if (num_messages_ > 0)
    return num_messages_ + std::max<int64_t>(0, num_bytes_ - kMessageBytes * num_messages_) / 4;
  return std::nullopt;
}

}  // namespace espalier::router
