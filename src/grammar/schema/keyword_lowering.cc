#include "grammar/schema/keyword_lowering.h"

#include <algorithm>
#include <string>

#include "grammar/schema/formats.h"
#include "grammar/schema/keywords.h"

namespace espalier::grammar::lowering {

namespace json = boost::json;

namespace {

Status wrong(const KeywordUse& use, std::string_view expected) {
  return grammar::wrong(use.document, use.element, use.key, expected);
}

}  // namespace

Status type(const KeywordUse& use) {
  uint8_t types = 0;
  const auto add = [&](const json::value& name) {
    const uint8_t bits = name.is_string() ? type_bits(name.get_string()) : uint8_t{0};
    types |= bits;
    return bits != 0;
  };
  bool known = true;
  if (use.value.is_array()) {
    for (const json::value& name : use.value.get_array()) known = known && add(name);
  } else {
    known = add(use.value);
  }
  if (!known) return wrong(use, "a type's name or an array of them");
  use.out.types &= types;
  return {};
}

Status enum_values(const KeywordUse& use) {
  if (!use.value.is_array()) return wrong(use, "an array");
  if (!(use.element.done & kDoneEnum)) use.out.enums.push_back(&use.value);
  return {};
}

Status constant(const KeywordUse& use) {
  if (!(use.element.done & kDoneEnum)) use.out.constants.push_back(&use.value);
  return {};
}

Status not_enum(const KeywordUse& use) {
  use.out.not_enums.push_back(&use.value);
  use.out.of_scalars = true;
  return {};
}

Status pattern(const KeywordUse& use) {
  if (!use.value.is_string())
    return grammar::wrong(use.document, use.element, "pattern", "a string");
  auto& list = use.key == "pattern" ? use.out.patterns : use.out.not_patterns;
  list.emplace_back(use.value.get_string());
  use.out.of_scalars = true;
  return {};
}

Status format(const KeywordUse& use) {
  if (!use.value.is_string())
    return grammar::wrong(use.document, use.element, "format", "a string");
  const std::string_view name = use.value.get_string();
  if (use.document.formats_annotate()) {
    if (use.key == kNotFormat) use.out.types = 0;
    return {};
  }
  if (name == "regex") {
    use.out.needs_check = use.out.of_scalars = true;  // the language of expressions is not regular
    return {};
  }
  if (const auto pattern = format_pattern(name)) {
    auto& list = use.key == "format" ? use.out.patterns : use.out.not_patterns;
    list.emplace_back(*pattern);
    use.out.of_scalars = true;
    const auto length = use.key == "format" ? format_length_max(name) : std::nullopt;
    if (length) {
      int64_t& most = use.out.length_max;
      most = most == kUnbounded ? *length : std::min(most, *length);
    }
  } else if (use.key == kNotFormat) {
    use.out.types = 0;  // an unknown format holds of everything
  }
  return {};
}

Status numeric_bound(const KeywordUse& use) {
  const std::string_view key = use.key;
  const bool minimum = key == "minimum" || key == "exclusiveMinimum";
  use.out.of_scalars = true;
  // Draft 4 writes the exclusive forms as booleans beside the bound.
  if (use.value.is_bool() && key.starts_with("exclusive")) return {};
  const auto bound = Decimal::of(use.value);
  if (!bound) return wrong(use, "a number");
  const json::value* draft4 =
      member(use.element, minimum ? "exclusiveMinimum" : "exclusiveMaximum");
  const bool open = key.starts_with("exclusive") ||
                    (draft4 != nullptr && draft4->is_bool() && draft4->get_bool());
  if (minimum) {
    use.out.bounds.at_least(*bound, open);
  } else {
    use.out.bounds.at_most(*bound, open);
  }
  return {};
}

Status divisor(const KeywordUse& use) {
  const auto divisor = Decimal::of(use.value);
  if (!divisor || divisor->negative || divisor->zero())
    return wrong(use, "a number greater than 0");
  (use.key == kNotMultipleOf ? use.out.not_divisors : use.out.divisors).push_back(*divisor);
  use.out.of_scalars = true;
  return {};
}

Status count_bound(const KeywordUse& use) {
  struct Count {
    std::string_view key;
    int64_t Constraints::*count;
    bool minimum;
    bool Constraints::*flag;
  };
  constexpr Count kCounts[] = {
      {"minLength", &Constraints::length_min, true, &Constraints::of_scalars},
      {"maxLength", &Constraints::length_max, false, &Constraints::of_scalars},
      {"minItems", &Constraints::items_min, true, &Constraints::of_arrays},
      {"maxItems", &Constraints::items_max, false, &Constraints::of_arrays},
      {"minProperties", &Constraints::properties_min, true, &Constraints::of_objects},
      {"maxProperties", &Constraints::properties_max, false, &Constraints::of_objects},
  };
  const auto* row = std::ranges::find(kCounts, use.key, &Count::key);
  const auto count = count_of(use.value);
  if (!count) return wrong(use, "a whole number of 0 or more");
  int64_t& current = use.out.*row->count;
  if (row->minimum) {
    current = std::max(current, *count);
  } else {
    current = current == kUnbounded ? *count : std::min(current, *count);
  }
  use.out.*row->flag = true;
  return {};
}

Status required(const KeywordUse& use) {
  if (use.value.is_bool()) return {};  // draft 3's form requires nothing here
  if (!use.value.is_array()) return wrong(use, "an array of names");
  for (const json::value& name : use.value.get_array()) {
    if (!name.is_string()) return wrong(use, "an array of names");
    use.out.required.emplace_back(name.get_string());
  }
  use.out.of_objects = true;
  return {};
}

Status object_map(const KeywordUse& use) {
  if (!use.value.is_object()) return wrong(use, "an object of schemas");
  use.out.of_objects = true;
  return {};
}

Status of_objects(const KeywordUse& use) {
  use.out.of_objects = true;
  return {};
}

Status of_arrays(const KeywordUse& use) {
  use.out.of_arrays = true;
  return {};
}

Status unevaluated(const KeywordUse& use) {
  if (use.value.is_bool() && use.value.get_bool()) return {};
  const bool items = use.key == "unevaluatedItems";
  if (!use.alone) {
    (items ? use.out.array_error : use.out.object_error) =
        unsupported(use.document, use.element, use.key);
  }
  (items ? use.out.of_arrays : use.out.of_objects) = true;
  return {};
}

Status unique_items(const KeywordUse& use) {
  if (!use.value.is_bool()) return wrong(use, "true or false");
  use.out.unique_items |= use.value.get_bool();
  use.out.of_arrays |= use.value.get_bool();
  return {};
}

Status inexpressible(const KeywordUse& use) {
  const bool of_object = plain_types(use.document, {use.element}) == kObject;
  (of_object ? use.out.object_error : use.out.array_error) =
      error(StatusCode::kUnimplemented, "{}: the negation of '{}' is not supported",
            use.document.pointer_of(use.element.schema), std::string_view(use.value.as_string()));
  (of_object ? use.out.of_objects : use.out.of_arrays) = true;
  return {};
}

}  // namespace espalier::grammar::lowering
