#include "grammar/schema/keyword_validation.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "grammar/schema/formats.h"
#include "grammar/schema/json_values.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/number_ranges.h"

namespace espalier::grammar::validation {

namespace json = boost::json;

namespace {

int64_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

// Whether a count is within the keyword, which is a minimum or a maximum by its name.
bool within(const KeywordEvaluation& at, int64_t count) {
  const auto bound = count_of(at.value);
  if (!bound) return true;
  return at.key.starts_with("min") ? count >= *bound : count <= *bound;
}

// Draft 4 distinguishes 1.0 from 1. Doubles of 2^63 and more may have been written without a point.
bool is_whole(const json::value& v, Draft draft) {
  if (v.is_int64() || v.is_uint64()) return true;
  if (v.is_double() && std::abs(v.get_double()) >= 0x1p63) return true;
  if (v.is_object() && number_text(v).find_first_of(".eE") == std::string::npos) return true;
  const auto decimal = Decimal::of(v);
  return draft != Draft::k4 && decimal && decimal->fraction.empty();
}

bool has_type(const json::value& v, std::string_view type, Draft draft) {
  if (type == "null") return v.is_null();
  if (type == "boolean") return v.is_bool();
  if (type == "string") return v.is_string();
  if (type == "array") return v.is_array();
  if (type == "object") return is_plain_object(v);
  if (!is_number(v)) return false;
  const bool whole = is_whole(v, draft);
  return type == "number" || (type == "integer" && whole) || (type == kFractionType && !whole);
}

}  // namespace

bool reference(const KeywordEvaluation& at) { return at.evaluator.check_reference(at); }

bool not_enum(const KeywordEvaluation& at) { return !at.evaluator.is_among(at.value, at.instance); }

bool type(const KeywordEvaluation& at) {
  const Draft draft = at.evaluator.document().draft_of(&at.schema);
  const auto fits = [&](const json::value& name) {
    return name.is_string() && has_type(at.instance, name.get_string(), draft);
  };
  return at.value.is_array() ? std::ranges::any_of(at.value.get_array(), fits) : fits(at.value);
}

bool enum_values(const KeywordEvaluation& at) {
  return at.evaluator.is_among(at.value, at.instance);
}

bool constant(const KeywordEvaluation& at) { return equal_values(at.value, at.instance); }

bool numeric_bound(const KeywordEvaluation& at) {
  const auto value = Decimal::of(at.instance);
  const auto bound = Decimal::of(at.value);
  if (!value || !bound) return true;  // draft 4's boolean forms are read with their bound
  const bool low = at.key == "minimum" || at.key == "exclusiveMinimum";
  const json::value* beside = at.sibling(low ? "exclusiveMinimum" : "exclusiveMaximum");
  const bool open = at.key.starts_with("exclusive") ||
                    (beside != nullptr && beside->is_bool() && beside->get_bool());
  NumberBounds bounds;
  if (low) {
    bounds.at_least(*bound, open);
  } else {
    bounds.at_most(*bound, open);
  }
  return bounds.contains(*value);
}

bool divisor(const KeywordEvaluation& at) {
  const auto value = Decimal::of(at.instance);
  const auto divisor = Decimal::of(at.value);
  return !value || !divisor || is_multiple(*value, *divisor) == (at.key != kNotMultipleOf);
}

bool length(const KeywordEvaluation& at) {
  return within(at, characters(at.instance.get_string()));
}

bool pattern(const KeywordEvaluation& at) {
  if (!at.value.is_string()) return true;
  return at.evaluator.matches(at.value.get_string(), at.instance.get_string()) ==
         (at.key == "pattern");
}

bool format(const KeywordEvaluation& at) {
  SchemaDocument& document = at.evaluator.document();
  if (!at.value.is_string() || document.formats_annotate() || !document.asserts(&at.schema))
    return true;
  const std::string_view name = at.value.get_string(), text = at.instance.get_string();
  const bool wanted = at.key == "format";
  if (name == "regex") return is_regex(text) == wanted;
  const auto pattern = format_pattern(name);
  const bool short_enough = characters(text) <= format_length_max(name).value_or(characters(text));
  return (!pattern || (short_enough && at.evaluator.matches(*pattern, text))) == wanted;
}

bool all_of(const KeywordEvaluation& at) {
  return !at.value.is_array() ||
         std::ranges::all_of(at.value.get_array(), [&](const auto& s) { return at.holds(s); });
}

bool any_of(const KeywordEvaluation& at) {
  if (!at.value.is_array()) return true;
  bool found = false;
  for (const json::value& schema : at.value.get_array()) {
    found |= at.holds(schema);
    // Later alternatives matter only for what they evaluate.
    if (found && !at.evaluator.document().has_unevaluated()) break;
  }
  return found;
}

bool one_of(const KeywordEvaluation& at) {
  if (!at.value.is_array()) return true;
  return std::ranges::count_if(at.value.get_array(),
                               [&](const json::value& schema) { return at.holds(schema); }) == 1;
}

bool negated(const KeywordEvaluation& at) { return !at.holds_of_part(at.value, at.instance); }

bool condition(const KeywordEvaluation& at) {
  if (!at.evaluator.document().has_conditions(&at.schema)) return true;
  const json::value* next = at.sibling(at.holds(at.value) ? "then" : "else");
  return next == nullptr || at.holds(*next);
}

bool prefix_items(const KeywordEvaluation& at) {
  if (!at.value.is_array()) return true;
  const json::array& items = at.instance.get_array();
  const json::array& schemas = at.value.get_array();
  for (size_t i = 0; i < std::min(items.size(), schemas.size()); ++i) {
    if (!at.holds_of_part(schemas[i], items[i])) return false;
    at.evaluated.items.insert(i);
  }
  return true;
}

bool items(const KeywordEvaluation& at) {
  const json::value* rest = &at.value;
  const json::value* list = at.sibling("prefixItems");
  if (rest->is_array()) {
    if (!prefix_items(at)) return false;
    list = rest;
    rest = at.sibling("additionalItems");
    if (rest == nullptr) return true;
  }
  const json::array& all = at.instance.get_array();
  const size_t prefix = list != nullptr && list->is_array() ? list->get_array().size() : 0;
  for (size_t i = prefix; i < all.size(); ++i) {
    if (!at.holds_of_part(*rest, all[i])) return false;
    at.evaluated.items.insert(i);
  }
  return true;
}

bool contains(const KeywordEvaluation& at) {
  const json::array& items = at.instance.get_array();
  const SchemaDocument& document = at.evaluator.document();
  const Draft draft = document.draft_of(&at.schema);
  const bool counts = document.asserts(&at.schema) && draft >= Draft::k2019;
  const auto bound = [&](const char* key) -> std::optional<int64_t> {
    const json::value* value = counts ? at.sibling(key) : nullptr;
    return value == nullptr ? std::nullopt : count_of(*value);
  };
  const int64_t low = bound("minContains").value_or(1);
  const auto high = bound("maxContains");
  int64_t found = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!at.holds_of_part(at.value, items[i])) continue;
    ++found;
    if (draft == Draft::k2020) at.evaluated.items.insert(i);
  }
  return found >= low && (!high || found <= *high);
}

bool item_count(const KeywordEvaluation& at) {
  return within(at, std::ssize(at.instance.get_array()));
}

bool unique_items(const KeywordEvaluation& at) {
  if (!at.value.is_bool() || !at.value.get_bool()) return true;
  const json::array& items = at.instance.get_array();
  for (size_t i = 0; i < items.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (equal_values(items[i], items[j])) return false;
    }
  }
  return true;
}

bool unevaluated_items(const KeywordEvaluation& at) {
  const json::array& items = at.instance.get_array();
  for (size_t i = 0; i < items.size(); ++i) {
    if (at.evaluated.items.contains(i)) continue;
    if (!at.holds_of_part(at.value, items[i])) return false;
    at.evaluated.items.insert(i);
  }
  return true;
}

bool required(const KeywordEvaluation& at) {
  if (!at.value.is_array()) return true;
  const json::object& object = at.instance.get_object();
  return std::ranges::all_of(at.value.get_array(), [&](const json::value& name) {
    return !name.is_string() || object.contains(name.get_string());
  });
}

bool property_count(const KeywordEvaluation& at) {
  return within(at, static_cast<int64_t>(at.instance.get_object().size()));
}

bool property_names(const KeywordEvaluation& at) {
  return std::ranges::all_of(at.instance.get_object(), [&](const auto& entry) {
    return at.holds_of_part(at.value, at.evaluator.name_value(entry.key()));
  });
}

bool properties(const KeywordEvaluation& at) {
  if (!at.value.is_object()) return true;
  for (const auto& [key, value] : at.instance.get_object()) {
    const json::value* schema = at.value.get_object().if_contains(key);
    if (schema == nullptr) continue;
    if (!at.holds_of_part(*schema, value)) return false;
    at.evaluated.properties.insert(key);
  }
  return true;
}

bool pattern_properties(const KeywordEvaluation& at) {
  if (!at.value.is_object()) return true;
  for (const auto& [key, value] : at.instance.get_object()) {
    for (const auto& [pattern, schema] : at.value.get_object()) {
      if (!at.evaluator.matches(pattern, key)) continue;
      if (!at.holds_of_part(schema, value)) return false;
      at.evaluated.properties.insert(key);
    }
  }
  return true;
}

bool additional_properties(const KeywordEvaluation& at) {
  const json::value* properties = at.sibling("properties");
  const json::value* patterns = at.sibling("patternProperties");
  for (const auto& [key, value] : at.instance.get_object()) {
    bool known =
        properties != nullptr && properties->is_object() && properties->get_object().contains(key);
    if (!known && patterns != nullptr && patterns->is_object()) {
      known = std::ranges::any_of(patterns->get_object(), [&](const auto& entry) {
        return at.evaluator.matches(entry.key(), key);
      });
    }
    if (known) continue;
    if (!at.holds_of_part(at.value, value)) return false;
    at.evaluated.properties.insert(key);
  }
  return true;
}

bool dependencies(const KeywordEvaluation& at) {
  if (!at.value.is_object()) return true;
  const json::object& object = at.instance.get_object();
  for (const auto& [name, needed] : at.value.get_object()) {
    if (!object.contains(name)) continue;
    if (const json::array* names = needed.if_array()) {
      for (const json::value& n : *names) {
        if (n.is_string() && !object.contains(n.get_string())) return false;
      }
    } else if (needed.is_string()) {
      if (!object.contains(needed.get_string())) return false;
    } else if (!at.holds(needed)) {
      return false;
    }
  }
  return true;
}

bool unevaluated_properties(const KeywordEvaluation& at) {
  for (const auto& [key, value] : at.instance.get_object()) {
    if (at.evaluated.properties.contains(key)) continue;
    if (!at.holds_of_part(at.value, value)) return false;
    at.evaluated.properties.insert(key);
  }
  return true;
}

}  // namespace espalier::grammar::validation
