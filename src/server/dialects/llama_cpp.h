// llama.cpp's routes that say what is served and turn texts to tokens and back. Their tables are
// part of llama_cpp_routes(). Thread-safe. Internal to the room.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/routes.h"

namespace espalier::server {

// /props, /slots, /lora-adapters, /apply-template.
std::vector<Route> llama_cpp_info_routes();
// /health, /tokenize and /detokenize in llama.cpp's shape. Other dialects have the same paths, so
// they stand under kLlamaCppPrefix alone.
std::vector<Route> llama_cpp_shared_routes();
inline constexpr std::string_view kLlamaCppPrefix = "/llama.cpp";

// The answer of /tokenize to a body of llama.cpp's, which is known by its member `content`; nothing
// for any other body.
std::optional<Result<std::string>> llama_cpp_tokenize(const Context& context,
                                                      std::string_view body);

}  // namespace espalier::server
