// The body of /generate.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/requests/request.h"
#include "server/hidden_states.h"
#include "server/images.h"
#include "server/json_fields.h"

namespace espalier::server {

// How many tokens pass between two events of a stream, where a request says.
struct NativeSampling : SamplingParams {
  std::optional<int32_t> stream_interval;
};

// One prompt of a /generate call, ready for the engine but for its rid's uniqueness.
struct NativeItem {
  GenerateRequest request;
  std::vector<PictureSource> pictures;  // in the order of their placeholders
  bool has_logprob_start = false;       // stated (also as -1), not left to the default
  std::optional<int32_t> stream_interval;
  HiddenFormat hidden_format = HiddenFormat::kList;
};

struct NativeRequest {
  std::vector<NativeItem> items;
  bool is_list = false;  // the answer is a list: a batch, or n > 1
  bool stream = false;
  bool return_text_in_logprobs = false;
};

// Reads and checks a body. `malformed` is set for a body that cannot be read (not JSON, a wrong
// type) and cleared for one whose fields contradict each other (text and input_ids at once).
Result<NativeRequest> parse_native(std::string_view body, bool& malformed);

const Fields<NativeSampling>& native_sampling_fields();
std::string native_schema();
std::string native_sampling_schema();

}  // namespace espalier::server
