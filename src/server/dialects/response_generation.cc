#include "server/dialects/response_generation.h"

#include <chrono>

#include "base/log.h"
#include "server/dialects/conversation_items.h"
#include "server/dialects/token_text.h"
#include "server/openai_generation.h"

namespace espalier::server {
namespace {

namespace json = boost::json;
using Kind = OutputItem::Kind;

bool cut(const Sample& sample) {
  return sample.finish && sample.finish->type == FinishReason::Type::kLength;
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

ResponseGeneration::ResponseGeneration(ContextPtr context, net::ResponsePtr response,
                                       GenerationItem item, ResponseRequest&& request,
                                       const AnswerFormat& format, std::string id,
                                       std::shared_ptr<BackgroundRun> run)
    : ChatDialectGeneration(std::move(context), std::move(response), std::move(item), request,
                            format),
      request_(std::move(request)),
      id_(std::move(id)),
      run_(std::move(run)),
      created_(unix_seconds()),
      items_(samples()[0].rid, [this](size_t index) { return call_id(index, "call_"); }) {}

Status ResponseGeneration::in_client_names(const Status& status) const {
  std::string text = renamed(status.message(), "max_new_tokens", "max_output_tokens");
  return {status.code(), renamed(std::move(text), "top_logprobs_num", "top_logprobs")};
}

void ResponseGeneration::consume(const Sample& sample, bool ended, std::string* out) {
  if (request_.logprobs) consume_tokens(sample, ended, out);
  if (!request_.logprobs || ended) items_.consume(answer().read(sample.text, ended), out);
}

// The text is read token by token, so that each token's entry comes with the text that it adds,
// whether the answer is streamed or not.
void ResponseGeneration::consume_tokens(const Sample& sample, bool ended, std::string* out) {
  const std::string_view text = sample.text;
  for (const LogprobEntry& entry : output_entries(sample, tokens_read_)) {
    const std::string_view bytes = context().token_bytes(entry.id);
    const bool special = bytes.empty();
    const auto length = token_length_in(
        text.substr(text_read_), special ? context().token_text(entry.id) : std::string(bytes),
        {.first = text_read_ == 0, .complete = ended, .special = special});
    if (!length) return;
    ++tokens_read_;
    if (*length == 0) continue;
    text_read_ += *length;
    std::string json;
    JsonWriter w(json);
    write_logprob_entry(w, context(), entry);
    items_.add_token(*length, std::move(json));
    items_.consume(answer().read(text.substr(0, whole_characters(text, text_read_)), false), out);
  }
}

void ResponseGeneration::append_events(std::string& out, const Sample& sample) {
  if (cancelled_) return;
  if (!sample.sent_any) {
    append_response_event(out, "response.created", sample);
    append_response_event(out, "response.in_progress", sample);
  }
  consume(sample, sample.finish.has_value(), &out);
  if (!sample.finish) return;
  items_.close(&out);
  append_response_event(out, cut(sample) ? "response.incomplete" : "response.completed", sample);
  store(sample);
  extend_conversation();
}

// A run without a client has said it in its response already.
void ResponseGeneration::append_failure(std::string& out, const Status& status) {
  if (run_ != nullptr) return;
  items_.append_event(out, "error", [&](JsonWriter& w) {
    w.member("code", error_type(status.code())).member("message", status.message());
    w.key("param").null();
  });
}

void ResponseGeneration::on_failed(const Status& status) {
  if (run_ == nullptr) return;
  failure_ = status;
  std::string event;
  append_response_event(event, "response.failed", samples()[0]);
  store(samples()[0]);
  run_->append(event);
}

void ResponseGeneration::store_cancelled() {
  cancelled_ = true;
  store(samples()[0]);
}

std::string ResponseGeneration::whole_body() {
  const Sample& sample = samples()[0];
  consume(sample, true, nullptr);
  items_.close(nullptr);
  store(sample);
  extend_conversation();
  return response_json(sample);
}

std::string_view ResponseGeneration::status_name(const Sample& sample) const {
  if (cancelled_) return "cancelled";
  if (!failure_.ok()) return "failed";
  if (sample.finish) return cut(sample) ? "incomplete" : "completed";
  return run_ != nullptr && sample.ids.empty() ? "queued" : "in_progress";
}

void ResponseGeneration::write_outcome(JsonWriter& w, const Sample& sample) const {
  w.member("status", status_name(sample)).member("background", request_.background).key("error");
  if (failure_.ok()) {
    w.null();
  } else {
    const bool ours = http_status(failure_.code()) >= 500;
    w.begin_object().member("code", ours ? "server_error" : "invalid_prompt");
    w.member("message", failure_.message()).end_object();
  }
  w.key("incomplete_details");
  cut(sample) ? w.raw(R"({"reason":"max_output_tokens"})") : w.null();
}

void ResponseGeneration::append_response_event(std::string& out, std::string_view type,
                                               const Sample& sample) {
  items_.append_event(out, type,
                      [&](JsonWriter& w) { w.key("response").raw(response_json(sample)); });
}

std::string ResponseGeneration::response_json(const Sample& sample) const {
  std::string out;
  JsonWriter w(out);
  const bool ended = sample.finish.has_value();
  w.begin_object().member("id", id_).member("object", "response");
  w.member("created_at", created_);
  write_outcome(w, sample);
  write_request(w);
  w.key("output").begin_array();
  for (const OutputItem& item : items_.all()) write_item(w, item);
  w.end_array().key("usage");
  ended ? write_usage(w, sample) : static_cast<void>(w.null());
  w.end_object();
  return out;
}

void ResponseGeneration::write_request(JsonWriter& w) const {
  const auto text_or_null = [&](std::string_view name, const std::string& text) {
    w.key(name);
    text.empty() ? w.null() : w.value(text);
  };
  const SamplingParams& sampling = request_.sampling;
  text_or_null("instructions", request_.instructions);
  w.member("max_output_tokens", sampling.max_new_tokens).member("model", model());
  w.member("parallel_tool_calls", request_.parallel_tool_calls);
  text_or_null("previous_response_id", request_.previous_response_id);
  if (!request_.conversation.empty())
    w.key("conversation").begin_object().member("id", request_.conversation).end_object();
  w.key("reasoning").begin_object().member("effort", request_.effort);
  w.key("summary").null().end_object();
  w.member("service_tier", "default").member("store", request_.store);
  w.member("temperature", sampling.temperature.value_or(1.0f));
  w.key("text").raw(request_.text_echo).key("tool_choice").raw(request_.choice_echo);
  w.key("tools").raw(request_.tools_echo).member("top_logprobs", request_.top_logprobs);
  w.member("top_p", sampling.top_p.value_or(1.0f)).member("truncation", "disabled");
  w.key("user").null().key("metadata").raw(request_.metadata_echo);
}

void ResponseGeneration::write_usage(JsonWriter& w, const Sample& sample) const {
  const RequestStats& s = sample.stats;
  int64_t reasoning = 0;
  const Tokenizer* tokenizer = context().engine.tokenizer();
  for (const OutputItem& item : items_.all()) {
    if (item.kind != Kind::kReasoning || tokenizer == nullptr) continue;
    EncodeOptions options;
    options.add_special_tokens = false;
    reasoning += std::ssize(tokenizer->encode(item.text, options));
  }
  w.begin_object().member("input_tokens", s.prompt_tokens).key("input_tokens_details");
  w.begin_object().member("cached_tokens", s.cached_tokens).end_object();
  w.member("output_tokens", s.completion_tokens).key("output_tokens_details");
  w.begin_object().member("reasoning_tokens", reasoning).end_object();
  w.member("total_tokens", s.prompt_tokens + s.completion_tokens).end_object();
}

void ResponseGeneration::extend_conversation() {
  if (request_.conversation.empty()) return;
  const auto input = parse_json(request_.input);  // the request's reader has checked it
  json::array items =
      read_conversation_items(input.value_or(Json()), "input").value_or(json::array());
  for (const OutputItem& item : items_.all()) {
    std::string text;
    JsonWriter w(text);
    write_item(w, item);
    items.push_back(json::parse(text));
  }
  const auto extend = [&](StoredResponse& conversation) {
    append_conversation_items(conversation.messages, std::move(items),
                              [this] { return context().make_rid(); });
  };
  const StoredKey key{StoredKey::Kind::kConversation, request_.owner, request_.conversation};
  if (!context().responses->change(key, extend))
    log_warning(
        "{} is not added to its conversation {}, which was deleted or found no memory "
        "(--max-responses-bytes)",
        id_, request_.conversation);
}

void ResponseGeneration::store(const Sample& sample) {
  if (!request_.store) return;
  json::array messages = request_.messages->get_array();
  if (!request_.instructions.empty()) messages.erase(messages.begin());
  json::object turn{{"role", "assistant"}, {"content", ""}};
  json::array calls;
  for (const OutputItem& item : items_.all()) {
    if (item.kind == Kind::kReasoning) continue;  // templates drop it from earlier turns
    if (item.kind == Kind::kMessage) turn["content"] = item.text;
    if (item.kind == Kind::kCall)
      calls.push_back(function_call(item.call_id, item.name, item.text));
  }
  if (!calls.empty()) turn["tool_calls"] = std::move(calls);
  messages.push_back(std::move(turn));
  context().responses->put(
      {StoredKey::Kind::kResponse, request_.owner, id_},
      {response_json(sample), request_.input, std::move(messages), request_.background, {}},
      std::chrono::steady_clock::now());
}

}  // namespace espalier::server
