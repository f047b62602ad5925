#include "grammar/schema/keywords.h"

#include <string_view>
#include <unordered_map>

#include "grammar/schema/elements.h"
#include "grammar/schema/keyword_lowering.h"
#include "grammar/schema/keyword_negation.h"
#include "grammar/schema/keyword_validation.h"

namespace espalier::grammar {
namespace {

namespace l = lowering;
namespace n = negation;
namespace v = validation;

constexpr Role kNote = Role::kAnnotation, kName = Role::kIdentifier, kRef = Role::kReference,
               kApply = Role::kApplicator, kAssert = Role::kAssertion, kOwn = Role::kInternal;
constexpr Subschemas kNone = Subschemas::kNone, kValue = Subschemas::kValue,
                     kList = Subschemas::kList, kMap = Subschemas::kMap,
                     kValueOrList = Subschemas::kValueOrList;

// name, role, where subschemas stand, types that it constrains, lower, negate, validate
constexpr Keyword kKeywords[] = {
    // References come first: up to draft 7 they hide their siblings.
    {"$ref", kRef, kNone, kAllTypes, nullptr, n::reference, v::reference},
    {"$dynamicRef", kRef, kNone, kAllTypes, nullptr, n::unavailable, v::reference},
    {"$recursiveRef", kRef, kNone, kAllTypes, nullptr, n::unavailable, v::reference},

    {"type", kAssert, kNone, kAllTypes, l::type, n::type, v::type},
    {"enum", kAssert, kNone, kAllTypes, l::enum_values, n::enum_values, v::enum_values},
    {"const", kAssert, kNone, kAllTypes, l::constant, n::constant, v::constant},
    {kNotEnum, kOwn, kNone, kAllTypes, l::not_enum, n::internal, v::not_enum},

    {"minimum", kAssert, kNone, kNumber, l::numeric_bound, n::numeric_bound, v::numeric_bound},
    {"maximum", kAssert, kNone, kNumber, l::numeric_bound, n::numeric_bound, v::numeric_bound},
    {"exclusiveMinimum", kAssert, kNone, kNumber, l::numeric_bound, n::numeric_bound,
     v::numeric_bound},
    {"exclusiveMaximum", kAssert, kNone, kNumber, l::numeric_bound, n::numeric_bound,
     v::numeric_bound},
    {"multipleOf", kAssert, kNone, kNumber, l::divisor, n::multiple_of, v::divisor},
    {"divisibleBy", kAssert, kNone, kNumber, l::divisor, n::multiple_of, v::divisor},
    {kNotMultipleOf, kOwn, kNone, kNumber, l::divisor, n::internal, v::divisor},

    {"minLength", kAssert, kNone, kString, l::count_bound, n::count_bound, v::length},
    {"maxLength", kAssert, kNone, kString, l::count_bound, n::count_bound, v::length},
    {"pattern", kAssert, kNone, kString, l::pattern, n::pattern, v::pattern},
    {kNotPattern, kOwn, kNone, kString, l::pattern, n::internal, v::pattern},
    {"format", kApply, kNone, kString, l::format, n::format, v::format},
    {kNotFormat, kOwn, kNone, kString, l::format, n::internal, v::format},

    {"allOf", kApply, kList, kAllTypes, nullptr, n::all_of, v::all_of},
    {"anyOf", kApply, kList, kAllTypes, nullptr, n::any_of, v::any_of},
    {"oneOf", kApply, kList, kAllTypes, nullptr, n::one_of, v::one_of},
    {"not", kApply, kValue, kAllTypes, nullptr, n::negated, v::negated},
    {"if", kApply, kValue, kAllTypes, nullptr, n::condition, v::condition},
    {"then", kApply, kValue, kAllTypes, nullptr, nullptr, nullptr},
    {"else", kApply, kValue, kAllTypes, nullptr, nullptr, nullptr},
    {kInexpressible, kOwn, kNone, kAllTypes, l::inexpressible, nullptr, nullptr},

    {"prefixItems", kApply, kList, kArray, l::of_arrays, n::of_arrays, v::prefix_items},
    {"items", kApply, kValueOrList, kArray, l::of_arrays, n::items, v::items},
    {"additionalItems", kApply, kValue, kArray, l::of_arrays, n::additional, nullptr},
    {"contains", kApply, kValue, kArray, l::of_arrays, n::contains, v::contains},
    {"minContains", kAssert, kNone, kArray, l::of_arrays, n::of_arrays, nullptr},
    {"maxContains", kAssert, kNone, kArray, l::of_arrays, n::of_arrays, nullptr},
    {"minItems", kAssert, kNone, kArray, l::count_bound, n::count_bound, v::item_count},
    {"maxItems", kAssert, kNone, kArray, l::count_bound, n::count_bound, v::item_count},
    {"uniqueItems", kAssert, kNone, kArray, l::unique_items, n::unique_items, v::unique_items},

    {"required", kAssert, kNone, kObject, l::required, n::required, v::required},
    {"minProperties", kAssert, kNone, kObject, l::count_bound, n::count_bound, v::property_count},
    {"maxProperties", kAssert, kNone, kObject, l::count_bound, n::count_bound, v::property_count},
    {"propertyNames", kApply, kValue, kObject, l::of_objects, n::of_objects, v::property_names},
    {"properties", kApply, kMap, kObject, l::object_map, n::properties, v::properties},
    {"patternProperties", kApply, kMap, kObject, l::object_map, n::of_objects,
     v::pattern_properties},
    {"additionalProperties", kApply, kValue, kObject, l::of_objects, n::additional,
     v::additional_properties},
    {"dependencies", kApply, kMap, kObject, nullptr, n::of_objects, v::dependencies},
    {"dependentRequired", kApply, kNone, kObject, nullptr, n::of_objects, v::dependencies},
    {"dependentSchemas", kApply, kMap, kObject, nullptr, n::of_objects, v::dependencies},

    // These depend on what all other keywords have evaluated.
    {"unevaluatedItems", kApply, kValue, kArray, l::unevaluated, n::of_arrays,
     v::unevaluated_items},
    {"unevaluatedProperties", kApply, kValue, kObject, l::unevaluated, n::of_objects,
     v::unevaluated_properties},

    {"$id", kName},
    {"id", kName},
    {"$anchor", kName},
    {"$dynamicAnchor", kName},
    {"$recursiveAnchor", kName},
    {"$schema", kName},
    {"$defs", kNote, kMap},
    {"definitions", kNote, kMap},
    {"contentSchema", kNote, kValue},
    {"contentEncoding", kNote},
    {"contentMediaType", kNote},
    {"$vocabulary", kNote},
    {"title", kNote},
    {"description", kNote},
    {"default", kNote},
    {"examples", kNote},
    {"example", kNote},
    {"$comment", kNote},
    {"deprecated", kNote},
    {"readOnly", kNote},
    {"writeOnly", kNote},
};

}  // namespace

std::span<const Keyword> keywords() { return kKeywords; }

const Keyword* find_keyword(std::string_view name) {
  static const auto* const by_name = [] {
    auto* table = new std::unordered_map<std::string_view, const Keyword*>;
    for (const Keyword& row : kKeywords) table->emplace(row.name, &row);
    return table;
  }();
  const auto it = by_name->find(name);
  return it == by_name->end() ? nullptr : it->second;
}

}  // namespace espalier::grammar
