#include "grammar/schema/values.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "grammar/schema/arrays.h"
#include "grammar/schema/json_values.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/objects.h"
#include "grammar/schema/scalars.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

uint8_t type_of(const json::value& v) {
  if (v.is_null()) return kNull;
  if (v.is_bool()) return kBoolean;
  if (v.is_string()) return kString;
  if (v.is_array()) return kArray;
  if (is_plain_object(v)) return kObject;
  const auto decimal = Decimal::of(v);
  return decimal && decimal->fraction.empty() ? kInteger : kFraction;
}

bool excludes(const Constraints& constraints, const json::value& value) {
  return std::ranges::any_of(constraints.not_enums, [&](const json::value* list) {
    const auto& values = list->get_array();
    return std::ranges::find(values, value) != values.end();
  });
}

bool excludes_structure(const Constraints& constraints) {
  return std::ranges::any_of(constraints.not_enums, [](const json::value* list) {
    return std::ranges::any_of(list->get_array(), is_plain_structure);
  });
}

}  // namespace

Result<ExprId> ValueCompiler::lower(const Conjunction& elements, const Constraints& constraints) {
  if (const auto values = allowed_values(constraints))
    return lower_listed(elements, *values, constraints);
  const bool free = constraints.types == kAllTypes && !constraints.of_arrays &&
                    !constraints.of_objects && !constraints.of_scalars;
  if (free) return syntax_.value();
  std::vector<ExprId> alternatives;
  if ((constraints.types & kNull) && !excludes(constraints, nullptr))
    alternatives.push_back(syntax_.null());
  if (constraints.types & kBoolean) {
    if (!excludes(constraints, true)) alternatives.push_back(ir_.literal("true"));
    if (!excludes(constraints, false)) alternatives.push_back(ir_.literal("false"));
  }
  if (constraints.types & kNumber) {
    ESP_ASSIGN_OR_RETURN(const ExprId number, ScalarCompiler(compiler_).number(constraints));
    alternatives.push_back(number);
  }
  if (constraints.types & kString) {
    ESP_ASSIGN_OR_RETURN(const ExprId string, ScalarCompiler(compiler_).string(constraints));
    alternatives.push_back(string);
  }
  bool structured_excluded = excludes_structure(constraints);
  if (compiler_.approximating() && structured_excluded) {
    compiler_.require_check();
    structured_excluded = false;
  }
  if (structured_excluded && (constraints.types & (kArray | kObject))) {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: excluding arrays or objects by value is not supported",
                      document_.pointer_of(elements[0].schema)));
  }
  if (constraints.types & kArray) {
    if (constraints.array_error && !compiler_.approximating())
      return fail(*constraints.array_error);
    if (constraints.array_error) compiler_.require_check();
    ESP_ASSIGN_OR_RETURN(const ExprId array, ArrayCompiler(compiler_).lower(elements, constraints));
    alternatives.push_back(array);
  }
  if (constraints.types & kObject) {
    if (constraints.object_error && !compiler_.approximating())
      return fail(*constraints.object_error);
    if (constraints.object_error) compiler_.require_check();
    ESP_ASSIGN_OR_RETURN(const ExprId object,
                         ObjectCompiler(compiler_).lower(elements, constraints));
    alternatives.push_back(object);
  }
  return ir_.choice(alternatives);
}

// The values that enums and constants leave, as far as they satisfy the other keywords.
Result<ExprId> ValueCompiler::lower_listed(const Conjunction& elements,
                                           const std::vector<const json::value*>& values,
                                           const Constraints& constraints) {
  const bool constrained =
      constraints.of_scalars || constraints.of_arrays || constraints.of_objects;
  std::vector<std::string> scalars;
  std::vector<ExprId> alternatives;
  for (const json::value* v : values) {
    if (!(constraints.types & type_of(*v))) continue;
    if (constrained) {
      ESP_RETURN_IF_ERROR(limits_.check_time());
      ESP_ASSIGN_OR_RETURN(const bool fits, compiler_.holds(*v, elements));
      if (!fits) continue;
    }
    if (options_.any_order && is_plain_structure(*v)) {
      // Its members may come in any order, so the check decides which texts equal it.
      compiler_.require_check();
      alternatives.push_back(v->is_object() ? syntax_.object() : syntax_.array());
    } else if (v->is_structured() || is_number(*v)) {
      alternatives.push_back(ScalarCompiler(compiler_).literal(*v));
    } else {
      scalars.push_back(json::serialize(*v));
    }
    const auto decimal = Decimal::of(*v);
    const bool whole = decimal && decimal->fraction.empty();
    if (whole && options_.whole_fractions)
      alternatives.push_back(
          ScalarCompiler(compiler_).with_whole_fraction(ScalarCompiler(compiler_).literal(*v)));
  }
  if (!scalars.empty()) alternatives.push_back(ir_.literals(std::move(scalars)));
  return ir_.choice(alternatives);
}

}  // namespace espalier::grammar
