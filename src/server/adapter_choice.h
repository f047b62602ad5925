// Which LoRA adapter a request of OpenAI's dialects means.
#pragma once

#include <string>
#include <string_view>

#include "engine/requests/request.h"
#include "server/context.h"

namespace espalier::server {

// By its `model`: the name of a loaded adapter, or MODEL:ADAPTER with the name of the model that is
// served, or with any other where the adapter is loaded. Empty: no adapter is meant, and
// MODEL:latest means none. Another name behind the served model's is returned whether it is loaded
// or not, and whether adapters are enabled or not; the engine refuses what it does not have.
std::string adapter_of_model(const Context& context, std::string_view model);

// Sets request.lora so, unless the request states one itself (lora_path).
void choose_adapter(const Context& context, std::string_view model, GenerateRequest& request);

}  // namespace espalier::server
