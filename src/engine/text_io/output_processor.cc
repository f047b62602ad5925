#include "engine/text_io/output_processor.h"

#include <algorithm>

namespace espalier {
namespace {

FinishReason stopped_by(std::string stop) {
  return {.type = FinishReason::Type::kStop, .matched = std::move(stop)};
}

FinishReason overloaded() {
  return {.type = FinishReason::Type::kError,
          .status = error(StatusCode::kResourceExhausted,
                          "the expressions of stop_regex take more work than a step has for them: "
                          "send fewer or simpler ones")};
}

}  // namespace

Result<OutputProcessor> OutputProcessor::create(const Tokenizer* tokenizer,
                                                const SamplingParams& params,
                                                std::vector<TokenId> stop_ids) {
  OutputProcessor p;
  p.stop_ids_ = std::move(stop_ids);
  p.no_stop_trim_ = params.no_stop_trim;
  const bool has_stops = !params.stop.empty() || !params.stop_regex.empty();
  if (tokenizer == nullptr) {
    if (!has_stops) return p;
    return fail(error(StatusCode::kFailedPrecondition,
                      "stop and stop_regex need a tokenizer, and this engine runs without one "
                      "(skip_tokenizer_init): use stop_token_ids"));
  }
  if (has_stops) {
    ESP_ASSIGN_OR_RETURN(p.matcher_, StopMatcher::create(params.stop, params.stop_regex));
  }
  for (const std::string& stop : params.stop)
    if (const auto id = tokenizer->token_to_id(stop); id && tokenizer->is_special(*id))
      p.special_stops_.emplace_back(*id, stop);
  p.tokenizer_ = tokenizer;
  p.decode_options_ = {.skip_special_tokens = params.skip_special_tokens,
                       .spaces_between_special_tokens = params.spaces_between_special_tokens};
  p.detokenizer_.emplace(*tokenizer, p.decode_options_);
  p.has_text_ = true;
  return p;
}

OutputProcessor OutputProcessor::like_this() const {
  OutputProcessor p;
  p.stop_ids_ = stop_ids_;
  p.no_stop_trim_ = no_stop_trim_;
  p.special_stops_ = special_stops_;
  p.tokenizer_ = tokenizer_;
  p.decode_options_ = decode_options_;
  p.has_text_ = has_text_;
  return p;
}

OutputProcessor OutputProcessor::sibling() const {
  OutputProcessor p = like_this();
  if (matcher_) p.matcher_ = matcher_->sibling();
  if (tokenizer_ != nullptr) p.detokenizer_.emplace(*tokenizer_, decode_options_);
  return p;
}

OutputProcessor OutputProcessor::fork() const {
  OutputProcessor p = like_this();
  p.matched_ = matched_;
  p.skipping_ = skipping_;
  p.skip_ = skip_;
  p.max_new_tokens_ = max_new_tokens_;
  p.num_tokens_ = num_tokens_;
  if (matcher_) p.matcher_ = matcher_->fork();
  if (detokenizer_) p.detokenizer_.emplace(*detokenizer_);
  return p;
}

const std::string* OutputProcessor::special_stop(TokenId token) const {
  for (const auto& [id, stop] : special_stops_)
    if (id == token) return &stop;
  return nullptr;
}

OutputProcessor::Output OutputProcessor::push(TokenId token, int64_t& stop_work_left) {
  const bool at_length = ++num_tokens_ == max_new_tokens_;
  if (!has_text_) return {};
  if (!at_length) {
    if (const std::string* stop = special_stop(token)) return stop_at_special(*stop);
    const bool ends = std::binary_search(stop_ids_.begin(), stop_ids_.end(), token);
    if (ends && !no_stop_trim_) return {};
  }
  std::string text = without_skipped(detokenizer_->push(token));
  if (!matcher_) return {.text = std::move(text)};
  if (at_length) {
    text.insert(0, matcher_->flush());
    matcher_.reset();
    return {.text = std::move(text)};
  }
  StopMatcher::Output found = matcher_->push(text, stop_work_left);
  if (found.overloaded) return {.text = std::move(found.text), .finish = overloaded()};
  if (!found.matched) return {.text = std::move(found.text)};
  matched_ = true;
  if (no_stop_trim_) found.text += found.matched_text;
  return {.text = std::move(found.text), .finish = stopped_by(std::move(*found.matched))};
}

OutputProcessor::Output OutputProcessor::stop_at_special(const std::string& stop) {
  Output out{.text = flush(), .finish = stopped_by(stop)};
  if (no_stop_trim_) out.text += stop;
  matched_ = true;
  return out;
}

std::string OutputProcessor::flush() {
  if (!has_text_ || matched_) return {};
  std::string text = matcher_ ? matcher_->flush() : std::string();
  return text + without_skipped(detokenizer_->flush());
}

// Vocabularies that put a space before a text drop it in front of the first word.
std::string OutputProcessor::without_skipped(std::string text) {
  if (skip_.empty() || text.empty()) return text;
  if (!skipping_ && skip_[0] == ' ' && text[0] != ' ') skip_.erase(0, 1);
  skipping_ = true;
  const size_t count = std::min(text.size(), skip_.size());
  skip_.erase(0, count);
  text.erase(0, count);
  return text;
}

}  // namespace espalier
