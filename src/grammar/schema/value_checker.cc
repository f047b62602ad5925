#include "grammar/schema/value_checker.h"

#include <algorithm>

#include "grammar/automata/held_bytes.h"
#include "grammar/schema/json_text.h"

namespace espalier::grammar {

uint32_t SchemaChecker::add(std::vector<Part> all) {
  checks_.push_back(std::move(all));
  return static_cast<uint32_t>(checks_.size() - 1);
}

size_t SchemaChecker::num_bytes() const {
  size_t bytes = held_bytes(checks_) + document_->num_bytes() + validator_.num_bytes();
  for (const std::vector<Part>& parts : checks_) bytes += held_bytes(parts);
  return bytes;
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
