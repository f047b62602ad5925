// What the keywords of a conjunction's elements ask for, keyword by keyword.
#include <algorithm>
#include <boost/json.hpp>
#include <functional>
#include <set>
#include <tuple>

#include "grammar/schema/compiler.h"
#include "grammar/schema/formats.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

std::optional<uint8_t> type_bit(std::string_view name, uint8_t integer, uint8_t number) {
  if (name == kFractionType) return static_cast<uint8_t>(number & ~integer);
  if (name == "null") return uint8_t{1};
  if (name == "boolean") return uint8_t{2};
  if (name == "integer") return integer;
  if (name == "number") return number;
  if (name == "string") return uint8_t{16};
  if (name == "array") return uint8_t{32};
  if (name == "object") return uint8_t{64};
  return std::nullopt;
}

// Keywords of the validation vocabulary, which a dialect may leave out.
bool asserted(std::string_view key) {
  constexpr std::string_view kKeywords[] = {
      "type",         "enum",      "const",       "multipleOf",  "maximum",     "exclusiveMaximum",
      "minimum",      "maxLength", "minLength",   "pattern",     "maxItems",    "exclusiveMinimum",
      "minItems",     "required",  "uniqueItems", "maxContains", "minContains", "maxProperties",
      "minProperties"};
  return std::ranges::find(kKeywords, key) != std::end(kKeywords);
}

}  // namespace

Result<SchemaCompiler::Facts> SchemaCompiler::gather(const Conjunction& elements) {
  Facts facts;
  facts.num_elements = elements.size();
  for (const Element& element : elements) {
    const json::object* object = element.schema->if_object();
    if (object == nullptr) continue;
    const bool only_ref = document_.ref_hides_siblings(element.schema) && object->contains("$ref");
    if (only_ref && (element.done & kDoneRef)) continue;
    const bool asserts = document_.asserts(element.schema);
    for (const auto& [key, value] : *object) {
      if (!asserts && asserted(key)) continue;
      ESP_RETURN_IF_ERROR(gather_keyword(key, value, element, facts));
    }
  }
  // Elements lie in no certain order, and automata grow with the order in which they are met.
  for (auto* patterns : {&facts.patterns, &facts.not_patterns}) std::ranges::sort(*patterns);
  for (auto* divisors : {&facts.divisors, &facts.not_divisors}) {
    std::ranges::sort(*divisors, std::greater(), [](const Decimal& d) {
      return std::tuple(d.whole.size(), d.whole, d.fraction);
    });
  }
  std::ranges::sort(facts.required);
  facts.required.erase(std::unique(facts.required.begin(), facts.required.end()),
                       facts.required.end());
  return facts;
}

Status SchemaCompiler::gather_keyword(std::string_view key, const json::value& value,
                                      const Element& element, Facts& facts) {
  // Beside nothing that evaluates elsewhere, unevaluated* are additional*.
  const bool alone = facts.num_elements == 1 && evaluates_alone(element);
  const auto array_only = [&] {
    facts.array_facts = true;
    return Status();
  };
  const auto object_only = [&] {
    facts.object_facts = true;
    return Status();
  };
  if (key == "type") {
    uint8_t types = 0;
    const auto add = [&](const json::value& name) {
      const auto bit =
          name.is_string() ? type_bit(name.get_string(), kInteger, kNumber) : std::nullopt;
      if (bit) types |= *bit;
      return bit.has_value();
    };
    bool known = true;
    if (value.is_array()) {
      for (const json::value& name : value.get_array()) known = known && add(name);
    } else {
      known = add(value);
    }
    if (!known) return wrong(element, key, "a type's name or an array of them");
    facts.types &= types;
    return {};
  }
  if (key == "enum") {
    if (!value.is_array()) return wrong(element, key, "an array");
    if (!(element.done & kDoneEnum)) facts.enums.push_back(&value);
    return {};
  }
  if (key == "const") {
    if (!(element.done & kDoneEnum)) facts.constants.push_back(&value);
    return {};
  }
  if (key == kNotEnum) {
    facts.not_enums.push_back(&value);
    facts.any_facts = true;
    return {};
  }
  if (key == "pattern" || key == kNotPattern) {
    if (!value.is_string()) return wrong(element, "pattern", "a string");
    auto& list = key == "pattern" ? facts.patterns : facts.not_patterns;
    list.emplace_back(value.get_string());
    facts.any_facts = true;
    return {};
  }
  if (key == "format" || key == kNotFormat) {
    if (!value.is_string()) return wrong(element, "format", "a string");
    if (value.get_string() == "regex" && !document_.formats_annotate()) {
      left_out_ = facts.any_facts = true;  // what is a pattern is for the check
      return {};
    }
    const auto pattern =
        document_.formats_annotate() ? std::nullopt : format_pattern(value.get_string());
    if (pattern) {
      auto& list = key == "format" ? facts.patterns : facts.not_patterns;
      list.emplace_back(*pattern);
      facts.any_facts = true;
    } else if (key == kNotFormat) {
      facts.types = 0;  // a format that is not known holds of everything
    }
    return {};
  }
  if (key == "required") {
    if (value.is_bool()) return {};  // draft 3's; says nothing here
    if (!value.is_array()) return wrong(element, key, "an array of names");
    for (const json::value& name : value.get_array()) {
      if (!name.is_string()) return wrong(element, key, "an array of names");
      facts.required.emplace_back(name.get_string());
    }
    return object_only();
  }
  if (key == "properties" || key == "patternProperties") {
    if (!value.is_object()) return wrong(element, key, "an object of schemas");
    return object_only();
  }
  if (key == "additionalProperties" || key == "propertyNames") return object_only();
  if (key == "unevaluatedProperties") {
    // Alone it is additionalProperties; beside what evaluates elsewhere it is not supported.
    if (value.is_bool() && value.get_bool()) return {};
    if (!alone) facts.object_error = unsupported(element, key);
    return object_only();
  }
  if (key == kInexpressible) {
    const bool of_object = plain_types({element}) == kObject;
    (of_object ? facts.object_error : facts.array_error) =
        error(StatusCode::kUnimplemented, "{}: the opposite of '{}' is not supported",
              document_.pointer_of(element.schema), std::string_view(value.as_string()));
    return of_object ? object_only() : array_only();
  }
  if (key == "items" || key == "prefixItems" || key == "additionalItems" || key == "contains") {
    return array_only();
  }
  if (key == "minContains" || key == "maxContains") {
    if (member(element, "contains") == nullptr) return {};
    if (key == "minContains" && value == 1) return {};
    facts.array_error = unsupported(element, key);
    return array_only();
  }
  if (key == "unevaluatedItems") {
    if (value.is_bool() && value.get_bool()) return {};
    if (!alone) facts.array_error = unsupported(element, key);
    return array_only();
  }
  if (key == "uniqueItems") {
    if (!value.is_bool()) return wrong(element, key, "true or false");
    facts.unique_items |= value.get_bool();
    if (value.get_bool()) facts.array_facts = true;
    return {};
  }
  return gather_bound(key, value, element, facts);
}

Status SchemaCompiler::gather_bound(std::string_view key, const json::value& value,
                                    const Element& element, Facts& facts) {
  const bool minimum = key == "minimum" || key == "exclusiveMinimum";
  if (minimum || key == "maximum" || key == "exclusiveMaximum") {
    facts.any_facts = true;
    if (value.is_bool() && key.starts_with("exclusive")) return {};  // draft 4: read with the bound
    const auto bound = Decimal::of(value);
    if (!bound) return wrong(element, key, "a number");
    const json::value* draft4 = member(element, minimum ? "exclusiveMinimum" : "exclusiveMaximum");
    const bool open = key.starts_with("exclusive") ||
                      (draft4 != nullptr && draft4->is_bool() && draft4->get_bool());
    if (minimum) {
      facts.bounds.at_least(*bound, open);
    } else {
      facts.bounds.at_most(*bound, open);
    }
    return {};
  }
  if (key == "multipleOf" || key == "divisibleBy" || key == kNotMultipleOf) {
    const auto divisor = Decimal::of(value);
    if (!divisor || divisor->negative || divisor->zero()) {
      return wrong(element, key, "a number greater than 0");
    }
    (key == kNotMultipleOf ? facts.not_divisors : facts.divisors).push_back(*divisor);
    facts.any_facts = true;
    return {};
  }
  struct Count {
    std::string_view key;
    int64_t Facts::*count;
    bool minimum;
    bool Facts::*flag;
  };
  constexpr Count kCounts[] = {
      {"minLength", &Facts::length_min, true, &Facts::any_facts},
      {"maxLength", &Facts::length_max, false, &Facts::any_facts},
      {"minItems", &Facts::items_min, true, &Facts::array_facts},
      {"maxItems", &Facts::items_max, false, &Facts::array_facts},
      {"minProperties", &Facts::properties_min, true, &Facts::object_facts},
      {"maxProperties", &Facts::properties_max, false, &Facts::object_facts},
  };
  for (const Count& c : kCounts) {
    if (key != c.key) continue;
    const auto decimal = Decimal::of(value);
    if (!decimal || decimal->negative || !decimal->fraction.empty()) {
      return wrong(element, key, "a whole number of 0 or more");
    }
    const int64_t count = decimal->whole.size() > 15 ? int64_t{1} << 50
                          : decimal->whole.empty()   ? 0
                                                     : std::stoll(decimal->whole);
    int64_t& current = facts.*c.count;
    if (c.minimum) {
      current = std::max(current, count);
    } else {
      current = current == kUnbounded ? count : std::min(current, count);
    }
    facts.*c.flag = true;
  }
  return {};
}

}  // namespace espalier::grammar
