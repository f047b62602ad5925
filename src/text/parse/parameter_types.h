// Which JSON types a tool's schema allows for a parameter. Pure. Internal to the folder.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

// What the reading of a value depends on. The types of a schema that refers elsewhere or has
// alternatives are those of all its parts together.
struct ParameterTypes {
  bool known = false;  // the tool declares the parameter
  bool typed = false;  // its schema names a type, or values
  bool string = false, null = false, boolean = false;
  // The values of enumerations that mix strings with others, as JSON: these are written as JSON,
  // since 2.5 and "2.5" would look alike. They do not count for `string`.
  std::vector<std::string> mixed_enum;
};

// The types of `parameter` of the tool `tool`: by "properties", or by "additionalProperties" where
// the parameter is not among them. `tools`: a checked list of {"function": {"name", "parameters"}},
// or null, which declares nothing. Thread-safe. A schema's references and alternatives are followed
// to a bounded depth, and each is visited once, so recursive schemas end.
ParameterTypes parameter_types(const boost::json::value* tools, std::string_view tool,
                               std::string_view parameter);

}  // namespace espalier
