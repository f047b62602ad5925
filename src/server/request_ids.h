// The ids that a call states for its prompts (`rid`), which every dialect's bodies may bring.
// Internal to the room.
#pragma once

#include <string>

#include "base/status.h"
#include "server/json_fields.h"

namespace espalier::server {

// A list has an id for each prompt, and no id twice: SGLang refuses both, and what aborts or
// continues a request by its id cannot distinguish two of one id. An empty id is made later.
Status check_rids(const PerItem<std::string>& rids, size_t num_prompts);

// The id of prompt i, empty where none is stated. One id for several prompts becomes rid_0, rid_1
// ... REQUIRES: check_rids() passed.
std::string rid_of(const PerItem<std::string>& rids, size_t i, size_t num_prompts);

}  // namespace espalier::server
