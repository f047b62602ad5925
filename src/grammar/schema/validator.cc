#include "grammar/schema/validator.h"

#include <tuple>
#include <vector>

#include "grammar/schema/evaluator.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/string_matcher.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

// Unknown keywords count: a reference may lead into them.
bool may_hold_schemas(std::string_view name, const Keyword* keyword) {
  if (name == "default" || name == "examples" || name == "enum" || name == "const") return false;
  return keyword == nullptr || keyword->subschemas != Subschemas::kNone ||
         keyword->role != Role::kAssertion;
}

}  // namespace

struct SchemaValidator::Impl {
  explicit Impl(SchemaDocument& document) : evaluator(document, strings) {}
  StringMatcher strings;
  InstanceEvaluator evaluator;
};

SchemaValidator::SchemaValidator(SchemaDocument& document)
    : document_(document), impl_(std::make_unique<Impl>(document)) {}
SchemaValidator::~SchemaValidator() = default;

size_t SchemaValidator::num_bytes() const { return impl_->strings.num_bytes(); }

Result<bool> SchemaValidator::valid(const json::value& instance, const json::value* schema,
                                    ScopeId scope, const GrammarLimits& limits) {
  return impl_->evaluator.run(instance, schema, scope, limits);
}

// Chains of references may be long, so pending schemas wait in a list and not on the stack.
Status SchemaValidator::admits(const json::value* schema, ScopeId scope,
                               const GrammarLimits& limits) {
  std::vector<std::pair<const json::value*, ScopeId>> waiting;
  const auto add = [&](const json::value* inner, ScopeId inner_scope) {
    inner = document_.meant(inner);
    inner_scope = document_.entered(inner_scope, inner);
    if (admitted_.insert({inner, inner_scope}).second && inner->is_object())
      waiting.emplace_back(inner, inner_scope);
  };
  add(schema, scope);
  while (!waiting.empty()) {
    std::tie(schema, scope) = waiting.back();
    waiting.pop_back();
    for (const auto& [key, value] : schema->get_object()) {
      const std::string_view name = key;
      if (name == "$ref" || name == "$dynamicRef" || name == "$recursiveRef") {
        if (!value.is_string()) continue;
        ESP_ASSIGN_OR_RETURN(const auto target,
                             document_.resolve(schema, name, value.get_string(), scope));
        add(target.schema, target.scope);
      } else if ((name == "pattern" || name == kNotPattern) && value.is_string()) {
        ESP_RETURN_IF_ERROR(impl_->strings.add(value.get_string(), limits));
      } else if (name == "patternProperties" && value.is_object()) {
        for (const auto& [pattern, inner] : value.get_object()) {
          ESP_RETURN_IF_ERROR(impl_->strings.add(pattern, limits));
          add(&inner, scope);
        }
      } else if (const Keyword* keyword = find_keyword(name); may_hold_schemas(name, keyword)) {
        const bool map = keyword != nullptr && keyword->subschemas == Subschemas::kMap;
        if (value.is_object() && !map) add(&value, scope);
        if (value.is_object() && map) {
          for (const auto& [inner_name, inner] : value.get_object()) add(&inner, scope);
        }
        if (value.is_array()) {
          for (const json::value& inner : value.get_array()) add(&inner, scope);
        }
      }
    }
  }
  return {};
}

}  // namespace espalier::grammar
