// The bodies of /v1/completions and /v1/chat/completions.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/requests/request.h"
#include "server/bootstrap_fields.h"
#include "server/json_fields.h"

namespace espalier::server {

// What both have.
struct OpenAiCommon {
  std::string model;  // not checked: it is echoed, and may name an adapter
  SamplingParams sampling;
  bool stream = false;
  bool include_usage = false;           // stream_options
  bool continuous_usage_stats = false;  // stream_options
  PerItem<std::string> rid, extra_key, cache_salt, lora_path;
  std::optional<ControlRequest> control_vector;
  std::optional<int32_t> priority;
  std::optional<SessionParams> session;
  std::string session_id;
  BootstrapFields bootstrap;

  // The engine's request for prompt i of n, without the prompt.
  GenerateRequest make_request(size_t i, size_t n) const;
};

struct TextOrIds {
  std::string text;
  std::vector<TokenId> ids;  // used when it is not text
  bool is_text = true;
};
// A string, a list of strings, a list of ids, or a list of lists of ids: at least one, no empty
// list of ids.
Status read_prompts(const boost::json::value& value, std::string_view where,
                    std::vector<TextOrIds>& out);
std::string prompts_schema();

struct CompletionRequest : OpenAiCommon {
  using Prompt = TextOrIds;
  std::vector<Prompt> prompts;
  bool echo = false;
  std::optional<int32_t> logprobs;  // the number of best tokens
  std::string suffix;               // the text behind the gap that is filled; empty: no gap
};

struct ChatRequest : OpenAiCommon {
  std::shared_ptr<const boost::json::value> messages;  // a list of checked messages
  std::vector<TokenId> input_ids;                      // instead of rendering the messages
  bool logprobs = false;
  int32_t top_logprobs = 0;
  bool return_token_origins = false;  // with `logprobs`: each token's id and origin
  std::optional<int32_t> max_completion_tokens;
  bool continue_final_message = false;
  std::optional<std::string> reasoning_effort;
  std::shared_ptr<const boost::json::value> template_kwargs;  // an object, or null

  std::shared_ptr<const boost::json::value> tools;  // a checked list, or null
  enum class ToolChoice { kAuto, kNone, kRequired, kNamed } tool_choice = ToolChoice::kAuto;
  std::string tool_name;                        // kNamed
  std::vector<std::string> allowed_tool_names;  // of kAuto and kRequired; empty: all tools
  bool parallel_tool_calls = true;
  bool separate_reasoning = true, stream_reasoning = true;
  bool describe_grammar = false;  // the prompt states what the answer is constrained to
  bool store_completion = false;  // GET /v1/chat/completions/{id} finds the answer
  std::shared_ptr<const boost::json::value> metadata;  // of a stored answer: as check_metadata()
};

struct TokenizeRequest {
  PerItem<std::string> prompt;
  std::shared_ptr<const boost::json::value> messages;
  std::shared_ptr<const boost::json::value> template_kwargs;
  std::shared_ptr<const boost::json::value> tools;  // a checked list, or null; with messages
  bool without_tools = false;                       // tool_choice is none
  bool continue_final_message = false;
  bool add_special_tokens = true;
};

struct DetokenizeRequest {
  PerItem<std::vector<TokenId>> tokens;
  bool skip_special_tokens = true;
};

// {"type": "text" | "json_object" | "json_schema" | "structural_tag", ...}: becomes the grammar
// field of SamplingParams that means the same.
Status read_response_format(const boost::json::value& value, std::string_view where,
                            SamplingParams& out);

// A list of tools as clients send it; into `out` where there are any.
Status read_tools(const boost::json::value& value, std::string_view where,
                  std::shared_ptr<const boost::json::value>& out);

// What a stored answer may have as metadata: an object of at most 16 strings, with names of at most
// 64 bytes and values of at most 512.
Status check_metadata(const boost::json::value& value, std::string_view where);

// kInvalidArgument for a field of OpenAiCommon that is a list of another length than the `n`
// prompts.
Status check_common(const OpenAiCommon& common, size_t n);

// As parse_native: `malformed` states the kind of failure.
Result<CompletionRequest> parse_completion(std::string_view body, bool& malformed);
Result<ChatRequest> parse_chat(std::string_view body, bool& malformed);
Result<TokenizeRequest> parse_tokenize(std::string_view body, bool& malformed);
Result<DetokenizeRequest> parse_detokenize(std::string_view body, bool& malformed);

std::string completion_schema();
std::string chat_schema();
std::string tokenize_schema();
std::string detokenize_schema();

}  // namespace espalier::server
