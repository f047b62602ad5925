#include "apps/bench/timed_answer.h"

#include <fmt/format.h>

#include <boost/json.hpp>

namespace espalier::apps {

namespace json = boost::json;

const json::value* json_at(const json::value& root, std::string_view path) {
  json::error_code problem;
  return root.find_pointer(json::string_view(path.data(), path.size()), problem);
}

int32_t int_at(const json::value& root, std::string_view path, int32_t otherwise) {
  const json::value* found = json_at(root, path);
  return found != nullptr && found->is_int64() ? static_cast<int32_t>(found->get_int64())
                                               : otherwise;
}

std::string text_at(const json::value& root, std::string_view path) {
  const json::value* found = json_at(root, path);
  return found != nullptr && found->is_string() ? std::string(found->get_string()) : "";
}

bool TimedAnswer::on_event(std::string_view data) {
  if (data == "[DONE]") return true;
  json::error_code problem;
  const json::value event = json::parse(json::string_view(data.data(), data.size()), problem);
  if (problem) return fail(fmt::format("an event is no JSON: {}", data.substr(0, 200)));
  if (json_at(event, "/error") != nullptr) return fail(json::serialize(*json_at(event, "/error")));
  if (native_) {
    on_native(event);
  } else {
    on_openai(event);
  }
  return true;
}

RequestRecord TimedAnswer::finish(int32_t wanted_tokens, bool ignore_eos) {
  RequestRecord record;
  timer_.finish(now_seconds(), record);
  record.prompt_tokens = prompt_tokens_;
  record.cached_tokens = cached_tokens_;
  if (error_.empty() && !ended_) error_ = "the stream ended without a finish reason";
  if (error_.empty() && ignore_eos && record.output_tokens != wanted_tokens)
    error_ = fmt::format("{} output tokens instead of {}", record.output_tokens, wanted_tokens);
  record.error = error_;
  record.ok = error_.empty();
  return record;
}

void TimedAnswer::on_native(const json::value& event) {
  timer_.tokens(now_seconds(), int_at(event, "/meta_info/completion_tokens", 0));
  prompt_tokens_ = int_at(event, "/meta_info/prompt_tokens", prompt_tokens_);
  cached_tokens_ = int_at(event, "/meta_info/cached_tokens", cached_tokens_);
  const json::value* reason = json_at(event, "/meta_info/finish_reason");
  ended_ = reason != nullptr && !reason->is_null();
  if (!ended_) return;
  if (text_at(event, "/meta_info/finish_reason/type") == "abort")
    error_ = text_at(event, "/meta_info/finish_reason/message");
  const json::value* ids = json_at(event, "/output_ids");
  if (ids != nullptr && ids->is_array())
    for (const json::value& id : ids->get_array())
      if (id.is_int64()) output_ids_.push_back(static_cast<int32_t>(id.get_int64()));
}

// Chat and completions differ in where the text stands. Each event with text counts as one token
// until the usage says how many there were.
void TimedAnswer::on_openai(const json::value& event) {
  std::string text = text_at(event, "/choices/0/delta/content");
  if (text.empty()) text = text_at(event, "/choices/0/text");
  text_ += text;
  const int32_t completion = int_at(event, "/usage/completion_tokens", -1);
  events_with_text_ += text.empty() ? 0 : 1;
  timer_.tokens(now_seconds(), completion >= 0 ? completion : events_with_text_);
  prompt_tokens_ = int_at(event, "/usage/prompt_tokens", prompt_tokens_);
  cached_tokens_ = int_at(event, "/usage/prompt_tokens_details/cached_tokens", cached_tokens_);
  if (!text_at(event, "/choices/0/finish_reason").empty()) ended_ = true;
}

}  // namespace espalier::apps
