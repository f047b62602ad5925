// A long sound as windows that the model reads one after another: what the decoder's tokens begin
// with, and how a window's tokens become segments and the begin of the next window.
// Source: Radford et al. 2022 (arXiv:2212.04356), section 3.8; transformers'
// WhisperGenerationMixin.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "speech/whisper_config.h"

namespace espalier::speech {

inline constexpr double kSecondsPerFrame = 0.01, kSecondsPerTimestamp = 0.02;

// What the decoder reads before it generates: a prompt's tokens, cut to its last ones, then the
// language, the task, and that there are no times. language: -1 where the model is of English
// alone.
struct WindowPrefix {
  std::vector<TokenId> tokens;
  int32_t start_row = 0;  // of <|startoftranscript|>
};
WindowPrefix make_prefix(const WhisperTokens& tokens, std::span<const TokenId> prompt,
                         TokenId language, bool translate, bool timestamps,
                         int32_t max_target_positions);

// tokens: with the times at its begin and end, where it has them. Seconds from the sound's begin.
struct WindowSegment {
  double start = 0, end = 0;
  std::vector<TokenId> tokens;
};

struct CutWindow {
  std::vector<WindowSegment> segments;
  int64_t num_frames = 0;  // to the next window; at least 1
};

// tokens: of the window, without <|endoftext|>. first: the window's first frame; num_frames: its
// frames with sound. What follows the last pair of times is left to the next window.
CutWindow cut_window(const WhisperTokens& tokens, std::span<const TokenId> generated, int64_t first,
                     int64_t num_frames);

}  // namespace espalier::speech
