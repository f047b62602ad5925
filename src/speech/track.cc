#include "speech/track.h"

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"

namespace espalier::speech {

Track::Track(TrackInput input, TranscriptSink sink, const WhisperConfig& config,
             const Tokenizer& tokenizer)
    : input_(std::move(input)), sink_(std::move(sink)), config_(config), tokenizer_(tokenizer) {
  result_.language = input_.language;
  result_.duration = input_.duration;
  stream_ = tokenizer_.decode_stream({});
  begin_window();
}

void Track::begin_window() {
  needs_source_ = true;
  detecting_ = config_.tokens.multilingual() && result_.language.empty();
  if (detecting_) {
    pending_ = {config_.tokens.start};
    num_cached_ = 0;
    prefix_ = {};
  } else {
    begin_tokens();
  }
}

void Track::begin_tokens() {
  prefix_ = make_prefix(config_.tokens, input_.prompt, config_.tokens.language(result_.language),
                        input_.translate, input_.timestamps, config_.sizes.max_target_positions);
  pending_ = prefix_.tokens;
  num_cached_ = 0;
  generated_.clear();
  logprob_ = no_speech_ = 0;
  num_choices_ = 0;
  num_emitted_ = 0;
  result_.num_prompt_tokens += std::ssize(prefix_.tokens);
}

int32_t Track::logits_row() const { return detecting_ || num_cached_ > 0 ? -1 : prefix_.start_row; }

Track::Choice Track::choose(std::span<const float> start_logits, std::vector<float> logits) const {
  Choice choice;
  if (detecting_) {
    choice.language = &choose_language(config_.tokens, logits);
    return choice;
  }
  if (!start_logits.empty()) choice.no_speech = probability(start_logits, config_.tokens.no_speech);
  choice.numbers = std::ranges::all_of(logits, [](float logit) { return logit == logit; });
  if (!choice.numbers) return choice;
  apply_rules(config_.tokens, generated_, input_.timestamps, logits);
  const double uniform = input_.temperature > 0 ? hash_uniform(input_.seed, num_draws_) : 0;
  choice.token = choose_token(logits, input_.temperature, uniform);
  return choice;
}

void Track::accept(const Choice& choice) {
  ESP_CHECK(!finished_ && !needs_source_);
  if (detecting_) {
    detecting_ = false;
    result_.language = choice.language->code;
    return begin_tokens();
  }
  if (choice.no_speech) no_speech_ = *choice.no_speech;
  num_cached_ += static_cast<int32_t>(pending_.size());
  if (!choice.numbers) {
    return abort(error(StatusCode::kInternal,
                       "the model gave a logit that is not a number: its weights are damaged"));
  }
  ++num_draws_;
  if (!choice.token) {
    return abort(error(StatusCode::kInternal,
                       "the model gave an infinite logit, or none for a token that may come next: "
                       "its weights or its generation_config.json are damaged"));
  }
  logprob_ += choice.token->logprob;
  ++num_choices_;
  if (choice.token->token == config_.tokens.end) return end_window();
  take(choice.token->token);
}

void Track::take(TokenId token) {
  generated_.push_back(token);
  pending_ = {token};
  ++result_.num_tokens;
  const size_t size = generated_.size();
  const WhisperTokens& tokens = config_.tokens;
  if (!input_.timestamps) {
    emit_until(size);
  } else if (size >= 2 && tokens.is_timestamp(token) && tokens.is_timestamp(generated_[size - 2])) {
    emit_until(size - 1);  // what lies before a pair of times stays
  }
  const int64_t room = config_.sizes.max_target_positions - std::ssize(prefix_.tokens);
  if (std::ssize(generated_) >= room ||
      (input_.tokens_max > 0 && std::ssize(generated_) >= input_.tokens_max)) {
    end_window();
  }
}

void Track::end_window() {
  const int64_t num_frames =
      std::min<int64_t>(config_.sizes.window_frames(), input_.num_frames - first_);
  const CutWindow cut = cut_window(config_.tokens, generated_, first_, num_frames);
  size_t num_kept = 0;
  for (const WindowSegment& segment : cut.segments) {
    TranscriptSegment out{.id = static_cast<int32_t>(result_.segments.size()),
                          .start = segment.start,
                          .end = segment.end,
                          .seek = first_,
                          .text = text_of(segment.tokens),
                          .tokens = segment.tokens,
                          .avg_logprob = logprob_ / std::max(1, num_choices_),
                          .no_speech_prob = no_speech_};
    num_kept += segment.tokens.size();
    result_.segments.push_back(std::move(out));
  }
  emit_until(num_kept);
  first_ += cut.num_frames;
  if (first_ >= input_.num_frames) return finish();
  begin_window();
}

void Track::emit_until(size_t count) {
  std::string text;
  for (; num_emitted_ < count; ++num_emitted_) {
    const TokenId token = generated_[num_emitted_];
    if (token < config_.tokens.end) stream_->push(token, text);
  }
  emit(std::move(text));
}

// The text as a whole begins without the space that its first word has.
void Track::emit(std::string text) {
  if (result_.text.empty()) text.erase(0, std::min(text.find_first_not_of(' '), text.size()));
  if (text.empty()) return;
  result_.text += text;
  sink_({.delta = std::move(text), .finished = false, .status = {}, .result = {}});
}

std::string Track::text_of(std::span<const TokenId> tokens) const {
  std::vector<TokenId> text;
  std::ranges::copy_if(tokens, std::back_inserter(text),
                       [&](TokenId token) { return token < config_.tokens.end; });
  return tokenizer_.decode(text);
}

void Track::finish() {
  std::string rest;
  stream_->flush(rest);
  emit(std::move(rest));
  finished_ = true;
  sink_({.delta = {}, .finished = true, .status = {}, .result = result_});
}

void Track::abort(Status status) {
  if (finished_) return;
  finished_ = true;
  sink_({.delta = {}, .finished = true, .status = std::move(status), .result = {}});
}

}  // namespace espalier::speech
