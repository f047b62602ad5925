#include "grammar/schema/elements.h"

#include <algorithm>
#include <utility>

#include "grammar/schema/keywords.h"

namespace espalier::grammar {

namespace json = boost::json;

uint8_t type_bits(std::string_view name) {
  constexpr std::pair<std::string_view, uint8_t> kNames[] = {
      {"null", kNull},     {"boolean", kBoolean},     {"integer", kInteger},
      {"number", kNumber}, {"string", kString},       {"array", kArray},
      {"object", kObject}, {kFractionType, kFraction}};
  for (const auto& [known, bits] : kNames) {
    if (name == known) return bits;
  }
  return 0;
}

const json::value* member(const Element& element, std::string_view key) {
  const json::object* object = element.schema->if_object();
  return object == nullptr ? nullptr : object->if_contains(key);
}

Status unsupported(const SchemaDocument& document, const Element& element, std::string_view key) {
  return error(StatusCode::kUnimplemented, "{}/{}: '{}' is not supported here",
               document.pointer_of(element.schema), key, key);
}

Status wrong(const SchemaDocument& document, const Element& element, std::string_view key,
             std::string_view expected) {
  return invalid_argument("{}/{}: '{}' must be {}", document.pointer_of(element.schema), key, key,
                          expected);
}

uint8_t plain_types(const SchemaDocument& document, const Conjunction& elements) {
  uint8_t left = kAllTypes;
  for (const Element& element : elements) {
    const json::value* type = member(element, "type");
    if (type == nullptr || !document.asserts(element.schema)) continue;
    uint8_t own = 0;
    const auto add = [&](const json::value& name) {
      const uint8_t bits = name.is_string() ? type_bits(name.get_string()) : uint8_t{0};
      own |= bits == 0 ? uint8_t{kAllTypes} : bits;
    };
    if (type->is_array()) {
      for (const json::value& name : type->get_array()) add(name);
    } else {
      add(*type);
    }
    left &= own;
  }
  return left;
}

size_t prefix_length(const Conjunction& elements) {
  size_t length = 0;
  for (const Element& element : elements) {
    for (const char* key : {"prefixItems", "items"}) {
      const json::value* list = member(element, key);
      if (list != nullptr && list->is_array()) length = std::max(length, list->get_array().size());
    }
  }
  return length;
}

bool evaluates_alone(const Element& element) { return element.done == 0; }

const json::value* additional_of(const Element& element, const Conjunction& elements) {
  const json::value* additional = member(element, "additionalProperties");
  if (additional == nullptr && elements.size() == 1 && evaluates_alone(element)) {
    additional = member(element, "unevaluatedProperties");
  }
  return additional;
}

}  // namespace espalier::grammar
