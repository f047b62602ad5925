// Calls of MiniMax M3, whose arguments are elements with a mark in front of each tag (here #):
//   #<tool_call>#<invoke name="f">#<city>Paris#</city>#<days>#<item>1#</item>#</days>#</invoke>
//   #</tool_call>
// Internal to the folder.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/parse/tool_call_parser.h"

namespace espalier {

inline constexpr const char* kNestedMark = "]<]minimax[>[";

// The elements of a call of `tool` as a JSON object; nothing where their tags do not match. An
// element of elements that are all named item is a list, unless the tool's schema has only an
// object there; any other is an object. A text is of the type that the schema allows, and a string
// where it fits none. `tools`: a checked list, or null. Pure.
std::optional<std::string> nested_arguments_to_json(std::string_view text,
                                                    const boost::json::value* tools,
                                                    std::string_view tool);

// A call is emitted when its end comes. Thread-safe. `tools`: a checked list, or null.
std::unique_ptr<ToolCallParser> make_nested_calls(std::shared_ptr<const boost::json::value> tools);

}  // namespace espalier
