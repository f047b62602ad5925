#include "speech/windows.h"

#include <algorithm>

namespace espalier::speech {
namespace {

// Frames that a step of times stands for.
constexpr int64_t kFramesPerTimestamp = 2;

}  // namespace

WindowPrefix make_prefix(const WhisperTokens& tokens, std::span<const TokenId> prompt,
                         TokenId language, bool translate, bool timestamps,
                         int32_t max_target_positions) {
  WindowPrefix prefix;
  // Half of the positions stay for what is generated.
  const auto room = static_cast<size_t>(std::max(0, max_target_positions / 2 - 1));
  prompt = prompt.last(std::min(prompt.size(), room));
  if (!prompt.empty() && tokens.previous >= 0) {
    prefix.tokens.push_back(tokens.previous);
    prefix.tokens.insert(prefix.tokens.end(), prompt.begin(), prompt.end());
  }
  prefix.start_row = static_cast<int32_t>(prefix.tokens.size());
  prefix.tokens.push_back(tokens.start);
  if (language >= 0) {
    prefix.tokens.push_back(language);
    prefix.tokens.push_back(translate ? tokens.translate : tokens.transcribe);
  }
  if (!timestamps) prefix.tokens.push_back(tokens.no_timestamps);
  return prefix;
}

CutWindow cut_window(const WhisperTokens& tokens, std::span<const TokenId> generated, int64_t first,
                     int64_t num_frames) {
  const double offset = static_cast<double>(first) * kSecondsPerFrame;
  const auto is_time = [&](size_t i) { return tokens.is_timestamp(generated[i]); };
  const auto seconds = [&](TokenId token) {
    return offset + (token - tokens.first_timestamp()) * kSecondsPerTimestamp;
  };
  const size_t size = generated.size();
  std::vector<size_t> cuts;  // between the two times of a pair
  for (size_t i = 1; i < size; ++i) {
    if (is_time(i - 1) && is_time(i)) cuts.push_back(i);
  }
  const bool closed = size >= 2 && is_time(size - 1) && !is_time(size - 2);
  CutWindow out{.segments = {}, .num_frames = num_frames};
  if (cuts.empty()) {
    double end =
        offset + static_cast<double>(num_frames / kFramesPerTimestamp) * kSecondsPerTimestamp;
    for (size_t i = size; i-- > 0;) {
      if (!is_time(i)) continue;
      if (generated[i] != tokens.first_timestamp()) end = seconds(generated[i]);
      break;
    }
    out.segments.push_back({offset, end, {generated.begin(), generated.end()}});
    return out;
  }
  if (closed) cuts.push_back(size);
  size_t begin = 0;
  for (const size_t cut : cuts) {
    const auto part = generated.subspan(begin, cut - begin);
    out.segments.push_back({tokens.is_timestamp(part.front()) ? seconds(part.front()) : offset,
                            seconds(part.back()),
                            {part.begin(), part.end()}});
    begin = cut;
  }
  if (!closed) {
    const int64_t steps = generated[begin - 1] - tokens.first_timestamp();
    // A window that would begin where this one does is passed over.
    if (steps > 0) out.num_frames = std::min(num_frames, steps * kFramesPerTimestamp);
  }
  return out;
}

}  // namespace espalier::speech
