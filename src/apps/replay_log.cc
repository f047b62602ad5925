#include "apps/replay_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <ctime>
#include <optional>

#include "apps/bench/timed_answer.h"
#include "apps/bench/workload.h"
#include "base/rng.h"
#include "server/tracing/redact.h"

namespace espalier::apps {

namespace json = boost::json;

namespace {

constexpr int64_t kFilledBytesMax = int64_t{1} << 26, kFilledIdsMax = int64_t{1} << 24;

bool is_one_of(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::ranges::find(keys, key) != keys.end();
}

// Would contradict another request, or mean nothing without its text.
bool names_something(std::string_view key) {
  return is_one_of(key, {"rid", "stop", "stop_regex", "regex", "ebnf", "choices", "user",
                         "lora_path", "extra_key", "cache_salt", "previous_response_id",
                         "conversation", "prompt_cache_key", "safety_identifier", "tool_choice"});
}

// The count of a mark that stands for something left out.
std::optional<int64_t> mark_of(const json::value& value, std::string_view name) {
  const json::object* const object = value.if_object();
  if (object == nullptr || object->size() != 1) return std::nullopt;
  const json::value* const count = object->if_contains(json::string_view(name.data(), name.size()));
  if (count == nullptr || !count->is_int64() || count->get_int64() < 0) return std::nullopt;
  return count->get_int64();
}

// Makes up prompts; what it draws depends on the request's number alone.
class Fill {
 public:
  Fill(uint64_t number, const ReplayTarget& target) : rng_(mix64(number + 1)), target_(target) {}

  bool has_filled() const { return has_filled_; }

  // Replaces the marks in `value`. False where it cannot be replaced, so its place is removed.
  bool fill(json::value& value) {
    if (mark_of(value, server::kRedactedJson)) return false;
    if (const auto bytes = mark_of(value, server::kRedactedText)) {
      value = text(*bytes);
      return true;
    }
    if (const auto count = mark_of(value, server::kRedactedIds)) {
      value = json::value_from(ids(*count, 0));
      return true;
    }
    if (json::array* const array = value.if_array()) {
      for (size_t i = 0; i < array->size();)
        fill((*array)[i]) ? void(++i)
                          : void(array->erase(array->begin() + static_cast<ptrdiff_t>(i)));
    } else if (json::object* const object = value.if_object()) {
      if (is_picture(*object)) return false;
      for (auto member = object->begin(); member != object->end();)
        keep_member(*member) ? void(++member) : void(member = object->erase(member));
    }
    return true;
  }

  // The first `shared` are the same in all requests.
  std::vector<int32_t> ids(int64_t count, int64_t shared) {
    has_filled_ = true;
    const auto vocab = static_cast<uint64_t>(std::max(target_.vocab_size, 16));
    Rng common(7);
    std::vector<int32_t> out(static_cast<size_t>(std::clamp<int64_t>(count, 0, kFilledIdsMax)));
    for (size_t i = 0; i < out.size(); ++i) {
      Rng& rng = static_cast<int64_t>(i) < shared ? common : rng_;
      out[i] = static_cast<int32_t>(vocab / 4 + rng.below(vocab / 2));  // away from special tokens
    }
    return out;
  }

 private:
  static bool is_picture(const json::object& part) {
    const json::value* const type = part.if_contains("type");
    return type != nullptr && type->is_string() &&
           is_one_of({type->get_string().data(), type->get_string().size()},
                     {"image_url", "image", "input_image"});
  }

  bool keep_member(json::key_value_pair& member) {
    return !names_something({member.key().data(), member.key().size()}) && fill(member.value());
  }

  std::string text(int64_t bytes) {
    has_filled_ = true;
    const auto size = static_cast<size_t>(std::min(bytes, kFilledBytesMax));
    std::string out;
    while (out.size() < size) {
      const std::vector<int32_t> word = {static_cast<int32_t>(rng_.below(30'000))};
      out += (out.empty() ? "" : " ") + words_of(word);
    }
    out.resize(size);
    return out;
  }

  Rng rng_;
  const ReplayTarget& target_;
  bool has_filled_ = false;
};

bool is_one_prompt(const json::value* prompt) {
  return prompt != nullptr && (mark_of(*prompt, server::kRedactedText).has_value() ||
                               mark_of(*prompt, server::kRedactedIds).has_value());
}

// The prompt of a request that the log has without it, as ids of the length that was counted.
void put_ids(json::object& body, std::string_view route, const LoggedCall& call, Fill& fill) {
  const bool native = route == "/generate";
  for (const char* name : {"text", "input_ids", "prompt"}) {
    if (native == (std::string_view(name) == "prompt") || !is_one_prompt(body.if_contains(name)))
      continue;
    body.erase(name);
    body[native ? "input_ids" : "prompt"] =
        json::value_from(fill.ids(call.prompt_tokens, call.cached_tokens));
    return;
  }
}

bool has_one_prompt(const json::object& body, std::string_view route) {
  if (route == "/v1/chat/completions") return body.contains("messages");
  for (const char* name : {"text", "input_ids", "prompt"})
    if (const json::value* const prompt = body.if_contains(name)) {
      if (prompt->is_string()) return true;
      const json::array* const array = prompt->if_array();
      return array != nullptr && !array->empty() && array->front().is_number();
    }
  return false;
}

void set_length(json::object& body, bool native, int32_t tokens) {
  if (native) {
    json::value& sampling = body["sampling_params"];
    if (!sampling.is_object()) sampling = json::object();
    sampling.get_object()["max_new_tokens"] = tokens;
    sampling.get_object()["ignore_eos"] = true;
    return;
  }
  body.erase("max_completion_tokens");
  body["max_tokens"] = tokens;
  body["ignore_eos"] = true;
}

// Seconds since 1970 of "2026-08-01T12:00:00.123456789Z".
std::optional<double> unix_seconds_of(const std::string& time) {
  std::tm parts{};
  const char* const fraction = ::strptime(time.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (fraction == nullptr) return std::nullopt;
  char* end = nullptr;
  const double part = std::strtod(fraction, &end);
  if (std::string_view(end) != "Z" || !(part >= 0 && part < 1)) return std::nullopt;
  return static_cast<double>(::timegm(&parts)) + part;
}

Result<LoggedCall> read_call(std::string_view line) {
  json::error_code problem;
  const json::value value = json::parse(json::string_view(line.data(), line.size()), problem);
  const json::value* const body = problem ? nullptr : json_at(value, "/body");
  const auto arrived = problem ? std::nullopt : unix_seconds_of(text_at(value, "/time"));
  if (body == nullptr || !arrived || text_at(value, "/route").empty())
    return fail(invalid_argument("it is no line of a request log (--request-log)"));
  const auto seconds = [&](std::string_view path) {
    const json::value* const found = json_at(value, path);
    return found != nullptr && found->is_number() ? found->to_number<double>() : 0.0;
  };
  LoggedCall call{.offset = *arrived,
                  .route = text_at(value, "/route"),
                  .num_samples = int_at(value, "/samples", 1),
                  .prompt_tokens = int_at(value, "/prompt_tokens", 0),
                  .cached_tokens = int_at(value, "/cached_tokens", 0),
                  .completion_tokens = int_at(value, "/completion_tokens", 0),
                  .time_to_first_token = seconds("/ttft_s"),
                  .latency = seconds("/e2e_s")};
  const json::value* const redacted = json_at(value, "/redacted");
  call.redacted = redacted != nullptr && redacted->is_bool() && redacted->get_bool();
  const bool was_answered = int_at(value, "/status", 0) == 200;
  if (was_answered && body->is_object() && !mark_of(*body, server::kRedactedText))
    call.body = json::serialize(*body);
  return call;
}

}  // namespace

Result<LoggedCalls> read_replay_log(std::string_view text) {
  LoggedCalls out;
  int64_t number = 0;
  for (size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    ++number;
    if (end == 0) continue;
    auto call = read_call(text.substr(0, end));
    if (!call) return fail(call.error().with_context(fmt::format("line {}", number)));
    if (call->body.empty())
      ++out.num_skipped;
    else
      out.calls.push_back(std::move(*call));
  }
  // Lines are in order of the requests' ends.
  std::ranges::stable_sort(out.calls, {}, &LoggedCall::offset);
  if (out.calls.empty()) return out;
  const double first = out.calls.front().offset;
  for (LoggedCall& call : out.calls) call.offset -= first;
  return out;
}

Result<ReplayRequest> make_replay_request(const LoggedCall& call, uint64_t number,
                                          const ReplayTarget& target) {
  json::error_code problem;
  json::value value = json::parse(call.body, problem);
  if (problem || !value.is_object()) return fail(invalid_argument("the body is no JSON object"));
  json::object& body = value.get_object();
  ReplayRequest out{.path = call.route, .is_native = call.route == "/generate"};
  const bool is_chat = call.route == "/v1/chat/completions";
  const bool is_known = out.is_native || is_chat || call.route == "/v1/completions";
  Fill fill(number, target);
  if (call.redacted && is_known && !is_chat && target.vocab_size > 0)
    put_ids(body, call.route, call, fill);
  // A log with whole bodies keeps what they name, but for the ids of requests.
  if (call.redacted)
    (void)fill.fill(value);
  else
    body.erase("rid");
  if (body.contains("model") && !target.model.empty()) body["model"] = target.model;
  out.is_timed = is_known && call.num_samples == 1 && has_one_prompt(body, call.route);
  if (is_known && fill.has_filled() && call.num_samples >= 1 &&
      call.completion_tokens >= call.num_samples) {
    const int32_t tokens = call.completion_tokens / call.num_samples;
    set_length(body, out.is_native, tokens);
    if (out.is_timed) out.wanted_tokens = tokens;
  }
  if (is_known) {
    body["stream"] = out.is_timed;
    body.erase("stream_options");
    if (out.is_timed && !out.is_native) body["stream_options"] = {{"include_usage", true}};
  }
  out.body = json::serialize(value);
  return out;
}

}  // namespace espalier::apps
