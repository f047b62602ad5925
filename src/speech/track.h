// A request while it is transcribed: which tokens the decoder reads next, and what the logits
// behind them become. It knows no threads and no weights.
//
//   a window begins -> (language) -> prefix -> tokens, one a step -> segments -> the next window
//
// Not thread-safe; used by the transcriber's thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "media/mel.h"
#include "speech/token_rules.h"
#include "speech/transcriber.h"
#include "speech/whisper_config.h"
#include "speech/windows.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier::speech {

// What a request has become before it is queued.
struct TrackInput {
  MelSpectrogram mel;      // of the sound, at least of one window
  int64_t num_frames = 0;  // of these with sound
  double duration = 0;     // seconds
  std::string language;    // a code; empty: detected, or English alone
  bool translate = false, timestamps = false;
  std::vector<TokenId> prompt;
  double temperature = 0;
  int32_t tokens_max = 0;  // generated of a window; 0: as many as there is room for
  uint64_t seed = 0;
};

class Track {
 public:
  // config and tokenizer are borrowed.
  Track(TrackInput input, TranscriptSink sink, const WhisperConfig& config,
        const Tokenizer& tokenizer);

  // The window whose rows the decoder's source must be before the next tokens.
  bool needs_source() const { return needs_source_; }
  void source_is_set() { needs_source_ = false; }
  const MelSpectrogram& mel() const { return input_.mel; }
  int64_t first_frame() const { return first_; }

  // What the decoder reads next. REQUIRES: !needs_source(), !finished().
  std::span<const TokenId> pending() const { return pending_; }
  int32_t num_cached() const { return num_cached_; }
  int32_t logits_row() const;  // DecoderEntry's

  // What follows the tokens that the decoder has read.
  struct Choice {
    const LanguageToken* language = nullptr;  // where it is being detected
    std::optional<TokenChoice> token;         // else; none where no token may come next
    std::optional<double> no_speech;
    bool numbers = true;  // all logits are
  };
  // logits: of logits_row (empty: none), and of the last token. Tracks may choose at the same time.
  Choice choose(std::span<const float> start_logits, std::vector<float> logits) const;
  void accept(const Choice& choice);

  bool finished() const { return finished_; }
  // Ends it with a failure, if it has not ended.
  void abort(Status status);
  const Transcription& result() const { return result_; }

 private:
  void begin_window();
  void begin_tokens();
  void take(TokenId token);
  void end_window();
  void finish();
  void emit_until(size_t count);
  void emit(std::string text);
  std::string text_of(std::span<const TokenId> tokens) const;

  TrackInput input_;
  const TranscriptSink sink_;
  const WhisperConfig& config_;
  const Tokenizer& tokenizer_;
  Transcription result_;

  // Of the window.
  int64_t first_ = 0;
  bool needs_source_ = false, detecting_ = false;
  WindowPrefix prefix_;
  std::vector<TokenId> generated_, pending_;
  int32_t num_cached_ = 0;
  double logprob_ = 0, no_speech_ = 0;
  int32_t num_choices_ = 0;
  size_t num_emitted_ = 0;  // of generated_, as text

  std::unique_ptr<DecodeStream> stream_;  // over all windows: a character may span two
  uint64_t num_draws_ = 0;
  bool finished_ = false;
};

}  // namespace espalier::speech
