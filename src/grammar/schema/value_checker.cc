#include "grammar/schema/value_checker.h"

#include <algorithm>

#include "grammar/schema/json_text.h"

namespace espalier::grammar {

uint32_t SchemaChecker::add(std::vector<Part> all) {
  checks_.push_back(std::move(all));
  return static_cast<uint32_t>(checks_.size() - 1);
}

bool SchemaChecker::holds(uint32_t check, std::string_view value) {
  const auto parsed = parse_exact_json_text(value, "the value");
  if (!parsed) return false;
  return std::ranges::all_of(checks_[check], [&](const Part& part) {
    const auto valid = validator_.valid(*parsed, part.schema, part.scope);
    return valid && *valid;
  });
}

}  // namespace espalier::grammar
