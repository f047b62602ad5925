// The setting of the prefix cache's events, which is an object of JSON as vLLM and SGLang have it.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "server/server_config.h"

namespace espalier::apps {

// `num_events`: that the engine keeps; 0 with the publisher "null". kInvalidArgument names the
// member that is wrong.
Status read_kv_events_config(std::string_view text, int32_t& num_events, KvEventsConfig& published);

}  // namespace espalier::apps
