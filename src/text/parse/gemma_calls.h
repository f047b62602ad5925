// Calls in Gemma 4's notation: <|tool_call>call:f{city:<|"|>Paris<|"|>,days:3}<tool_call|>.
// Internal to the folder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/parse/tool_call_parser.h"

namespace espalier {

inline constexpr const char* kGemmaCallBegin = "<|tool_call>";
inline constexpr const char* kGemmaCallEnd = "<tool_call|>";
inline constexpr const char* kGemmaQuote = "<|\"|>";

// Converts {key:value,...}, with strings between <|"|>, to a JSON object. Nothing when it is none;
// a bare word that is no JSON value is a string. Pure.
std::optional<std::string> gemma_arguments_to_json(std::string_view text);

// A call is emitted when its end mark comes. Thread-safe.
std::unique_ptr<ToolCallParser> make_gemma_calls();

}  // namespace espalier
