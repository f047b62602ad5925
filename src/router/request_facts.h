// What a router wants to know of a request's body, read in one pass without a tree of its JSON: the
// prompt, as far as it decides which cache has it, and a few names.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "router/dispatcher.h"

namespace espalier::router {

// How a dialect's errors look, in a body and in a stream.
enum class ErrorStyle { kOpenAi, kAnthropic, kOllama };

// What a request may use, about, as the limits of tenants count it.
struct RequestCost {
  int64_t prompt_tokens = 0;  // of all prompts
  int64_t answer_tokens = 0;  // at most, of all answers
  bool has_several_prompts = false;
  int64_t priority = 0;  // the highest that the request states
};

struct RequestFacts {
  std::string model;                  // "model"
  std::string session;                // "session_params"."id", or "session_id"
  std::string adapter;                // "lora_path", where it is one name
  std::string extra_key, cache_salt;  // where each is one text
  // The strings of the prompt's fields, in the order of the fields, and the numbers (token ids)
  // with 4 bytes each. It is not what the worker's model sees, but two prompts that begin alike
  // there begin alike here.
  std::string prompt;
  bool has_ids = false, has_text = false;
  int64_t num_prompts = 1;                // of a list of them
  int64_t answer_tokens = -1;             // the most that one answer may have; -1: not stated
  int64_t num_samples = 1, priority = 0;  // the highest, where a name comes again

  // The prompt's token ids where it states nothing else; empty otherwise.
  std::vector<int32_t> ids() const;
};

// `fields`: the members of the body that hold the prompt, in the order in which the model sees
// them. A body that is no JSON object has no facts: the worker's answer will say what is wrong.
RequestFacts read_facts(std::string_view body, std::span<const std::string_view> fields);

RequestCost request_cost(const RequestFacts& facts);

// tenant: separates the prompts of those who shall not share; "": everyone shares.
RoutedRequest routed_request(RequestFacts facts, std::string_view tenant);

}  // namespace espalier::router
