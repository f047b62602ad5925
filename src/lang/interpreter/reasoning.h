// Splits the reasoning of a model from its answer. Pure; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace espalier::lang {

// (reasoning, rest), each without the white space around it. A text without an end mark is all
// rest. kInvalidArgument for a model type that is not known, with the list of those that are.
Result<std::pair<std::string, std::string>> separate_reasoning_text(std::string_view text,
                                                                    std::string_view model_type);

}  // namespace espalier::lang
